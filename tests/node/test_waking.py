"""Waiting clients are served alike by plain runs and by the commands' handlers."""

import operator
import random
from typing import TYPE_CHECKING

import pytest

from support.inprocess import World
from support.state import check, snapshot

if TYPE_CHECKING:
    from support.inprocess import Client

SETUP = ("XADD s 1-1 f v", "XADD t 1-1 f v", "XGROUP CREATE s g $", "XGROUP CREATE t g $", "XGROUP CREATE s h 0-1")
STEPS = 120


class Work:
    """Random events around waiting clients.

    Args:
        seed: the random seed.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def change(self, readers: list[int]) -> list[str]:
        """Return a command of a client that does not wait."""
        key, group = self.random.choice("sst"), self.random.choice("ggh")
        someone, name = str(self.random.choice(readers)), self.random.choice("abc")
        return self.random.choice(
            [
                *[["XADD", key, "*", "f", "v"]] * 12,
                *[["MULTI"]] * 2,
                ["XREADGROUP", "GROUP", group, name, "COUNT", "1", "STREAMS", key, ">"],
                ["XGROUP", "DELCONSUMER", key, group, name],
                ["XGROUP", "SETID", key, group, self.random.choice(["0", "$"])],
                ["XGROUP", "DESTROY", key, group],
                *[["XGROUP", "CREATE", key, group, "$", "MKSTREAM"]] * 3,
                ["CLIENT", "UNBLOCK", someone, self.random.choice(["TIMEOUT", "ERROR"])],
                ["ACL", "SETUSER", "u", self.random.choice(["+@all", "-xread", "-xreadgroup", "allkeys", "resetkeys"])],
                ["CONFIG", "SET", "notify-keyspace-events", self.random.choice(["", "", "KEA"])],
                ["PEXPIRE", key, self.random.choice(["20", "100000"])],
                ["PERSIST", key],
                ["XTRIM", key, "MAXLEN", "0"],
                ["SET", key, "x"],
                ["DEL", key],
                ["COPY", key, "u", "REPLACE"],
                ["SWAPDB", "0", "1"],
                ["FLUSHALL"],
                ["EVAL", "redis.call('xadd', KEYS[1], '*', 'f', 'v') redis.call('del', KEYS[1])", "1", key],
                ["EVAL", "for i = 1, 3 do redis.pcall('xadd', KEYS[1], '*', 'f', 'v') end", "1", key],
                ["CONFIG", "RESETSTAT"],
            ]
        )

    def wait(self) -> list[str]:
        """Return a command that may wait."""
        block, count = self.random.choice([[], ["COUNT", "1"]]), ["BLOCK", self.random.choice(["0", "0", "30"])]
        keys = self.random.choice([["s"], ["s"], ["t"], ["s", "t"]])
        if self.random.random() < 0.4:
            after = [self.random.choice(["$", "$", "+", "9999999999999-0"]) for _ in keys]
            return ["XREAD", *block, *count, "STREAMS", *keys, *after]
        more = self.random.choice([[], [], [], [], ["NOACK"], ["CLAIM", "100"]])
        words = ["XREADGROUP", "GROUP", self.random.choice("ggh"), self.random.choice("abcd")]
        return [*words, *block, *count, *more, "STREAMS", *keys, *[">"] * len(keys)]


class Place:
    """A node with waiting clients, and everything visible of it.

    Args:
        watches: a client watches a key, so that no command runs as a plain one.
    """

    def __init__(self, *, watches: bool) -> None:
        self.world = World()
        self.busy, self.watcher = self.world.client(), self.world.client()
        for line in SETUP:
            self.busy.call(*line.split())
        self.busy.call("ACL", "SETUSER", "u", "on", "nopass", "+@all", "~*")
        self.readers = [self.world.client(resp=2 + number % 2) for number in range(8)]
        self.readers[3].call("AUTH", "u", "")
        words = [["WATCH", "nothing"], ["UNWATCH"]]
        for each in reversed(words) if watches else words:
            self.watcher.call(*each)

    def say(self, client: "Client", words: list[str]) -> object:
        """Run a command; return its reply, and the messages to other clients, in order."""
        world = self.world
        outcome = world.node.execute(client.session, [word.encode() for word in words], world.clock.now())
        return self.sent(), outcome and b"".join(outcome.buffers)

    def sent(self) -> list[tuple[int, bytes]]:
        """Return the replies to other clients, in order."""
        found = [(session.id, b"".join(outcome.buffers)) for session, outcome in self.world.node.outbox]
        self.world.deliver()
        return found

    def pass_time(self, milliseconds: int) -> object:
        """Return the replies to each client after some time passed; those with the same deadline have no order."""
        self.world.clock.advance(milliseconds)
        self.world.node.tick(self.world.clock.now())
        return sorted(self.sent(), key=operator.itemgetter(0))

    def facts(self) -> object:
        """Return everything else that is visible."""
        node = self.world.node
        node.stats.collect()
        counts = {name: (each.calls, each.failed, each.rejected) for name, each in node.stats.commands.items()}
        calls = {name: each for name, each in counts.items() if any(each)}
        waiting = [(waiter.session.id, waiter.places, waiter.deadline) for waiter in node.waits.by_session.values()]
        lines = {place: [each.session.id for each in line] for place, line in node.waits.lines.by_place.items()}
        counted = (node.stats.processed, node.stats.dirty, node.stats.lookups, node.stats.errors)
        return snapshot(node), calls, counted, waiting, lines, [reader.session.last_command for reader in self.readers]


@pytest.mark.parametrize("seed", range(30))
def test_waiting_commands_are_served_alike_either_way(seed: int) -> None:
    """Waiting commands have the same replies, order, queues, counters and log in plain runs and by handlers."""
    work = Work(seed)
    places = [Place(watches=False), Place(watches=True)]
    for step in range(STEPS):
        for number, reader in enumerate(places[0].readers):
            if not reader.waits and work.random.random() < 0.7:
                words = work.wait()
                told = [place.say(place.readers[number], words) for place in places]
                assert told[0] == told[1], (step, words)
        words = work.change([reader.session.id for reader in places[0].readers])
        if places[0].busy.session.queue is not None and work.random.random() < 0.4:
            words = ["EXEC"]
        told = [place.say(place.busy, words) for place in places]
        assert told[0] == told[1], (step, words)
        if work.random.random() < 0.3:
            by = work.random.choice([1, 31, 101])
            passed = [place.pass_time(by) for place in places]
            assert passed[0] == passed[1], step
        assert places[0].facts() == places[1].facts(), (step, words)
    for place in places:
        check(place.world.node)
        assert snapshot(place.world.recovered()) == snapshot(place.world.node)


def test_what_a_group_notes_while_one_is_served_is_one_record() -> None:
    """With any number of waiting clients, an added entry is one record and its delivery another.

    A third record has the seen times of all others.
    """
    world = World()
    busy = world.client()
    for line in SETUP:
        busy.call(*line.split())
    readers = [world.client() for _ in range(50)]
    for number, reader in enumerate(readers):
        reader.send("XREADGROUP", "GROUP", "g", f"c{number}", "BLOCK", "0", "STREAMS", "s", ">")
    world.clock.advance(5)
    before = len(world.log.payloads)
    busy.call("XADD", "s", "*", "f", "v")
    assert [len(reader.inbox) for reader in readers] == [1] + [0] * 49
    assert len(world.log.payloads) - before == 3
    assert snapshot(world.recovered()) == snapshot(world.node)
