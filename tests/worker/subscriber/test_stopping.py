"""A stop ends in time and hands entries back, whatever handlers, hooks and the server do."""

import asyncio
import logging
from typing import Any

import pytest
import redis

from millstream import App, Message, Nack, Retry, StreamSub
from millstream.clock import ManualClock
from support.groups import all_done, consumers, pending
from support.servers import ServerProcess
from support.waiting import aeventually

HOUR = 3_600_000

DEAF = """
import asyncio
import logging
from millstream import App, StreamSub
app = App(registry=False, grace=0.1)

@app.subscriber(StreamSub("jobs", group="g"))
async def work(x: int) -> None:
    if x == 0:
        print("began", flush=True)
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
"""


def test_a_handler_that_goes_on_though_cancelled_does_not_hold_up_the_end(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """A handler that ignores cancellation does not delay the stop. Its entry stays pending, and the exit code is 70."""
    client.xadd("jobs", {"x": 0})
    worker = tasks.worker(tasks.app(DEAF), server.url)
    assert any(line.startswith("began") for line in worker.stdout)
    worker.terminate()
    out, _ = worker.communicate(timeout=60)
    assert worker.returncode == 70, out
    assert "go on" in out
    assert len(pending(client, "jobs", "g")) == 1


async def test_a_cancelled_lane_hands_back_what_it_had_not_begun(server: ServerProcess, client: redis.Redis) -> None:
    """A lane cancelled at the end of the grace time hands back, uncharged, the entry that it had not begun."""
    clock, began, go = ManualClock(), asyncio.Event(), asyncio.Event()
    app = App(server.url, registry=False, reap_after=None, clock=clock)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR, polling_interval=50), concurrency=1)
    async def handle(x: int) -> None:
        began.set()
        await go.wait()

    client.xadd("s", {"x": 0})
    second: Any = client.xadd("s", {"x": 1})
    await app.start()
    await began.wait()
    (loop,) = app.loops
    await aeventually(lambda: loop.buffered == 1)
    # Nothing that writes is answered, on the shared line least of all: no CLIENT UNBLOCK gets through either, which a
    # redis-server 7.0 does not survive when the client is paused.
    client.client_pause(60_000, all=False)
    clock.advance(HOUR - 1)
    go.set()
    await aeventually(lambda: loop.buffered == 0, what="the lane has taken it, and asks")
    stop = asyncio.create_task(app.stop(grace=0))
    await aeventually(loop.lanes.tasks[0].done, what="the lane is cancelled")
    client.client_unpause()
    await stop
    client.xautoclaim("s", "g", "other", HOUR)
    assert pending(client, "s", "g") == {second: ("other", 1)}


async def test_a_command_that_came_before_the_read_it_is_to_end_is_repeated(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A retry that falls due just before a blocking read begins does not wait for the end of that read."""
    app, runs, late = App(server.url, registry=False, reap_after=None), [], asyncio.Event()

    @app.subscriber(
        StreamSub("s", group="g", min_idle_time=HOUR, polling_interval=HOUR), retry=Retry(base=0.05, jitter=False)
    )
    async def handle(msg: Message) -> None:
        runs.append(msg.delivery_count)
        await late.wait()
        if len(runs) == 1:
            raise ValueError("again")

    def words() -> int:
        stats: Any = client.info("commandstats")
        return int(stats.get("cmdstat_client|unblock", {}).get("calls", 0))

    async with app.running():
        (loop,) = app.loops
        await aeventually(lambda: loop.fetcher.blocked_until)
        sent = loop.fetcher.line.calls
        loop.fetcher._sweep_at = loop.member.clock.now().mono + 2 * HOUR  # no other reason to wake up  # noqa: SLF001 - takes away every other reason to wake up

        def calls(commands: Any, **options: Any) -> Any:
            if late.is_set() or not any("BLOCK" in command for command in commands):
                return sent(commands, **options)

            async def send() -> Any:
                before = words()
                late.set()
                await aeventually(lambda: words() > before, what="a word that comes too early")
                return await sent(commands, **options)

            return asyncio.ensure_future(send())

        loop.fetcher.line.calls = calls  # type: ignore[method-assign] # that a slow network is in between
        client.xadd("s", {"x": 1})
        await aeventually(all_done(client, "s", "g"))
    assert runs == [1, 2]


async def test_a_shutdown_hook_that_fails_keeps_nothing_from_being_tidied_up(
    server: ServerProcess, client: redis.Redis
) -> None:
    """If a shutdown hook fails, the others still run and connections close.

    The first error is raised, and the app can restart.
    """
    app, done = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int) -> None: ...

    @app.on_shutdown
    async def first() -> None:
        raise ValueError("first")

    @app.on_shutdown
    def second() -> None:
        done.append("second")

    before = {row["id"] for row in client.client_list()}
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            async with app.running():
                pass
    assert done == ["second"] * 2
    # A connection of a test before this one may still have been listed, and end meanwhile
    await aeventually(lambda: {row["id"] for row in client.client_list()} <= before)
    assert consumers(client, "s", "g") == set()


async def test_a_process_that_only_reads_new_entries_keeps_no_list_of_retries(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A worker that only reads new entries keeps no list of due retries, since others claim them."""
    app, runs = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"), read="new", retry=Retry(base=0.05))
    async def handle(x: int) -> None:
        runs.append(x)
        if x % 2:
            raise ValueError("again")
        raise Nack("at once")

    async with app.running():
        for number in range(10):
            client.xadd("s", {"x": number})
        await aeventually(lambda: app.stats()["handle"]["retried"] == 10)
        await aeventually(lambda: not app.loops[0].busy)
        assert app.loops[0].common.acks.retries_due == []
    assert sorted(runs) == list(range(10))


async def test_claims_are_taken_though_others_of_our_name_stand_between(
    server: ServerProcess, client: redis.Redis
) -> None:
    """Idle entries of a dead consumer are claimed although many younger ones of the worker's own name lie between."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids: Any = [client.xadd("s", {"x": number}) for number in range(200)]
    client.xreadgroup("g", "fixed", {"s": ">"})
    mine, ghosts = [entry for at, entry in enumerate(ids) if at % 10], ids[::10]
    client.execute_command("XCLAIM", "s", "g", "ghost", 0, *ghosts, "IDLE", HOUR, "RETRYCOUNT", 1, "JUSTID")
    app, seen = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g", consumer="fixed", min_idle_time=60_000))
    async def handle(msg: Message) -> None:
        seen.append((msg.id, msg.delivery_count))

    async with app.running():
        await aeventually(lambda: len(seen) >= len(ghosts))
    assert sorted(seen) == sorted((entry, 2) for entry in ghosts)  # as text, since one millisecond may have ten ids
    assert pending(client, "s", "g") == dict.fromkeys(mine, ("fixed", 1))


async def test_a_stop_logs_what_was_cancelled_and_the_figures_above_zero(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop logs each entry that it cancelled and the counters above zero."""
    caplog.set_level(logging.INFO, "millstream.worker")
    entry = client.xadd("s", {"x": 1})
    client.xgroup_create("idle", "g", mkstream=True)
    app, running = App(server.url), asyncio.Event()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR))
    async def handle(msg: Message) -> None:
        running.set()
        await asyncio.Event().wait()

    @app.subscriber(StreamSub("idle", group="g"))
    async def idle() -> None: ...

    await app.start()
    await running.wait()
    assert await app.stop(grace=0.05)
    assert f"handle: cancelled at the end of the grace time of 0.05 s: {entry} of s" in caplog.messages
    assert "stopped: handle: read 1, released 1, groups created 1; idle: nothing" in caplog.messages
