"""Ints, bytes, booleans, None and lists of them as bytes, and back; the form of dumps.

PURE. A value is one tag byte and its content. A size is seven bits a byte, lowest first, the high bit meaning "more
follows". Input is not trusted. Sizes beyond the bytes left, lists nested too deeply and leftover bytes are refused
before any value is made from them. The core in C reads and writes this form too
(:mod:`millstream.engine.serialization.bulk`).

The form is our own, not msgpack: ids have 128 bits, which msgpack does not have numbers for, and a library's reader
would have to be given each of these limits.
"""

from typing import Any

_NONE, _FALSE, _TRUE, _INT, _NEGATIVE, _BYTES, _LIST = range(7)
# Limit of a number's bits (ids have 128), and of nested lists
_MOST_BITS = 133
_DEEPEST = 8

# Earliest time in a payload: the idle time of an earlier one would not fit a reply's integer.
OLDEST = -(2**62)


class MalformedError(Exception):
    """Bytes that are not a valid dump."""


def pack(value: object) -> bytes:
    """A value as bytes."""
    out = bytearray()
    _put(out, value)
    return bytes(out)


def pack_list(size: int) -> bytes:
    """Return the head of a list with this many values; the values follow it."""
    out = bytearray([_LIST])
    _put_size(out, size)
    return bytes(out)


def _put(out: bytearray, value: object) -> None:
    """Append a value. A negative number is stored as its absolute value less one, so zero has only one form."""
    if type(value) is bytes:  # a shortcut for the most frequent type
        out.append(_BYTES)
        _put_size(out, len(value))
        out += value
    elif value is None:
        out.append(_NONE)
    elif isinstance(value, bool):
        out.append(_TRUE if value else _FALSE)
    elif isinstance(value, int):
        out.append(_INT if value >= 0 else _NEGATIVE)
        _put_size(out, value if value >= 0 else -value - 1)
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
    """Return the value in ``data``, and require that no bytes are left over."""
    source = PlainSource(data)
    value = source.value()
    source.end()
    return value


class PlainSource:
    """Values read one after another, from front to end."""

    def __init__(self, data: bytes) -> None:
        self.data = data  # The whole payload
        self.at = 0  # Position of the next value

    def value(self) -> Any:
        """The next value."""
        value, self.at = take(self.data, self.at, _DEEPEST)
        return value

    def opened(self) -> int:
        """Open the list that begins here, and return the number of its values, which follow."""
        size, self.at = take_list(self.data, self.at)
        return size

    def end(self) -> None:
        """Raise if bytes are left over."""
        if self.at != len(self.data):
            raise MalformedError("bytes left over")


def take_list(data: bytes, at: int) -> tuple[int, int]:
    """The number of values of the list that begins at a position, and the position of its first value."""
    if data[at : at + 1] != bytes([_LIST]):
        raise MalformedError("list expected")
    size, at = _take_size(data, at + 1)
    # Each value takes at least one byte, so a hostile payload with a forged size is refused before memory is allocated
    if size > len(data) - at:
        raise MalformedError("cut short")
    return size, at


def take(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """The value that begins at a position, and the position after it."""
    if at >= len(data):
        raise MalformedError("cut short")
    tag = data[at]
    at += 1
    if tag <= _TRUE:
        return (None, False, True)[tag], at
    if tag > _LIST:
        raise MalformedError("unknown tag")
    if at < len(data) and data[at] < 128:  # a shortcut for nearly all numbers
        size = data[at]
        at += 1
    else:
        size, at = _take_size(data, at)
    if tag == _INT:
        return size, at
    if tag == _NEGATIVE:
        return -size - 1, at
    # The size is a number of bytes, or for a list a lower bound of it: a single test suffices
    if size > len(data) - at:
        raise MalformedError("cut short")
    if tag == _BYTES:
        return data[at : at + size], at + size
    if not depth:
        raise MalformedError("too deep")
    found = []
    for _ in range(size):
        value, at = take(data, at, depth - 1)
        found.append(value)
    return found, at


def _take_size(data: bytes, at: int) -> tuple[int, int]:
    """Return a size and the position after it; refuse one with more bits than an id before computing it."""
    number = shift = 0
    while True:
        if at >= len(data) or shift >= _MOST_BITS:
            raise MalformedError("cut short")
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift  # seven bits per byte, lowest first; the high bit means that more follow
        if byte < 128:
            return number, at
        shift += 7


# ---------------------------------------------------------------------- checks of a value


def number(value: object, highest: int, *, lowest: int = 0) -> int:
    """Return the value if it is a number between ``lowest`` and ``highest``."""
    if type(value) is not int or not lowest <= value <= highest:  # a bool is an int to Python, but is invalid here
        raise MalformedError("a number out of range")
    return value


def part(value: object, count: int) -> list[Any]:
    """Return the value if it is a list of this length."""
    if type(value) is not list or len(value) != count:
        raise MalformedError(f"{count} parts expected")
    return value
