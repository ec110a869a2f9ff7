"""Sessions that wait inside a command: for a change of a key, for a claim to become due, or for a timeout."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from millstream.clock import Now
from millstream.commands.context.context import Blocked, Glance
from millstream.commands.context.session import Session
from millstream.engine.keyspace import Transition, Value
from millstream.engine.waiting import Place, WaitingLines
from millstream.replication.units import packed
from millstream.replies import Reply

# Milliseconds between two checks of the wall clock while a client waits for a claim to become due
LOOK = 100
# Transitions after which clients that wait with CLAIM may claim earlier than they expect
_DELIVERIES = frozenset({"gread", "gclaim"})
# Drift between the clocks, in milliseconds, above which the alarms are set again
SLACK = 10


@dataclass(slots=True, eq=False)
class Waiter:
    """One session's wait."""

    session: Session  # Session that waits
    argv: list[bytes]  # Command to run again
    places: list[Place]  # Database and key of each waiting line that contains it
    deadline: int | None  # Monotonic milliseconds at which it gets the reply of ``late``; None for never
    group_wait: bool  # The deletion of a key also wakes it
    kind: type[Value]  # Type of value that it waits for
    given: list[bytes]  # Command as the client sent it
    late: Callable[[], Reply]  # Builds the reply for the timeout
    # Returns the wall milliseconds at which to run the command again without a change; None if that never happens
    due: Callable[[], int | None] | None = None
    alarm: int | None = None  # Monotonic milliseconds of the earliest alarm set for ``due``; None for none
    over: bool = False  # The wait has ended
    # Change that a run makes if it finds nothing; see :class:`~millstream.commands.context.context.Blocked`
    glance: Glance | None = None
    fulfilled: Callable[[], bool] | None = None  # True if enough replicas have confirmed; None for a wait for keys
    may_unblock: bool = True  # CLIENT UNBLOCK can end the wait
    took: int = 0  # Nanoseconds of the last run that found nothing
    _packed: bytes = b""

    @property
    def packed(self) -> bytes:
        """The command as a client sends it."""
        if not self._packed:
            self._packed = packed(self.argv)
        return self._packed


@dataclass(slots=True)
class Waits:
    """Every wait of a node."""

    # Clients that wait for each key, in the order in which they began
    lines: WaitingLines[Waiter] = field(default_factory=WaitingLines)
    # Those that wait with CLAIM, and so have a due time on the wall clock
    claimers: WaitingLines[Waiter] = field(default_factory=WaitingLines)
    by_session: dict[int, Waiter] = field(default_factory=dict)  # Each wait by its session's id
    # Changed keys for which clients wait, in order of the changes; these clients must still be served
    ready: dict[Place, None] = field(default_factory=dict)
    overdue: list[Waiter] = field(default_factory=list)  # Waiters that could claim if writes were possible
    _alarms: list[tuple[int, int, Waiter]] = field(default_factory=list)
    _serial: "count[int]" = field(default_factory=count)
    _looked: int = 0  # monotonic time of the last check of the wall clock
    _drift: int = 0  # wall time minus monotonic time when the alarms were set

    def __len__(self) -> int:
        return len(self.by_session)

    def start(
        self, session: Session, wait: Blocked, given: list[bytes], now: Now, deadline: int | None = None
    ) -> Waiter:
        """Make a session wait."""
        if deadline is None and wait.timeout:
            deadline = now.mono + wait.timeout
        places = [(session.db, key) for key in dict.fromkeys(wait.keys)]
        waiter = Waiter(session, wait.argv, places, deadline, wait.group_wait, wait.kind, given, wait.late, wait.due)
        waiter.glance, waiter.fulfilled, waiter.may_unblock = wait.glance, wait.fulfilled, wait.may_unblock
        waiter.took = wait.took
        self.lines.join(waiter, places)
        self.by_session[session.id] = waiter
        session.blocked = True
        if deadline is not None:
            self._ring_at(deadline, waiter)
        if wait.due is not None:
            if not self.claimers.by_place:
                self._looked, self._drift = now.mono, now.wall - now.mono
            self.claimers.join(waiter, places)
        self.set_alarm(waiter, now)
        return waiter

    def wake(self, db: int, key: bytes) -> None:
        """Note that a key has changed; clients that wait for it are served after the current command."""
        if (db, key) in self.lines:
            self.ready[db, key] = None

    def wake_all(self) -> None:
        """Let all waiting clients check again, since every value was replaced."""
        for waiter in self.by_session.values():
            self.ready.update(dict.fromkeys(waiter.places))

    def observe(self, step: Transition, now: Now) -> None:
        """Note an applied transition: a delivery or a claim moves the time at which an entry can be claimed."""
        if step[0] in _DELIVERIES:
            for waiter in self.claimers.line((step[1], step[2])):
                self.set_alarm(waiter, now)

    def revive_overdue(self, now: Now) -> None:
        """Set alarms for clients that could have claimed while the disk refused writes."""
        for waiter in self.overdue:
            if not waiter.over:
                self.set_alarm(waiter, now)
        self.overdue.clear()

    def set_alarm(self, waiter: Waiter, now: Now) -> None:
        """Set an alarm for when the waiter is due, if that is earlier than its present alarm."""
        wall = None if waiter.due is None else waiter.due()
        if wall is None:
            return
        moment = now.mono + max(wall - now.wall, 1)
        if waiter.alarm is None or moment < waiter.alarm:
            waiter.alarm = moment
            self._ring_at(moment, waiter)

    def look(self, now: Now) -> None:
        """Set the alarms of claims again if the wall clock has jumped, since claims become due by wall time."""
        if not self.claimers.by_place:
            return
        self._looked = now.mono
        drift = now.wall - now.mono
        if abs(drift - self._drift) > SLACK:
            self._drift = drift
            for place in self.claimers.places():
                for waiter in self.claimers.line(place):
                    self.set_alarm(waiter, now)

    def next_look(self) -> int | None:
        """Monotonic milliseconds at which to call :meth:`look` next; None if no client waits for a claim."""
        return self._looked + LOOK if self.claimers.by_place else None

    def _ring_at(self, moment: int, waiter: Waiter) -> None:
        heapq.heappush(self._alarms, (moment, next(self._serial), waiter))

    def go_on(self, waiter: Waiter) -> Waiter:
        """Let a waiter whose command was run again and then parked wait on, at the end of its lines.

        It is not looked at for a claim, which would read entries: it is run again anyway.
        """
        twin = replace(waiter, over=False, alarm=None, due=None)
        self.lines.join(twin, twin.places)
        self.by_session[twin.session.id] = twin
        twin.session.blocked = True
        if twin.deadline is not None:
            self._ring_at(twin.deadline, twin)
        return twin

    def stop(self, waiter: Waiter) -> None:
        """End a wait, for any reason."""
        waiter.over = True
        waiter.session.blocked = waiter.session.parked = False
        self.by_session.pop(waiter.session.id, None)
        self.lines.leave(waiter, waiter.places)
        if waiter.due is not None:
            self.claimers.leave(waiter, waiter.places)

    def wait_on(self, waiter: Waiter) -> None:
        """Move a waiter whose command found nothing to the end of its lines."""
        self.by_session[waiter.session.id] = self.by_session.pop(waiter.session.id)
        self.lines.rejoin(waiter, waiter.places)

    def next_alarm(self) -> int | None:
        """Monotonic milliseconds of the next deadline or due time."""
        alarms = self._alarms
        while alarms and alarms[0][2].over:
            heapq.heappop(alarms)
        return alarms[0][0] if alarms else None

    def ringing(self, now: Now) -> list[Waiter]:
        """Waits whose deadline or due time has come, earliest first."""
        found: list[Waiter] = []
        while (moment := self.next_alarm()) is not None and moment <= now.mono:
            found.append(heapq.heappop(self._alarms)[2])
        return list(dict.fromkeys(found))
