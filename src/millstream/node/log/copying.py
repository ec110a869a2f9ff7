"""The copy of all data with which a replica begins: an RDB file of a version that the replica reads."""

from collections.abc import Iterator

from millstream.commands.admin.info import REDIS_VERSION
from millstream.engine.history import NO_DATABASE, ReplicationState, text_of
from millstream.engine.keyspace import Keyspace
from millstream.engine.serialization.rdb.writing import write_file
from millstream.node.log.rewriting import CopyMade

NO_KEYS = Keyspace()
EARLIER = "millstream-earlier-histories"
"""The auxiliary field of a copy that names the earlier histories; Redis skips fields that it does not know."""


def pieces(space: Keyspace, past: ReplicationState | CopyMade, wall: int, version: int) -> Iterator[bytes]:
    """Yield the bytes of a copy, in pieces."""
    aux = {"redis-ver": REDIS_VERSION, "redis-bits": "64", "ctime": str(wall // 1000)}
    if past.db != NO_DATABASE:
        aux["repl-stream-db"] = str(past.db)
    if names := space.history.before():
        aux[EARLIER] = text_of(names)
    return write_file(space, aux={**aux, "repl-id": past.replid, "repl-offset": str(past.offset)}, version=version)
