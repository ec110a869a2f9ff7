"""Text of a double as in Redis: whole numbers as integers, others with the fewest digits that parse back equal."""

import math

# Largest magnitude at which whole numbers are written as integers
_WHOLE = 2.0**62
# Numbers are written without an exponent if they need at most this many zeros
_ZEROS = 7


def text(value: float) -> bytes:
    """Return a double as text for replies: ``3``, ``0.1``, ``1e+20``, ``inf``, ``-0``."""
    if math.isnan(value):
        return b"nan"
    if math.isinf(value):
        return b"inf" if value > 0 else b"-inf"
    if value == 0:
        return b"-0" if math.copysign(1, value) < 0 else b"0"
    if -_WHOLE <= value <= _WHOLE and value == int(value):
        return b"%d" % int(value)
    sign = "-" if value < 0 else ""
    return (sign + _shortest(abs(value))).encode()


def _shortest(value: float) -> str:
    """Return a positive number's shortest digits in Redis's notation.

    Python's ``repr`` finds the digits. Its rules for the decimal point and the exponent differ from Redis's, so the
    digits are taken apart and put together again.
    """
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    power = int(exponent or 0) - len(part)  # exponent of the last digit
    stripped = digits.rstrip("0")
    power += len(digits) - len(stripped)
    digits = stripped
    first = power + len(digits) - 1  # exponent of the first digit
    if power >= 0 and first < len(digits) + _ZEROS:
        return digits + "0" * power
    if power < 0 and (power > -_ZEROS or abs(first) < 4):
        point = len(digits) + power
        return f"{digits[:point]}.{digits[point:]}" if point > 0 else f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{'-' if first < 0 else '+'}{abs(first)}"
