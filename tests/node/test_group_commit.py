"""The group commit alone: in any order of events, it releases only replies that the policy allows."""

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.clock import SystemClock
from millstream.errors import DiskError, DiskFullError
from millstream.node.durability.disk_guard import DiskGuard
from millstream.node.durability.group_commit import (
    QUICK_SECONDS,
    SYNC_SECONDS,
    CommitStep,
    Fsync,
    GroupCommit,
    Report,
    perform,
)
from millstream.node.durability.outage import Outage
from millstream.node.log import codec


class PositionLog:
    """A log that has positions only.

    Attributes:
        full: writes find no space.
        broken: writes and syncs fail.
        lost_at: the durable position when it broke.
    """

    directory = Path("data")

    def __init__(self) -> None:
        self.appended = self.written = self.durable = 0
        self.full = self.broken = False
        self.space = 1000

    def free(self) -> int:
        return self.space

    def held(self) -> list[bytes]:
        return [codec.pack(0, [("set", 0, b"key", b"value", None)])] * (self.appended - self.written)

    def write(self) -> int:
        if self.broken:
            raise DiskError("the disk is broken")
        if self.full and self.appended > self.written:
            raise DiskFullError("the disk is full")
        self.written = self.appended
        return self.written

    def sync(self) -> int:
        if self.broken:
            raise DiskError("the disk is broken")
        self.durable = self.written
        return self.durable


def time_syncs(commit: GroupCommit, seconds: float) -> None:
    """Report a sync of the given duration; there is nothing to store."""
    for _ in range(60):
        commit.done(Report(CommitStep.SYNC, free=1000, seconds=seconds), 0.0)


class GroupCommits(RuleBasedStateMachine):
    """Commands, a thread that takes its time, a clock, and a disk that is full or fails, in any order.

    Attributes:
        thread: the step that the thread is running.
        refusing: the node refuses writes.
        opened: the highest position whose replies may be sent.
    """

    @initialize(
        policy=st.sampled_from(["always", "everysec", "no"]), space=st.sampled_from([0, 1000]), may_wait=st.booleans()
    )
    def start(self, policy: Fsync, space: int, may_wait: bool = False) -> None:
        self.log, self.now, self.policy = PositionLog(), 0.0, policy
        self.log.space = space
        self.thread: CommitStep | None = None
        self.refusing: Outage | None = None
        self.floor = 0
        self.guard = DiskGuard(self.log, self, lambda: self.floor, SystemClock())
        self.commit = GroupCommit(self.log, policy, self.guard, self.now, may_wait=may_wait)
        self.opened = 0
        if may_wait:
            time_syncs(self.commit, 0.0)

    def suspend(self, outage: Outage) -> None:
        """Stop writes, as the node does."""
        self.refusing = outage

    def resume(self) -> None:
        """Resume writes, as the node does."""
        self.refusing = None

    def report(self, report: Report) -> None:
        """Handle a report as both shells do."""
        if self.commit.done(report, self.now):
            self.opened = self.commit.gate.released

    @precondition(lambda self: self.commit.failure is None)
    @rule(count=st.integers(1, 3))
    def commands_run(self, count: int) -> None:
        """Append records; while writes are refused, none."""
        if self.refusing is None:
            self.log.appended += count

    @rule()
    def step(self) -> None:
        """Take the next step that the commit returns."""
        step = self.commit.next_step(self.now)
        if step is None:
            return
        assert self.thread is None, "one step at a time"
        if step.in_thread:
            self.commit.begin(step)
            self.thread = step
        else:
            self.report(perform(step, self.log, self.guard))

    @precondition(lambda self: self.thread is not None)
    @rule()
    def thread_ends(self) -> None:
        """End the step that the thread is running."""
        assert self.thread is not None
        step, self.thread = self.thread, None
        self.report(perform(step, self.log, self.guard))

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(full=st.booleans())
    def disk_fills(self, full: bool) -> None:
        self.log.full = full

    @rule(space=st.sampled_from([0, 500, 1000]), floor=st.sampled_from([0, 400]))
    def space_changes(self, space: int, floor: int) -> None:
        self.log.space, self.floor = space, floor
        self.commit.retry_if_floor_moved()

    @rule()
    def disk_breaks(self) -> None:
        self.log.broken = True

    @invariant()
    def released_is_promised(self) -> None:
        """Check that each released position is as safe as the policy requires."""
        promised = self.log.durable if self.policy == "always" else self.log.written
        assert self.commit.gate.released <= promised
        assert self.commit.gate.released == self.opened

    @invariant()
    def failure_is_the_end(self) -> None:
        """Check that a failed disk gets no further calls, not even by a timer."""
        if self.commit.failure is not None:
            assert self.commit.next_step(self.now) is None
            assert self.commit.next_due() is None

    @invariant()
    def something_is_always_due(self) -> None:
        """Check that pending work is with the thread, due at once, or due at a timer."""
        commit = self.commit
        if commit.failure is not None or self.thread is not None:
            return
        waits = self.log.appended > commit.gate.released or self.refusing is not None
        unsynced = self.policy == "everysec" and self.log.written > self.log.durable
        if waits or unsynced:
            assert commit.next_step(self.now) is not None or commit.next_due() is not None
        due = commit.next_due()
        if due is not None and due <= self.now:
            assert commit.next_step(self.now) is not None, "a timer that rings finds something to do"
        if unsynced and commit.sync_at is not None:
            assert commit.sync_at <= self.now + SYNC_SECONDS

    def teardown(self) -> None:
        """Check that with space and a working disk everything appended is released in the end."""
        if not hasattr(self, "log") or self.log.broken:
            return
        self.log.full, self.log.space, self.floor = False, 10**9, 0
        if self.thread is not None:
            self.thread_ends()
        for _ in range(10):
            self.now += 2.0
            self.step()
            if self.thread is not None:
                self.thread_ends()
        assert self.opened == self.log.appended
        assert self.refusing is None
        if self.policy != "no":
            assert self.log.durable == self.log.appended


TestGroupCommits = GroupCommits.TestCase
TestGroupCommits.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_a_group_is_all_that_gathered(policy: Fsync) -> None:
    """All commands that ran since the last group are committed in one write."""
    log = PositionLog()
    machine = GroupCommits()
    machine.start(policy, 1000)
    log = machine.log
    machine.step()  # free space is looked at first
    log.appended = 100
    machine.step()
    if machine.thread is not None:
        machine.thread_ends()
    assert (log.written, machine.opened) == (100, 100)
    assert log.durable == (100 if policy == "always" else 0)


def test_only_a_quick_disk_is_waited_for() -> None:
    """The event loop itself waits for a sync only while syncs are quick, and only where waiting is allowed.

    One stall does not end that, frequent ones do until syncs are quick again.
    """
    log = PositionLog()
    switch = GroupCommits()
    switch.start("always", 1000)
    commit = GroupCommit(log, "always", switch.guard, 0.0, may_wait=True)  # type: ignore[arg-type] # parametrised
    log.appended = 1
    assert commit.next_step(0.0) is CommitStep.WRITE_AND_SYNC, "nothing is known of the disk yet"
    time_syncs(commit, 0.0)
    assert commit.next_step(0.0) is CommitStep.COMMIT
    commit.done(Report(CommitStep.SYNC, free=1000, seconds=60.0), 0.0)
    assert commit.next_step(0.0) is CommitStep.COMMIT, "one stall"
    time_syncs(commit, QUICK_SECONDS * 2)
    assert commit.next_step(0.0) is CommitStep.WRITE_AND_SYNC
    time_syncs(commit, QUICK_SECONDS / 2)
    assert commit.next_step(0.0) is CommitStep.COMMIT


@pytest.mark.parametrize("policy", ["everysec", "no"])
def test_only_always_waits(policy: Fsync) -> None:
    """Replies under ``everysec`` and ``no`` wait for no sync."""
    machine = GroupCommits()
    machine.start(policy, 1000, may_wait=True)
    machine.log.appended = 1
    assert machine.commit.next_step(0.0) is CommitStep.WRITE


def test_syncs_that_take_seconds_are_counted() -> None:
    """Syncs over two seconds count in `aof_delayed_fsync` of INFO, the name that Redis's alarms use."""
    machine = GroupCommits()
    machine.start("always", 1000)
    for seconds in (0.001, 1.9, 2.1, 60.0):
        machine.commit.done(Report(CommitStep.SYNC, free=1000, seconds=seconds), 0.0)
    machine.commit.done(Report(CommitStep.WRITE, seconds=60.0), 0.0)
    assert machine.commit.slow_syncs == 2
