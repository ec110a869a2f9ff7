"""Simultaneous clients over real sockets, and a checker of their replies.

Eight clients add, read, claim, acknowledge and release on one stream and one group. Then the server is killed and
started again, and its data must follow from its replies. ``MILLSTREAM_SEED=n`` runs one piece again. Each client's
requests depend on the seed, the times of the replies do not.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from server.load.history import History, Operation
from support import campaign
from support.servers import ServerProcess, millstream_server
from support.wire import Wire

CLIENTS = 8
LEASE = 20  # milliseconds
S = 1_000_000_000


def number(name: bytes) -> int:
    ms, _, seq = name.partition(b"-")
    return int(ms) << 64 | int(seq)


def name(number: int) -> bytes:
    return b"%d-%d" % (number >> 64, number & (2**64 - 1))


class Worker(threading.Thread):
    """One client: runs one operation after another and records the replies.

    Args:
        server: its server.
        who: its name as a consumer.
        seed: of its choices.
        count: operations.
        known: recently delivered ids, shared by all clients.
    """

    def __init__(self, server: ServerProcess, who: bytes, seed: str, count: int, known: list[int]) -> None:
        super().__init__()
        self.wire = Wire(server.url)
        self.chance = random.Random(seed)
        self.who = who
        self.count = count
        self.known = known
        self.mine: list[int] = []
        self.done: list[Operation] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        tasks = [self.add, self.take, self.ack, self.claim, self.release, self.see, self.length, self.again]
        weights = [30, 22, 25, 8, 3, 5, 4, 3]
        try:
            while len(self.done) < self.count:
                self.chance.choices(tasks, weights)[0]()
        except BaseException as failure:  # noqa: BLE001 - shown by the thread that waits for us
            self.failure = failure
        finally:
            self.wire.close()

    def timed(self, kind: str, *words: bytes | str | int, **more: Any) -> tuple[Operation, Any]:
        begin = time.monotonic_ns()
        reply = self.wire.ask(*words)
        end = time.monotonic_ns()
        assert not isinstance(reply, Exception), (words, reply)
        found = Operation(kind, self.who, begin, end, **more)
        self.done.append(found)
        return found, reply

    def add(self) -> None:
        token = b"%b:%d" % (self.who, len(self.done))
        message = b"%d" % (len(self.done) // 40) if self.chance.random() < 0.1 else b""
        once = ["IDMP", "p", message] if message else []
        found, reply = self.timed("add", "XADD", "s", *once, "*", "n", token, tokens=[token], message=message)
        found.ids = [number(reply)]

    def take(self) -> None:
        count = self.chance.choice([1, 2, 5])
        wait = ["BLOCK", 2] if self.chance.random() < 0.2 else []
        words = ["XREADGROUP", "GROUP", "g", self.who, "COUNT", count, *wait, "STREAMS", "s", ">"]
        found, reply = self.timed("take", *words, wanted=count)
        self.got(found, reply[0][1] if reply else [])

    def got(self, found: Operation, rows: list[Any]) -> None:
        found.ids = [number(row[0]) for row in rows]
        self.mine += found.ids
        self.known += found.ids
        del self.known[:-50]

    def ack(self) -> None:
        others = self.known[-50:]
        if others and self.chance.random() < 0.2:
            entry = self.chance.choice(others)
        elif self.mine:
            entry = self.mine.pop(self.chance.randrange(len(self.mine)))
        else:
            return self.take()
        found, found.reply = self.timed("ack", "XACK", "s", "g", name(entry), ids=[entry])
        return None

    def claim(self) -> None:
        others = self.known[-50:]
        if others and self.chance.random() < 0.5:
            wanted = sorted({self.chance.choice(others) for _ in range(3)})
            found, rows = self.timed("claim", "XCLAIM", "s", "g", self.who, LEASE, *map(name, wanted), wanted=LEASE)
        else:
            words = ["XAUTOCLAIM", "s", "g", self.who, LEASE, 0, "COUNT", 5]
            found, reply = self.timed("claim", *words, wanted=LEASE)
            rows = reply[1]
        self.got(found, rows)

    def release(self) -> None:
        if self.mine:
            entry = self.mine.pop()
            words = ["XNACK", "s", "g", "SILENT", "IDS", 1, name(entry)]
            found, found.reply = self.timed("release", *words, ids=[entry])

    def see(self) -> None:
        count = self.chance.choice([1, 3, 20])
        found, rows = self.timed("see", "XREVRANGE", "s", "+", "-", "COUNT", count, wanted=count)
        found.ids = [number(row[0]) for row in rows][::-1]
        found.tokens = [row[1][1] for row in rows][::-1]

    def length(self) -> None:
        found, found.reply = self.timed("length", "XLEN", "s")

    def again(self) -> None:
        words = ["XREADGROUP", "GROUP", "g", self.who, "COUNT", 5, "STREAMS", "s", 0]
        found, reply = self.timed("again", *words)
        found.ids = [number(row[0]) for row in reply[0][1]]


def left(server: ServerProcess) -> tuple[list[tuple[int, bytes]], dict[int, bytes]]:
    """Return entries with their tokens, and pending ones with their owners."""
    with Wire(server.url) as wire:
        entries = [(number(row[0]), row[1][1]) for row in wire.ask("XRANGE", "s", "-", "+")]
        pending = {number(row[0]): row[1] for row in wire.ask("XPENDING", "s", "g", "-", "+", 10_000_000)}
    return entries, pending


def lived(folder: Path, operations: int, seed: int) -> list[Operation]:
    """Let clients work, kill the server, start it again; return the checked operations."""
    with millstream_server(folder) as server:
        with Wire(server.url) as wire:
            assert wire.ask("XGROUP", "CREATE", "s", "g", 0, "MKSTREAM") == b"OK"
        known: list[int] = []
        workers = [Worker(server, b"c%d" % at, f"{seed}/{at}", operations // CLIENTS, known) for at in range(CLIENTS)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
            if each.failure:
                raise each.failure
        server.kill()
        server.start()
        found = [one for each in workers for one in each.done]
        history = History(found)
        history.check()
        history.check_end(*left(server))
    return found


def test_what_clients_are_told_has_an_order(tmp_path: Path) -> None:
    """The replies to 10,000 operations of eight simultaneous clients fit one order of events."""
    found = lived(tmp_path, 10_000, int(os.environ.get("MILLSTREAM_SEED", "1")))
    history = History(found)
    assert all(history.of(kind) for kind in ("add", "take", "claim", "again", "ack", "release", "see", "length"))
    owners = [{one.who for one in grants} for grants in history.grants.values()]
    assert sum(len(each) > 1 for each in owners) > 20, "few entries changed hands"
    messages = {one.message: one.who for one in history.of("add") if one.message}
    assert any(one.who != messages[one.message] for one in history.of("add") if one.message)
    moments = sorted((one.begin, one.end) for one in found)
    assert sum(later[0] < earlier[1] for earlier, later in pairwise(moments)) > len(found) // 4


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_what_clients_are_told_has_an_order_for_long(tmp_path: Path) -> None:
    """The replies to a million operations of simultaneous clients fit one order of events."""
    campaign.run("history", lambda seed: lived(tmp_path / str(seed), 20_000, seed), range(2, 52))


def add(entry: int, begin: int, end: int, **more: Any) -> Operation:
    return Operation("add", b"a", begin, end, [entry], [b"t%d" % entry], **more)


def told(kind: str, begin: int, end: int, *ids: int, who: bytes = b"b", wanted: int = 9, reply: int = 1) -> Operation:
    tokens = [b"t%d" % one for one in ids]
    return Operation(kind, who, begin, end, list(ids), tokens, wanted, reply)


WHOLE = [
    add(1, 0, 10),
    add(2, 5, 15),
    add(3, 20, 30),
    told("see", 12, 18, 1, 2),
    told("length", 12, 18, reply=2),
    told("take", 31, 40, 1, 2, 3),
    told("claim", 30 * S, 31 * S, 1, who=b"c", wanted=20_000),
    told("release", 32 * S, 33 * S, 1, who=b"c"),
    told("claim", 33 * S, 34 * S, 1, who=b"d", wanted=20_000),
    told("again", 35 * S, 36 * S, 1, who=b"d"),
    told("ack", 37 * S, 38 * S, 1, who=b"d"),
    told("ack", 39 * S, 40 * S, 1, who=b"c", reply=0),
]
END = ([(1, b"t1"), (2, b"t2"), (3, b"t3")], {2: b"b", 3: b"b"})


def test_the_checker_passes_what_can_be() -> None:
    """The checker accepts a history with everything that may happen."""
    history = History(WHOLE)
    history.check()
    history.check_end(*END)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ([add(0, 31, 32)], "was made after"),
        ([add(3, 40, 41)], "one id given twice"),
        ([add(4, 40, 41, message=b"m"), add(5, 50, 51, message=b"m")], "one message added twice"),
        ([told("see", 31, 32, 1, 2)], "added before is not seen"),
        ([told("see", 31, 32, 1, 3)], "entries missing"),
        ([told("see", 2, 3, 1, 2, 3)], "seen before it was added"),
        ([Operation("see", b"b", 31, 32, [1, 2, 3], [b"t1", b"t2", b"x"], 9)], "other fields than given"),
        ([told("length", 31, 32, reply=2)], "entries, not"),
        ([told("length", 1, 2, reply=3)], "entries, not"),
        ([told("take", 50, 51, 3)], "new to two"),
        ([told("take", 50, 51, 3, 1)], "out of order"),
        ([add(4, 60, 61), told("take", 50, 51, 4)], "delivered before it was added"),
        ([add(4, 60, 61), told("claim", S, 2 * S, 4)], "never delivered"),
        ([add(4, 60, 61), told("take", 99, 100, 4), told("claim", 70, 71, 4)], "claimed before it was delivered"),
        ([add(4, 41, 42), told("take", 43, 44, wanted=1)], "left behind"),
        ([told("claim", S, 2 * S, 2, who=b"c", wanted=20_000)], "two owners at a time"),
        ([told("again", S, 2 * S, 2, who=b"c")], "another's entry"),
        ([told("ack", 41 * S, 42 * S, 1)], "acknowledged twice"),
        ([told("ack", 41 * S, 42 * S, 2, reply=0)], "not counted"),
        ([told("ack", 34 * S, 35 * S, 1, reply=0)], "not counted"),
        ([add(4, 60, 61), told("ack", 70, 71, 4)], "never delivered"),
        ([told("ack", 1, 2, 2)], "before it was delivered"),
        ([told("claim", 80 * S, 81 * S, 1, wanted=20_000)], "there again"),
        ([told("again", 80 * S, 81 * S, 1)], "there again"),
        ([told("release", 80 * S, 81 * S, 1)], "there again"),
    ],
)
def test_the_checker_finds_what_cannot_be(more: list[Operation], complaint: str) -> None:
    """The checker finds each rule broken by one operation."""
    with pytest.raises(AssertionError, match=complaint):
        History([*WHOLE, *more]).check()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda entries, pending: entries.pop(), "not what was added"),
        (lambda entries, pending: entries.append((4, b"t4")), "not what was added"),
        (lambda entries, pending: entries.__setitem__(0, (1, b"x")), "other fields"),
        (lambda entries, pending: pending.pop(2), "less acknowledged"),
        (lambda entries, pending: pending.update({1: b"d"}), "less acknowledged"),
        (lambda entries, pending: pending.update({2: b"c"}), "belongs to"),
    ],
)
def test_the_checker_finds_what_cannot_be_left(change: Callable[..., object], complaint: str) -> None:
    """The checker finds final data that does not follow from the replies."""
    entries, pending = list(END[0]), dict(END[1])
    change(entries, pending)
    with pytest.raises(AssertionError, match=complaint):
        History(WHOLE).check_end(entries, pending)
