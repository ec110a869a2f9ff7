"""The removal of a partitioned stream: no entry is lost unseen, and an interrupted removal can be run again."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from millstream import App, failpoints
from millstream.cli.main import main
from millstream.client.later import schedule
from millstream.client.partitions.declared import find_layout
from millstream.client.partitions.drained import look_at
from millstream.client.partitions.layout import HIGHEST_ID, descriptor_key
from millstream.client.partitions.lease import members_key, owner_key
from millstream.client.partitions.removing import remove, scheduled
from millstream.client.slots import beside
from millstream.errors import UsageError
from support import needs
from support.partitioned import partition, second_generation
from support.servers import ServerProcess

SERVERS = ["redis", "millstream", *needs.OTHERS]
KEYS = ["orders", *(f"orders{{{at}}}" for at in range(2)), *(f"orders~2{{{at}}}" for at in range(3))]


class EndedError(BaseException):
    """The simulated end of a program."""


def run(server: ServerProcess, *words: str, code: int = 0) -> str:
    """Run ``millstream stream`` in this process."""
    done = CliRunner().invoke(main, ["stream", *words, "--url", server.url])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done.stdout if "json" in words else done.output


def fill(server: ServerProcess, client: redis.Redis) -> None:
    """Add two sealed and three open partitions with entries, groups, records and schedules."""
    partition(server.url, "orders", 2)
    for key in KEYS[1:3]:
        client.xgroup_create(key, "billing", "0", mkstream=True)
        client.xadd(key, {"n": 1})
        client.execute_command("XSETID", key, HIGHEST_ID)  # type: ignore[no-untyped-call] - redis-py has no types here
    second_generation(client, "orders", 3)
    for key in KEYS[3:]:
        client.xgroup_create(key, "billing", "0", mkstream=True)
        client.xadd(key, {"n": 1})
        client.set(owner_key(key, "billing"), "worker-1:4")
        client.set(beside(key, "owned", "billing"), 1)
        client.zadd(schedule.due_key(key), {"later": 9_999_999_999_999})
        client.hset(schedule.content_key(key), "later", "-:0:")
    client.xreadgroup("billing", "worker-1", {KEYS[3]: ">"})
    client.hset(members_key("orders", "billing"), "worker-1", "1:")


def removed(client: redis.Redis) -> None:
    """Check that each key is empty, sealed and without a group, and that no record of the stream is left."""
    for key in KEYS:
        facts: Any = client.xinfo_stream(key)
        assert (key, facts["length"], facts["groups"], facts["last-generated-id"]) == (key, 0, 0, HIGHEST_ID)
    assert [key for key in client.scan_iter("millstream:*") if key != "millstream:audit"] == []


@pytest.fixture
async def app(server: ServerProcess) -> AsyncIterator[App]:
    """A publisher."""
    found = App(server.url, registry=False)
    yield found
    await found.close()


def test_a_partitioned_stream_is_removed_whole(server: ServerProcess, client: redis.Redis) -> None:
    """``stream rm`` shows and removes all partitions; the keys stay sealed until it is run a second time."""
    fill(server, client)
    shown = json.loads(run(server, "rm", "orders", "--dry-run", "-o", "json"))
    wanted = {"partitions": 3, "entries": 5, "groups": 1, "pending": 1, "scheduled": 3}
    assert {name: shown[name] for name in wanted} == wanted
    assert client.exists(*KEYS) == 6
    run(server, "rm", "orders", "--yes")
    removed(client)
    with pytest.raises(redis.ResponseError, match="exhausted"):
        client.xadd("orders", {"n": 1})
    client.zadd(schedule.due_key(KEYS[3]), {"later": 9_999_999_999_999})  # by a program with the former layout
    assert json.loads(run(server, "rm", "orders", "--dry-run", "-o", "json"))["scheduled"] == 1
    run(server, "rm", "orders", "--yes")
    assert [key for key in client.scan_iter("*") if key != "millstream:audit"] == []


def test_a_removal_that_was_ended_goes_on(server: ServerProcess, client: redis.Redis) -> None:
    """After an end between any two steps, no publisher adds an entry that nobody reads, and a second run completes."""
    step, left = 0, 0

    def end() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise EndedError

    while left <= 0:
        client.flushall()
        fill(server, client)
        left = step = step + 1
        failpoints.on("repartition", end)
        with contextlib.suppress(EndedError):
            CliRunner().invoke(main, ["stream", "rm", "orders", "--yes", "--url", server.url])
        failpoints.clear()
        with pytest.raises(redis.ResponseError, match="exhausted"):
            client.xadd("orders", {"n": 1})
        if left <= 0:
            assert client.exists(descriptor_key("orders"))
            run(server, "rm", "orders", "--yes")
        removed(client)
    assert step > 12


async def test_publishers_are_refused_after_a_removal(server: ServerProcess, app: App, client: redis.Redis) -> None:
    """A publisher with the former layout and a fresh one get an error; a new layout has new partitions."""
    await app.partition("orders", 2, by="key")
    await app.publish("orders", {"key": "k1"})
    await asyncio.to_thread(run, server, "rm", "orders", "--yes")
    fresh = App(server.url, registry=False)
    for publisher in (app, fresh):
        with pytest.raises(redis.ResponseError, match="exhausted"):
            await publisher.publish("orders", {"key": "k1"})
    await fresh.partition("orders", 2, by="key")
    for publisher in (app, fresh):
        await publisher.publish("orders", {"key": "k1"})
    layout = await find_layout(fresh._shared(), "orders")  # noqa: SLF001 - the app's own line
    await fresh.close()
    assert layout is not None
    assert sum(client.xlen(key) for key in layout.keys) == 2
    await asyncio.to_thread(run, server, "rm", "orders", "--yes")
    await asyncio.to_thread(run, server, "partition", "orders", "4", "--by", "key", "--yes")
    job = await app.publish("orders", {"key": "k1"})
    assert job.stream.startswith("orders~3{")


@pytest.mark.parametrize("change", ["added", "replaced", "scheduled"])
async def test_entries_added_since_the_preview_are_not_removed(
    server: ServerProcess, app: App, client: redis.Redis, change: str
) -> None:
    """A partition that got an entry after the preview makes the removal refuse, and takes entries again."""
    await asyncio.to_thread(fill, server, client)
    line = app._shared()  # noqa: SLF001 - the app's own line
    layout = await find_layout(line, "orders")
    assert layout is not None
    shown, waiting = await look_at(line, KEYS), await scheduled(line, KEYS)
    if change == "scheduled":
        client.zadd(schedule.due_key(KEYS[3]), {"another": 9_999_999_999_999})
    else:
        client.xadd(KEYS[3], {"n": 2}, maxlen=1 if change == "replaced" else None, approximate=False)
    with pytest.raises(UsageError, match=r"now, and the preview had others"):
        await remove(line, layout, shown, waiting)
    assert [client.xlen(key) for key in KEYS] == [0, 1, 1, 2 if change == "added" else 1, 1, 1]
    client.xadd(KEYS[3], {"n": 3})


def test_one_partition_alone_is_refused(server: ServerProcess, client: redis.Redis) -> None:
    """``rm`` of a partition and ``rename`` of a partitioned stream name the reason; nothing is changed."""
    fill(server, client)
    client.xadd("plain", {"n": 1})
    assert "a partition of 'orders'" in run(server, "rm", "orders{0}", "--yes", code=5)
    assert "is partitioned" in run(server, "rename", "orders", "o2", "--yes", code=5)
    assert "is partitioned" in run(server, "rename", "plain", "orders", "--replace", "--yes", code=5)
    assert "a partition of 'orders'" in run(server, "rename", "orders~2{1}", "o2", "--yes", code=5)
    assert client.exists("plain", *KEYS) == 7


def test_a_trim_goes_over_all_partitions(server: ServerProcess, client: redis.Redis) -> None:
    """``trim`` shows the sum and removes the oldest entries of each partition."""
    fill(server, client)
    client.xadd(KEYS[3], {"n": 2})
    shown = json.loads(run(server, "trim", "orders", "--maxlen", "0", "--dry-run", "-o", "json"))
    assert (shown["entries"], shown["partitions"]) == (6, 5)
    run(server, "trim", "orders", "--maxlen", "1", "--yes")
    assert [client.xlen(key) for key in KEYS] == [0, 1, 1, 1, 1, 1]
    run(server, "trim", "orders", "--before", "2999-01-01", "--yes")
    assert [client.xlen(key) for key in KEYS] == [0] * 6
