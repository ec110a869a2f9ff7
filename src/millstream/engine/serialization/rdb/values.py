"""Values of keys, except streams, by the numbers of Redis's types. PURE.

An empty collection is not a value: Redis leaves its key out of a file, and refuses it in RESTORE.
"""

import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator

from millstream.engine.collections import HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.keyspace import StringValue, Value
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb.pieces import string
from millstream.engine.serialization.rdb.sizes import Payload
from millstream.engine.serialization.rdb.small import (
    intset_elements,
    listpack_elements,
    ziplist_elements,
    zipmap_elements,
)
from millstream.engine.serialization.rdb.streams import STREAM_TYPES, read_stream

# Kinds of a list's node: a single element, or several
_PLAIN, _PACKED = 1, 2
# Syntax of a score, stricter than Python's
_SCORE = re.compile(rb"[+-]?(?:inf|[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+)", re.IGNORECASE)


class EmptyError(MalformedError):
    """A collection without elements."""


def read_value(source: Payload, kind: int, idmp_duration: int, idmp_maxsize: int) -> Value:
    """Read the value that begins here."""
    if kind in STREAM_TYPES:
        return read_stream(source, kind, idmp_duration, idmp_maxsize)
    reader = _READERS.get(kind)
    if reader is None:
        raise MalformedError(f"type {kind}, which is not read")
    return reader(source)


def is_read(kind: int) -> bool:
    """True if this module can read values of this type."""
    return kind in STREAM_TYPES or kind in _READERS


def _strings(source: Payload, each: int = 1) -> Iterator[bytes]:
    """Read a count, then that many strings, times ``each``."""
    for _ in range(source.size() * each):
        yield string(source)


def _some(count: int) -> None:
    if not count:
        raise EmptyError("no elements")


# ---------------------------------------------------------------------- hashes, sets, lists


def _hash(items: Iterable[bytes]) -> HashValue:
    """Make a hash of fields and values in turn."""
    value, rest = HashValue(), iter(items)
    for field in rest:
        content = next(rest, None)  # the same iterator: a field's value follows it
        if content is None:
            raise MalformedError("a field without its value")
        if field in value.fields:
            raise MalformedError("a field twice")
        value.put(field, content)
    _some(len(value))
    return value


def _set(items: Iterable[bytes], encoding: bytes = b"intset") -> SetValue:
    value = SetValue()
    value.begin(encoding)
    for member in items:
        if member in value:
            raise MalformedError("a member twice")
        value.add(member)
    _some(len(value))
    return value


def _list(items: Iterable[bytes]) -> ListValue:
    value = ListValue()
    for item in items:
        value.push(item, left=False)
    _some(len(value))
    return value


def _ziplist_nodes(source: Payload) -> Iterator[bytes]:
    for node in _strings(source):
        yield from ziplist_elements(node)


def _quicklist(source: Payload) -> Iterator[bytes]:
    for _ in range(source.size()):
        container = source.size()
        if container == _PLAIN:
            yield string(source)
        elif container == _PACKED:
            yield from listpack_elements(string(source))
        else:
            raise MalformedError("an unknown node of a list")


# ---------------------------------------------------------------------- sorted sets


def _zset(items: Iterable[tuple[bytes, float]]) -> ZSetValue:
    scores: dict[bytes, float] = {}
    for member, score in items:
        if math.isnan(score) or member in scores:  # NaN cannot be sorted
            raise MalformedError("a member twice, or with no score")
        scores[member] = score
    _some(len(scores))
    value = ZSetValue()
    value.put_all(scores, built=True)
    return value


def _scored(source: Payload, score: Callable[[Payload], float]) -> Iterator[tuple[bytes, float]]:
    for _ in range(source.size()):
        member = string(source)
        yield member, score(source)


def _binary_score(source: Payload) -> float:
    found: float = struct.unpack("<d", source.take(8))[0]
    return found


def _short_score(source: Payload) -> float:
    """Read a score in text with its size before it; three sizes mean infinity or not a number."""
    size = source.byte()
    if size >= 253:
        return (math.nan, math.inf, -math.inf)[size - 253]
    return _text_score(source.take(size))


def _text_score(text: bytes) -> float:
    if not _SCORE.fullmatch(text):
        raise MalformedError("not a score")
    return float(text)


def _pairs(items: list[bytes]) -> Iterator[tuple[bytes, float]]:
    if len(items) % 2:
        raise MalformedError("a member without its score")
    yield from zip(items[::2], map(_text_score, items[1::2]), strict=True)


_READERS: dict[int, Callable[[Payload], Value]] = {
    0: lambda source: StringValue(string(source)),
    1: lambda source: _list(_strings(source)),
    2: lambda source: _set(_strings(source)),
    3: lambda source: _zset(_scored(source, _short_score)),
    4: lambda source: _hash(_strings(source, 2)),
    5: lambda source: _zset(_scored(source, _binary_score)),
    9: lambda source: _hash(zipmap_elements(string(source))),
    10: lambda source: _list(ziplist_elements(string(source))),
    11: lambda source: _set(intset_elements(string(source))),
    12: lambda source: _zset(_pairs(ziplist_elements(string(source)))),
    13: lambda source: _hash(ziplist_elements(string(source))),
    14: lambda source: _list(_ziplist_nodes(source)),
    16: lambda source: _hash(listpack_elements(string(source))),
    17: lambda source: _zset(_pairs(listpack_elements(string(source)))),
    18: lambda source: _list(_quicklist(source)),
    20: lambda source: _set(listpack_elements(string(source)), b"listpack"),
}
