"""Commands besides those of streams: events, waits, and cases that random comparison cannot show."""

from collections.abc import Iterator

import pytest

from millstream.replies import Error
from support.inprocess import WAITING, Client, World
from support.servers import ServerProcess
from support.state import snapshot
from support.wire import Wire


@pytest.fixture
def world() -> Iterator[World]:
    """Return a node; at the end, check that its log rebuilds the same state."""
    world = World({"notify-keyspace-events": "KEA"})
    yield world
    assert snapshot(world.recovered()) == snapshot(world.node)


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def run(client: Client, *lines: str) -> list[object]:
    """Run command lines and return their replies."""
    return [client.call(*line.split()) for line in lines]


# ---------------------------------------------------------------------- events, beside a living server

SETUP = ("RPUSH l a b c a", "SADD s 1 2", "SADD s2 2", "ZADD z 1 a 2 b", "ZADD x 0 a 0 b", "SET b abc", "HSET h f 1")
EVENTFUL = (
    "LSET l 0 x",
    "LREM l 1 a",
    "LTRIM l 1 -1",
    "LTRIM l 5 9",
    "LTRIM l 0 -1",
    "LINSERT l BEFORE b x",
    "LINSERT l BEFORE none x",
    "LPUSHX l x",
    "RPUSHX none x",
    "LMOVE l l LEFT RIGHT",
    "LMOVE l new LEFT LEFT",
    "RPOPLPUSH l new",
    "LMPOP 2 none l LEFT COUNT 9",
    "BLMOVE l new RIGHT LEFT 0",
    "SMOVE s s2 1",
    "SMOVE s s2 2",
    "SMOVE s2 s 2",
    "SMOVE s2 new 2",
    "SINTERSTORE d s s2",
    "SINTERSTORE l s none",
    "SUNIONSTORE l s s2",
    "SDIFFSTORE none s s",
    "ZUNIONSTORE d 2 z s",
    "ZINTERSTORE z 2 z none",
    "ZDIFFSTORE z 1 z",
    "ZRANGESTORE d z 0 0",
    "ZRANGESTORE l z 5 6",
    "ZREMRANGEBYLEX x - +",
    "ZMPOP 1 z MIN COUNT 2",
    "BZPOPMAX z 0",
    "HINCRBYFLOAT h f 1.5",
    "SETBIT b 1 1",
    "SETBIT b 100 0",
    "SETBIT new 7 0",
    "BITOP NOT d b",
    "BITOP AND b none none",
    "BITFIELD b SET u8 0 7 SET u8 8 98 INCRBY u8 0 1",
    "BITFIELD new OVERFLOW FAIL INCRBY u2 0 7",
    "GEOADD g 1 1 a 2 2 b",
    "GEOADD g CH 1 1 a",
    "SORT l ALPHA STORE d",
    "SORT none STORE l",
    "SORT l BY nosort STORE l",
    "SORT l BY w* GET b GET # GET *",
    "SORT_RO s BY nosort",
    "SINTER s none",
    "SINTERCARD 2 s s2",
    "ZUNION 2 z none",
    "LINDEX l 0",
    "LPOS none a",
    "GETBIT b 1",
    "BITFIELD_RO none GET u8 0",
    "GEOPOS none a",
    "ZLEXCOUNT x - +",
    "SMISMEMBER s 1 2",
)


@pytest.mark.realserver
def test_changes_are_told_and_counted_as_redis_does(each_redis: ServerProcess) -> None:
    """Each command has Redis's keyspace events in Redis's order, and adds as much to INFO's count of changes."""
    real, listener = (Wire(f"redis://127.0.0.1:{each_redis.port}") for _ in range(2))
    real.ask("CONFIG", "SET", "notify-keyspace-events", "EAn")
    listener.ask("PSUBSCRIBE", "__keyevent@0__:*")
    try:
        for line in EVENTFUL:
            world = World({"notify-keyspace-events": "EAn"})
            client, hearer = world.client(), world.client()
            for each in ("FLUSHALL", *SETUP):
                client.call(*each.split())
                real.ask(*each.split())
            heard_until_now(listener)
            hearer.call("PSUBSCRIBE", "__keyevent@0__:*")
            before = counts(client.call("INFO")), counts(real.ask("INFO"))
            reply, wanted = client.call(*line.split()), real.ask(*line.split())
            assert isinstance(reply, Error) == isinstance(wanted, Exception), line
            after = counts(client.call("INFO")), counts(real.ask("INFO"))
            assert [message[2:] for message in hearer.inbox] == heard_until_now(listener), line
            ours, theirs = (
                [new - old for new, old in zip(*pair, strict=True)] for pair in zip(after, before, strict=True)
            )
            assert ours == theirs, line
            assert snapshot(world.recovered()) == snapshot(world.node), line
    finally:
        real.close()
        listener.close()


def heard_until_now(listener: Wire) -> list[list[bytes]]:
    """Return channel and text of the messages received so far."""
    listener.send("PING")
    found = []
    while (message := listener.read()) != [b"pong", b""]:
        found.append(message[2:])
    return found


def counts(info: object) -> list[int]:
    """Return the number of changes, and of keys that were looked up and found or not found."""
    assert isinstance(info, bytes)
    names = (b"rdb_changes_since_last_save:", b"keyspace_hits:", b"keyspace_misses:")
    return [int(info.partition(name)[2].split()[0]) for name in names]


# ---------------------------------------------------------------------- waiting


def test_those_who_wait_for_lists_are_served_in_order(world: World, client: Client) -> None:
    """Clients blocked on lists are served in order. A moved element goes to one waiting client only."""
    popper, mover, taker = world.client(), world.client(), world.client()
    assert mover.send("BLMOVE", "l", "m", "LEFT", "RIGHT", "0") is WAITING
    assert popper.send("BLPOP", "l", "0") is WAITING
    assert taker.send("BLMPOP", "0", "2", "m", "l", "LEFT", "COUNT", "5") is WAITING
    assert client.call("RPUSH", "l", "1", "2") == 2
    assert (mover.inbox, popper.inbox, taker.inbox) == ([b"1"], [[b"l", b"2"]], [[b"m", [b"1"]]])
    assert client.call("EXISTS", "l", "m") == 0


@pytest.mark.parametrize(
    "line", ["ZADD z 1 a", "ZINCRBY z 1 a", "GEOADD z 0 0 a", "ZUNIONSTORE z 1 other", "ZRANGESTORE z other 0 0"]
)
def test_whatever_makes_a_sorted_set_serves_those_who_wait_for_it(world: World, client: Client, line: str) -> None:
    """BZPOPMIN, BZPOPMAX and BZMPOP are served first come, first served. Sets and lists wake none of them."""
    first, second = world.client(), world.client()
    assert first.send("BZPOPMIN", "z", "0") is WAITING
    assert second.send("BZMPOP", "0", "1", "z", "MAX") is WAITING
    run(client, "RPUSH z x", "DEL z", "ZADD other 1 a", line)
    score = client.call("ZSCORE", "other", "a") if "other" in line else None
    assert first.inbox[0][:2] == [b"z", b"a"]
    assert score is None or first.inbox[0][2] == score
    assert second.waits
    run(client, "ZADD z 3 b 4 c")
    assert second.inbox == [[b"z", [[b"c", b"4"]]]]


@pytest.mark.parametrize(
    ("line", "late"),
    [
        ("BLMOVE l m LEFT LEFT 0.5", None),
        ("BRPOPLPUSH l m 0.5", None),
        ("BLMPOP 0.5 1 l LEFT", None),
        ("BZPOPMIN z 0.5", None),
        ("BZMPOP 0.5 1 z MIN", None),
    ],
)
def test_waits_end_with_their_time_and_do_not_begin_in_a_transaction(world: World, line: str, late: object) -> None:
    """A blocked command returns null after its timeout, not sooner. In MULTI and scripts it returns null at once."""
    waiting, busy = world.client(), world.client()
    assert waiting.send(*line.split()) is WAITING
    world.advance(499)
    assert waiting.inbox == []
    world.advance(1)
    assert waiting.inbox == [late]
    run(busy, "MULTI", line)
    assert busy.call("EXEC") == [None]
    script = "return redis.call(unpack(ARGV))"
    assert busy.call("EVAL", script, "0", *line.split()) is None


def test_a_key_that_is_renamed_into_a_wait_serves_it(world: World, client: Client) -> None:
    """RENAME, COPY and MOVE of a list or sorted set to a key serve the clients that wait for that key."""
    first, second, third = world.client(), world.client(), world.client()
    assert first.send("BLMOVE", "l", "m", "LEFT", "LEFT", "0") is WAITING
    assert second.send("BZPOPMIN", "z", "0") is WAITING
    assert third.send("BRPOPLPUSH", "r", "r", "0") is WAITING
    run(client, "RPUSH a 1", "RENAME a l", "ZADD b 1 x", "COPY b z", "SELECT 1", "RPUSH r 7", "MOVE r 0")
    assert (first.inbox, second.inbox, third.inbox) == ([b"1"], [[b"z", b"x", b"1"]], [b"7"])


def test_a_moved_element_breaks_watches_of_both_lists(world: World, client: Client) -> None:
    """A move breaks WATCHes of both lists; if the source is missing, of neither.

    An LTRIM without effect breaks them too.
    """
    for line, breaks in (("LMOVE l m LEFT LEFT", True), ("LMOVE none m LEFT LEFT", False), ("LTRIM l 0 -1", True)):
        for key in ("l", "m") if breaks and "LMOVE" in line else ("l",):
            run(client, "DEL l m", "RPUSH l a b", f"WATCH {key}", "MULTI", "PING")
            world.client().call(*line.split())
            assert (client.call("EXEC") is None) == breaks, (line, key)


def test_a_target_of_another_type_ends_a_wait_with_an_error(world: World, client: Client) -> None:
    """If the target of a blocking move has another type, the waiting client gets an error and the element stays."""
    waiting = world.client()
    assert waiting.send("BLMOVE", "l", "s", "LEFT", "LEFT", "0") is WAITING
    run(client, "SADD s x", "RPUSH l 1")
    assert waiting.inbox == [Error("WRONGTYPE Operation against a key holding the wrong kind of value")]
    assert client.call("LRANGE", "l", "0", "-1") == [b"1"]


# ---------------------------------------------------------------------- rights, sizes


def test_patterns_of_sort_need_the_right_to_read_every_key(world: World, client: Client) -> None:
    """GET and BY of SORT need read permission for every key, since they name keys at run time.

    BY without ``*`` does not.
    """
    run(client, "ACL SETUSER u on nopass +@all ~l*", "RPUSH l 2 1")
    other = world.client()
    other.call("AUTH", "u", "x")
    for word in ("BY", "GET"):
        line = f"ERR {word} option of SORT denied due to insufficient ACL permissions."
        assert other.call("SORT", "l", word, "w*") == Error(line)
    assert other.call("SORT", "l") == [b"1", b"2"]
    assert other.call("SORT", "l", "BY", "nosort") == [b"2", b"1"]
    assert other.call("SORT", "l", "STORE", "m") == Error("NOPERM No permissions to access a key")
    run(client, "ACL SETUSER u %R~*")
    assert other.call("SORT", "l", "GET", "w*") == [None, None]


def test_a_changed_list_keeps_its_place_between_the_encodings(client: Client) -> None:
    """LSET, LINSERT, LREM and LTRIM count a list's bytes for its encoding as pushing and popping do."""

    def encoding() -> object:
        return client.call("OBJECT", "ENCODING", "l")

    client.call("RPUSH", "l", *["x" * 1000] * 8)
    assert encoding() == b"listpack"
    client.call("LINSERT", "l", "BEFORE", "x" * 1000, "y" * 1000)
    assert encoding() == b"quicklist"
    client.call("LREM", "l", "4", "x" * 1000)
    assert encoding() == b"quicklist"
    client.call("LTRIM", "l", "0", "3")
    assert encoding() == b"listpack"
    client.call("LSET", "l", "0", "z" * 6000)
    assert encoding() == b"quicklist"
    client.call("LSET", "l", "0", "z")
    assert encoding() == b"listpack"


# ---------------------------------------------------------------------- newer than most servers

HASH_LINES = """HSETEX h FIELDS 1 a 1|HSETEX h KEEPTTL FIELDS 1 b 1|HSETEX h FNX FIELDS 2 b 1 c 2|HGETALL h
HSETEX h FXX FIELDS 2 b 3 a 2|HSETEX h FXX FIELDS 2 b 3 c 2|HGETALL h|HSETEX h FIELDS 2 a 1|HSETEX h FIELDS 0 a 1
HSETEX h FIELDS x a 1|HSETEX h KEEPTTL KEEPTTL FIELDS 1 a 1|HSETEX h FNX FXX FIELDS 1 a 1|HSETEX h a b c d e
HSETEX h FIELDS 1 a 1 b 2|HSETEX h FIELDS 9223372036854775807 a 1|HSETEX none FXX FIELDS 1 a 1|EXISTS none|SET s x
HSETEX s FIELDS 1 a 1|HSETEX s FIELDS 2 a 1|HSETEX h FNX FIELDS 2 q 1 q 2|HSETEX h fields 3 a 1 b 2 FNX KEEPTTL
HGETDEL h FIELDS 1 a|HGETDEL h FIELDS 2 a b|HGETDEL h FIELDS 2 a|HGETDEL h FIELDS 0 a|HGETDEL h BAD 1 a
HGETDEL none FIELDS 2 a b|HGETDEL s FIELDS 1 a b|HGETDEL h fields 3 q q FNX|HGETDEL h FIELDS 1|EXISTS h"""


@pytest.mark.realserver
def test_fields_are_set_and_taken_as_redis_8_does(each_redis: ServerProcess) -> None:
    """HSETEX and HGETDEL, which Redis 7.0 lacks, set and take fields as Redis 8 does."""
    if each_redis.release() < (8, 0):
        pytest.skip("it has no HSETEX")
    real, client = Wire(f"redis://127.0.0.1:{each_redis.port}"), World().client()
    try:
        real.ask("FLUSHALL")
        for line in HASH_LINES.replace("\n", "|").split("|"):
            ours, theirs = client.call(*line.split()), real.ask(*line.split())
            told = ours.line if isinstance(ours, Error) else getattr(ours, "text", ours)
            assert told == (str(theirs) if isinstance(theirs, Exception) else theirs), line
    finally:
        real.close()


@pytest.mark.parametrize(
    ("lines", "replies"),
    [
        ("HSETEX h KEEPTTL FIELDS 1 a 1|HGETDEL h FIELDS 2 a b|EXISTS h", [1, [b"1", None], 0]),
        ("HSETEX h EX 10 FIELDS 1 a 1", [Error("ERR unknown argument: EX")]),
        ("SET k a|DELEX k IFEQ b|DELEX k IFNE a|DELEX k IFEQ a|DELEX k IFNE x|EXISTS k", [b"OK", 0, 0, 1, 0, 0]),
        ("RPUSH l a|DELEX l IFEQ a|DELEX l|DELEX l", [1, "ERR Key should be of string type", 1, 0]),
        (
            "DELEX k IFEQ|DELEX k IFDEQ 0|SET k a|DELEX k IFDEQ 0",
            ["ERR wrong number", 0, b"OK", "ERR Invalid condition"],
        ),
        (
            "INCREX k LBOUND x|INCREX k BYFLOAT 1 UBOUND x|INCREX k BYFLOAT inf|INCREX k BYFLOAT 1 LBOUND inf",
            ["ERR LBOUND is not an integer", "ERR UBOUND is not a valid float", "ERR BYFLOAT", "ERR LBOUND can't"],
        ),
        ("INCREX k BYFLOAT 1 UBOUND inf LBOUND -inf", [[b"1", b"1"]]),
        (
            "INCREX k BYFLOAT 1 LBOUND inf UBOUND inf|INCREX k BYFLOAT 1 UBOUND -inf|EXISTS k",
            [[b"0", b"0"], "ERR LBOUND can't", 0],
        ),
        ("INCREX k BYFLOAT 1 UBOUND inf LBOUND inf SATURATE|EXISTS k", ["ERR applied increment would be Infinity", 0]),
        (
            "MSETEX 2 a 1 b 2|MGET a b|MSETEX 2 b 3 c 3 NX|MSETEX 2 b 3 c 3 XX|MGET b c",
            [1, [b"1", b"2"], 0, 0, [b"2", None]],
        ),
        ("MSETEX 1 a 1 EX 100|TTL a|MSETEX 1 a 2 KEEPTTL|TTL a|MSETEX 1 a 3|TTL a", [1, 100, 1, 100, 1, -1]),
        (
            "MSETEX 0 a 1|MSETEX 2 a 1|MSETEX 1 a 1 EX 0|MSETEX 1 a 1 GET",
            ["ERR invalid numkeys", "ERR wrong", "ERR inv", "ERR s"],
        ),
        ("INCREX k|INCREX k BYINT 5|INCREX k BYINT -2 EX 100|TTL k|GET k", [[1, 1], [6, 5], [4, -2], 100, b"4"]),
        (
            "SET k 98|INCREX k BYINT 5 UBOUND 100|INCREX k BYINT 5 UBOUND 100 SATURATE|GET k",
            [b"OK", [98, 0], [100, 2], b"100"],
        ),
        ("INCREX none BYINT 5 UBOUND 1|EXISTS none|INCREX none LBOUND 3 SATURATE", [[0, 0], 0, [3, 3]]),
        (
            "INCREX k BYFLOAT 0.1|INCREX k BYFLOAT 0.2|INCREX k",
            [[b"0.1", b"0.1"], [b"0.3", b"0.2"], "ERR value is not an"],
        ),
        ("SET k 9223372036854775807|INCREX k|INCREX k SATURATE", [b"OK", [2**63 - 1, 0], [2**63 - 1, 0]]),
        (
            "SET k 1 EX 50|INCREX k|TTL k|INCREX k EX 9 ENX|TTL k|INCREX k PERSIST|TTL k",
            [b"OK", [2, 1], 50, [3, 1], 50, [4, 1], -1],
        ),
        (
            "INCREX k ENX|INCREX k PERSIST EX 1|INCREX k BYINT x|INCREX k BYINT 1 BYFLOAT 1",
            ["ERR ENX flag", "ERR s", "ERR Increment is not an integer", "ERR s"],
        ),
        ("RPUSH l a|INCREX l|SET s a|INCREX s", [1, "WRONGTYPE", b"OK", "ERR value is not an integer"]),
    ],
)
def test_newer_commands_do_as_published(client: Client, lines: str, replies: list[object]) -> None:
    """HSETEX, HGETDEL (8.0), DELEX, MSETEX (8.4) and INCREX (8.8) work as published. Errors start as published."""
    for line, wanted in zip(lines.split("|"), replies, strict=True):
        found = client.call(*line.split())
        if isinstance(wanted, str):
            assert isinstance(found, Error), line
            assert found.line.startswith(wanted), line
        else:
            assert getattr(found, "text", found) == wanted, line


def test_increx_answers_all_digits_in_resp3(world: World) -> None:
    """INCREX returns all digits in RESP3, also beyond a double's range and precision. A script gets a number."""
    client = world.client(3)
    assert client.raw("INCREX", "k", "BYFLOAT", "12345678901234567.25") == (
        b"*2\r\n,12345678901234567.25\r\n,12345678901234567.25\r\n"
    )
    large = client.raw("INCREX", "far", "BYFLOAT", "1e400")
    assert large == b"*2\r\n" + 2 * (b",%s\r\n" % client.call("GET", "far"))
    assert client.call("EVAL", "return redis.call('INCREX', 'k', 'BYFLOAT', '1')[2]", 0) == b"1"
    assert client.call("EVAL", "redis.setresp(3); return redis.call('INCREX', 'k', 'BYFLOAT', '1')[2].double", 0) == 1


def test_increx_with_a_time_that_is_over_deletes(world: World, client: Client) -> None:
    """INCREX with a time in the past deletes the key with one ``del`` event.

    With ENX the key keeps its own time to live.
    """
    listening = world.client()
    client.call("CONFIG", "SET", "notify-keyspace-events", "KEA")
    listening.call("PSUBSCRIBE", "__keyevent@0__:*")
    client.call("SET", "k", 10)
    assert client.call("INCREX", "k", "EXAT", 1) == [11, 1]
    assert client.call("INCREX", "none", "EXAT", 1) == [1, 1]
    assert client.call("EXISTS", "k", "none") == 0
    world.deliver()
    assert [message[2].rpartition(b":")[2] for message in listening.inbox] == [b"set", b"del"]


def test_increx_takes_a_sum_beyond_long_doubles_for_one_beyond_the_bound(client: Client) -> None:
    """An INCREX sum beyond a long double is out of bounds: it adds 0 or saturates.

    Only an infinite difference is an error.
    """
    far = "1e4932"
    client.call("SET", "k", far)
    value, added = client.call("INCREX", "k", "BYFLOAT", far, "EX", "9")
    assert (added, client.call("TTL", "k"), client.call("GET", "k")) == (b"0", -1, far.encode())
    assert client.call("INCREX", "k", "BYFLOAT", far, "SATURATE")[0] == client.call("GET", "k") > value
    client.call("SET", "k", 5)
    assert client.call("INCREX", "k", "BYFLOAT", far, "UBOUND", 100, "SATURATE") == [b"100", b"95"]
    client.call("SET", "k", "-" + far)
    refused = client.call("INCREX", "k", "BYFLOAT", far, "LBOUND", far, "SATURATE")
    assert refused == Error("ERR applied increment would be Infinity")
    client.call("SET", "k", "inf")
    assert client.call("INCREX", "k", "BYFLOAT", 1) == Error("ERR value cannot be Infinity")


def test_increx_changes_nothing_that_it_cannot_report(client: Client) -> None:
    """INCREX is refused if SATURATE would add more than a RESP integer holds, and changes nothing."""
    client.call("SET", "k", str(-(2**63)))
    refused = client.call("INCREX", "k", "SATURATE", "LBOUND", str(2**63 - 1))
    assert refused == Error("ERR applied increment would overflow")
    assert client.call("GET", "k") == b"-9223372036854775808"
