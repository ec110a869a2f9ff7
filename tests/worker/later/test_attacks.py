"""Schedules under faults: strange keys, missing rights, changed timetables, a cluster, lost data."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import App, StreamSub
from millstream.client.later import recurring, schedule
from millstream.client.later.recurring import KEY
from millstream.client.later.schedule import INDEX
from millstream.errors import ConfigError
from millstream.worker.handlers.middleware import Middleware, Publication, Publish
from millstream.worker.later.mover import Mover
from support import needs
from support.accounts import user
from support.clusters import Three
from support.servers import ServerProcess
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]


@pytest.fixture
async def app(server: ServerProcess) -> AsyncIterator[App]:
    """An app that only publishes."""
    found = App(server.url, registry=False)
    yield found
    await found.close()


@contextlib.asynccontextmanager
async def working(url: str, declare: Any = None) -> AsyncIterator[App]:
    """An app with one subscriber on an otherwise unused stream."""
    found = App(url, registry=False)

    @found.subscriber(StreamSub("{unrelated}", group="g"))
    async def handle(data: dict[str, str]) -> None: ...

    if declare is not None:
        declare(found)
    async with found.running():
        yield found


HOSTILE = ["1-2:1:*1:a1:b", "--:1:*1:a1:b", "-!:", "-!:1:g", "1" * 400 + ":1:*1:a1:b", "-:" + "1:*" * 8_500]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_damaged_content_stops_no_other(app: App, client: redis.Redis, text: str) -> None:
    """Schedules behind one with damaged content are still published."""
    await app.publish("s", {"n": 1}, at=1_000, id="b")
    client.zadd(schedule.due_key("s"), {"a": 0})
    client.hset(schedule.content_key("s"), "a", text)
    mover = Mover(app._shared)  # noqa: SLF001 - the app's own line
    await mover.turn()
    rows: Any = client.xrange("s")
    assert {"n": "1"} in [fields for _, fields in rows]
    assert [one.id async for one in app.later.list("s")] in ([], ["a"])


async def test_damaged_contents_cost_one_line_and_no_pause(
    app: App, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A good schedule behind three hundred damaged ones is added in the same turn.

    The log has at most one line a step.
    """
    client.sadd(INDEX, "s")
    client.zadd(schedule.due_key("s"), {f"a{n}": n for n in range(300)})
    client.hset(schedule.content_key("s"), mapping={f"a{n}": "damaged" for n in range(300)})
    await app.publish("s", {"n": 1}, at=1_000, id="b")
    mover = Mover(app._shared)  # noqa: SLF001 - the app's own line
    await mover.turn()
    assert client.xlen("s") == 1
    assert mover.counts["s"].refused == 300
    assert len([one for one in caplog.records if one.levelno >= logging.ERROR]) <= 5


async def test_strange_names_in_the_index_stop_no_other(app: App, client: redis.Redis) -> None:
    """Strange names in the index, such as undecodable bytes or keys of another type, disturb no other stream."""
    client.sadd(INDEX, "", b"\xff\xfe", "}{", "{}", "\n", "x" * 5_000, "wrong")
    client.set(schedule.due_key("wrong"), "text")
    async with working(app.url):
        await app.publish("s", {"n": 1}, delay=0)
        await aeventually(lambda: client.xlen("s") == 1)


@pytest.mark.parametrize("key", [INDEX, KEY, schedule.placed_key("other"), schedule.content_key("other")])
async def test_a_key_of_a_wrong_type_stops_no_other_schedule(
    server: ServerProcess, client: redis.Redis, key: str
) -> None:
    """A schedule whose key has a wrong type stops no other. Its error is logged once."""
    client.set(key, "text")

    def declare(app: App) -> None:
        app.schedule(every=1, stream="other", content={"n": 1})
        app.schedule(every=1, stream="ticks", content={"n": 1})

    async with working(server.url, declare):
        await aeventually(lambda: client.hexists(schedule.placed_key("ticks"), "ticks"))
        if key != INDEX:
            await aeventually(lambda: client.xlen("ticks") >= 2, 60)


async def test_a_placed_time_that_is_damaged_is_none(server: ServerProcess, client: redis.Redis) -> None:
    """A damaged record of the last firing stops neither the schedule nor the scheduler."""
    client.hset(schedule.placed_key("ticks"), "ticks", "soon")
    async with working(server.url, lambda app: app.schedule(every=1, stream="ticks", content={"n": 1})):
        await aeventually(lambda: client.xlen("ticks") >= 1, 60)


@pytest.mark.parametrize(
    "table",
    [
        {"cron": None, "every_ms": -5},
        {"cron": None, "every_ms": 1},
        {"cron": None, "every_ms": "1000"},
        {"cron": None, "every_ms": True},
        {"cron": None, "every_ms": 5_000, "jitter_ms": "x"},
        {"cron": None, "every_ms": 5_000, "jitter_ms": -1},
        {"cron": None, "every_ms": 5_000, "grace_ms": None},
        {"cron": None, "every_ms": 5_000, "catch_up": "some"},
        {"cron": None, "every_ms": 1e300},
        {"cron": "* * * * *", "every_ms": 5_000},
    ],
)
def test_a_timetable_that_no_program_could_write_is_none(table: dict[str, Any]) -> None:
    """An invalid schedule declaration stored on the server is skipped."""
    import json

    record = {"name": "a", "table": table, "stream": "s", "words": [], "group": "g"}
    assert recurring.Recurring.of_json(json.dumps(record).encode()) is None
    for name, stream in (("paused:a", "s"), ("\ud800", "s"), ("a", "\ud800"), ("", "s"), ("a", ""), (5, "s")):
        other: dict[str, Any] = {"name": name, "table": {"every_ms": 5_000}, "stream": stream, "words": []}
        assert recurring.Recurring.of_json(json.dumps(other).encode()) is None


@pytest.mark.parametrize("first", [False, True])
async def test_a_changed_timetable_holds_at_once(server: ServerProcess, client: redis.Redis, first: bool) -> None:
    """A changed timetable takes effect at once, declared or put: the old waiting firing is removed."""

    def seldom(app: App) -> None:
        if first:
            app.schedule(every="100d", name="n", stream="s", content={"n": 1})

    def often(app: App) -> None:
        if first:
            app.schedule(every=1, name="n", stream="s", content={"n": 2})

    placed = schedule.placed_key("s")
    async with working(server.url, seldom) as app:
        if not first:
            await app.schedules.put("n", every="100d", stream="s", content={"n": 1})
        await aeventually(lambda: client.zcard(schedule.due_key("s")) == 1, 60)
        far: Any = client.zrange(schedule.due_key("s"), 0, 0)[0]
        async with working(server.url, often) as newer:
            if not first:
                await newer.schedules.put("n", every=1, stream="s", content={"n": 2})
            await aeventually(lambda: client.xlen("s") >= 2, 60)
            assert client.zscore(schedule.due_key("s"), far) is None
    rows: Any = client.xrange("s")
    assert {fields["n"] for _, fields in rows} == {"2"}
    assert int(client.hget(placed, "n") or 0) < (time.time() + 60) * 1000


async def test_nothing_fires_after_a_removal(server: ServerProcess, client: redis.Redis) -> None:
    """A removed schedule does not fire again, even if a worker has not yet seen the removal."""
    async with working(server.url) as app:
        await app.schedules.put("n", every=1, stream="s", content={"n": 1})
        await aeventually(lambda: client.xlen("s") >= 1, 60)
        known = await recurring.get(app._shared(), "n")  # noqa: SLF001 - as a worker that searched before
        assert known is not None
        assert await app.schedules.remove("n")
        state = await recurring.place(app._shared(), known, recurring.placing(known.table, None, 10**12))  # noqa: SLF001 - as above
        assert state.overruled
        assert not state.mine
        assert not client.exists(schedule.due_key("s"), schedule.placed_key("s"))


async def test_a_pause_removes_the_firings_that_jitter_holds_back(app: App, client: redis.Redis) -> None:
    """Pausing removes firings that jitter still holds back. They count as missed."""
    await app.schedules.put("n", every=1, stream="s", content={"n": 1}, jitter="1h", catch_up="all")
    one = await recurring.get(app._shared(), "n")  # noqa: SLF001 - the app's own line
    assert one is not None
    now = (await recurring.place(app._shared(), one)).now_ms  # noqa: SLF001 - as above
    first = now // 1000 * 1000 - 2_000
    for at in (first, first + 1000, first + 2000):
        await recurring.place(app._shared(), one, recurring.Placing(at, at + 1000))  # noqa: SLF001 - as above
    assert client.zcard(schedule.due_key("s")) == 3
    assert await app.schedules.pause("n")
    assert client.zcard(schedule.due_key("s")) == 0
    assert client.hget(schedule.placed_key("s"), "n") == str(first - 1)


async def test_a_name_that_code_declares_is_not_put(app: App, client: redis.Redis) -> None:
    """``schedules.put`` refuses a name that the workers' code declares, and the reserved prefix ``paused:``."""
    async with working(app.url, lambda one: one.schedule(every=1, stream="n", content={"n": 1})):
        await aeventually(lambda: client.hexists(KEY, "n"))
        with pytest.raises(ConfigError, match="code of workers declares"):
            await app.schedules.put("n", every=1, stream="s", content={"n": 1})
    with pytest.raises(ConfigError, match="paused:"):
        await app.schedules.put("paused:n", every=1, stream="s", content={"n": 1})


async def test_a_mover_without_rights_leaves_its_turn_to_others(server: ServerProcess, client: redis.Redis) -> None:
    """A worker that lacks the right to add entries leaves moving to another worker that has it."""
    with user(client, "+@all", "-xadd", "~*", "&*") as name:
        weak_app = App(server.url.replace("redis://", f"redis://{name}"), registry=False)
        weak = Mover(weak_app._shared)  # noqa: SLF001 - the app's own line
        app = App(server.url, registry=False)
        await app.publish("s", {"n": 1}, delay=0)
        await weak.turn()
        assert client.xlen("s") == 0
        strong = Mover(app._shared)  # noqa: SLF001 - as above
        await strong.turn()
        assert client.xlen("s") == 1
        await weak_app.close()
        await app.close()


async def test_an_idle_stream_costs_no_write_at_each_look(app: App, client: redis.Redis) -> None:
    """Moving due entries costs an idle stream few writes, since a mover renews its turn only at half of its time."""
    client.sadd(INDEX, "s")
    mover = Mover(app._shared)  # noqa: SLF001 - the app's own line
    await mover.search()
    await mover.look("s")
    before = client.pttl(schedule.mover_key("s"))
    await asyncio.gather(*(mover.look("s") for _ in range(10)))
    assert 0 < client.pttl(schedule.mover_key("s")) <= before


async def test_a_server_that_lost_its_data_learns_of_the_stream_again(app: App, client: redis.Redis) -> None:
    """After FLUSHALL, a running publisher's schedules are moved again and a declared schedule fires again."""
    await app.publish("s", {"n": 1}, delay="1h")
    async with working(app.url, lambda one: one.schedule(every=1, stream="ticks", content={"n": 1})):
        await aeventually(lambda: client.xlen("ticks") >= 1, 60)
        client.flushall()
        await app.publish("s", {"n": 2}, delay="1h")
        assert client.sismember(INDEX, "s")
        await aeventually(lambda: client.xlen("ticks") >= 1, 60)


async def test_a_batch_waits_as_one(app: App, client: redis.Redis) -> None:
    """A delayed batch makes one schedule per content, each with its own id.

    A wrong option or an oversized entry adds none.
    """
    contents = [{"n": n} for n in range(250)]
    ids = await app.publish_batch("s", contents, at=1_000, id=lambda one: f"id-{one['n']}", expires="36500d")
    assert ids == [f"id-{n}" for n in range(250)]
    assert len(set(await app.publish_batch("s", contents, delay="1h"))) == 250
    assert await app.publish_batch("s", [], delay="1h") == []
    assert client.zcard(schedule.due_key("s")) == 500
    with pytest.raises(ConfigError, match="without at= or delay="):
        await app.publish_batch("s", contents, expires="1h")
    with pytest.raises(ConfigError, match="idempotent"):
        await app.publish_batch("s", contents, delay=1, idempotent=str)

    class Mark(Middleware):
        async def publish(self, call_next: Publish, publication: Publication) -> str:
            return await call_next(publication)

    other = App(app.url, registry=False, middlewares=[Mark()])
    assert await other.publish_batch("t", contents[:3], delay="1h", id=lambda one: str(one["n"])) == ["0", "1", "2"]
    await other.close()


async def test_a_schedule_of_another_event_loop_is_watched(server: ServerProcess, client: redis.Redis) -> None:
    """Delayed publishes from threads with event loops of their own are moved like any other."""
    async with working(server.url) as app:

        def publish(n: int) -> None:
            async def work() -> None:
                await app.publish(f"s{n}", {"n": n}, delay=0)
                await app._senders.pop(asyncio.get_running_loop()).close()  # noqa: SLF001 - of this loop

            asyncio.run(work())

        await asyncio.gather(*(asyncio.to_thread(publish, n) for n in range(10)))
        await aeventually(lambda: all(client.xlen(f"s{n}") == 1 for n in range(10)))


@pytest.mark.parametrize(
    "options", [{"unique": "a", "within": 5, "delay": 1}, {"unique": "a", "id": "b", "delay": 1}], ids=str
)
async def test_options_that_would_be_ignored_are_refused(options: dict[str, Any]) -> None:
    """Options that a delayed publish would ignore, such as the time of a unique name, are refused."""
    with pytest.raises(ConfigError, match="is invalid"):
        await App("redis://127.0.0.1:1").publish("s", {"n": 1}, **options)


SLOTTED = [f"s{{{tag}}}" for tag in "abcdefg"]


async def test_a_cluster_moves_and_places_in_every_slot(tmp_path: Path) -> None:
    """On a cluster of three nodes, schedules of each stream are moved and firings stay in the slot of their stream."""
    with Three(tmp_path) as three:
        owners = {stream: three.owner(stream) for stream in SLOTTED}
        assert len({one.port for one in owners.values()}) == 3

        def lengths(streams: list[str]) -> list[int]:
            with redis.RedisCluster.from_url(three.url.split(",")[0].replace("redis+cluster", "redis")) as client:
                return [int(client.xlen(stream)) for stream in streams]

        def declare(app: App) -> None:
            for stream in SLOTTED:
                app.schedule(every=1, name=f"every-{stream}", stream=stream, content={"n": 0})

            @app.schedule(every=1)
            async def tick() -> None:
                ticks.append(1)

        ticks: list[int] = []
        async with working(three.url, declare) as app:
            await asyncio.gather(*(app.publish(stream, {"n": 1}, delay=0) for stream in SLOTTED))
            await app.publish_batch(SLOTTED[0], [{"n": 2}, {"n": 3}], delay=0)
            await aeventually(lambda: min(lengths(SLOTTED)) >= 3, 60)
            await aeventually(lambda: ticks, 60)
            assert {one.stream for one in await app.schedules.list()} == {*SLOTTED, "schedule:tick"}


async def test_metrics_count_what_waits_and_what_became_of_it(server: ServerProcess, client: redis.Redis) -> None:
    """Metrics count waiting and overdue schedules from the server, and moved, dropped and refused ones per worker."""
    client.set("bad", "text")
    async with working(server.url) as app:
        await app.publish("s", {"n": 1}, delay=0)
        await app.publish("s", {"n": 2}, delay="1h")
        await app.publish("s", {"n": 3}, at=1_000, expires="1s")
        await app.publish("bad", {"n": 1}, delay=0)

        async def found() -> bool:
            text = (await app.metrics())[0].decode()
            lines = {
                line.partition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"
            }
            expected = {
                'moved_total{stream="s"}': 1,
                'dropped_total{stream="s"}': 1,
                'skipped_total{stream="s"}': 0,
                'refused_total{stream="bad"}': 1,
                'waiting{stream="s"}': 1,
                'waiting{stream="bad"}': 1,
                'overdue_seconds{stream="s"}': 0,
            }
            return all(lines.get(f"millstream_later_{name}") == value for name, value in expected.items())

        await aeventually(found)
