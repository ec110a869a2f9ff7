"""Crash accounting on every server: the records, the free cases, and the runs alone."""

import asyncio
import logging
from typing import Any

import pytest
import redis

from millstream import App, Message, Nack, Retry, StreamSub, failpoints
from millstream.worker.settlement import spare
from millstream.worker.settlement.failure_log import key
from support.accounts import user
from support.groups import all_done, pending
from support.servers import ServerProcess
from support.waiting import aeventually, eventually

HOUR = 3_600_000
RECORD = key("s", "g")


def crashed(client: redis.Redis, count: int, *, deliveries: int = 1, row: str = "", stream: str = "s") -> list[str]:
    """Add entries that a process held when it died an hour ago, with their failure records."""
    client.xgroup_create(stream, "g", "0", mkstream=True)
    ids: Any = [client.xadd(stream, {"x": number}) for number in range(count)]
    client.xreadgroup("g", "ghost", {stream: ">"})
    words = ("IDLE", HOUR, "RETRYCOUNT", deliveries, "JUSTID")
    client.execute_command("XCLAIM", stream, "g", "ghost", 0, *ids, *words)
    if row:
        client.hset(key(stream, "g"), mapping=dict.fromkeys(ids, row))
    return ids


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        ("orders", "millstream:{orders}:tries:billing"),
        ("shop:{eu}:orders", "millstream:{eu}:tries:shop:{eu}:orders:billing"),
        ("odd{}name", "millstream:{odd{}name}:tries:billing"),
    ],
)
def test_the_record_lies_in_the_streams_slot(stream: str, expected: str) -> None:
    """On a cluster the failure record shares the slot of its stream."""
    assert key(stream, "billing") == expected


async def test_failures_are_on_record_until_the_end_and_are_no_crashes(
    server: ServerProcess, client: redis.Redis
) -> None:
    """Failures are recorded before the next delivery and cause no run alone. A dead letter removes the record."""
    app, rows, together = App(server.url), [], []
    running = 0

    @app.subscriber(
        StreamSub("s", group="g", min_idle_time=HOUR), retry=Retry(max_deliveries=4, base=0.01), concurrency=4
    )
    async def handle(msg: Message) -> None:
        nonlocal running
        rows.append((msg.delivery_count, client.hget(RECORD, msg.id)))
        running += 1
        together.append(running)
        await asyncio.sleep(0)
        running -= 1
        if msg.delivery_count % 2:
            raise ValueError("no")
        raise Nack("no", delay=0.01)

    async with app.running():
        await app.publish_batch("s", [{"x": number} for number in range(4)])
        await aeventually(lambda: client.xlen("s:dead") == 4)
        await aeventually(lambda: not client.exists(RECORD))
    found = sorted((count, None if row is None else ":".join(row.split(":")[:3])) for count, row in rows)
    assert found == sorted([(1, None), (2, "1:0:0"), (3, "2:0:0"), (4, "3:0:0")] * 4)
    assert max(together) > 1


async def test_what_is_handled_the_first_time_needs_no_record(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Entries that succeed at the first try neither read nor write the failure record."""
    with user(client, "+@all", "~s", "~s:dead") as name:
        app = App(server.url.replace("://", f"://{name}"))

        @app.subscriber(StreamSub("s", group="g"))
        async def handle(x: int) -> None: ...

        async with app.running():
            await app.publish_batch("s", [{"x": number} for number in range(500)])
            await aeventually(all_done(client, "s", "g"))
    assert not [record for record in caplog.records if RECORD in record.getMessage()]


async def test_the_backlog_of_a_dead_consumer_runs_together_and_uncharged(
    server: ServerProcess, client: redis.Redis
) -> None:
    """After one crash a dead consumer's entries run together and uncharged, and the record is stored first."""
    ids, app, seen = crashed(client, 30), App(server.url), []
    together = asyncio.Barrier(5)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), concurrency=5)
    async def handle(msg: Message) -> None:
        seen.append((msg.id, msg.delivery_count, client.hget(RECORD, msg.id)))
        await together.wait()

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
        await aeventually(lambda: not client.exists(RECORD))
    assert sorted(seen) == sorted((entry, 2, "0:1:0") for entry in ids)  # as text, -10 comes before -2


async def test_after_a_second_crash_each_runs_alone_and_the_others_are_not_charged(
    server: ServerProcess, client: redis.Redis
) -> None:
    """After a second crash each entry runs alone in the process, and only its own delivery is counted."""
    ids, app, alone, running = crashed(client, 12, deliveries=2, row="0:1:0"), App(server.url), [], set()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), concurrency=5)
    async def handle(msg: Message) -> None:
        running.add(msg.id)
        counts = {entry: count for entry, (_, count) in pending(client, "s", "g").items()}
        await asyncio.sleep(0)
        if msg.id in ids:
            others = {count for entry, count in counts.items() if entry in ids and entry != msg.id}
            alone.append((msg.id, set(running), counts[msg.id], others <= {2}, client.hget(RECORD, msg.id)))
        running.discard(msg.id)

    for number in range(100, 150):
        client.xadd("s", {"x": number})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    # As text, -10 comes before -2, so ids of one millisecond may not be in text order.
    assert sorted(alone, key=repr) == sorted(((entry, {entry}, 3, True, "0:1:1") for entry in ids), key=repr)
    assert app.stats()["handle"]["handled"] == 62


async def test_an_isolated_entry_is_alone_in_the_whole_app(server: ServerProcess, client: redis.Redis) -> None:
    """An entry that runs alone is alone in the whole app: other subscribers of the process run nothing meanwhile."""
    crashed(client, 3, deliveries=2, row="0:1:0")
    app, running, beside = App(server.url), set(), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000))
    async def isolated(msg: Message) -> None:
        running.add("isolated")
        await asyncio.sleep(0)
        beside.append(set(running))
        running.discard("isolated")

    @app.subscriber(StreamSub("other", group="g"))
    async def other(x: int) -> None:
        running.add(x)
        await asyncio.sleep(0)
        running.discard(x)

    for number in range(300):
        client.xadd("other", {"x": number})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
        await aeventually(all_done(client, "other", "g"))
    assert beside == [{"isolated"}] * 3
    assert app.stats()["other"]["handled"] == 300


@pytest.mark.parametrize("batch", [False, True])
async def test_entries_without_acks_wait_for_an_isolated_run(
    server: ServerProcess, client: redis.Redis, batch: bool
) -> None:
    """With no_ack, entries in the buffer cannot go back: they wait until the isolated run has ended, and all run."""
    crashed(client, 3, deliveries=2, row="0:1:0")
    app, ran, meanwhile = App(server.url), [], []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000))
    async def isolated(msg: Message) -> None:
        before = len(ran)
        for _ in range(50):
            await asyncio.sleep(0)
        meanwhile.append(len(ran) - before)

    async def one(x: int) -> None:
        await asyncio.sleep(0)
        ran.append(x)

    async def many(x: list[int]) -> None:
        await asyncio.sleep(0)
        ran.extend(x)

    app.subscriber(StreamSub("other", group="g", no_ack=True), batch=batch)(many if batch else one)
    client.xgroup_create("other", "g", "0", mkstream=True)
    for number in range(300):
        client.xadd("other", {"x": number})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
        await aeventually(lambda: len(ran) >= 300)
    assert sorted(ran) == list(range(300))
    assert meanwhile == [0, 0, 0]


async def test_a_stop_hands_isolated_entries_back_uncharged(server: ServerProcess, client: redis.Redis) -> None:
    """A stop hands back entries that wait for their run alone, with an unchanged delivery count."""
    ids, app, began = crashed(client, 4, deliveries=2, row="0:1:0"), App(server.url), asyncio.Event()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), concurrency=8)
    async def handle(msg: Message) -> None:
        began.set()
        await asyncio.Event().wait()

    await app.start()
    await began.wait()
    await app.stop(grace=0)
    client.xautoclaim("s", "g", "other", HOUR)
    assert pending(client, "s", "g") == dict.fromkeys(ids, ("other", 3))


async def test_claims_that_kills_cut_off_make_no_dead_letter(server: ServerProcess, client: redis.Redis) -> None:
    """An entry whose claims were cut off by kills far beyond its limit runs alone and is handled."""
    (entry,), app, seen = crashed(client, 1), App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=Retry(max_deliveries=3))
    async def handle(msg: Message) -> None:
        seen.append((msg.id, client.hget(RECORD, entry)))

    spare.spare = spare.Spare("the-spare", lambda: None)
    try:
        async with app.running():
            await aeventually(lambda: pending(client, "s", "g") == {entry: ("the-spare", 1)})
    finally:
        spare.spare = None
    assert client.hget(RECORD, entry) == "0:0:0"
    client.execute_command("XCLAIM", "s", "g", "ghost", 0, entry, "IDLE", HOUR, "RETRYCOUNT", 9, "JUSTID")
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert seen == [(entry, "0:0:1")]
    assert not client.exists("s:dead")


async def test_a_lost_record_makes_no_other_entry_dead(server: ServerProcess, client: redis.Redis) -> None:
    """An entry at its limit whose failure record was lost runs once more, alone, and is handled."""
    ids, app, seen = crashed(client, 3, deliveries=3), App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=Retry(max_deliveries=3))
    async def handle(msg: Message) -> None:
        seen.append((msg.id, msg.delivery_count))

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert sorted(seen) == [(entry, 4) for entry in ids]
    assert not client.exists("s:dead")


async def test_without_rights_to_the_record_the_limit_holds_and_it_is_said_once(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Without rights to the failure record, failures and crashes count alike.

    One warning names the key and the right.
    """
    with user(client, "+@all", "~s", "~s:dead") as name:
        app, runs = App(server.url.replace("://", f"://{name}")), []

        @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=Retry(max_deliveries=3, base=0.01))
        async def handle(msg: Message) -> None:
            runs.append(msg.delivery_count)
            raise ValueError("no")

        with caplog.at_level(logging.WARNING, "millstream.worker"):
            async with app.running():
                client.xadd("s", {"x": 1})
                await aeventually(lambda: client.exists("s:dead"))
    assert runs == [1, 2, 3]
    said = [record.getMessage() for record in caplog.records if RECORD in record.getMessage()]
    assert len(said) == 1


async def test_an_outcome_the_server_refuses_is_sent_again(server: ServerProcess, client: redis.Redis) -> None:
    """An acknowledgement that the server refuses for a while is repeated until it is stored."""
    with user(client, "+@all", "~*", "-xack") as name:
        app, handled = App(server.url.replace("://", f"://{name}")), asyncio.Event()

        @app.subscriber(StreamSub("s", group="g"))
        async def handle(x: int) -> None:
            handled.set()

        refused: list[str] = []
        failpoints.on("before_ack", lambda: refused.append("sent"))
        async with app.running():
            client.xadd("s", {"x": 1})
            await handled.wait()
            await aeventually(lambda: len(refused) > 1, what="it is sent again")
            assert len(pending(client, "s", "g")) == 1
            client.execute_command("ACL", "SETUSER", "worker", "+xack")
            await aeventually(all_done(client, "s", "g"))


async def test_a_read_that_breaks_off_keeps_nothing_to_itself(server: ServerProcess, client: redis.Redis) -> None:
    """If the connection dies between claim and record, the claimed entries are claimed again and handled."""
    crashed(client, 5)
    app, seen, broken = App(server.url), [], []

    def cut() -> None:
        if not broken:
            rows: Any = client.client_list()
            broken.append(sum(client.client_kill_filter(_id=row["id"]) for row in rows if reads(row["cmd"])))

    failpoints.on("before_uncharge", cut)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=500))
    async def handle(x: int) -> None:
        seen.append(x)

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert broken == [1]
    assert sorted(seen) == [0, 1, 2, 3, 4]


def reads(command: str) -> bool:
    """Report whether the reader's connection sent this command last, when it takes charges back."""
    return command in ("hmget", "xreadgroup")  # with CLAIM, without


KILLER = """
import os, signal
from millstream import App, Message, Retry, StreamSub
app = App()

@app.subscriber(
    StreamSub("jobs", group="g", min_idle_time=1000, max_records=50),
    retry=Retry(max_deliveries=3, base=0.02),
    concurrency=8,
)
async def work(x: int, msg: Message) -> None:
    if x == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    await app.publish("effects", {"x": x, "deliveries": msg.delivery_count})
"""


@pytest.mark.either_server
def test_a_killer_in_a_batch_of_fifty_is_dead_after_two_ends_and_nobody_else_pays(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """Among fifty entries, the one that kills processes is dead after a worker and the spare.

    No other is charged twice.
    """
    for number in range(50):
        client.xadd("jobs", {"x": number})
    running = tasks.run(tasks.app(KILLER), server.url)
    eventually(all_done(client, "jobs", "g"), 90)
    running.terminate()
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0, out
    assert out.count("signal SIGKILL") == 2, out
    rows: Any = client.xrange("effects")
    counts = {int(fields["x"]): int(fields["deliveries"]) for _, fields in rows}
    assert set(counts) == set(range(50)) - {20}
    # delivered for the first time, once uncharged, once charged: three at most
    assert max(counts.values()) <= 3
    dead: Any = client.execute_command("XRANGE", "jobs:dead", "-", "+")
    assert [(fields["x"], fields["_dead.reason"], fields["_dead.deliveries"]) for _, fields in dead] == [
        ("20", "overdue", "3")
    ]
    assert not client.exists(key("jobs", "g"))
