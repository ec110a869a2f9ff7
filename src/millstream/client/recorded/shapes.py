"""The required form of the replies in a report, by their command: the console's pages rely on it. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

from millstream.client.ranges import order_of

Shape: TypeAlias = Callable[[Any], bool]

_ID = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")
_NUMBER = re.compile(rb"[0-9]{1,19}")
_SCORE = re.compile(rb"-?(?:inf|[0-9]{1,40}(?:\.[0-9]{1,40})?(?:e[+-]?[0-9]{1,3})?)")


def fits(command: Sequence[bytes], reply: Any) -> bool:
    """Return True if a server may send this reply; parts that no page reads may have any form."""
    if isinstance(reply, ResponseError):
        return True
    two = b" ".join(command[:2]).upper() if command[0] in _FAMILIES else command[0]
    if two == b"XPENDING" and len(command) > 3:
        return _rows_of(_pending)(reply)
    if two == b"XINFO STREAM" and len(command) > 3:
        return _flat(reply)
    shape = _SHAPES.get(two)
    return shape is None or shape(reply)


def _text(value: Any) -> bool:
    return isinstance(value, bytes)


def _count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _integer(value: Any) -> bool:
    return isinstance(value, int)


def _id(value: Any) -> bool:
    return isinstance(value, bytes) and bool(_ID.fullmatch(value)) and max(order_of(value)) < 2**64


def _maybe(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def _rows_of(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def _flat(value: Any) -> bool:
    """Return True for a list of names and values in turn."""
    return isinstance(value, list) and len(value) % 2 == 0 and all(map(_text, value[::2]))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _pairs(value: Any) -> bool:
    return _flat(value) and _texts(value)


def _entry(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _id(value[0]) and _pairs(value[1])


def _pending(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and _id(value[0])
        and _text(value[1])
        and (_count(value[2]) or (value[1:3] == [b"", -1]))  # a released entry has no idle time
        and _count(value[3])
    )


def _holder(value: Any) -> bool:
    return _texts(value) and len(value) == 2 and bool(_NUMBER.fullmatch(value[1]))


def _summary(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) == 4 and _count(value[0])):
        return False
    return _maybe(_id)(value[1]) and _maybe(_id)(value[2]) and _maybe(_rows_of(_holder))(value[3])


def _record(needed: Mapping[bytes, Shape], known: Mapping[bytes, Shape] | None = None) -> Shape:
    """Return a check for a list of names and values in turn that has these names."""

    def shape(value: Any) -> bool:
        if not _flat(value):
            return False
        found = dict(zip(value[::2], value[1::2], strict=True))
        if not all(name in found for name in needed):
            return False
        every = {**needed, **(known or {})}
        return all(every[name](each) for name, each in found.items() if name in every)

    return shape


def _scored(value: Any) -> bool:
    """Return True for a list of members and scores in turn."""
    return _pairs(value) and all(map(_NUMBER.fullmatch, value[1::2]))


def _scores(value: Any) -> bool:
    """Return True for a list of scores, with None for missing members."""
    return isinstance(value, list) and all(one is None or (_text(one) and _SCORE.fullmatch(one)) for one in value)


def _time(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_text(one) and _NUMBER.fullmatch(one) for one in value)


def _slow(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) >= 4 and _texts(value[3]) and all(map(_text, value[4:6]))):
        return False
    return all(map(_count, value[:3])) and value[1] < 2**40


def _scanned(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _text(value[0]) and _texts(value[1])


_STREAM = _record(
    {b"length": _count, b"last-generated-id": _id},
    {
        b"first-entry": _maybe(_entry),
        b"last-entry": _maybe(_entry),
        b"entries-added": _count,
        b"max-deleted-entry-id": _id,
    },
)
_GROUP = _record(
    {b"name": _text, b"consumers": _count, b"pending": _count, b"last-delivered-id": _id},
    {b"entries-read": _maybe(_integer), b"lag": _maybe(_integer)},
)
_CONSUMER = _record({b"name": _text, b"pending": _count, b"idle": _count}, {b"inactive": _maybe(_integer)})

_FAMILIES = frozenset({b"XINFO", b"SLOWLOG", b"CONFIG", b"CLIENT"})
_SHAPES: dict[bytes, Shape] = {
    b"XINFO STREAM": _STREAM,
    b"XINFO GROUPS": _rows_of(_GROUP),
    b"XINFO CONSUMERS": _rows_of(_CONSUMER),
    b"XPENDING": _summary,
    b"XRANGE": _rows_of(_entry),
    b"XREVRANGE": _rows_of(_entry),
    b"XLEN": _count,
    b"EXISTS": _count,
    b"PTTL": _integer,
    b"SCAN": _scanned,
    b"GET": _maybe(_text),
    b"HGETALL": _pairs,
    b"ZRANGE": _texts,
    b"ZREVRANGE": _scored,
    b"ZMSCORE": _scores,
    b"ZCOUNT": _count,
    b"ZCARD": _count,
    b"TIME": _time,
    b"INFO": _text,
    b"SLOWLOG GET": _rows_of(_slow),
    b"CONFIG GET": _pairs,
    b"CLIENT LIST": _text,
}
