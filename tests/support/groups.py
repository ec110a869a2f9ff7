"""A consumer group seen from outside, through redis-py, as an operator would."""

from collections.abc import Callable
from typing import Any

import redis

from millstream.worker.registry import protocol


def pending(client: redis.Redis, stream: str, group: str) -> dict[str, tuple[str, int]]:
    """Return the entries pending in a group: id -> (consumer, deliveries)."""
    rows: Any = client.xpending_range(stream, group, "-", "+", 10_000)
    return {row["message_id"]: (row["consumer"], row["times_delivered"]) for row in rows}


def consumers(client: redis.Redis, stream: str, group: str) -> set[str]:
    """Return the names of a group's consumers, without those for delayed and released entries."""
    rows: Any = client.xinfo_consumers(stream, group)
    return {row["name"] for row in rows} - {"", "(retry)"}


def worker_ids(client: redis.Redis) -> list[str]:
    """Return the worker ids in the registry."""
    found: Any = client.zrange(protocol.INDEX, 0, -1)
    return list(found)


def all_done(client: redis.Redis, stream: str, group: str) -> Callable[[], bool]:
    """Return a probe that is true once the group has read everything and nothing is pending."""

    def probe() -> bool:
        try:
            groups: Any = client.xinfo_groups(stream)
        except redis.ResponseError:
            return False
        row = next((row for row in groups if row["name"] == group), None)
        if row is None or row["pending"]:
            return False
        if "lag" not in row:  # Redis 6.2
            last = row["last-delivered-id"]
            return not client.xrange(stream, f"({last.decode() if isinstance(last, bytes) else last}", count=1)
        return bool(row["lag"] == 0)

    return probe
