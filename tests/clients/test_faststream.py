"""An unmodified FastStream 0.7 app on a Millstream server, and beside a Millstream worker on one stream."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from faststream import AckPolicy
from faststream.redis import RedisBroker, RedisStreamMessage
from faststream.redis import StreamSub as TheirSub
from faststream.redis.annotations import RedisStreamMessage as TheirMessage

from millstream import App, StreamSub
from support.groups import all_done, pending
from support.servers import ServerProcess, millstream_server
from support.waiting import aeventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A Millstream server with a data directory, as a FastStream user would start it."""
    with millstream_server(tmp_path) as found:
        yield found


async def test_publish_consume_and_claim(server: ServerProcess) -> None:
    """FastStream publishes and consumes in a group.

    Entries that fail are claimed after min_idle_time and acknowledged.
    """
    broker = RedisBroker(server.url, logger=None)
    seen: list[dict[str, int]] = []
    claimed: list[dict[str, int]] = []

    @broker.subscriber(
        stream=TheirSub("orders", group="g", consumer="worker-1", polling_interval=10),
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )
    async def main_worker(order: dict[str, int]) -> None:
        if order["id"] == 3:
            raise ValueError("crash before the ack")
        seen.append(order)

    @broker.subscriber(
        stream=TheirSub("orders", group="g", consumer="worker-2", min_idle_time=100, polling_interval=10)
    )
    async def backup_worker(order: dict[str, int], message: RedisStreamMessage) -> None:
        claimed.append(order)

    async with broker:
        await broker.start()
        for number in range(5):
            await broker.publish({"id": number}, stream="orders", maxlen=1_000)
        await aeventually(lambda: claimed)
        with server.client(decode_responses=True) as client:
            await aeventually(all_done(client, "orders", "g"))
    assert sorted(order["id"] for order in seen) == [0, 1, 2, 4]
    assert claimed == [{"id": 3}]


@pytest.mark.parametrize("restart", [pytest.param("stop", marks=pytest.mark.long), "kill"])
async def test_app_lives_through_a_restart(server: ServerProcess, restart: str) -> None:
    """A FastStream app continues after a server restart: new entries are read, and failed ones claimed."""
    broker = RedisBroker(server.url, logger=None)
    seen: list[int] = []
    refused: list[int] = []

    @broker.subscriber(
        stream=TheirSub("orders", group="g", consumer="main", polling_interval=10), ack_policy=AckPolicy.NACK_ON_ERROR
    )
    async def handle(order: dict[str, int]) -> None:
        if order["id"] == 0:
            refused.append(0)
            raise ValueError("nacked: it stays pending")
        seen.append(order["id"])

    async with broker:
        await broker.start()
        for number in range(3):
            await broker.publish({"id": number}, stream="orders")
        await aeventually(lambda: (sorted(seen), refused) == ([1, 2], [0]))
        with server.client(decode_responses=True) as client:
            await aeventually(lambda: len(pending(client, "orders", "g")) == 1)
            left = pending(client, "orders", "g")
        code = await asyncio.to_thread(server.stop if restart == "stop" else server.kill)
        assert code == (0 if restart == "stop" else -9)
        await asyncio.to_thread(server.start)
        with server.client(decode_responses=True) as client:
            assert pending(client, "orders", "g") == left
        await published(broker, {"id": 3})
        await aeventually(lambda: 3 in seen)

    backup = RedisBroker(server.url, logger=None)

    @backup.subscriber(stream=TheirSub("orders", group="g", consumer="backup", min_idle_time=10, polling_interval=10))
    async def rescue(order: dict[str, int]) -> None:
        seen.append(order["id"])

    async with backup:
        await backup.start()
        with server.client(decode_responses=True) as client:
            await aeventually(all_done(client, "orders", "g"))
    assert sorted(seen) == [0, 1, 2, 3]


async def published(broker: RedisBroker, order: dict[str, int]) -> None:
    """Publish, also if the broker's pool still holds connections that the restart has broken."""

    async def probe() -> bool:
        try:
            await broker.publish(order, stream="orders")
        except redis.ConnectionError:
            return False
        return True

    await aeventually(probe, what="the broker publishes again")


async def test_reading_and_claiming_with_one_subscriber(server: ServerProcess) -> None:
    """FastStream's claim_min_idle_time works on the server's XREADGROUP CLAIM. One subscriber reads and claims."""
    broker = RedisBroker(server.url, logger=None)
    seen: list[str] = []

    @broker.subscriber(
        stream=TheirSub("s", group="g", consumer="w", claim_min_idle_time=200, polling_interval=10, last_id=">")
    )
    async def handle(body: Any) -> None:
        seen.append(body)

    with server.client(decode_responses=True) as client:
        client.xgroup_create("s", "g", "0", mkstream=True)
        client.xadd("s", {"data": "left"})
        client.xreadgroup("g", "ghost", {"s": ">"})
        client.execute_command("XCLAIM", "s", "g", "ghost", 0, client.xrange("s")[0][0], "IDLE", 5_000, "JUSTID")
        async with broker:
            await broker.start()
            await broker.publish("fresh", stream="s")
            await aeventually(lambda: len(seen) == 2)
            await aeventually(all_done(client, "s", "g"))
    assert "fresh" in seen


async def test_their_publisher_and_our_worker(server: ServerProcess) -> None:
    """A Millstream handler receives entries of FastStream's publisher decoded, with headers."""
    broker, app = RedisBroker(server.url), App(server.url)
    seen: list[tuple[int, str]] = []
    done = asyncio.Event()

    @app.subscriber(StreamSub("orders", group="ours"))
    async def handle(id: int, customer: str) -> None:  # noqa: A002 - the field's name
        seen.append((id, customer))
        done.set()

    async with broker, app.running():
        await broker.publish({"id": 7, "customer": "c"}, stream="orders", headers={"tenant": "t"})
        await done.wait()
    assert seen == [(7, "c")]


async def test_our_publisher_and_their_worker(server: ServerProcess) -> None:
    """A FastStream handler receives the fields of an entry that a Millstream app published."""
    broker, app = RedisBroker(server.url, logger=None), App(server.url)
    seen: list[dict[str, str]] = []

    @broker.subscriber(stream=TheirSub("orders", group="theirs", consumer="w", polling_interval=10))
    async def handle(order: dict[str, str]) -> None:
        seen.append(order)

    async with broker, app:
        await broker.start()
        await app.publish("orders", {"id": 7, "customer": "c"})
        await aeventually(lambda: seen)
        with server.client(decode_responses=True) as client:
            await aeventually(lambda: not pending(client, "orders", "theirs"))
    assert {key: str(value) for key, value in seen[0].items()} == {"id": "7", "customer": "c"}


async def test_our_envelope_and_their_worker(server: ServerProcess) -> None:
    """A FastStream handler receives a Millstream entry with headers in its own types."""
    broker, app = RedisBroker(server.url, logger=None), App(server.url)
    seen: list[tuple[Any, Any]] = []

    @broker.subscriber(stream=TheirSub("orders", group="theirs", consumer="w", polling_interval=10))
    async def handle(order: dict[str, Any], msg: TheirMessage) -> None:
        seen.append((order, msg.headers["tenant"]))

    async with broker, app:
        await broker.start()
        await app.publish("orders", {"id": 7, "items": ["a"]}, headers={"tenant": "ü"})
        await aeventually(lambda: seen)
    assert seen == [({"id": 7, "items": ["a"]}, "ü")]
