"""DUMP and RESTORE: a value comes back whole, from Millstream and from Redis, and bad payloads are refused."""

import hashlib
import random
from contextlib import closing

import pytest
from redis.exceptions import ResponseError

from millstream.engine.keyspace import Value
from millstream.engine.serialization import dump, plain
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb import bulk as rdb_bulk
from millstream.engine.serialization.rdb import payload as rdb
from millstream.engine.streams.listpack import back
from millstream.engine.streams.nodes import encode_entry
from millstream.engine.streams.stream import Stream
from millstream.replies import Error, Simple
from support.inprocess import World
from support.resp import fields
from support.servers import ServerProcess
from support.state import check, snapshot
from support.wire import Wire

OK = Simple(b"OK")
WRONG = "ERR DUMP payload version or checksum are wrong"
BAD = "ERR Bad data format"


@pytest.fixture
def world() -> World:
    """Return a world with small blocks, so that a short stream has many."""
    return World({"stream-node-max-entries": "4"})


def fill(world: World) -> None:
    """Write one key of each type; the stream has every feature of streams."""
    client = world.client()
    for number in range(1, 31):
        client.call("XADD", "s", f"{number}-1", "name", f"n{number}", "value", number)
    client.call("XADD", "s", "31-1", "other", b"\x00\xff", "", "")
    client.call("XDEL", "s", "2-1", "9-1", "10-1", "31-1")
    for pid in ("p", ""):
        if pid:
            client.call("XADD", "s", "IDMP", pid, "m1", "*", "a", "b")
            client.call("XADD", "s", "IDMP", pid, "m1", "*", "a", "b")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XGROUP", "CREATE", "s", b"\xff\x00", "5-1", "ENTRIESREAD", 3)
    client.call("XGROUP", "CREATECONSUMER", "s", "g", "idle")
    client.call("XREADGROUP", "GROUP", "g", "zoe", "COUNT", 5, "STREAMS", "s", ">")
    world.clock.advance(50)
    client.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", 9, "STREAMS", "s", ">")
    client.call("XNACK", "s", "g", "FAIL", "IDS", 2, "7-1", "1-1")
    client.call("XCLAIM", "s", "g", "bert", 0, "3-1", "TIME", 5)
    client.call("XDEL", "s", "4-1")
    client.call("SET", "word", "text")
    client.call("SET", "number", "12345")
    client.call("HSET", "hash", "a", "1", "b", "2")
    client.call("ZADD", "zset", "1.5", "a", "-inf", "b")
    client.call("RPUSH", "list", "b", "a", "b")
    client.call("SADD", "set", "3", "1", "2")


KEYS = ["s", "word", "number", "hash", "zset", "list", "set"]


@pytest.mark.parametrize("key", KEYS)
def test_what_is_dumped_comes_back_whole(world: World, key: str) -> None:
    """A dump has every field that any command shows: blocks, tombstones, groups, order, times, messages, counters."""
    fill(world)
    client = world.client()
    before = snapshot(world.node)[0][key.encode()]
    payload = client.call("DUMP", key)
    assert client.call("RESTORE", "other", 0, payload) == OK
    assert client.call("RESTORE", key, 0, payload, "REPLACE") == OK
    for name in (key.encode(), b"other"):
        assert snapshot(world.node)[0][name] == before
    assert client.call("DUMP", "other") == payload
    assert snapshot(world.recovered()) == snapshot(world.node)


def test_a_restored_stream_goes_on(world: World) -> None:
    """A restored stream continues adding, reading and deduplicating messages from its dumped state."""
    fill(world)
    client = world.client()
    known = client.call("XADD", "s", "IDMP", "p", "m1", "*", "a", "b")
    client.call("RESTORE", "s", 0, client.call("DUMP", "s"), "REPLACE")
    assert client.call("XADD", "s", "IDMP", "p", "m1", "*", "a", "b") == known
    client.call("XADD", "s", "*", "a", "b")
    assert client.call("XREADGROUP", "GROUP", "g", "carl", "COUNT", 1, "STREAMS", "s", ">")[0][1][0][0] == b"18-1"
    check(world.node)


def test_messages_of_a_restored_stream_are_forgotten_in_time(world: World) -> None:
    """The messages of a stream from RESTORE expire from deduplication in time, in this process and after recovery."""
    client = world.client()
    client.call("XADD", "s", "IDMP", "p", "m", "*", "a", "b")
    payload = client.call("DUMP", "s")
    client.call("DEL", "s")
    world.advance(1000)
    client.call("RESTORE", "t", 0, payload)
    world.advance(200_000)
    world.advance(200)
    info = client.call("XINFO", "STREAM", "t")
    assert info[info.index(b"pids-tracked") + 1] == 0


def test_dump_of_no_key(world: World) -> None:
    """DUMP of a missing key returns null."""
    assert world.client().call("DUMP", "none") is None


def test_options_of_restore(world: World) -> None:
    """RESTORE takes a TTL in milliseconds or an absolute time, IDLETIME and FREQ. A time in the past creates no key."""
    client = world.client()
    client.call("SET", "a", "x")
    payload = client.call("DUMP", "a")
    now = world.clock.now().wall
    assert client.call("RESTORE", "b", 5000, payload) == OK
    assert client.call("PTTL", "b") == 5000
    assert client.call("RESTORE", "b", now + 700, payload, "replace", "absttl", "idletime", 3) == OK
    assert client.call("PEXPIRETIME", "b") == now + 700
    assert client.call("RESTORE", "c", 0, payload, "FREQ", 255, "REPLACE") == OK
    assert client.call("PTTL", "c") == -1
    assert client.call("RESTORE", "c", 1, payload, "ABSTTL", "REPLACE") == OK
    assert client.call("EXISTS", "c") == 0
    world.advance(800)
    assert client.call("EXISTS", "b") == 0
    assert snapshot(world.recovered()) == snapshot(world.node)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["a", 0, "PAYLOAD"], "BUSYKEY Target key name already exists."),
        (["a", -1, "x"], "BUSYKEY Target key name already exists."),
        (["b", -1, "PAYLOAD"], "ERR Invalid TTL value, must be >= 0"),
        (["b", 2**63 - 1, "PAYLOAD"], "ERR Invalid TTL value, must be >= 0"),
        (["b", "x", "PAYLOAD"], "ERR value is not an integer or out of range"),
        (["b", 0, ""], WRONG),
        (["b", 0, b"\x81"], WRONG),
        (["b", 0, "anything that is long enough"], WRONG),
        (["b", 0, "PAYLOAD", "NOSUCH"], "ERR syntax error"),
        (["b", 0, "PAYLOAD", "IDLETIME"], "ERR syntax error"),
        (["b", 0, "PAYLOAD", "IDLETIME", 1, "FREQ", 1], "ERR syntax error"),
        (["b", 0, "PAYLOAD", "FREQ", 1, "IDLETIME", 1], "ERR syntax error"),
        (["b", 0, "PAYLOAD", "IDLETIME", -1], "ERR Invalid IDLETIME value, must be >= 0"),
        (["b", 0, "PAYLOAD", "FREQ", 256], "ERR Invalid FREQ value, must be >= 0 and <= 255"),
    ],
)
def test_refusals_of_restore(world: World, words: list[str | int | bytes], error: str) -> None:
    """RESTORE has Redis's errors, in Redis's order, and an error changes nothing."""
    client = world.client()
    client.call("SET", "a", "x")
    payload = client.call("DUMP", "a")
    told = client.call("RESTORE", *[payload if word == "PAYLOAD" else word for word in words])
    assert told == Error(error)
    assert client.call("KEYS", "*") == [b"a"]


def test_restore_serves_who_waits(world: World) -> None:
    """RESTORE serves a reader blocked on the missing key. A group reader whose key it replaces gets an error."""
    client, reader = world.client(), world.client()
    client.call("XADD", "s", "1-1", "a", "b")
    payload = client.call("DUMP", "s")
    reader.send("XREAD", "BLOCK", 0, "STREAMS", "t", "0")
    client.call("RESTORE", "t", 0, payload)
    assert reader.inbox == [[[b"t", [[b"1-1", [b"a", b"b"]]]]]]
    client.call("XGROUP", "CREATE", "s", "g", "$")
    reader.send("XREADGROUP", "GROUP", "g", "anna", "BLOCK", 0, "STREAMS", "s", ">")
    client.call("RESTORE", "s", 0, payload, "REPLACE")
    assert reader.inbox[1].line.startswith("NOGROUP ")


# ---------------------------------------------------------------------- hostile bytes


def test_no_damaged_payload_is_taken(world: World) -> None:
    """The checksum detects any changed byte and any missing part of a payload."""
    fill(world)
    client = world.client()
    payload = client.call("DUMP", "s")
    assert isinstance(payload, bytes)
    for at in range(0, len(payload), 7):
        damaged = payload[:at] + bytes([payload[at] ^ 0x55]) + payload[at + 1 :]
        assert client.call("RESTORE", "t", 0, damaged) == Error(WRONG)
        assert client.call("RESTORE", "t", 0, payload[:at]) == Error(WRONG)


def sealed(body: bytes) -> bytes:
    """Return a body with a valid version and checksum."""
    body += dump.VERSION.to_bytes(2, "little")
    return body + hashlib.blake2b(body, digest_size=8).digest()


def test_payloads_made_up_with_a_right_checksum_break_nothing(world: World) -> None:
    """An invented payload with a valid checksum is refused, or is a valid value that dumps to a restorable payload."""
    fill(world)
    client = world.client()
    chance = random.Random(7)
    taken = 0
    for key in KEYS:
        payload = client.call("DUMP", key)
        assert isinstance(payload, bytes)
        for _ in range(400):
            body = bytearray(payload[:-10])
            for _ in range(chance.randint(1, 3)):
                body[chance.randrange(len(body))] = chance.choice([0, 1, 5, 6, 127, 255, chance.randrange(256)])
            told = client.call("RESTORE", "t", 0, sealed(bytes(body)), "REPLACE")
            if told == OK:
                taken += 1
                check(world.node)
                again = client.call("DUMP", "t")
                assert client.call("RESTORE", "t", 0, again, "REPLACE") == OK
            else:
                assert told in (Error(BAD), Error(WRONG))
    assert taken > 100


ENTRY = [1, False, b"a", b"b"]
HOLDER = [b"c", 0, -1]
MEMORY = [100, 100, 0, 0, []]


@pytest.mark.parametrize(
    "content",
    [
        b"no list",
        [0, 0, 0, MEMORY, []],
        [0, 0, 1, MEMORY, [[ENTRY]], []],
        [1, 2, 1, MEMORY, [[ENTRY]], []],
        [1, 0, 0, MEMORY, [[ENTRY]], []],
        [2, 0, 2, MEMORY, [[ENTRY], [ENTRY]], []],
        [1, 0, 1, MEMORY, [[ENTRY], [[1, True, b"a", b"b"]]], []],
        [1, 0, 1, MEMORY, [[]], []],
        [1, 0, 1, MEMORY, [[ENTRY, [1, False, b"a", b"b"]]], []],
        [1, 0, 1, MEMORY, [[[1, False, b"a"]]], []],
        [1, 0, 1, MEMORY, [[[1, False, b"a", 5]]], []],
        [1, 0, 1, MEMORY, [[[1, 0, b"a", b"b"]]], []],
        [2**128, 0, 1, MEMORY, [[ENTRY]], []],
        [1, 0, 2**63, MEMORY, [[ENTRY]], []],
        [1, 0, 1, [100, 1, 0, 0, [[b"p", [b"i", 1, b"j", 1]]]], [[ENTRY]], []],
        [1, 0, 1, [100, 1, 0, 0, [[b"p", [b"i"]]]], [[ENTRY]], []],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [], []], [b"g", 0, 0, [], []]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, -2, [], []]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [HOLDER, HOLDER], []]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [HOLDER], [[1, 1, 0, 1]]]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [HOLDER], [[1, 0, 0, 1], [1, 0, 0, 1]]]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [HOLDER], [[1, 0, 5, 1], [2, 0, 4, 1]]]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [HOLDER], [[1, 0, 5, 1], [2, None, 0, 1]]]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [HOLDER], [[1, 0, 5, 2**63]]]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [HOLDER], [[1, -1, 5, 1]]]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [HOLDER], [[1, 0, 1 - 2**63, 1]]]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [[b"c", 1 - 2**63, -1]], []]]],
        [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [[b"c", 0, 1 - 2**63]], []]]],
    ],
)
def test_streams_that_no_stream_can_be(content: object) -> None:
    """RESTORE checks each rule of a stream and refuses a payload that breaks one."""
    good = [1, 0, 1, MEMORY, [[ENTRY]], [[b"g", 0, 0, [HOLDER], [[1, 0, 5, 1]]]]]
    stream = dump.load(sealed(b"\x81" + plain.pack(good)))
    assert isinstance(stream, Stream)
    assert stream.length == 1
    with pytest.raises(MalformedError):
        dump.load(sealed(b"\x81" + plain.pack(content)))


@pytest.mark.parametrize(
    "body",
    [
        b"\x80" + plain.pack(5),
        b"\x82" + plain.pack([]),
        b"\x82" + plain.pack([b"a"]),
        b"\x82" + plain.pack([b"a", b"1", b"a", b"2"]),
        b"\x83" + plain.pack([b"", []]),
        b"\x83" + plain.pack([b"\0" * 8, [b"a", b"b"]]),
        b"\x83" + plain.pack([b"\x7f\xf8" + b"\0" * 6, [b"a"]]),
        b"\x84" + plain.pack([]),
        b"\x84" + plain.pack([1]),
        b"\x85" + plain.pack([b"a", b"a"]),
        b"\x85" + plain.pack([b"a"]) + b"\0",
        b"\x85" + plain.pack([b"a"])[:-1],
        b"\x85\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x85\x06\xff\xff\xff\xff\x01",
        b"\x85" + b"\x06\x01" * 5000 + b"\x06\x00",
        b"\x85\x07",
        b"\x85",
        b"\x85\x03" + b"\xff" * 40 + b"\x01",
    ],
)
def test_bodies_that_are_no_value(body: bytes) -> None:
    """Wrong types, sizes beyond the end, deep nesting and leftover bytes are refused before any value is built."""
    with pytest.raises(MalformedError):
        dump.load(sealed(body))


# ---------------------------------------------------------------------- payloads of Redis


def rdb_sealed(body: bytes, version: int = 9) -> bytes:
    body += version.to_bytes(2, "little")
    return body + rdb_bulk.crc64(body).to_bytes(8, "little")


def test_checksum_of_redis() -> None:
    """The checksum has the check value of Redis's own test."""
    assert rdb_bulk.crc64(b"123456789") == 0xE9C6D914C4B8D9CA


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"\x00\x03abc", b"abc"),
        (b"\x00\x40\x03abc", b"abc"),
        (b"\x00\x80\x00\x00\x00\x03abc", b"abc"),
        (b"\x00\x81" + b"\x00" * 7 + b"\x03abc", b"abc"),
        (b"\x00\xc0\xff", b"-1"),
        (b"\x00\xc1\x00\x01", b"256"),
        (b"\x00\xc2\xff\xff\xff\x7f", b"2147483647"),
        (b"\x00\xc3\x06\x0a\x01ab\xe0\x00\x01", None),  # copies nine bytes: eleven, not ten
        (b"\x00\xc3\x06\x0b\x01ab\xe0\x00\x01", b"ab" * 5 + b"a"),
        (b"\x00\xc3\x02\x02\x20\x05", None),
        (b"\x00\xc3\x02\x81" + b"\x7f" * 8 + b"\x00a", None),
        (b"\x00\xc4\x00", None),
        (b"\x00\xbf\x00", None),
        (b"\x00\x05abc", None),
        (b"\x00\x03abcd", None),
        (b"\x05\x03abc", None),
    ],
)
def test_strings_of_redis(world: World, body: bytes, value: bytes | None) -> None:
    """RESTORE reads every encoding of a string that Redis writes, and refuses any other."""
    client = world.client()
    told = client.call("RESTORE", "a", 0, rdb_sealed(body))
    assert (client.call("GET", "a") if told == OK else None) == value
    assert told in (OK, Error(BAD))
    assert snapshot(world.recovered()) == snapshot(world.node)


def test_versions_of_redis_after_ours_are_refused(world: World) -> None:
    """A payload of a newer Redis format than the supported one is refused."""
    payload = rdb_sealed(b"\x00\x03abc", rdb.NEWEST + 1)
    assert world.client().call("RESTORE", "a", 0, payload) == Error(WRONG)


def number(value: int) -> bytes:
    """Return a listpack element with a small number."""
    return bytes([value, 1])


def text(value: bytes) -> bytes:
    return bytes([0x80 | len(value)]) + value + bytes([len(value) + 1])


def stream_of_redis(kind: int, active: int = 77, read: bytes = b"\x01", delivered: int = 50) -> bytes:
    """Return a Redis payload: entries 1-1 and 1-3, deleted 1-2, and group g, which delivered 1-1 to anna at time 50."""
    packed = number(2) + number(1) + number(1) + text(b"f") + number(0)
    packed += number(2) + number(0) + number(0) + text(b"a") + number(4)
    packed += number(3) + number(0) + number(1) + text(b"b") + number(4)
    packed += number(0) + number(0) + number(2) + number(1) + text(b"g") + b"\xf1\x00\x80\x03" + number(6)
    listpack = (len(packed) + 7).to_bytes(4, "little") + b"\x00\x00" + packed + b"\xff"
    first = (1).to_bytes(8, "big") + (1).to_bytes(8, "big")
    body = bytes([kind, 1, 16]) + first + bytes([len(listpack)]) + listpack + bytes([2, 1, 3])
    if kind > 15:
        body += bytes([1, 1, 1, 2, 3])
    body += b"\x01\x01g\x01\x01" + (read if kind > 15 else b"")
    body += b"\x01" + first + delivered.to_bytes(8, "little", signed=True) + b"\x03"
    body += b"\x01\x04anna" + (60).to_bytes(8, "little")
    if kind > 19:
        body += active.to_bytes(8, "little", signed=True)
    return rdb_sealed(body + b"\x01" + first, 11)


@pytest.mark.parametrize("kind", [15, 19, 21])
def test_streams_of_redis(world: World, kind: int) -> None:
    """The three stream formats of Redis are read. Fields that the oldest lacks are computed as Redis does."""
    client = world.client()
    assert client.call("RESTORE", "s", 0, stream_of_redis(kind)) == OK
    assert client.call("XRANGE", "s", "-", "+") == [[b"1-1", [b"f", b"a"]], [b"1-3", [b"g", b"-32768"]]]
    info = client.call("XINFO", "STREAM", "s", "FULL")
    told = dict(zip(info[::2], info[1::2], strict=True))
    assert told[b"last-generated-id"] == b"1-3"
    assert told[b"max-deleted-entry-id"] == (b"0-0" if kind == 15 else b"1-2")
    assert told[b"entries-added"] == (2 if kind == 15 else 3)
    group = dict(zip(told[b"groups"][0][::2], told[b"groups"][0][1::2], strict=True))
    assert (group[b"last-delivered-id"], group[b"entries-read"]) == (b"1-1", 1)
    assert group[b"pending"] == [[b"1-1", b"anna", 50, 3]]
    consumer = dict(zip(group[b"consumers"][0][::2], group[b"consumers"][0][1::2], strict=True))
    assert consumer[b"seen-time"] == 60
    assert consumer[b"active-time"] == (77 if kind == 21 else 60)
    check(world.node)
    assert snapshot(world.recovered()) == snapshot(world.node)


def test_a_group_of_redis_that_cannot_count_comes_over(world: World) -> None:
    """A Redis group with an unknown entries-read count, which Redis writes as the largest size, stays unknown."""
    client = world.client()
    assert client.call("RESTORE", "s", 0, stream_of_redis(21, read=b"\x81" + b"\xff" * 8)) == OK
    assert fields(client.call("XINFO", "GROUPS", "s")[0])[b"entries-read"] is None
    assert client.call("RESTORE", "t", 0, stream_of_redis(21, read=b"\x81" + b"\xff" * 7 + b"\xfe")) == Error(BAD)


def test_no_time_of_redis_is_too_long_ago_to_be_told(world: World) -> None:
    """An idle time that does not fit 64 bits, which only an invented payload has, is refused."""
    client = world.client()
    assert client.call("RESTORE", "s", 0, stream_of_redis(21, delivered=-5)) == OK
    assert client.call("RESTORE", "t", 0, stream_of_redis(21, delivered=5 - 2**63)) == Error(BAD)
    assert client.call("RESTORE", "t", 0, stream_of_redis(21, active=5 - 2**63)) == Error(BAD)


BOUNDS = [62, 63, 64, 125, 126, 4095, 4096, 16377, 16378, 16379, 2097145, 2097146]


@pytest.mark.parametrize("length", BOUNDS)
def test_values_of_every_length_come_over(world: World, length: int) -> None:
    """A listpack element of any length is read; the number of bytes of its trailing size depends on the length."""
    if length < 64:
        head = bytes([0x80 | length])
    else:
        head = (0xE000 | length).to_bytes(2, "big") if length < 4096 else b"\xf0" + length.to_bytes(4, "little")
    value = head + b"v" * length + back(len(head) + length)
    packed = number(1) + number(0) + number(1) + text(b"f") + number(0)
    packed += number(2) + number(0) + number(0) + value + number(4)
    listpack = (len(packed) + 7).to_bytes(4, "little") + b"\x00\x00" + packed + b"\xff"
    first = (1).to_bytes(8, "big") + (1).to_bytes(8, "big")
    body = b"\x0f\x01\x10" + first + b"\x80" + len(listpack).to_bytes(4, "big") + listpack + b"\x01\x01\x01\x00"
    stream = rdb.load(body + b"\x00" * 10, 100, 100)
    assert isinstance(stream, Stream)
    assert stream.entries.wire(1 << 64 | 1) == encode_entry(1 << 64 | 1, [b"f", b"v" * length])


def test_made_up_streams_of_redis_break_nothing(world: World) -> None:
    """An invented stream in Redis's format is refused, or is a valid stream."""
    client = world.client()
    chance = random.Random(11)
    body = stream_of_redis(21)[:-10]
    taken = 0
    for _ in range(4000):
        changed = bytearray(body)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(1, len(body))] = chance.choice(
                [0, 1, 2, 63, 128, 0xC3, 255, chance.randrange(256)]
            )
        told = client.call("RESTORE", "s", 0, rdb_sealed(bytes(changed)), "REPLACE")
        assert told in (OK, Error(BAD))
        if told == OK:
            taken += 1
            check(world.node)
    assert taken > 100


@pytest.mark.realserver
def test_keys_come_over_from_a_real_redis(each_redis: ServerProcess, world: World) -> None:
    """Long compressed streams, groups and strings dumped by redis-server are the same here to clients."""
    client = world.client()
    chance = random.Random(3)
    with each_redis.client() as redis:
        for at in range(1, 700):
            fields = {
                f"field{n % 5}": chance.choice(["x" * 90, str(chance.randrange(-(10**12), 10**12)), ""])
                for n in range(at % 4 + 1)
            }
            redis.xadd("s", fields, id=f"{at * 1000}-{at % 3}")
        redis.xgroup_create("s", "g", "0")
        for consumer in ("anna", "bert"):
            redis.xreadgroup("g", consumer, {"s": ">"}, count=150)
        redis.xdel("s", *[f"{at * 1000}-{at % 3}" for at in range(10, 500, 7)])
        redis.xack("s", "g", "5000-2")
        for length in BOUNDS[:-2]:  # the checksum of megabytes takes long
            redis.xadd("lengths", {"f": "v" * length, "v" * length: "7"}, id=f"{length}-0")
        for key, value in {"n": "77", "long": "ab" * 5000, "odd": bytes(range(256))}.items():
            redis.set(key, value)
            assert client.call("RESTORE", key, 0, redis.dump(key)) == OK
            assert client.call("GET", key) == redis.get(key)
        for key in ("s", "lengths"):
            assert client.call("RESTORE", key, 0, redis.dump(key)) == OK
        for key in ("s", "lengths", "n"):  # and not the other way round
            with pytest.raises(ResponseError, match="DUMP payload version or checksum are wrong"):
                redis.restore("back", 0, client.call("DUMP", key))
    asked: list[tuple[str, ...]] = [
        ("XRANGE", "lengths", "-", "+"),
        ("XRANGE", "s", "-", "+"),
        ("XPENDING", "s", "g"),
        ("XREADGROUP", "GROUP", "g", "anna", "STREAMS", "s", "0"),
        ("XREADGROUP", "GROUP", "g", "bert", "STREAMS", "s", "0"),
        ("XINFO", "GROUPS", "s"),
        ("XREADGROUP", "GROUP", "g", "carl", "COUNT", "20", "STREAMS", "s", ">"),
    ]
    with closing(Wire(each_redis.url)) as wire:
        for words in asked:
            there = wire.ask(*words)
            here = client.call(*words)
            if words[0] == "XINFO":
                there, here = ([dict(zip(g[::2], g[1::2], strict=True)) for g in found] for found in (there, here))
                assert here[0].items() >= there[0].items()
            else:
                assert here == there
    check(world.node)


def test_every_type_of_value_has_a_payload() -> None:
    """Every type of value in the engine has a dump payload, which RELOAD and RESTORE need."""
    from millstream.engine.collections import HashValue, ListValue, SetValue, ZSetValue
    from millstream.engine.keyspace import StringValue
    from millstream.engine.streams.stream import Stream

    values: list[Value] = [StringValue(b""), Stream(1, 1), HashValue(), ListValue(), SetValue(), ZSetValue()]
    kinds = [dump.dump(value)[0] for value in values]
    assert sorted(kinds) == list(range(dump.FIRST_TYPE, dump.LAST_TYPE + 1))


def test_a_stream_with_nothing_but_tombstones_comes_back() -> None:
    """A stream that has only tombstones is restored with its node, which takes entries, and with its free ids."""
    world = World()
    client = world.client()
    for number in range(1, 5):
        client.call("XADD", "s", f"{number}-0", "f", "v")
    client.call("XDEL", "s", "3", "4")
    client.call("XTRIM", "s", "MINID", "3")
    client.call("XSETID", "s", "4", "MAXDELETEDID", "1")
    assert client.call("XSETID", "s", "2") == OK
    client.call("RESTORE", "t", 0, client.call("DUMP", "s"))
    assert client.call("DUMP", "t") == client.call("DUMP", "s")
    for key in ("s", "t"):
        assert fields(client.call("XINFO", "STREAM", key))[b"radix-tree-keys"] == 1
        assert client.call("XADD", key, "4-0", "f", "w") == b"4-0"
        assert client.call("XDEL", key, "4-0") == 1
        assert client.call("XLEN", key) == 0
    check(world.node)
    assert snapshot(world.recovered()) == snapshot(world.node)
