"""Hashes, sorted sets, lists and sets: cases that the random comparison with a running Redis cannot show."""

import math

import pytest

from millstream.protocol import doubles
from millstream.replies import Error
from support.inprocess import WAITING, Client, World
from support.state import snapshot


@pytest.fixture
def world() -> World:
    return World({"notify-keyspace-events": "KEA"})


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def heard(world: World, client: Client, *lines: str) -> list[str]:
    """Run command lines and return the keyspace events, in order, as ``event key``."""
    listener = world.client()
    listener.call("PSUBSCRIBE", "__keyevent@0__:*")
    for line in lines:
        client.call(*line.split())
    told = [f"{message[2].decode().partition(':')[2]} {message[3].decode()}" for message in listener.inbox]
    listener.close()
    return told


@pytest.mark.parametrize(
    ("lines", "events"),
    [
        ("HSET h a 1|HINCRBY h a 1|HSETNX h b 1|HSETNX h b 1|HDEL h a b c", "hset hincrby hset hdel del"),
        (
            "ZADD z 1 a 2 b 3 c|ZADD z 1 a|ZINCRBY z 1 a|ZREM z a|ZPOPMIN z|ZPOPMAX z",
            "zadd zincr zrem zpopmin zpopmax del",
        ),
        ("ZADD z 1 a 2 b|ZREMRANGEBYSCORE z 1 1|ZREMRANGEBYRANK z 0 0", "zadd zremrangebyscore zremrangebyrank del"),
        ("LPUSH l a|RPUSH l b|LPOP l|RPOP l", "lpush rpush lpop rpop del"),
        ("SADD s a b|SADD s a|SREM s a|SREM s a b", "sadd srem srem del"),
        ("RPUSH l a|BLPOP l 0", "rpush lpop del"),
    ],
)
def test_changes_are_told_as_events(world: World, client: Client, lines: str, events: str) -> None:
    """Each change publishes its event, and removing the last element adds ``del``. No change means no event."""
    key = lines.split()[1]
    assert heard(world, client, *lines.split("|")) == [f"{event} {key}" for event in events.split()]


def test_encodings_change_once(client: Client) -> None:
    """One element too many or too long makes the encoding large for good. Only a list becomes small again."""

    def encoding(key: str) -> object:
        return client.call("OBJECT", "ENCODING", key)

    long, longer = "x" * 64, "x" * 65
    for add, key, after in (("HSET", "h", b"hashtable"), ("ZADD", "z", b"skiplist")):
        client.call(add, key, "1", long, "2", "3")
        assert encoding(key) == b"listpack"
        client.call(add, key, "1", longer)
        assert encoding(key) == after
        client.call("HDEL" if key == "h" else "ZREM", key, "1" if key == "h" else longer)
    assert (encoding("h"), encoding("z")) == (b"hashtable", b"skiplist")
    client.call("SADD", "s", "3", "1")
    assert (encoding("s"), client.call("SMEMBERS", "s")) == (b"intset", [b"1", b"3"])
    client.call("SADD", "s", "b", "a")
    assert (encoding("s"), client.call("SMEMBERS", "s")) == (b"listpack", [b"1", b"3", b"b", b"a"])
    client.call("SADD", "s", longer)
    assert encoding("s") == b"hashtable"
    client.call("RPUSH", "l", *["x" * 1000] * 9)
    assert encoding("l") == b"quicklist"
    client.call("LPOP", "l", 6)
    assert encoding("l") == b"listpack"


@pytest.mark.parametrize("count", [128, 129])
def test_many_elements_make_the_large_encoding(client: Client, count: int) -> None:
    """Collections convert to the large encoding at Redis's default limits."""
    client.call("ZADD", "z", *[word for number in range(count) for word in (number, f"m{number}")])
    assert client.call("OBJECT", "ENCODING", "z") == (b"listpack" if count == 128 else b"skiplist")


def test_blpop_takes_at_once_from_the_first_list_that_has_something(client: Client) -> None:
    """BLPOP takes from the first key in the given order that has an element. An empty list's key is deleted."""
    client.call("RPUSH", "b", "1", "2")
    assert client.call("BLPOP", "a", "b", "0") == [b"b", b"1"]
    assert client.call("BRPOP", "a", "b", "0") == [b"b", b"2"]
    assert client.call("EXISTS", "b") == 0


def test_pushes_serve_waiting_clients_in_turn(world: World, client: Client) -> None:
    """The client that waits longest gets the first element pushed. No other client sees that element."""
    first, second, third = world.client(), world.client(), world.client()
    for waiting in (first, second, third):
        assert waiting.send("BLPOP", "l", "other", "0") is WAITING
    assert client.call("RPUSH", "l", "1", "2") == 2
    assert (first.inbox, second.inbox, third.inbox) == ([[b"l", b"1"]], [[b"l", b"2"]], [])
    assert client.call("EXISTS", "l") == 0
    client.call("LPUSH", "other", "x")
    assert third.inbox == [[b"other", b"x"]]
    assert snapshot(world.recovered()) == snapshot(world.node)


def test_only_lists_wake_those_who_wait_for_lists(world: World, client: Client) -> None:
    """Another type at the key, or its deletion, wakes no list reader. XREAD and BLPOP can wait for one key."""
    popper, reader = world.client(), world.client()
    assert popper.send("BLPOP", "k", "0") is WAITING
    assert reader.send("XREAD", "BLOCK", "0", "STREAMS", "k", "$") is WAITING
    for line in ("SADD k a", "DEL k", "XADD k 1-1 f v", "DEL k", "SET k x", "DEL k"):
        client.call(*line.split())
    assert popper.waits
    assert reader.inbox == [[[b"k", [[b"1-1", [b"f", b"v"]]]]]]
    client.call("RPUSH", "k", "e")
    assert popper.inbox == [[b"k", b"e"]]


def test_a_wait_for_a_list_ends_with_its_time(world: World) -> None:
    """A blocked list command returns a null array after its timeout, also a fractional one, and not sooner."""
    waiting = world.client()
    assert waiting.send("BLPOP", "l", "0.25") is WAITING
    world.advance(249)
    assert waiting.inbox == []
    world.advance(1)
    assert waiting.inbox == [None]


def test_a_transaction_does_not_wait(world: World, client: Client) -> None:
    """BLPOP inside MULTI returns null. Elements that a transaction pushes go to waiting clients when it ends."""
    waiting = world.client()
    assert waiting.send("BLPOP", "l", "0") is WAITING
    for line in ("MULTI", "BLPOP l 0", "RPUSH l 1", "LPOP l"):
        client.call(*line.split())
    assert client.call("EXEC") == [None, 1, b"1"]
    assert waiting.waits
    for line in ("MULTI", "RPUSH l 1", "RPUSH l 2", "EXEC"):
        client.call(*line.split())
    assert waiting.inbox == [[b"l", b"1"]]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("x", "ERR timeout is not a float or out of range"),
        ("nan", "ERR timeout is not a float or out of range"),
        ("-1", "ERR timeout is negative"),
        ("1e300", "ERR timeout is out of range"),
        ("inf", "ERR timeout is out of range"),
        ("-inf", "ERR timeout is negative"),
    ],
)
def test_timeouts_that_make_no_sense_are_refused(client: Client, word: str, line: str) -> None:
    """A timeout that is negative or not a number is refused with Redis's error."""
    assert client.call("BLPOP", "l", word) == Error(line)


@pytest.mark.parametrize("word", ["-0.0009", "-1e-400", "-0"])
def test_a_negative_part_of_a_millisecond_waits_for_ever(client: Client, word: str) -> None:
    """A timeout between -1 ms and 0 blocks for ever: like Redis, the server rounds up before it checks the sign."""
    assert client.send("BLPOP", "l", word) is WAITING


@pytest.mark.parametrize(
    ("word", "score"),
    [("5e-324", b"5e-324"), ("inf", b"inf"), (".5", b"0.5"), ("5.", b"5"), ("-0", b"0"), ("-0x.8", b"-0.5")],
)
def test_scores_are_read_as_redis_8_does(client: Client, word: str, score: bytes) -> None:
    """A score is decimal or hexadecimal, as in Redis 8. A number beyond the range of doubles is an error."""
    assert client.call("ZADD", "z", word, "m") == 1
    assert client.call("ZSCORE", "z", "m") == score
    for beyond in ("1e400", "-1e400", "1e-400", "0x1p9999", "0x1p-9999"):
        assert client.call("ZADD", "z", beyond, "m") == Error("ERR value is not a valid float")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, b"3"),
        (-3.3, b"-3.3"),
        (1e20, b"1e+20"),
        (25150000000000000.0, b"25150000000000000"),
        (1e-5, b"0.00001"),
        (1e-7, b"1e-7"),
        (1.5e-9, b"1.5e-9"),
        (1.25e100, b"1.25e+100"),
        (0.1 + 0.2, b"0.30000000000000004"),
        (123.456, b"123.456"),
        (-0.0, b"-0"),
        (math.inf, b"inf"),
        (-math.inf, b"-inf"),
        (math.nan, b"nan"),
    ],
)
def test_doubles_are_written_short(value: float, text: bytes) -> None:
    """A double is written with the fewest digits that read back as the same number."""
    assert doubles.text(value) == text
    assert math.isnan(value) or float(text) == value


def test_scores_are_doubles_in_resp3(world: World) -> None:
    """In RESP3 a score is a double, and members and scores come in pairs."""
    client = world.client(3)
    client.call("ZADD", "z", "1.5", "a", "2", "b")
    assert client.call("ZSCORE", "z", "a") == 1.5
    assert client.call("ZRANGE", "z", "0", "-1", "WITHSCORES") == [[b"a", 1.5], [b"b", 2.0]]
    assert client.call("ZRANK", "z", "b", "WITHSCORE") == [1, 2.0]
    assert client.call("ZRANK", "z", "none", "WITHSCORE") is None
    assert client.call("ZPOPMAX", "z") == [b"b", 2.0]
    assert client.call("ZPOPMAX", "z", "1") == [[b"a", 1.5]]


def test_a_copy_shares_nothing(client: Client) -> None:
    """A change to a copied key does not change the original."""
    for line in ("HSET h a 1", "ZADD z 1 a", "RPUSH l a", "SADD s a"):
        client.call(*line.split())
    for key in "hzls":
        client.call("COPY", key, key + "2")
    for line in ("HSET h2 b 1", "ZADD z2 2 b", "RPUSH l2 b", "SADD s2 b"):
        client.call(*line.split())
    counts = [client.call(line, key) for line, key in (("HLEN", "h"), ("ZCARD", "z"), ("LLEN", "l"), ("SCARD", "s"))]
    assert counts == [1, 1, 1, 1]
    assert client.call("ZRANGE", "z2", "0", "-1") == [b"a", b"b"]


def test_hscan_answers_every_field(client: Client) -> None:
    """HSCAN returns every field in one step, by pattern, with or without values."""
    client.call("HSET", "h", "a1", "1", "a2", "2", "b", "3")
    assert client.call("HSCAN", "h", "0", "MATCH", "a*") == [b"0", [b"a1", b"1", b"a2", b"2"]]
    assert client.call("HSCAN", "h", "0", "COUNT", "1", "NOVALUES") == [b"0", [b"a1", b"a2", b"b"]]
    assert client.call("HSCAN", "none", "0") == [b"0", []]
    assert client.call("HSCAN", "h", "x") == Error("ERR invalid cursor")
    assert client.call("HSCAN", "h", "0", "COUNT", "0") == Error("ERR syntax error")


def test_memory_usage_grows_with_what_is_kept(client: Client) -> None:
    """MEMORY USAGE has an estimate for every type, and it grows with the value."""
    for line in ("HSET h a 1", "ZADD z 1 a", "RPUSH l a", "SADD s a"):
        client.call(*line.split())
    small = [client.call("MEMORY", "USAGE", key) for key in "hzls"]
    for line in (f"HSET h b {'x' * 500}", f"ZADD z 1 {'x' * 500}", f"RPUSH l {'x' * 500}", f"SADD s {'x' * 500}"):
        client.call(*line.split())
    large = [client.call("MEMORY", "USAGE", key) for key in "hzls"]
    assert all(after >= before + 500 for before, after in zip(small, large, strict=True))
