"""``millstream import dump.rdb`` and ``export dump.rdb``: every type of key is compared, unsupported ones are named."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result
from redis.exceptions import ResponseError

from engine.rdb_lives import commands, file_of, portrait, told_apart
from migrate.history import raw
from millstream.cli.main import main
from millstream.client.connect import sync_client
from millstream.engine.serialization.rdb.reading import RdbKey, read_file
from millstream.migrate.connection import Link
from millstream.migrate.rdb_file import import_rdb
from millstream.migrate.run import MigrationOptions
from support.servers import ServerProcess, redis_server

KEYS = 48
STRING = b"\x00\x03key\x05value"


def typed(*words: str) -> Result:
    """Run the command line."""
    return CliRunner().invoke(main, words)


def asking(client: redis.Redis) -> Any:
    def ask(*words: Any) -> Any:
        return raw(client, *words)

    return ask


@pytest.fixture
def store() -> Iterator[tuple[str, Any]]:
    """Yield the URL of a store in this process, and a function that sends it commands."""
    url = "memory://rdb-files"
    with sync_client(url, protocol=2) as client:
        client.flushall()
        yield url, asking(client)


def live(ask: Any, seed: int) -> list[bytes]:
    """Fill database 0 and return its keys. A refused command changes nothing."""
    for words in commands(Random(seed), KEYS):
        try:
            if words[0] != "SELECT":
                ask(*words)
        except ResponseError:
            continue
    return sorted(ask("KEYS", "*"))


def lowered(seen: Any) -> Any:
    """Return a portrait whose groups have not read more entries than were added, as in files."""
    if seen[0] == b"stream":
        for group in seen[2][b"groups"]:
            read = group[b"entries-read"]
            group[b"entries-read"] = None if read is None else min(read, seen[2][b"entries-added"])
    return seen


@pytest.mark.realserver
def test_in_from_redis_and_out_again(real_redis: ServerProcess, store: tuple[str, Any], tmp_path: Path) -> None:
    """All keys of Redis are imported from its file, and another Redis loads the exported file."""
    url, ours = store
    with real_redis.client(protocol=2) as client:
        theirs = asking(client)
        keys = live(theirs, 1)
        theirs("FUNCTION", "LOAD", "REPLACE", "#!lua name=l\nredis.register_function('f', function() return 1 end)")
        theirs("SAVE")
        theirs("FUNCTION", "FLUSH")
        saved = Path(theirs("CONFIG", "GET", "dir")[1].decode()) / theirs("CONFIG", "GET", "dbfilename")[1].decode()
        result = typed("import", str(saved), "--to", url)
        assert result.exit_code == 0, result.output
        assert "Left out, since the target does not support it: 1 function library." in result.stderr
        assert "Copied besides the streams: 6 hash, 6 list, 6 set, 6 string, 6 zset." in result.stderr
        assert sorted(ours("KEYS", "*")) == keys
        for key in keys:
            assert told_apart(portrait(theirs, key), portrait(ours, key), repr(key)) == []
    (folder := tmp_path / "redis").mkdir()
    result = typed("export", url, str(folder / "out.rdb"))
    assert result.exit_code == 0, result.output
    server = redis_server(folder, "--dbfilename", "out.rdb")
    with server, server.client(protocol=2) as client:
        again = asking(client)
        assert sorted(again("KEYS", "*")) == keys
        for key in keys:
            assert told_apart(portrait(again, key), lowered(portrait(ours, key)), repr(key)) == []
        again("FLUSHALL")
        result = typed("import", f"file://{folder / 'out.rdb'}", "--to", server.url)
        assert result.exit_code == 0, result.output
        assert sorted(again("KEYS", "*")) == keys
        for key in keys:
            kind, *rest = portrait(again, key)
            mine = portrait(ours, key)
            if kind != b"stream":  # streams came by commands, which do not set consumers' times
                assert told_apart([kind, *rest], mine, repr(key)) == []


@pytest.mark.parametrize("version", ["7.0", "7.2", "8.8"])
def test_what_a_version_has_no_place_for_is_said(store: tuple[str, Any], tmp_path: Path, version: str) -> None:
    """Data that an older file format cannot hold is reported, refused with --strict, and kept in the newest format."""
    url, ours = store
    ours("XADD", "s", "IDMP", "p", "m", "*", "f", "v")
    ours("XGROUP", "CREATE", "s", "g", "0")
    ours("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    ours("XNACK", "s", "g", "FAIL", "IDS", 1, ours("XRANGE", "s", "-", "+")[0][0])
    path = tmp_path / "out.rdb"
    result = typed("export", url, str(path), "--for", version)
    assert result.exit_code == 0, result.output
    assert ("not carried: 1 released entry" in result.stderr) == (version != "8.8")
    assert ("not carried: settings and messages" in result.stderr) == (version != "8.8")
    assert path.read_bytes()[:9] == {"7.0": b"REDIS0010", "7.2": b"REDIS0011", "8.8": b"REDIS0014"}[version]
    result = typed("export", url, str(tmp_path / "strict.rdb"), "--for", version, "--strict")
    assert result.exit_code == (0 if version == "8.8" else 1)
    items = [item for item in read_file([(tmp_path / "strict.rdb").read_bytes()]) if isinstance(item, RdbKey)]
    assert len(items) == (version == "8.8")
    if version == "8.8":
        before = portrait(ours, b"s")
        assert typed("import", str(path), "--to", url, "--replace").exit_code == 0
        assert told_apart(portrait(ours, b"s"), before) == []


def test_keys_that_are_there(store: tuple[str, Any], tmp_path: Path) -> None:
    """Equal keys at the target are accepted, and different ones refused unless replaced. Expiry times are kept."""
    url, ours = store
    path = tmp_path / "dump.rdb"
    late = (4_000_000_000_000).to_bytes(8, "little")
    path.write_bytes(file_of(STRING, b"\xfc" + late + b"\x04\x01h\x02\x01a\x011\x01b\x012", b"\xfe\x01", STRING))
    assert typed("import", str(path), "--to", url).exit_code == 0
    assert (ours("GET", "key"), ours("PEXPIRETIME", "h")) == (b"value", 4_000_000_000_000)
    ours("DEL", "h")
    ours("HSET", "h", "b", "2", "a", "1")
    result = typed("import", str(path), "--to", url)
    assert result.exit_code == 0, result.output
    assert "databases 1 (1 key)" in result.stderr
    ours("SET", "key", "other")
    result = typed("import", str(path), "--to", url)
    assert result.exit_code == 1
    assert "Not copied: 'key': the target has another key of this name." in result.stderr
    assert typed("import", str(path), "--to", url, "--skip-existing").exit_code == 0
    assert ours("GET", "key") == b"other"
    assert typed("import", str(path), "--to", url, "--replace").exit_code == 0
    assert ours("GET", "key") == b"value"
    ours("FLUSHALL")
    assert typed("import", str(path), "--to", url, "--stream", "k*", "--allow-none").exit_code == 0
    assert ours("KEYS", "*") == [b"key"]
    ours("FLUSHALL")
    assert typed("import", str(path), "--to", url, "--db", "1").exit_code == 0
    assert ours("KEYS", "*") == [b"key"]


def test_what_is_not_held_is_named(store: tuple[str, Any], tmp_path: Path) -> None:
    """Unsupported values are named by kind and key, and other keys are copied."""
    path = tmp_path / "renamed"  # what it is shows in its first bytes
    path.write_bytes(file_of(*(b"\x16\x02h%d\x01\x05\x01f\x01v" % at for at in range(3)), STRING))
    result = typed("import", str(path), "--to", store[0])
    assert result.exit_code == 0, result.output
    assert "3 hash with times to live of fields ('h0', 'h1', 'h2')." in result.stderr
    assert store[1]("GET", "key") == b"value"


@pytest.mark.realserver
def test_a_key_of_a_server_that_is_not_held_is_named(each_redis: ServerProcess, tmp_path: Path) -> None:
    """A hash with expiring fields fails by name in an export, and other keys are written."""
    with each_redis.client(protocol=2) as client:
        ask = asking(client)
        ask("HSET", "h", "f", "v")
        ask("SET", "key", "value")
        try:
            ask("HEXPIRE", "h", 5000, "FIELDS", 1, "f")
        except ResponseError:
            pytest.skip("before Redis 7.4 fields have no times to live")
    result = typed("export", each_redis.url, str(tmp_path / "out.rdb"))
    assert result.exit_code == 1
    assert "Not copied: 'h': it is not supported here: type 25, which is not read." in result.stderr
    items = [item for item in read_file([(tmp_path / "out.rdb").read_bytes()]) if isinstance(item, RdbKey)]
    assert [item.key for item in items] == [b"key"]


def test_large_streams_go_whole_where_nobody_waits(store: tuple[str, Any], tmp_path: Path) -> None:
    """Between stores in this process, large streams are copied as payloads with all times of their consumers."""
    url, ours = store
    for at in range(1, 11):
        ours("XADD", "s", f"{at}-1", "f", "v" * (1 << 20))
    ours("XGROUP", "CREATE", "s", "g", "0")
    ours("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
    before = portrait(ours, b"s")
    result = typed("export", url, str(tmp_path / "out.rdb"), "--for", "7.2", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)[0]["way"]) == (0, "dump"), result.output
    result = typed("import", str(tmp_path / "out.rdb"), "--to", url, "--replace", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)[0]["way"]) == (0, "dump"), result.output
    assert told_apart(portrait(ours, b"s"), before) == []


def test_a_key_that_is_too_large_is_named(store: tuple[str, Any], tmp_path: Path) -> None:
    """A key that exceeds the size of a command fails by name."""
    path = tmp_path / "dump.rdb"
    path.write_bytes(file_of(b"\x00\x05large\x40\x50" + b"v" * 80, STRING))
    with Link(store[0]) as target:
        report = import_rdb(path, 0, target, MigrationOptions(), lambda *_: None, largest=20)
    assert report.left == [(b"large", "it is too large to be read from a file: copy it from the server")]
    assert not report.ok
    assert store[1]("KEYS", "*") == [b"key"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (file_of(STRING)[:-3], "damaged, or not an RDB file: cut short, before byte 21"),
        (file_of(STRING, STRING), "BUSYKEY"),
        (b"", "cut short, before byte 0"),
        (file_of(STRING, b"\x1d\x01x"), "type 29 is unknown"),
    ],
)
def test_of_a_file_that_is_damaged_nothing_is_copied(
    store: tuple[str, Any], tmp_path: Path, data: bytes, text: str
) -> None:
    """Nothing is copied from a damaged file. The error names the fault and its place, with exit code 1."""
    path = tmp_path / "dump.rdb"
    path.write_bytes(data)
    result = typed("import", str(path), "--to", store[0])
    assert result.exit_code == 1
    assert text in result.stderr
    assert store[1]("DBSIZE") == 0


def test_what_makes_no_sense_for_rdb_files(store: tuple[str, Any], tmp_path: Path) -> None:
    """Unsuitable options for RDB files end with exit code 2, and missing databases with 1."""
    target = str(tmp_path / "out.rdb")
    for words in (("--text",), ("--for", "6.2")):
        result = typed("export", store[0], target, *words)
        assert result.exit_code == 2
        assert "an RDB file is not text, and Redis 7.0 is the oldest that reads it" in result.stderr
    (tmp_path / "in.rdb").write_bytes(file_of())
    assert "there are 16, from 0 on" in typed("import", str(tmp_path / "in.rdb"), "--to", store[0], "--db", "16").stderr
    shutil.rmtree(tmp_path / "none", ignore_errors=True)
    assert typed("import", str(tmp_path / "none" / "dump.rdb"), "--to", store[0]).exit_code == 1
