"""One log record: the transitions of one command or one transaction, as MessagePack.

``[version, wall milliseconds, [[op, argument, ...], ...]]``. The time is for people and for cutting a log at a moment;
applying never reads it. Nothing but ints, bytes, text, booleans, null and arrays can be in a record, and unpacking
makes nothing else: no object is ever revived from a log.
"""

from typing import Any

import msgpack

from millstream.engine.keyspace import Transition
from millstream.errors import StorageError

VERSION = 1


def pack(wall: int, steps: list[Transition]) -> bytes:
    """A record of these transitions, made at this wall time."""
    packed: bytes = msgpack.packb((VERSION, wall, steps), use_bin_type=True)
    return packed


def unpack(payload: bytes) -> tuple[int, list[list[Any]]]:
    """A record's wall time and transitions.

    Raises:
        StorageError: the record is of a later version than this program knows.
    """
    version, wall, steps = msgpack.unpackb(payload, raw=False, strict_map_key=True)
    if version != VERSION:
        raise StorageError(
            f"the log has records of version {version}, and this Millstream reads version {VERSION}: "
            "start a newer Millstream on this data directory"
        )
    return wall, steps
