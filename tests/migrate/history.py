"""Random histories of a stream, and all that a client can see of it, independent of the code that copies streams."""

from typing import Any

import redis
from hypothesis import strategies as st
from redis.exceptions import ResponseError

KEY = b"life \xff\n"
GROUPS = (b"g", b"\x00other")
CONSUMERS = (b"ann", b"", b"b\r\n")

ids = st.integers(1, 60).map(lambda ms: f"{ms}-1")
groups = st.sampled_from(GROUPS)
consumers = st.sampled_from(CONSUMERS)
words = st.sampled_from((b"a", b"a", b"", b"\x00\xff", b"x y\"'\\", b"\r\n", b"12345", b"-7", b"v" * 70))
some_ids = st.lists(ids, min_size=1, max_size=6)
times = st.sampled_from((0, 1, 1_700_000_000_000, 1_700_000_000_001))

steps = st.one_of(
    st.tuples(st.just("add"), st.lists(words, min_size=1, max_size=3)),
    st.tuples(st.just("add"), st.lists(words, min_size=1, max_size=3)),
    st.tuples(st.just("group"), groups, st.sampled_from(("0", "$", "3-1", "100-0")), st.integers(-1, 70)),
    st.tuples(st.just("read"), groups, consumers, st.integers(1, 8)),
    st.tuples(st.just("read"), groups, consumers, st.integers(1, 8)),
    st.tuples(st.just("ack"), groups, some_ids),
    st.tuples(st.just("claim"), groups, consumers, some_ids, times, st.integers(0, 2**40)),
    st.tuples(st.just("release"), groups, some_ids, st.integers(0, 9)),
    st.tuples(st.just("delete"), some_ids),
    st.tuples(st.just("trim"), st.integers(0, 10)),
    st.tuples(st.just("consumer"), groups, consumers),
    st.tuples(st.just("dismiss"), groups, consumers),
    st.tuples(st.just("last"), ids, st.integers(0, 100), ids),
    st.tuples(st.just("configure"), st.integers(1, 86400), st.integers(1, 10000)),
    st.tuples(st.just("once"), words.filter(bool), words.filter(bool)),
    st.tuples(st.just("expire"), st.integers(5_000_000_000_000, 6_000_000_000_000)),
)
histories = st.lists(steps, min_size=4, max_size=50)


def live(client: redis.Redis, history: list[Any]) -> bool:
    """Create a stream with this history; return True if it exists at the end. A refused command changes nothing."""
    client.delete(KEY)
    latest = 0
    for step in history:
        latest += 1
        for command in commands(step, latest):
            try:
                raw(client, *command)
            except ResponseError:
                continue
    return bool(client.exists(KEY))


def commands(step: tuple[Any, ...], latest: int) -> list[tuple[Any, ...]]:
    """Return the commands of one step."""
    kind, *rest = step
    if kind == "add":
        pairs = [part for word in rest[0] for part in (word, word[::-1])]
        return [("XADD", KEY, f"{latest}-1", *pairs)]
    if kind == "group":
        return [("XGROUP", "CREATE", KEY, rest[0], rest[1], "MKSTREAM", "ENTRIESREAD", rest[2])]
    if kind == "read":
        return [("XREADGROUP", "GROUP", rest[0], rest[1], "COUNT", rest[2], "STREAMS", KEY, ">")]
    if kind == "ack":
        return [("XACK", KEY, rest[0], *rest[1])]
    if kind == "claim":
        return [("XCLAIM", KEY, rest[0], rest[1], 0, *rest[2], "TIME", rest[3], "RETRYCOUNT", rest[4], "FORCE")]
    if kind == "release":
        return [("XNACK", KEY, rest[0], "FAIL", "IDS", len(rest[1]), *rest[1], "RETRYCOUNT", rest[2])]
    if kind == "delete":
        return [("XDEL", KEY, *rest[0])]
    if kind == "trim":
        return [("XTRIM", KEY, "MAXLEN", rest[0])]
    if kind == "consumer":
        return [("XGROUP", "CREATECONSUMER", KEY, rest[0], rest[1])]
    if kind == "dismiss":
        return [("XGROUP", "DELCONSUMER", KEY, rest[0], rest[1])]
    if kind == "last":
        return [("XSETID", KEY, rest[0], "ENTRIESADDED", rest[1], "MAXDELETEDID", rest[2])]
    if kind == "configure":
        return [("XCFGSET", KEY, "IDMP-DURATION", rest[0], "IDMP-MAXSIZE", rest[1])]
    if kind == "once":
        return [("XADD", KEY, "IDMP", rest[0], rest[1], "*", "f", "v")]
    return [("PEXPIREAT", KEY, rest[0])]


def raw(client: redis.Redis, *command: Any) -> Any:
    """Return the server's own reply, without redis-py's callbacks."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)
    finally:
        client.connection_pool.release(connection)


def portrait(client: redis.Redis, key: bytes, *, all_times: bool, memory: bool = True) -> dict[str, Any]:
    """Return everything that a client can see of a stream.

    Args:
        client: Client of the server.
        key: Key of the stream.
        all_times: True to include seen and active times of consumers.
        memory: True to include the settings and figures of idempotent adding.
    """
    found = named(raw(client, "XINFO", "STREAM", key, "FULL", "COUNT", 0))
    shown = {
        "entries": found[b"entries"],
        "range": raw(client, "XRANGE", key, "-", "+"),
        "length": found[b"length"],
        "last": found[b"last-generated-id"],
        "deleted": found[b"max-deleted-entry-id"],
        "added": found[b"entries-added"],
        "first": found[b"recorded-first-entry-id"],
        "ends": raw(client, "PEXPIRETIME", key),
        "groups": [group(client, key, named(each), all_times=all_times) for each in found[b"groups"]],
    }
    if memory:
        names = (b"idmp-duration", b"idmp-maxsize", b"iids-added", b"iids-duplicates")
        shown["memory"] = [found.get(name) for name in names]
    return shown


def group(client: redis.Redis, key: bytes, found: dict[bytes, Any], *, all_times: bool) -> dict[str, Any]:
    """Return one group of the stream; a released record has no consumer."""
    held = [
        [entry_id, each[b"name"], time, count]
        for each in map(named, found[b"consumers"])
        for entry_id, time, count in each[b"pending"]
    ]
    mine = {record[0] for record in held}
    rows = found.get(b"pending", found.get(b"pel", []))
    return {
        "name": found[b"name"],
        "last": found[b"last-delivered-id"],
        "read": found[b"entries-read"],
        "held": sorted(held),
        "released": [[row[0], row[3]] for row in rows if row[0] not in mine],
        "counted": [[row[0], row[1], row[3]] for row in raw(client, "XPENDING", key, found[b"name"], "-", "+", 1000)],
        "consumers": [
            [each[b"name"], each[b"seen-time"], each.get(b"active-time")] if all_times else each[b"name"]
            for each in map(named, found[b"consumers"])
        ],
    }


def named(row: list[Any] | dict[bytes, Any]) -> dict[bytes, Any]:
    """Convert a flat list of names and values to a dictionary, as RESP3 has it."""
    return row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))


def without_xnack(shown: dict[str, Any]) -> dict[str, Any]:
    """Return the portrait as without XNACK: released entries are held by a nameless consumer since time 0."""
    for each in shown["groups"]:
        if each["released"]:
            each["held"] = sorted(each["held"] + [[entry_id, b"", 0, count] for entry_id, count in each["released"]])
            each["released"] = []
            each["consumers"] = sorted({*each["consumers"], b""})
        added = shown["added"]
        if each["read"] is not None and each["read"] > added:
            each["read"] = added
    return shown
