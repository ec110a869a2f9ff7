"""Group commit: many commands, one write and one fsync, and no reply before its changes are on the disk.

Commands append records to the log while they run. The collected records are written as one group:

``always``
    The group is written and synced in a thread. Meanwhile further commands run and append; they are the next group. A
    reply waits for its record to be *durable*. Under load a group is as large as what arrives during one fsync. A shell
    that may block does it itself while syncs are quick, since a thread would cost more than they do. A group then has
    the commands of one turn of the loop, and other clients wait for its sync, as they do in Redis.
``everysec``
    The group is written at once by the shell that ran the commands, and synced in a thread once a second. A reply waits
    for its record to be *written*: the end of the process loses nothing, the end of the machine about a second.
``no``
    As ``everysec`` without the syncs, except at the end.

:class:`GroupCommit` decides and does no I/O itself. Its driver (a *shell*: the server's event loop, the in-process
store) gets the :meth:`~GroupCommit.next_step`, carries it out with :func:`perform`, and reports the result with
:meth:`~GroupCommit.done`. All calls come from one thread at a time; only :func:`perform` may run in another.

A failed disk ends it: nothing above the last durable record is ever released. A second try could report a false
success, since the kernel drops what a failed fsync did not store (source:
https://wiki.postgresql.org/wiki/Fsync_Errors).

A full disk does not end it: nothing of the refused group was written, the log keeps it, and the replies stay held. The
disk guard has further writes refused, and the group is tried again from time to time.
"""

import time
from dataclasses import dataclass
from typing import ClassVar, Literal

from millstream.errors import DiskFullError, StorageError
from millstream.node.durability.disk_guard import LOOK_SECONDS, DiskGuard
from millstream.node.durability.held_replies import ReplyGate
from millstream.persistence.log import Log

Fsync = Literal["always", "everysec", "no"]
"""The fsync policy, with the values of Redis's ``appendfsync``."""

SYNC_SECONDS = 1.0
"""Longest time in seconds that ``everysec`` leaves writes unsynced (Redis: the same)."""

QUICK_SECONDS = 0.008
"""Average duration of syncs in seconds below which a shell that may block does them itself."""
SLOW_SECONDS = 2.0
"""Duration in seconds above which a sync is counted as slow, since waiting clients notice it (Redis: the same)."""
# Number of syncs in the average, and the largest weight of one, in multiples of quick: a single stall of the disk must
# not decide, but two or three must.
_LOOKS_BACK, _STALL = 16, 10


@dataclass(frozen=True, slots=True, eq=False)
class CommitStep:
    """The next step to take; the class attributes are the five steps.

    It is not an ``Enum``: the code names a step some ten times per turn of the loop, and CPython 3.11 looks up an
    Enum's members ten times as slowly.
    """

    text: str  # Name of the step, for people
    in_thread: bool  # The step may block for long, so it runs in a thread and commands continue meanwhile
    writes: bool = False  # It writes the group
    syncs: bool = False  # It syncs the written records
    measures: bool = True  # It measures the free space, at the end, if that is due

    WRITE: ClassVar["CommitStep"]
    MEASURE: ClassVar["CommitStep"]
    SYNC: ClassVar["CommitStep"]
    WRITE_AND_SYNC: ClassVar["CommitStep"]
    COMMIT: ClassVar["CommitStep"]


CommitStep.WRITE = CommitStep("write", in_thread=False, writes=True, measures=False)
CommitStep.MEASURE = CommitStep("look at the free space", in_thread=False)
CommitStep.SYNC = CommitStep("sync", in_thread=True, syncs=True)
CommitStep.WRITE_AND_SYNC = CommitStep("write and sync", in_thread=True, writes=True, syncs=True)
CommitStep.COMMIT = CommitStep("write and sync at once", in_thread=False, writes=True, syncs=True, measures=False)


@dataclass(slots=True)
class Report:
    """The result of a step."""

    step: CommitStep  # Step that was taken
    position: int = 0  # Last position that was written or made durable; 0 for a step that does neither
    free: int | None = None  # Free bytes; None if they were not measured or the system does not report them
    error: StorageError | None = None  # Error of the step; None for none
    seconds: float = 0.0  # Duration of the step in seconds


def perform(step: CommitStep, log: Log, guard: DiskGuard) -> Report:
    """Carry out a step; group commit touches the disk only here."""
    position = 0
    free: int | None = None
    began = time.perf_counter()
    try:
        if step.writes:
            position = log.write()
        if step.syncs:
            position = log.sync()
        if step.measures:
            free = guard.measure()
    except StorageError as error:
        return Report(step, error=error)
    return Report(step, position, free, seconds=time.perf_counter() - began)


def perform_safely(step: CommitStep, log: Log, guard: DiskGuard) -> Report:
    """Run :func:`perform` where no caller would see its exceptions; no reply may be released after one."""
    try:
        return perform(step, log, guard)
    except BaseException as error:  # noqa: BLE001 - the log is not trusted after an exception of any kind
        return Report(step, error=StorageError(f"the log failed: {error!r}"))


class GroupCommit:
    """Decides the next write or sync. All times are seconds of one monotonic clock."""

    def __init__(
        self,
        log: Log,
        policy: Fsync,
        guard: DiskGuard,
        now: float,
        *,
        sync_seconds: float = SYNC_SECONDS,
        may_wait: bool = False,
        gate: ReplyGate | None = None,
    ) -> None:
        self._log = log
        self._policy = policy
        self._guard = guard
        self._sync_seconds = sync_seconds
        self._may_wait = may_wait
        self._pace = 2 * QUICK_SECONDS  # average seconds of a sync; a disk must first prove that it is quick
        self.sync_at: float | None = None  # Time of the next sync under ``everysec``; None if there is nothing to sync
        self._retry_at: float | None = None  # time of the next attempt while the disk refuses writes; else None
        self._measure_at = now  # earliest time at which a write measures free space
        self._is_measured = False  # free space was measured since the last write
        self.gate = gate or ReplyGate()  # Releases replies; the shell opens it when :meth:`done` returns True
        self.gate.begin(log.appended)
        self.failure: StorageError | None = None  # Error of the disk; None for none
        self.is_busy = False  # A step is running in the thread
        self.synced_at = now  # Time of the last sync, or of the start
        self.slow_syncs = 0  # Number of syncs that took longer than :data:`SLOW_SECONDS`

    # ------------------------------------------------------------------ choosing the next step

    @property
    def has_group(self) -> bool:
        """True if commands have appended records that may be written now; a quick check after each command."""
        return (
            self._log.appended > self.gate.kept
            and not self.is_busy
            and self.failure is None
            and not self._guard.is_full
        )

    def next_step(self, now: float) -> CommitStep | None:
        """Return the step to take now; None if there is none, or until the running step has ended."""
        if self.is_busy or self.failure is not None:
            return None
        if self._retry_at is not None and now >= self._retry_at:
            # Under every policy: a disk that was full must not block the shell
            return CommitStep.WRITE_AND_SYNC
        if self.has_group:
            return self._durably() if self._policy == "always" else CommitStep.WRITE
        if not self._is_measured and (self._guard.is_near or now >= self._measure_at):
            return CommitStep.MEASURE
        if self.sync_at is not None and now >= self.sync_at:
            return CommitStep.SYNC
        return None

    def _durably(self) -> CommitStep:
        return CommitStep.COMMIT if self._may_wait and self._pace < QUICK_SECONDS else CommitStep.WRITE_AND_SYNC

    def next_due(self) -> float | None:
        """Time at which :meth:`next_step` has a step without further commands; None if never."""
        if self.failure is not None:
            return None
        if self.sync_at is None or self._retry_at is None:
            return self._retry_at if self.sync_at is None else self.sync_at
        return min(self.sync_at, self._retry_at)

    def retry_if_floor_moved(self) -> bool:
        """True if a refused group should be tried now: CONFIG SET of a lower floor takes effect without delay."""
        if self._retry_at is None or not self._guard.has_moved():
            return False
        self.retry()
        return True

    def retry(self) -> None:
        """Let the next step be another try, if writes are refused."""
        if self._retry_at is not None:
            self._retry_at = float("-inf")

    # ------------------------------------------------------------------ results of steps

    def begin(self, step: CommitStep) -> None:
        """Note that a step runs in the thread; no other is due until :meth:`done`."""
        self.is_busy = True
        if step is CommitStep.WRITE_AND_SYNC:
            self._retry_at = None

    def done(self, report: Report, now: float) -> bool:
        """Take the result of a step; report whether :meth:`ReplyGate.open` can release more replies."""
        self.is_busy = False
        before = self.gate.kept
        if report.error is not None:
            self.fail(report.error, now)
            return self.gate.kept > before
        self.gate.keep(report.position)  # a sync stores only what the write released
        if report.step is CommitStep.WRITE and self._policy == "everysec" and self.sync_at is None:
            self.sync_at = now + self._sync_seconds
        if report.step.measures:
            self._measured(report.free, now)
        else:
            self._is_measured = False
        if report.step.syncs:
            self._pace += (min(report.seconds, _STALL * QUICK_SECONDS) - self._pace) / _LOOKS_BACK
            self.slow_syncs += report.seconds > SLOW_SECONDS
            self.synced_at, self.sync_at = now, None
        return self.gate.kept > before

    def _measured(self, free: int | None, now: float) -> None:
        """Note that everything due is written, and that this many bytes are free."""
        self._is_measured, self._measure_at = True, now + LOOK_SECONDS
        self._guard.worked(free)
        if self._guard.state == "ok":
            self._retry_at = None
        elif self._retry_at is None:
            self._retry_at = now + self._guard.delay()

    def fail(self, error: StorageError, now: float) -> None:
        """Handle an error of the disk: final, or temporary if the disk is only full."""
        if isinstance(error, DiskFullError):
            # SAVE may have stored records before they were released; the file contains nothing of the refused group
            self.gate.keep(self._log.durable)
            self._guard.refused(error)
            if self._retry_at is None:
                self._retry_at = now + self._guard.delay()
        elif self.failure is None:
            self.failure = error
