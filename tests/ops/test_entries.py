"""Entries are read in few round trips for every kind of search."""

import asyncio
from collections.abc import Sequence
from typing import Any

import redis

from millstream.client.line import Line
from millstream.ops.entries.reading import between, newest
from support.servers import ServerProcess


class CountingLine(Line):
    """A line that counts its round trips."""

    trips = 0

    def calls(self, commands: Sequence[Any], **options: Any) -> "asyncio.Future[list[Any]]":
        self.trips += 1
        return super().calls(commands, **options)


async def test_a_search_costs_few_round_trips(server: ServerProcess, client: redis.Redis) -> None:
    """A search that matches only the oldest entry costs few round trips, since its pages grow."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(1, 3001):
            pipe.execute_command("XADD", "s", f"{number}-0", "n", number)
        pipe.execute()
    line = CountingLine(server.url)
    bounds = {"s": ("-", "+")}
    found = await newest(line, bounds, 1, lambda entry: entry.id == "1-0")
    assert ([entry.id for entry in found], line.trips <= 6) == (["1-0"], True), line.trips
    line.trips = 0
    assert [entry.id for entry in await newest(line, bounds, 2)] == ["2999-0", "3000-0"]
    assert line.trips == 1
    line.trips = 0
    assert sum([len(page) async for page in between(line, bounds)]) == 3000
    assert line.trips <= 6
    await line.close()


async def test_large_entries_come_a_few_at_a_time(server: ServerProcess, client: redis.Redis) -> None:
    """Pages of large entries are limited by the bytes of the page before, so that memory stays bounded."""
    for number in range(1, 231):
        client.execute_command("XADD", "s", f"{number}-0", "n", b"x" * 100_000)
    line = CountingLine(server.url)
    sizes = [len(page) async for page in between(line, {"s": ("-", "+")})]
    await line.close()
    assert (sum(sizes), sizes[0], max(sizes[1:])) == (230, 100, 39)
