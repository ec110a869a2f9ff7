"""Delays before the next attempt at a copy of all data that failed."""

# Seconds before the next attempt after two failures, doubled with each further one up to the longest: each attempt
# costs the primary a rewriting of its log
_FIRST, _LONGEST = 1.0, 60.0


def copy_pause(failed: int) -> float:
    """Return the delay in seconds before the next copy attempt, given the number of failures in a row."""
    return 0.0 if failed < 2 else min(_FIRST * 2 ** min(failed - 1, 30), _LONGEST)
