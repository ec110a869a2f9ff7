"""Plain commands that run together have the replies, changes, log and counters of the same commands one by one."""

import itertools
import random
import signal
import sys
from collections.abc import Iterator

import pytest

from millstream import core
from millstream.commands.context.config import Config
from millstream.commands.table.table import TABLE
from millstream.engine.streams.stream import Stream
from millstream.errors import ProtocolError
from millstream.node.log import codec
from millstream.node.plain import NAMES, PlainRun
from millstream.protocol import limits
from millstream.protocol.reader import CommandReader
from support import campaign, needs
from support.coldness import hot_log
from support.inprocess import Client, World
from support.plain import REPLY_MAX, RUN_MAX, answered, needs_runner
from support.state import check, snapshot
from support.wire import pack

KEYS = [b"s", b"s", b"s", b"t", b"str", b"str", b"list", b"missing", b"brief", b""]
WORDS = [b"a", b"value", b"12", b"-7", b"", b"x" * 70, b"\r\n", b"\xff\x00", b"300"]
IDS = [
    b"-",
    b"+",
    b"0",
    b"0-0",
    b"5",
    b"1700000000000",
    b"1700000000001-0",
    b"1700000000003-2",
    b"(5",
    b"(1700000000001-0",
    b"(18446744073709551615-18446744073709551615",
    b"(0-0",
    b"(",
    b"(-",
    b"05",
    b"$",
    b"5-",
]
IDS += [
    b"18446744073709551615",
    b"18446744073709551615-18446744073709551615",
    b"999999999999999999",
    b"x",
    b"5-*",
    b"*",
]
COUNTS = [b"1", b"2", b"10", b"0", b"-1", b"01", b"x", b"100000", b"4294967296", b"999999999999999999999"]
IDLES = [b"0", b"0", b"1", b"3", b"1700000000002", b"-1", b"9223372036854775807", b"9223372036854775808", b"01", b"x"]

RIGHTS = [
    *("+@all ~*", "+@stream +@connection ~s ~t", "+xadd +xlen +xack +multi +exec ~s", "%R~s %W~t +@all"),
    *("+@all -xadd ~*", "+xadd ~s (+@read ~*) (+xack ~s*)", "+xread|count +xadd|t +xreadgroup|group ~*", "~*"),
    *("+@read +@write -xclaim -@dangerous %RW~s %R~t* &*", "+xreadgroup +xread|streams +xautoclaim +xpending ~s"),
]
READ = "XREADGROUP GROUP g c STREAMS s >"
GROUP = ("XGROUP CREATE s g 1-1 MKSTREAM ENTRIESREAD 1", "XGROUP CREATECONSUMER s g c", "XGROUP CREATECONSUMER s g d")


class Lines:
    """Random commands, mostly plain, from one seed; every third sequence has only commands on groups."""

    def __init__(self, seed: int, words: list[bytes] = WORDS) -> None:
        self.random = random.Random(seed)
        self.words = words
        self.of_group = seed % 3 == 0

    def one(self) -> list[bytes]:
        """Return the next command."""
        return self.group_command() if self.of_group else self.any_command()

    def some(self, count: int) -> list[list[bytes]]:
        """Return commands, some in transactions, which may be refused, malformed or discarded."""
        found: list[list[bytes]] = []
        while len(found) < count:
            inside = [self.one() for _ in range(self.random.choice([1, 2, 5, 20]))]
            begun = [[b"WATCH", self.random.choice(KEYS)], *inside[:1]] if self.random.random() < 0.3 else []
            if self.random.random() < 0.2:
                inside.insert(0, self.random.choice([[b"XADD", b"s", b"*", b"f"], [b"SET", b"k"], [b"HINCRBY", b"s"]]))
            inside += [[b"HSET", b"h", b"f", b"v"]] if self.random.random() < 0.3 else []
            end = self.random.choices([[b"EXEC"], [b"DISCARD"], [b"XLEN", b"s"]], [9, 1, 1])[0]
            found += [*begun, [b"MULTI"], *inside, end]
        return found

    def group_command(self) -> list[bytes]:
        """Return a command on an existing group, which mostly finds entries."""
        pick, who = self.random.choice, self.random.choice([b"c", b"d"])
        some = [
            b"%d-%d" % (1_700_000_000_000 + self.random.randrange(pick([1, 5])), self.random.randrange(pick([2, 20])))
            for _ in range(pick([1, 3, 9]))
        ]
        made = [
            [b"XADD", b"s", *(self.cap() if self.random.random() < 0.2 else []), b"*", b"f", pick(self.words)],
            [b"XREADGROUP", b"GROUP", b"g", who, b"COUNT", pick([b"1", b"4"]), b"STREAMS", b"s", b">"],
            [b"XACK", b"s", b"g", *some],
            self.claim(b"s", b"g", who, some),
            self.autoclaim(b"s", b"g", who),
            self.pending(b"s", b"g", who),
            [b"XDEL", b"s", some[0]],
        ]
        return self.random.choices(made, [9, 9, 3, 5, 5, 5, 1])[0]

    def any_command(self) -> list[bytes]:
        """Return any command."""
        pick = self.random.choice
        key = pick(KEYS)
        fields = [pick(self.words) for _ in range(self.random.choice([2, 2, 4, 6, 6, 6, 3, 40]))]
        count = [pick([b"COUNT", b"count", b"COUN"]), pick(COUNTS)] if self.random.random() < 0.4 else []
        read = [*count, *([b"BLOCK", b"0" if key != b"s" else pick(COUNTS)] if self.random.random() < 0.1 else [])]
        name, who = pick([b"g", b"g", b"h"]), pick([b"c", b"c", b"d"])
        options = [*read, *([b"NOACK"] if self.random.random() < 0.1 else [])]
        some = [
            b"%d-%d" % (1_700_000_000_000 + self.random.randrange(pick([3, 9, 60])), self.random.randrange(5))
            for _ in fields
        ]
        made: list[list[bytes]] = [
            [b"XREADGROUP", b"GROUP", name, who, *options, b"STREAMS", pick([key, b"s", b"t"]), b">"],
            [b"XACK", pick([b"s", b"t"]), name, *some[:9], *[pick(IDS)] * (self.random.random() < 0.2)],
            [b"XREADGROUP", b"group", name, who, b"COUNT", b"2", b"STREAMS", b"s", pick([b"0", b">", b"$", b"5"])],
            [b"XGROUP", b"CREATE", pick([b"s", b"t"]), name, pick([b"0", b"$"])],
            [b"XGROUP", b"SETID", pick([b"s", b"t"]), name, b"0"],
            [b"XGROUP", b"CREATECONSUMER", pick([b"s", b"t"]), name, who],
            self.claim(pick([b"s", b"t"]), name, who, some),
            self.autoclaim(pick([b"s", b"t"]), name, who),
            self.pending(pick([b"s", b"t"]), name, who),
            [b"XADD", key, b"*", *fields],
            [b"xadd", pick([b"s", b"t"]), b"*", b"n", b"1", b"m", b"2"],
            [b"XADD", key, pick(IDS), *fields],
            [b"XADD", key, *self.cap(), pick([b"*", b"*", pick(IDS)]), b"a", b"b"],
            [b"GET", key],
            [b"Set", key, pick(self.words)] if self.random.random() < 0.3 else [b"SET", b"str", pick(self.words)],
            [b"SET", key, b"v", b"EX", b"1"],
            [b"PING"] if self.random.random() < 0.5 else [b"ping", b"hello"],
            [b"XLEN", key],
            [b"XRANGE", key, pick(IDS), pick(IDS), *count],
            [b"XREVRANGE", key, pick(IDS), pick(IDS), *count],
            [b"XREAD", *read, b"STREAMS", key, pick(IDS)],
            [b"XDEL", key, b"1700000000000-0"],
            [b"DEL", key],
            [b"PEXPIRE", pick([b"brief", b"t", b"str"]), b"3"],
            [b"RPUSH", b"list", b"x"],
            [b"XTRIM", b"s", b"MAXLEN", b"9"],
            [b"APPEND", b"str", b"y"],
            [b"NOSUCH", key],
            [b"MULTI"],
            [b"EXEC"],
            [b"WATCH", key],
            [b"CONFIG", b"SET", b"notify-keyspace-events", pick([b"KA", b"", b""])],
            [b"CLIENT", b"REPLY", b"SKIP"],
            [b"HELLO", pick([b"2", b"3"])],
            [b"SELECT", pick([b"0", b"0", b"1"])],
        ]
        weights = [9, 9, 3, 2, 1, 1, 6, 6, 6, 9, 9, 2, 5, 5, 5, 1, 4, 3, 5, 5, 5, *[1] * (len(made) - 21)]
        return self.random.choices(made, weights)[0]

    def cap(self) -> list[bytes]:
        """Return XADD's option MAXLEN or MINID, mostly in a usual form."""
        pick = self.random.choice
        sign = pick([[], [b"~"], [b"="], [b"~"], [pick([b"!", b""])] if self.random.random() < 0.1 else []])
        number = pick([b"5", b"1", b"0", b"30", pick(COUNTS)])
        some = b"%d-%d" % (1_700_000_000_000 + self.random.randrange(9), self.random.randrange(9))
        cap = pick([[b"MAXLEN", *sign, number], [b"maxlen", *sign, number], [b"MINID", *sign, pick([some, pick(IDS)])]])
        return [*cap, *([b"LIMIT", b"2"] if self.random.random() < 0.1 else [])]

    def claim(self, key: bytes, name: bytes, who: bytes, some: list[bytes]) -> list[bytes]:
        """Return XCLAIM, mostly with ascending ids, with any options.

        Args:
            key: the stream's.
            name: the group's.
            who: the consumer's.
            some: ids.
        """
        pick, chance = self.random.choice, self.random.random()
        wanted = some[: self.random.randrange(1, 9)]
        wanted = sorted(set(wanted)) if chance < 0.8 else [*wanted, pick(IDS)]
        options = [word for _ in range(pick([0, 0, 1, 2])) for word in pick(self.options())]
        return [b"XCLAIM", key, name, who, pick(IDLES), *wanted, *options]

    def options(self) -> list[list[bytes]]:
        """Return XCLAIM's options, one with each argument."""
        pick = self.random.choice
        return [
            *([b"JUSTID"], [b"justid"], [b"FORCE"], [b"IDLE", pick(IDLES)], [b"TIME", pick(IDLES)], [b"RETRYCOUNT"]),
            *([b"RETRYCOUNT", pick(COUNTS)], [b"Retrycount", b"9223372036854775807"], [b"LASTID", pick(IDS)], [b"5"]),
        ]

    def autoclaim(self, key: bytes, name: bytes, who: bytes) -> list[bytes]:
        """Return XAUTOCLAIM from any start; arguments as in :meth:`claim`."""
        pick = self.random.choice
        options = [word for _ in range(pick([0, 1, 2])) for word in pick([[b"JUSTID"], [b"count", pick(COUNTS)]])]
        return [b"XAUTOCLAIM", key, name, who, pick(IDLES), pick([b"0", pick(IDS)]), *options]

    def pending(self, key: bytes, name: bytes, who: bytes) -> list[bytes]:
        """Return XPENDING in any of its forms; arguments as in :meth:`claim`."""
        pick, chance = self.random.choice, self.random.random()
        head, ends = [b"XPENDING", key, name], [pick(IDS), pick(IDS), pick(COUNTS)]
        if chance < 0.3:
            return head
        idle = [pick([b"IDLE", b"idle", b"IDL"]), pick(IDLES)] if chance < 0.6 else []
        return [*head, *idle, *([b"-", b"+", b"9"] if pick([0, 1]) else ends), *[who] * pick([0, 0, 1, 1, 2])]


def run_as_connection(client: Client, pieces: Iterator[bytes]) -> bytes:
    """Run bytes as a connection does: plain commands together, other commands one by one."""
    world, reader, replies = client.world, CommandReader(), bytearray()
    for piece in pieces:
        reader.feed(piece)
        for answer, _ in answered(world.node, client.session, reader, world.clock.now()):
            replies += answer
    world.deliver()
    return bytes(replies)


def cut(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield the bytes in pieces, as a network delivers them."""
    at = 0
    while at < len(data):
        size = rng.choice([len(data), len(data), 1000, 100, 7])
        yield data[at : at + size]
        at += size


def counted(world: World) -> tuple[object, ...]:
    stats = world.node.stats
    stats.collect()
    calls = {name: (each.calls, each.failed, each.rejected) for name, each in stats.commands.items()}
    return calls, stats.processed, stats.dirty, stats.lookups, stats.errors


def as_user(worlds: tuple[World, World], rights: str) -> list[Client]:
    """Return a client in each world, of a user who has these rights."""
    clients = [world.client() for world in worlds]
    for client in clients:
        client.call("ACL", "SETUSER", "u", "reset", "on", "nopass", *rights.split())
        client.call("AUTH", "u", "x")
    return clients


def compare(seed: int, rounds: int = 12, *, transactions: bool = False, restricted: bool = False) -> None:
    """Send the same commands to two worlds, one of which runs plain ones together, and compare everything.

    With ``restricted``, a user with some rights sends them, and the rights change meanwhile.
    """
    lines = Lines(seed)
    config = {"stream-node-max-entries": lines.random.choice(["100", "5", "1"])}
    single, together = World(config), World(config)
    asking = [world.client() for world in (single, together)]
    waiting = [world.client() for world in (single, together)]
    for client, line in itertools.product(waiting, GROUP):
        client.call(*line.split())
    for _ in range(rounds):
        if restricted and lines.random.random() < 0.4:
            asking = as_user((single, together), lines.random.choice(RIGHTS))
        for client in waiting:
            if seed % 2 and not client.session.blocked:  # in the others nobody waits, or no delivery would be plain
                client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "t", "$", "$")
        count = lines.random.randrange(1, 30)
        commands = lines.some(count) if transactions else [lines.one() for _ in range(count)]
        replies = bytearray()
        taken = 0
        for command in commands:
            if asking[0].session.blocked:
                break
            taken += 1
            outcome = single.node.execute(asking[0].session, command, single.clock.now())
            replies += b"" if outcome is None else b"".join(outcome.buffers)
        single.deliver()
        data = b"".join(pack(*command) for command in commands[:taken])
        assert run_as_connection(asking[1], cut(data, lines.random)) == bytes(replies), (seed, commands)
        assert snapshot(single.node) == snapshot(together.node), (seed, commands)
        assert counted(single) == counted(together), (seed, commands)
        assert single.node.accounts.refused == together.node.accounts.refused
        assert waiting[0].inbox == waiting[1].inbox
        assert snapshot(together.recovered()) == snapshot(together.node)
        check(together.node)
        mine, theirs = (client.session for client in asking)
        assert (mine.commands, mine.last_command, mine.blocked) == (
            theirs.commands,
            theirs.last_command,
            theirs.blocked,
        )
        for world in (single, together):
            world.clock.advance(seed % 3)
        if mine.blocked:
            asking = [world.client() for world in (single, together)]


@pytest.mark.parametrize("part", range(4))
def test_commands_run_together_do_what_they_do_one_by_one(part: int) -> None:
    """Plain commands that run together have the replies, state, log, counters and wake-ups of one-by-one commands."""
    for seed in range(part * 40, part * 40 + 40):
        compare(seed)


@pytest.mark.parametrize("part", range(4))
def test_transactions_run_together_do_what_they_do_one_by_one(part: int) -> None:
    """Transactions of plain commands, with any commands between, have the results of one-by-one commands."""
    for seed in range(part * 30, part * 30 + 30):
        compare(seed, 6, transactions=True)


@pytest.mark.parametrize("part", range(4))
def test_commands_with_some_rights_do_what_they_do_one_by_one(part: int) -> None:
    """Users with restricted rights get the replies and refusals of one-by-one commands, also after new rights."""
    for seed in range(part * 40, part * 40 + 40):
        compare(seed, restricted=True, transactions=seed % 5 == 0)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_many_commands_run_together() -> None:
    """Commands of 20,000 random seeds have the same results together and one by one."""

    def some(piece: int) -> None:
        for seed in range(piece * 200, piece * 200 + 200):
            compare(seed, transactions=seed % 2 == 1, restricted=seed % 3 == 1)

    campaign.run("batches", some, range(1, 101))


@hot_log
def test_a_transaction_of_plain_commands_is_one_record() -> None:
    """A transaction is one record, with any other commands in between and any number of runs."""
    world = World()
    client = world.client()
    for line in (*GROUP, "XADD s 1-2 a b"):
        client.call(*line.split())
    added = pack("XADD", "s", "*", "f", "v")
    before = world.log.appended
    data = [pack("MULTI"), *[added] * (RUN_MAX + 9), pack("HSET", "h", "f", "v"), pack(*READ.split()), added * 3]
    replies = run_as_connection(client, iter([b"".join(data) + pack("EXEC")]))
    assert replies.count(b"+QUEUED\r\n") == RUN_MAX + 14
    assert world.log.appended == before + 1
    steps = codec.unpack(world.log.payloads[-1])[1]
    assert [step[0] for step in steps] == ["xadd"] * (RUN_MAX + 9) + ["hset", "gread"] + ["xadd"] * 3
    assert snapshot(world.recovered()) == snapshot(world.node)


@pytest.mark.parametrize("together", [True, False])
def test_a_transaction_changes_no_more_than_a_record_holds(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a transaction exactly the command that exceeds the record limit is refused. Later ones that fit are done."""
    monkeypatch.setattr(limits, "CHANGE_MAX", 2000)
    world = World()
    client = world.client()
    client.call("XADD", "s", "1-1", "f", "v")
    lines = ["MULTI", *["XADD s * f " + "x" * 300] * 9, "SET k v", "SET k " + "x" * 500, "EXEC"]
    if together:
        run_as_connection(client, iter([b"".join(pack(*line.split()) for line in lines)]))
    else:
        for line in lines:
            client.call(*line.split())
    assert (client.call("XLEN", "s"), client.call("GET", "k")) == (6, b"v")


@needs_runner
def test_what_is_queued_together_has_words_enough() -> None:
    """A write command is queued natively only if it has as many words as the command table requires."""
    assert core.native is not None
    for name, row in TABLE.items():
        for count in range(1, 12):
            data = pack(*[name] * count)
            may = name.decode() in NAMES and "write" in row.flags and count >= -row.arity
            assert core.native.queue_plain(data, 0)[:2] == ((len(data), 1) if may else (0, 0)), (name, count)


@pytest.mark.parametrize("plain", [True, False])
def test_a_count_of_entries_read_stays_within_64_bits(plain: bool) -> None:
    """Counts of entries read and added stop at the largest 64-bit number, and the log stays readable."""
    world = World()
    client = world.client()
    largest = 2**63 - 1
    for line in (
        *("XADD s 1-1 a b", "XADD s 1-2 a b", "XADD s 1-3 a b", f"XSETID s 1-3 ENTRIESADDED {largest}"),
        *(f"XGROUP CREATE s g 1-1 ENTRIESREAD {largest - 1}", "XGROUP CREATECONSUMER s g c"),
    ):
        client.call(*line.split())
    read = b"XREADGROUP GROUP g c STREAMS s >".split()
    if plain:
        assert b"1-3" in run_as_connection(client, iter([pack(*read)]))
    else:
        assert client.call(*read) == [[b"s", [[b"1-2", [b"a", b"b"]], [b"1-3", [b"a", b"b"]]]]]
    (group,) = client.call("XINFO", "GROUPS", "s")
    assert group[-4:] == [b"entries-read", largest, b"lag", 0]
    assert snapshot(world.recovered()) == snapshot(world.node)


@needs_runner
@pytest.mark.parametrize("line", ["GET str", "XRANGE s - +", "XREVRANGE s + -", "XREAD STREAMS s 1-1", READ])
def test_a_large_reply_goes_the_ordinary_way(line: str) -> None:
    """A command with a large reply is left to its handler, and commands before it are done."""
    assert core.native is not None
    world = World()
    client = world.client()
    for words in ("XADD s 1-1 a b", *GROUP):
        client.call(*words.split())
    client.call("SET", "str", bytes(REPLY_MAX + 1))
    for at in range(2, 22):
        client.call("XADD", "s", f"{at}-1", "f", bytes(REPLY_MAX // 19))
    before, db = snapshot(world.node), world.node.keyspace.databases[0]
    runner = core.native.PlainRunner(Config(), {}, {}, True)
    run = runner.run(db, pack("PING") + pack(*line.split()), 0, 1_700_000_000_000, 2)
    assert (run.commands, run.replies, run.hits, run.record) == (1, b"+PONG\r\n", 0, None)
    assert run.words == line.encode().split()
    assert snapshot(world.node) == before
    assert len(run_as_connection(client, iter([pack(*line.split())]))) > REPLY_MAX
    check(world.node)


def test_no_reply_waits_for_a_claim_of_nothing() -> None:
    """A read that delivers nothing does not wait for its record, which only XINFO shows. A claim that delivers does."""
    world = World()
    client = world.client()
    for line in GROUP:
        client.call(*line.split())
    world.clock.advance(5)
    position, appended = world.node.journal.position, world.log.appended
    claim = b"XAUTOCLAIM s g c 0 0".split()
    assert run_as_connection(client, iter([pack(*claim)])) == b"*3\r\n$3\r\n0-0\r\n*0\r\n*0\r\n"
    assert (world.node.journal.position, world.log.appended) == (position, appended + 1)
    assert world.node.keyspace.databases[0].keys[b"s"].groups[b"g"].consumers[b"c"].seen == world.clock.wall
    assert snapshot(world.recovered()) == snapshot(world.node)
    run_as_connection(client, iter([pack("XADD", "s", "*", "a", "b") + pack(*READ.split())]))
    assert b"*1\r\n*2\r\n" in run_as_connection(client, iter([pack(*claim)]))
    assert world.node.journal.position == world.log.appended


@needs_runner
@pytest.mark.parametrize(("many", "plain"), [(1021, True), (1022, True), (2**16 - 3, True), (2**16 - 2, False)])
def test_a_command_of_very_many_words_is_plain(many: int, plain: bool) -> None:
    """An XACK of thousands of ids is a plain command, up to a limit."""
    assert core.native is not None
    world = World()
    client = world.client()
    for line in ("XADD s 1-1 a b", *GROUP):
        client.call(*line.split())
    command = pack("XACK", "s", "g", *[f"{at}-0" for at in range(many)])
    runner = core.native.PlainRunner(Config(), {}, {}, True)
    run = runner.run(world.node.keyspace.databases[0], command, 0, 1_700_000_000_000, 2)
    assert (run.commands, run.replies) == ((1, b":0\r\n") if plain else (0, b""))


# Commands that leave a session as it is: the bytes that follow are read in the same state, whatever was damaged
USABLE = frozenset(b"GET PING SET XACK XADD XAUTOCLAIM XCLAIM XDEL XGROUP XLEN XPENDING XRANGE XREAD XREVRANGE".split())


def same(seed: int, steps: int) -> int:
    """Send whole, cut and damaged bytes to runs and to one-by-one commands, and compare replies and changes."""
    lines = Lines(seed)
    config = {"stream-node-max-entries": "7"}
    single, together = World(config), World(config)
    asking = [world.client() for world in (single, together)]
    for client, line in itertools.product(asking, ("XADD s 1-1 a b", "XADD t 5-5 a b c d", "SET str v", *GROUP)):
        client.call(*line.split())
    for step in range(steps):
        made = (lines.one() for _ in itertools.count())
        usable = (one for one in made if one[0].upper() in USABLE and b"BLOCK" not in one)
        commands = itertools.islice(usable, lines.random.randrange(1, 8))
        data = b"".join(pack(*command) for command in commands)
        if lines.random.random() < 0.3:
            data = data[: lines.random.randrange(len(data))]
        if lines.random.random() < 0.3 and data:
            at = lines.random.randrange(len(data))
            data = data[:at] + bytes([lines.random.randrange(256)]) + data[at + 1 :]
        replies, errors = [], []
        for client, take in zip(asking, (one_by_one, run_as_connection), strict=True):
            try:
                replies.append(take(client, iter([data])))
                errors.append("")
            except ProtocolError as error:
                errors.append(str(error))
        assert errors[0] == errors[1], (seed, step, data)
        assert replies[:1] == replies[1:], (seed, step, data)
        assert snapshot(single.node) == snapshot(together.node), (seed, step, data)
        assert counted(single) == counted(together), (seed, step, data)
        for world in (single, together):
            world.clock.advance(step % 2)
    return steps


def one_by_one(client: Client, pieces: Iterator[bytes]) -> bytes:
    """Return the replies to commands that their handlers run."""
    world, reader, replies = client.world, CommandReader(), bytearray()
    for piece in pieces:
        reader.feed(piece)
        while (argv := reader.next()) is not None:
            outcome = world.node.execute(client.session, argv, world.clock.now())
            replies += b"" if outcome is None else b"".join(outcome.buffers)
    world.deliver()
    return bytes(replies)


@needs_runner
@pytest.mark.parametrize("count", [1, 2, 99, 512, 1300])
def test_many_additions_that_are_alike_are_those_added_one_by_one(count: int) -> None:
    """Many equal XADDs begin nodes at the same entries as one by one, whatever ends a run."""
    rng = random.Random(count)
    packed, replies = [], []
    single = [pack("XADD", "s", "*", "f", str(number)) for number in range(count)]
    mixed = [pack("XADD", rng.choice("st"), "*", *["f", "vv"] * rng.choice([1, 1, 1, 2])) for _ in range(count)]
    cut_off = b"".join(single) + single[0][:-1]
    replies_end_it = pack("GET", "k") * 6 + b"".join(single)
    for take in (one_by_one, run_as_connection):
        world = World({"stream-node-max-entries": "7"})
        client = world.client()
        for words in (("XADD", "s", "1-1", "a", "b"), ("XADD", "t", "1-1", "a", "b"), ("SET", "k", bytes(40_000))):
            client.call(*words)
        replies.append(
            [take(client, iter([data])) for data in (b"".join(single), b"".join(mixed), cut_off, replies_end_it)]
        )
        streams = [world.node.keyspace.databases[0].keys[key] for key in (b"s", b"t")]
        packed.append([[node.pack() for node in one.entries.nodes()] for one in streams if isinstance(one, Stream)])
    assert packed[0] == packed[1]
    assert replies[0] == replies[1]


@needs_runner
def test_damaged_bytes_run_together_do_what_they_do_one_by_one() -> None:
    """Whole, cut and damaged commands have the same replies, state and counters together and one by one."""
    for seed in range(30):
        same(seed, 30)


@needs_runner
@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_damaged_bytes_do_the_same_a_million_times() -> None:
    """A million steps of damaged bytes have the same results together and one by one."""

    def ten_thousand_steps(piece: int) -> int:
        return sum(same(seed, 1000) for seed in range(piece * 10, piece * 10 + 10))

    campaign.run("runners", ten_thousand_steps, range(1, 101), unit="steps")


@needs_runner
def test_ctrl_c_is_not_swallowed_by_a_run() -> None:
    """A KeyboardInterrupt during a run is raised, so that an embedding program can end."""
    assert core.native is not None
    db, data = World().node.keyspace.databases[0], pack("SET", "k", "v") * RUN_MAX
    runner = core.native.PlainRunner(Config(), {}, {}, False)
    signals, interrupts = 0, 0

    def interrupt(number: int, frame: object) -> None:
        nonlocal signals
        signals += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        while signals < 10:
            come = signals
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
                while signals == come:
                    runner.run(db, data, 0, 1_700_000_000_000, 2)
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert interrupts == signals


@needs_runner
def test_the_native_runner_runs_no_code_of_pythons() -> None:
    """The native runner runs no Python code, so no signal's exception comes between a change and its record."""
    assert core.native is not None
    world = World()
    client = world.client()
    for line in ("XADD s 1-1 a b", *GROUP, "XADD s 2-1 a b"):
        client.call(*line.split())
    lines = (
        "SET k v",
        "SET k w",
        "GET k",
        "XADD s * a b",
        READ,
        "XACK s g 2-1",
        "XRANGE s - +",
        "XPENDING s g",
        "PING",
    )
    data = b"".join(pack(*line.split()) for line in lines)
    runner = core.native.PlainRunner(Config(), {}, {}, True)
    entered: list[str] = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        run = runner.run(world.node.keyspace.databases[0], data, 0, 1_700_000_000_000, 2)
    finally:
        sys.setprofile(None)
    assert run.commands == len(lines)
    assert not entered


@needs_runner
def test_each_command_of_the_runner_counts_under_its_name() -> None:
    """Each command that the runner runs counts under its own name in INFO, which is a name of the command table."""
    assert core.native is not None
    world = World()
    runner = core.native.PlainRunner(Config(), {}, {}, True)
    assert [name for name, _, _ in runner.drain()] == list(NAMES)
    assert {name.partition("|")[0].encode() for name in NAMES} <= set(TABLE)
    db = world.node.keyspace.databases[0]
    client = world.client()
    client.call("XADD", "s", "1-1", "a", "b")
    client.call("XGROUP", "CREATE", "s", "g", "1-1", "ENTRIESREAD", "1")
    client.call("XGROUP", "CREATECONSUMER", "s", "g", "c")
    lines = {"get": b"GET k", "ping": b"PING", "set": b"SET k v", "xadd": b"XADD s * a b", "xlen": b"XLEN s"}
    lines |= {"xrange": b"XRANGE s - +", "xread": b"XREAD STREAMS s 0", "xrevrange": b"XREVRANGE s + -"}
    lines |= {"xack": b"XACK s g 1-1", "xreadgroup": b"XREADGROUP GROUP g c STREAMS s >", "xpending": b"XPENDING s g"}
    lines |= {"xclaim": b"XCLAIM s g c 0 1-1", "xautoclaim": b"XAUTOCLAIM s g c 0 0"}
    for name in NAMES:
        if name == "xgroup|setid":  # plain of a primary alone
            run = runner.obey(db, pack(*b"XGROUP SETID s g 1-1 ENTRIESREAD 1".split()), 0, 1_700_000_000_000, False)
        else:
            run = runner.run(db, pack(*lines[name].split()), 0, 1_700_000_000_000, 2)
        assert run.last == name
        assert {each: calls for each, calls, _ in runner.drain() if calls} == {name: 1}
    assert [getattr(run, field) for field in PlainRun.__annotations__] == list(run)


# Cases of the runner with 40 records that another consumer holds
CLAIMS = {
    "claim": pack("XCLAIM", "s", "g", "d", 0, *[f"{at}-1" for at in range(10, 30)]),
    "claim ids": pack("XCLAIM", "s", "g", "d", 0, *[f"{at}-1" for at in range(10, 30)], "IDLE", 5, "JUSTID"),
    "claim what is found": pack("XAUTOCLAIM", "s", "g", "d", 0, "3-1", "COUNT", 9),
    "show": pack("XPENDING", "s", "g"),
    "show a range": pack("XPENDING", "s", "g", "-", "+", 20, "c"),
    "acknowledge": pack("XACK", "s", "g", *[f"{at}-1" for at in range(10, 30)]),
}


@needs_runner
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("what", CLAIMS)
def test_a_plain_command_that_finds_no_memory_is_done_or_changes_nothing(what: str) -> None:
    """If any allocation fails, a plain command is done or changes nothing.

    A run that cannot even report its changes raises, and the server ends.
    """
    failing = needs.package("_testcapi")
    assert core.native is not None
    untouched = 0
    for allocation in range(60):
        world = World()
        client = world.client()
        for line in GROUP:
            client.call(*line.split())
        for at in range(2, 42):
            client.call("XADD", "s", f"{at}-1", "a", "b")
        client.call(*READ.split())
        before, db = snapshot(world.node), world.node.keyspace.databases[0]
        runner = core.native.PlainRunner(Config(), {}, {}, True)
        failing.set_nomemory(allocation, allocation + 1)
        try:
            run = runner.run(db, CLAIMS[what], 0, 1_700_000_000_000, 2)
        except MemoryError:
            continue
        finally:
            failing.remove_mem_hooks()
        check(world.node)
        if run.commands == 0:
            untouched += 1
            assert snapshot(world.node) == before, allocation
        else:
            assert (snapshot(world.node) == before) == (not run.changes), allocation
    assert untouched > 2
