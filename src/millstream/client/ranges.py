"""Ids of entries: their order, and ranges that are read a page at a time. Pure."""

#: Highest possible id. "(" in front of it is an error, not an empty range.
LAST = b"%d-%d" % (2**64 - 1, 2**64 - 1)

FIRST_TIME = 10**12
"""Lowest milliseconds of an id that count as a time (in 2001, before there were streams).

Lower ones are a producer's.
"""


def behind(entry: bytes) -> str | None:
    """Return the start of the page after one that ended with this entry; None at the last id."""
    return None if entry == LAST else f"({entry.decode()}"


def below(milliseconds: int) -> str:
    """Return the end of a range of all entries before a time, which may be before or after every possible id."""
    if milliseconds >= 2**64:
        return "+"
    return f"({milliseconds}-0" if milliseconds > 0 else "(0-1"  # only 0-0 is lower, an id that no entry has


def order_of(entry: bytes) -> tuple[int, int]:
    """Return the sort key of an id: milliseconds, then number. As text, ``9-0`` would come after ``10-0``."""
    milliseconds, _, number = entry.partition(b"-")
    return int(milliseconds), int(number)
