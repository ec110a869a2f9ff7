"""A retry delay outlives its worker: restarts, kills, freezes and other clocks, on every server."""

import asyncio
import contextlib
from typing import Any

import pytest
import redis

from millstream import App, Message, Nack, Reject, Retry, StreamSub, failpoints
from millstream.client.delays.due import hold, key, search_key
from support import needs
from support.accounts import user
from support.groups import all_done, pending
from support.servers import ServerProcess
from support.waiting import aeventually, eventually
from worker.later.test_rights import BASE, rights

SERVERS = ["redis", "millstream", *needs.OTHERS]
HOUR = 3_600_000
DUE = key("s", "g")
HELD = search_key("s", "g")
WAITS = ("(retry)", 1)
LATER = """
from millstream import App, Message, Nack, StreamSub

app = App()

@app.subscriber(StreamSub("s", group="g", min_idle_time=200, polling_interval=100))
async def handle(msg: Message) -> None:
    if b"later" in msg.fields.values():
        raise Nack("not now", delay="1h")
"""


def subscriber(url: str, seen: list[Any], *, min_idle: int = 200, **options: Any) -> App:
    """An app that records its runs, and delays an entry on request by an hour."""
    app = App(url)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=min_idle, polling_interval=100), **options)
    async def handle(do: str, msg: Message) -> None:
        seen.append((do, msg.delivery_count))
        if do == "later" and msg.delivery_count == 1:
            raise Nack("not now", delay="1h")

    return app


def leave(client: redis.Redis, do: str) -> str:
    """Add an entry that a consumer called ghost reads now and never acknowledges."""
    entry: Any = client.xadd("s", {"do": do})
    client.xreadgroup("g", "ghost", {"s": ">"})
    return entry


def delayed(client: redis.Redis, *, idle: int = HOUR, left: int = HOUR) -> str:
    """Add an entry that was delayed and whose workers have been away for the given time."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    entry = leave(client, "later")
    client.execute_command("XCLAIM", "s", "g", "(retry)", 0, entry, "IDLE", idle, "RETRYCOUNT", 1, "JUSTID")
    client.zadd(DUE, {entry: now(client) + left})
    return entry


def crowd(client: redis.Redis, number: int, *, idle: int = HOUR) -> None:
    """Add a number of delayed entries, pending for ``idle`` milliseconds."""
    delayed(client, idle=idle)
    for each in range(number - 1):
        client.xadd("s", {"do": f"{each}"})
    ids = [entry for [[_, rows]] in [client.xreadgroup("g", "x", {"s": ">"}, count=1000)] for entry, _ in rows]
    client.execute_command("XCLAIM", "s", "g", "(retry)", 0, *ids, "IDLE", idle, "RETRYCOUNT", 1, "JUSTID")
    client.zadd(DUE, {entry: now(client) + HOUR + place % 3 for place, entry in enumerate(ids)})


def now(client: redis.Redis) -> int:
    """Return the server's time in milliseconds."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.parametrize("end", ["after_retry:1=kill", "stop"])
async def test_a_delay_survives_restarts_and_costs_nothing(
    server: ServerProcess, client: redis.Redis, tasks: Any, end: str
) -> None:
    """A delayed entry is not run by three workers that come and go, and its delivery count stays one."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    entry = client.xadd("s", {"do": "later"})
    target = tasks.app(LATER)
    before = now(client)
    first = tasks.worker(target, server.url, **({} if end == "stop" else {"MILLSTREAM_FAILPOINTS": end}))
    due = eventually(lambda: client.zscore(DUE, entry))
    assert before + HOUR <= due <= now(client) + HOUR
    if end == "stop":
        first.terminate()
    first.wait(timeout=30)
    for _ in range(3):
        leave(client, "now")
        worker = tasks.worker(target, server.url)
        eventually(lambda: set(pending(client, "s", "g")) == {entry}, what="it claimed what is older than min_idle")
        if end == "stop":
            worker.terminate()
        else:
            worker.kill()
        worker.wait(timeout=30)
        assert pending(client, "s", "g") == {entry: WAITS}
    client.zadd(DUE, {entry: now(client)})
    seen: list[Any] = []
    async with subscriber(server.url, seen).running():
        await aeventually(all_done(client, "s", "g"))
        await aeventually(lambda: not client.exists(DUE))
    assert seen == [("later", 2)]


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
async def test_what_nobody_kept_waiting_is_not_run_before_its_time(
    server: ServerProcess, client: redis.Redis, *, scripts: bool
) -> None:
    """A delayed entry that no worker kept waiting for an hour is still not run before its time, nor charged."""
    entry, seen = delayed(client), []
    with user(client, "+@all", "~*", *(() if scripts else ("-@scripting",))) as name:
        app = subscriber(server.url.replace("://", f"://{name}"), seen, min_idle=60_000)
        async with app.running():
            await aeventually(lambda: client.xpending_range("s", "g", "-", "+", 1)[0]["time_since_delivered"] < 60_000)
            await aeventually(lambda: pending(client, "s", "g") == {entry: WAITS})
            client.xadd("s", {"do": "new"})
            await aeventually(lambda: seen == [("new", 1)])
        assert app.stats()["handle"]["lost"] == 0
    assert pending(client, "s", "g") == {entry: WAITS}
    assert client.zscore(DUE, entry)


async def test_a_worker_that_was_frozen_puts_back_what_it_claimed(server: ServerProcess, client: redis.Redis) -> None:
    """A worker that was frozen and claims a delayed entry puts it back, and another worker may die doing so."""
    seen: list[Any] = []
    app = subscriber(server.url, seen, min_idle=60_000)
    client.xgroup_create("s", "g", "0", mkstream=True)
    async with app.running():
        entry = client.xadd("s", {"do": "later"})
        await aeventually(lambda: pending(client, "s", "g") == {entry: WAITS})
        app.loops[0].fetcher.sweep_soon()
        words = ("IDLE", HOUR, "RETRYCOUNT", 1, "JUSTID")
        client.execute_command("XCLAIM", "s", "g", "(retry)", 0, entry, *words)
        await aeventually(lambda: client.xpending_range("s", "g", "-", "+", 1)[0]["time_since_delivered"] < 60_000)
        await aeventually(lambda: pending(client, "s", "g") == {entry: WAITS})
        await aeventually(lambda: not app.loops[0].busy)
    assert seen == [("later", 1)]
    assert app.stats()["handle"]["claimed"] == 0


async def test_more_wait_than_one_step_holds(server: ServerProcess, client: redis.Redis) -> None:
    """If workers left 450 delayed entries an hour ago, all keep waiting while new entries run."""
    crowd(client, 450)
    seen: list[Any] = []
    async with subscriber(server.url, seen, min_idle=60_000).running():
        client.xadd("s", {"do": "new"})
        await aeventually(lambda: seen == [("new", 1)])

        def young() -> bool:
            return all(row["time_since_delivered"] < 60_000 for row in client.xpending_range("s", "g", "-", "+", 1000))

        await aeventually(young)
    assert list(pending(client, "s", "g").values()) == [WAITS] * 450


def called(client: redis.Redis, command: str) -> int:
    """Return how often a command has run. A search for up to 200 delayed entries has one ZREMRANGEBYSCORE."""
    stats: Any = client.info("commandstats")
    return stats.get(f"cmdstat_{command}", {"calls": 0})["calls"]  # type: ignore[no-any-return] # whatever INFO has


def test_a_search_asks_for_many_entries_at_once(server: ServerProcess, client: redis.Redis) -> None:
    """A search for 100 delayed entries looks up all of them by one XPENDING, and each entry of a worker by one more."""
    crowd(client, 100, idle=0)
    taken, gone = [entry for entry, _ in client.xrange("s")][10:12]
    client.xclaim("s", "g", "w", 0, [taken])
    client.xack("s", "g", gone)
    before = called(client, "xpending")
    looked, left, *_ = client.execute_command(*hold("s", "g", HOUR, whole=True))
    assert (looked, left, called(client, "xpending") - before) == (100, [], 3)
    assert client.zscore(DUE, gone) is None
    rows = client.xpending_range("s", "g", "-", "+", 200)
    young = [row["message_id"] for row in rows if row["time_since_delivered"] < HOUR // 2]
    assert (len(rows), client.zcard(DUE)) == (99, 99)
    assert set(young) == {row["message_id"] for row in rows}


async def test_all_that_waits_is_put_off_before_a_claim_is_sent(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If delayed entries fill several pages, all pages are sent before the claim, which may block."""
    crowd(client, 450, idle=0)
    app = subscriber(server.url, [], min_idle=1_000)
    searched: list[int] = []
    async with app.running():
        for line in (app.loops[0].fetcher.line, app.loops[0].member.line):

            async def watched(commands: Any, *, calls: Any = line.calls, **options: Any) -> Any:
                """Record the sizes of requests that search."""
                replies = await calls(commands, **options)
                found = [reply for command, reply in zip(commands, replies, strict=True) if DUE in command[:6]]
                if any(isinstance(reply, list) and reply[0] == 200 for reply in found):
                    searched.append(len(commands))
                return replies

            monkeypatch.setattr(line, "calls", watched)
        await aeventually(lambda: len(searched) >= 6)
    assert set(searched) == {1}


async def test_the_workers_of_a_group_search_in_turn(server: ServerProcess, client: redis.Redis) -> None:
    """Six workers together search 100 delayed entries as often as one: once in a quarter of min_idle_time."""
    crowd(client, 100, idle=0)
    apps = [subscriber(server.url, [], min_idle=2_000) for _ in range(6)]
    async with contextlib.AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app.running())
        before, begin = called(client, "zremrangebyscore"), now(client)
        await aeventually(lambda: now(client) > begin + 3_000)
        count, turns = called(client, "zremrangebyscore") - before, (now(client) - begin) / 500 + 2
    # The list of workers costs each worker one such command now and then
    assert 1 <= count <= turns + 6
    assert client.zcard(DUE) == 100


def test_a_search_that_was_broken_off_is_another_workers(server: ServerProcess, client: redis.Redis) -> None:
    """A complete search counts for other workers of the same min_idle_time. An interrupted one counts only briefly."""
    crowd(client, 250, idle=0)
    quarter = HOUR // 4

    def search(min_idle: int = HOUR, **page: int) -> list[Any]:
        """Search a page; return its size, the begin of the search, and the age of another worker's."""
        looked, _, kept, *times = client.execute_command(*hold("s", "g", min_idle, whole=True, **page))
        assert kept == 250
        return [looked, *times]

    looked, begun, age = search()
    assert (looked, age) == (200, 0)
    assert search() == [0, 0, quarter]  # under way: whoever asks is to ask again at once
    client.set(HELD, f"{HOUR} 0 {now(client) - 1}")
    looked, begun, _ = search()
    assert looked == 200  # it died
    assert search(first=200, begun=begun) == [50, begun, 0]
    looked, _, age = search()
    assert (looked, age < quarter) == (0, True)
    assert 0 < client.pttl(HELD) <= quarter
    assert search(begun=-1)[0] == 200
    for useless in (
        "x",
        f"{HOUR} 0 {now(client) + HOUR}",
        f"{HOUR} 0 {10**30}",
        f"{HOUR // 2} 0 {now(client) + 60_000}",
    ):
        client.set(HELD, useless)
        assert search()[0] == 200
    client.delete(HELD)
    client.lpush(HELD, "x")
    assert search()[0] == 200


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
async def test_the_rights_of_the_page_keep_what_waits(
    server: ServerProcess, client: redis.Redis, *, shared: bool
) -> None:
    """A worker with the listed rights shares its searches of delayed entries.

    Without the right to the key it searches alone, and the delay is still kept.
    """
    entry, seen = delayed(client), []
    listed = [rule.replace("{orders}", "{s}") for rule in rights("delays entries")]
    assert f"~{HELD[:-1]}*" in listed
    mine = listed if shared else [rule for rule in listed if rule != f"~{HELD[:-1]}*"]
    stream = "~s ~s:dead ~millstream:{s}:tries:* +@stream +hmget +hset +hdel +exists +expire"
    with user(client, *BASE.split(), *stream.split(), *mine) as name:
        app = App(server.url.replace("://", f"://{name}"), registry=False, movers=False)

        @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000, polling_interval=100))
        async def handle(do: str) -> None:
            seen.append(do)
            if do == "again":
                raise Nack("not now", delay="1h")

        async with app.running():
            await aeventually(lambda: client.xpending_range("s", "g", "-", "+", 1)[0]["time_since_delivered"] < 60_000)
            again = client.xadd("s", {"do": "again"})
            await aeventually(lambda: set(client.zrange(DUE, 0, -1)) == {entry, again})
            assert bool(client.exists(HELD)) == shared
    assert pending(client, "s", "g") == {entry: WAITS, again: WAITS}
    assert seen == ["again"]


@pytest.mark.parametrize("claims", ["retry", "dead", "nack"])
async def test_the_due_time_goes_with_the_outcome(server: ServerProcess, client: redis.Redis, claims: str) -> None:
    """The set of due times holds exactly the waiting entries, after an acknowledgement, a death or another delay."""
    app, limit = App(server.url), 9 if claims == "nack" else 2

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), retry=Retry(max_deliveries=limit, base=0.05))
    async def handle(msg: Message) -> None:
        if msg.delivery_count == 1:
            raise ValueError("again")
        if claims == "dead":
            raise ValueError("for good")
        if claims == "nack":
            raise Nack("much later", delay="2h")

    async with app.running():
        entry = client.xadd("s", {"x": 1})
        if claims == "nack":
            await aeventually(lambda: (client.zscore(DUE, entry) or 0) > now(client) + HOUR)
        else:
            await aeventually(all_done(client, "s", "g"))
            assert not client.exists(DUE)


async def test_due_times_of_what_is_gone_go(server: ServerProcess, client: redis.Redis) -> None:
    """Due times of entries that were deleted, acknowledged elsewhere or lost with their group are soon removed."""
    entry = delayed(client)
    acked = leave(client, "acked")
    client.xack("s", "g", acked)
    client.zadd(DUE, {acked: now(client) + HOUR, "7-7": now(client) + HOUR})
    client.xdel("s", entry)
    seen: list[Any] = []
    async with subscriber(server.url, seen).running():
        if server.release() < (7, 0):  # it keeps deleted entries pending, with their due times
            await aeventually(lambda: client.zrange(DUE, 0, -1) == [entry])
        else:
            await aeventually(lambda: not client.exists(DUE))
            assert pending(client, "s", "g") == {}
        client.zadd(DUE, {entry: now(client) + HOUR})
        client.xgroup_destroy("s", "g")
        await aeventually(lambda: not client.exists(DUE))
        client.zadd(DUE, {entry: now(client) + HOUR})
        client.delete("s")
        await aeventually(lambda: client.exists("s") and not client.exists(DUE))
    assert "later" not in dict(seen)


@pytest.mark.parametrize(
    "hostile",
    [
        ("SET", DUE, "no set"),
        ("ZADD", DUE, "inf", "ID", "-inf", "-", "+inf", "+", "1e300", "x", "inf", "(0-0", "9e15", "", "inf", "0"),
        ("HSET", DUE, "ID", "9999999999999"),
    ],
    ids=["string", "members", "hash"],
)
async def test_whatever_is_in_the_key_harms_nobody(
    server: ServerProcess, client: redis.Redis, hostile: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Foreign content in the key of due times, of any type, stops neither entries nor new delays."""
    entry, seen = delayed(client), []
    client.delete(DUE)
    client.execute_command(*(word.replace("ID", entry) for word in hostile))
    app = subscriber(server.url, seen)
    async with app.running():
        await aeventually(lambda: seen == [("later", 2)])
        again = client.xadd("s", {"do": "later"})
        await aeventually(lambda: pending(client, "s", "g").get(again) == WAITS)
        if hostile[0] == "ZADD":
            await aeventually(lambda: client.zrange(DUE, 0, -1) == [again])
    warned = [one for one in caplog.records if DUE in one.getMessage()]
    assert len(warned) == (hostile[0] != "ZADD")


async def test_a_due_time_that_may_not_be_written_is_said_once(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the right to the key of due times a delay lasts at most min_idle_time, and the log says so once."""
    with user(client, "+@all", "~s", "~s:dead", "~millstream:{s}:tries:*") as name:
        app = App(server.url.replace("://", f"://{name}"))

        @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), retry=Retry(base=0.05, max_deliveries=3))
        async def handle() -> None:
            raise ValueError("again")

        async with app.running():
            await app.publish("s", {"x": 1})
            await aeventually(lambda: client.xlen("s:dead") == 1)
    said = [record.getMessage() for record in caplog.records if DUE in record.getMessage()]
    assert len(said) == 1


def test_a_user_who_may_not_look_forgets_no_due_time(server: ServerProcess, client: redis.Redis) -> None:
    """A user without the right to list pending entries keeps the due times of all entries."""
    entry = delayed(client)
    left = client.zscore(DUE, entry)
    client.zadd(DUE, {"no id": now(client) + HOUR, "(0-0": now(client) + HOUR, f"1-{10**20}": now(client) + HOUR})
    with user(client, "+@all", "~*", "-xpending") as name:
        limited = redis.Redis.from_url(server.url.replace("://", f"://{name}"))
        limited.execute_command(*hold("s", "g", HOUR, whole=True))
        limited.close()
    assert client.zscore(DUE, entry) == left
    client.execute_command(*hold("s", "g", HOUR, whole=True))
    assert client.zrange(DUE, 0, -1) == [entry]


async def test_an_entry_that_comes_due_while_others_run_is_run_once_and_in_time(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A delayed entry runs once and in time, even on a worker other than the one that delayed it."""
    entry, seen = delayed(client, idle=0, left=700), []
    due = client.zscore(DUE, entry)
    times: list[int] = []
    failpoints.on("before_handler", lambda: times.append(now(client)))
    apps = [subscriber(server.url, seen, min_idle=idle) for idle in (100, 400, 5_000)]
    async with apps[0].running(), apps[1].running(), apps[2].running():
        await aeventually(all_done(client, "s", "g"))
        await asyncio.sleep(0)
    assert seen == [("later", 2)]
    assert times[0] >= due - 5


@pytest.mark.parametrize("batch", [False, True])
async def test_a_task_group_passes_on_what_its_tasks_say(server: ServerProcess, batch: bool) -> None:
    """Nack and Reject raised in tasks of a task group count as the handler's own. Beside an error they do not.

    The longest delay counts, and a Reject takes precedence over a Nack.
    """
    app = App(server.url, registry=False)
    said: dict[str, list[BaseException]] = {
        "nack": [Nack(delay=50), Nack(delay=500)],
        "nested": [ExceptionGroup("inner", [Nack(delay=500)])],
        "reject": [Nack(delay=50), Reject("no good")],
        "error": [Nack(delay=50), ValueError("x")],
    }

    async def end(how: str) -> None:
        async def fail(error: BaseException) -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            for error in said[how]:
                group.create_task(fail(error))

    async def work(entries: list[dict[str, str]]) -> None:
        await end(entries[0]["how"])

    sub = StreamSub("jobs", group="g", max_records=1)
    app.subscriber(sub, retry=Retry(max_deliveries=2, base=0.01), batch=batch)(work if batch else end)
    with server.client(decode_responses=True) as client:
        for how in said:
            client.xadd("jobs", {"how": how})
        async with app.running():
            await aeventually(lambda: client.xlen("jobs:dead") == 2)
            rows: Any = client.xrange("jobs:dead")
            assert {fields["how"]: fields["_dead.reason"] for _, fields in rows} == {
                "reject": "reject",
                "error": "error",
            }
            assert client.xpending("jobs", "g")["pending"] == 2
            await aeventually(lambda: app.stats()[("work" if batch else "end")]["retried"] == 3)
