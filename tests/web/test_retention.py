"""Retention, memory and cold entries on the pages of streams and the server, on Millstream and on Redis."""

import threading
import time

import pytest
import redis

from millstream.ops.server.retention import Matched, matched
from millstream.ops.server.status import server_status
from millstream.server.thread import ServerThread
from support.console import ConsoleThread
from support.partitioned import repartition
from support.servers import ServerProcess
from support.waiting import eventually

RULES = "orders* 7d 2gb kept* 0 0 * 0 10mb x:* 1d 0"


def test_pages_show_the_rules_and_what_they_removed(console: ConsoleThread, client: redis.Redis) -> None:
    """The server's page has each rule with its streams, and the entries that went unread. A stream's has its rule."""
    client.config_set("stream-node-max-entries", 10)
    old = int(time.time() * 1000) - 30 * 86_400_000
    for number in range(25):
        client.xadd("orders", {"n": number}, id=f"{old + number}-0")
    client.xadd("events<i>", {"n": 1})
    client.xadd("kept", {"n": 1})
    client.xgroup_create("orders", "billing", "0")
    before = client.info("stats")["retention_removed_unread"]
    client.xadd("orders", {"n": "new"})
    client.config_set("stream-retention", RULES)
    try:
        eventually(lambda: client.info("stats")["retention_removed_unread"] - before == 20)
        console.forget()
        (node,) = console.ask("/server.json").facts["servers"]
        kept = node["retention"]
        assert (kept["text"], kept["holds"], kept["removed_unread"] >= 20, node["tier"]) == (RULES, False, True, None)
        assert kept["rules"] == [
            {"pattern": "orders*", "age_ms": 604_800_000, "max_bytes": 2 << 30, "streams": 1},
            {"pattern": "kept*", "age_ms": None, "max_bytes": None, "streams": 1},
            {"pattern": "*", "age_ms": None, "max_bytes": 10 << 20, "streams": 1},
            {"pattern": "x:*", "age_ms": 86_400_000, "max_bytes": None, "streams": 0},
        ]
        beside = console.ask("/overview.json").facts["beside"]
        assert (beside["retention_removed_unread"], beside["cold_entries"]) == (kept["removed_unread"], None)
        assert f"{kept['removed_unread']} of them unread" in console.ask("/").text
        page = console.ask("/server").text
        assert [word in page for word in ("before a group had read them", "events&lt;i&gt;</a>", "7 d")] == [True] * 3
        facts = console.ask("/stream.json?key=orders").facts
        assert facts["retention"] == {
            "pattern": "orders*", "age_ms": 604_800_000, "max_bytes": 2 << 30, "holds": False,
        }  # fmt: skip
        assert facts["memory_bytes"] == client.memory_usage("orders")
        client.config_set("stream-retention-groups", "hold")
        console.forget()
        text = console.ask("/stream?key=orders").text
        assert ("kept for 7 d 0 h and up to 2.1 GB, and until all groups acknowledge" in text) == ("in memory" in text)
    finally:
        for name, value in (("stream-retention", ""), ("stream-retention-groups", "ignore")):
            client.config_set(name, value)
        client.config_set("stream-node-max-entries", 100)


def test_a_partitioned_stream_shows_the_rule_of_its_new_entries(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """The rule is that of the partitions that receive entries, not of the sealed stream; different rules are stated."""
    client.xadd("p", {"n": 1})
    repartition(data.url, "p", 2)
    for at in range(2):
        client.xadd(f"p{{{at}}}", {"n": 1})
    try:
        client.config_set("stream-retention", "p 7d 0 p{* 30d 0")
        assert console.ask("/stream.json?key=p").facts["retention"]["age_ms"] == 30 * 86_400_000
        assert "kept for 30 d" in console.ask("/stream?key=p").text
        client.config_set("stream-retention", "p{1} 7d 0 p* 30d 0")
        console.forget()
        facts = console.ask("/stream.json?key=p").facts
        assert (facts["retention"], facts["retention_differs"]) == (None, True)
        assert "the partitions have different rules of retention" in console.ask("/stream?key=p").text
    finally:
        client.config_set("stream-retention", "")


def test_rules_are_matched_beside_the_event_loop(
    console: ConsoleThread, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rules on many streams take long, so another thread matches them, once for the same rules and streams."""
    threads = list[str]()

    def noted(text: str, keys: tuple[str, ...]) -> Matched:
        threads.append(threading.current_thread().name)
        return matched(text, keys)

    monkeypatch.setattr("millstream.web.pages.health.matched", noted)
    client.xadd("orders", {"n": 1})
    client.config_set("stream-retention", RULES)
    try:
        assert console.ask("/server.json").facts["servers"][0]["retention"]["rules"][0]["streams"] == 1
    finally:
        client.config_set("stream-retention", "")
    assert all(name.startswith("asyncio_") for name in threads)
    assert len(threads) > 0
    assert matched(RULES, ("orders",)) is matched(RULES, ("orders",))


def test_a_server_without_retention_shows_none(redis_process: ServerProcess) -> None:
    """On Redis, neither the pages nor their JSON have retention or cold entries; the memory is known."""
    server = redis_process.as_new()
    with server.client() as client, ConsoleThread(server.url) as console:
        client.xadd("orders", {"n": 1})
        facts = console.ask("/stream.json?key=orders").facts
        assert (facts["retention"], facts["memory_bytes"] > 0) == (None, True)
        assert (facts["hot_bytes"], facts["cold_bytes"]) == (None, None)
        (node,) = console.ask("/server.json").facts["servers"]
        assert (node["retention"], node["tier"]) == (None, None)
        page = console.ask("/server").text
        assert [word in page for word in ("<h2>Retention", "<h2>Cold entries", "kept for")] == [False] * 3


def test_the_figures_of_cold_entries_come_from_info() -> None:
    """All figures of the section ``tier`` are there, in a bounded number; a text stays a text, and is cut."""
    info = {f"tier_{number}": "1" for number in range(100)} | {"tier_enabled": "1", "tier_x": "9"}
    assert len(server_status(info, 1).tier) == 60
    found = server_status({"tier_packs": "1", "tier_entries": "12", "tier_last_spill_status": "e" * 500}, 1)
    assert found.tier == {"packs": 1, "entries": 12, "last_spill_status": "e" * 100}
    assert (found.retention, server_status({}, 1).tier) == (None, {})
