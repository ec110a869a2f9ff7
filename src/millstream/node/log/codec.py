"""One log record: the transitions of one command or one transaction, as MessagePack.

``[version, wall milliseconds, [[op, argument, ...], ...]]``. The time is for people and for cutting a log at a moment;
applying never reads it. A record has nothing but ints, bytes, text, booleans, null and arrays. Unpacking makes no other
objects.
"""

from collections.abc import Sequence
from typing import Any

import msgpack

from millstream.engine.keyspace import Transition
from millstream.errors import StorageError

VERSION = 1
# Largest size in bytes of a record's head: two array headers, two numbers
_HEAD_MAX = 20


def _head_reader() -> msgpack.Unpacker:
    """Return a reader of a record's head; without a limit it would take a megabyte of memory each time."""
    return msgpack.Unpacker(max_buffer_size=_HEAD_MAX)


def pack(wall: int, steps: Sequence[Transition | bytes]) -> bytes:
    """Return a record of these transitions, made at this wall time."""
    packed: bytes = msgpack.packb((VERSION, wall, steps), use_bin_type=True)
    return packed


def join(wall: int, steps: Sequence[Transition | bytes]) -> bytes:
    """Return a record of transitions and of packed transitions (bytes) of other records made at the same wall time."""
    if bytes not in map(type, steps):
        return pack(wall, steps)
    packer, count, parts = msgpack.Packer(use_bin_type=True, autoreset=False, buf_size=_HEAD_MAX), 0, []
    for step in steps:
        if isinstance(step, bytes):
            unpacker = _head_reader()
            unpacker.feed(step[:_HEAD_MAX])
            unpacker.read_array_header()
            unpacker.skip()
            unpacker.skip()
            count += unpacker.read_array_header()
            parts.append(memoryview(step)[unpacker.tell() :])
        else:
            count += 1
            parts.append(msgpack.packb(step, use_bin_type=True))
    for write, value in ((packer.pack_array_header, 3), (packer.pack, VERSION), (packer.pack, wall)):
        write(value)
    packer.pack_array_header(count)
    return b"".join((packer.bytes(), *parts))


def add(payload: bytes, *steps: Transition) -> bytes:
    """Return the record with more transitions at its end."""
    unpacker = _head_reader()
    unpacker.feed(payload[:_HEAD_MAX])
    unpacker.read_array_header()
    unpacker.skip()
    return join(unpacker.unpack(), [payload, *steps])


def unpack(payload: bytes) -> tuple[int, list[list[Any]]]:
    """Return a record's wall time and transitions."""
    version, wall, steps = msgpack.unpackb(payload, raw=False, strict_map_key=True)
    if version != VERSION:
        raise StorageError(
            f"the log has records of version {version}, and this Millstream reads version {VERSION}: "
            "start a newer Millstream on this data directory"
        )
    if type(wall) is not int or type(steps) is not list:
        raise ValueError("a record without its time or its transitions")
    return wall, steps
