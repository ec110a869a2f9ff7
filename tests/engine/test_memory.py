"""The count of memory against a sum over all values, with the core at hand."""

import gc
from collections.abc import Callable

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

# {k} and {l} are keys, {w} and {v} words, {n} is a small number, {i} the id of an entry that may be there
COMMANDS = (
    *("XADD {k} * f {w}", "XADD {k} * f {w}", "XADD {k} * f {w}", "XADD {k} * {w} v {v} v", "XADD {k} {i} f v"),
    *("XADD {k} IDMP p{n} m{v} * f v", "XADD {k} IDMPAUTO p{n} * f v", "XCFGSET {k} IDMP-MAXSIZE {n}"),
    *(
        "XDEL {k} {i} {i}",
        "XTRIM {k} MAXLEN {n}",
        "XTRIM {k} MINID {i}",
        "XSETID {k} {i}",
        "XDELEX {k} ACKED IDS 1 {i}",
    ),
    *("XGROUP CREATE {k} g{n} 0 MKSTREAM", "XGROUP CREATE {k} {w} $", "XGROUP DESTROY {k} g{n}"),
    *("XGROUP CREATECONSUMER {k} g{n} {w}", "XGROUP DELCONSUMER {k} g{n} {w}", "XGROUP SETID {k} g{n} 0"),
    *("XREADGROUP GROUP g{n} {w} COUNT 3 STREAMS {k} >", "XREADGROUP GROUP g{n} {w} STREAMS {k} 0"),
    *("XACK {k} g{n} {i} {i}", "XNACK {k} g{n} FAIL IDS 1 {i}", "XACKDEL {k} g{n} DELREF IDS 1 {i}"),
    *("XCLAIM {k} g{n} {w} 0 {i} FORCE", "XAUTOCLAIM {k} g{n} {w} 0 0 COUNT 2"),
    *("SET {k} {w}", "SET {k} {w} PX 100", "APPEND {k} {w}", "SETRANGE {k} {n} {w}", "GETDEL {k}", "INCR {k}"),
    *("HSET {k} {w} {v} {v} {w}", "HDEL {k} {w}", "ZADD {k} {n} {w} 1 {v}", "ZREM {k} {w}", "ZPOPMIN {k} {n}"),
    *("ZADD {k} " + " ".join(f"{n} m{n}" for n in range(140)), "ZREMRANGEBYRANK {k} {n} -3"),
    *("RPUSH {k} {w} {v}", "LPOP {k} {n}", "LSET {k} 0 {w}", "LREM {k} {n} {w}", "LTRIM {k} {n} 9"),
    *("LINSERT {k} AFTER {w} {v}", "SADD {k} {w} {v} {n}", "SREM {k} {w}", "SUNIONSTORE {k} {l} {k}"),
    *("DEL {k}", "RENAME {k} {l}", "COPY {k} {l} REPLACE", "COPY {k} {k} DB {n} REPLACE", "MOVE {k} {n}"),
    *("SWAPDB 0 {n}", "SELECT {n}", "FLUSHDB", "PEXPIRE {k} 50", "PERSIST {k}", "BITOP NOT {k} {l}"),
    *("MULTI", "EXEC", "EVAL SCRIPT 1 {k} {w}", "EVAL SWAPS 1 {k} {w}"),
)
SCRIPTS = {
    "SCRIPT": "redis.pcall('SET', KEYS[1], ARGV[1]) redis.pcall('XADD', KEYS[1], '*', 'f', 'v')",
    "SWAPS": "redis.pcall('SET', KEYS[1], ARGV[1]) redis.call('SWAPDB', 0, 1) redis.pcall('SET', KEYS[1], 'b')",
}
WORDS = ("v", "x" * 70, "y" * 700, "12345678", "")

keys = st.sampled_from(("s", "s", "t", "h"))
words = st.sampled_from(WORDS)
numbers = st.sampled_from((0, 0, 1, 1, 2))
commands = st.lists(
    st.tuples(st.sampled_from(COMMANDS), keys, keys, words, words, numbers, st.integers(1, 9)), min_size=1, max_size=20
)


def in_streams(space: Keyspace) -> int:
    """Add up the bytes of all entries, groups and records again."""
    streams = [value for db in space.databases for value in db.keys.values() if isinstance(value, Stream)]
    return sum(one.entries.footprint + sum(group.footprint for group in one.groups.values()) for one in streams)


def of_value(value: Value) -> int:
    """Add up the bytes of a value from its elements."""
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
    """A node that is sent random commands, together and one by one."""

    @initialize(entries=st.sampled_from([2, 4, 100]))
    def begin(self, entries: int) -> None:
        self.before = stream_memory()
        self.world = World({"stream-node-max-entries": str(entries)})
        self.session = self.world.node.sessions.open(self.world.clock.now())

    @rule(sent=commands)
    def send(self, sent: list[tuple[str, str, str, str, str, int, int]]) -> None:
        """Run what came at once as a connection does: plain commands in the native core, others one by one."""
        reader, world = CommandReader(), self.world
        for text, key, other, word, more, number, at in sent:
            entry = f"{world.clock.now().wall}-{at}"
            given = {"{k}": key, "{l}": other, "{w}": word, "{v}": more, "{n}": str(number), "{i}": entry}
            argv = [given.get(part, SCRIPTS.get(part, part)) for part in text.split(" ")]
            reader.feed(pack(*(part.replace("{n}", str(number)).replace("{v}", more) for part in argv)))
        for _ in answered(world.node, self.session, reader, world.clock.now()):
            pass
        self.expect_exact()

    @rule(ms=st.sampled_from((1, 60, 2000)))
    def wait(self, ms: int) -> None:
        """Keys expire, messages are forgotten."""
        self.world.advance(ms)
        self.expect_exact()

    def expect_exact(self) -> None:
        """Fail if a count differs from the sum."""
        space = self.world.node.keyspace
        assert stream_memory() - self.before == in_streams(space)
        expect_exact(space)

    def teardown(self) -> None:
        """A replayed log, a snapshot and dumps have the same count; a deletion takes its bytes off at once."""
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
    """The memory that is counted is exact after any commands, and falls with each deletion at once."""
    gc.collect()  # nodes of other tests, whose streams would be taken off in between
    run_state_machine_as_test(Counted, settings=settings(max_examples=60, stateful_step_count=12, deadline=None))
