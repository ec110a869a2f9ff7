"""Times to live in the past: the command deletes the key at once, with one event and one log record."""

import pytest

from millstream.replies import OK
from support.inprocess import World


@pytest.mark.parametrize(
    ("before", "line", "reply", "events", "expired", "dirty"),
    [
        ("", "SET k v PXAT 1", OK, "", 1, 0),
        ("", "SET k v EXAT 1 NX", OK, "", 1, 0),
        ("", "SET k v PXAT 1 XX", None, "", 0, 0),
        ("", "SET k v GET PXAT 1", None, "", 1, 0),
        ("SET k old", "SET k v PXAT 1", OK, "del", 1, 1),
        ("SET k old", "SET k v PXAT 1 GET", b"old", "del", 1, 1),
        ("SET k old", "SET k v PXAT 1 NX", None, "", 0, 0),
        ("SET k old EX 100", "SET k v EXAT 1 XX", OK, "del", 1, 1),
        ("RPUSH k a", "SET k v PXAT 1", OK, "del", 1, 1),
        ("MSETEX 1 k dead PXAT 1", "SET k v PXAT 1", OK, "expired", 2, 0),
        ("SET k old", "GETEX k PXAT 1", b"old", "del", 0, 1),
        ("SET k old", "PEXPIREAT k 1", 1, "del", 0, 1),
        ("SET k old", "EXPIRE k -1", 1, "del", 0, 1),
        ("SET k 1", "INCREX k PXAT 1", [2, 1], "del", 0, 1),
        ("", "RESTORE k 1 PAYLOAD ABSTTL", OK, "", 1, 0),
        ("SET k old", "RESTORE k 1 PAYLOAD ABSTTL REPLACE", OK, "del", 1, 1),
        ("MSETEX 1 o dead PXAT 1", "COPY o k", 0, "expired", 1, 0),
    ],
)
@pytest.mark.parametrize("way", ["alone", "MULTI", "EVAL"])
def test_a_time_that_is_over_stores_nothing(
    before: str, line: str, reply: object, events: str, expired: int, dirty: int, way: str
) -> None:
    """A time in the past deletes an existing key with one ``del`` and does nothing to a missing key.

    INFO counts the keys of SET and RESTORE as expired.
    """
    world = World({"notify-keyspace-events": "KEA"})
    client, listener = world.client(), world.client()
    client.call("SET", "other", "v")
    payload = client.call("DUMP", "other")
    if before:
        client.call(*before.split())
    stats, log = world.node.stats, len(world.log.payloads)
    counts = (stats.lookups.expired, stats.dirty)
    listener.call("PSUBSCRIBE", "__keyevent@0__:*")
    words = [payload if word == "PAYLOAD" else word for word in line.split()]
    if way == "alone":
        assert client.call(*words) == reply
    elif way == "MULTI":
        client.call("MULTI")
        client.call(*words)
        assert client.call("EXEC") == [reply]
    else:
        assert client.call("EVAL", "return redis.call(unpack(ARGV))", 0, *words) == reply
    assert [message[2].rpartition(b":")[2].decode() for message in listener.inbox] == events.split()
    assert (stats.lookups.expired - counts[0], stats.dirty - counts[1]) == (expired, dirty)
    assert len(world.log.payloads) - log == bool(events)
    if reply is not None or not before:
        assert not world.node.keyspace.databases[0].keys.keys() & {b"k", b"o"}
    assert world.recovered().keyspace.databases[0].keys.keys() == world.node.keyspace.databases[0].keys.keys()


def test_a_time_that_is_over_breaks_a_watch_only_of_a_key_that_goes() -> None:
    """A SET with a time in the past breaks the WATCH of a key that it deletes, not of a missing key.

    A group reader that waits for the key gets NOGROUP.
    """
    world = World()
    client, watcher = world.client(), world.client()
    for before, reply in (("DEL k", [1]), ("SET k v", None)):
        client.call(*before.split())
        watcher.call("WATCH", "k")
        client.call("SET", "k", "v", "PXAT", 1)
        watcher.call("MULTI")
        watcher.call("INCR", "n")
        assert watcher.call("EXEC") == reply
    client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    watcher.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
    client.call("SET", "s", "v", "PXAT", 1)
    assert "NOGROUP" in str(watcher.inbox)


def test_msetex_keeps_keys_whose_time_is_over() -> None:
    """MSETEX with a time in the past writes the keys, which then expire: Redis changed SET here, but not MSETEX."""
    client = World().client()
    assert client.call("MSETEX", 1, "k", "v", "PXAT", 1) == 1
    assert client.call("DBSIZE") == 1
    assert client.call("GET", "k") is None
