"""Workers, Spark queries, dead letters and the server itself, as the console reads them."""

import json
from typing import Any

import pytest
import redis

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.ops.letters.reading import letter_streams
from millstream.ops.server.reading import server as read_server
from millstream.ops.server.status import parse_info, server_status
from millstream.ops.spark.reading import read_queries
from millstream.ops.workers.reading import read_workers
from millstream.ops.workers.status import EndedWorker
from millstream.spark.monitoring import store
from millstream.worker.registry import protocol
from ops.conftest import Look

pytestmark = pytest.mark.realserver

SUBSCRIBER = {
    "handler": "bill", "stream": "orders", "group": "billing", "consumer": "c1", "slots": 10, "running": 2,
    "buffered": 2, "handled": 3, "failed": 1, "dead": 0, "paused": None,
    "jobs": [
        {"id": "2-0", "since_ms": 1_763_721_604_000, "deliveries": 1},
        {"id": "1-0", "since_ms": 1_763_721_601_000, "deliveries": 4},
    ],
}  # fmt: skip
FACTS: dict[str, Any] = {
    "id": "web-1", "host": "web", "pid": 1, "version": "0.1.0", "state": "blocked",
    "started_ms": 1_763_721_600_000, "beat_ms": 1_763_721_605_000, "subscribers": [SUBSCRIBER],
    "blocked": {"since_ms": 1_763_721_602_000, "where": "bill.py:7 in bill"},
    "last_error": {"at_ms": 1_763_721_602_000, "handler": "bill", "entry": "1-0", "error": "ValueError: no"},
}  # fmt: skip


def test_workers_are_read_with_what_they_have_in_hand(client: redis.Redis, look: Look[Any]) -> None:
    """Workers are listed with their jobs, longest first.

    A blocked one has its source line, and a lost one is vanished.
    """
    client.zadd(protocol.INDEX, {"web-1": 2, "web-2": 1_763_721_600_000, "web-3": 1_763_721_700_000})
    client.set(protocol.worker_key("web-1"), json.dumps(FACTS))
    client.set(protocol.worker_key("web-3"), "nonsense")
    client.hset(protocol.CONTROL, "worker:web-1", "drain")
    for number, text in enumerate(("nonsense", protocol.sign_off("web-0", 7, "drain", [("bill", "a", "b")])[3][3])):
        client.zadd(protocol.ENDED, {str(text): number})
    client.hset(
        protocol.CONTROL,
        protocol.pause_field("orders", "billing"),
        json.dumps({"reason": "why", "by": "me", "at_ms": 5}),
    )
    client.config_resetstat()
    seen = look(read_workers)
    assert client.info("commandstats")["cmdstat_hgetall"]["calls"] == 1
    (worker,) = seen.workers
    assert (worker.state, worker.blocked_ms, worker.blocked_at) == ("blocked", 3000, "bill.py:7 in bill")
    assert [(job.id, job.for_ms, job.deliveries) for job in worker.jobs] == [("1-0", 4000, 4), ("2-0", 1000, 1)]
    assert (worker.error, worker.error_entry, worker.ordered) == ("ValueError: no", "1-0", "drain")
    assert [gone.id for gone in seen.vanished] == ["web-3", "web-2"]
    assert seen.ended == (EndedWorker("web-0", 1, "drain", (("bill", "a", "b"),)),)
    assert seen.strange == (protocol.worker_key("web-3"),)
    assert seen.holder("orders", "billing", "c1") is worker
    assert seen.holder("orders", "billing", "c2") is None
    assert seen.pause_of("orders", "billing").by == "me"


def test_workers_are_found_by_a_partition_of_their_stream(client: redis.Redis, look: Look[Any]) -> None:
    """A partition's workers and pause are found through its logical stream.

    Plain streams with braces have only their own.
    """
    second = {**SUBSCRIBER, "stream": "cart{7}", "consumer": "c2"}
    client.set(protocol.worker_key("web-1"), json.dumps({**FACTS, "subscribers": [SUBSCRIBER, second]}))
    client.zadd(protocol.INDEX, {"web-1": 1})
    pause = json.dumps({"reason": "why", "by": "me", "at_ms": 5})
    for stream in ("orders", "cart"):
        client.hset(protocol.CONTROL, protocol.pause_field(stream, "billing"), pause)
    seen = look(read_workers)
    for key in ("orders{3}", "orders~2{3}"):
        assert seen.named(key, "billing") == "orders"
        assert seen.holder(key, "billing", "c1") is seen.workers[0]
        assert seen.pause_of(key, "billing").reason == "why"
        assert seen.named(key, "shipping") == key
    assert seen.holder("cart{7}", "billing", "c2") is seen.workers[0]
    assert seen.pause_of("cart{7}", "billing") is None


def test_queries_are_read_with_what_their_drivers_say(client: redis.Redis, look: Look[Any]) -> None:
    """A query that should run without a live driver is shown as gone."""
    for name, driver in (("a", "d1"), ("b", "d2")):
        facts = {**store.NEW, "id": name, "name": name, "driver": driver, "at_ms": 5, "lag": 7}
        client.hset(store.QUERIES, name, json.dumps(facts))
    client.set(store.driver_key("d1"), "1")
    found = look(read_queries)
    assert {(one.id, one.state, one.lag) for one in found.queries} == {("a", "running", 7), ("b", "gone", 7)}


def test_dead_letters_are_counted(client: redis.Redis, look: Look[Any]) -> None:
    """Dead letters are counted by stream, with the age of the oldest."""
    letter = DeadLetter((b"n", b"1"), "orders", "1-0", "billing", "c1", 3, "error", "E: no", "", 1, 5)
    flat = pack(letter)
    for at in (7, 9):
        client.xadd("orders:dead", dict(zip(flat[::2], flat[1::2], strict=True)), id=f"{at}-0")
    seen = look(letter_streams)
    assert seen.letters == 2
    assert [(one.key, one.first_ms, one.last_ms, one.streams) for one in seen.streams] == [
        ("orders:dead", 7, 9, ("orders",))
    ]


def test_a_server_says_how_it_is(client: redis.Redis, look: Look[Any]) -> None:
    """The server's status has its version, memory limit and command costs. Missing facts have a reason."""
    client.xadd("orders", {"n": 1})
    (status,) = look(read_server)
    info = client.info()
    # Valkey and others name themselves
    assert status.product == ("millstream" if "millstream_version" in info else info.get("server_name", "redis"))
    assert (status.redis_version, status.role, status.memory_limit) == (info["redis_version"], "master", 0)
    assert [cost.calls >= 1 for cost in status.costs if cost.name == "xadd"] == [True]
    assert not status.missing


def test_replicas_are_in_the_info_of_their_primary() -> None:
    """A primary's INFO gives its replicas and their lag. A truncated line is skipped."""
    lines = "role:master\nmaster_repl_offset:100\nslave0:ip=10.0.0.2,port=6379,state=online,offset=60,lag=1\nslave1:x\n"
    status = server_status(parse_info(lines), 5)
    assert [(one.address, one.state, one.lag_seconds, one.behind_bytes) for one in status.replicas] == [
        ("10.0.0.2:6379", "online", 1, 40),
        ("?:?", "?", None, None),
    ]


@pytest.mark.parametrize("key", [protocol.INDEX, protocol.CONTROL, store.QUERIES])
def test_a_registry_that_cannot_be_read_is_said_so(client: redis.Redis, look: Look[Any], key: str) -> None:
    """A registry key of the wrong type fails only its own reading, with the reason."""
    client.set(key, "x")
    refused = [seen.why is not None for seen in (look(read_workers), look(read_queries), look(letter_streams))]
    assert refused == [key != store.QUERIES, key == store.QUERIES, False]
