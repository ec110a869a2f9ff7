"""Lua's ``bit`` library: operations on 32-bit numbers, with LuaBitOp's semantics."""

import struct
from collections.abc import Callable
from functools import reduce
from operator import and_, or_, xor

_MASK = 0xFFFFFFFF


def hexadecimal(value: float, digits: float) -> bytes:
    """A number as this many hexadecimal digits, in capitals if negative."""
    count = _signed(_word(digits))
    shown = min(abs(count), 8)
    text = f"{_word(value):08x}"[8 - shown :]
    return (text.upper() if count < 0 else text).encode()


# Adding it moves a number's lowest 32 bits to the end of its mantissa, as LuaBitOp does
_SHIFT = 6755399441055744.0


def _word(value: float) -> int:
    """A Lua number's 32 bits; 0 for infinity and NaN."""
    return int.from_bytes(struct.pack("<d", value + _SHIFT)[:4], "little")


def _signed(word: int) -> int:
    return word - 2**32 if word & 0x80000000 else word


def _rotated(word: int, count: int) -> int:
    count &= 31
    return (word << count | word >> (32 - count)) & _MASK


_BITS: dict[bytes, Callable[[int, list[int], int], int]] = {
    b"tobit": lambda first, _rest, _count: first,
    b"band": lambda first, rest, _count: reduce(and_, rest, first),
    b"bor": lambda first, rest, _count: reduce(or_, rest, first),
    b"bxor": lambda first, rest, _count: reduce(xor, rest, first),
    b"bnot": lambda first, _rest, _count: ~first & _MASK,
    b"bswap": lambda first, _rest, _count: int.from_bytes(first.to_bytes(4, "little"), "big"),
    b"lshift": lambda first, _rest, count: first << count & _MASK,
    b"rshift": lambda first, _rest, count: first >> count,
    b"arshift": lambda first, _rest, count: _signed(first) >> count & _MASK,
    b"rol": lambda first, _rest, count: _rotated(first, count),
    b"ror": lambda first, _rest, count: _rotated(first, 32 - count),
}


def operate(name: bytes, *numbers: float) -> int:
    """One operation of the ``bit`` library."""
    first, *rest = map(_word, numbers)
    return _signed(_BITS[name](first, rest, rest[0] & 31 if rest else 0))
