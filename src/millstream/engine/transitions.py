"""Every transition there is: importing this module registers them all with the keyspace. PURE."""

from millstream.engine import collection_ops, dump_ops, keyspace, snapshot_ops, stream_ops

MODULES = (keyspace, stream_ops, collection_ops, dump_ops, snapshot_ops)
