"""A keyspace built from its own snapshot shows everything that it showed, and behaves in the same way."""

from collections.abc import Callable

import pytest

from millstream.engine.collections import SetValue
from millstream.node.log import codec, rebuilding, snapshot
from support.coldness import IS_COLD
from support.inprocess import Client, World
from support.state import check
from support.state import snapshot as state

Fill = Callable[[Client, World], None]


def _strings(client: Client, world: World) -> None:
    client.call("SET", "a", "x" * 3000)
    client.call("SET", "b", b"\x00\xff", "PX", 50_000)
    client.call("SET", b"", "")
    client.call("SELECT", 15)
    client.call("SET", "a", "in the last database", "PX", 1000)


def _large_once(client: Client, world: World) -> None:
    """Write small collections that were large once: they keep the large encoding, but lists become small at half."""
    for number in range(600):
        client.call("HSET", "h", number, "v")
        client.call("SADD", "ints", number)
        client.call("ZADD", "z", number, number)
        client.call("RPUSH", "l", "twenty bytes or more")
    for number in range(2, 600):
        client.call("HDEL", "h", number)
        client.call("SREM", "ints", number)
        client.call("ZREM", "z", number)
    while client.call("LLEN", "l") > 300:
        client.call("LPOP", "l")
    assert client.call("OBJECT", "ENCODING", "l") == b"quicklist"
    assert client.call("OBJECT", "ENCODING", "ints") == b"hashtable"


def _sets(client: Client, world: World) -> None:
    """Write sets, which iterate in the order in which members came, also of numbers."""
    client.call("SADD", "s", "x", 3, 1, 2)
    client.call("SREM", "s", "x")
    client.call("SADD", "s", "x")
    client.call("SADD", "n", 3, 1, 2)


def _floats(client: Client, world: World) -> None:
    client.call("ZADD", "z", "-0", "zero", "inf", "top", "-inf", "bottom", "1e-300", "small", "0.1", "tenth")


def _stream(client: Client, world: World) -> None:
    """Write a stream with tombstones, several nodes, an entry of other fields, and counters set by hand."""
    client.call("CONFIG", "SET", "stream-node-max-entries", 3)
    for number in range(1, 20):
        client.call("XADD", "s", f"{number}-{number}", "f", "v" * number, *(["other", "x"] if number == 5 else []))
    client.call("XDEL", "s", "2-2", "6-6", "19-19")
    client.call("XTRIM", "s", "MINID", "~", "5-0")
    client.call("XADD", "empty", "MAXLEN", 0, "18446744073709551615-7", "f", "v")
    client.call("XSETID", "s", "30-0", "ENTRIESADDED", 99, "MAXDELETEDID", "19-19")


def _groups(client: Client, world: World) -> None:
    """Write groups with pending entries out of order, released ones, idle consumers and unknown positions."""
    for number in range(1, 30):
        client.call("XADD", "s", f"{number}-0", "f", "v")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XGROUP", "CREATE", "s", "unknown", "5-0", "ENTRIESREAD", "-1")
    client.call("XGROUP", "CREATE", "s", "made", "$", "ENTRIESREAD", "3")
    client.call("XGROUP", "CREATECONSUMER", "s", "g", "idle")
    for consumer in ("b", "a", "c"):
        world.clock.advance(7)
        client.call("XREADGROUP", "GROUP", "g", consumer, "COUNT", 8, "STREAMS", "s", ">")
    world.clock.advance(7)
    client.call("XCLAIM", "s", "g", "b", 0, "20-0", "3-0", "RETRYCOUNT", 9)
    client.call("XCLAIM", "s", "g", "a", 0, "21-0", "IDLE", 1000)
    client.call("XNACK", "s", "g", "FAIL", "IDS", 2, "12-0", "2-0")
    client.call("XREADGROUP", "GROUP", "g", "looks", "STREAMS", "s", "0")
    client.call("XDEL", "s", "4-0")


def _producers(client: Client, world: World) -> None:
    """Write tracked messages in their order, a producer without any, and totals."""
    client.call("XADD", "s", "IDMP", "p", "m2", "*", "f", "v")
    client.call("XADD", "s", "IDMP", "p", "m1", "*", "f", "v")
    client.call("XADD", "s", "IDMP", "q", "m1", "*", "f", "v")
    client.call("XADD", "s", "IDMP", "p", "m2", "*", "f", "v")
    client.call("XCFGSET", "t", "IDMP-DURATION", 7)


def _mortals(client: Client, world: World) -> None:
    """Write values of every type with a time to live, and one whose time to live was removed."""
    client.call("XADD", "s", "1-0", "f", "v")
    client.call("HSET", "h", "f", "v")
    client.call("RPUSH", "l", "v")
    client.call("SADD", "set", "v")
    client.call("ZADD", "z", "1", "v")
    for number, key in enumerate(("s", "h", "l", "set", "z"), 1):
        client.call("PEXPIRE", key, 1000 * number)
    client.call("PERSIST", "l")


def _many(client: Client, world: World) -> None:
    """Write enough of each kind for several transitions and several payloads."""
    client.call("SET", "large", "x" * snapshot.PAYLOAD_BYTES)
    client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    for number in range(1, 3001):
        client.call("XADD", "s", f"{number}-0", "f", "v" * 300)
        client.call("XREADGROUP", "GROUP", "g", f"c{number % 1500}", "COUNT", 1, "STREAMS", "s", ">")
        client.call("RPUSH", "l", number)


FILLS: dict[str, Fill] = {
    fill.__name__: fill
    for fill in (_strings, _large_once, _sets, _floats, _stream, _groups, _producers, _mortals, _many)
}


@pytest.mark.parametrize("name", FILLS)
def test_a_snapshot_gives_back_what_it_was_made_of(name: str) -> None:
    """A snapshot restores everything visible, down to the order of keys and of the members of sets."""
    world = World()
    client = world.client()
    FILLS[name](client, world)
    before = state(world.node)
    assert any(before.values())
    made = list(snapshot.payloads(world.node.keyspace, 77))
    fresh = rebuilding.from_log(made)
    assert not rebuilding.differing(world.node.keyspace, fresh)
    for mine, theirs in zip(world.node.keyspace.databases, fresh.databases, strict=True):
        assert list(mine.keys) == list(theirs.keys)
        assert mine.expires == theirs.expires
        for key, value in mine.keys.items():
            if isinstance(value, SetValue):
                assert value.in_order() == theirs.keys[key].in_order()  # type: ignore[attr-defined] # a set too
    rebuilding.adopt(world.node.keyspace, fresh)
    assert state(world.node) == before
    check(world.node)
    assert {codec.unpack(payload)[0] for payload in made} == {77}
    if name == "_many":
        assert len(made) >= (2 if IS_COLD else 4)
        assert max(map(len, made)) < 2 * snapshot.PAYLOAD_BYTES


def test_what_a_snapshot_gives_takes_more() -> None:
    """After a snapshot, entries go to the node that was not full, and a set of numbers accepts a word."""
    worlds = [World(), World()]
    shown = []
    for number, world in enumerate(worlds):
        client = world.client()
        _stream(client, world)
        _sets(client, world)
        _groups_only(client)
        if number:
            world.log.rewrite()
            world.node.keyspace.databases = world.recovered().keyspace.databases
        client.call("XADD", "s", "40-0", "f", "v")
        client.call("XADD", "s", "41-0", "f", "v")
        client.call("XACK", "s", "g", "7-7", "9-9")
        client.call("SADD", "n", "word")
        client.call("SADD", "s2", "word")
        assert state(world.recovered()) == state(world.node)
        check(world.node)
        shown.append((state(world.node), client.call("SMEMBERS", "n"), client.call("XPENDING", "s", "g")))
    assert shown[0] == shown[1]


def _groups_only(client: Client) -> None:
    client.call("DEL", "s")
    for number in range(1, 12):
        client.call("XADD", "s", f"{number}-{number}", "f", "v")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
