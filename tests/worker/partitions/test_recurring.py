"""Recurring schedules on a partitioned stream: each firing is one entry in the partition of its key."""

import asyncio
import json
import zlib
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from millstream import App, StreamSub
from millstream.cli.main import main
from millstream.errors import UsageError
from support.partitioned import partition, second_generation
from support.servers import ServerProcess
from support.waiting import aeventually

pytestmark = [pytest.mark.either_server]


def layout_app(server: ServerProcess) -> App:
    """An app with two schedules on a partitioned stream, with the key in the content and beside it."""
    app = App(server.url)
    app.schedule(every=1, stream="ticks", content={"customer": "c1", "kind": "field"}, name="field")
    app.schedule(every=1, stream="ticks", content={"kind": "given"}, key="c7", name="given")
    return app


async def test_each_firing_is_one_entry_in_the_partition_of_its_key(server: ServerProcess, client: redis.Redis) -> None:
    """Each firing is one entry in its key's partition, with several workers that declare and move it."""
    apps = [layout_app(server) for _ in range(3)]
    await apps[0].partition("ticks", 4, by="customer")
    seen: list[tuple[str, str, int]] = []
    for app in apps:

        @app.subscriber(StreamSub("ticks", group="g", min_idle_time=5_000))
        async def handle(data: dict[str, str], at: int = 0) -> None: ...

    async with asyncio.TaskGroup() as group:
        done = asyncio.Event()

        async def work(app: App) -> None:
            async with app.running():
                await done.wait()

        for app in apps:
            group.create_task(work(app))
        place = {key: f"ticks{{{zlib.crc32(key.encode()) % 4}}}" for key in ("c1", "c7")}
        await aeventually(lambda: min(client.xlen(key) for key in set(place.values())) >= 3, 60)
        done.set()
    for part in (f"ticks{{{at}}}" for at in range(4)):
        rows: Any = client.xrange(part)
        for entry, fields in rows:
            seen.append((part, fields["kind"], int(entry.partition("-")[0]) // 1000))
    assert {(part, kind) for part, kind, _ in seen} == {(place["c1"], "field"), (place["c7"], "given")}
    # A firing may be handed over late, but each time is one entry: there are no more entries than seconds
    for kind in ("field", "given"):
        times = [at for _, one, at in seen if one == kind]
        assert len(times) <= max(times) - min(times) + 2
    assert client.xlen("ticks") == 0


async def test_an_entry_without_a_key_is_refused(server: ServerProcess) -> None:
    """A recurring schedule without a key for a partitioned stream is refused when it is put."""
    async with App(server.url) as app:
        await app.partition("ticks", 4, by="customer")
        with pytest.raises(UsageError, match="no key"):
            await app.schedules.put("tick", every=1, stream="ticks", content={"kind": "t"})
        await app.schedules.put("tick", every=3600, stream="ticks", content={"kind": "t"}, key="c7")
        (one,) = await app.schedules.list()
        assert one.key == b"c7"


async def test_a_person_fires_it_in_the_partition_of_its_key(server: ServerProcess, client: redis.Redis) -> None:
    """``millstream schedule fire`` adds an entry to the key's partition without a worker."""
    async with App(server.url) as app:
        await app.partition("ticks", 4, by="customer")
        await app.schedules.put("tick", every=3600, stream="ticks", content={"kind": "t"}, key="c7")
    words = ["schedule", "fire", "tick", "--yes", "--url", server.url]
    done = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert done.exit_code == 0, done.output
    assert client.xlen(f"ticks{{{zlib.crc32(b'c7') % 4}}}") == 1


async def test_schedules_of_an_earlier_number_are_found(server: ServerProcess, client: redis.Redis) -> None:
    """A schedule at a partition that was sealed later can still be listed, moved and cancelled by name."""
    await asyncio.to_thread(partition, server.url, "orders", 2)
    async with App(server.url) as app:
        await app.publish("orders", {"customer": "c1"}, delay="1h", id="early")
        second_generation(client, "orders", 4)
        await app.publish("orders", {"customer": "c1"}, delay="2h", id="late")
        assert [one.id async for one in app.later.list("orders")] == ["early", "late"]
        assert await app.later.move("orders", "early", delay="3h")
        words = ["later", "ls", "orders", "-o", "json", "--url", server.url]
        done = await asyncio.to_thread(CliRunner().invoke, main, words)
        assert [row["id"] for row in json.loads(done.stdout)] == ["late", "early"]
        assert await app.later.cancel("orders", "early")
        assert await app.later.cancel("orders", "late")
