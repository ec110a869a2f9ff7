"""What is kept of queries in the server, where somebody else wrote beside it."""

import json

import redis

from millstream.spark.monitoring import store
from support.servers import ServerProcess

_OLD = {"id": "old", "driver": "d", "state": "stopped", "at_ms": 1}


def test_what_is_forgotten_is_what_lies_there(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A record goes by its own place: one that bears the name of a live query, or no name at all, harms nobody."""
    now = store.FORGET_MS + 10
    store.write(client, {**_OLD, "id": "live", "at_ms": now}, None)
    client.hset(store.QUERIES, "disguised", json.dumps({**_OLD, "id": "live"}))
    client.hset(store.QUERIES, "nameless", json.dumps({**_OLD, "id": "\ud800"}))
    store.forget(client, now)
    assert client.hkeys(store.QUERIES) == ["live"]
