"""Ranges of ids that are read a page at a time. Pure."""

#: The highest id there can be; "(" before it is an error and not an empty range.
_LAST = b"%d-%d" % (2**64 - 1, 2**64 - 1)


def behind(entry: bytes) -> str | None:
    """Where the next page begins after the one that ended with this entry; None where no id is left."""
    return None if entry == _LAST else f"({entry.decode()}"
