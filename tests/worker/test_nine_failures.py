"""Each of FastStream's nine failures on Redis streams does not happen with Millstream, on a real Redis.

Cases with detailed tests elsewhere are only named here. A test checks that each row of the table names a test.
"""

import ast
import asyncio
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import App, Message, Nack, Retry, StreamSub
from support.groups import all_done, consumers, pending
from support.servers import ServerProcess
from support.waiting import aeventually, pace

HERE = Path(__file__).parent
HOUR = 3_600_000

#: The failure, as run against FastStream 0.7.8 -> the tests, here or elsewhere, that show the opposite.
NINE = {
    "a claiming subscriber never reads a new entry": [
        "test_contract.py::test_one_subscriber_reads_new_entries_and_claims_stale_ones",
        "test_guide.py::test_pattern_2_all_workers_can_claim",
    ],
    "nack and reject send nothing; no retry, no backoff, no dead letters": [
        "test_contract.py::test_manual_ack_nack_and_reject_do_what_they_say",
        "test_contract.py::test_a_failing_entry_is_tried_exactly_as_often_as_allowed_and_then_dead_once",
        "test_contract.py::test_poison_never_starves_new_entries",
    ],
    "long jobs run several times at once": [
        "test_nine_failures.py::test_a_long_job_runs_once_among_three_workers",
        "test_contract.py::test_long_handlers_and_waiting_entries_keep_their_lease",
    ],
    "the first worker reads the whole backlog": [
        "test_contract.py::test_prefetch_is_bounded",
        "test_nine_failures.py::test_two_workers_share_a_backlog",
    ],
    "NOGROUP ends the process; a group that exists is read from its own backlog for ever": [
        "test_contract.py::test_the_group_is_made_anew_after_flushall",
        "test_nine_failures.py::test_a_second_start_with_the_first_ones_start_position_reads_on",
    ],
    "SIGTERM leaves what was fetched under a dead name; a fatal error exits with 0": [
        "test_contract.py::test_stop_hands_back_what_was_not_started_uncharged_and_at_once",
        "test_processes.py::test_sigterm_hands_back_at_once_and_exits_with_zero",
        "test_processes.py::test_a_fatal_error_exits_with_non_zero",
    ],
    "no lag, no pending, and a health that says yes when the loop is dead": [
        "test_nine_failures.py::test_health_and_lag_are_those_of_the_loop_and_the_group"
    ],
    "one round trip for each ack, and a pending list walked entry by entry": [
        "test_contract.py::test_acks_are_gathered",
        "test_nine_failures.py::test_waiting_for_others_to_fail_costs_few_commands",
    ],
    "tests without a server deliver what a server would not": [
        "test_testing.py::test_a_retry_comes_when_its_time_has_come_and_not_before",
        "test_nine_failures.py::test_the_harness_keeps_a_claimers_new_entries_from_it",
    ],
}


def test_each_failure_names_tests_that_exist() -> None:
    """Each of the nine failures names at least one existing test."""
    assert len(NINE) == 9
    for row in NINE.values():
        assert row
        for name in row:
            file, _, function = name.partition("::")
            tree = ast.parse(next(HERE.rglob(file)).read_text())
            names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert function in names, name


async def test_a_long_job_runs_once_among_three_workers(server: ServerProcess, client: redis.Redis) -> None:
    """A job of five times min_idle_time runs once although three workers are free."""
    apps, runs, go = [App(server.url, registry=False) for _ in range(3)], [], asyncio.Event()
    for app in apps:

        @app.subscriber(StreamSub("s", group="g", min_idle_time=200), concurrency=4)
        async def handle(msg: Message) -> None:
            runs.append((msg.id, msg.delivery_count))
            await go.wait()

    entry = client.xadd("s", {"x": 1})
    async with apps[0].running(), apps[1].running(), apps[2].running():
        await aeventually(lambda: runs)
        await pace(1.0)
        go.set()
        await aeventually(all_done(client, "s", "g"))
    assert runs == [(entry, 1)]


async def test_two_workers_share_a_backlog(server: ServerProcess, client: redis.Redis) -> None:
    """Two workers share a backlog of 400 entries."""
    for number in range(400):
        client.xadd("s", {"x": number})
    apps, counts = [App(server.url, registry=False) for _ in range(2)], Counter[int]()
    met, turn = [asyncio.Event(), asyncio.Event()], asyncio.Condition()

    def subscribe(place: int) -> None:
        @apps[place].subscriber(StreamSub("s", group="g", min_idle_time=HOUR), concurrency=2)
        async def handle() -> None:
            counts[place] += 1
            met[place].set()
            await met[1 - place].wait()
            async with turn:  # neither runs ahead: a worker that held nearly all entries would wait for ever
                turn.notify_all()
                await turn.wait_for(lambda: counts.total() >= 260 or counts[place] <= counts[1 - place] + 50)

    subscribe(0)
    subscribe(1)
    async with apps[0].running():
        await aeventually(lambda: counts[0] == 2)
        async with apps[1].running():
            await aeventually(all_done(client, "s", "g"))
    assert counts[0] + counts[1] == 400
    assert counts[1] >= 100


async def test_a_second_start_with_the_first_ones_start_position_reads_on(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A second start with ``start="0"`` reads only new entries, since the group exists."""
    seen: list[int] = []

    async def run(number: int) -> None:
        app = App(server.url, registry=False)

        @app.subscriber(StreamSub("s", group="g", start="0", min_idle_time=HOUR))
        async def handle(x: int) -> None:
            seen.append(x)

        client.xadd("s", {"x": number})
        async with app.running():
            await aeventually(lambda: number in seen)

    await run(1)
    await run(2)
    assert seen == [1, 2]


async def test_health_and_lag_are_those_of_the_loop_and_the_group(server: ServerProcess, client: redis.Redis) -> None:
    """A dead reader is unhealthy at once although the server answers PING. Metrics have pending entries and lag."""
    app, go = App(server.url, registry=False), asyncio.Event()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR, max_records=1), concurrency=1)
    async def handle() -> None:
        await go.wait()

    async with app.running():
        for number in range(5):
            client.xadd("s", {"x": number})
        await aeventually(lambda: len(pending(client, "s", "g")) >= 1)
        text = (await app.metrics())[0].decode()
        assert "redis_stream_group_messages_pending" in text
        assert "redis_stream_group_lag" in text
        assert all(one.alive for one in app.progress())
        go.set()
        await aeventually(all_done(client, "s", "g"))
        client.delete("s")
        client.set("s", "no stream")
        await aeventually(lambda: not all(one.alive for one in app.progress()))
        assert client.ping()


async def test_waiting_for_others_to_fail_costs_few_commands(server: ServerProcess, client: redis.Redis) -> None:
    """A worker that waits for two thousand pending entries of a live consumer sends few commands."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    with client.pipeline(transaction=False) as pipe:
        for number in range(2_000):
            pipe.xadd("s", {"x": number})
        pipe.execute()
    client.xreadgroup("g", "alive", {"s": ">"})
    app = App(server.url, registry=False, reap_after=None)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR))
    async def handle() -> None: ...

    async with app.running():
        await aeventually(lambda: "alive" in consumers(client, "s", "g") and len(consumers(client, "s", "g")) == 2)
        await pace(0.5)
        began: Any = client.time()
        before: Any = client.info("stats")["total_commands_processed"]
        await pace(1.0)
        spent: Any = client.info("stats")["total_commands_processed"]
        ended: Any = client.time()
    assert spent - before <= 30 * (ended[0] - began[0] + 1)  # a busy machine lets more than a second pass
    assert len(pending(client, "s", "g")) == 2_000


async def test_the_harness_keeps_a_claimers_new_entries_from_it() -> None:
    """In the testing kit a claiming subscriber receives no new entries, as on a server."""
    from millstream.worker.testing import run

    app, seen = App("redis://nowhere"), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=1_000), read="claimed")
    async def handle(x: int) -> None:
        seen.append(x)

    async with run(app) as broker:
        await broker.publish("s", {"x": 1})
        await broker.advance(5)
        assert seen == []
        broker.client.xreadgroup("g", "gone", {"s": ">"})
        await broker.advance(5)
        assert seen == [1]


def faststream() -> bool:
    """Report whether the FastStream version with these failures is installed."""
    try:
        return version("faststream") == "0.7.8"
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(not faststream(), reason="FastStream 0.7.8 is not installed: the failures were seen in that one")
async def test_faststream_really_fails_where_it_is_cheap_to_see(real_redis: ServerProcess) -> None:
    """FastStream's claiming subscriber reads nothing new and its nack has no effect. Millstream does both."""
    from faststream.redis import RedisBroker, RedisStreamMessage
    from faststream.redis import StreamSub as TheirSub

    with real_redis.client(decode_responses=True) as client:
        client.flushall()
        broker, claimed, nacked = RedisBroker(real_redis.url, logger=None), [], []

        @broker.subscriber(stream=TheirSub("new", group="g", consumer="c", min_idle_time=50, last_id="0"))
        async def claiming(msg: RedisStreamMessage) -> None:
            claimed.append(msg)

        @broker.subscriber(stream=TheirSub("nacks", group="g", consumer="c"))
        async def nacking(msg: RedisStreamMessage) -> None:
            nacked.append(msg)
            await msg.nack()

        app, ours = App(real_redis.url, registry=False), []

        @app.subscriber(StreamSub("new", group="ours", min_idle_time=50))
        async def ours_claiming(x: int) -> None:
            ours.append(x)

        @app.subscriber(StreamSub("nacks", group="ours", min_idle_time=HOUR), retry=Retry(max_deliveries=3))
        async def ours_nacking(msg: Message) -> None:
            ours.append(msg.delivery_count)
            raise Nack("again")

        await broker.start()
        async with app.running():
            client.xadd("new", {"x": 10})
            client.xadd("nacks", {"x": 1})
            await aeventually(lambda: sorted(ours) == [1, 2, 3, 10] and len(nacked) == 1)
            await aeventually(all_done(client, "nacks", "ours"))
            await pace(0.5)
        await broker.stop()
        assert claimed == []
        assert len(nacked) == 1
        assert len(pending(client, "nacks", "g")) == 1
        assert client.xlen("nacks:dead") == 1
