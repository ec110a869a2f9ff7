"""The parameters of a tier: streams whose oldest entries are in files. PURE."""

MOST_HOT = 256 << 20
"""Largest number of bytes for which a percentage of ``maxmemory`` stands, and its value without a limit."""
NO_DIRECTORY = "a tier needs a data directory. Give one (--dir, or a file:// URL), or leave tier at 'no'."
"""Error for a server without files."""
NO_TIER = (
    "maxmemory is set and tier is 'no': above the limit, commands that add data are refused. With --tier yes the "
    "oldest entries of streams go to files first"
)
"""Advice for a server with a limit and a data directory."""


def hot_bytes(number: int, *, is_percent: bool, limit: int) -> int:
    """Return ``tier-hot`` in bytes, with a ``maxmemory`` (0 for none)."""
    if not is_percent:
        return number
    return min(limit * number // 100, MOST_HOT) if limit else MOST_HOT
