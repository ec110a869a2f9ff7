"""The facts of a server as the console reads them from redis-server and from Millstream."""

from typing import Any

import pytest
import redis

from millstream.ops.asking import NotReadableError
from millstream.ops.pending import reading as pending
from millstream.ops.streams import reading as streams
from millstream.ops.streams.reading import read_consumers, read_group
from ops.conftest import Look

pytestmark = pytest.mark.realserver


def fill(client: redis.Redis, key: str = "orders", entries: int = 5) -> None:
    """Add a stream with entries 1-0 to n-0, and a group that was delivered three of them."""
    for number in range(1, entries + 1):
        client.xadd(key, {"n": number}, id=f"{number}-0")
    client.xgroup_create(key, "billing", id="0")
    client.xreadgroup("billing", "c1", {key: ">"}, count=3)


def test_a_stream_is_read_with_its_groups(client: redis.Redis, look: Look[Any]) -> None:
    """A stream is read with its length, ids, lag, pending entries by consumer, and the oldest of each kind."""
    fill(client)
    client.xack("orders", "billing", "1-0")
    seen = look(lambda line: streams.one(line, "orders"))
    (group,) = seen.groups
    assert (seen.length, seen.first_entry_id, seen.last_entry_id, seen.last_id) == (5, "1-0", "5-0", "5-0")
    assert (seen.entries_added, seen.max_deleted_id, dict(seen.missing)) == (5, "0-0", {})
    assert (group.name, group.consumers, group.pending, group.entries_read) == ("billing", 1, 2, 3)
    assert (group.lag.entries, group.unowned, dict(group.held or {})) == (2, 0, {"c1": 2})
    assert (group.oldest_pending.id, group.oldest_undelivered.id) == ("2-0", "4-0")
    assert (group.oldest_pending.age(10**13), seen.oldest_undelivered.age(10**13)) == (None, None)
    assert "4-0 is not a time" in (seen.oldest_undelivered.why_no_age or "")
    client.xadd("later", {"n": 1}, id=f"{10**12}-0")
    client.xgroup_create("later", "billing", id="0")
    assert look(lambda line: streams.one(line, "later")).oldest_undelivered.age(10**12 + 1000) == 1000


def test_an_overview_has_every_stream_by_name(client: redis.Redis, look: Look[Any]) -> None:
    """An overview lists the streams by name, skips other keys, and reports if a limit cut it."""
    for key in ("b", "a", "c"):
        fill(client, key)
    client.set("text", "x")
    assert [one.key for one in look(streams.overview).streams] == ["a", "b", "c"]
    seen = look(lambda line: streams.overview(line, limit=2))
    assert ([one.key for one in seen.streams], seen.more) == (["a", "b"], True)
    assert [one.key for one in look(lambda line: streams.overview(line, "[bc]")).streams] == ["b", "c"]


def test_what_is_no_stream_is_said_so(client: redis.Redis, look: Look[Any]) -> None:
    """A missing key, another type, or a missing group is an error that names what exists."""
    fill(client)
    client.set("text", "x")
    with pytest.raises(NotReadableError, match="no stream 'order'"):
        look(lambda line: streams.one(line, "order"))
    with pytest.raises(NotReadableError, match="the key 'text' holds no stream"):
        look(lambda line: streams.one(line, "text"))
    with pytest.raises(NotReadableError, match="no group 'bill'; its groups are: billing"):
        look(lambda line: read_group(line, "orders", "bill"))
    with pytest.raises(NotReadableError, match="with a group 'bill'"):
        look(lambda line: pending.summary(line, "orders", "bill"))


def test_consumers_are_read(client: redis.Redis, look: Look[Any]) -> None:
    """Consumers without entries, and with names that are not text, are listed."""
    fill(client)
    client.xgroup_createconsumer("orders", "billing", b"\xff")
    idle, busy = sorted(look(lambda line: read_consumers(line, "orders", "billing")), key=lambda one: one.pending)
    assert (busy.name, busy.pending) == ("c1", 3)
    assert (idle.name.encode(errors="surrogateescape"), idle.pending, idle.inactive_ms) == (b"\xff", 0, None)


def test_pending_entries_come_in_pages(client: redis.Redis, look: Look[Any]) -> None:
    """Pages of pending entries continue where the one before ended, with the payload or the fact that it is gone."""
    fill(client)
    client.xdel("orders", "2-0")
    first = look(lambda line: pending.read_page(line, "orders", "billing", count=2, payload=True))
    assert [(entry.id, entry.consumer, entry.deliveries) for entry in first.entries] == [
        ("1-0", "c1", 1),
        ("2-0", "c1", 1),
    ]
    assert [entry.gone for entry in first.entries] == [False, True]
    assert first.entries[0].entry.fields == ((b"n", b"1"),)
    second = look(lambda line: pending.read_page(line, "orders", "billing", count=2, start=first.next))
    assert ([entry.id for entry in second.entries], second.next) == (["3-0"], None)


def test_entries_that_nobody_holds_are_counted(client: redis.Redis, look: Look[Any]) -> None:
    """Pending entries without an owner are counted, with XNACK and with its emulation."""
    fill(client)
    client.xclaim("orders", "billing", "", 0, ["2-0"], time=1, justid=True)
    seen = look(lambda line: pending.summary(line, "orders", "billing"))
    assert (seen.total, dict(seen.held), seen.unowned) == (3, {"c1": 2}, 1)
    page = look(lambda line: pending.read_page(line, "orders", "billing"))
    assert [(entry.id, entry.unowned, entry.idle_ms is None) for entry in page.entries] == [
        ("1-0", False, False),
        ("2-0", True, True),
        ("3-0", False, False),
    ]
