"""A scene of one frozen worker that holds up a partitioned stream and another group, as its record states it."""

import json
import time
from typing import Any

import redis

from millstream.worker.registry import protocol

WORKER = "web-1-4711-aaaaaa"
CONSUMERS = ("web-1-4711-abc123", "web-1-4711-def456")


def freeze(client: redis.Redis, *, partitions: int = 16, handler: str = "bill") -> None:
    """Create the streams, the pending entries, and the record of the worker, blocked for three minutes."""
    now = time.time_ns() // 1_000_000
    keys = [(f"orders{{{number}}}", "billing", CONSUMERS[0]) for number in range(partitions)]
    for key, group, consumer in [*keys, ("mails", "send", CONSUMERS[1])]:
        for number in range(12):
            client.xadd(key, {"n": number}, id=f"{now - 600_000 + number}-0")
        client.xgroup_create(key, group, id="0")
        client.xreadgroup(group, consumer, {key: ">"}, count=3)
    subscribers = [
        _subscriber("orders", "billing", CONSUMERS[0], handler),
        _subscriber("mails", "send", CONSUMERS[1], "mail"),
    ]
    record = {
        "id": WORKER,
        "host": "web-1",
        "pid": 4711,
        "version": "0.1.0",
        "state": "blocked",
        "started_ms": now - 900_000,
        "beat_ms": now,
        "subscribers": subscribers,
        "blocked": {"since_ms": now - 180_000, "where": f"{handler}.py:7 in {handler}"},
        "last_error": None,
    }
    client.zadd(protocol.INDEX, {WORKER: now})
    client.set(protocol.worker_key(WORKER), json.dumps(record))


def _subscriber(stream: str, group: str, consumer: str, handler: str) -> dict[str, Any]:
    counts = dict.fromkeys(("slots", "running", "buffered", "handled", "failed", "dead"), 1)
    return {
        "handler": handler,
        "stream": stream,
        "group": group,
        "consumer": consumer,
        **counts,
        "paused": None,
        "jobs": [],
    }
