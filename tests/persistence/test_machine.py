"""Any sequence of appends, commits, packs, rewritings, failures, kills, power cuts and restarts, against a list."""

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.errors import DiskError, LogCorruptError
from millstream.persistence.frame import FRAME_SIZE
from millstream.persistence.log import Log
from millstream.persistence.packs import PackWriter
from millstream.persistence.rewrite import contents, make
from persistence.reference import HOME, Promises, entropy
from support.simdisk import Crash, Fault, SimDisk

PAYLOADS = st.one_of(st.binary(max_size=40), st.integers(0, 2000).map(bytes))
FAULTS = st.sampled_from([None, *Fault])


class LogMachine(RuleBasedStateMachine):
    """Model: a recovery returns a prefix of the appended records that holds all durable ones."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.promises = Promises()
        self.opened = 0

    @initialize(segment_bytes=st.sampled_from([100, 1500, 1 << 20]))
    def first(self, segment_bytes: int) -> None:
        """Open a log with many small files, or with one."""
        self.segment_bytes = segment_bytes
        self.open()

    def open(self) -> None:
        """Recover and compare with the model."""
        self.opened += 1
        self.log, recovery = Log.open(HOME, self.disk, segment_bytes=self.segment_bytes, entropy=entropy(self.opened))
        self.promises.check(list(recovery.payloads()))
        self.promises.check_packs(self.disk)
        self.pack: PackWriter | None = None

    @rule(payloads=st.lists(PAYLOADS, max_size=8))
    def append(self, payloads: list[bytes]) -> None:
        """Append some records."""
        for payload in payloads:
            self.promises.appended.append(payload)
            assert self.log.append(payload) == len(self.promises.appended)

    @rule()
    def write(self) -> None:
        """Write to the page cache only."""
        assert self.log.write() == len(self.promises.appended)

    @rule()
    def sync(self) -> None:
        """Sync: every written record is promised."""
        self.promises.durable = self.log.sync()

    @rule()
    def restart(self) -> None:
        """Stop cleanly: every record is promised."""
        self.log.close()
        self.promises.durable = len(self.promises.appended)
        self.open()

    @rule(crash=st.sampled_from(Crash), seed=st.integers(0, 1000))
    def crash(self, crash: Crash, seed: int) -> None:
        """Crash without a clean stop."""
        self.disk = self.disk.reboot(crash, seed)
        self.open()

    @rule(extents=st.lists(PAYLOADS, max_size=4), fault=FAULTS, step=st.integers(1, 16), crash=st.sampled_from(Crash))
    def fill(self, extents: list[bytes], fault: Fault | None, step: int, crash: Crash) -> None:
        """Add extents to the open pack or to a new one, with at most one failing operation."""
        self.disk.faults = {self.disk.operations + step: fault} if fault else {}
        with contextlib.suppress(DiskError):
            self.pack = self.pack or self.log.add_pack()
            places = self.pack.add(extents)
            assert [size for _, size in places] == [FRAME_SIZE + len(each) for each in extents]
            self.promises.extents.setdefault(self.pack.entry.number, []).extend(extents)
        self.go_on(crash, step)

    @precondition(lambda self: self.pack)
    @rule(fault=FAULTS, step=st.integers(1, 12), crash=st.sampled_from(Crash))
    def end(self, fault: Fault | None, step: int, crash: Crash) -> None:
        """Seal the pack, with at most one failing operation."""
        assert self.pack is not None
        self.disk.faults = {self.disk.operations + step: fault} if fault else {}
        with contextlib.suppress(DiskError):
            self.log.end_pack(self.pack)
            self.pack = None
        self.go_on(crash, step)

    def go_on(self, crash: Crash, seed: int) -> None:
        """Let operations succeed again; reopen a log that refuses records."""
        self.disk.faults = {}
        try:
            self.log.write()
        except DiskError:
            self.disk = self.disk.reboot(crash, seed)
            self.open()

    @rule(fault=FAULTS, step=st.integers(1, 45), crash=st.sampled_from(Crash), let_go=st.booleans())
    def rewrite(self, fault: Fault | None, step: int, crash: Crash, let_go: bool) -> None:
        """Rewrite the log with at most one failing operation, then remove replaced files."""
        self.disk.faults = {self.disk.operations + step: fault} if fault else {}
        filled = self.pack.entry.number if self.pack else 0
        gone = {number for number in self.promises.extents if let_go and number != filled}
        with contextlib.suppress(OSError, DiskError, LogCorruptError):
            rewrite = self.log.begin_rewrite()
            if rewrite is not None:
                make(self.disk, HOME, rewrite, list(contents(self.disk, HOME, rewrite)))
                self.promises.may_go |= gone
                self.log.commit_rewrite(rewrite, gone)
        self.disk.faults = {}
        with contextlib.suppress(DiskError):
            self.log.remove_obsolete()
        self.promises.durable = max(self.promises.durable, self.log.durable)
        self.go_on(crash, step)

    @invariant()
    def positions_are_in_order(self) -> None:
        """Check that durable <= written <= appended."""
        if self.opened:
            assert self.log.durable <= self.log.written <= self.log.appended == len(self.promises.appended)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
