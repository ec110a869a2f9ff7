"""A crash at every disk operation of a whole node: it recovers a state of its past with every acknowledged write.

Real commands on a real node and log; only disk and clock are the tests'. The log's own crash tests
(``tests/persistence/test_crash.py``) check records; these check the keyspace and the replies.
"""

import copy
import functools
import random
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from millstream import core
from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.engine.cold_ops import named_packs
from millstream.node.durability.disk_guard import DiskGuard
from millstream.node.durability.group_commit import CommitStep, perform
from millstream.node.log import codec
from millstream.node.log.packs import KeyspacePacks, expect_packs
from millstream.node.log.rebuilding import from_log
from millstream.node.node import Node
from millstream.node.outcome import Outcome
from millstream.persistence.log import Log
from millstream.persistence.manifest import is_pack_name, pack_number
from millstream.persistence.packs import PackFiles, PackWriter
from millstream.persistence.rewrite import contents, make
from millstream.protocol.reader import CommandReader
from node import plain_work
from support import campaign
from support.coldness import IS_COLD
from support.inprocess import to_words
from support.packed import spill
from support.plain import answered, needs_runner
from support.simdisk import Crash, Fault, Inode, SimDisk, SimFile
from support.state import check, snapshot
from support.wire import pack

HOME = Path("/data")
SEGMENT_BYTES = 4000
Line = list[str]


def adding(chance: random.Random) -> Iterator[Line]:
    """Yield additions of many sizes to three streams, some in transactions, some twice with one message id."""
    for number in range(90):
        key = f"s{number % 3}"
        fields = ["n", str(number), "pad", "x" * chance.choice((0, 5, 60, 700))]
        if number % 9 == 4:
            yield ["MULTI"]
            yield ["XADD", key, "*", *fields]
            yield ["XADD", "both", "*", *fields]
            yield ["EXEC"]
        elif number % 9 == 7:
            yield ["XADD", key, "IDMP", "p", str(number // 20), "*", *fields]
        else:
            yield ["XADD", key, "*", *fields]


def grouping(chance: random.Random) -> Iterator[Line]:
    """Yield reads and acknowledgements of two groups between additions."""
    for group in ("g", "h"):
        yield ["XGROUP", "CREATE", "s", group, "0", "MKSTREAM"]
    for number in range(60):
        yield ["XADD", "s", f"{number + 1}-0", "n", str(number)]
        group, consumer = chance.choice("gh"), chance.choice("abc")
        if number % 2:
            yield ["XREADGROUP", "GROUP", group, consumer, "COUNT", "3", "STREAMS", "s", ">"]
        if number % 3 == 2:
            yield ["XACK", "s", group, *(f"{chance.randint(1, number + 1)}-0" for _ in range(4))]
        if number % 20 == 10:
            yield ["XREADGROUP", "GROUP", group, consumer, "STREAMS", "s", "0"]


def claiming(chance: random.Random) -> Iterator[Line]:
    """Yield claims, releases, and acknowledgements with deletion."""
    yield ["XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"]
    for number in range(30):
        yield ["XADD", "s", f"{number + 1}-0", "n", str(number)]
    yield ["XREADGROUP", "GROUP", "g", "a", "COUNT", "24", "STREAMS", "s", ">"]
    for number in range(45):
        one, other = f"{chance.randint(1, 30)}-0", f"{chance.randint(1, 30)}-0"
        consumer = chance.choice("abcd")
        yield [
            ["XCLAIM", "s", "g", consumer, "0", one, other],
            ["XAUTOCLAIM", "s", "g", consumer, "10", "0", "COUNT", "3"],
            ["XNACK", "s", "g", chance.choice(("FAIL", "SILENT", "FATAL")), "IDS", "1", one],
            ["XREADGROUP", "GROUP", "g", consumer, "COUNT", "2", "CLAIM", "15", "STREAMS", "s", ">"],
            ["XACKDEL", "s", "g", "DELREF", "IDS", "1", one],
        ][number % 5]


def trimming(chance: random.Random) -> Iterator[Line]:
    """Yield trims of every kind, deletions of entries and keys, and expiry times."""
    yield ["XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"]
    for number in range(80):
        yield ["XADD", "s", f"{number + 1}-0", "n", "x" * chance.choice((1, 50))]
        yield [
            ["XREADGROUP", "GROUP", "g", "a", "COUNT", "3", "STREAMS", "s", ">"],
            ["XTRIM", "s", "MAXLEN", "=", str(chance.randint(5, 40))],
            ["XDEL", "s", f"{chance.randint(1, number + 1)}-0"],
            ["XTRIM", "s", "MINID", "DELREF", f"{max(number - 30, 0)}-0"],
            ["XADD", "t", "MAXLEN", "~", "10", "*", "n", str(number)],
            ["PEXPIRE", "t", "25"],
            ["XDELEX", "s", "ACKED", "IDS", "1", f"{chance.randint(1, number + 1)}-0"],
            ["XSETID", "s", f"{number + 1}-{number}"],
        ][number % 8]


def mixing(chance: random.Random) -> Iterator[Line]:
    """Yield commands of all kinds; the log is rewritten meanwhile, again and again (see :class:`Life`)."""
    for one, other in zip(islice(grouping(chance), 45), adding(chance), strict=False):
        yield one
        if one[0] != "XGROUP":
            yield other


def spilling(chance: random.Random) -> Iterator[Line]:
    """Yield additions, deletions and trims; meanwhile sealed nodes go to packs, and rewritings let packs go."""
    yield ["XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"]
    for number in range(120):
        yield ["XADD", "s", f"{number + 1}-0", "n", "x" * chance.choice((1, 50))]
        yield [
            ["XREADGROUP", "GROUP", "g", "a", "COUNT", "3", "STREAMS", "s", ">"],
            ["XDEL", "s", f"{chance.randint(1, number + 1)}-0", f"{chance.randint(1, number + 1)}-0"],
            ["XTRIM", "s", "MAXLEN", "~", str(chance.randint(10, 40))],
            ["XADD", "t", "*", "n", str(number)],
            ["COPY", "s", "u", "REPLACE"],
            ["XTRIM", "s", "MINID", f"{max(number - 30, 0)}-0"],
            ["XACKDEL", "s", "g", "DELREF", "IDS", "1", f"{chance.randint(1, number + 1)}-0"],
            ["DEL", chance.choice("tu")],
        ][number % 8]


WORKLOADS = {"add": adding, "group": grouping, "claim": claiming, "trim": trimming, "rewrite": mixing}
SPILLING = {"spill and rewrite": spilling}
PLAIN = plain_work.WORKLOADS
EVERY = WORKLOADS | PLAIN | SPILLING


@dataclass
class Life:
    """One node on one disk, with its promises.

    Args:
        disk: The disk to run on.
        lazy: Syncs every third group, as ``everysec`` does between its seconds.
        rewrites: Rewrites its log all the time, one step after each group.
        plain: A group comes in one piece, as from a client that does not wait for replies, while another waits.
        spills: Sealed nodes of streams go to packs every fourth group.

    Attributes:
        rewritten: The number of rewritings of the log.
        released: The number of packs that these have released.
        promised: Log position of the last reply that was sent under ``always``.
        shown: The keyspace's content after the last command, and the log's position then.
    """

    disk: SimDisk
    lazy: bool = False
    rewrites: bool = False
    plain: bool = False
    spills: bool = False
    promised: int = 0
    groups: int = 0
    rewritten: int = 0
    released: int = 0
    pack: PackWriter | None = None

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.shown: dict[int, Any] = {}

    @classmethod
    def of(cls, name: str, disk: SimDisk, lazy: bool) -> "Life":
        """Return a life for a workload."""
        return cls(disk, lazy, name.endswith("rewrite"), name in PLAIN, name in SPILLING)

    def open(self) -> tuple[list[bytes], Node]:
        """Recover the node, and continue with it."""
        marks = random.Random(self.disk.operations)
        self.log, recovery = Log.open(HOME, self.disk, segment_bytes=SEGMENT_BYTES, entropy=marks.randbytes)
        payloads = list(recovery.payloads())
        self.node = Node(Config({"stream-node-max-entries": "3"} if self.spills else {}), self.log)
        if not IS_COLD:
            self.node.keyspace.reads.source = PackFiles(self.log.open_pack, lambda: self.log.packs)
        self.node.recover(payloads)
        expect_packs(self.node.keyspace, self.log)
        self.pack = None
        self.guard = DiskGuard(self.log, self.node.journal, lambda: 0, self.clock)
        self.session: Session = self.node.sessions.open(self.clock.now())
        self.waiting: Session = self.node.sessions.open(self.clock.now())
        self.rewriting = self.rewrite()
        return payloads, self.node

    def run(self, lines: list[Line], chance: random.Random, *, look: bool = False) -> None:
        """Run commands in groups of many sizes, with a clean restart half-way; ``look`` records each state."""
        self.open()
        at = 0
        while at < len(lines):
            size = chance.choice((1, 3, 16, 40) if self.plain else (1, 1, 2, 5))
            group = lines[at : at + size]
            self.commit(list((self.take if self.plain else self.ask)(group, look=look)))
            self.clock.advance(chance.choice((1, 7, 20)))
            if at < len(lines) // 2 <= at + size:
                self.log.close()
                self.promised = self.log.durable
                self.open()
            at += size
        self.log.close()

    def execute(self, line: Line, *, look: bool = False) -> Outcome | None:
        """Run one command."""
        outcome = self.node.execute(self.session, to_words(line), self.clock.now())
        if look:
            self.shown[self.log.appended] = snapshot(self.node)
        return outcome

    def ask(self, group: list[Line], *, look: bool = False) -> Iterator[int]:
        """Run commands one by one; yield the positions that their replies wait for."""
        for line in group:
            outcome = self.execute(line, look=look)
            if outcome is not None:
                yield outcome.barrier

    def take(self, group: list[Line], *, look: bool = False) -> Iterator[int]:
        """Run commands that come in one piece; yield the positions that their replies wait for."""
        now = self.clock.now()
        if not self.waiting.blocked:
            self.node.execute(self.waiting, to_words(plain_work.WAITING), now)
        reader = CommandReader()
        reader.feed(b"".join(pack(*line) for line in group))
        for _, barrier in answered(self.node, self.session, reader, now):
            if look:
                self.shown[self.log.appended] = snapshot(self.node)
            yield barrier
        yield from (outcome.barrier for _, outcome in self.node.outbox)
        self.node.outbox.clear()

    def commit(self, barriers: list[int]) -> None:
        """Write and sync a group as the server's loop does; then its replies may be sent."""
        self.groups += 1
        if self.spills and self.groups % 4 == 0:
            self.spill()
        step = CommitStep.WRITE if self.lazy and self.groups % 3 else CommitStep.COMMIT
        error = perform(step, self.log, self.guard).error
        assert error is None, error
        self.promised = max(self.promised, 0, *(barrier for barrier in barriers if barrier <= self.log.durable))
        if self.rewrites and next(self.rewriting, None) is None:
            self.rewriting = self.rewrite()

    def spill(self) -> None:
        """Make the sealed nodes of all streams cold; every third time the pack ends."""
        self.pack = self.pack or self.log.add_pack()
        for key in sorted(self.node.keyspace.databases[0].keys):
            spill(self.node, self.clock.now(), self.pack, 0, key, 2)
        if self.groups % 12 == 0:
            self.log.end_pack(self.pack)
            self.pack = None

    def rewrite(self) -> Iterator[str]:
        """Run a rewriting, step by step. Its snapshot holds the records themselves, for comparison."""
        rewrite = self.log.begin_rewrite()
        if rewrite is None:
            return
        yield "sealed off"
        make(self.disk, HOME, rewrite, contents(self.disk, HOME, rewrite))
        yield "made"
        gone = set()
        if self.spills:
            space = from_log(contents(self.disk, HOME, rewrite))
            gone = self.log.settled_packs(rewrite) - {number for number, *_ in named_packs(space)}
            assert not KeyspacePacks(self.node.keyspace, lambda job: job()).needed(gone)
        self.log.commit_rewrite(rewrite, gone)
        self.rewritten += 1
        self.released += len(gone)
        yield "adopted"
        self.log.remove_obsolete()


@dataclass(frozen=True)
class Reference:
    """A workload that ran to its end undisturbed.

    Attributes:
        lines: its commands.
        payloads: its records.
        states: the content of a node built from the first n records, for each n from 0.
        operations: the operations of the disk.
    """

    lines: list[Line]
    payloads: list[bytes]
    states: list[Any]
    operations: int


class HoardingDisk(SimDisk):
    """A disk whose packs are readable, as a ``ColdSource``, even after their removal."""

    def __init__(self) -> None:
        super().__init__()
        self.packs: dict[int, Inode] = {}

    def create(self, path: Path) -> SimFile:
        """Create a file; a pack is kept."""
        file = super().create(path)
        if is_pack_name(path.name):
            self.packs[pack_number(path.name)] = self.names[path]
        return file

    def read(self, pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:
        """Return a part of a pack."""
        return bytes(self.packs[pack].cache[offset : offset + length])

    def name(self, pack: int) -> str:
        """Return the name of a pack."""
        return f"pack {pack}"


@functools.cache
def reference(name: str, seed: int, *, lazy: bool) -> Reference:
    """Run a workload undisturbed, and compare live and replayed states on the way."""
    lines = list(EVERY[name](random.Random(f"{name} {seed}")))
    life = Life.of(name, disk := HoardingDisk(), lazy)
    life.run(lines, random.Random(seed), look=True)
    assert not life.rewrites or life.rewritten > 5
    assert not life.spills or life.released > 3
    operations = life.disk.operations
    if life.spills:  # looking at each state reads packs, which the runs that crash do not
        counted = Life.of(name, SimDisk(), lazy)
        counted.run(lines, random.Random(seed))
        operations = counted.disk.operations
    _, recovery = Log.open(HOME, life.disk)
    payloads = list(recovery.payloads())
    twin = Node(Config())
    if life.spills:
        twin.keyspace.reads.source = disk
    states = [snapshot(twin)]
    for position, payload in enumerate(payloads, 1):
        twin.recover([payload])
        states.append(snapshot(twin))
        if position in life.shown:
            assert states[-1] == life.shown[position], f"record {position} says something else than was done"
    return Reference(lines, payloads, states, operations)


class WatchedDisk(SimDisk):
    """A disk that stores its state at some of its operations, so that one run gives many crashes.

    Args:
        wanted: the numbers of those operations.

    Attributes:
        kept: for each of them, the disk at that time, and the position promised by then.
        life: the node that promises.
    """

    life: "Life"

    def __init__(self, wanted: Container[int]) -> None:
        super().__init__()
        self.wanted = wanted
        self.kept: dict[int, tuple[SimDisk, int]] = {}

    def begin(self, what: str, path: Path) -> Fault | None:
        """Store the disk's state before the next operation."""
        if self.operations in self.wanted:
            then = SimDisk()
            then.names, then._durable_names, then._name_changes = copy.deepcopy(  # noqa: SLF001 - the simulated disk's own state
                (self.names, self._durable_names, self._name_changes)
            )
            log = getattr(self.life, "log", None)
            self.kept[self.operations] = (then, max(self.life.promised, 0 if log is None else log.durable))
        return super().begin(what, path)


def check_recovery(whole: Reference, disk: SimDisk, promised: int, seed: int) -> None:
    """Recover from a disk after a crash, check, continue, lose power again, check."""
    after = Life(disk)
    payloads, node = after.open()
    assert payloads == whole.payloads[: len(payloads)], "something was invented or changed"
    assert len(payloads) >= promised, f"{promised} were promised, {len(payloads)} are there"
    assert snapshot(node) == whole.states[len(payloads)]
    check(node, wire=False)
    outcome = after.execute(["XADD", "afterwards", "1-1", "f", "v"])
    assert outcome is not None
    after.commit([outcome.barrier])
    assert after.promised == len(payloads) + 1, "the node does not go on where it recovered"
    kept = snapshot(node)
    last = Life(after.disk.reboot(Crash.DROPPED, seed))
    _, node = last.open()
    assert snapshot(node) == kept


def crashes(seed: int, each: int, names: Iterable[str] = WORKLOADS) -> int:
    """Crash each workload in each way at operations all over it; return the number of crashes."""
    count = 0
    for number, name in enumerate(names):
        lazy = bool((seed + number) % 2)
        whole = reference(name, seed, lazy=lazy)
        stride = max(1, whole.operations // each)
        disk = WatchedDisk(range(seed % stride, whole.operations, stride))
        disk.life = Life.of(name, disk, lazy)
        disk.life.run(whole.lines, random.Random(seed))
        for point, (then, promised) in disk.kept.items():
            for crash in sorted(Crash, key=lambda crash: crash is Crash.PROCESS):  # which goes on with the same disk
                check_recovery(whole, then.reboot(crash, seed * 1_000_003 + point), promised, point)
                count += 1
    return count


def test_workloads_do_what_they_are_named_for() -> None:
    """The workloads write many records over several log files, with hardly a command refused."""
    for name in EVERY.keys() - (SPILLING if IS_COLD else ()):
        life = Life.of(name, SimDisk(), lazy=False)
        life.run(reference(name, 0, lazy=False).lines, random.Random(0))
        assert life.log.appended > 60
        assert life.rewrites or sum(path.name.endswith(".seg") for path in life.disk.names) > 1, name
        failed = sum(stats.failed + stats.rejected for stats in life.node.stats.commands.values())
        assert failed < 20, name


def test_a_crash_at_any_operation_leaves_a_moment_of_the_past() -> None:
    """After a crash at any operation the node has a prefix of its history with everything acknowledged.

    Nothing is invented, and nothing is there twice; 2,000 crashes.
    """
    assert crashes(0, 70) >= 2000


@pytest.mark.skipif(IS_COLD, reason="its streams have packs of their own")
def test_a_crash_amid_spilling_and_rewriting_leaves_a_moment_of_the_past() -> None:
    """After a crash at any operation every entry of a moment of the past is readable, in memory or in packs.

    1,200 crashes, amid packs that are filled, ended and released.
    """
    assert crashes(0, 200, SPILLING) >= 1200


@needs_runner
def test_records_of_plain_commands_are_worth_crashing() -> None:
    """The records of the plain workloads have many steps, of every kind that plain commands write."""
    kinds = set()
    for name in PLAIN:
        steps = [codec.unpack(payload)[1] for payload in reference(name, 0, lazy=False).payloads]
        kinds.update(step[0] for some in steps if len(some) > 5 for step in some)
        assert sum(len(some) > 5 for some in steps) > 20, name
        assert any(step[4] == b"waiter" for some in steps for step in some if step[0] == "gread"), f"{name}: no wake-up"
    assert {"xadd", "set", "gread", "gack"} <= kinds


def test_a_crash_amid_plain_commands_leaves_a_moment_of_the_past() -> None:
    """After a crash amid plain commands, and clients woken by them, the node has a prefix with everything acknowledged.

    1,200 crashes.
    """
    assert crashes(0, 70, PLAIN) >= 1200


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_crashes_at_any_operation_of_many_workloads() -> None:
    """After 50,000 crashes in many workloads, each node has a prefix of its history with everything acknowledged."""
    campaign.run("node-crashes", lambda seed: crashes(seed, 70), range(1, 25), unit="crashes")


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_crashes_amid_plain_commands_of_many_workloads() -> None:
    """After a crash at any operation of plain workloads, the node has a prefix with everything acknowledged.

    30,000 crashes on each core; they include each operation.
    """
    name = f"plain-crashes-{core.NAME}"
    campaign.run(name, lambda seed: crashes(seed, 70, PLAIN), range(1, 25), unit="crashes")
