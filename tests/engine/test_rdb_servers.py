"""RDB files of a real redis-server are read here, and files written here are loaded by it, with equal keys."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from engine.dump_twins import damaged
from engine.rdb_lives import OLD_FORMS, commands, payload, portrait, told_apart
from millstream.engine.serialization.rdb.reading import AuxField, NotHeld, RdbKey, read_file
from millstream.engine.serialization.rdb.writing import write_file
from millstream.replies import Error
from support.inprocess import Client, World
from support.servers import ServerProcess, redis_server
from support.state import check

pytestmark = pytest.mark.realserver
KEYS = 96
AUX = {"redis-ver": "7.0.15", "redis-bits": "64", "ctime": "1700000000", "repl-id": "a" * 40, "repl-offset": "17"}


def asking(client: redis.Redis) -> Any:
    """Return a function for the server's own replies, without redis-py's callbacks."""
    connection = client.connection_pool.get_connection()

    def ask(*words: Any) -> Any:
        connection.send_command(*words)
        return connection.read_response(disable_decoding=True)

    return ask


def in_pieces(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(size):
            yield piece


def saved(ask: Any) -> Path:
    """Return the path of the server's saved file."""
    ask("SAVE")
    return Path(ask("CONFIG", "GET", "dir")[1].decode()) / ask("CONFIG", "GET", "dbfilename")[1].decode()


def every_key(ask: Any) -> list[tuple[int, bytes]]:
    found = []
    for db in range(3):
        ask("SELECT", db)
        found += [(db, key) for key in sorted(ask("KEYS", "*"))]
    return found


def lived(ask: Any, seed: int, *, is_newest: bool) -> None:
    """Run the commands and ignore those that are refused."""
    for words in commands(Random(seed), KEYS, is_newest=is_newest):
        try:
            ask(*words)
        except ResponseError:
            continue


def has_all(ask: Any) -> bool:
    """Return True if a server has released records and producers."""
    return "xnack" in ask("INFO", "commandstats").decode() or bool(ask("COMMAND", "INFO", "XNACK")[0])


@pytest.mark.parametrize(("seed", "piece"), [(1, 1 << 20), (2, 61)])
def test_files_of_redis_are_read(each_redis: ServerProcess, seed: int, piece: int) -> None:
    """Each key of a file from Redis has the server's content and time to live. Nothing is missing."""
    world = World()
    ours = world.client().call
    with each_redis.client(protocol=2) as client:
        ask = asking(client)
        lived(ask, seed, is_newest=has_all(ask))
        items = list(read_file(in_pieces(saved(ask), piece)))
        for item in items:
            assert isinstance(item, RdbKey | AuxField), item
            if isinstance(item, RdbKey):
                base = world.node.keyspace.databases[item.db]
                base.keys[item.key] = item.value
                if item.expires_at is not None:
                    base.expires[item.key] = item.expires_at
        check(world.node)
        known = every_key(ask)
        assert sorted((item.db, item.key) for item in items if isinstance(item, RdbKey)) == known
        for db, key in known:
            ask("SELECT", db)
            ours("SELECT", db)
            theirs, mine = portrait(ask, key), portrait(ours, key)
            assert told_apart(theirs, mine, repr(key)) == []


def reduced(stream: dict[bytes, Any], version: int) -> dict[bytes, Any]:
    """Return a stream as a file of an older version stores it."""
    kept = {name: value for name, value in stream.items() if not name.startswith((b"idmp", b"iids", b"pids"))}
    return kept | {b"groups": [reduced_group(group, version) for group in stream[b"groups"]]}


def reduced_group(group: dict[bytes, Any], version: int) -> dict[bytes, Any]:
    """Return a group without released records, which a nameless consumer gets, and without newer fields."""
    homeless = [[row[0], 0, row[3]] for row in group[b"pending"] if row[1] == b"" and row[2] == 0]
    if homeless:
        consumers = {each[b"name"]: each for each in group[b"consumers"]}
        nameless = consumers.setdefault(b"", {b"name": b"", b"seen-time": 0, b"active-time": -1, b"pending": []})
        nameless[b"pending"] = sorted(nameless[b"pending"] + homeless, key=lambda row: [*map(int, row[0].split(b"-"))])
        nameless[b"pel-count"] = len(nameless[b"pending"])
        group[b"consumers"] = [consumers[name] for name in sorted(consumers)]
    if version == 10:
        group[b"consumers"] = [one | {b"active-time": one.get(b"seen-time", 0)} for one in group[b"consumers"]]
    return {name: value for name, value in group.items() if name != b"nacked-count"}


@pytest.mark.parametrize("version", [10, 11, 14])
def test_files_of_ours_are_loaded(each_redis: ServerProcess, tmp_path: Path, version: int) -> None:
    """redis-server starts from a file of ours and has the same keys, except what its version cannot store."""
    with each_redis.client(protocol=2) as client:
        if version > int(saved(asking(client)).read_bytes()[5:9]):
            pytest.skip("that server reads no file of a version so new")
    world = World()
    world.clock.wall = int(time.time() * 1000)  # what producers sent long ago is left out by who loads it
    ours = world.client()
    for words in commands(Random(version), KEYS, is_newest=True):
        assert not isinstance(ours.call(*words), Error) or words[0].startswith("X")  # some ids are not there
    (tmp_path / "dump.rdb").write_bytes(b"".join(write_file(world.node.keyspace, aux=AUX, version=version)))
    server = redis_server(tmp_path, "--dbfilename", "dump.rdb", path=each_redis.command[0])
    with server, server.client(protocol=2) as theirs:
        compare(asking(theirs), ours, version)


def compare(ask: Any, client: Client, version: int) -> None:
    known = every_key(client.call)
    assert every_key(ask) == known
    assert len(known) > KEYS // 2
    for db, key in known:
        ask("SELECT", db)
        client.call("SELECT", db)
        theirs, mine = portrait(ask, key), portrait(client.call, key)
        if mine[0] == b"stream" and version < 14:
            mine[2] = reduced(mine[2], version)
        assert told_apart(theirs, mine, repr(key)) == []


@pytest.mark.parametrize(("kind", "body", "_"), OLD_FORMS)
def test_old_forms_are_what_redis_takes_them_for(real_redis: ServerProcess, kind: int, body: bytes, _: Any) -> None:
    """A dump from a Redis before 7.0 is restored alike by both servers."""
    ours = World().client().call
    with real_redis.client(protocol=2) as client:
        ask = asking(client)
        for restore in (ask, ours):
            restore("RESTORE", "key", 0, payload(kind, body))
        assert told_apart(portrait(ask, b"key"), portrait(ours, b"key")) == []


def test_released_records_keep_their_order(each_redis: ServerProcess, tmp_path: Path) -> None:
    """Released records stay in their order of claiming, from a file of Redis 8.8 to Millstream and back."""
    order = [b"5-1", b"2-1", b"9-1", b"1-1"]
    with each_redis.client(protocol=2) as client:
        ask = asking(client)
        if not has_all(ask):
            pytest.skip("that server releases no records")
        for at in range(1, 12):
            ask("XADD", "s", f"{at}-1", "f", "v")
        ask("XGROUP", "CREATE", "s", "g", "0")
        ask("XREADGROUP", "GROUP", "g", "c", "COUNT", 10, "STREAMS", "s", ">")
        for entry_id in order:
            ask("XNACK", "s", "g", "FAIL", "IDS", 1, entry_id)
        [item] = [item for item in read_file(in_pieces(saved(ask), 99)) if isinstance(item, RdbKey)]
    world = World()
    world.node.keyspace.databases[0].keys[item.key] = item.value
    (tmp_path / "dump.rdb").write_bytes(b"".join(write_file(world.node.keyspace, aux={}, version=14)))
    server = redis_server(tmp_path, "--dbfilename", "dump.rdb", path=each_redis.command[0])
    with server, server.client(protocol=2) as client:
        for call in (asking(client), world.client().call):
            [[_, entries]] = call("XREADGROUP", "GROUP", "g", "d", "COUNT", 4, "CLAIM", 10**9, "STREAMS", "s", ">")
            assert [entry[0] for entry in entries] == order


def test_nothing_is_taken_that_redis_refuses(each_redis: ServerProcess) -> None:
    """A damaged payload with a valid checksum is refused if Redis with full checks refuses it."""
    chance, ours = Random(5), World().client().call
    taken = 0
    with each_redis.client(protocol=2) as client:
        ask = asking(client)
        lived(ask, 5, is_newest=has_all(ask))
        whole = [(kind, body) for kind, body, _ in OLD_FORMS]
        for db, key in every_key(ask):
            ask("SELECT", db)
            dumped = ask("DUMP", key)
            whole += [(dumped[0], dumped[1:-10])] if len(dumped) < 2000 else []
        version = int.from_bytes(dumped[-10:-8], "little")
        ask("CONFIG", "SET", "sanitize-dump-payload", "yes")
        for _ in range(600):
            kind, body = chance.choice(whole)
            words = ("RESTORE", "damaged", 0, payload(kind, damaged(body, chance), version), "REPLACE")
            if not isinstance(ours(*words), Error):
                taken += 1
                ask(*words)  # raises where it is refused
        ask("CONFIG", "SET", "sanitize-dump-payload", "no")
    assert taken > 30


def test_what_is_not_held_is_passed_over_by_name(each_redis: ServerProcess) -> None:
    """Function libraries, hashes with field expiry, and arrays are named and skipped. Later parts are read."""
    with each_redis.client(protocol=2) as client:
        ask = asking(client)
        ask("FUNCTION", "LOAD", "REPLACE", "#!lua name=l\nredis.register_function('f', function() return 1 end)")
        expected = {(None, "function library")}
        for number in range(50):
            ask("SET", f"after {number}", "x")
        for words, what in UNHELD:
            try:
                ask(*words)
            except ResponseError:
                continue
            expected.add((words[1], what))
        for number, size in enumerate((3, 600)):
            key = b"fields %d" % number
            ask("HSET", key, *(part for at in range(size) for part in (b"f%d" % at, b"v")))
            try:
                ask("HEXPIRE", key, 5000, "FIELDS", 1, "f1")
            except ResponseError:
                continue
            expected.add((key, "hash with times to live of fields"))
        items = list(read_file(in_pieces(saved(ask), 1 << 20)))
        ask("FUNCTION", "FLUSH")
    assert {(item.key, item.what) for item in items if isinstance(item, NotHeld)} == expected
    assert sum(isinstance(item, RdbKey) for item in items) >= 50


UNHELD: list[tuple[tuple[Any, ...], str]] = [((b"ARSET", b"array", 3, b"x", b"7", b"1.5", b"y" * 100), "array")]


@pytest.mark.parametrize("more", [[], [("XADD", "s", "4-1", "f", "v"), ("XADD", "s", "7-1", "f", "v")]])
def test_tombstones_of_redis_above_the_last_id(real_redis: ServerProcess, more: list[tuple[str, ...]]) -> None:
    """A stream of Redis 7.0 whose last id was set back below a tombstone, and then grew, is read."""
    world = World()
    ours = world.client().call
    with real_redis.client(protocol=2) as client:
        ask = asking(client)
        for words in [("XADD", "s", "3-1", "f", "v"), ("XADD", "s", "5-1", "f", "v"), ("XDEL", "s", "5-1"), *more]:
            ask(*words)
            if words[0] == "XDEL":
                ask("XSETID", "s", "4-0")
        ours("RESTORE", "s", 0, ask("DUMP", "s"))
        for words in (
            ("XRANGE", "s", "-", "+"),
            ("XREVRANGE", "s", "+", "-"),
            ("XLEN", "s"),
            ("XRANGE", "s", "4-1", "5-1"),
        ):
            assert ours(*words) == ask(*words)
    check(world.node)
    assert ours("XADD", "s", "8-1", "f", "v") == b"8-1"
