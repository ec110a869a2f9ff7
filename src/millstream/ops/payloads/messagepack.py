"""A MessagePack decoder for untrusted data, so that no input costs more than its size. PURE.

A few bytes may announce nested lists of millions of items; a decoder that trusts them reserves memory for all items. So
the bytes are scanned first: the announced items must be present and within limits.
"""

import struct

import msgpack

#: Limits of decoding: levels of lists and maps, and number of values.
DEEPEST = 50
MOST = 100_000

#: First byte -> number of length bytes, and number of values for each item.
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
#: First byte -> number of length bytes, and of extra bytes before the content.
_STRINGS = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_EXTENSIONS = {0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
#: First byte -> number of bytes that follow.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4}
_FIXED |= {0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}


def is_container(data: bytes) -> bool:
    """Return True if the bytes begin like a list or a map; other values look like text or random bytes."""
    return bool(data) and (0x80 <= data[0] <= 0x9F or data[0] in _CONTAINERS)


def unpack(data: bytes) -> object:
    """Decode a value to JSON types and bytes; a time is ISO text, another extension ``{"extension": n, "data": b}``."""
    _walk(data)
    try:
        found = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape")
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"no MessagePack: {error}") from None
    return _plain(found)


def _walk(data: bytes) -> None:
    """Scan the values without building them; raise if they are incomplete or exceed the limits."""
    left, at, waiting = [1], 0, 1
    for _ in range(MOST):
        while left and left[-1] == 0:
            left.pop()
        if not left:
            break
        left[-1] -= 1
        at, inside = _step(data, at)
        waiting += inside - 1
        if inside:
            left.append(inside)
        # Each announced value takes at least one byte, so a false count is found before its values are scanned
        if waiting > len(data) - at or len(left) > DEEPEST + 1:
            raise ValueError("not MessagePack, or a value with too many parts")
    if waiting:
        raise ValueError("not MessagePack, or a value with too many parts")
    if at != len(data):
        raise ValueError("not MessagePack: bytes follow the value")


def _step(data: bytes, at: int) -> tuple[int, int]:
    """Return the offset after this value or its head, and the number of values that the head announces."""
    if at >= len(data):
        raise ValueError("not MessagePack: it ends too early")
    kind = data[at]
    at += 1
    if kind <= 0x7F or kind >= 0xE0:
        return at, 0
    if kind <= 0x9F:
        return at, (kind & 0x0F) * (2 if kind < 0x90 else 1)
    if kind <= 0xBF:
        return _behind(data, at + (kind & 0x1F)), 0
    if kind in _CONTAINERS:
        width, each = _CONTAINERS[kind]
        return at + width, _length(data, at, width) * each
    if kind in _FIXED:
        return _behind(data, at + _FIXED[kind]), 0
    found = _STRINGS.get(kind) or _EXTENSIONS.get(kind)
    if found is None:
        raise ValueError("not MessagePack: an invalid first byte")
    width, more = found
    return _behind(data, at + width + more + _length(data, at, width)), 0


def _length(data: bytes, at: int, width: int) -> int:
    if at + width > len(data):
        raise ValueError("not MessagePack: it ends too early")
    return int.from_bytes(data[at : at + width])


def _behind(data: bytes, at: int) -> int:
    if at > len(data):
        raise ValueError("not MessagePack: it ends too early")
    return at


def _plain(value: object) -> object:
    """Convert a value to JSON types and bytes; at most :data:`DEEPEST` levels."""
    if isinstance(value, dict):
        return {_name(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, msgpack.ExtType):
        return {"extension": value.code, "data": value.data}
    if isinstance(value, msgpack.Timestamp):
        return _time(value)
    return value


def _name(name: object) -> str:
    if isinstance(name, str):
        return name
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(_plain(name))


def _time(value: msgpack.Timestamp) -> str:
    try:
        return str(value.to_datetime().isoformat())
    except (ValueError, OverflowError, struct.error):  # a time outside of the calendar
        return f"{value.seconds}.{value.nanoseconds:09d} s since 1970"
