"""The counted memory against the sum over all values, in either core."""

import gc
from collections.abc import Callable
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from millstream.engine.collections import Collection, HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.keyspace import Keyspace, StringValue, Value
from millstream.engine.streams.memory import stream_memory
from millstream.engine.streams.stream import Stream
from millstream.node.log.rebuilding import from_dumps, from_log
from millstream.node.log.snapshot import payloads
from millstream.protocol.reader import CommandReader
from support.inprocess import World
from support.plain import answered
from support.wire import pack

# {s}, {h}, {z}, {l}, {e} and {k} are keys of one type mostly, {a} and {b} any; {w} and {v} words, {n} a small number,
# {i} the id of an entry that may be there
STREAMS = (
    *["XADD {s} * f {w}"] * 8,
    *("XADD {s} * {w} v {v} v", "XADD {s} {i} f v", "XADD {s} IDMP p{n} m{v} * f v", "XADD {s} IDMPAUTO p{n} * f v"),
    *["XDEL {s} {i} {i} {i} {i}", "XSETID {s} {i}"] * 4,
    *("XTRIM {s} MAXLEN 3", "XTRIM {s} MINID {i}"),
    *("XDELEX {s} ACKED IDS 1 {i}", "XCFGSET {s} IDMP-MAXSIZE 2"),
    *("XGROUP CREATE {s} g{n} 0 MKSTREAM", "XGROUP CREATE {s} {w} $", "XGROUP DESTROY {s} g{n}"),
    *("XGROUP CREATECONSUMER {s} g{n} {w}", "XGROUP DELCONSUMER {s} g{n} {w}", "XGROUP SETID {s} g{n} 0"),
    *["XREADGROUP GROUP g{n} {w} COUNT 3 STREAMS {s} >", "XACK {s} g{n} {i} {i}"] * 3,
    *("XREADGROUP GROUP g{n} {w} STREAMS {s} 0", "XNACK {s} g{n} FAIL IDS 1 {i}", "XACKDEL {s} g{n} DELREF IDS 1 {i}"),
    *("XCLAIM {s} g{n} {w} 0 {i} FORCE", "XAUTOCLAIM {s} g{n} {w} 0 0 COUNT 2"),
)
OTHERS = (
    *("SET {k} {w}", "SET {k} {w} PX 100", "APPEND {k} {w}", "SETRANGE {k} {n} {w}", "GETDEL {k}", "SET {k} {w}"),
    *("HSET {h} {w} {v} {v} {w}", "HSET {h} {w} {v}", "HDEL {h} {w}", "RPUSH {l} {w} {v}", "LPOP {l} {n}"),
    *("ZADD {z} {n} {w} 1 {v}", "ZREM {z} {w}", "ZPOPMIN {z} {n}", "ZREMRANGEBYRANK {z} {n} -3"),
    "ZADD {z} " + " ".join(f"{n} m{n}" for n in range(140)),
    *("LSET {l} 0 {w}", "LREM {l} {n} {w}", "LTRIM {l} {n} 9", "LINSERT {l} AFTER {w} {v}", "RPUSH {l} {w}"),
    *("SADD {e} {w} {v} {n}", "SREM {e} {w}", "SUNIONSTORE {e} {b} {e}", "BITOP NOT {k} {b}"),
)
KEYS = (
    *("DEL {a}", "RENAME {a} {b}", "COPY {a} {b} REPLACE", "COPY {a} {a} DB {n} REPLACE", "MOVE {a} {n}"),
    *("SWAPDB 0 {n}", "SELECT {n}", "FLUSHDB", "PEXPIRE {a} 50", "PERSIST {a}", "SET {a} {w}", "MULTI", "EXEC"),
    *("EVAL SCRIPT 1 {a} {w}", "EVAL SWAPS 1 {a} {w}"),
)
SCRIPTS = {
    "SCRIPT": "redis.pcall('SET', KEYS[1], ARGV[1]) redis.pcall('XADD', KEYS[1], '*', 'f', 'v')",
    "SWAPS": "redis.pcall('SET', KEYS[1], ARGV[1]) redis.call('SWAPDB', 0, 1) redis.pcall('SET', KEYS[1], 'b')",
}
WORDS = ("v", "w", "x" * 70, "y" * 700, "12345678", "")


def written(random: Random, wall: int) -> list[str]:
    """Return a random command."""
    line = random.choice(random.choices((STREAMS, OTHERS, KEYS), (60, 30, 4))[0])
    given = {each: each if random.random() < 0.97 else random.choice("shzlek") for each in "shzlek"}
    given |= {"a": random.choice("shzlek"), "b": random.choice("shzlek"), "n": str(random.choice((0, 0, 0, 1, 2)))}
    given |= {"w": random.choice(WORDS), "v": random.choice(WORDS)}
    words = []
    for word in line.split(" "):
        given["i"] = f"{wall}-{random.randint(0, 40)}"
        words.append(SCRIPTS.get(word) or word.format_map(given))
    return words


def in_streams(space: Keyspace) -> int:
    """Return the bytes of all entries, groups and records, summed anew."""
    streams = [value for db in space.databases for value in db.keys.values() if isinstance(value, Stream)]
    for one in streams:
        assert one.entries.taken == sum(node.footprint for node in one.entries.nodes())
    return sum(one.entries.footprint + sum(group.footprint for group in one.groups.values()) for one in streams)


def of_value(value: Value) -> int:
    """Return the bytes of a value, summed over its elements."""
    if isinstance(value, Stream):
        messages = [len(m) + 180 for of in value.idempotence.producers.values() for m in of]
        producers = [len(producer) + 350 for producer in value.idempotence.producers]
        return 700 + sum(len(name) + 100 for name in value.groups) + sum(messages) + sum(producers)
    if isinstance(value, StringValue):
        return 90 + len(value.data)
    assert isinstance(value, Collection)
    match value:
        case HashValue():
            return sum(len(field) + len(text) + 100 for field, text in value.fields.items())
        case ZSetValue():
            return sum(len(member) + 150 for member in value.scores)
        case ListValue():
            return sum(len(item) + 40 for item in value.between(0, len(value)))
        case SetValue():
            return sum(len(member) + 80 for member in value)
    raise TypeError(value)


def expect_exact(space: Keyspace) -> None:
    """Fail if the count of a database differs from the sum over its keys."""
    for db in space.databases:
        assert db.used == sum(len(key) + of_value(value) for key, value in db.keys.items()), db.keys


class Counted(RuleBasedStateMachine):
    """A node that gets random commands, together and one by one."""

    @initialize(entries=st.sampled_from([2, 4, 100]))
    def begin(self, entries: int) -> None:
        self.before = stream_memory()
        self.world = World({"stream-node-max-entries": str(entries)})
        self.session = self.world.node.sessions.open(self.world.clock.now())

    @rule(seed=st.integers(0, 2**32), count=st.sampled_from((1, 5, 40, 80)))
    def send(self, seed: int, count: int) -> None:
        """Run commands that arrived together as a connection does: plain ones in the native core, others one by one."""
        reader, world, random = CommandReader(), self.world, Random(seed)
        for _ in range(count):
            reader.feed(pack(*written(random, world.clock.now().wall)))
        for _ in answered(world.node, self.session, reader, world.clock.now()):
            pass
        self.expect_exact()

    @rule(ms=st.sampled_from((0, 60, 2000, 200_000)))
    def wait(self, ms: int) -> None:
        """Advance the clock, so that keys expire and messages are dropped."""
        self.world.advance(ms)
        self.expect_exact()

    def expect_exact(self) -> None:
        """Fail if a count differs from the sum."""
        space = self.world.node.keyspace
        assert stream_memory() - self.before == in_streams(space)
        expect_exact(space)

    def teardown(self) -> None:
        """Check that a replayed log, a snapshot and dumps have the same count, and that deletions lower it."""
        if not hasattr(self, "world"):
            return
        node = self.world.node
        makers: list[Callable[[], Keyspace]] = [
            lambda: from_log(self.world.log.replay()),
            lambda: from_log(payloads(node.keyspace, 1)),
            lambda: from_dumps(node.keyspace),
        ]
        for make in makers:
            made = make()
            expect_exact(made)
            assert [db.used for db in made.databases] == [db.used for db in node.keyspace.databases]
            assert stream_memory() - self.before == in_streams(node.keyspace) + in_streams(made)
            del made
        node.execute(self.session, [b"DISCARD"], self.world.clock.now())
        node.execute(self.session, [b"FLUSHALL"], self.world.clock.now())
        assert all(db.footprint == 0 for db in node.keyspace.databases)
        assert stream_memory() == self.before


def test_the_count_is_what_is_added_up_again() -> None:
    """The counted memory is exact after any commands, and each deletion lowers it at once."""
    gc.collect()  # nodes of other tests, whose streams would be taken off in between
    run_state_machine_as_test(Counted, settings=settings(max_examples=100, stateful_step_count=12, deadline=None))
