"""The parameters of a tier: streams whose oldest entries are in files.

PURE. ``tier yes`` is refused until a rewriting, a copy and a backup of the log keep the files: :data:`IS_AVAILABLE`.
"""

import os

IS_AVAILABLE = "MILLSTREAM_TEST_TIER" in os.environ
"""True if ``tier`` may be ``yes``; so far in tests only."""
MOST_HOT = 256 << 20
"""Largest number of bytes for which a percentage of ``maxmemory`` stands, and its value without a limit."""
NO_DIRECTORY = "a tier needs a data directory. Start the server with --dir, or leave tier at 'no'."
"""Error for a server without files."""
_NOT_YET = "argument must be 'no': a tier is not available in this version. Leave tier at 'no'."


def tier(text: str) -> str:
    """Parse ``yes`` or ``no``."""
    word = text.partition("\0")[0].lower()
    if word not in {"yes", "no"}:
        raise ValueError("argument must be 'yes' or 'no'")
    if word == "yes" and not IS_AVAILABLE:
        raise ValueError(_NOT_YET)
    return word


def hot_bytes(number: int, *, is_percent: bool, limit: int) -> int:
    """Return ``tier-hot`` in bytes, with a ``maxmemory`` (0 for none)."""
    if not is_percent:
        return number
    return min(limit * number // 100, MOST_HOT) if limit else MOST_HOT
