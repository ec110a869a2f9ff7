"""Recurring schedules: one firing for all workers, catching up, and pausing, on every server."""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from millstream import App, Fire, StreamSub
from millstream.client.later import recurring
from millstream.client.later.recurring import KEY, Recurring
from millstream.client.later.timetable import timetable
from millstream.client.manual import StoreClock, manual_store
from millstream.client.open import open_line
from millstream.clock import Now, SystemClock
from millstream.errors import ConfigError
from millstream.worker.later.scheduler import Scheduler
from millstream.worker.testing import run
from support import needs
from support.servers import ServerProcess
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]


def nightly(seen: list[Fire], **options: Any) -> App:
    """An app with one schedule."""
    app = App()
    options = {"every": "1h"} | options

    @app.schedule(**options)
    async def night(fire: Fire) -> None:
        seen.append(fire)

    return app


async def test_many_workers_fire_once(server: ServerProcess, client: redis.Redis) -> None:
    """Four apps that declare the same schedule run its handler once for each firing."""
    seen: list[Fire] = []
    apps = [nightly(seen, every=1) for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        done = asyncio.Event()

        async def work(app: App) -> None:
            async with app.running(server.url):
                await done.wait()

        for app in apps:
            group.create_task(work(app))
        await aeventually(lambda: len(seen) >= 4, 60)
        done.set()
    times = [fire.scheduled for fire in seen]
    assert times == sorted(set(times))
    assert all(at % 1000 == 0 for at in times)
    assert seen[0].name == "night"
    assert seen[0].at == datetime.fromtimestamp(times[0] / 1000, UTC)


async def test_a_schedule_can_publish_to_a_stream(server: ServerProcess, client: redis.Redis) -> None:
    """A schedule without a function adds an entry with its content, also if it is put while workers run."""
    app = App(server.url)
    app.schedule(every=1, stream="ticks", content={"kind": "tick"})

    @app.subscriber(StreamSub("unrelated", group="g"))
    async def handle(data: dict[str, str]) -> None: ...

    async with app.running():
        await app.schedules.put("tocks", every=1, stream="tocks", content={"kind": "tock"})
        await aeventually(lambda: client.xlen("ticks") >= 1 and client.xlen("tocks") >= 1, 60)
        assert {one.name for one in await app.schedules.list()} == {"ticks", "tocks"}
        assert await app.schedules.remove("tocks")
        assert not await app.schedules.remove("tocks")
    rows: Any = client.xrange("tocks")
    assert rows[0][1] == {"kind": "tock"}


async def test_a_night_passes_at_once_under_a_tests_clock() -> None:
    """The testing kit fires schedules at the times of their timetable. A paused schedule does not fire."""
    seen: list[Fire] = []
    app = nightly(seen, every=None, cron="0 3 * * *", tz="Europe/Berlin")
    async with run(app) as broker:
        await broker.advance("3d")
        assert [fire.at.astimezone().utcoffset() is not None for fire in seen] == [True] * 3
        hours = {fire.scheduled % 86_400_000 // 3_600_000 for fire in seen}
        assert hours <= {1, 2}
        assert await app.schedules.pause("night")
        await broker.advance("3d")
        assert len(seen) == 3
        assert await app.schedules.resume("night")
        await broker.advance("1d")
        assert len(seen) == 5  # one for all missed firings, and the regular one


@pytest.mark.parametrize("plain", [True, False])
async def test_a_firing_is_late_by_the_clock_of_the_server(server: ServerProcess, plain: bool) -> None:
    """The lateness follows the clock of a test, and the server's clock if the machine's clock is an hour ahead."""
    late: list[float] = []

    class Ahead(SystemClock):
        def now(self) -> Now:
            return Now(super().now().wall + 3_600_000, super().now().mono)

        def wall_time(self) -> int:
            return self.now().wall

    def app(url: str | None = None) -> App:
        made = App(url)
        if plain:

            @made.schedule(every="2s")
            def short(fire: Fire) -> None:
                late.append(fire.late)
        else:

            @made.schedule(every="2s", name="short")
            async def other(fire: Fire) -> None:
                late.append(fire.late)

        return made

    async with run(app()) as broker:
        await broker.advance("6s")
    assert late == [0.0] * 3
    late.clear()
    async with app().running(server.url, clock=Ahead()):
        await aeventually(lambda: late, 60)
    assert late[0] < 1_800


@pytest.mark.parametrize(("catch_up", "count"), [("latest", 1), ("none", 0), ("all", 5)])
async def test_an_outage_is_made_up_for(server: ServerProcess, client: redis.Redis, catch_up: str, count: int) -> None:
    """After an outage of five periods, ``catch_up`` runs the latest firing, none, or all."""
    seen: list[Fire] = []
    app = nightly(seen, catch_up=catch_up, every="1000h")  # Long, so that none ends while the test runs
    placed = "millstream:{schedule:night}:later:placed"
    async with app.running(server.url):
        await aeventually(lambda: client.hexists(placed, "night"))
    first = int(client.hget(placed, "night") or 0)
    client.delete("millstream:{schedule:night}:later:due", "millstream:{schedule:night}:later:content")
    client.hset(placed, "night", first - 6 * 3_600_000_000)
    async with app.running(server.url):
        await aeventually(lambda: int(client.hget(placed, "night") or 0) >= first)
        await aeventually(lambda: len(seen) == count, 90)  # one after the other, each in a turn of the mover
    assert len({fire.scheduled for fire in seen}) == count


async def test_a_firing_is_skipped_while_an_earlier_one_runs(server: ServerProcess, client: redis.Redis) -> None:
    """With ``overlap="skip"`` a firing is skipped while an earlier one still runs."""
    release = asyncio.Event()
    starts: list[float] = []
    app = App(server.url)

    @app.schedule(every=1, overlap="skip")
    async def slow(fire: Fire) -> None:
        starts.append(time.monotonic())
        await release.wait()

    async with app.running():
        await aeventually(lambda: len(starts) == 1)
        placed = "millstream:{schedule:slow}:later:placed"
        first = int(client.hget(placed, "slow") or 0)
        await aeventually(lambda: int(client.hget(placed, "slow") or 0) >= first + 3000)
        assert client.xlen("schedule:slow") == 1
        release.set()
        await aeventually(lambda: len(starts) >= 2)


async def test_the_later_declaration_of_a_name_decides(server: ServerProcess, client: redis.Redis) -> None:
    """If two versions of the code declare one name, the worker that started later decides."""
    old, new = nightly([], every="1h"), nightly([], every="2h")
    async with new.running(server.url):
        await aeventually(lambda: client.hexists(KEY, "night"))
        async with old.running(server.url):
            await aeventually(lambda: '"every_ms": 7200000' in str(client.hget(KEY, "night")))
            (one,) = await new.schedules.list()
    assert one.table.every_ms == 7_200_000


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("stream", ["ticks", "tocks"])
async def test_a_declaration_lapses_after_its_last_worker(stream: str, damaged: bool) -> None:
    """A schedule of the workers that stay fires again within four minutes after a withdrawn version stopped."""
    clock = StoreClock()
    with manual_store(clock) as url:
        line = open_line(url)

        def scheduler(every: int, stream: str) -> Scheduler:
            one = Recurring("tick", timetable("tick", every=every), stream, (b"*", b"n", b"1"), True)
            return Scheduler(lambda: line, [one], lambda _: None, lambda: True, clock)

        async def decides() -> int | None:
            one = await recurring.get(line, "tick")
            return None if one is None else one.table.every_ms

        old, new = scheduler(2, "ticks"), scheduler(3, stream)
        await old.turn()
        clock.advance(1_000)
        for _ in range(6):  # the withdrawn version lives: it decides for as long as it renews its declaration
            await new.turn()
            await old.turn()
            assert await decides() == 3_000
            clock.advance(60_000)
        for _ in range(4):
            assert damaged or await decides() == 3_000
            if damaged:
                await line.call("HSET", KEY, "tick", "no JSON")
            await old.turn()
            clock.advance(60_000)
        assert await decides() == 2_000
        clock.advance(2_000)
        await old.turn()
        placed = await line.call("HGET", "millstream:{ticks}:later:placed", "tick")
        assert int(placed) > clock.now().wall
        await new.turn()  # a version that comes back decides again
        assert await decides() == 3_000
        await line.close()


async def test_damaged_declarations_harm_nobody(server: ServerProcess, client: redis.Redis) -> None:
    """A damaged declaration in the hash is skipped."""
    client.hset(KEY, mapping={"a": "no JSON", "b": '{"table": {}}', "c": "[" * 2000})
    seen: list[Fire] = []
    app = nightly(seen, every=1)
    async with app.running(server.url):
        await aeventually(lambda: len(seen) >= 1, 60)
        assert [one.name for one in await app.schedules.list()] == ["night"]


def test_wrong_declarations_are_refused_at_the_import() -> None:
    """Wrong schedule declarations are refused at import, such as a taken name or options without a function."""
    app = nightly([])
    with pytest.raises(ConfigError, match="declared twice"):
        app.schedule(every=5, name="night", stream="s", content={"a": 1})
    with pytest.raises(ConfigError, match="runs no function"):

        @app.schedule(every=5, stream="s", content={"a": 1})
        async def never() -> None: ...

    with pytest.raises(ConfigError, match="no handler"):
        app.schedule(every=5, name="other", stream="s", content={"a": 1}, concurrency=2)
    with pytest.raises(ConfigError, match=r"no handler shows .* Leave overlap= out"):
        app.schedule(every=5, name="other", stream="s", content={"a": 1}, overlap="skip")
    with pytest.raises(ConfigError, match="offset='1h' is invalid with a cron line"):
        app.schedule("0 3 * * *", name="other", stream="s", content={"a": 1}, offset="1h")
    with pytest.raises(ConfigError, match="tz='Asia/Tokyo' is invalid with every="):
        app.schedule(every=5, name="other", stream="s", content={"a": 1}, tz="Asia/Tokyo")
    with pytest.raises(ConfigError, match="five fields"):

        @app.schedule("soon")
        async def again() -> None: ...


@pytest.mark.parametrize(
    "facts",
    [{"jitter_ms": "x"}, {"every_ms": 1}, {"every_ms": 1e4}, {"grace_ms": -1}, {"catch_up": "some"}, {"tz": 1}],
    ids=str,
)
def test_a_record_with_a_value_of_another_kind_is_none_of_ours(facts: dict[str, Any]) -> None:
    """A stored schedule with a value of the wrong type is skipped, and the other schedules still fire."""
    one = Recurring("a", timetable("a", every="1h"), "s", (b"*", b"n", b"1"))
    record = json.loads(one.to_json())
    assert Recurring.of_json(json.dumps(record).encode()) == one
    assert Recurring.of_json(json.dumps(record | {"table": record["table"] | facts}).encode()) is None
    assert Recurring.of_json(json.dumps(record | {"seen_ms": "x"}).encode()) is None


def test_the_record_of_a_schedule_without_a_key_is_as_before() -> None:
    """A schedule without a key is stored as in earlier versions. Older workers take it for the same declaration."""
    one = Recurring("tick", timetable("tick", every="1h"), "ticks", (b"*", b"n", b"1"))
    assert "key" not in json.loads(one.to_json())
    assert Recurring.of_json(one.to_json().encode()) == one
    keyed = Recurring("tick", one.table, "ticks", one.words, key=b"\xff=")
    assert Recurring.of_json(keyed.to_json().encode()) == keyed
    assert keyed.fingerprint != one.fingerprint
