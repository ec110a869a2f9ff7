"""Lengths of time as people write them."""

import re

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def span_ms(text: str) -> int:
    """Milliseconds of a text such as ``90s``; without a unit it is milliseconds.

    Raises:
        ValueError: it is none, or no time at all.
    """
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)?", text.strip())
    if found is None or not int(found[1]):
        raise ValueError("it must be a time such as 10m (ms, s, m, h, d)")
    return int(found[1]) * _UNITS[found[2] or "ms"]
