"""Records of workers, as live workers write them, without a worker."""

import json
import time
from typing import Any

import redis

from millstream.worker.registry import protocol

RECENT = {"over_ms": 60_000, "handled": 600, "failed": 6, "retried": 5, "dead": 1, "runs": [0, 300, 285, 15]}
BOUNDS_MS = [1, 10, 100, 1000]


def enrol(client: redis.Redis, worker: str, version: str = "0.2.0", blocked: Any = None, **subscriber: Any) -> None:
    """Write the record of a worker."""
    now = time.time_ns() // 1_000_000
    sub = {
        "handler": "bill", "stream": "orders", "group": "billing", "consumer": "c1", "slots": 10, "running": 3,
        "buffered": 2, "handled": 900, "failed": 9, "dead": 2, "paused": None, "jobs": [], **subscriber,
    }  # fmt: skip
    about = {
        "id": worker, "host": "web", "pid": 1, "version": version, "state": "running", "started_ms": now - 99_000,
        "beat_ms": now, "bounds_ms": BOUNDS_MS, "subscribers": [sub], "last_error": None, "blocked": blocked,
    }  # fmt: skip
    client.zadd(protocol.INDEX, {worker: now})
    client.set(protocol.worker_key(worker), json.dumps(about))
