"""Ints, bytes, booleans, None and lists of them as bytes, and back; what dumps are made of.

PURE. A value is one tag byte and what it needs; a size is seven bits a byte, lowest first, the high bit meaning "more
follows". Reading believes nothing: a size larger than what is left, lists in lists in lists, or bytes left over are
refused before anything is made of them.

Ours and not msgpack's: ids have 128 bits, which msgpack has no number for, and a library's reader would have to be told
each of these limits.
"""

from typing import Any

_NONE, _FALSE, _TRUE, _INT, _NEGATIVE, _BYTES, _LIST = range(7)
# Ids have 128 bits
_MOST_BITS = 133
_DEEPEST = 8


class MalformedError(Exception):
    """Bytes that no dump can be."""


def pack(value: object) -> bytes:
    """A value as bytes."""
    out = bytearray()
    _put(out, value)
    return bytes(out)


def _put(out: bytearray, value: object) -> None:
    """Append a value. A negative number is its distance below zero less one, so that there is one zero only."""
    if value is None:
        out.append(_NONE)
    elif isinstance(value, bool):
        out.append(_TRUE if value else _FALSE)
    elif isinstance(value, int):
        out.append(_INT if value >= 0 else _NEGATIVE)
        _put_size(out, value if value >= 0 else -value - 1)
    elif isinstance(value, bytes):
        out.append(_BYTES)
        _put_size(out, len(value))
        out += value
    else:
        assert isinstance(value, list)
        out.append(_LIST)
        _put_size(out, len(value))
        for each in value:
            _put(out, each)


def _put_size(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def unpack(data: bytes) -> Any:
    """The value that ``data`` is, all of it.

    Raises:
        MalformedError: the bytes are no value, or more than one.
    """
    value, end = _take(data, 0, _DEEPEST)
    if end != len(data):
        raise MalformedError("bytes left over")
    return value


def _take(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """The value that begins at a position, and the position behind it.

    Args:
        data: all bytes.
        at: where it begins.
        depth: how many lists may still be opened.

    Raises:
        MalformedError: no value begins there.
    """
    if at >= len(data):
        raise MalformedError("cut short")
    tag = data[at]
    at += 1
    if tag <= _TRUE:
        return (None, False, True)[tag], at
    if tag > _LIST:
        raise MalformedError("unknown tag")
    size, at = _take_size(data, at)
    if tag == _INT:
        return size, at
    if tag == _NEGATIVE:
        return -size - 1, at
    if size > len(data) - at:
        raise MalformedError("cut short")
    if tag == _BYTES:
        return data[at : at + size], at + size
    if not depth:
        raise MalformedError("too deep")
    found = []
    for _ in range(size):
        value, at = _take(data, at, depth - 1)
        found.append(value)
    return found, at


def _take_size(data: bytes, at: int) -> tuple[int, int]:
    """A size and the position behind it; more bits than an id has are refused before they are added up."""
    number = shift = 0
    while True:
        if at >= len(data) or shift >= _MOST_BITS:
            raise MalformedError("cut short")
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
