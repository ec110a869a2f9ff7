"""Time as an argument: one protocol, the system's clock, and one that tests turn by hand.

Two times are always kept apart. *Wall* time (milliseconds since 1970) is what clients see: entry ids, idle times,
expiry. It may jump. *Monotonic* time (milliseconds from an arbitrary start) measures waiting: block timeouts and
retries.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from millstream.errors import UsageError

_AGO = re.compile(r"(\d+)(s|m|h|d)( ago)?")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MS = timedelta(milliseconds=1)


class Now(NamedTuple):
    """One reading of both clocks; every time read inside one command uses the same one.

    Attributes:
        wall: milliseconds since 1970-01-01 UTC.
        mono: milliseconds of a clock that never goes back.
    """

    wall: int
    mono: int


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> Now:
        """Read both clocks."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Now:
        """Read both clocks."""
        return Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)


class ManualClock:
    """A clock that moves only when told to.

    Args:
        wall: first wall reading in milliseconds.
        mono: first monotonic reading in milliseconds.
    """

    def __init__(self, wall: int = 1_700_000_000_000, mono: int = 0) -> None:
        self.wall = wall
        self.mono = mono

    def now(self) -> Now:
        """The present hand position."""
        return Now(self.wall, self.mono)

    def advance(self, ms: int) -> None:
        """Move both clocks forward by ``ms`` milliseconds."""
        self.wall += ms
        self.mono += ms

    def jump(self, ms: int) -> None:
        """Move only the wall clock, as a time correction does; ``ms`` may be negative."""
        self.wall += ms


def parse_time(word: str, now_ms: int) -> int:
    """Wall milliseconds of a time as people write it.

    ISO 8601 (UTC unless it names a zone), milliseconds since 1970, or a span before now: ``10m`` or ``10m ago``, with
    s, m, h or d.

    Raises:
        UsageError: it is none of these.
    """
    if word.isdecimal():
        return int(word)
    if ago := _AGO.fullmatch(word):
        try:
            return now_ms - timedelta(**{_UNITS[ago[2]]: int(ago[1])}) // _MS
        except OverflowError:
            raise UsageError(f"{word!r} is longer ago than time goes back here") from None
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise UsageError(
            f"{word!r} is no time: give one such as 2026-03-01T12:00:00 (UTC unless it names a zone), milliseconds "
            "since 1970, or '10m ago' (s, m, h, d)"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MS
