"""A crash at every disk operation under a whole node: what comes back is a moment of its past with all it had promised.

Real commands on a real node and log; only disk and clock are the tests'. The log's own crash tests
(``tests/persistence/test_crash.py``) judge records; these judge the keyspace, and what replies had promised.
"""

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millstream.clock import ManualClock
from millstream.commands.config import Config
from millstream.commands.session import Session
from millstream.node.node import Node, Outcome
from millstream.persistence.log import Log
from millstream.persistence.simdisk import Crash, PowerCut, SimDisk
from support import campaign
from support.inprocess import to_words
from support.state import check, snapshot

HOME = Path("/data")
SEGMENT_BYTES = 4000
Line = list[str]


def adding(chance: random.Random) -> Iterator[Line]:
    """Entries of many sizes in three streams, some of them in transactions, some twice with one message id."""
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
    """Consumers of two groups read and acknowledge what is added meanwhile."""
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
    """Entries change hands, are released, and are acknowledged with their deletion."""
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
    """Streams are trimmed in every way, entries and keys deleted, keys given a time to die."""
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


WORKLOADS = {"add": adding, "group": grouping, "claim": claiming, "trim": trimming}


@dataclass
class Life:
    """One node on one disk, and what it promised.

    Args:
        disk: to run on.
        lazy: syncs every third group, as ``everysec`` does between its seconds.

    Attributes:
        promised: log position of the last reply that was let out under ``always``.
        shown: the keyspace's content when the last command had run, and the log's position then.
    """

    disk: SimDisk
    lazy: bool = False
    promised: int = 0
    groups: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.shown: dict[int, Any] = {}

    def open(self) -> tuple[list[bytes], Node]:
        """Recover, and go on from there."""
        marks = random.Random(self.disk.operations)
        self.log, recovery = Log.open(HOME, self.disk, segment_bytes=SEGMENT_BYTES, entropy=marks.randbytes)
        payloads = list(recovery.payloads())
        self.node = Node(Config(), self.log)
        self.node.recover(payloads)
        self.session: Session = self.node.open_session(self.clock.now())
        return payloads, self.node

    def run(self, lines: list[Line], chance: random.Random, *, look: bool = False) -> None:
        """Run commands in groups of many sizes, with a clean restart half-way; ``look`` keeps what each left."""
        self.open()
        at = 0
        while at < len(lines):
            size = chance.choice((1, 1, 2, 5))
            outcomes = [self.execute(line, look=look) for line in lines[at : at + size]]
            self.commit(outcomes)
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

    def commit(self, outcomes: list[Outcome | None]) -> None:
        """Bring a group to the disk; then its replies may go."""
        self.log.write()
        self.groups += 1
        if not self.lazy or self.groups % 3 == 0:
            self.log.sync()
        reached = [out.barrier for out in outcomes if out is not None and out.barrier <= self.log.durable]
        self.promised = max(self.promised, *reached, 0)


@dataclass(frozen=True)
class Reference:
    """A workload that ran to its end undisturbed.

    Attributes:
        lines: its commands.
        payloads: its records.
        states: what a node made of the first n records holds, for each n from 0.
        operations: what the disk did.
    """

    lines: list[Line]
    payloads: list[bytes]
    states: list[Any]
    operations: int


@functools.cache
def reference(name: str, seed: int, *, lazy: bool) -> Reference:
    """Run a workload undisturbed; live and replayed states are compared on the way."""
    lines = list(WORKLOADS[name](random.Random(f"{name} {seed}")))
    life = Life(SimDisk(), lazy)
    life.run(lines, random.Random(seed), look=True)
    operations = life.disk.operations
    _, recovery = Log.open(HOME, life.disk)
    payloads = list(recovery.payloads())
    twin = Node(Config())
    states = [snapshot(twin)]
    for position, payload in enumerate(payloads, 1):
        twin.recover([payload])
        states.append(snapshot(twin))
        if position in life.shown:
            assert states[-1] == life.shown[position], f"record {position} says something else than was done"
    return Reference(lines, payloads, states, operations)


def crash_at(name: str, seed: int, point: int, crash: Crash, *, lazy: bool) -> None:
    """Run a workload until power is lost after an operation; recover, judge, go on, lose power again, judge."""
    whole = reference(name, seed, lazy=lazy)
    life = Life(SimDisk(seed * 1_000_003 + point, crash_after=point), lazy)
    with pytest.raises(PowerCut):
        life.run(whole.lines, random.Random(seed))
    promised = max(life.promised, life.log.durable if hasattr(life, "log") else 0)
    after = Life(life.disk.reboot(crash, point))
    payloads, node = after.open()
    assert payloads == whole.payloads[: len(payloads)], "something was invented or changed"
    assert len(payloads) >= promised, f"{promised} were promised, {len(payloads)} are there"
    assert snapshot(node) == whole.states[len(payloads)]
    check(node, wire=False)
    outcome = after.execute(["XADD", "afterwards", "1-1", "f", "v"])
    after.commit([outcome])
    assert after.promised == len(payloads) + 1, "the node does not go on where it recovered"
    kept = snapshot(node)
    last = Life(after.disk.reboot(Crash.DROPPED, point))
    _, node = last.open()
    assert snapshot(node) == kept


def slice_of_crashes(seed: int, stride: int) -> int:
    """Crash at every ``stride``-th operation of every workload in every way; how often that was."""
    count = 0
    for number, name in enumerate(WORKLOADS):
        lazy = bool((seed + number) % 2)
        whole = reference(name, seed, lazy=lazy)
        for way, crash in enumerate(Crash):
            for point in range((seed + number + way) % stride, whole.operations, stride):
                crash_at(name, seed, point, crash, lazy=lazy)
                count += 1
    return count


def test_workloads_do_what_they_are_named_for() -> None:
    """The references are worth crashing: many records over several log files, hardly a command refused."""
    for name in WORKLOADS:
        life = Life(SimDisk())
        life.run(reference(name, 0, lazy=False).lines, random.Random(0))
        assert life.log.appended > 60
        assert sum(path.name.endswith(".seg") for path in life.disk.names) > 1, name
        failed = sum(stats.failed + stats.rejected for stats in life.node.stats.commands.values())
        assert failed < 20, name


def test_a_crash_at_any_operation_leaves_a_moment_of_the_past() -> None:
    """Bar A1: a prefix with everything promised, nothing invented, nothing twice; 2,000 crashes."""
    assert slice_of_crashes(0, 2) >= 2000


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_crashes_at_any_operation_of_many_workloads() -> None:
    """Bar A1: 50,000 crashes."""
    campaign.run("node-crashes", lambda seed: slice_of_crashes(seed, 1), range(1, 13), unit="crashes")
