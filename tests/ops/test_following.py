"""Following a stream survives server restarts: no entry is missed or repeated, and the events are reported."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
import redis

from millstream.client.open import open_line
from millstream.ops.asking import NotReadableError
from millstream.ops.entries.reading import Arrived, follow
from millstream.ops.words import NEVER
from support.servers import ServerProcess, millstream_server, redis_server


def add(server: ServerProcess, stream: str, entry: str) -> None:
    with server.client() as client:
        client.execute_command("XADD", stream, entry, "a", "b")


async def ids(arriving: "AsyncGenerator[Arrived, None]", count: int) -> list[str]:
    """Return the ids of the next entries."""
    found: list[str] = []
    while len(found) < count:
        found += [entry.id for entry in (await anext(arriving)).entries]
    return found


async def said(arriving: "AsyncGenerator[Arrived, None]") -> str:
    """Return the next message, which must come before any entry."""
    while not (found := await anext(arriving)).said:
        assert not found.entries
    return found.said


@pytest.mark.parametrize("kind", ["redis", "millstream"])
async def test_a_restart_is_outlived(tmp_path: Path, kind: str) -> None:
    """After a restart, following reports the loss and the return, and continues after the last entry."""
    kept = redis_server(tmp_path, "--appendonly", "yes") if kind == "redis" else millstream_server(tmp_path)
    with kept as server:
        add(server, "a", "1-0")
        add(server, "b", "1-1")
        line = open_line(server.url)
        async with aclosing(follow(line, {"a": "0-0", "b": "1-1"})) as arriving:
            assert await ids(arriving, 1) == ["1-0"]
            server.stop()
            assert "the server went away" in await said(arriving)
            server.start()
            add(server, "b", "2-0")
            add(server, "a", "2-1")
            assert await said(arriving) == "the server is back; continuing after the last entry"
            assert sorted(await ids(arriving, 2)) == ["2-0", "2-1"]
        await line.close()


async def test_a_stream_that_begins_anew_is_followed_from_its_start(tmp_path: Path) -> None:
    """A stream that a memory-only server lost is followed from its start, although its ids are lower."""
    with millstream_server(tmp_path, "--memory") as server:
        add(server, "a", "9-0")
        line = open_line(server.url)
        async with aclosing(follow(line, {"a": "0-0"})) as arriving:
            assert await ids(arriving, 1) == ["9-0"]
            server.kill()
            assert "went away" in await said(arriving)
            server.start()
            add(server, "a", "1-0")
            assert "a was deleted or lost" in await said(arriving)
            assert await ids(arriving, 1) == ["1-0"]
        await line.close()


async def test_a_stream_that_was_deleted_is_followed_from_its_start(server: ServerProcess, client: redis.Redis) -> None:
    """The deletion of a followed stream is noticed between two reads. Then following continues from its start."""
    add(server, "a", "9-0")
    line = open_line(server.url + "?socket_timeout=0.4")
    assert line.patience == 0.4
    async with aclosing(follow(line, {"a": "9-0"})) as arriving:
        reading = asyncio.ensure_future(said(arriving))
        client.delete("a")
        assert "a was deleted or lost" in await reading
        add(server, "a", "1-0")
        assert await ids(arriving, 1) == ["1-0"]
    await line.close()


async def test_what_is_no_stream_ends_it(server: ServerProcess, client: redis.Redis) -> None:
    """Following ends if the key has another type."""
    client.set("a", "text")
    line = open_line(server.url)
    async with aclosing(follow(line, {"a": NEVER})) as arriving:
        with pytest.raises(NotReadableError, match="the key 'a' holds no stream"):
            await anext(arriving)
    await line.close()
