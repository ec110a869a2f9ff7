"""A command that waits for cold entries answers as of one instant, whatever changes meanwhile."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from millstream import core
from millstream.persistence.disk import RealDisk
from node.test_spilling import expect_replay
from node.test_vacuum import expect_same
from support.coldness import IS_COLD
from support.inprocess import World
from support.parked import Forgetful, Pair, ParkingWorld, stepwise
from support.spilled import HOME, Later, small
from support.state import check

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)

KEYS = "stu"
STEPS = 500


@pytest.fixture(autouse=True)
def _tiered() -> Iterator[None]:
    yield
    Later.waiting.clear()


class Commands:
    """Random commands on a few streams that get the same ids again and again."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.last = dict.fromkeys(KEYS, 0)

    def id(self, key: str) -> str:
        return f"{self.random.randint(1, self.last[key] + 1)}-1"

    def range(self, key: str) -> list[str]:
        first = self.random.randint(1, self.last[key] + 1)
        low = self.random.choice(["-", f"{first}", f"({first}-1", f"{first}-1"])
        high = self.random.choice(["+", *[f"{first + self.random.randint(0, 60)}-1"] * 3])
        name, ends = self.random.choice([("XRANGE", [low, high]), ("XREVRANGE", [high, low])])
        count = ["COUNT", str(self.random.choice([1, 3, 10, 40]))] if self.random.random() < 0.4 else []
        return [name, key, *ends, *count]

    def add(self, key: str) -> list[list[str]]:
        found = []
        for _ in range(self.random.choice([1, 5, 40])):
            self.last[key] += 1
            trim = ["MAXLEN", "~", "60"] if self.random.random() < 0.02 else []
            value = "v" * self.random.choice([0, 3, 30, 300])
            found.append(["XADD", key, *trim, f"{self.last[key]}-1", "f", value + str(self.last[key])])
        return found

    def delete(self, key: str) -> list[str]:
        first, count = self.random.randint(1, self.last[key] + 1), self.random.choice([1, 2, 6, 20])
        step = self.random.choice([1, 1, 3])
        return [f"{first + step * at}-1" for at in range(count)]

    def some(self) -> list[list[str]]:
        """Return the next commands of one client."""
        random, key, other = self.random, self.random.choice(KEYS), self.random.choice(KEYS)
        group, consumer = random.choice("gh"), random.choice("ab")
        kind = random.random()
        if kind < 0.25:
            return [self.range(key)]
        if kind < 0.45:
            return self.add(key)
        if kind < 0.60:
            return [["XDEL", key, *self.delete(key)]]
        if kind < 0.62:
            if key != other:
                self.last[other] = self.last[key]
            return [random.choice([["COPY", key, other, "REPLACE"], ["RENAME", key, other]])]
        if kind < 0.63:
            self.last[key] = 0
            return [["DEL", key], *self.add(key)]
        if kind < 0.66:
            inner = [["XDEL", key, *self.delete(key)], self.range(other), ["XTRIM", key, "MINID", self.id(key)]]
            return [["MULTI"], *random.sample(inner, 2), ["EXEC"]]
        return [
            random.choice(
                [
                    *[["XTRIM", key, "MINID", *random.choice([["="], ["~"]]), self.id(key)]] * 2,
                    ["XTRIM", key, "MAXLEN", str(random.randint(1, 200))],
                    ["XGROUP", "CREATE", key, group, "0", "MKSTREAM"],
                    *[["XREADGROUP", "GROUP", group, consumer, "COUNT", "15", "STREAMS", key, ">"]] * 3,
                    ["XREADGROUP", "GROUP", group, consumer, "COUNT", "9", "STREAMS", key, self.id(key)],
                    ["XACK", key, group, *self.delete(key)],
                    ["XCLAIM", key, group, consumer, "0", *self.delete(key)],
                    ["XAUTOCLAIM", key, group, consumer, "0", self.id(key), "COUNT", "9"],
                    ["XACKDEL", key, group, "IDS", "1", self.id(key)],
                    ["XTRIM", key, "MINID", self.id(key), "ACKED"],
                    ["XREAD", "COUNT", "20", "STREAMS", key, other, self.id(key), self.id(other)],
                    ["XREAD", "COUNT", "20", "BLOCK", "0", "STREAMS", key, self.id(key)],
                    ["XINFO", "STREAM", key, "FULL", "COUNT", "3"],
                    ["XSETID", key, f"{self.last[key]}-1"],
                    ["XLEN", key],
                ]
            )
        ]


def at_random(cold: ParkingWorld, steps: int = STEPS) -> Pair:
    """Run random commands of several clients, while entries move to packs, between packs, and back."""
    random = cold.random
    hot = World(cold.config)
    hot.clock = cold.clock
    pair, commands = Pair(hot, cold), Commands(random)
    *clients, other = pair.connect(5)
    for _ in range(steps):
        free = [client for client in clients if not client.session.blocked]
        if free:
            client = random.choice(free)
            for words in commands.some():
                while client.session.blocked and client.session.id not in pair.waiting:
                    pair.cold.read()
                    pair.deliver()
                pair.send(client, words)
        for _ in range(random.randrange(4)):
            cold.spiller.turn(cold.clock.now())
            pair.deliver()
        if random.random() < 0.5:
            Later.run_all()
        if random.random() < 0.3:
            cold.read()
        pair.deliver()
        if random.random() < 0.05:
            cold.vacuum.ask()
        if random.random() < 0.1:
            cold.clock.advance(random.choice([20, 1000, 12_000]))
        if random.random() < 0.2:
            Forgetful.share = random.choice([0.0, 0.5, 1.0])
            if isinstance(cold.disk, RealDisk):
                cold.forget()
        if random.random() < 0.01:
            pair.send(other, ["SET", "k", "v"])
            cold.rewrite()
        if random.random() < 0.05:
            pair.expect_no_news()
    pair.settle()
    Forgetful.share, cold.node.cold.tickets = 1.0, None  # from here on the node reads by itself
    expect_same(cold, hot)
    check(cold.node)
    expect_replay(cold)
    return pair


@pytest.mark.parametrize("seed", range(4))
def test_random_commands_answer_as_of_one_instant(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply of a parked command is that of a node without packs at the instant of its last run."""
    random = Random(seed)
    small(monkeypatch, *random.choice([(200, 400, 1500), (1000, 2000, 8000), (4000, 8000, 8000)]))
    stepwise(monkeypatch, random)
    entries = random.choice(["3", "10", "100"])
    cold = ParkingWorld(random, {"stream-node-max-entries": entries}, directory=HOME)
    pair = at_random(cold)
    assert pair.parked
    assert cold.spiller.spilled


@pytest.mark.skipif(core.native is None, reason="only the native core's reader keeps tables and nodes")
@pytest.mark.parametrize("seed", range(4))
def test_random_commands_answer_as_of_one_instant_from_files(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with the native core's reader, and the page cache of the system where that can be emptied."""
    random = Random(seed)
    small(monkeypatch, *random.choice([(200, 400, 1500), (1000, 2000, 8000), (4000, 8000, 8000)]))
    stepwise(monkeypatch, random)
    config = {"stream-node-max-entries": random.choice(["3", "10", "100"]), "tier-cache": random.choice(["0", "8mb"])}
    cold = ParkingWorld(random, config, disk=RealDisk(), directory=tmp_path)
    at_random(cold)
    assert cold.spiller.spilled
    cold.close()


def test_a_transaction_that_skips_entries_reads_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its commands names a later place, but what lies between them is wanted by none."""
    random = Random(1)
    small(monkeypatch)
    stepwise(monkeypatch, random)
    cold = ParkingWorld(random, {"stream-node-max-entries": "3"}, directory=HOME)
    client = cold.client()
    for number in range(1, 400):
        client.call("XADD", "s", f"{number}-1", "f", "v" * 20)
    for _ in range(100):
        cold.spiller.turn(cold.clock.now())
        Later.run_all()
    Forgetful.share = 0.0
    client.call("MULTI")
    for number in range(1, 300, 20):
        client.call("XREAD", "COUNT", "1", "STREAMS", "s", f"{number}-1")
    client.send("EXEC")
    assert client.session.parked
    reader, read = cold.node.cold.packs.reader, list[int]()
    fetch = reader.fetch
    reader.fetch = lambda *place: (read.append(place[2]), fetch(*place))[1]
    while cold.read():
        pass
    whole = sum(size for _, stream in cold.streams() for _, size in stream.entries.pack_sizes())
    assert 0 < sum(read) < whole // 4
    Forgetful.share, cold.node.cold.tickets = 1.0, None
