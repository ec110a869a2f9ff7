"""All transitions: importing this module registers them with the keyspace. PURE.

A program that replays a log must import it first, since replaying fails at a transition that is not registered.
"""

from millstream.engine import cold_ops, collection_ops, keyspace
from millstream.engine.serialization import dump, snapshot_ops
from millstream.engine.streams import stream_ops

MODULES = (keyspace, stream_ops, collection_ops, cold_ops, dump, snapshot_ops)
