"""Limits for the whole fleet: rates and concurrent runs, for a handler and for each key, on every server."""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any
from zlib import crc32

import pytest
import redis

from millstream import App, Limit, Message, Nack, StreamSub
from millstream.client.limits.rate import RATES, keys
from millstream.clock import Clock, ManualClock
from millstream.errors import ConfigError
from millstream.worker.handlers.subscription import AckMode
from millstream.worker.limits.asking import SCRIPT
from millstream.worker.limits.limiter import Limiter
from millstream.worker.settlement.consumer import hold
from support import needs
from support.servers import ServerProcess
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]

#: Milliseconds between a permit and the time that its run reads from the server, on a loaded machine.
LATE = 250


def passed(times: list[int], rate: float, burst: int, late: int = LATE) -> list[tuple[int, int, int]]:
    """Return the windows in which more runs began than rate and burst allow."""
    times = sorted(times)
    return [
        (first, last, at - start + 1)
        for start, first in enumerate(times)
        for at, last in list(enumerate(times))[start:]
        if at - start + 1 > burst + rate * (last - first + late) + 1
    ]


def limit_of(limit: Any) -> Limit:
    """Return the handler's limit, or the first of several."""
    return limit[0] if isinstance(limit, list) else limit


def refused(app: App) -> int:
    """Return the number of refused permits of the handler's limit."""
    limiter = app.loops[0].limiter
    assert limiter is not None
    return int(limiter.facts()[0]["refused"])


class Fleet:
    """Apps that run one handler, with a log of its runs by the server's clock."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.apps: list[App] = []
        self.runs: list[tuple[str, int]] = []  # Key and milliseconds
        self.deliveries: Counter[int] = Counter()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def app(
        self,
        limit: Any,
        *,
        during: Callable[[str], Any] | None = None,
        stream: str = "s",
        group: str = "g",
        time: Clock | None = None,
        **options: Any,
    ) -> App:
        """Add an app with the handler, optionally with a clock of its own."""
        app = App(self.server.url, clock=time)
        clock = self.server.client()

        @app.subscriber(StreamSub(stream, group=group, min_idle_time="2s"), limit=limit, **options)
        async def work(k: str, msg: Message) -> None:
            seconds, micros = clock.time()
            self.runs.append((k, int(seconds) * 1000 + int(micros) // 1000))
            self.deliveries[msg.delivery_count] += 1
            self.now[k] += 1
            self.most[k] = max(self.most[k], self.running_now(None if limit_of(limit).key is None else k))
            if during is not None:
                await during(k)
            self.now[k] -= 1

        self.apps.append(app)
        return app

    def running_now(self, key: str | None) -> int:
        """Count the current runs of a key, or of all keys."""
        return self.now.total() if key is None else self.now[key]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all apps."""
        async with contextlib.AsyncExitStack() as stack:
            for app in self.apps:
                await stack.enter_async_context(app.running())
            yield


@pytest.fixture
def fleet(server: ServerProcess) -> Fleet:
    """A fleet without an app yet."""
    return Fleet(server)


def add(client: redis.Redis, number: int, key: str = "a", stream: str = "s") -> None:
    """Add entries of one key."""
    for _ in range(number):
        client.xadd(stream, {"k": key})


def delivered(client: redis.Redis, stream: str = "s") -> int:
    """Return the number of entries delivered to the group. Redis 6.2 does not count them."""
    rows: Any = client.xrange(stream, max=client.xinfo_groups(stream)[0]["last-delivered-id"])
    return len(rows)


async def test_a_rate_holds_for_all_workers_together(fleet: Fleet, client: redis.Redis) -> None:
    """Two workers together run at most the rate and burst in any window, and each entry is delivered once."""
    add(client, 60)
    for _ in range(2):
        fleet.app(Limit("40/s", burst=5))
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 60)
    times = [at for _, at in fleet.runs]
    assert not passed(times, 0.040, 5)
    assert max(times) - min(times) >= (60 - 5) / 0.040 - LATE
    assert fleet.deliveries == {1: 60}


async def test_no_entry_is_delivered_without_a_permit(fleet: Fleet, client: redis.Redis) -> None:
    """Entries beyond the rate stay undelivered, although workers are idle."""
    add(client, 20)
    for _ in range(3):
        fleet.app(Limit("2/h", burst=2))
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 2)
        await aeventually(lambda: client.xinfo_groups("s")[0]["pending"] == 0)
        assert delivered(client) == 2
        # No entry waits for a permit, and the report of each worker shows that its limit refuses
        reports = [limiter for app in fleet.apps for limiter in app.loops[0].limiters]
        await aeventually(lambda: [one.facts()[0]["refused_ms"] is not None for one in reports] == [True] * 3)
        assert [one.facts()[0]["waiting"] for one in reports] == [0] * 3


async def test_an_unused_permit_is_given_back(fleet: Fleet, client: redis.Redis) -> None:
    """A worker that finds no entry gives its permit back, so that a slow rate is not used up."""
    for _ in range(2):
        fleet.app(Limit("1/h"))
    client.xgroup_create("s", "g", "0", mkstream=True)
    async with fleet.running():
        rate, _ = keys("work")
        await aeventually(lambda: client.exists(rate))
        add(client, 1)
        await aeventually(lambda: len(fleet.runs) == 1)


async def test_a_rate_by_key_puts_entries_aside_uncharged(fleet: Fleet, client: redis.Redis) -> None:
    """With a rate by key, a limited key's entries wait on the server while others run. The wait counts no delivery."""
    add(client, 12, "slow")
    add(client, 3, "other")
    for _ in range(2):
        fleet.app(Limit("8/s", burst=1, key="k"))
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 15)
    by_key = defaultdict(list)
    for key, at in fleet.runs:
        by_key[key].append(at)
    assert not passed(by_key["slow"], 0.008, 1)
    assert fleet.deliveries == {1: 15}
    assert min(by_key["other"]) < sorted(by_key["slow"])[6]
    assert sum(app.loops[0].stats.limited for app in fleet.apps) > 0
    assert sum(app.loops[0].stats.failed for app in fleet.apps) == 0


async def test_many_entries_of_one_key_cost_few_questions(fleet: Fleet, client: redis.Redis) -> None:
    """A refused key is not checked again until its next permit. Its many entries do not slow other keys down."""
    add(client, 300, "flood")
    fleet.app(Limit("1/h", key="k"))
    client.config_resetstat()
    async with fleet.running():
        await aeventually(lambda: fleet.apps[0].loops[0].stats.limited == 299)
        add(client, 1, "other")
        await aeventually(lambda: [key for key, _ in fleet.runs] == ["flood", "other"])
    stats: Any = client.info("commandstats")
    assert stats["cmdstat_get"]["calls"] < 50  # One a request


async def test_a_limit_that_refuses_nothing_is_asked_for_many_at_once(fleet: Fleet, client: redis.Redis) -> None:
    """For quick runs many permits are requested at once. Slow runs request only as many as the worker has lanes."""
    go = asyncio.Event()
    add(client, 600)
    fleet.app(Limit("1000000/s"), concurrency=2, time=ManualClock())  # No time passes, however slow the machine is
    client.config_resetstat()
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 600)
    stats: Any = client.info("commandstats")
    assert stats["cmdstat_get"]["calls"] < 150  # One a request; without batching one for every two entries
    fleet.apps.clear()
    add(client, 20, stream="slow")
    fleet.app(Limit("1000000/s"), during=lambda _: go.wait(), stream="slow", concurrency=2)
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 602)
        pending = client.xinfo_groups("slow")[0]["pending"]
        go.set()
        assert pending == 2


@pytest.mark.parametrize("key", ["k", None])
async def test_so_many_run_at_a_time_in_the_fleet(fleet: Fleet, client: redis.Redis, key: str | None) -> None:
    """A limit on concurrent runs holds over all workers, by key or by handler, and waiting counts no delivery."""
    for _ in range(10):
        add(client, 1, "a")
        add(client, 1, "b")

    async def during(k: str) -> None:
        # Held until two run and others were refused
        await aeventually(lambda: fleet.most[k] > 2 or (fleet.most[k] == 2 and all(map(refused, fleet.apps))))

    for _ in range(2):
        fleet.app(Limit(running=2, key=key), during=during)
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 20)
        for value in (b"a", b"b") if key else (b"",):
            await aeventually(lambda value=value: not client.exists(keys("work", value)[1]))
    assert max(fleet.most.values()) == 2
    assert fleet.deliveries == {1: 20}


async def test_handlers_share_a_limit_by_its_name(fleet: Fleet, client: redis.Redis) -> None:
    """Two handlers that name the same limit share it."""
    for stream in ("s", "t"):
        add(client, 5, "a", stream)
        fleet.app(Limit("2/h", burst=4, name="crm"), stream=stream)
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 4)
        await aeventually(lambda: sum(delivered(client, s) for s in "st") == 4)


async def test_several_limits_all_hold(fleet: Fleet, client: redis.Redis) -> None:
    """With several limits a run needs a permit of each. A refusal by one uses up no permit of the others."""
    add(client, 6, "a")
    add(client, 6, "b")
    fleet.app([Limit("1/h", burst=2, key="k", name="each"), Limit("1/h", burst=4, name="all")])
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 4)
    assert Counter(key for key, _ in fleet.runs) == {"a": 2, "b": 2}


async def test_a_rate_is_changed_at_run_time(fleet: Fleet, client: redis.Redis) -> None:
    """A rate set at run time replaces the code's from the next heartbeat on. An invalid value does not."""
    add(client, 6)
    app = fleet.app(Limit("1/h"))
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 1)
        client.hset(RATES, "work", "\x00no rate")
        heartbeat, limiter = app._heartbeat, app.loops[0].limiter  # noqa: SLF001 - in place of waiting for its beat
        assert heartbeat is not None
        assert limiter is not None
        await heartbeat._beat()  # noqa: SLF001 - as above
        assert str(limiter.limits[0].rate) == "1/h"
        client.hset(RATES, "work", "1000/s")
        await heartbeat._beat()  # noqa: SLF001 - as above
        await aeventually(lambda: len(fleet.runs) == 6)


async def test_a_limit_waits_where_the_server_refuses_it(fleet: Fleet, client: redis.Redis) -> None:
    """Limit keys of a wrong type are replaced. Slots are given back when a worker stops."""
    rate, running = keys("work")
    client.lpush(rate, "x")
    client.set(running, "x")
    add(client, 3)
    fleet.app(Limit("1000/s", running=1))
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 3)
    assert not client.exists(running)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", "x", ""])
def test_a_strange_rate_key_ends_no_limit(client: redis.Redis, value: str) -> None:
    """A foreign value in a rate's key delays a permit by at most one full burst."""
    where = keys("n")
    client.set(where[0], value)
    words = (1_000_000, 5, 2, 0, 0, 0, 30_000, "look")
    granted, wait, *_ = client.eval(SCRIPT.text, 2, *where, *words)  # type: ignore[misc] # redis-py: async too
    assert granted == 2 or 1_000 <= wait <= 5_000


@pytest.mark.parametrize("ack", ["manual", "each"])
@pytest.mark.parametrize("options", [{}, {"read": "claimed"}, {"read": "new"}], ids=["both", "claimed", "new"])
async def test_limits_work_with_each_way_to_ack_and_read(
    fleet: Fleet, client: redis.Redis, ack: AckMode, options: dict[str, Any]
) -> None:
    """A run's slot is free once its entry is settled, in every ``ack`` mode and every way to read."""
    add(client, 4)
    client.xgroup_create("s", "g", "0")
    if options.get("read") == "claimed":
        client.xreadgroup("g", "dead", {"s": ">"})
    app = App(fleet.server.url)
    done = []
    # A reader of only new entries does not read entries that a limit set aside, nor retries
    for how in (options, {"read": "claimed"}) if options.get("read") == "new" else (options,):

        @app.subscriber(
            StreamSub("s", group="g", min_idle_time=200, consumer=how.get("read")),
            ack=ack,
            limit=Limit("100/s", running=1, key="k"),
            **how,
        )
        async def work(msg: Message) -> None:
            done.append(msg.id)
            if ack == "manual":
                await msg.ack()

    async with app.running():
        await aeventually(lambda: len(set(done)) == 4)
        await aeventually(lambda: client.xpending("s", "g")["pending"] == 0)


async def test_batches_count_each_entry(fleet: Fleet, client: redis.Redis) -> None:
    """A rate counts the entries of a batch, not its runs."""
    add(client, 50)
    app = App(fleet.server.url)
    sizes: list[int] = []

    @app.subscriber(StreamSub("s", group="g"), batch=True, limit=Limit("1/h", burst=7))
    async def work(entries: list[dict[str, str]]) -> None:
        sizes.append(len(entries))

    async with app.running():
        await aeventually(lambda: sum(sizes) == 7)
        assert delivered(client) == 7


#: Leaves one permit of 20/s and a burst of 1000, and adds two entries at once; returns the time of the last permit.
ONE_PERMIT = """
local time = redis.call('TIME')
local taken = string.format('%.2f', time[1] * 1000000 + time[2] + 999 * 50000)
redis.call('SET', KEYS[1], taken)
redis.call('XADD', KEYS[2], '*', 'k', 'a')
redis.call('XADD', KEYS[2], '*', 'k', 'a')
return taken
"""


async def test_a_batch_takes_a_permit_for_each_entry_of_a_read_that_waited(fleet: Fleet, client: redis.Redis) -> None:
    """A batch takes a permit for each entry, also if other workers used the rate while its read was blocked."""
    app, begun, permits = App(fleet.server.url), list[int](), list[float]()
    rate, taken = keys("both")[0], 0.0

    @app.subscriber(StreamSub("s", group="g"), batch=True, limit=Limit("20/s", burst=1_000, name="both"))
    async def work(entries: list[dict[str, str]]) -> None:
        begun.append(len(entries))
        permits.append((float(str(client.get(rate))) - taken) / 50_000)

    async with app.running():
        loop, began = app.loops[0], time.monotonic()
        await aeventually(lambda: loop.parts[0].fetcher.blocked_until and time.monotonic() - began > 0.5)
        taken = float(str(client.eval(ONE_PERMIT, 2, rate, "s")))
        await aeventually(lambda: sum(begun) == 2)
    assert permits[0] > begun[0] - 0.1
    assert permits[-1] > 1.9


def leave(client: redis.Redis, permits: int) -> None:
    """Leave a number of permits of the limit ``few``, 1/h with a burst of 10."""
    hour, (seconds, micros) = 3_600_000_000, client.time()
    client.set(keys("few")[0], (int(seconds) + 1) * 1_000_000 + int(micros) + (10 - permits) * hour - hour // 2)


def deliver(client: redis.Redis, loop: Any, number: int) -> None:
    """Add entries and put them into the buffer without permits, as after a read that waited."""
    add(client, number)
    member = loop.member
    [(_, rows)] = client.execute_command(
        "XREADGROUP", "GROUP", "g", member.consumer, "COUNT", number, "STREAMS", "s", ">"
    )
    found = [hold(one.encode(), [b"k", b"a"], 1, member.clock.now().mono) for one, _ in rows]
    member.held.update({held.id: held for held in found})
    loop._buffer.put(found)  # noqa: SLF001 - as the reader does


async def test_a_batch_that_waited_runs_the_entries_of_its_permits(fleet: Fleet, client: redis.Redis) -> None:
    """A batch that waits for a permit takes no entries read meanwhile. These form the next batch with own permits."""
    app, sizes = App(fleet.server.url), list[int]()

    @app.subscriber(StreamSub("s", group="g"), batch=True, limit=Limit("1/h", burst=10, name="few"), concurrency=1)
    async def work(entries: list[dict[str, str]]) -> None:
        sizes.append(len(entries))

    leave(client, 0)
    async with app.running():
        loop = app.loops[0].parts[0]
        limiter = loop.limiters[0]
        await aeventually(lambda: limiter.whole[0].refused > 0)
        deliver(client, loop, 1)
        await aeventually(lambda: limiter.whole[0].waiting)
        deliver(client, loop, 3)
        for permits, ran in ((1, [1]), (3, [1, 3])):
            leave(client, permits)
            await limiter.send()  # wakes who waits
            await aeventually(lambda ran=ran: len(sizes) == len(ran))
            assert sizes == ran
        await aeventually(lambda: client.xpending("s", "g")["pending"] == 0)


async def test_a_pause_loses_no_entry_without_a_record_that_waits_for_a_permit(
    fleet: Fleet, client: redis.Redis
) -> None:
    """With ``no_ack``, the entries of a batch that waits for a permit run in spite of a pause, as all others do."""
    app, ran = App(fleet.server.url), list[int]()
    sub = StreamSub("s", group="g", no_ack=True)

    @app.subscriber(sub, batch=True, limit=Limit("1/h", burst=10, name="few"), concurrency=1)
    async def work(entries: list[dict[str, str]]) -> None:
        ran.append(len(entries))

    leave(client, 0)
    async with app.running():
        loop = app.loops[0].parts[0]
        limiter = loop.limiters[0]
        await aeventually(lambda: limiter.whole[0].refused > 0)
        deliver(client, loop, 4)
        await aeventually(lambda: limiter.whole[0].waiting)
        loop.quieten(quiet=True)
        refused = limiter.whole[0].refused
        await limiter.send()  # wakes who waits
        await aeventually(lambda: not limiter.whole[0].waiting or limiter.whole[0].refused > refused)
        leave(client, 10)
        await limiter.send()
        await aeventually(lambda: not loop.member.held)
    assert ran == [4]


async def test_a_process_that_was_frozen_does_not_run_the_entry_that_waits_for_a_permit(
    fleet: Fleet, client: redis.Redis
) -> None:
    """Another worker may have the entry by then. An entry that this worker still holds goes back uncharged."""
    clock = ManualClock()
    app = fleet.app(Limit("1/h", burst=10, name="few"), time=clock, concurrency=2)
    leave(client, 0)
    async with fleet.running():
        loop = app.loops[0].parts[0]
        limiter = loop.limiters[0]
        await aeventually(lambda: limiter.whole[0].refused > 0)
        deliver(client, loop, 2)
        await aeventually(lambda: limiter.whole[0].waiting == 2)
        taken, _ = client.xpending_range("s", "g", "-", "+", 2)
        client.xclaim("s", "g", "other", 0, [taken["message_id"]])
        clock.advance(1_600)
        leave(client, 3)
        await limiter.send()  # wakes who waits
        await aeventually(lambda: client.xpending("s", "g")["pending"] == 1)
        [left] = client.xpending_range("s", "g", "-", "+", 2)
        assert (left["message_id"], left["consumer"]) == (taken["message_id"], "other")
    assert [key for key, _ in fleet.runs] == ["a"]
    assert fleet.deliveries == {1: 1}


@contextlib.asynccontextmanager
async def two_limits(fleet: Fleet) -> AsyncIterator[tuple[Limiter, ManualClock, Counter[str]]]:
    """A limiter of a paused handler with two limits, its clock, and the number of granted permits of each limit."""
    clock, out = ManualClock(), Counter[str]()
    limits = [Limit("1000/s", burst=1_000, running=100, name=name) for name in ("first", "second")]
    app = fleet.app(limits, time=clock)
    async with fleet.running():
        loop = app.loops[0]
        loop.quieten(quiet=True)
        await aeventually(lambda: loop.progress().doing == "paused")
        limiter = loop.limiters[0]
        for one in limiter.whole:

            async def counted(
                *words: Any,
                ask: Any = one._ask,  # noqa: SLF001 - its questions
                name: str = one.name,
                paced: bool = False,
            ) -> Any:
                reply = await ask(*words, paced=paced)
                if paced:  # else it is about slots alone
                    out[name] += int(reply[0]) - words[2][0]
                return reply

            one._ask = counted  # type: ignore[method-assign] # noqa: SLF001 - counts what the server grants
        yield limiter, clock, out


def occupy(client: redis.Redis, name: str, slots: int) -> None:
    """Fill a number of the limit's slots with runs of other workers."""
    client.zadd(keys(name)[1], {f"other{number}": 10**14 for number in range(slots)})


@pytest.mark.parametrize("name", ["first", "second"])
async def test_a_limit_that_refuses_costs_the_others_no_permit(fleet: Fleet, client: redis.Redis, name: str) -> None:
    """If one of two limits refuses, outdated permits for later reads go back to both."""
    async with two_limits(fleet) as (limiter, clock, out):
        assert (await limiter.before_read(2, 10))[0] == 2
        await limiter.after_read([hold(b"1-%d" % number, [], 1, 0) for number in range(2)])
        assert out == {"first": 10, "second": 10}
        clock.advance(500)
        occupy(client, name, 100)
        assert (await limiter.before_read(2, 10))[0] == 0
        assert out == {"first": 2, "second": 2}


async def test_the_pace_of_runs_outlasts_a_look_that_sees_none(fleet: Fleet, client: redis.Redis) -> None:
    """A reader that looks twice in quick succession reads ahead at the pace of the runs before."""
    clock = ManualClock()
    app = fleet.app(Limit("1000000/s"), time=clock)
    async with fleet.running():
        (limiter,) = app.loops[0].limiters
        clock.advance(20)
        limiter.soon(0)
        limiter.whole[0].granted += 400
        clock.advance(20)
        assert limiter.soon(0) == 500
        clock.advance(2)
        assert limiter.soon(0) == 500
        clock.advance(20)
        assert limiter.soon(0) == 0


async def test_permits_that_waited_long_are_not_for_another_read(fleet: Fleet, client: redis.Redis) -> None:
    """Entries of a read need time to start, so the read takes only permits that are valid for longer."""
    async with two_limits(fleet) as (limiter, clock, out):
        assert (await limiter.before_read(2, 10))[0] == 2
        await limiter.after_read([hold(b"1-%d" % number, [], 1, 0) for number in range(2)])
        clock.advance(50)
        assert (await limiter.before_read(2, 10))[0] == 2
        await limiter.after_read([hold(b"2-%d" % number, [], 1, 0) for number in range(2)])
        assert out == {"first": 10, "second": 10}
        clock.advance(40)
        assert (await limiter.before_read(2, 10))[0] == 2
        third = [hold(b"3-%d" % number, [], 1, 0) for number in range(2)]
        await limiter.after_read(third)
        clock.advance(50)  # Longer than the first permits are valid
        assert limiter._lacking(third) == 0  # noqa: SLF001 - runs show it only by further requests


@pytest.mark.parametrize("name", ["first", "second"])
@pytest.mark.parametrize("free", [0, 3])
async def test_a_read_that_waited_keeps_as_many_permits_of_each_limit(
    fleet: Fleet, client: redis.Redis, name: str, free: int
) -> None:
    """After a read that waited, a worker keeps equally many permits of each limit, and returns the surplus."""
    async with two_limits(fleet) as (limiter, clock, out):
        assert (await limiter.before_read(5))[0] == 5
        clock.advance(500)
        occupy(client, name, 100 - free)
        await limiter.after_read([hold(b"1-%d" % number, [], 1, 0) for number in range(5)])
        assert out == {"first": free, "second": free}


@pytest.mark.parametrize("age", [0, 500])
@pytest.mark.parametrize("name", ["first", "second"])
async def test_an_entry_that_may_not_start_gives_back_every_permit(
    fleet: Fleet, client: redis.Redis, name: str, age: int
) -> None:
    """If one limit has no slot for an entry's run, the entry's permits go back to all limits."""
    async with two_limits(fleet) as (limiter, clock, out):
        assert (await limiter.before_read(1))[0] == 1
        entry = hold(b"1-0", [], 1, 0)
        await limiter.after_read([entry])
        clock.advance(age)
        occupy(client, name, 100)
        assert not await limiter.may_start(entry, wait=False)
        assert out == {"first": 0, "second": 0}


async def test_a_reader_goes_on_once_an_outcome_is_stored(fleet: Fleet, client: redis.Redis) -> None:
    """With ``ack="each"`` a limited handler reads the next entry as soon as an outcome is stored."""
    add(client, 100)
    fleet.app(Limit("1000/s"), ack="each", concurrency=1)
    async with fleet.running():
        await aeventually(lambda: len(fleet.runs) == 100)


async def test_a_busy_partition_leaves_places_to_the_readers_of_others(fleet: Fleet) -> None:
    """Two partitions of a limited handler share a place fairly: a busy one does not starve the other."""
    app, ran, over = App(fleet.server.url), Counter[str](), asyncio.Event()
    await app.partition("s", 2)
    own = {crc32(key.encode()) % 2: key for key in map(str, range(20))}

    @app.subscriber(StreamSub("s", group="g", min_idle_time="2s"), limit=Limit("50000/s"), concurrency=1)
    async def work(k: str) -> None:
        ran[k] += 1
        for _ in range(20):
            await asyncio.sleep(0)

    async def feed() -> None:
        while not over.is_set():
            await app.publish_batch("s", [{"k": own[0]}] * 500, key=lambda one: one["k"])
            await aeventually(lambda: over.is_set() or app.loops[0].buffered < 500)

    async with app.running():
        feeding = asyncio.create_task(feed())
        await aeventually(lambda: ran[own[0]] > 100)
        await app.publish_batch("s", [{"k": own[1]}] * 50, key=lambda one: one["k"])
        try:
            await aeventually(lambda: ran[own[1]] == 50)
        finally:
            over.set()
            await feeding


async def test_a_partition_reads_ahead_by_the_pace_of_its_own_runs(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read-ahead of a limited partition counts only its own runs, not those of other partitions."""
    app, ran, over = App(fleet.server.url), Counter[str](), asyncio.Event()
    await app.partition("s", 2)
    own = {crc32(key.encode()) % 2: key for key in map(str, range(20))}

    @app.subscriber(StreamSub("s", group="g", min_idle_time="2s"), limit=Limit("50000/s"), concurrency=4)
    async def work(k: str) -> None:
        ran[k] += 1
        if k == own[1]:
            await over.wait()

    async with app.running():
        for _ in range(3):
            await app.publish("s", {"k": own[1]}, key=own[1])
        await aeventually(lambda: ran[own[1]] == 3)
        running: list[int] = []
        for limiter in app.loops[0].limiters:
            if not limiter.whole[0].granted:

                def noted(number: int, soon: Callable[[int], int] = limiter.soon) -> int:
                    """Record the number of running entries that count as the partition's own."""
                    running.append(number)
                    return soon(number)

                monkeypatch.setattr(limiter, "soon", noted)
        await app.publish_batch("s", [{"k": own[0]}] * 20, key=lambda one: one["k"])
        await aeventually(lambda: ran[own[0]] == 20)
        over.set()
    assert running
    assert max(running) <= 1


async def test_a_failed_entry_is_retried_while_others_of_its_key_wait(fleet: Fleet) -> None:
    """With hold, entries waiting behind a failed one take no lane, so a limited handler can retry the failed one."""
    app, ran = App(fleet.server.url), list[int]()
    await app.partition("s", 1, by="k")

    @app.subscriber(
        StreamSub("s", group="g", min_idle_time="2s"), limit=Limit("1000/s"), hold=True, concurrency=2, ack="each"
    )
    async def work(n: int) -> None:
        ran.append(n)
        if ran.count(0) < 2:
            await aeventually(lambda: app.loops[0].buffered > 0)
            raise Nack("again", delay=0.5)

    async with app.running():
        await app.publish_batch("s", [{"k": "a", "n": n} for n in range(6)])
        await aeventually(lambda: len(ran) == 7)
    assert ran == [0, *range(6)]


async def test_entries_keep_their_order_under_a_limit(fleet: Fleet, client: redis.Redis) -> None:
    """A limit without a key keeps the order that ``subscriber(key=)`` gives."""
    for n in range(12):
        client.xadd("s", {"k": "a", "n": n})
    app = App(fleet.server.url)
    seen: list[int] = []

    @app.subscriber(StreamSub("s", group="g"), key="k", limit=Limit("200/s"))
    async def work(n: int) -> None:
        seen.append(n)

    async with app.running():
        await aeventually(lambda: len(seen) == 12)
    assert seen == list(range(12))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Limit, "limits nothing"),
        (lambda: Limit("100"), "100/s"),
        (lambda: Limit("0/s"), "100/s"),
        (lambda: Limit(100), "100/s"),  # type: ignore[arg-type] # as a user may write it
        (lambda: Limit("1/s", burst=0), "burst=0"),
        (lambda: Limit("1/s", burst=True), "burst=True"),
        (lambda: Limit(running=3, burst=2), "without a rate"),
        (lambda: Limit(running=2.5), "running=2.5"),  # type: ignore[arg-type] # as a user may write it
        (lambda: Limit("1/s", name="a:b"), "name='a:b'"),
        (lambda: Limit("1/s", name=""), "name=''"),
    ],
)
def test_a_wrong_limit_is_one_error(make: Callable[[], Limit], words: str) -> None:
    """Each wrong argument of a limit is an error where the limit is declared."""
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": "100/s"}, r'Write limit=Limit\("100/s"\)'),
        ({"limit": [Limit("1/s"), Limit(running=1)]}, "two limits are named 'work'"),
        ({"limit": Limit("1/s", key=3)}, r"limit=Limit\(key=3\)\) is invalid"),  # type: ignore[arg-type] # as a user may write it
        ({"limit": Limit("1/s", key="k"), "key": "k"}, "lose its place"),
        ({"limit": Limit("1/s", key="k"), "batch": True}, "batch=True"),
        ({"limit": Limit(running=1), "batch": True}, "batch=True"),
        ({"limit": Limit(running=1), "sub": StreamSub("s", no_ack=True)}, "no_ack=True"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(options: dict[str, Any], words: str) -> None:
    """A limit that the handler cannot satisfy is refused with the handler's name and the correct form."""
    app = App("redis://nowhere", registry=False)
    with pytest.raises(ConfigError, match=words) as error:

        @app.subscriber(options.pop("sub", "s"), **options)
        async def work(entries: list[dict[str, str]]) -> None: ...

    assert str(error.value).startswith("work: ")


def test_one_name_means_one_limit() -> None:
    """Two handlers of an app that declare the same limit name differently are refused."""
    app = App("redis://nowhere", registry=False)

    @app.subscriber("s", limit=Limit("1/s", name="crm"))
    async def one() -> None: ...

    with pytest.raises(ConfigError, match="one declares the limit 'crm' otherwise"):

        @app.subscriber("s", limit=Limit("2/s", name="crm"))
        async def two() -> None: ...
