"""The arithmetic of INCRBYFLOAT: Redis uses C's long double, which on most machines has a precision of 64 bits.

Values are exact fractions that a long double can represent; every result is rounded as the processor would. A double
has 53 bits: ``0.1`` plus ``0.2`` would give another reply, and clients compare such replies as text.

Length and exponent are checked before any arithmetic: a number of a thousand digits is quick to write and slow to
multiply. Checked against a real server (tests/commands/test_strings_live.py).
"""

import math
import re
from decimal import Decimal
from fractions import Fraction

_BITS = 64
LARGEST = Fraction((1 << _BITS) - 1) * 2 ** (16384 - _BITS)
_SMALLEST = Fraction(1, 2**16446)  # half of the smallest positive number
_DECIMAL = re.compile(rb"([+-]?)(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d+))?\Z")
_HEXADECIMAL = re.compile(rb"([+-]?)0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP]([+-]?\d+))?\Z")
_INFINITE = re.compile(rb"[+-]?inf(inity)?\Z", re.IGNORECASE)
# Digits and exponents beyond which a number is too large, too small, or longer than Redis reads
_FAR = 20000
_LONGEST = 5119
# Number of decimal places that are written
_PLACES = 17


def read(word: bytes) -> Fraction | float | None:
    """Parse a whole argument as strtold does, without blanks; a float is infinite.

    Returns:
        None for text that is not a number, and for one too large or too small.
    """
    if len(word) > _LONGEST:
        return None
    if _INFINITE.match(word):
        return -math.inf if word[:1] == b"-" else math.inf
    if found := _DECIMAL.match(word):
        sign, digits, exponent, base, per_digit = *found.groups(), 10, 1
    elif found := _HEXADECIMAL.match(word):
        sign, digits, exponent, base, per_digit = *found.groups(), 2, 4
    else:
        return None
    whole, _, part = digits.partition(b".")
    both = (whole + part).decode()
    mantissa = int(Decimal(both)) if base == 10 else int(both, 16)  # int() itself accepts 4300 digits at most
    power = int(exponent or 0) - len(part) * per_digit if len(exponent or b"") < 9 else _FAR * 9
    if not mantissa:
        return Fraction(0)
    if abs(power) > _FAR:
        return None
    value = _rounded(mantissa * Fraction(base) ** power)
    if value > LARGEST or value < _SMALLEST:
        return None
    return -value if sign == b"-" else value


def add(one: Fraction, two: Fraction) -> Fraction | None:
    """The sum; None if it is too large."""
    total = one + two
    size = _rounded(abs(total))
    if size > LARGEST:
        return None
    return size if total >= 0 else -size


def text(value: Fraction) -> bytes:
    """A number in decimal, with at most 17 decimal places and no trailing zeros."""
    scaled = round(abs(value) * 10**_PLACES)
    whole, part = divmod(scaled, 10**_PLACES)
    places = f"{part:0{_PLACES}d}".rstrip("0")
    sign = "-" if value < 0 and scaled else ""
    return f"{sign}{Decimal(whole)}{'.' + places if places else ''}".encode()


def _rounded(value: Fraction) -> Fraction:
    """The nearest number with 64 bits; of two equally near, the even one."""
    if not value:
        return value
    shift = value.numerator.bit_length() - value.denominator.bit_length() - _BITS
    unit = Fraction(2) ** shift
    if value / unit >= 1 << _BITS:
        unit *= 2
    return round(value / unit) * unit
