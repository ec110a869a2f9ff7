"""Clocks passed as arguments: a protocol, the system's clock, and a clock that tests set.

Two times are always kept apart. *Wall* time (milliseconds since 1970) is the time that clients see: entry ids, idle
times, expiry. It may jump. *Monotonic* time (milliseconds from an arbitrary start) measures waiting: block timeouts and
retries. Both are read once per command and passed on as :class:`Now`, so the engine is deterministic.
"""

import time
from typing import NamedTuple, Protocol


class Now(NamedTuple):
    """One reading of both clocks. Every step of a command uses the same reading."""

    wall: int  # Milliseconds since 1970-01-01 UTC
    mono: int  # Milliseconds of a monotonic clock


class Clock(Protocol):
    """A source of time."""

    def now(self) -> Now:
        """Read both clocks."""
        ...

    def wall_time(self) -> int:
        """Read the wall clock alone."""
        ...

    def mono_time(self) -> int:
        """Read the monotonic clock alone."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Now:
        """Read both clocks."""
        return Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)

    def wall_time(self) -> int:
        """Read the wall clock alone."""
        return time.time_ns() // 1_000_000

    def mono_time(self) -> int:
        """Read the monotonic clock alone."""
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that moves only by its methods."""

    def __init__(self, wall: int = 1_700_000_000_000, mono: int = 0) -> None:
        self.wall = wall
        self.mono = mono

    def now(self) -> Now:
        """Return the current reading of both clocks."""
        return Now(self.wall, self.mono)

    def wall_time(self) -> int:
        """Return the wall time alone."""
        return self.wall

    def mono_time(self) -> int:
        """Return the monotonic time alone."""
        return self.mono

    def advance(self, ms: int) -> None:
        """Move both clocks forward by ``ms`` milliseconds."""
        self.wall += ms
        self.mono += ms

    def jump(self, ms: int) -> None:
        """Move only the wall clock, as a time correction does; ``ms`` may be negative."""
        self.wall += ms
