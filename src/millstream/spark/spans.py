"""Lengths of time as people write them."""

import re

UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_CENTURY_MS = 100 * 366 * UNITS["d"]


def century(ms: int) -> int:
    """A length of time itself.

    Raises:
        ValueError: it is longer than servers can count from now, or than anybody means.
    """
    if ms > _CENTURY_MS:
        raise ValueError("it must not be longer than a hundred years")
    return ms


def span_ms(text: str) -> int:
    """Milliseconds of a text such as ``90s``; without a unit it is milliseconds.

    Raises:
        ValueError: it is none, or no time at all.
    """
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)?", text.strip())
    if found is None or not int(found[1]):
        raise ValueError("it must be a time such as 10m (ms, s, m, h, d)")
    return century(int(found[1]) * UNITS[found[2] or "ms"])
