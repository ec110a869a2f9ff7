"""``stream-retention``: the entries that it removes by age and size, and everything that it must not change."""

import logging
from random import Random

import pytest

from millstream.commands.context.config import Config
from millstream.commands.streams.trimming import packed_bound
from millstream.engine.ids import MAX_ID
from millstream.engine.streams.stream import Stream
from millstream.node.maintenance.retention import NAMED, NODES
from millstream.node.node import Node
from millstream.replies import OK
from support.inprocess import Client, Word, World

DAY = 86_400_000
NAME = "stream-retention"


def begin(rules: str, **given: str) -> tuple[World, Client]:
    """Return a node with stream nodes of ten entries."""
    world = World(
        {NAME: rules, "stream-node-max-entries": "10"} | {key.replace("_", "-"): v for key, v in given.items()}
    )
    return world, world.client()


def fill(world: World, client: Client, key: str, count: int, *, every: int = 0, size: int = 10) -> list[bytes]:
    """Add entries, with this much time after each; return their ids."""
    found = []
    for _ in range(count):
        reply = client.call("XADD", key, "*", "f", "x" * size)
        assert isinstance(reply, bytes)
        found.append(reply)
        world.clock.advance(every)
    return found


def kept(client: Client, key: str) -> list[bytes]:
    """Return the ids that are left."""
    rows = client.call("XRANGE", key, "-", "+")
    assert isinstance(rows, list)
    return [row[0] for row in rows]


def stream(world: World, key: bytes, db: int = 0) -> Stream:
    found = world.node.keyspace.databases[db].keys[key]
    assert isinstance(found, Stream)
    return found


def removed(client: Client) -> tuple[int, int]:
    """Return INFO's two counters of removed entries."""
    text = client.call("INFO", "stats")
    assert isinstance(text, bytes)
    rows = dict(line.split(":") for line in text.decode().split() if ":" in line)
    return int(rows["retention_removed_entries"]), int(rows["retention_removed_unread"])


def test_what_is_older_goes_by_whole_nodes() -> None:
    """A node is removed as a whole when its newest entry is too old, even the last node."""
    world, client = begin("* 1h 0")
    ids = fill(world, client, "s", 45, every=60_000)
    world.tick()
    assert kept(client, "s") == ids  # 45 minutes
    world.advance(25 * 60_000)  # the first entry is 70 minutes old, the newest of its node 61
    assert kept(client, "s") == ids[10:]
    world.advance(4 * 60_000)
    assert kept(client, "s") == ids[10:]
    world.advance(DAY)
    assert (kept(client, "s"), client.call("EXISTS", "s"), removed(client)) == ([], 1, (45, 0))
    assert client.call("XADD", "s", "*", "f", "v")


def test_what_is_above_the_size_goes_from_the_front() -> None:
    """A stream larger than its rule allows loses entries from the front, but never its last two nodes."""
    world, client = begin("s* 0 20kb small 0 1b")
    ids, few = fill(world, client, "s", 1000, size=50), fill(world, client, "small", 25)
    world.tick()
    left = kept(client, "s")
    nodes = list(stream(world, b"s").entries.nodes())
    assert 0 < len(left) < 1000
    assert left == ids[-len(left) :]
    assert sum(node.footprint for node in nodes) <= 20 * 1024
    world.advance(1000)
    assert kept(client, "s") == left
    assert kept(client, "small") == few[10:] if stream(world, b"small").entries.node_count == 2 else few
    assert removed(client)[0] == 1000 - len(left) + len(few) - len(kept(client, "small"))


@pytest.mark.parametrize(
    ("rules", "key", "goes"),
    [
        ("orders:* 1h 0", "orders:eu", True),
        ("orders:* 1h 0", "Orders:eu", False),
        ("orders:* 0 0 * 1h 0", "orders:eu", False),
        ("orders:* 0 0 * 1h 0", "other", True),
        ("* 30d 0 orders:* 1h 0", "orders:eu", False),
        ("* 1h 0", "orders:dead", False),
        ("orders* 1h 0", "orders:dead", False),
        ("*:dead 1h 0", "orders:dead", True),
        ("* 1h 0 *:dead 2h 0", "orders:dead", True),
        ("* 1h 0", "millstream:audit", False),
        ("millstream:* 1h 0", "millstream:audit", True),
        ("* 1h 0", "schedule:nightly", False),
        ("schedule:* 1h 0", "schedule:nightly", True),
        ("", "orders:eu", False),
    ],
)
def test_the_first_rule_that_fits_counts(rules: str, key: str, goes: bool) -> None:
    """A wildcard rule skips Millstream's own streams: dead letters, schedules and records.

    A rule that names them applies.
    """
    world, client = begin(rules)
    fill(world, client, key, 5)
    world.advance(DAY)
    assert (kept(client, key) == []) == goes


@pytest.mark.parametrize(("first", "newest"), [("1-1", "9-1"), ("1700000000000-1", f"{1_700_000_000_000 + 3 * DAY}-1")])
def test_ids_that_are_no_times_have_no_age(first: str, newest: str) -> None:
    """A stream with ids before 2000 or after tomorrow, which are not times, is trimmed by size only."""
    world, client = begin("* 1m 0")
    for entry in (first, newest):
        client.call("XADD", "s", entry, "f", "v")
    world.advance(DAY)
    assert len(kept(client, "s")) == 2


def test_a_sealed_stream_ages_too() -> None:
    """A stream with the largest possible last id, which takes no more entries, still loses those that are too old."""
    world, client = begin("* 1m 0")
    fill(world, client, "s", 25)
    assert client.call("XSETID", "s", f"{2**64 - 1}-{2**64 - 1}") == OK
    world.advance(DAY)
    assert kept(client, "s") == []


def test_groups_hold_back_what_they_need() -> None:
    """With ``hold``, retention removes entries only after every group has read and acknowledged them."""
    world, client = begin("* 1m 0", stream_retention_groups="hold")
    ids = fill(world, client, "s", 45)
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XGROUP", "CREATE", "s", "other", "$")
    world.advance(DAY)
    assert kept(client, "s") == ids
    client.call("XREADGROUP", "GROUP", "g", "c", "COUNT", 25, "STREAMS", "s", ">")
    world.advance(1000)
    assert kept(client, "s") == ids
    client.call("XACK", "s", "g", *ids[:15])
    world.advance(1000)
    assert kept(client, "s") == ids[10:]
    client.call("XACK", "s", "g", *ids[15:25])
    world.advance(1000)
    assert kept(client, "s") == ids[20:]
    client.call("XGROUP", "DESTROY", "s", "g")
    world.advance(1000)
    assert (kept(client, "s"), removed(client)) == ([], (45, 0))


def test_what_no_group_read_is_counted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    """With ``ignore``, retention removes unread entries. INFO counts them, and the log reports them once a minute."""
    world, client = begin("* 1m 0")
    for key in ("s", "t"):
        fill(world, client, key, 45)
        client.call("XGROUP", "CREATE", key, "g", "0")
        client.call("XREADGROUP", "GROUP", "g", "c", "COUNT", 25, "STREAMS", key, ">")
    with caplog.at_level(logging.WARNING):
        world.advance(DAY)
    assert removed(client) == (90, 40)
    said = [message for message in caplog.messages if "retention" in message]
    assert len(said) == 1
    assert said[0].startswith("retention removed 20 entries of ")
    assert said[0].endswith("that a group had not read. Start its consumers, or lengthen stream-retention")
    assert client.call("CONFIG", "RESETSTAT") == OK
    assert removed(client) == (0, 0)


MADE: dict[str, tuple[tuple[Word, ...], ...]] = {
    "added": (("XADD", "new", "*", "f", "v"),),
    "renamed": (("RENAME", "old", "new"),),
    "copied": (("COPY", "old", "new"),),
    "moved": (("MOVE", "old", 1), ("SELECT", 1), ("RENAME", "old", "new")),
    "swapped": (("COPY", "old", "new"), ("SWAPDB", 0, 1), ("SELECT", 1)),
    "by a script": (("EVAL", "return redis.call('XADD', KEYS[1], '*', 'f', 'v')", 1, "new"),),
    "by a group": (("XGROUP", "CREATE", "new", "g", "$", "MKSTREAM"), ("XADD", "new", "*", "f", "v")),
    "over another": (("SET", "new", "v"), ("COPY", "old", "new", "REPLACE")),
    "in a transaction": (("MULTI",), ("DEL", "new"), ("XADD", "new", "*", "f", "v"), ("EXEC",)),
    "again": (("XADD", "new", "*", "f", "v"), ("FLUSHALL",), ("XADD", "new", "*", "f", "v")),
}


@pytest.mark.parametrize("way", MADE)
def test_every_way_to_make_a_stream(way: str) -> None:
    """A retention rule applies to streams created after it, in any way, and after a restart."""
    world, client = begin("new 1m 0")
    client.call("XADD", "old", "*", "f", "v")
    for words in MADE[way]:
        client.call(*words)
    assert len(kept(client, "new")) == 1
    twin = world.recovered()
    world.advance(DAY)
    twin.tick(world.clock.now())
    assert (kept(client, "new"), removed(client)[0]) == ([], 1)
    assert (
        sum(
            len(value.entries.ids())
            for db in twin.keyspace.databases
            for key, value in db.keys.items()
            if key == b"new" and isinstance(value, Stream)
        )
        == 0
    )
    assert client.call("DEL", "new") == 1
    world.advance(1000)
    assert world.node.next_deadline(world.clock.now()) is None


def test_a_dump_that_is_restored() -> None:
    """A retention rule applies to a stream created by RESTORE."""
    world, client = begin("new 1m 0")
    client.call("XADD", "old", "*", "f", "v")
    payload = client.call("DUMP", "old")
    assert isinstance(payload, bytes)
    assert client.call("RESTORE", "new", 0, payload) == OK
    world.advance(DAY)
    assert (kept(client, "new"), len(kept(client, "old"))) == ([], 1)


def test_rules_that_are_set_later() -> None:
    """CONFIG SET of rules applies to existing streams, CONFIG GET returns the rules, and empty rules end retention."""
    world, client = begin("")
    ids = fill(world, client, "s", 5)
    world.advance(DAY)
    assert world.node.next_deadline(world.clock.now()) is None
    assert client.call("CONFIG", "SET", NAME, " *  1h\t1gb ") == OK
    assert client.call("CONFIG", "GET", NAME) == [NAME.encode(), b"* 1h 1gb"]
    assert client.call("CONFIG", "SET", NAME, "") == OK
    world.tick()
    assert kept(client, "s") == ids
    assert client.call("CONFIG", "SET", NAME, "* 1h 0", "stream-retention-groups", "hold") == OK
    world.tick()
    assert kept(client, "s") == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("*", "argument must be a pattern, an age and a size, once or more often, such as 'orders:* 7d 50gb'; 0 sets"),
        ("* 7d 50gb orders", "argument must be a pattern, an age and a size"),
        ("* 7x 0", "the age '7x' is invalid: it must be a length of time such as"),
        ("* -1d 0", "the age '-1d' is invalid: "),
        ("* 7 0", "the age '7' is invalid: "),
        ("* 7d much", "the size 'much' is invalid: it is not a size. Write a whole number with b, kb, mb or gb, such"),
        ("* 7d 1.5gb", "the size '1.5gb' is invalid: it is not a size. Write a whole number with b, kb, mb or gb"),
        (
            "orders 7d 50",
            "the size '50' is invalid: it has no unit. Write a whole number with b, kb, mb or gb, such as",
        ),
        ("a 1d 1gb orders 7d 5000000000", "the size '5000000000' is invalid: it has no unit. "),
        ("* 50gb 7d", "the age '50gb' is invalid: it must be a length of time such as"),
        ("[ 7d 0", "the pattern '[' is invalid: a '[' has no ']'. Close it, or write "),
        ("o[a-] 7d 0", "the pattern 'o[a-]' is invalid: a '[' has no ']'"),
        ("* 7d -1", "the size '-1' is invalid: "),
        ("* 7d " + "9" * 5000, "the size '99999999999999999999'... is invalid: it is not a size"),
        ("* " + "9" * 5000 + "d 0", "the age '99999999999999999999'... is invalid: it must be a length of time"),
        ("* 7d 9223372036854775808", "the size '9223372036854775808' is invalid: "),
        (
            "ok 1d 0 " + "*a" * 257 + " 1d 0",
            "the pattern '*a*a*a*a*a*a*a*a*a*a'... is invalid: it is longer than 512 bytes",
        ),
    ],
)
def test_a_rule_that_cannot_be_read(value: str, reason: str) -> None:
    """CONFIG SET refuses an invalid rule with one sentence on valid ones, and the old rules stay."""
    world, client = begin("* 1h 0")
    error = str(client.call("CONFIG", "SET", NAME, value))
    assert f"CONFIG SET failed (possibly related to argument '{NAME}') - {reason}" in error
    assert str(world.node.config.retention) == "* 1h 0"


@pytest.mark.parametrize("rule", ["* 0 0", "* 7d 0b", "* 1d 50b", "\\[ 7d 0", "[a] 7d 0", "[^]] 7d 0", "a] 7d 0"])
def test_a_rule_that_is_valid(rule: str) -> None:
    """Sizes have a unit or are 0, and each class in a pattern is closed."""
    world, client = begin("")
    assert client.call("CONFIG", "SET", NAME, rule) == OK
    assert str(world.node.config.retention) == rule


def test_swapped_bounds() -> None:
    """A size in the place of the age gives advice on their order."""
    error = str(begin("")[1].call("CONFIG", "SET", NAME, "orders 50gb 7d"))
    assert "or 0 for no bound. Write the age before the size" in error


def test_the_log_names_each_stream_that_begins_to_lose_entries(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each stream and change of rules: its name, the number of entries and the rule."""
    world, client = begin("")
    fill(world, client, "s", 500)
    with caplog.at_level(logging.INFO):
        assert client.call("CONFIG", "SET", NAME, "s 7d 50b") == OK
        for _ in range(5):
            world.advance(1000)
            fill(world, client, "s", 50)
        said = [line for line in caplog.messages if "retention" in line]
        assert len(said) == 1
        assert said[0].startswith("retention begins to remove entries of s: ")
        assert said[0].endswith(" of 500 at first, by the rule 's 7d 50b' of stream-retention")
        assert client.call("CONFIG", "SET", NAME, "s 7d 20b") == OK
        world.advance(1000)
    assert sum("retention" in line for line in caplog.messages) == 2


def test_the_log_does_not_name_very_many_streams(caplog: pytest.LogCaptureFixture) -> None:
    """After some streams, one line says that there are more."""
    world, client = begin("* 1m 0")
    for at in range(NAMED + 20):
        fill(world, client, f"s{at}", 3)
    with caplog.at_level(logging.INFO):
        world.advance(DAY)
    said = [line for line in caplog.messages if "retention" in line]
    assert len(said) == NAMED + 1
    assert said[-1] == "retention begins to remove entries of more streams, which are not named here"
    assert removed(client)[0] == 3 * (NAMED + 20)


def test_a_clock_that_goes_forward(caplog: pytest.LogCaptureFixture) -> None:
    """Retention by age pauses for an hour if the wall clock jumps, and retention by size goes on."""
    world, client = begin("old 1h 0 large 30d 1kb")
    ids = fill(world, client, "old", 25)
    world.tick()
    world.clock.jump(300_000)  # as little as a correction of the time may be
    world.advance(1000)
    with caplog.at_level(logging.WARNING):
        world.clock.jump(DAY // 2)
        world.tick()
        world.advance(1000)
        fill(world, client, "large", 500)
        for _ in range(59):
            world.advance(60_000)
    assert kept(client, "old") == ids
    assert len(kept(client, "large")) < 500
    said = [line for line in caplog.messages if "clock" in line]
    assert len(said) == 1
    assert said[0].startswith(f"the clock went forward by {DAY // 2000} s; retention by age pauses for an hour. ")
    world.advance(60_000)
    world.advance(1000)
    assert kept(client, "old") == []


def test_rules_that_are_set_again_end_the_pause() -> None:
    """After a jump of the clock, CONFIG SET of the same rules lets ages count again."""
    world, client = begin("* 1h 0")
    ids = fill(world, client, "s", 25)
    world.tick()
    world.clock.jump(DAY // 2)
    world.advance(1000)
    assert kept(client, "s") == ids
    assert client.call("CONFIG", "SET", "maxmemory", "1gb") == OK
    world.advance(1000)
    assert kept(client, "s") == ids
    assert client.call("CONFIG", "SET", NAME, "* 1h 0") == OK
    world.advance(1000)
    assert kept(client, "s") == []


def started(world: World) -> Node:
    """Return a node that starts as a server does, from this one's records."""
    twin = Node(Config(world.config))
    twin.prepared(world.log.replay())(world.log)
    return twin


def left(node: Node) -> int:
    """Return the number of entries of ``s``."""
    found = node.keyspace.databases[0].keys[b"s"]
    assert isinstance(found, Stream)
    return found.length


def test_a_start_with_a_clock_that_is_ahead(caplog: pytest.LogCaptureFixture) -> None:
    """Retention by age pauses for an hour if the log's last record is older than an hour; sizes count."""
    world, client = begin("* 1h 0")
    fill(world, client, "s", 25)
    world.clock.jump(DAY)
    twin = started(world)
    with caplog.at_level(logging.WARNING):
        for _ in range(60):
            twin.tick(world.clock.now())
            assert left(twin) == 25
            world.clock.advance(60_000)
    said = [line for line in caplog.messages if "clock" in line]
    assert len(said) == 1
    assert said[0].startswith(f"the last record of the log is {DAY // 1000} s old; retention by age pauses for an hour")
    world.clock.advance(1000)
    twin.tick(world.clock.now())
    assert left(twin) == 0


def test_rules_that_are_set_after_a_start_end_its_pause() -> None:
    """CONFIG SET of the same rules says that the clock is right."""
    world, client = begin("* 1h 0")
    fill(world, client, "s", 25)
    world.clock.jump(DAY)
    twin = started(world)
    twin.tick(world.clock.now())
    assert left(twin) == 25
    twin.config.set([(NAME, "* 1h 0")])
    twin.tick(world.clock.now())
    assert left(twin) == 0


def test_a_start_soon_after_the_end_pauses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An ordinary restart, or one with an empty log, removes what is too old at once."""
    world, client = begin("* 1m 0")
    started(world).tick(world.clock.now())
    fill(world, client, "s", 25)
    world.clock.advance(3_500_000)
    twin = started(world)
    twin.tick(world.clock.now())
    assert left(twin) == 0
    assert not [line for line in caplog.messages if "clock" in line]


def test_a_clock_that_goes_back() -> None:
    """A wall clock that is set back pauses nothing."""
    world, client = begin("* 1h 0")
    fill(world, client, "s", 25)
    world.tick()
    world.clock.jump(-DAY)
    world.advance(1000)
    world.advance(2 * DAY)
    assert kept(client, "s") == []


def test_a_round_is_short_and_goes_on_soon() -> None:
    """A round of retention removes a limited number of nodes, so no client waits long; the next comes soon."""
    world, client = begin("", stream_node_max_entries="1")
    fill(world, client, "s", NODES + 500)
    others = [f"t{at}" for at in range(1500)]
    for key in others:
        fill(world, client, key, 1)
    client.call("CONFIG", "SET", NAME, "* 1h 0")
    world.advance(DAY)
    first = removed(client)[0]
    assert 0 < first <= NODES
    rounds = 1
    while removed(client)[0] < NODES + 2000:
        due = world.node.next_deadline(world.clock.now())
        assert due is not None
        assert due - world.clock.now().mono <= 100
        world.advance(100)
        rounds += 1
    assert rounds <= 10


def test_it_is_a_change_like_others() -> None:
    """Retention breaks watches, publishes an event, is logged, and removes nothing while clients are paused."""
    world, client = begin("* 1m 0", notify_keyspace_events="Kt")
    other = world.client()
    other.call("SUBSCRIBE", "__keyspace@0__:s")
    fill(world, client, "s", 25)
    other.inbox.clear()
    client.call("WATCH", "s")
    client.call("CLIENT", "PAUSE", 2 * DAY, "WRITE")
    world.advance(DAY)
    assert len(kept(client, "s")) == 25
    client.call("CLIENT", "UNPAUSE")
    world.advance(1000)
    assert [message[2] for message in other.inbox if isinstance(message, list)] == [b"xtrim"]
    client.call("MULTI")
    client.call("PING")
    assert client.call("EXEC") is None
    assert stream(world, b"s").length == 0
    twin = world.recovered()
    found = twin.keyspace.databases[0].keys[b"s"]
    assert isinstance(found, Stream)
    assert (found.length, found.entries_added, found.max_deleted) == (0, 25, 0)


def test_it_ends_a_shortage_of_memory() -> None:
    """Above ``maxmemory`` writes are refused until a round of retention has removed enough."""
    world, client = begin("* 1m 0")
    fill(world, client, "s", 1000, size=100)
    used = world.node.memory.facts(0).used
    client.call("CONFIG", "SET", "maxmemory", max(used - 50_000, used // 2))  # cold entries take less
    assert str(client.call("XADD", "s", "*", "f", "v")).count("OOM command")
    world.advance(DAY)
    assert client.call("XADD", "s", "*", "f", "v")


def test_it_is_a_trim_by_id_at_random() -> None:
    """After any commands and rounds, a stream is as after XTRIM MINID at a node's first id, with no removable node."""
    for seed in range(40):
        random = Random(seed)
        most = random.choice((0, 1500, 4000))
        world, client = begin(f"s 1m {most}b", stream_retention_groups=random.choice(("ignore", "hold")))
        client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        for _ in range(60):
            at = random.random()
            ids = kept(client, "s")
            if at < 0.5:
                fill(
                    world, client, "s", random.randint(1, 15), every=random.randint(0, 1500), size=random.randint(0, 60)
                )
            elif at < 0.6 and ids:
                client.call("XDEL", "s", *random.sample(ids, random.randint(1, len(ids))))
            elif at < 0.75:
                client.call("XREADGROUP", "GROUP", "g", "c", "COUNT", random.randint(1, 20), "STREAMS", "s", ">")
            elif at < 0.85 and ids:
                client.call("XACK", "s", "g", *random.sample(ids, random.randint(1, len(ids))))
            else:
                before, count = kept(client, "s"), removed(client)[0]
                world.advance(random.choice((1000, 5000, 30_000)))
                left = kept(client, "s")
                assert left == before[len(before) - len(left) :]
                assert removed(client)[0] - count == len(before) - len(left)
                expect_kept_rightly(world, most)
        twin = world.recovered().keyspace.databases[0].keys[b"s"]
        assert isinstance(twin, Stream)
        assert twin.entries.ids() == stream(world, b"s").entries.ids()


def expect_kept_rightly(world: World, most: int) -> None:
    """Fail if a rule applies to the first node."""
    found, wall = stream(world, b"s"), world.clock.now().wall
    nodes = list(found.entries.nodes())
    if not nodes:
        return
    group = found.groups[b"g"]
    first = nodes[0].last
    is_needed = world.node.config.retention_holds and (
        first > group.last_id or (len(group.pending) > 0 and first >= group.pending.first())
    )
    has_age = found.entries.last_live_id > 0
    is_old = has_age and first >> 64 < wall - 60_000
    is_large = most and len(nodes) > 2 and sum(node.footprint for node in nodes) > most
    assert is_needed or not (is_old or is_large)


def test_a_stream_that_expires_is_left_alone() -> None:
    """Retention does not trim a stream whose time to live has passed: it is deleted as a whole."""
    world, client = begin("* 1m 0")
    fill(world, client, "s", 25)
    client.call("PEXPIRE", "s", DAY - 1)
    world.advance(DAY)
    assert (client.call("EXISTS", "s"), removed(client)) == (0, (0, 0))


def test_above_all_ids() -> None:
    """A bound above every id is logged as none, as for XTRIM."""
    assert packed_bound(MAX_ID + 1) is None
