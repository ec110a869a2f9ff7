"""FastStream's names on the Millstream worker: a program moved by its imports behaves as FastStream documents."""

import logging
from typing import Any

import pytest
import redis

from millstream import App, Retry
from millstream.compat.faststream import (
    AckMessage,
    AckPolicy,
    Depends,
    FastStream,
    Logger,
    NackMessage,
    Redis,
    RedisBroker,
    RedisStreamMessage,
    RejectMessage,
    StreamMessage,
    StreamSub,
)
from millstream.errors import ConfigError
from support.groups import all_done, pending
from support.servers import ServerProcess
from support.waiting import aeventually

QUICK = Retry(max_deliveries=3, base=0.02, jitter=False)


def sub(stream: str, **options: Any) -> StreamSub:
    """Build a subscription of group g that begins at the start; a busy machine must not make it claim."""
    return StreamSub(stream, **{"group": "g", "consumer": "c", "last_id": "0", "min_idle_time": 60_000, **options})


async def test_a_moved_program_handles_publishes_and_replies(server: ServerProcess, client: redis.Redis) -> None:
    """A program moved from FastStream publishes and replies in FastStream's envelope with headers."""
    broker, seen = RedisBroker(server.url), []
    app = FastStream(broker)

    @broker.subscriber(stream=sub("orders"))
    @broker.publisher(stream=StreamSub("bills", maxlen=1_000))
    async def bill(order: dict[str, Any], msg: StreamMessage) -> dict[str, Any]:
        return {"order": order["id"], "tenant": msg.headers["tenant"]}

    @broker.subscriber(stream=sub("bills", batch=True, max_records=10), max_workers=2)
    def keep(bills: list[dict[str, Any]]) -> None:
        seen.extend(bills)

    await broker.start()
    try:
        await broker.publish({"id": 7}, stream="orders", headers={"tenant": "t"})
        await broker.publish_batch({"order": 8}, {"order": 9}, stream="bills")
        await aeventually(lambda: len(seen) == 3)
    finally:
        await broker.stop()
    assert app is broker.app
    assert isinstance(app, App)
    assert sorted(row["order"] for row in seen) == [7, 8, 9]
    assert client.xlen("orders") == 1


@pytest.mark.parametrize(
    ("policy", "runs", "dead"),
    [
        (AckPolicy.REJECT_ON_ERROR, 1, 1),
        (AckPolicy.NACK_ON_ERROR, 3, 1),
        (AckPolicy.ACK, 1, 0),
        (AckPolicy.ACK_FIRST, 1, 0),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
async def test_what_an_error_means_by_policy(
    server: ServerProcess,
    client: redis.Redis,
    policy: AckPolicy,
    runs: int,
    dead: int,
    batch: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """FastStream's policies reject a failed entry at once, retry it to the limit, or acknowledge and log it."""
    caplog.set_level(logging.WARNING, "millstream.worker")
    broker, seen = RedisBroker(server.url), []

    @broker.subscriber(stream=sub("s", batch=batch), ack_policy=policy, retry=QUICK)
    async def handle(body) -> None:  # no annotation, as in the guide
        seen.append(body)
        raise ValueError("bad")

    async with broker.app.running():
        await broker.publish({"x": 1}, stream="s")
        await aeventually(lambda: len(seen) == runs and client.xlen("s:dead") == dead)
        await aeventually(all_done(client, "s", "g"))
    assert len(seen) == runs
    assert "ValueError: bad" in caplog.text


async def test_the_exceptions_do_what_they_say(server: ServerProcess, client: redis.Redis) -> None:
    """NackMessage delivers the entry again, RejectMessage makes it dead, and AckMessage acknowledges it."""
    broker, seen = RedisBroker(server.url), []

    @broker.subscriber(stream=sub("s"), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def handle(do: str, msg: StreamMessage) -> None:
        seen.append(do)
        if do == "nack" and msg.delivery_count == 1:
            raise NackMessage
        if do == "reject":
            raise RejectMessage
        raise AckMessage

    async with broker.app.running():
        for do in ("nack", "reject", "ack"):
            client.xadd("s", {"do": do})
        await aeventually(lambda: len(seen) == 4)
        await aeventually(all_done(client, "s", "g"))
    assert sorted(seen) == ["ack", "nack", "nack", "reject"]
    assert client.xlen("s:dead") == 1


async def test_manual_and_no_ack(server: ServerProcess, client: redis.Redis) -> None:
    """With MANUAL an entry without an outcome stays pending. With no_ack it is never pending."""
    broker, seen = RedisBroker(server.url), []

    @broker.subscriber(stream=sub("s", min_idle_time=60_000), ack_policy=AckPolicy.MANUAL)
    async def manual(x: int, msg: StreamMessage) -> None:
        seen.append("manual")
        if x:
            await msg.ack()

    @broker.subscriber(stream=sub("t", min_idle_time=None), no_ack=True)
    async def once(x: int) -> None:
        seen.append("once")

    async with broker.app.running():
        ids: list[Any] = [client.xadd("s", {"x": x}) for x in (0, 1)]
        client.xadd("t", {"x": 1})
        await aeventually(lambda: len(seen) == 3)
        await aeventually(lambda: set(pending(client, "s", "g")) == {ids[0]})
        assert pending(client, "t", "g") == {}


async def test_a_claiming_subscriber_reads_new_entries_too(server: ServerProcess, client: redis.Redis) -> None:
    """A moved claiming subscriber also reads new entries. The default last_id begins at the stream's end."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    left: Any = client.xadd("s", {"task": "left"})
    client.xreadgroup("g", "ghost", {"s": ">"})
    client.xclaim("s", "g", "ghost", 0, [left], idle=60_000, justid=True)
    client.xadd("late", {"task": "before"})
    broker, seen = RedisBroker(server.url), []

    @broker.subscriber(stream=StreamSub("s", group="g", consumer="c", min_idle_time=30_000))
    async def work(task) -> None:  # no annotation, as in the guide
        seen.append(task)

    @broker.subscriber(stream=StreamSub("late", group="g", consumer="c"))
    async def late(task) -> None:  # as above
        seen.append(task)

    async with broker.app.running():
        client.xadd("s", {"task": "new"})
        client.xadd("late", {"task": "after"})
        await aeventually(lambda: len(seen) == 3)
    assert sorted(seen) == ["after", "left", "new"]


def test_a_stream_without_a_group_is_refused() -> None:
    """A FastStream subscription without a group is refused at import."""
    with pytest.raises(ConfigError, match="without a group"):
        RedisBroker().subscriber(stream="s")
    with pytest.raises(TypeError):
        RedisBroker().subscriber("channel")  # type: ignore[misc] # that is the test


GUIDE = """
from millstream.compat.faststream import AckPolicy, FastStream, Logger
from millstream.compat.faststream import RedisBroker, RedisStreamMessage, StreamSub, Redis

broker = RedisBroker()
app = FastStream(broker)
events = []

@broker.subscriber(
    stream=StreamSub("tasks", group="workers", consumer="failover", min_idle_time=20000),
    ack_policy=AckPolicy.MANUAL,
)
async def handle(msg: RedisStreamMessage, logger: Logger, redis: Redis):
    try:
        logger.info(f"Processing: {msg.body}")
        events.append(msg.body)
        await msg.ack(redis=redis, group="workers")
    except Exception as error:
        logger.error(f"Failed: {error}")

@broker.subscriber(stream=StreamSub("orders", group="processors", consumer="one", claim_min_idle_time=5000))
async def order(order_id: str, message: RedisStreamMessage, logger: Logger):
    if message.raw_message.get("delivery_counts", [0])[0]:
        logger.info(f"Recovering {order_id}")
    else:
        events.append(order_id)

@app.on_startup
async def begin():
    events.append("on_startup")

@app.after_startup
async def publish():
    events.append("after_startup")
    await broker.publish("task-1", stream="tasks")
    await broker.publish("order-1", stream="orders")

@app.on_shutdown
async def end():
    events.append("on_shutdown")

@app.after_shutdown
async def ended():
    events.append("after_shutdown")
"""


async def test_a_program_written_after_the_guide_runs_by_its_imports(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A program of FastStream's guide runs with changed imports: hooks, logger, client and messages behave alike."""
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("MILLSTREAM_URL", server.url)
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(GUIDE, "shop.py", "exec"), names)
    events = names["events"]
    async with names["app"].running():
        await aeventually(lambda: len(events) == 4)
        await aeventually(all_done(client, "tasks", "workers"))
    assert events[:2] == ["on_startup", "after_startup"]
    assert set(events[2:4]) == {b"task-1", "order-1"}
    assert events[4:] == ["on_shutdown", "after_shutdown"]
    assert ("shop", "Processing: b'task-1'") in [(record.name, record.getMessage()) for record in caplog.records]


async def test_a_message_has_what_theirs_has(server: ServerProcess, client: redis.Redis) -> None:
    """A message has FastStream's body, content type, headers and ids, and its outcomes take FastStream's arguments."""
    broker, seen = RedisBroker(server.url), []
    FastStream(broker)

    async def session() -> str:
        return "session"

    @broker.subscriber(stream=sub("s"), ack_policy=AckPolicy.MANUAL, retry=QUICK)
    async def handle(msg: RedisStreamMessage, redis: Redis, logger: Logger, db: str = Depends(session)) -> None:
        seen.append((msg.body, await msg.decode(), msg.content_type, msg.message_id == msg.id, db))
        if b"x" not in msg.raw:
            await msg.ack(redis=redis, group="g")
        elif msg.raw_message["delivery_counts"] == [0]:
            await msg.nack(redis=redis)
        else:
            assert msg.correlation_id == msg.id
            await msg.reject(redis=redis, group="g")

    await broker.start()
    try:
        await broker.publish({"id": 7}, stream="s")
        await aeventually(lambda: len(seen) == 1)
        client.xadd("s", {"x": "1", "y": "2"})
        await aeventually(lambda: client.xlen("s:dead") == 1)
    finally:
        await broker.stop()
    assert seen[0] == (b'{"id":7}', {"id": 7}, "application/json", True, "session")
    assert seen[1:] == [(b'{"x": "1", "y": "2"}', {"x": "1", "y": "2"}, None, True, "session")] * 2
