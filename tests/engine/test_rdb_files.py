"""RDB files without a server: written files are read back whole, and damaged or unknown ones are never half read."""

from random import Random
from typing import Any

import pytest
from hypothesis import given

from engine.rdb_lives import OLD_FORMS, commands, file_of, payload, sized, ziplist
from migrate.history import commands as words_of
from migrate.history import histories
from millstream.engine.collections import Collection
from millstream.engine.keyspace import Keyspace, StringValue
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb import payload as rdb_payload
from millstream.engine.serialization.rdb.bulk import crc64, listpack
from millstream.engine.serialization.rdb.pieces import PiecedSource
from millstream.engine.serialization.rdb.reading import AuxField, NotHeld, RdbError, RdbItem, RdbKey, read_file
from millstream.engine.serialization.rdb.writing import redis_payload, write_file
from millstream.engine.streams import listpack as sizes
from millstream.engine.streams.stream import Stream
from support.inprocess import World
from support.state import check_stream, snapshot

SMALL = {"stream-node-max-entries": "4"}
STRING = b"\x00\x01k\x01v"
LISTPACK = b"\x0d\0\0\0\x03\0\x01\x01\x02\x01\x03\x01\xff"


def read(data: bytes, piece: int = 1 << 16) -> list[RdbItem]:
    return list(read_file(data[at : at + piece] for at in range(0, len(data), piece)))


def written(keyspace: Keyspace, version: int = 14) -> bytes:
    return b"".join(write_file(keyspace, aux={"redis-ver": "8.8.0", "repl-offset": "7"}, version=version))


def adopted(items: list[RdbItem]) -> World:
    """Return a node with the items read."""
    world = World(SMALL)
    for item in items:
        if isinstance(item, RdbKey):
            base = world.node.keyspace.databases[item.db]
            base.keys[item.key] = item.value
            if item.expires_at is not None:
                base.expires[item.key] = item.expires_at
    return world


def told(world: World) -> Any:
    """Return the whole content; records of one moment are by id, since files lose their order."""
    found = snapshot(world.node)
    for value in (content for keys in found.values() for _, content in keys.values()):
        for group in value["groups"].values() if isinstance(value, dict) else []:
            owned = [row for row in group["order"] if row[1] is not None]
            group["order"] = [row for row in group["order"] if row[1] is None]
            group["order"] += sorted(owned, key=lambda row: (row[2], row[0]))
    return found


def lived(seed: int, keys: int = 24) -> World:
    world = World(SMALL)
    client = world.client()
    for words in commands(Random(seed), keys, is_newest=True):
        client.call(*words)
    return world


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("piece", [1, 1000, 1 << 20])
def test_what_is_written_is_read_back(seed: int, piece: int) -> None:
    """An RDB file brings back every type, database, time to live, tombstone, node, released record and producer."""
    world = lived(seed, 16 if piece == 1 else 48)
    items = read(written(world.node.keyspace), piece)
    assert items[:2] == [AuxField(b"redis-ver", b"8.8.0"), AuxField(b"repl-offset", b"7")]
    assert told(adopted(items)) == told(world)


@given(histories)
def test_any_life_of_a_stream_is_read_back(history: list[Any]) -> None:
    """A stream after any commands is read back from an RDB file, except empty nodes and counts beyond its own."""
    world = World(SMALL)
    client = world.client()
    for at, step in enumerate(history, 1):
        for words in words_of(step, at):
            client.call(*words)
    again = told(adopted(read(written(world.node.keyspace))))
    mine = told(world)
    for _, stream in mine[0].values():
        stream["blocks"] = [block for block in stream["blocks"] if len(block[2]) < len(block[0]) // 16]
        for group in stream["groups"].values():  # a group may have counted more, after a wrong ENTRIESREAD
            group["read"] = min(group["read"], stream["added"])
    assert again == mine


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_older_versions_lack_what_they_have_no_place_for(version: int) -> None:
    """A file of an older version has released records under a nameless consumer, and no active times or producers."""
    world = World()
    client = world.client()
    client.call("XADD", "s", "1-1", "f", "v")
    client.call("XADD", "s", "2-1", "f", "v")
    client.call("XADD", "s", "IDMP", "p", "m", "*", "f", "v")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
    client.call("XCLAIM", "s", "g", "", 0, "1-1")
    client.call("XNACK", "s", "g", "FATAL", "IDS", 1, "2-1")
    again = adopted(read(written(world.node.keyspace, version)))
    rows = again.client().call("XPENDING", "s", "g", "-", "+", 9)
    assert isinstance(rows, list)
    assert [row[1] for row in rows] == [b"", b"", b"ann"]
    stream = again.node.keyspace.databases[0].keys[b"s"]
    assert isinstance(stream, Stream)
    group = stream.groups[b"g"]
    assert [record.time for record in group.pending.walk()][1] == 0
    assert group.order.released == 0
    assert bool(stream.idempotence.producers) == (version >= 13)
    assert group.consumers[b"ann"].active == group.consumers[b"ann"].seen


def test_what_newer_servers_refuse_is_not_written() -> None:
    """Data that Redis 8.8 calls corrupt is not written, such as a node without live entries."""
    world = World({"stream-node-max-entries": "3"})
    client = world.client()
    for at in range(1, 7):
        client.call("XADD", "s", f"{at}-1", "f", "v")
    client.call("XGROUP", "CREATE", "s", "g", "0", "ENTRIESREAD", 6)
    client.call("XDEL", "s", "6-1", "5-1")
    client.call("XTRIM", "s", "MINID", "5-1")
    stream = world.node.keyspace.databases[0].keys[b"s"]
    assert isinstance(stream, Stream)
    assert [node.live for node in stream.entries.nodes()] == [0]
    stream.groups[b"g"].entries_read = 70
    [_, _, item] = read(written(world.node.keyspace))
    assert isinstance(item, RdbKey)
    assert isinstance(item.value, Stream)
    assert item.value.entries.node_count == 0
    assert item.value.groups[b"g"].entries_read == 6


def test_no_other_version_is_written() -> None:
    """An unsupported RDB version is refused before a byte is written."""
    with pytest.raises(ValueError, match="version 9 is not written"):
        write_file(Keyspace(), aux={}, version=9)


def test_a_file_is_written_in_bounded_pieces() -> None:
    """A file is written in pieces of limited size, however many nodes a stream has."""
    world = World()
    client = world.client()
    for at in range(1, 3000):
        client.call("XADD", "s", f"{at}-1", "field", "v" * 100)
    pieces = list(write_file(world.node.keyspace, aux={}))
    assert max(map(len, pieces)) < 80_000
    assert len(pieces) > 3


@pytest.mark.parametrize(("kind", "body", "content"), OLD_FORMS)
def test_old_forms(kind: int, body: bytes, content: list[Any]) -> None:
    """Ziplists, zipmaps, intsets and scores as text are read as Redis wrote them, and refused if cut short."""
    value = rdb_payload.load(payload(kind, body), 100, 100)
    assert isinstance(value, Collection)
    found = value.content()[1]
    assert ([float(score) for score, _ in found] if kind in {3, 12} else found) == content
    for size in range(len(body)):
        with pytest.raises(MalformedError):
            rdb_payload.load(payload(kind, body[:size]), 100, 100)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (2, b"\x02\x01a\x01a"),
        (3, b"\x01\x01a\xfd"),
        (3, b"\x01\x01a\x031_0"),
        (4, b"\x02\x01a\x01b\x01a\x01c"),
        (5, b"\x01\x01a\x00\x00\x00\x00\x00\x00\xf8\x7f"),
        (10, sized(b"\x0d\0\0\0\x0a\0\0\0\x01\x00\x07\xf1\xff")),
        (11, sized(b"\x02\0\0\0\x02\0\0\0\x07\0\x07\0")),
        (16, sized(b"\x0d\0\0\0\x03\0\x01\x01\x02\x01\x03\x01\xff")),
        (18, b"\x01\x03\x01a"),
        (
            16,
            sized(b"\x0d\0\0\0\x05\0\x01\x01\x02\x01\x03\x01\xff"),
        ),  # from here on as they should be, but for one byte
        (10, sized(ziplist(b"\xf1")[:-1] + b"\xfe")),
        (10, sized(ziplist(b"\xf1", b"\xf2")[:4] + b"\x0a" + ziplist(b"\xf1", b"\xf2")[5:])),
        (10, sized(ziplist(b"\xf1")[:10] + b"\xff\xf1\xff")),
        (10, sized(ziplist(b"\xc3"))),
        (11, sized(b"\x03\0\0\0\x01\0\0\0\x07\0\x07")),
        (9, sized(b"\x01\x01a\x01\x00b\xfe")),
        (9, sized(b"\x02\x01a\x01\x00b\xff")),
        (9, sized(b"\x01\xff\xff")),
        (17, sized(LISTPACK)),
        (6, b"\x00"),
        (27, b"\x00" * 40),
        (250, b"\x00"),
    ],
)
def test_values_that_none_can_be(kind: int, body: bytes) -> None:
    """Values with duplicates, missing scores, wrong order, wrong counts or unknown types are refused."""
    with pytest.raises(MalformedError):
        rdb_payload.load(payload(kind, body), 100, 100)


MODULE = b"\x81" + (0).to_bytes(8, "big")
PARTS = b"\x01\x05\x02\x06\x03abcd\x04abcdefgh\x05\x02hi\x00"


@pytest.mark.parametrize(
    ("magic", "part", "what", "key"),
    [
        (b"REDIS0012", b"\x16\x01h\x01\x05\x01f\x01v", "hash with times to live of fields", b"h"),
        (b"REDIS0012", b"\x17\x01h" + sized(LISTPACK), "hash with times to live of fields", b"h"),
        (b"REDIS0012", b"\x18\x01h" + b"t" * 8 + b"\x01\x05\x01f\x01v", "hash with times to live of fields", b"h"),
        (b"REDIS0012", b"\x19\x01h" + b"t" * 8 + sized(LISTPACK), "hash with times to live of fields", b"h"),
        (b"VALKEY080", b"\x16\x01h\x01\x01f\x01v" + b"t" * 8, "hash with times to live of fields", b"h"),
        (b"REDIS0014", b"\x1c\x01a\x02\x01\x09\x03\x01" + b"n" * 8 + b"\x04\x00\x02hi", "array", b"a"),
        (b"REDIS0014", b"\x07\x01m" + MODULE + PARTS, "module type AAAAAAAAA", b"m"),
        (b"REDIS0009", b"\xf7" + MODULE + b"\x02\x01" + PARTS, "data of module type AAAAAAAAA", None),
        (b"REDIS0014", b"\xf3\x01abcd" + PARTS + b"\x00\x01m\x01v", "metadata of modules", b"m"),
        (b"REDIS0010", b"\xf5\x05#!lua", "function library", None),
        (b"REDIS0006", b"\x01\x01l\x00", "empty collection", b"l"),
    ],
)
def test_what_is_not_held_is_named_and_passed_over(magic: bytes, part: bytes, what: str, key: bytes | None) -> None:
    """Parts of a file that Millstream does not support are named and skipped, and the parts after them are read."""
    items = read(file_of(b"\xfe\x03", part, STRING, magic=magic))
    assert items[0] == NotHeld(what, 3, key)
    last = items[-1]
    assert isinstance(last, RdbKey)
    assert (last.db, last.key, last.expires_at) == (3, b"k", None)


def test_what_is_said_before_a_key() -> None:
    """Times to live in seconds and milliseconds are read.

    Idle times, frequencies, sizes and slots are read and ignored.
    """
    notes = b"\xfe\x01\xfb\x02\x01\xf4\x01\x02\x03\xf8\x41\x00\xf9\x07"
    items = read(file_of(notes, b"\xfd\x05\0\0\0", STRING, b"\xfc" + b"\x07" * 8, STRING, STRING))
    assert [item.expires_at for item in items if isinstance(item, RdbKey)] == [5000, 0x0707070707070707, None]


BAD_FILES = [
    (b"", "cut short, before byte 0"),
    (b"RUBIS0010" + b"\xff" + bytes(8), "neither with REDIS nor with VALKEY"),
    (file_of(magic=b"REDIS0015"), "REDIS0015 is a version that is not read"),
    (file_of(magic=b"REDIS0005"), "REDIS0005 is a version that is not read"),
    (file_of(magic=b"VALKEY079"), "VALKEY079 is a version that is not read"),
    (file_of(b"\x1d\x01k\x05"), "type 29 is unknown, so what lies behind it cannot be found, before byte 10"),
    (file_of(b"\xf6\x01k\x05"), "type 246 is unknown"),
    (file_of(b"\xf3\x01k\x05", magic=b"VALKEY081"), "type 243 is unknown"),
    (
        file_of(b"\xfe\x02" + b"\x00\x03key\x81" + b"\xff" * 8 + b"v"),
        r"larger .*before byte 25 \(key b'key' of database 2",
    ),
    (file_of(b"\x00\x01k\xc3\x01\x80\x1f\xff\xff\xffa"), "larger than it can be"),
    (file_of(b"\x02\x01k\x80\xff\xff\xff\xff\x01a"), "an unknown string"),
    (file_of(STRING)[:-8] + b"\x01" * 8, "the checksum is another"),
    (file_of(STRING) + b"*3", "append-only file"),
    (file_of(STRING)[:-1], "cut short"),
]


@pytest.mark.parametrize(("data", "text"), BAD_FILES)
def test_what_is_wrong_is_said_with_its_place(data: bytes, text: str) -> None:
    """An error in a file names the fault and the offset. It never blocks or allocates memory for missing data."""
    with pytest.raises(RdbError, match=text):
        read(data)


def test_damaged_files_are_refused_by_their_checksum() -> None:
    """The checksum detects any changed byte and a missing end of a file."""
    data = written(lived(5, 8).node.keyspace)[:-8]
    data += crc64(data).to_bytes(8, "little")
    read(data)
    chance = Random(1)
    for _ in range(200):
        at = chance.randrange(len(data))
        with pytest.raises(RdbError):
            read(data[:at])
        with pytest.raises(RdbError):
            read(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])


def test_damaged_files_without_a_checksum_break_nothing() -> None:
    """Damaged files without a checksum are refused, or read as valid data, in bounded time."""
    world = World(SMALL)
    client = world.client()
    for words in commands(Random(5), 8, is_newest=True):
        if words[0] not in {"SET", "HSET", "SADD", "RPUSH", "ZADD"}:
            client.call(*words)
    data = written(world.node.keyspace)
    chance, taken = Random(2), 0
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 2)):
            changed[chance.randrange(len(data))] = chance.choice([0, 1, 63, 128, 129, 0xC3, 255, chance.randrange(256)])
        changed[-8:] = bytes(8)
        try:
            items = read(bytes(changed))
        except RdbError:
            continue
        taken += 1
        for item in items:
            if isinstance(item, RdbKey) and isinstance(item.value, Stream):
                check_stream(item.value)
    assert taken > 20


@pytest.mark.parametrize(
    ("zone", "is_fine"),
    [([1], True), ([1, 2], True), ([2, 1], True), ([], False), ([1, 1], False), ([3], False), ([1, 9], False)],
)
def test_released_records_are_the_ones_that_nobody_has(zone: list[int], is_fine: bool) -> None:
    """Each released record is in the group once, in no consumer, and listed as released. Others are refused."""
    nobody = [1, 2] if 2 in zone else [1]
    records = b"".join(at.to_bytes(16, "big") + bytes(8) + b"\x05" for at in (1, 2, 3))
    held = [at for at in (1, 2, 3) if at not in nobody]
    owned = bytes([1, 1]) + b"c" + bytes(16) + bytes([len(held)]) + b"".join(at.to_bytes(16, "big") for at in held)
    body = b"\x00\x00\x00\x09\x00\x00\x00\x00\x00\x01\x01g\x00\x09\x00\x03" + records + owned
    body += bytes([len(zone)]) + b"".join(at.to_bytes(16, "big") for at in zone) + b"\x41\x00\x41\x00\x00\x00\x00"
    if not is_fine:
        with pytest.raises(MalformedError):
            rdb_payload.load(payload(27, body, 14), 100, 100)
        return
    stream = rdb_payload.load(payload(27, body, 14), 100, 100)
    assert isinstance(stream, Stream)
    group = stream.groups[b"g"]
    assert [(record.id, record.count) for record in group.order if record.consumer is None] == [(at, 5) for at in zone]


@pytest.mark.parametrize(("duration", "maxsize"), [(0, 1), (86401, 1), (1, 0), (1, 10001)])
def test_limits_of_producers_are_redis_s(duration: int, maxsize: int) -> None:
    """A stream whose producer limits exceed Redis's is refused, as Redis does."""
    limits = b"".join(b"\x80" + each.to_bytes(4, "big") for each in (duration, maxsize))
    with pytest.raises(MalformedError):
        rdb_payload.load(payload(26, b"\x00" * 10 + limits + b"\x00\x00\x00", 13), 100, 100)
    fine = b"\x00" * 10 + b"\x01\x01" + b"\x00\x00\x00"
    assert isinstance(rdb_payload.load(payload(26, fine, 13), 100, 100), Stream)


def test_valkeys_own_types_are_not_taken_for_redis_s() -> None:
    """In Valkey's payload versions 80 and 81, types above 21 are not read as Redis's; those up to 21 are equal."""
    assert rdb_payload.is_whole(payload(0, b"\x01v", 80))
    value = rdb_payload.load(payload(0, b"\x01v", 80), 100, 100)
    assert isinstance(value, StringValue)
    assert value.data == b"v"
    assert not rdb_payload.is_whole(payload(0, b"\x01v", 79))
    with pytest.raises(MalformedError):
        rdb_payload.load(payload(26, b"\x00" * 10 + b"\x01\x01\x00\x00\x00", 80), 100, 100)


def test_payloads_for_redis_are_what_it_would_dump() -> None:
    """A payload for Redis has the type, body, version and checksum of its DUMP, and our RESTORE accepts it too."""
    world = lived(4, 8)
    for base in world.node.keyspace.databases:
        for key, value in base.keys.items():
            client = World(SMALL).client()
            assert client.call("RESTORE", key, 0, redis_payload(value, 14)) is not None
            assert client.call("EXISTS", key) == 1


def test_elements_of_listpacks_are_as_large_as_is_counted() -> None:
    """A written listpack is read back, and has the size by which nodes are full."""
    words = [b"", b"0", b"127", b"128", b"-1", b"4095", b"-4097", b"32767", b"8388608", b"-2147483649", b"%d" % 2**62]
    words += [b"w" * size for size in (1, 62, 63, 64, 125, 126, 127, 4094, 4095, 4096, 16377, 16382, 70000)]
    for word in words:
        element = sizes.element(word)
        assert len(element) == sizes.string(word)
        assert list(listpack(sizes.pack([element, sizes.element(b"end")]))) == [word, b"end"]


def test_checksum_goes_on_over_pieces() -> None:
    """The checksum does not depend on how the bytes are split into pieces."""
    source = PiecedSource([b"12", b"", b"3456", b"789"])
    assert [source.take(size) for size in (1, 4, 4)] == [b"1", b"2345", b"6789"]
    assert (source.checksum(), source.offset, source.is_over()) == (0xE9C6D914C4B8D9CA, 9, True)
