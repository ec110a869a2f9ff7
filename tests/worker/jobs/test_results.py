"""Results of jobs: a handler's return value reaches the publisher, on every server."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
import redis

from millstream import App, Job, JobDeadError, Message, Nack, Reject, Retry, StreamSub
from millstream.client.jobs import record
from millstream.client.jobs.record import WantedResult, take_trailer, trailer
from millstream.errors import ConfigError, UsageError
from millstream.worker.handlers.fields import result_text
from millstream.worker.testing import run
from support import needs
from support.accounts import user
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]


@dataclass
class Bill:
    """A value that a handler returns."""

    id: int
    lines: list[str]


@pytest.fixture
async def app(server: ServerProcess) -> AsyncIterator[App]:
    """An app whose handler's result depends on the entry."""
    found = App(server.url, registry=False)

    @found.subscriber(StreamSub("orders", group="billing"), retry=Retry(2, base=0))
    async def handle(n: int) -> Any:
        if n == 13:
            raise ValueError("thirteen")
        if n == 14:
            return {"set": object()}
        if n == 15:
            return "x" * record.VALUE_BYTES
        return None if n == 0 else Bill(n, ["a"])

    async with found.running():
        yield found


async def test_a_publisher_gets_what_the_handler_returned(app: App, client: redis.Redis) -> None:
    """A job is the entry's id as before. Its result is the handler's return value as JSON, and its key expires."""
    job = await app.publish("orders", {"n": 7}, result="1h")
    assert isinstance(job, Job)
    assert isinstance(job, str)
    assert job == job.id
    assert await job.result(timeout="20s") == {"id": 7, "lines": ["a"]}
    assert (await job.state()).state == "done"
    key = record.result_key("orders", job.id)
    assert 3_500_000 < client.pttl(key) <= 3_600_000  # type: ignore[operator] # redis-py's types
    assert await app.request("orders", {"n": 0}, timeout=20) is None
    # A publisher may read it later, from any process
    other = App(app.url)
    assert await other.job("orders", job).result(20) == {"id": 7, "lines": ["a"]}
    assert await other.job("orders", job.id, group="billing").result(20) == {"id": 7, "lines": ["a"]}
    with pytest.raises(TimeoutError, match=r"no result within 0\.05 s; the job goes on"):
        await other.job("orders", job.id, group="nobody").result(0.05)
    await other.close()


@pytest.mark.parametrize(("n", "text"), [(13, "thirteen"), (14, "no form in JSON"), (15, "bytes as JSON")])
async def test_a_dead_job_has_its_error(app: App, client: redis.Redis, n: int, text: str) -> None:
    """A job that fails, or returns a value that cannot be stored whole, is retried and ends with the error's text."""
    job = await app.publish("orders", {"n": n}, result=60)
    with pytest.raises(JobDeadError, match=text):
        await job.result(timeout="20s")
    state = await job.state()
    assert state.state == "dead"
    assert state.error is not None
    assert text in state.error
    rows: Any = client.xrange("orders:dead")
    assert [rows[0][1]["_dead.deliveries"], rows[0][1]["n"]] == ["2", str(n)]
    assert "_job" not in rows[0][1]


async def test_plain_entries_keep_nothing(app: App, client: redis.Redis) -> None:
    """An entry without ``result=`` gets no extra field or key.

    Waiting for its job is an error with the correct form.
    """
    job = await app.publish("orders", {"n": 7})
    await aeventually(lambda: app.stats()["handle"]["acked"] == 1)
    with pytest.raises(UsageError, match='result="1h"'):
        await job.result()
    assert not list(client.scan_iter("millstream:{orders}:result:*"))
    rows: Any = client.xrange("orders")
    assert list(rows[0][1]) == ["n"]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("around", [False, True], ids=["bare", "middleware"])
async def test_every_way_to_call_a_handler_gives_its_value(plain: bool, around: bool) -> None:
    """Handlers in threads, with middlewares or with publishers give their results too.

    Expiry follows the kit's test clock.
    """
    app = App()

    async def through(call_next: Callable[[Message], Awaitable[Any]], msg: Message) -> Any:
        return await call_next(msg)

    options = {"middlewares": [through]} if around else {}
    if plain:

        @app.subscriber(StreamSub("s", group="g"), **options)
        def handle(n: int) -> int:
            return n + 1

    else:

        @app.subscriber(StreamSub("s", group="g"), **options)
        async def handle_async(n: int) -> int:
            return n + 1

    async with run(app) as broker:
        job = await broker.publish("s", {"n": 1}, result="1h")
        await broker.run_until_idle()
        assert await app.job("s", job).result(5) == 2
        await broker.advance("2h")
        assert (await app.job("s", job).state()).state == "unknown"


async def test_a_batch_answers_each_entry() -> None:
    """A batch handler that returns a list of the batch's length gives each job its own result.

    Any other value gives None.
    """
    app = App()

    @app.subscriber(StreamSub("s", group="g"), batch=True)
    async def handle(msgs: list[Message]) -> Any:
        return [msg.fields["n"].decode() for msg in msgs]

    async with run(app) as broker:
        jobs = [await broker.publish("s", {"n": n}, result="1h") for n in range(3)]
        await broker.run_until_idle()
        assert [await app.job("s", job).result(5) for job in jobs] == ["0", "1", "2"]


async def test_acks_by_hand_answer_none_and_retries_answer_once() -> None:
    """A handler that settles its entry itself gives the result None.

    A retried job has the result of the acknowledged run.
    """
    app = App()

    @app.subscriber(StreamSub("s", group="g"), ack="manual")
    async def handle(n: int, msg: Message) -> int:
        await msg.ack()
        return n

    @app.subscriber(StreamSub("t", group="g"), retry=Retry(3))
    async def again(msg: Message) -> int:
        if msg.delivery_count < 3:
            raise Nack("later", delay=10)
        return msg.delivery_count

    async with run(app) as broker:
        job = await broker.publish("s", {"n": 1}, result="1h")
        late = await broker.publish("t", {"n": 1}, result="1h")
        await broker.run_until_idle()
        assert await app.job("s", job).result(5) is None
        assert (await app.job("t", late).state()).state == "running"
        await broker.advance(30)
        assert await app.job("t", late).result(5) == 3


async def test_groups_answer_each_for_itself() -> None:
    """Each group has its own result of an entry. A job read without a group has the first result."""
    app = App()

    @app.subscriber(StreamSub("s", group="a"))
    async def first(n: int) -> str:
        return f"a{n}"

    @app.subscriber(StreamSub("s", group="b"))
    async def second(n: int) -> None:
        raise Reject("not for b")

    async with run(app) as broker:
        job = await broker.publish("s", {"n": 1}, result="1h")
        await broker.run_until_idle()
        assert await app.job("s", job, group="a").result(5) == "a1"
        with pytest.raises(JobDeadError, match="not for b"):
            await app.job("s", job, group="b").result(5)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), b"x", {1, 2}, frozenset(), {1: 2}, {None: 1}, [{"a": ({b"x"},)}, bytearray(b"x")]],
    ids=repr,
)
def test_a_result_that_would_become_another_value_is_refused(value: object) -> None:
    """A result that JSON would change fails the run, also deep inside lists and mappings."""
    with pytest.raises(UsageError, match="has no form in JSON: the content: it has"):
        result_text(value, 1)


@dataclass
class Sums:
    """A model whose annotations restore its values."""

    by: dict[int, float]
    seen: set[str]


def test_models_and_texts_of_dates_are_results() -> None:
    """A model may contain what its annotations restore, and a date becomes text."""
    value = [Sums({1: 0.5}, {"a"}), date(2026, 1, 2), (True, None, "é")]
    made = json.loads(result_text(value, 1))["value"]
    assert made == [{"by": {"1": 0.5}, "seen": ["a"]}, "2026-01-02", [True, None, "é"]]


async def test_a_job_put_back_is_without_its_field() -> None:
    """The marker field of a job is removed before its handler sees the entry, also after a dead letter is put back."""
    wanted = WantedResult(5, "ab")
    flat = [b"n", b"1", *trailer(wanted)]
    assert take_trailer(flat) == ([b"n", b"1"], (), wanted)
    history = [b"_dead.history", json.dumps([{"id": "1-0"}]).encode()]
    assert take_trailer([*flat, *history]) == ([b"n", b"1"], ({"id": "1-0"},), wanted)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"keep_ms":1}',
        b'{"keep_ms":0,"reply":"ab"}',
        b'{"keep_ms":true,"reply":"ab"}',
        b'{"keep_ms":1e99,"reply":"ab"}',
        b'{"keep_ms":99999999999999999999,"reply":"ab"}',
        b'{"keep_ms":1,"reply":"ab\\n"}',
        b'{"keep_ms":1,"reply":"AB:orders"}',
        b'{"keep_ms":1,"reply":7}',
        b"[" * 100_000,
    ],
)
def test_a_field_that_is_none_of_ours_stays(text: bytes) -> None:
    """A marker field with a foreign text stays in the entry and causes no writes to keys of the worker."""
    flat = [b"n", b"1", b"_job", text]
    assert take_trailer(flat) == (flat, (), None)


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b"\xff", b'{"state":"other"}', b'{"state":["done"]}', b'{"state":"done","at_ms":"x"}']
)
async def test_a_result_that_another_wrote_is_read_safely(app: App, client: redis.Redis, value: bytes) -> None:
    """Foreign bytes in a result's hash do not count as a result, and do not end a reader."""
    key = record.result_key("orders", "5-1")
    client.hset(key, mapping={b"billing": value, b"progress:billing": value, b"\xff": value})
    assert (await app.job("orders", "5-1").state()).state in ("unknown", "done")


async def test_a_key_in_the_way_holds_up_no_entry(app: App, client: redis.Redis) -> None:
    """A result that cannot be written is lost with one log line, and its entry is acknowledged."""
    client.set(record.result_key("orders", "9999999999999-1"), "x")
    field, value = trailer(WantedResult(1000, "ab"))
    client.xadd("orders", {b"n": b"1", field: value}, id="9999999999999-1")
    await aeventually(lambda: app.stats()["handle"]["acked"] == 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"result": 0}, "1 ms to 366 days"),
        ({"result": "500d"}, "1 ms to 366 days"),
        ({"result": "soon"}, "result="),
        ({"result": "1h", "delay": 5}, "no id before its time"),
    ],
)
async def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    """Each wrong ``result=`` option of a publish is an error before anything is sent."""
    app = App("redis://127.0.0.1:1")
    with pytest.raises(ConfigError, match=text):
        await app.publish("s", {"n": 1}, **options)
    with pytest.raises(UsageError, match="takes an entry's id"):
        app.job("s", "orders")
    await app.close()


async def test_a_result_that_cannot_come_is_not_waited_for(app: App, client: redis.Redis) -> None:
    """Waiting ends if no result can come: the entry never existed, was trimmed or gave none, or its result expired."""
    done = await app.publish("orders", {"n": 7}, result="1h")
    await done.result(20)
    client.delete(record.result_key("orders", done.id))
    plain = await app.publish("orders", {"n": 1})
    lost = await app.publish("idle", {"n": 1}, result="1h")
    client.xgroup_create("idle", "g", "$")
    waits = await app.publish("idle", {"n": 2}, result="1h")
    client.xdel("idle", lost.id)
    for stream, ident in (("orders", "5-1"), ("none", "5-1"), ("orders", done.id), ("idle", lost.id)):
        with pytest.raises(UsageError, match=f"{stream} {ident} has no result: there is no such entry"):
            await app.job(stream, ident).result(20)
    with pytest.raises(UsageError, match='result="1h"'):
        await app.job("orders", plain.id).result(20)
    with pytest.raises(UsageError, match="there is no such entry"):
        await asyncio.to_thread(app.job("orders", "5-1").result_sync, 20)
    with pytest.raises(TimeoutError):
        await app.job("idle", waits.id).result(0.25)
    # Pending with a consumer, and gone from the stream
    client.xreadgroup("g", "c", {"idle": ">"})
    client.xdel("idle", waits.id)
    with pytest.raises(TimeoutError):
        await app.job("idle", waits.id).result(0.25)


@pytest.mark.parametrize("right", ["xpending", "xrange", "xinfo"])
async def test_a_publisher_without_a_right_waits_for_its_result(
    client: redis.Redis, server: ServerProcess, right: str
) -> None:
    """A publisher without the right to see whether an entry is running keeps waiting for the result."""
    app, go = App(server.url, registry=False), asyncio.Event()

    @app.subscriber(StreamSub("orders", group="billing"))
    async def handle(n: int) -> int:
        await go.wait()
        return n

    with user(client, "~*", "+@all", f"-{right}") as login:
        publisher = App(server.url.replace("://", f"://{login}"))
        async with app.running():
            job = await publisher.publish("orders", {"n": 4}, result="1h")
            await aeventually(lambda: client.xpending("orders", "billing")["pending"], what="it runs")
            with pytest.raises(TimeoutError):
                await job.result(0.25)
            go.set()
            assert await job.result(20) == 4
        await publisher.close()


async def test_programs_without_an_event_loop_use_jobs_too(app: App) -> None:
    """``publish_sync`` returns a job with result, state and cancellation, usable from any thread."""
    other = App(app.url)

    def view() -> list[Any]:
        job = other.publish_sync("orders", {"n": 7}, result="1h")
        return [job.result_sync("20s"), job.state_sync().state, job.cancel_sync(), job]

    value, state, cancelled, job = await asyncio.to_thread(view)
    assert (value, state, cancelled) == ({"id": 7, "lines": ["a"]}, "done", False)
    with pytest.raises(UsageError, match=r"await job\.result\("):
        job.result_sync()
    await other.close()


async def test_a_late_run_does_not_write_its_result(server: ServerProcess, client: redis.Redis) -> None:
    """A late run, with its entry taken by another consumer, can write neither its result nor its acknowledgement."""
    app, begun, go_on = App(server.url, registry=False), asyncio.Event(), asyncio.Event()

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(n: int) -> str:
        begun.set()
        await go_on.wait()
        return "too late"

    async with app.running():
        job = await app.publish("s", {"n": 1}, result="1h")
        await asyncio.wait_for(begun.wait(), 20)
        client.xclaim("s", "g", "successor", 0, [job.id])
        go_on.set()
        await aeventually(lambda: app.stats()["handle"]["fenced"] == 1)
        assert not client.exists(record.result_key("s", job))
        assert (await job.state()).state == "running"


async def test_results_need_no_scripts(server: ServerProcess, client: redis.Redis) -> None:
    """A worker without the right to run scripts writes results with plain commands, also for dead letters."""
    with user(client, "~*", "+@all", "-@scripting") as login:
        app = App(server.url.replace("://", f"://{login}"), registry=False)

        @app.subscriber(StreamSub("s", group="g"), retry=Retry(1))
        async def handle(n: int) -> int:
            if n == 13:
                raise ValueError("thirteen")
            return n

        async with app.running():
            assert await app.request("s", {"n": 7}, timeout=20) == 7
            with pytest.raises(JobDeadError, match="thirteen"):
                await app.request("s", {"n": 13}, timeout=20)


async def test_many_waiters_share_one_read(app: App, client: redis.Redis) -> None:
    """A hundred concurrent waits for results share one blocking read, and all receive their result."""
    answers: Sequence[Any] = await asyncio.gather(
        *(app.request("orders", {"n": n}, timeout=30) for n in range(20, 120))
    )
    assert [answer["id"] for answer in answers] == list(range(20, 120))
    assert len(list(client.scan_iter("millstream:replies:*"))) == 1


@pytest.mark.parametrize("page", ["from-celery", "from-rq", "from-taskiq"])
async def test_results_on_the_pages_for_newcomers(page: str) -> None:
    """The results example on each introductory page gives the sum."""
    text = (ROOT / f"docs/{page}.md").read_text()
    program: dict[str, Any] = {}
    found = re.search(r"## Results\n.*?```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    exec(found[1], program)
    async with run(program["app"]):
        assert await program["ask"]() == 3.5
