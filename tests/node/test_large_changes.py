"""The limit on changes of one command, transaction or script: more than a record may hold is refused beforehand."""

import pytest

from millstream.engine.serialization import snapshot as snapshotting
from millstream.node.log import codec
from millstream.node.maintenance import cron
from millstream.protocol import limits
from support.inprocess import World
from support.state import snapshot

LIMIT = 100_000
PART = b"x" * 30_000
TOO_LARGE = "ERR the changes of one transaction, script or command take at most"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a node with a small limit."""
    monkeypatch.setattr(limits, "CHANGE_MAX", LIMIT)
    return World()


def check(world: World) -> None:
    """Check that no record exceeds the limit, and that the log rebuilds the same node."""
    assert max(map(len, world.log.payloads)) <= LIMIT
    assert snapshot(world.recovered()) == snapshot(world.node)


def test_a_transaction_is_refused_what_is_too_much(world: World) -> None:
    """In a transaction too large for a record, commands that fit are done, others are refused whole.

    The next one starts anew.
    """
    client = world.client()
    for _ in range(2):
        client.call("MULTI")
        for number in range(5):
            client.call("MSET", f"a{number}", PART, f"b{number}", b"")
        replies = client.call("EXEC")
        assert isinstance(replies, list)
        assert [str(reply) for reply in replies[:3]] == ["Simple(b'OK')"] * 3
        assert all(TOO_LARGE in str(reply) for reply in replies[3:])
        assert client.call("EXISTS", *(f"{letter}{n}" for n in range(5) for letter in "ab")) == 6
    check(world)


def test_a_script_is_refused_what_is_too_much(world: World) -> None:
    """A script whose changes exceed the limit gets an error from the command, as from any other that fails."""
    client = world.client()
    source = "for i = 1, 5 do redis.call('SET', KEYS[i], ARGV[1]) end"
    reply = client.call("EVAL", source, 5, *(f"k{number}" for number in range(5)), PART)
    assert TOO_LARGE in str(reply)
    assert client.call("EXISTS", *(f"k{number}" for number in range(5))) == 3
    check(world)


def test_reading_is_never_too_much(world: World) -> None:
    """Reading commands do not count toward the limit on changes."""
    client = world.client()
    client.call("MULTI")
    for _ in range(10):
        client.call("EXISTS", PART)
    assert client.call("EXEC") == [0] * 10


def test_what_a_command_makes_of_little_is_weighed_too(world: World) -> None:
    """Deletions by score count toward the limit by the members that they delete."""
    client = world.client()
    for number in range(10):
        client.call("ZADD", "z", number, PART[: 20_000 + number])
    assert TOO_LARGE in str(client.call("ZREMRANGEBYSCORE", "z", "-inf", "+inf"))
    assert client.call("ZCARD", "z") == 10
    assert client.call("ZREMRANGEBYRANK", "z", 0, 3) == 4
    check(world)


@pytest.mark.parametrize(
    "line",
    ["LMOVE l m LEFT RIGHT", "SUNIONSTORE d s", "ZUNIONSTORE d 1 z", "ZRANGESTORE d z 0 -1", "SORT l STORE d ALPHA"],
)
def test_what_is_moved_or_stored_is_weighed(world: World, line: str) -> None:
    """Commands that move or store values count whole values toward the limit of a transaction."""
    client = world.client()
    for _ in range(5):
        client.call("RPUSH", "l", PART)
    client.call("SADD", "s", PART)
    client.call("ZADD", "z", 1, PART)
    client.call("MULTI")
    for _ in range(5):
        client.call(*line.split())
    replies = client.call("EXEC")
    assert isinstance(replies, list)
    assert TOO_LARGE in str(replies[-1])
    check(world)


def test_parts_of_strings_are_logged_as_parts(world: World) -> None:
    """APPEND and SETRANGE log only the changed bytes, so a byte more does not cost the string's length."""
    client = world.client()
    client.call("SET", "k", PART)
    position = world.log.appended
    client.call("MULTI")
    for number in range(5):
        client.call("SETRANGE", "k", 5_000_000 + number, "x")
        client.call("APPEND", "k", "yz")
    assert client.call("EXEC")[-1] == 5_000_000 + 1 + 5 * 2
    assert client.call("GETRANGE", "k", -5, -1) == b"zyzyz"
    assert sum(map(len, world.log.payloads[position:])) < 1000
    check(world)


def test_parts_of_strings_are_as_of_bytes() -> None:
    """A string after any appends, overwrites and reads has the value of plain bytes."""
    client = World().client()
    plain = b""
    steps = [("APPEND", b"abc"), (5, b"X"), ("GETRANGE", 1), (1, b"YY"), ("GET", 0), ("APPEND", b""), (9, b"long" * 5)]
    for what, part in steps * 3:
        if what == "APPEND":
            plain += part
            assert client.call("APPEND", "k", part) == len(plain)
        elif isinstance(what, int):
            plain = plain[:what].ljust(what, b"\0") + part + plain[what + len(part) :]
            assert client.call("SETRANGE", "k", what, part) == len(plain)
        else:
            assert client.call("GETRANGE", "k", part, -2) == plain[part : len(plain) - 1]
        assert client.call("STRLEN", "k") == len(plain)
    assert client.call("GET", "k") == plain


def test_keys_that_expire_together_are_deleted_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that expire together are deleted in rounds; each round is one record, however long the names are."""
    monkeypatch.setattr(cron, "NAMED", LIMIT // 2)
    world = World()
    client = world.client()
    for number in range(10):
        client.call("SET", PART[: 20_000 + number], "v", "PX", 10)
    position = world.log.appended
    for _ in range(10):
        world.advance(200)
    assert client.call("DBSIZE") == 0
    sizes = [len(codec.unpack(payload)[1]) for payload in world.log.payloads[position:]]
    assert (sum(sizes), max(sizes)) == (10, 3)


def test_a_snapshot_has_no_huge_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot writes large elements one by one, since a log with huge records could not be rewritten."""
    monkeypatch.setattr(snapshotting, "LARGE_BYTES", LIMIT)
    world = World()
    client = world.client()
    for number in range(10):
        part = PART[: 20_000 + number]
        client.call("RPUSH", "l", part)
        client.call("SADD", "s", part)
        client.call("HSET", "h", part, part)
        client.call("ZADD", "z", number, part)
    world.log.rewrite()
    steps = [step for payload in world.log.snapshot for step in codec.unpack(payload)[1]]
    assert max(len(step[3]) for step in steps if step[0] in {"rpush", "sadd", "hset", "zadd"}) <= 2
    assert snapshot(world.recovered()) == snapshot(world.node)
