"""The disk guard: it refuses writes for a while when the disk is full, and decides when to try again.

Three states. ``ok``. ``low``: less is free than the floor, so writes are refused before one can fail; nothing is held.
``full``: a write met a full disk. The log holds its records, no reply has reported them, and all writes are refused
until those are on the disk. The group commit reports the results of its writes, and gets the time of the next try from
here. Everything but :meth:`DiskGuard.measure` belongs to the thread that runs the commands.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from millstream.clock import Clock
from millstream.errors import DiskError, DiskFullError
from millstream.logs import logger
from millstream.node.durability.outage import Outage
from millstream.persistence.log import Log

log = logger("millstream.disk")

State = Literal["ok", "low", "full"]

MIB = 1024 * 1024
FLOOR = 32 * MIB
"""Bytes kept free unless the user says otherwise, or the file system is small."""
FLOOR_PART = 16
"""At most one part in this many of the file system is kept free unless the user says otherwise."""
LOOK_SECONDS = 0.05
"""Seconds between measurements of free space if writes are not synced one by one, and there is plenty."""
PLENTY = 256 * MIB
"""More bytes than can be written between two such measurements."""
TRIES = (0.1, 1.0)
"""Seconds until the first new try, and the longest delay between two tries."""

_REMEDY = "free some space, or shorten stream-retention, which removes entries even now"


def default_floor(total: int) -> int:
    """Bytes kept free on a file system of a given size in bytes."""
    return min(FLOOR, total // FLOOR_PART)


class WriteSwitch(Protocol):
    """The parts of a node that the guard needs; :class:`millstream.node.node.Node` is one."""

    def suspend(self, outage: Outage) -> None:
        """Refuse the commands that the outage refuses, from now on."""

    def resume(self) -> None:
        """Take writes again."""


class DiskGuard:
    """Decides by free space and failed writes if the node takes writes."""

    def __init__(
        self,
        log: Log,
        switch: WriteSwitch,
        floor: Callable[[], int],
        clock: Clock,
        *,
        tries: tuple[float, float] = TRIES,
    ) -> None:
        self._log = log
        self._switch = switch
        self._floor = floor
        self._clock = clock
        self._first_try, self._last_try = tries
        self._tries = 0
        self._last_floor = 0
        self.state: State = "ok"  # State of the disk
        self.since = 0  # Wall milliseconds of the last change of state, 0 for none
        self.is_near = True  # Free space may be so close to the floor that every write must be checked

    @property
    def is_full(self) -> bool:
        """True if changes are held, so nothing may be written but a new try."""
        return self.state == "full"

    def has_moved(self) -> bool:
        """True if the floor has changed since the last call or the last measurement."""
        before, self._last_floor = self._last_floor, self._floor()
        return before != self._last_floor

    def measure(self) -> int | None:
        """Return the free bytes, None if the system does not report them; callable from any thread."""
        try:
            return self._log.free()
        except DiskError:
            return None

    def refused(self, error: DiskFullError) -> None:
        """Record that a write met a full disk."""
        if self.state == "full":
            return
        held = self._log.held()
        self._change("full")
        cause = error.__cause__
        self._switch.suspend(Outage(cause.strerror or str(error) if isinstance(cause, OSError) else str(error), held))
        log.error(
            "%s; writes are refused, %d unacknowledged records wait for space, other reads go on", error, len(held)
        )

    def worked(self, free: int | None) -> None:
        """Record that a write or sync succeeded, with this many bytes free.

        While records are held this changes nothing: a sync that was due stores only what was written before.
        """
        if self.state == "full" and self._log.held():
            return
        floor = self._last_floor = self._floor()
        self.is_near = free is None or free < floor + PLENTY
        if free is None or free >= (floor if self.state == "ok" else floor + floor // 4):
            self._recover()
        elif self.state != "low":
            self._change("low")
            why = f"less than {_size(floor)} are free on the disk (disk-free-floor); {_REMEDY}"
            self._switch.suspend(Outage(why, is_early=True))
            log.error("%s free in %s, %s; writes are refused, reads go on", _size(free), self._log.directory, why)

    def _recover(self) -> None:
        if self.state == "ok":
            return
        seconds = (self._clock.now().wall - self.since) / 1000
        self._change("ok")
        self._switch.resume()
        log.warning("there is space in %s again, after %.1f s: writes are accepted", self._log.directory, seconds)

    def _change(self, state: State) -> None:
        self.state = state
        self.since = self._clock.now().wall
        self._tries = 0

    def delay(self) -> float:
        """Seconds until the next try, longer each time."""
        self._tries += 1
        return min(self._first_try * self._tries**2, self._last_try)


def _size(count: int) -> str:
    """Format a number of bytes for people."""
    return f"{count / MIB:.1f} MiB" if count >= MIB else f"{count / 1024:.0f} KiB"
