"""Every transition there is: importing this module registers them all with the keyspace. PURE.

A program that replays a log imports it first; a transition whose module was not imported would be unknown.
"""

from millstream.engine import collection_ops, keyspace
from millstream.engine.serialization import dump, snapshot_ops
from millstream.engine.streams import stream_ops

MODULES = (keyspace, stream_ops, collection_ops, dump, snapshot_ops)
