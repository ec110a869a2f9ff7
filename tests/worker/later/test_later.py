"""Delayed publishing: one entry at its time, whichever worker moves it, on every server."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from millstream import App, Message, StreamSub
from millstream.client.later import schedule
from millstream.client.later.schedule import Schedule
from millstream.errors import ConfigError, UsageError
from millstream.worker.handlers.middleware import Middleware, Publication, Publish
from millstream.worker.later.mover import Mover
from millstream.worker.testing import run
from support import needs
from support.accounts import user
from support.servers import ServerProcess
from support.thief import Thief
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]
FAR = datetime(2126, 1, 1, tzinfo=UTC)


@pytest.fixture
async def app(server: ServerProcess) -> AsyncIterator[App]:
    """An app that only publishes."""
    found = App(server.url, registry=False)
    yield found
    await found.close()


async def moved(app: App, stream: str = "s") -> None:
    """Run one turn of a mover."""
    mover = Mover(app._shared)  # noqa: SLF001 - the app's own line, as the mover of a worker has it
    mover.watch([stream])
    await app._shared().call("DEL", schedule.mover_key(stream))  # noqa: SLF001 - the one before has ended
    await mover.turn()
    await app.close()


def values(client: redis.Redis, stream: str = "s") -> list[Any]:
    """Return the fields of a stream's entries."""
    rows: Any = client.xrange(stream)
    return [fields for _, fields in rows]


async def test_a_worker_adds_what_is_due_and_nothing_before(server: ServerProcess, client: redis.Redis) -> None:
    """A delayed entry is added at its time by the server's clock, not before, and reaches a handler."""
    app = App(server.url)
    seen: dict[int, float] = {}

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(n: int) -> None:
        seen[n] = time.time()

    async with app.running():
        began = time.time()
        await app.publish("s", {"n": 1}, delay=0.4)
        await app.publish("s", {"n": 2}, at=datetime.now(UTC) + timedelta(seconds=0.2))
        await app.publish("s", {"n": 3}, at=datetime.fromtimestamp(began - 60, UTC))
        await app.publish("s", {"n": 4}, delay="1h")
        await aeventually(lambda: len(seen) == 3)
        waiting = [one async for one in app.later.list("s")]
    assert seen[2] - began >= 0.199
    assert seen[1] - began >= 0.399
    assert [one.fields for one in waiting] == [(b"n", b"4")]
    assert client.hlen(schedule.content_key("s")) == 1


async def test_another_process_moves_what_a_publisher_left(app: App, client: redis.Redis) -> None:
    """Any app with subscribers moves the schedules of a publisher that has ended."""
    await app.publish("s", {"n": 1}, delay=0)
    await app.close()
    other = App(app.url)

    @other.subscriber(StreamSub("unrelated", group="g"))
    async def handle(msg: Message) -> None: ...

    async with other.running():
        await aeventually(lambda: client.xlen("s") == 1)
    assert values(client) == [{"n": "1"}]
    assert not client.exists(schedule.due_key("s"), schedule.content_key("s"))


async def test_many_publishes_for_later_are_one_command_each(app: App, client: redis.Redis) -> None:
    """A publish for later looks for the partitions of a stream at most once a second, since each look is a request."""
    client.config_resetstat()
    for number in range(200):
        await app.publish("s", {"n": number}, delay="1h")
    calls: Any = client.info("commandstats")
    assert calls["cmdstat_evalsha"]["calls"] >= 200
    assert calls["cmdstat_get"]["calls"] <= 40
    assert client.zcard(schedule.due_key("s")) == 200


async def test_a_stream_that_was_just_partitioned_gets_what_was_for_later(
    app: App, server: ServerProcess, client: redis.Redis
) -> None:
    """An entry that was scheduled next to a stream right after its partitioning reaches a partition once."""
    seen: list[int] = []
    other = App(server.url, reap_after=None)
    await app.publish("orders", {"k": "a", "n": 1}, delay=0.2)

    @other.subscriber(StreamSub("orders", group="g"))
    async def handle(k: str, n: int) -> None:
        seen.append(n)

    await other.partition("orders", 2, by="k")
    await app.publish("orders", {"k": "a", "n": 2}, delay=0.2)
    async with other.running():
        await aeventually(lambda: sorted(seen) == [1, 2])
    assert sum(client.xlen(f"orders{{{at}}}") for at in range(2)) == 2
    assert client.xlen("orders") == 0


async def test_an_id_names_one_schedule(app: App, client: redis.Redis) -> None:
    """Publishing again with the same ``id`` changes nothing. With ``replace`` it sets a new content and time."""
    first = await app.publish("s", {"n": 1}, at=FAR, id="a")
    assert first == "a" == await app.publish("s", {"n": 2}, delay=0, id="a")
    found = await app.later.get("s", "a")
    assert found == Schedule("s", "a", schedule.when("x", FAR, None).at_ms or 0, (b"n", b"1"))
    await app.publish("s", {"n": 3}, delay=0, id="a", replace=True)
    await moved(app)
    assert values(client) == [{"n": "3"}]
    assert await app.later.get("s", "a") is None


async def test_a_schedule_is_cancelled_or_moved_while_it_waits(app: App, client: redis.Redis) -> None:
    """A waiting schedule can be cancelled or moved to another time. Both calls return whether it was still waiting."""
    for ident in ("a", "b"):
        await app.publish("s", {"n": ident}, at=FAR, id=ident, expires="1m")
    assert await app.later.cancel("s", "a")
    assert not await app.later.cancel("s", "a")
    assert await app.later.move("s", "b", at=FAR + timedelta(days=1))
    later = await app.later.get("s", "b")
    assert later is not None
    assert later.at == FAR + timedelta(days=1)
    assert later.expires_ms == later.at_ms + 60_000
    assert await app.later.move("s", "b", delay=0)
    await moved(app)
    assert values(client) == [{"n": "b"}]
    assert not await app.later.move("s", "b", delay=0)


async def test_what_is_too_late_is_dropped(app: App, client: redis.Redis) -> None:
    """A schedule that no worker moved before its expiry is removed and adds nothing."""
    await app.publish("s", {"n": 1}, at=1_000, expires="1h")
    await app.publish("s", {"n": 2}, at=1_000)
    await moved(app)
    assert values(client) == [{"n": "2"}]
    assert not client.exists(schedule.due_key("s"))


async def test_an_entry_that_is_refused_stops_no_other(app: App, client: redis.Redis) -> None:
    """A schedule that cannot be added is set aside without delaying others, and is added once the cause is gone."""
    client.set("bad", "text")
    await app.publish("bad", {"n": 1}, delay=0)
    await app.publish("s", {"n": 1}, delay=0, id="a")
    await app.publish("s", {"n": 2}, delay=0, id="b")
    client.hset(schedule.content_key("s"), "a", "-:9999:x")
    await moved(app, "bad")
    await moved(app)
    assert values(client) == [{"n": "2"}]
    assert [one.id async for one in app.later.list("s")] == ["a"]
    client.delete("bad")
    (waiting,) = [one async for one in app.later.list("bad")]
    assert waiting.at_ms > time.time() * 1000 + 30_000
    await app.later.move("bad", waiting.id, delay=0)
    await moved(app, "bad")
    assert values(client, "bad") == [{"n": "1"}]


@pytest.mark.parametrize("text", ["", "x", "-", "-:", "-:3:abc", "-:1:*", "5:1:*1:a", "-:1000000000000:a", "-:-1:a"])
async def test_content_of_somebody_else_adds_no_other_command(app: App, client: redis.Redis, text: str) -> None:
    """Arbitrary bytes in the hash of schedules cause no command except the adding of an entry.

    Listing shows a refusal.
    """
    client.sadd(schedule.INDEX, "s")
    client.zadd(schedule.due_key("s"), {"a": 0})
    client.hset(schedule.content_key("s"), "a", text)
    await moved(app)
    assert client.xlen("s") == 0
    assert len([one async for one in app.later.list("s")]) <= 1


async def test_all_forms_of_an_entry_wait(app: App, client: redis.Redis) -> None:
    """Bytes, envelopes and trimming options of a delayed publish arrive as with an immediate one."""
    for n in range(5):
        await app.publish("s", {"n": n})
    await app.publish("s", {"n": b"\x00\xff:*"}, delay=0, maxlen=2)
    await app.publish("t", {"n": 1}, delay=0, headers={"a": "b"})
    await moved(app)
    await moved(app, "t")
    with redis.Redis.from_url(app.url) as binary:
        rows: Any = binary.xrange("s")
        assert rows[-1][1] == {b"n": b"\x00\xff:*"}
        assert binary.xlen("t") == 1


async def test_very_many_are_moved_in_order_and_listed_once(app: App, client: redis.Redis) -> None:
    """Many schedules due at one time are each listed once and added once, in order of time."""
    for n in range(450):
        await app.publish("s", {"n": n}, at=1_000 + n // 150, id=f"{n:04}")
    assert [one.id async for one in app.later.list("s")] == [f"{n:04}" for n in range(450)]
    assert [one.id async for one in app.later.list("s", 7)] == [f"{n:04}" for n in range(7)]
    await moved(app)
    assert [fields["n"] for fields in values(client)] == [str(n) for n in range(450)]


async def test_a_lost_reply_adds_no_second_schedule(server: ServerProcess, client: redis.Redis) -> None:
    """A delayed publish with ``retry`` adds one entry after a lost reply, even if the schedule was moved in between."""
    async with Thief(server.port, b"EVALSHA") as thief:
        app = App(f"redis://127.0.0.1:{thief.port}/0", registry=False)
        await asyncio.gather(*(app.publish("s", {"n": n}, delay=0, retry=20) for n in range(50)))
        await app.close()
        assert thief.stolen == 1
    other = App(server.url, registry=False)
    await moved(other)
    assert sorted(int(fields["n"]) for fields in values(client)) == list(range(50))


async def test_hooks_run_when_it_is_published(server: ServerProcess, client: redis.Redis) -> None:
    """A middleware's publish hook applies to a delayed publish when it is called."""

    class Mark(Middleware):
        async def publish(self, call_next: Publish, publication: Publication) -> str:
            publication.content = {**publication.content, "by": "hook"}
            return await call_next(publication)

    app = App(server.url, registry=False, middlewares=[Mark()])
    await app.publish("s", {"n": 1}, delay=0)
    await moved(app)
    assert values(client) == [{"n": "1", "by": "hook"}]


async def test_a_user_without_scripts_is_refused_before_anything_is_stored(
    server: ServerProcess, client: redis.Redis
) -> None:
    """Without the right to run scripts, a delayed publish is refused with the missing rights. Nothing is stored."""
    with user(client, "+@all", "-eval", "-evalsha", "~*", "&*") as name:
        app = App(server.url.replace("redis://", f"redis://{name}"), registry=False)
        with pytest.raises(UsageError, match="needs scripts"):
            await app.publish("s", {"n": 1}, delay=1)
        await app.close()
    assert not client.exists(schedule.due_key("s"), schedule.content_key("s"))


async def test_a_full_server_refuses_and_loses_nothing(server: ServerProcess, client: redis.Redis) -> None:
    """At the server's memory limit a delayed publish is refused. Waiting schedules are added once there is memory."""
    if "millstream" in str(server.command):
        pytest.skip("it has no limit of memory")
    app = App(server.url, registry=False)
    await app.publish("s", {"n": 1}, delay=0)
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            await app.publish("s", {"n": 2}, delay=0)
        await moved(app)
        assert client.xlen("s") == 0
    finally:
        client.config_set("maxmemory", "0")
    await moved(app)
    assert values(client) == [{"n": "1"}]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - it is the mistake
    ({"at": "tomorrow"}, "is not a time"),
    ({"at": "2030-01-01T00:00"}, "no time zone"),
    ({"at": FAR, "delay": 1}, "exactly one"),
    ({"delay": -1}, "between 0"),
    ({"delay": float("inf")}, "between 0"),
    ({"delay": float("nan")}, "between 0"),
    ({"delay": "soon"}, "length of time"),
    ({"at": 253_402_300_800_000}, "9999"),
    ({"at": True}, "aware datetime"),
    ({"at": 1.5}, "aware datetime"),
    ({"replace": True, "delay": 1}, "without id="),
    ({"replace": True}, "without at= or delay="),
    ({"expires": 1}, "without at= or delay="),
    ({"id": "a"}, "without at= or delay="),
    ({"id": "", "delay": 1}, "1 to 200 bytes"),
    ({"id": "\ud800", "delay": 1}, "1 to 200 bytes"),
    ({"id": "é" * 101, "delay": 1}, "1 to 200 bytes"),
    ({"id": 5, "delay": 1}, "1 to 200 bytes"),
    ({"idempotent": "a", "delay": 1}, "idempotent"),
    ({"idempotent": "a", "unique": "b"}, "idempotent"),
    ({"within": 1}, "without unique="),
    ({"unique": ""}, "1 to 200 bytes"),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
async def test_wrong_options_are_refused_before_anything_is_sent(options: dict[str, Any], words: str) -> None:
    """Wrong options of a delayed publish are refused before anything is sent."""
    app = App("redis://127.0.0.1:1", registry=False)
    with pytest.raises(ConfigError, match=words):
        await app.publish("s", {"n": 1}, **options)
    with pytest.raises(ConfigError, match=words):
        await asyncio.to_thread(app.publish_sync, "s", {"n": 1}, **options)


async def test_a_unique_name_adds_nothing_while_its_entry_is_not_handled(app: App, client: redis.Redis) -> None:
    """A ``unique`` name adds no second entry while its entry is unread or pending. Afterwards it does."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    client.xgroup_create("s", "h", "$", mkstream=True)
    first = await app.publish("s", {"n": 1}, unique="a")
    assert await app.publish("s", {"n": 2}, unique="a") == first
    client.xreadgroup("g", "c", {"s": ">"})
    client.xreadgroup("h", "c", {"s": ">"})
    client.xack("s", "h", first)
    assert await app.publish("s", {"n": 3}, unique="a") == first
    client.xack("s", "g", first)
    second = await app.publish("s", {"n": 4}, unique="a")
    assert second != first
    assert await app.publish("s", {"n": 5}, unique="b") not in (first, second)
    client.xdel("s", second)
    assert await app.publish("s", {"n": 6}, unique="a") != second


async def test_a_unique_name_within_a_time_counts_although_it_was_handled(app: App, client: redis.Redis) -> None:
    """With ``within``, a unique name stays taken for that time, even after its entry was handled."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    first = await app.publish("s", {"n": 1}, unique="a", within="1h")
    client.xreadgroup("g", "c", {"s": ">"})
    client.xack("s", "g", first)
    assert await app.publish("s", {"n": 2}, unique="a", within="1h") == first
    later = await app.publish("s", {"n": 3}, unique="job", delay=60)
    assert later == "job" == await app.publish("s", {"n": 4}, unique="job", delay=60)


async def test_a_month_passes_at_once_under_a_tests_clock() -> None:
    """The testing kit advances its clock to the time of a schedule, and not beyond."""
    app = App()
    seen: list[int] = []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(n: int) -> None:
        seen.append(n)

    async with run(app) as broker:
        await broker.publish("s", {"n": 1}, delay="30d")
        await broker.publish("s", {"n": 2}, delay="31d")
        await broker.advance("29d")
        assert seen == []
        await broker.advance("1d")
        assert seen == [1]
        await broker.advance("1d")
        assert seen == [1, 2]


def test_a_firing_that_waits_is_read_with_its_group_aside() -> None:
    """A waiting firing of ``overlap="skip"`` is listed without its group's name, whatever the name is."""
    for group in ("nightly", "*"):
        words = [group, "MAXLEN", "~", 1000, "*", "name", "nightly"]
        one = schedule.unpacked("s", b"nightly@1", "1", b"99!:" + schedule.packed(words))
        assert (one.expires_ms, one.trim, one.fields) == (99, ("MAXLEN", "~", "1000"), (b"name", b"nightly"))
