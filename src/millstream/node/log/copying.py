"""The copy of all data with which a replica begins: an RDB file that every Redis from 7.0 on and Valkey read."""

from collections.abc import Iterator

from millstream.commands.admin.info import REDIS_VERSION
from millstream.engine.history import NO_DATABASE
from millstream.engine.keyspace import Keyspace
from millstream.engine.serialization.rdb.writing import write_file

NO_KEYS = Keyspace()


def pieces(space: Keyspace, replid: str, offset: int, db: int, wall: int) -> Iterator[bytes]:
    """The bytes of a copy, in pieces.

    Args:
        space: all data; must not change meanwhile.
        replid: the history in which they were this.
        offset: how far that was.
        db: the database that is selected then, which the replica goes on with.
        wall: wall milliseconds.
    """
    aux = {"redis-ver": REDIS_VERSION, "redis-bits": "64", "ctime": str(wall // 1000)}
    if db != NO_DATABASE:
        aux["repl-stream-db"] = str(db)
    return write_file(space, aux={**aux, "repl-id": replid, "repl-offset": str(offset)})
