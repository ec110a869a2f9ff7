"""The patterns of FastStream's claiming guide work as the guide promises."""

import asyncio
from typing import Any

import redis

from millstream import App, Message, StreamSub
from support.groups import all_done, pending
from support.servers import ServerProcess
from support.waiting import aeventually


def abandoned(client: redis.Redis, stream: str, group: str, field: str, values: list[str], idle: int) -> list[str]:
    """Add entries that worker-1 read and never acknowledged, as after a crash."""
    client.xgroup_create(stream, group, "0", mkstream=True)
    ids: Any = [client.xadd(stream, {field: value}) for value in values]
    client.xreadgroup(group, "worker-1", {stream: ">"})
    client.execute_command("XCLAIM", stream, group, "worker-1", 0, *ids, "IDLE", idle, "JUSTID")
    return ids


async def test_basic_claiming(server: ServerProcess, client: redis.Redis) -> None:
    """The guide's backup worker picks up what worker-1 left pending, after min_idle_time."""
    ids = abandoned(client, "orders", "order-processors", "order_id", ["o-1", "o-2"], idle=10_000)
    app, processed = App(server.url), []

    @app.subscriber(StreamSub("orders", group="order-processors", consumer="worker-2", min_idle_time=10_000))
    async def backup_worker(order_id: str, msg: Message) -> None:
        processed.append((order_id, msg.id, msg.consumer))

    async with app.running():
        await aeventually(all_done(client, "orders", "order-processors"))
    assert sorted(processed) == [("o-1", ids[0], "worker-2"), ("o-2", ids[1], "worker-2")]


async def test_claiming_with_manual_ack(server: ServerProcess, client: redis.Redis) -> None:
    """In the guide's manual mode a claimed entry stays pending until acknowledged, and has its delivery count."""
    abandoned(client, "tasks", "workers", "name", ["report"], idle=60_000)
    app, counts, acked = App(server.url), [], asyncio.Event()

    @app.subscriber(StreamSub("tasks", group="workers", consumer="manual", min_idle_time=30_000), ack="manual")
    async def worker(name: str, msg: Message) -> None:
        counts.append(msg.delivery_count)
        assert pending(client, "tasks", "workers")[msg.id] == ("manual", 2)
        await msg.ack()
        assert not pending(client, "tasks", "workers")
        acked.set()

    async with app.running():
        await acked.wait()
    assert counts == [2]


async def test_pattern_1_a_dedicated_claiming_worker(server: ServerProcess, client: redis.Redis) -> None:
    """In the guide's pattern 1, main workers read new tasks and the claiming worker runs only abandoned ones."""
    abandoned(client, "tasks", "workers", "task", ["left"], idle=60_000)
    app, by_main, by_claimer = App(server.url), [], []

    @app.subscriber(StreamSub("tasks", group="workers", consumer="main-1"), read="new")
    async def main_worker(task) -> None:  # no annotation, as in the guide
        by_main.append(task)

    @app.subscriber(StreamSub("tasks", group="workers", consumer="claimer", min_idle_time=15_000), read="claimed")
    async def claiming_worker(task) -> None:  # no annotation, as in the guide
        by_claimer.append(task)

    async with app.running():
        await app.publish_batch("tasks", [{"task": f"new-{number}"} for number in range(20)])
        await aeventually(all_done(client, "tasks", "workers"))
    assert sorted(by_main) == sorted(f"new-{number}" for number in range(20))
    assert by_claimer == ["left"]


async def test_pattern_2_all_workers_can_claim(server: ServerProcess, client: redis.Redis) -> None:
    """In the guide's pattern 2, each worker reads new tasks and claims abandoned ones."""
    abandoned(client, "tasks", "workers", "task", ["left-1", "left-2"], idle=60_000)
    seen: list[str] = []

    def instance(number: int) -> App:
        app = App(server.url)

        @app.subscriber(StreamSub("tasks", group="workers", consumer=f"worker-{number}", min_idle_time=10_000))
        async def worker(task) -> None:  # no annotation, as in the guide
            seen.append(task)

        return app

    first, second = instance(1), instance(2)
    async with first.running(), second.running():
        await first.publish_batch("tasks", [{"task": f"new-{number}"} for number in range(50)])
        await aeventually(all_done(client, "tasks", "workers"))
    assert sorted(seen) == sorted(["left-1", "left-2", *(f"new-{number}" for number in range(50))])
    totals = [app.stats()["worker"] for app in (first, second)]
    assert sum(total["claimed"] for total in totals) == 2
