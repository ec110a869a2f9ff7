"""The oldest pending entry of a group that is not delayed: a delayed entry is neither late nor stuck. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.client.delays import due
from millstream.client.line import Command, Reply

MOST = 10_000
"""Largest number of pending entries, and of due times, that are looked through for one group."""


@dataclass(frozen=True, slots=True)
class Undelayed:
    """The oldest pending entry that is not delayed, and the number of delayed ones."""

    oldest: bytes | None  # Lowest id that is not delayed; None if all are delayed, or if it was not found
    waiting: int  # Number of delayed entries; above the rows that were read, the number of future due times among them
    is_sure: bool  # False if further entries may be delayed, or may be the oldest


def due_times(stream: str, group: str, rows: int) -> Command:
    """Return the command that reads the latest due times of a group, whose reply :func:`undelayed` takes."""
    return ("ZRANGE", due.key(stream, group), -rows, -1, "WITHSCORES")


def oldest_pending(stream: str, group: str, rows: int) -> Command:
    """Return the command that reads the oldest pending entries, whose ids :func:`undelayed` takes."""
    return ("XPENDING", stream, group, "-", "+", rows)


def undelayed(times: Reply, ids: Sequence[bytes], rows: int, now_ms: int, *, whole: bool) -> Undelayed | None:
    """Return the oldest pending entry that is not delayed by this time; None if the server refuses the due times.

    ``rows`` is the number of due times that were asked for, and ``whole`` is True if the ids are all pending entries.
    """
    if not isinstance(times, list):
        return None
    left = due.later(times[::2], now_ms, times[1::2])
    oldest = next((entry for entry in ids if entry not in left), None)
    has_all_times = len(left) < rows
    waiting = sum(entry in left for entry in ids) if has_all_times and whole else len(left)
    return Undelayed(oldest, waiting, has_all_times and (oldest is not None or whole))
