"""Partitioned streams for tests that need no app."""

import asyncio
import json

import redis

from millstream import App
from millstream.client.partitions.layout import descriptor_key


def partition(url: str, stream: str, number: int) -> None:
    """Create a partitioned stream."""

    async def declare() -> None:
        app = App(url, registry=False)
        await app.partition(stream, number, by="customer")
        await app.close()

    asyncio.run(declare())


def repartition(url: str, stream: str, number: int) -> None:
    """Divide a plain stream with entries into partitions."""

    async def change() -> None:
        app = App(url, registry=False)
        await app.repartition(stream, number, by="customer")
        await app.close()

    asyncio.run(change())


def second_generation(client: redis.Redis, stream: str, number: int, *, sealed: bool = True) -> None:
    """Add a generation to the layout, as a change of the number of partitions does."""
    key = descriptor_key(stream)
    record = json.loads(client.get(key) or b"")
    record["generations"][0]["sealed"] = sealed
    keys = [f"{stream}~2{{{at}}}" for at in range(number)]
    record["generations"].append({"g": 2, "n": number, "keys": keys, "from": [], "sealed": False})
    client.set(key, json.dumps(record, separators=(",", ":")))
