"""Listpacks of Redis: the sizes in bytes that they would have, and their bytes.

A stream's nodes close when their listpack is full, and trimming with ``~`` removes whole nodes, so the sizes show. A
node that closed one entry earlier or later than Redis's would make ``XTRIM ~`` reply another number. The bytes are made
only for a Redis that will read them.

Source: the listpack format's description (one length-prefixed, back-length-suffixed element after another; integers in
1 to 9 bytes), https://github.com/antirez/listpack/blob/master/listpack.md.
"""

from functools import lru_cache

# Bytes of an empty listpack: six for the header and one terminator
EMPTY = 7


def integer(value: int) -> int:
    """Size of an integer element with its back length, in bytes."""
    # The sum of the first byte, the number's further bytes, and one byte of back length
    if 0 <= value <= 127:
        return 2
    if -4096 <= value <= 4095:
        return 3
    if -32768 <= value <= 32767:
        return 4
    if -(2**23) <= value < 2**23:
        return 5
    if -(2**31) <= value < 2**31:
        return 6
    return 10


def back_length(size: int) -> int:
    """Size of an element's back length, in bytes; the bounds after the first are one below a power of two."""
    if size <= 127:
        return 1
    if size < 16383:
        return 2
    if size < 2097151:
        return 3
    if size < 268435455:
        return 4
    return 5


def _canonical(data: bytes) -> int | None:
    """Return the number that a string represents, if it is written in the one canonical way and fits 64 bits."""
    digits = data[1:] if data[:1] == b"-" else data
    if not digits.isdigit() or (digits[:1] == b"0" and data != b"0"):
        return None
    value = int(data)
    return value if -(2**63) <= value < 2**63 else None


def _string(data: bytes) -> int:
    """Size of a string element in bytes; text that is a canonical number is stored as a number."""
    length = len(data)
    if length <= 20:
        value = _canonical(data)
        if value is not None:
            return integer(value)
    size = length + (1 if length < 64 else 2 if length < 4096 else 5)
    return size + back_length(size)


# Values repeat (statuses, small numbers). Only short ones are cached, so the cache stays small
_CACHE_BYTES = 1024
_cached_string = lru_cache(maxsize=8192)(_string)


def string(data: bytes) -> int:
    """Size of a string element (or of the integer it is stored as) with its back length, in bytes."""
    return _string(data) if len(data) > 20 else _cached_string(data)


def strings(items: list[bytes], size: int) -> int:
    """Size in bytes of several string elements with a total length of ``size``."""
    if size <= _CACHE_BYTES:
        return sum(map(_cached_string, items))
    return sum(map(string, items))


def is_integer(data: bytes) -> bool:
    """True if a string is the one canonical way to write a 64-bit number."""
    return len(data) <= 20 and _canonical(data) is not None


# ---------------------------------------------------------------------- the bytes

# Bound, first byte and size of each encoding of integers above 13 bits
_WIDE = ((1 << 15, 0xF1, 2), (1 << 23, 0xF2, 3), (1 << 31, 0xF3, 4), (1 << 63, 0xF4, 8))


def integer_element(value: int) -> bytes:
    """Return a 64-bit integer as an element with its back length."""
    if 0 <= value <= 127:
        return bytes((value, 1))
    if -4096 <= value <= 4095:
        return (0xC000 | value & 0x1FFF).to_bytes(2, "big") + b"\x02"
    first, size = next((first, size) for bound, first, size in _WIDE if -bound <= value < bound)
    return bytes([first]) + value.to_bytes(size, "little", signed=True) + bytes([size + 1])


def _element(data: bytes) -> bytes:
    """Return a string as an element, or as an integer element if it is a canonical number."""
    length = len(data)
    if length <= 20:  # no 64-bit integer is longer than 20 characters
        value = _canonical(data)
        if value is not None:
            return integer_element(value)
    if length < 64:
        return b"%c%b%c" % (0x80 | length, data, length + 1)
    # A 12-bit length, or a byte that announces a four-byte length
    head = (0xE000 | length).to_bytes(2, "big") if length < 4096 else b"\xf0" + length.to_bytes(4, "little")
    return head + data + back(len(head) + length)


def back(size: int) -> bytes:
    """Return an element's back length: seven bits a byte, highest first, all but the first with the high bit."""
    if size <= 127:
        return bytes((size,))
    count = back_length(size)
    return bytes(size >> 7 * at & 127 | (128 if at < count - 1 else 0) for at in range(count - 1, -1, -1))


_cached_element = lru_cache(maxsize=8192)(_element)


def element(data: bytes) -> bytes:
    """Return a string or canonical number as an element with its back length."""
    return _element(data) if len(data) > 20 else _cached_element(data)


def pack(elements: list[bytes]) -> bytes:
    """Return a listpack of elements."""
    body = b"".join(elements)
    return (len(body) + EMPTY).to_bytes(4, "little") + min(len(elements), 0xFFFF).to_bytes(2, "little") + body + b"\xff"
