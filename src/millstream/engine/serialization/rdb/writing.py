"""A keyspace as a whole RDB file, or one value as a payload that RESTORE of Redis takes. PURE.

Values are written in the oldest form that all versions still read, element by element. A server that loads them turns
small ones into its own small encodings. Only streams differ by version, see
:mod:`millstream.engine.serialization.rdb.written_streams`. The checksum of a file is 0, which means none: without the
native core, a checksum would cost more than everything else. Loaders have accepted 0 since 2012.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping

from millstream.engine.collections import HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.keyspace import Database, Keyspace, StringValue, Value
from millstream.engine.serialization.rdb.bulk import crc64
from millstream.engine.serialization.rdb.written_streams import STREAM_TYPE, pack_size, pack_string, stream_pieces
from millstream.engine.streams.stream import Stream

_AUX, _RESIZE, _EXPIRE_MS, _SELECT, _END = b"\xfa", b"\xfb", b"\xfc", b"\xfe", b"\xff"
# Bytes up to which small pieces are joined before they are yielded
_TOGETHER = 1 << 16


def write_file(keyspace: Keyspace, *, aux: Mapping[str, str], version: int = 10) -> Iterator[bytes]:
    """Yield a file from which Redis can start; the keyspace must not change meanwhile."""
    if version not in STREAM_TYPE:
        raise ValueError(f"version {version} is not written; one of {', '.join(map(str, STREAM_TYPE))} is")
    return _gathered(_file(keyspace, aux, version))


def redis_payload(value: Value, version: int = 10) -> bytes:
    """Return a value as Redis's DUMP would write it."""
    body = bytes([_kind(value, version)]) + b"".join(_value(value, version)) + version.to_bytes(2, "little")
    return body + crc64(body).to_bytes(8, "little")


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces large enough for a write."""
    waiting, size = [], 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _TOGETHER:  # each small piece would cost a system call
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _file(keyspace: Keyspace, aux: Mapping[str, str], version: int) -> Iterator[bytes]:
    yield b"REDIS%04d" % version
    for name, text in aux.items():
        yield _AUX + pack_string(name.encode()) + pack_string(text.encode())
    for base in keyspace.databases:
        if base.keys:
            yield from _database(base, version)
    yield _END + bytes(8)


def _database(base: Database, version: int) -> Iterator[bytes]:
    yield _SELECT + pack_size(base.index)
    yield _RESIZE + pack_size(len(base.keys)) + pack_size(len(base.expires))
    for key, value in base.keys.items():
        expires_at = base.expires.get(key)
        if expires_at is not None:
            yield _EXPIRE_MS + expires_at.to_bytes(8, "little", signed=True)
        yield bytes([_kind(value, version)]) + pack_string(key)
        yield from _value(value, version)


_KINDS: dict[type, int] = {StringValue: 0, ListValue: 1, SetValue: 2, HashValue: 4, ZSetValue: 5}


def _kind(value: Value, version: int) -> int:
    """Return the number of the type in which a value is written."""
    return STREAM_TYPE[version] if isinstance(value, Stream) else _KINDS[type(value)]


def _value(value: Value, version: int) -> Iterator[bytes]:
    if isinstance(value, Stream):
        yield from stream_pieces(value, STREAM_TYPE[version])
    elif isinstance(value, StringValue):
        yield pack_string(value.data)
    elif isinstance(value, ZSetValue):
        yield pack_size(len(value))
        for score, member in value.between(0, len(value)):
            yield pack_string(member) + struct.pack("<d", score)  # a double, since text would round the score
    elif isinstance(value, HashValue):
        yield pack_size(len(value))
        for field, content in value.fields.items():
            yield pack_string(field) + pack_string(content)
    else:
        assert isinstance(value, ListValue | SetValue)
        yield pack_size(len(value))
        yield from map(pack_string, value.between(0, len(value)) if isinstance(value, ListValue) else value)
