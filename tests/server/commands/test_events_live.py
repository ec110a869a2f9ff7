"""Keyspace events beyond the changes themselves: new keys, misses, overwritten keys, changed types."""

import pytest

from millstream.server.thread import ServerThread
from support.servers import ServerProcess
from support.wire import Wire

EXTRA = "KEAmn"
LINES = """SET a 1;SET a 2;SET a 3 GET;SET none 1 XX GET;GETSET b 1;GET c;MGET a c c;GETEX c;GETDEL c;STRLEN c
EXISTS c a;TYPE c;TTL c;OBJECT ENCODING c;TOUCH c;DUMP c;GETRANGE c 0 1;APPEND d x;APPEND d y;SETRANGE e 2 x;INCR f
INCR f;MSET a 1 g 1;MSETNX h 1 i 1;SETNX j 1;SETNX j 1;SETEX k 100 x;LPUSH l 1;LPUSH l 2;LLEN none;LRANGE none 0 1
LPOP none;SADD s 1;SADD s 2;SCARD none;SISMEMBER none 1;SREM none 1;HSET h1 a b;HSET h1 a c;HGET none a;HINCRBY h2 a 1
HDEL none a;ZADD z 1 m;ZADD z 2 m;ZSCORE none m;ZRANGE none 0 1;ZREM none m;XADD x 1-1 f v;XADD x 2-1 f v;XLEN none
XRANGE none - +;XREAD STREAMS none 0;XREAD STREAMS none $;XGROUP CREATE x2 g $ MKSTREAM;XGROUP CREATE none g $
XACK none g 1-1;XPENDING none g;XCLAIM none g c 0 1-1;XAUTOCLAIM none g c 0 0;XREADGROUP GROUP g c STREAMS none >
XINFO STREAM none;XDEL none 1-1;XTRIM none MAXLEN 1;XSETID none 1-1;RENAME a aa;RENAME aa b;RENAMENX b g;RENAME none x
COPY none x;COPY x y;COPY x y;COPY x y REPLACE;COPY l y REPLACE;MOVE none 1;MOVE y 1;MOVE y 1;EXPIRE none 1
PERSIST none;DEL none;UNLINK none;EXPIRE x 0;XADD x 1-1 f v;SET l 1;SCAN 0 MATCH none;RANDOMKEY;WATCH none
MEMORY USAGE none"""


def events(url: str, letters: str) -> list[tuple[str, list[tuple[bytes, bytes]]]]:
    """Run each line, and return it with the messages published meanwhile."""
    heard = []
    with Wire(url) as wire, Wire(url) as listener:
        wire.ask("CONFIG", "SET", "notify-keyspace-events", letters)
        listener.ask("PSUBSCRIBE", "__key*__:*")
        for line in LINES.replace("\n", ";").split(";"):
            wire.ask(*line.split())
            assert wire.ask("PUBLISH", "__keyend__:", line) == 1
            told = []
            while (message := listener.read())[2] != b"__keyend__:":
                told.append((message[2], message[3]))
            heard.append((line, told))
    return heard


@pytest.mark.realserver
def test_new_keys_and_misses_are_told_as_by_redis(each_redis: ServerProcess) -> None:
    """Commands that create or miss a key publish the same events in the same order as Redis."""
    with ServerThread() as server:
        ours, theirs = events(server.url, EXTRA), events(each_redis.url, EXTRA)
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []
    assert sum(event == b"keymiss" for _, told in ours for _, event in told) > 20


@pytest.mark.realserver
def test_letters_are_shown_as_by_redis(each_redis: ServerProcess) -> None:
    """CONFIG GET shows the event letters in Redis's order. ``A`` includes most letters, but not ``n``."""
    with ServerThread() as server, Wire(server.url) as ours, Wire(each_redis.url) as theirs:
        for letters in ("AKE", "AKEn", "nKE", "KEg$n", "AKEm", "gKEmn", "g$lshzxetdKEn", "", "x"):
            for wire in (ours, theirs):
                assert wire.ask("CONFIG", "SET", "notify-keyspace-events", letters) == b"OK"
            name = ("CONFIG", "GET", "notify-keyspace-events")
            assert ours.ask(*name) == theirs.ask(*name)


def test_overwritten_and_changed_types() -> None:
    """The events of Redis 8.2 for an overwritten value and a changed type come in Redis's order."""
    lines = [
        (("SET", "k", "1"), []),
        (("SET", "k", "2"), ["overwritten", "set"]),
        (("APPEND", "k", "3"), ["append"]),
        (("RPUSH", "l", "1"), ["rpush"]),
        (("SET", "l", "1"), ["overwritten", "type_changed", "set"]),
        (("RPUSH", "m", "1"), ["rpush"]),
        (("RENAME", "m", "l"), ["rename_from", "rename_to", "overwritten", "type_changed"]),
        (("COPY", "k", "l", "REPLACE"), ["copy_to", "overwritten", "type_changed"]),
        (("COPY", "k", "l", "REPLACE"), ["copy_to", "overwritten"]),
        (("GETSET", "l", "1"), ["overwritten", "set"]),
    ]
    with (
        ServerThread(parameters={"notify-keyspace-events": "EAoc"}) as server,
        Wire(server.url) as wire,
        Wire(server.url) as listener,
    ):
        wire.ask(*lines[0][0])
        listener.ask("PSUBSCRIBE", "__keyevent@0__:*")
        for words, expected in lines[1:]:
            wire.ask(*words)
            told = [listener.read()[2].decode().partition(":")[2] for _ in expected]
            assert told == expected, words
