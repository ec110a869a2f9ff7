"""Ids of entries: their order, and ranges of them that are read a page at a time. Pure."""

#: The highest id there can be; "(" before it is an error and not an empty range.
LAST = b"%d-%d" % (2**64 - 1, 2**64 - 1)

FIRST_TIME = 10**12
"""Milliseconds of an id below which it is a producer's number and no time: of 2001, before there were streams."""


def behind(entry: bytes) -> str | None:
    """The start of the next page after the one that ended with this entry; None at the last id."""
    return None if entry == LAST else f"({entry.decode()}"


def below(milliseconds: int) -> str:
    """The end of a range of all entries before a time, which may be before or after every possible id."""
    if milliseconds >= 2**64:
        return "+"
    return f"({milliseconds}-0" if milliseconds > 0 else "(0-1"  # only 0-0 is below, which no entry has


def order_of(entry: bytes) -> tuple[int, int]:
    """The sort key of an id: milliseconds, then number. As text, ``9-0`` would come after ``10-0``."""
    milliseconds, _, number = entry.partition(b"-")
    return int(milliseconds), int(number)
