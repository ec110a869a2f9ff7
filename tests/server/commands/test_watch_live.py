"""The commands that break a WATCH, one by one, here and on a running redis-server."""

import pytest

from conformance.pipe import Pipe
from millstream.replies import Error
from support.inprocess import World, to_words
from support.servers import ServerProcess
from support.steps import steps

pytestmark = pytest.mark.realserver

SETUP = (
    "XADD s 1-1 a b",
    "XADD s 2-1 a b",
    "XADD s 2-2 a b",
    "XADD s 3-1 a b",
    "XGROUP CREATE s g 0",
    "XGROUP CREATE s g0 0",
    "XREADGROUP GROUP g c COUNT 3 STREAMS s >",
    "XDEL s 2-2",
    "SET str abc",
    "HSET h a b",
    "ZADD z 1 a",
    "SADD st a",
    "RPUSH l a",
    "EXPIRE st 100",
)

LINES = (
    "XADD s 9-9 a b",
    "XADD s MAXLEN 1 9-9 a b",
    "XADD none NOMKSTREAM 9-9 a b",
    "XADD s 1-1 a b",
    "XDEL s 1-1",
    "XDEL s 7-7",
    "XTRIM s MAXLEN 1",
    "XTRIM s MAXLEN 100",
    "XSETID s 9-9",
    "XGROUP CREATE s g2 0",
    "XGROUP CREATE n g2 0 MKSTREAM",
    "XGROUP CREATE s g2 0 MKSTREAM",
    "XGROUP SETID s g 0",
    "XGROUP DESTROY s g",
    "XGROUP CREATECONSUMER s g c9",
    "XGROUP DELCONSUMER s g c",
    "XGROUP DELCONSUMER s g c8",
    "XREADGROUP GROUP g c STREAMS s >",
    "XREADGROUP GROUP g new STREAMS s >",
    "XREADGROUP GROUP g new STREAMS s 0",
    "XREADGROUP GROUP g c STREAMS s 0",
    "XREADGROUP GROUP g c NOACK STREAMS s >",
    "XACK s g 1-1",
    "XCLAIM s g c2 0 1-1",
    "XCLAIM s g c2 0 2-2",
    "XCLAIM s g c2 0 3-1 FORCE",
    "XCLAIM s g c2 0 9-9 LASTID 3-1",
    "XAUTOCLAIM s g c2 0 0",
    "XAUTOCLAIM s g c2 99999999 0",
    "EXPIRE s 100",
    "EXPIRE s -1",
    "EXPIRE st 1000 LT",
    "EXPIRE st 50 NX",
    "PERSIST st",
    "PERSIST s",
    "COPY str s REPLACE",
    "COPY s d",
    "RENAME s d",
    "MOVE s 1",
    "FLUSHDB",
    "FLUSHALL",
    "SWAPDB 0 1",
    "SWAPDB 0 0",
    "TOUCH s",
    "DEL none",
    "UNLINK s",
    "SET str abc",
    "SET str a NX",
    "SET none a XX",
    "SETNX str a",
    "GETSET str v",
    "GETDEL str",
    "GETEX str",
    "GETEX str EX 100",
    "GETEX str PERSIST",
    "APPEND str x",
    "INCR str",
    "INCR n",
    "HSET h a b",
    "HDEL h x",
    "HINCRBY h n 0",
    "ZADD z 1 a",
    "ZINCRBY z 0 a",
    "ZREM z x",
    "SADD st a",
    "LPUSH l a",
    "LPOP l",
    "PUBLISH s a",
)


def test_the_same_commands_break_a_watch(each_redis: ServerProcess) -> None:
    """Each command stops another connection's EXEC exactly where Redis does, with the same replies."""
    writer, watcher = Pipe(each_redis.port), Pipe(each_redis.port)
    found, wanted = {}, {}
    try:
        for line in LINES:
            writer.ask([to_words(words.split()) for words in ("SELECT 1", "FLUSHALL", "SELECT 0", *SETUP)])
            watcher.ask([to_words(["WATCH", "s", "str", "h", "z", "st", "l", "n", "d", "none"])])
            reply = writer.ask([to_words(line.split())])[0]
            wanted[line] = (reply, watcher.ask([[b"MULTI"], [b"EXEC"]])[1] is None)
            world = World()
            ours, watching = world.client(), world.client()
            for words in SETUP:
                assert not isinstance(ours.call(*words.split()), Error), words
            watching.call(*["WATCH", "s", "str", "h", "z", "st", "l", "n", "d", "none"])
            reply = ours.call(*line.split())
            watching.call("MULTI")
            found[line] = (reply, watching.call("EXEC") is None)
    finally:
        writer.close()
        watcher.close()
    assert found == wanted
    assert len({broken for _, broken in wanted.values()}) == 2


# Keys in databases 0 and 1 when WATCH comes; PSETEX makes a key whose time has come and that was never looked at
EXPIRED = (
    "",
    "SET k v",
    "PSETEX k 1 v",
    "SELECT 1, SET k v",
    "SELECT 1, PSETEX k 1 v",
    "PSETEX k 1 v, SELECT 1, PSETEX k 1 w",
    "PSETEX k 1 v, SELECT 1, SET k w",
    "SET k v, SELECT 1, PSETEX k 1 w",
    "PSETEX o 1 v, SET k v",
    "SET o v, PSETEX k 1 v",
)
SLEEP = [b"DEBUG", b"SLEEP", b"0.002"]
MOVES = (
    *("SWAPDB 0 1", "SWAPDB 1 0", "SWAPDB 0 2", "FLUSHDB", "FLUSHALL", "COPY o k REPLACE", "COPY k k DB 1 REPLACE"),
    *("MOVE k 1", "RENAME o k", "RENAME k o", "DEL k", "GET k", "EXPIRE k 100", "PERSIST k", "SET k 1 XX", "SET k 1"),
)


def test_a_key_whose_time_has_come_is_none_for_watch(each_redis: ServerProcess) -> None:
    """SWAPDB, FLUSHDB or COPY that turns a missing key into an expired one breaks no WATCH.

    Each case is one session and one write to the socket, so that no key is deleted in between. A short time to live
    expires first, since servers differ in SET with a time in the past.
    """
    pipe, found, wanted = Pipe(each_redis.port), {}, {}
    try:
        for keys in EXPIRED:
            for watched in ("0", "1"):
                nap = [b" ".join(SLEEP).decode()] if "PSETEX" in keys else []
                for line in MOVES:
                    lines = [
                        "SELECT 0",
                        "FLUSHALL",
                        *filter(None, keys.split(", ")),
                        *nap,
                        f"SELECT {watched}",
                        "WATCH k",
                    ]
                    lines += ["SELECT 0", line, "MULTI", "EXEC"]
                    words = [to_words(each.split()) for each in lines]
                    world = World()
                    client = world.client()
                    for each in words:
                        if each == SLEEP:
                            world.clock.advance(2)
                        else:
                            found[keys, watched, line] = client.call(*each)
                    wanted[keys, watched, line] = pipe.ask(words)[-1]
    finally:
        pipe.close()
    assert found == wanted


def test_exchanging_databases_costs_what_is_watched_or_waited_for() -> None:
    """SWAPDB and FLUSHDB examine only keys with a watcher or waiter, for any number of keys."""
    small, large = (costs_of_exchanging(count) for count in (100, 10_000))
    assert all(more < less + 100 for less, more in zip(small, large, strict=True)), (small, large)


def costs_of_exchanging(count: int) -> list[int]:
    client = World().client()
    client.call("MSET", *[word for number in range(count) for word in (f"k{number}", "v")])
    return [steps(lambda line=line: client.call(*line.split())) for line in ("SWAPDB 0 1", "SWAPDB 0 1", "FLUSHALL")]
