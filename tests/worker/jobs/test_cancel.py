"""Cancellation and progress of jobs: a queued job never begins, and a running job is interrupted once."""

import asyncio
import threading
from typing import Any

import pytest
import redis

from millstream import App, JobCancelledError, Message, Retry, StreamSub
from millstream.client.jobs import record
from millstream.errors import UsageError
from millstream.worker.testing import run
from support import needs
from support.servers import ServerProcess
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]


async def test_a_queued_job_never_begins(server: ServerProcess, client: redis.Redis) -> None:
    """A cancelled queued job never begins, even if workers start later.

    Its entry is acknowledged and not a dead letter.
    """
    client.xgroup_create("s", "g", mkstream=True)
    publisher = App(server.url)
    job = await publisher.publish("s", {"n": 1}, result="1h")
    await publisher.publish("s", {"n": 2})
    assert (await job.state()).state == "queued"
    assert await job.cancel() is True
    assert await job.cancel() is True
    key = record.cancelled_key("s", "g")
    assert 0 < client.pttl(key) <= record.CANCELLED_MS  # type: ignore[operator] # redis-py's types
    await publisher.close()
    app, ran = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(n: int) -> None:
        ran.append(n)

    async with app.running():
        await aeventually(lambda: app.stats()["handle"]["acked"] == 2)
        back = app.job("s", job)
        with pytest.raises(JobCancelledError, match="was cancelled"):
            await back.result("20s")
        assert (await back.state()).state == "cancelled"
        assert await back.cancel() is False
        assert app.stats()["handle"]["cancelled"] == 1
        await aeventually(lambda: not client.exists(key))
    assert ran == [2]
    assert not client.exists("s:dead")


@pytest.mark.parametrize("key", [None, "n"], ids=["lanes", "by key"])
async def test_a_running_job_gets_the_error_once(server: ServerProcess, client: redis.Redis, key: str | None) -> None:
    """A cancelled coroutine is interrupted once and runs its cleanup. Its lane continues with the next entry."""
    app, seen = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"), concurrency=1, key=key)
    async def handle(n: int) -> None:
        if n == 1:
            seen.append("begun")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            finally:
                await asyncio.sleep(0)  # only a second cancellation would end this
                seen.append("tidy")
        seen.append(str(n))

    async with app.running():
        job = await app.publish("s", {"n": 1}, result="1h")
        await aeventually(lambda: seen == ["begun"])
        assert await job.cancel() is True
        (loop,) = app.loops
        await loop.common.cancels.round()
        await loop.common.cancels.round()
        with pytest.raises(JobCancelledError):
            await job.result("20s")
        await app.request("s", {"n": 3}, timeout=20)
    assert seen[:3] == ["begun", "cancelled", "tidy"]
    assert seen[-1] == "3"
    assert not client.exists("s:dead")


async def test_a_handler_that_goes_on_has_its_say(server: ServerProcess) -> None:
    """A cancelled run that still succeeds is done. If it raises another error, the retry never begins."""
    app, seen = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"), retry=Retry(5, base=0))
    async def handle(n: int, msg: Message) -> str:
        seen.append(n)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert msg.cancelled
        if n == 2:
            raise ValueError("after")
        return "all the same"

    async with app.running():
        jobs = [await app.publish("s", {"n": n}, result="1h") for n in (1, 2)]
        await aeventually(lambda: len(seen) == 2)
        for job in jobs:
            await job.cancel()
        await app.loops[0].common.cancels.round()
        assert await jobs[0].result("20s") == "all the same"
        with pytest.raises(JobCancelledError):
            await jobs[1].result("20s")
        assert await jobs[0].cancel() is False
    assert sorted(seen) == [1, 2]


async def test_a_plain_function_looks_at_the_message() -> None:
    """A plain function in a thread sees the cancellation on its message and may report progress."""
    app, begun = App(), threading.Event()

    @app.subscriber(StreamSub("s", group="g"))
    def handle(msg: Message) -> None:
        msg.progress(40, of=100, text="pages")
        begun.set()
        while not msg.cancelled:
            threading.Event().wait(0.001)
        raise JobCancelledError

    async with run(app) as broker:
        job = app.job("s", await broker.publish("s", {"n": 1}, result="1h"))
        await aeventually(begun.is_set)
        state = await job.state()
        assert (state.state, state.progress) == ("running", {"at": 40, "of": 100, "text": "pages"})
        assert await job.cancel()
        await broker.advance(5)
        with pytest.raises(JobCancelledError):
            await job.result(5)


async def test_progress_is_kept_with_the_result() -> None:
    """The last progress is readable during and after the run. Without ``result=`` no key is written for it."""
    app, go_on = App(), asyncio.Event()

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(n: int, msg: Message) -> None:
        await msg.progress(n)
        await msg.progress(n + 0.5, of=8)
        await go_on.wait()

    async with run(app) as broker:
        plain = await broker.publish("s", {"n": 1})
        job = app.job("s", await broker.publish("s", {"n": 2}, result="1h"))
        key = record.result_key("s", job)
        await aeventually(lambda: "2.5" in str(broker.client.hget(key, "progress:g")))
        assert (await job.state()).progress == {"at": 2.5, "of": 8, "text": ""}
        go_on.set()
        await broker.run_until_idle()
        assert await job.result(5) is None
        assert (await job.state()).progress == {"at": 2.5, "of": 8, "text": ""}
        assert not broker.client.exists(record.result_key("s", plain))


@pytest.mark.parametrize("words", [("x",), (float("nan"),), (1, "x"), (1, 2, 3), (None,)])
async def test_bad_progress_is_refused(words: tuple[Any, ...]) -> None:
    """Invalid progress is refused with one error that gives the correct form."""
    app = App()

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(msg: Message) -> None:
        at, of, text = (*words, *(None, "")[len(words) - 1 :]) if len(words) < 3 else words
        with pytest.raises(UsageError, match=r"Write progress\(40, of=100"):
            await msg.progress(at, of=of, text=text)

    async with run(app) as broker:
        await broker.publish("s", {"n": 1}, result="1h")
        await broker.run_until_idle()


async def test_a_batch_begins_without_what_was_cancelled() -> None:
    """A batch begins without its cancelled jobs. A running batch is not interrupted."""
    app, got = App(), []

    @app.subscriber(StreamSub("s", group="g"), batch=True)
    async def handle(msgs: list[Message]) -> None:
        got.append([msg.fields["n"] for msg in msgs])

    async with run(app) as broker:
        app.loops[0].quieten(True)
        await broker.publish("s", {"n": 0})
        job = app.job("s", await broker.publish("s", {"n": 1}, result="1h"))
        assert await job.cancel()
        app.loops[0].quieten(False)
        await broker.run_until_idle()
        assert got in ([[b"0"]], [[b"0"], []])
        assert app.stats()["handle"]["cancelled"] == 1


async def test_cancel_needs_a_group_and_an_entry(server: ServerProcess, client: redis.Redis) -> None:
    """``cancel`` of an entry without a job is an error with the correct form.

    For an entry that is gone it returns False.
    """
    app = App(server.url)
    job = await app.publish("s", {"n": 1}, result="1h")
    with pytest.raises(UsageError, match="no group reads s yet"):
        await job.cancel()
    named = app.job("s", job, group="g")
    assert await named.cancel()
    client.xdel("s", job)
    assert not await named.cancel()
    assert not await app.job("s", "5-1", group="g").cancel()
    later = await app.publish("s", {"n": 1}, delay="1h")
    with pytest.raises(UsageError, match=r"is a schedule of s .* app\.later"):
        await later.cancel()
    plain = await app.publish("s", {"n": 1})
    for one in (plain, app.job("s", plain)):
        with pytest.raises(UsageError, match=r'is not a job.* result="1h"'):
            await one.cancel()
    await app.close()


async def test_a_job_in_a_buffer_never_begins(server: ServerProcess) -> None:
    """A delivered job that waits in a lane's buffer does not begin after a cancel."""
    app, ran, go_on = App(server.url, registry=False), [], asyncio.Event()

    @app.subscriber(StreamSub("s", group="g"), concurrency=1)
    async def handle(n: int) -> None:
        ran.append(n)
        await go_on.wait()

    async with app.running():
        jobs = [await app.publish("s", {"n": n}, result="1h") for n in range(3)]
        await aeventually(lambda: app.stats()["handle"]["read"] == 3)
        assert await jobs[1].cancel()
        go_on.set()
        assert await jobs[2].result("20s") is None
    assert ran == [0, 2]


async def test_a_foreign_key_cancels_nothing(server: ServerProcess, client: redis.Redis) -> None:
    """A key of another type under the name of the cancellations does not hold up any entry."""
    client.set(record.cancelled_key("s", "g"), "x")
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(n: int) -> int:
        return n

    async with app.running():
        assert await app.request("s", {"n": 1}, timeout=20) == 1
