"""Random commands around waiting clients: no client waits for an entry that is there, in any database."""

import random
from typing import TYPE_CHECKING

import pytest

from millstream.replies import Error
from support.inprocess import Client, World
from support.state import check, snapshot

if TYPE_CHECKING:
    from millstream.node.clients.blocking import Waiter
    from millstream.node.node import Node

KEYS = ["s", "t", "u"]
STEPS = 90
WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class Writer:
    """Commands of one client that does not wait: adding, moving, deleting, transactions, scripts, other databases."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.newest = 0

    def key(self) -> str:
        return self.rng.choice(KEYS)

    def group(self) -> str:
        return self.rng.choice("gh")

    def add(self) -> list[str]:
        self.newest += self.rng.randint(0, 1)
        trim = self.rng.choice([[], [], [], ["MAXLEN", "0"], ["MAXLEN", "2"]])
        return ["XADD", self.key(), *trim, f"{self.newest}-*", "f", "v"]

    def command(self) -> list[str]:
        """Return the next command; one in three adds an entry."""
        key, other, entry = self.key(), self.key(), f"{self.newest}-0"
        return self.rng.choice(
            [
                *[self.add()] * 15,
                *[["XGROUP", "CREATE", key, self.group(), self.rng.choice(["0", "$"]), "MKSTREAM"]] * 5,
                *[["MULTI"]] * 2,
                ["XGROUP", "DESTROY", key, self.group()],
                ["XREADGROUP", "GROUP", self.group(), "w", "STREAMS", key, ">"],
                ["XNACK", key, self.group(), "FAIL", "IDS", "1", entry],
                ["XCLAIM", key, self.group(), "w", "0", entry, "IDLE", "70"],
                ["XACKDEL", key, self.group(), "IDS", "1", entry],
                ["XDEL", key, entry],
                ["DEL", key],
                ["SET", key, "x"],
                ["RENAME", key, other],
                ["COPY", key, other, "REPLACE"],
                ["COPY", key, other, "DB", "1", "REPLACE"],
                ["MOVE", key, "1"],
                ["SWAPDB", "0", "1"],
                ["SELECT", self.rng.choice("01")],
                ["PEXPIRE", key, "30"],
                ["FLUSHDB"],
                ["DEBUG", "RELOAD"],
                ["EVAL", "redis.call('xadd', KEYS[1], '*', 'f', 'v') return redis.call('del', KEYS[1])", "1", key],
                ["EVAL", "for i = 1, 3 do redis.pcall('xadd', KEYS[1], ARGV[1], 'f', 'v') end", "1", key, "*"],
                *[[self.rng.choice(["LPUSH", "RPUSH"]), key, *"abc"[: self.rng.randint(1, 3)]]] * 4,
                *[["ZADD", key, "1", "a", "2", self.rng.choice("bc")]] * 4,
                ["LMOVE", key, other, "LEFT", "RIGHT"],
                ["ZUNIONSTORE", key, "1", other],
                ["SORT", key, "ALPHA", "STORE", other],
                ["EVAL", "redis.call('rpush', KEYS[1], 'x', 'y') return redis.call('lpop', KEYS[1])", "1", key],
            ]
        )

    def waiting(self) -> list[str]:
        """Return a command that may have to wait."""
        keys = self.rng.sample(KEYS, self.rng.randint(1, 3))
        if self.rng.random() < 0.3:
            return self.rng.choice(
                [
                    ["BLPOP", *keys, "0"],
                    ["BLMOVE", self.key(), self.key(), "RIGHT", "LEFT", "0"],
                    ["BLMPOP", "0", str(len(keys)), *keys, "LEFT", "COUNT", "2"],
                    ["BZPOPMIN", *keys, "0"],
                    ["BZMPOP", "0", str(len(keys)), *keys, "MAX"],
                ]
            )
        if self.rng.random() < 0.4:
            after = [self.rng.choice(["$", "0", "+", f"{self.newest}-0"]) for _ in keys]
            return ["XREAD", "COUNT", "2", "BLOCK", "0", "STREAMS", *keys, *after]
        options = self.rng.choice([[], [], ["NOACK"], ["CLAIM", "100"]])
        words = ["XREADGROUP", "GROUP", self.group(), self.rng.choice("abc"), "COUNT", "2", "BLOCK", "0", *options]
        return [*words, "STREAMS", *keys, *[">"] * len(keys)]


def looked_at_now(world: World, twin: "Node", waiter: "Waiter") -> object:
    """Return the reply of a waiting command if it began now, on a node rebuilt from the log."""
    session = twin.sessions.open(world.clock.now())
    session.db = waiter.places[0][0]
    for words in ([b"MULTI"], waiter.argv, [b"EXEC"]):  # where nobody waits
        outcome = twin.execute(session, words, world.clock.now())
    assert outcome is not None
    (found,) = Client.open(world.client(), outcome)  # type: ignore[misc] # replies are untyped
    return found


@pytest.mark.parametrize("seed", range(25))
def test_nobody_waits_for_what_is_there(seed: int) -> None:
    """After each command, every waiting client would still find nothing, and no error, if it began to read now."""
    world = World({"enable-debug-command": "yes"})
    writer = Writer(seed)
    busy = world.client()
    readers = [world.client(resp=2 + number % 2) for number in range(4)]
    served = 0
    for step in range(STEPS):
        for reader in readers:
            if not reader.waits and writer.rng.random() < 0.5:
                reader.call("SELECT", writer.rng.choice("001"))
                reader.send(*writer.waiting())
        in_transaction = busy.session.queue is not None
        busy.call(*(["EXEC"] if in_transaction and writer.rng.random() < 0.4 else writer.command()))
        if writer.rng.random() < 0.3:
            world.advance(writer.rng.choice([1, 101, 250]))
            world.advance(101)  # a key whose time has come is deleted within a round of the cron
        served += sum(len(reader.inbox) for reader in readers)
        for reader in readers:
            reader.inbox.clear()
        if busy.session.queue is None:
            waiters = list(world.node.waits.by_session.values())
            told = [(waiter.argv, looked_at_now(world, world.recovered(), waiter)) for waiter in waiters]
            assert all(found is None or is_no_news(argv, found) for argv, found in told), (step, told)
    assert served
    check(world.node)
    assert snapshot(world.recovered()) == snapshot(world.node)


def is_no_news(argv: list[bytes], found: object) -> bool:
    """Return True if this result wakes no client: only XREADGROUP is woken by another type at its key."""
    return argv[0] != b"XREADGROUP" and found == Error(WRONGTYPE)
