"""A process that was frozen and lost its entries cannot settle them after waking: the server refuses."""

import asyncio
import os
import re
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from millstream import App, EntryLostError, Message, Reject, Retry, StreamSub, failpoints
from millstream.client.line import Line
from millstream.worker.settlement.failure_log import key
from support.accounts import user
from support.groups import all_done, pending
from support.servers import ServerProcess
from support.waiting import aeventually

HOUR = 3_600_000

FROZEN = """
import asyncio
from millstream import App, Message, Nack, Reject, Retry, StreamSub

app = App(registry=False, reap_after=None)

@app.subscriber(
    StreamSub("STREAM", group="g", min_idle_time=300), retry=Retry(max_deliveries=9, base=0.05, jitter=False)
)
async def work(do: str, msg: Message) -> None:
    if do == "ack":
        return
    if do == "reject":
        raise Reject("no good")
    if do == "retry":
        raise ValueError("later")
    if do == "release":
        raise Nack("at once")
    await asyncio.sleep(0.5)
"""

#: The place where a process freezes -> the handler's outcome for the entry.
MOMENTS = {
    "before_ack": "ack",
    "in_dead": "reject",
    "before_retry": "retry",
    "before_release": "release",
    "before_renew": "wait",
}


def stopped(pid: int) -> bool:
    """Report whether a process is stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    ("scripts", "moments"), [(True, list(MOMENTS)), (False, ["before_ack", "in_dead"])], ids=["script", "no-script"]
)
async def test_what_a_frozen_process_says_of_an_entry_it_lost_is_refused(
    server: ServerProcess, client: redis.Redis, tasks: Any, scripts: bool, moments: list[str]
) -> None:
    """A process frozen at any moment, whose entry another worker took, changes nothing when it continues.

    One process for each moment runs at the same time. The second worker's outcome holds: half of the entries are dead,
    once.
    """
    rules = ("+@all", "~*") if scripts else ("+@all", "-@scripting", "~*")
    with user(client, *rules) as name:
        url = server.url.replace("://", f"://{name}")
        entries: dict[str, Any] = {moment: client.xadd(moment, {"do": MOMENTS[moment]}) for moment in moments}
        frozen = {}
        for moment in moments:
            text = FROZEN.replace("STREAM", moment)
            frozen[moment] = tasks.worker(
                tasks.app(text, f"app_{moment}"), url, MILLSTREAM_FAILPOINTS=f"{moment}=pause"
            )
        for moment, process in frozen.items():
            await aeventually(lambda pid=process.pid: stopped(pid), 60, what=f"frozen at {moment}")

        running, go = set[str](), asyncio.Event()

        def second(stream: str, *, good: bool) -> App:
            app = App(server.url, registry=False)

            @app.subscriber(StreamSub(stream, group="g", min_idle_time=300), retry=Retry(max_deliveries=9))
            async def handle(msg: Message) -> None:
                running.add(stream)
                await go.wait()
                if not good:
                    raise Reject("the second worker's word")

            return app

        async with AsyncExitStack() as stack:
            for number, moment in enumerate(moments):
                await stack.enter_async_context(second(moment, good=number % 2 == 0).running())
            await aeventually(lambda: len(running) == len(moments))
            before = {moment: (pending(client, moment, "g"), client.hgetall(key(moment, "g"))) for moment in moments}
            for process in frozen.values():
                os.kill(process.pid, signal.SIGCONT)
                process.terminate()
            told = {
                moment: await asyncio.to_thread(process.communicate, timeout=60) for moment, process in frozen.items()
            }
            # awake, told to finish, and gone: everything is as the second worker has it
            for moment, entry in entries.items():
                assert set(before[moment][0]) == {entry}
                now = (pending(client, moment, "g"), client.hgetall(key(moment, "g")))
                assert now == before[moment], (moment, told[moment][0])
                assert not client.exists(f"{moment}:dead"), moment
            go.set()
            for moment in moments:
                await aeventually(all_done(client, moment, "g"))
        for number, moment in enumerate(moments):
            letters: Any = client.xrange(f"{moment}:dead")
            assert [fields["_dead.error"] for _, fields in letters] == ["the second worker's word"] * (number % 2)
            assert not client.exists(key(moment, "g"))
        for moment, (out, _) in told.items():
            assert frozen[moment].returncode == 0, out
            # more than one if its own earlier read received the entry again
            assert counted(out, "lost") >= 1, (moment, out)
            assert counted(out, "acked") + counted(out, "dead") == 0, (moment, out)
            # a renewal may find the loss before the run has an outcome
            assert counted(out, "fenced") >= 1 or moment == "before_renew", (moment, out)
            assert ("runs no scripts" in out) is not scripts


def counted(out: str, name: str) -> int:
    """Return a counter of the only subscriber from a worker's final output."""
    found = re.search(rf"stopped: work: (.*\b{name} (\d+)|.*)", out)
    assert found, out
    return int(found[2] or 0)


def taken_from_us(client: redis.Redis, entry: Any, consumer: str = "other") -> None:
    """Let another consumer claim the entry despite its lease."""
    client.xclaim("s", "g", consumer, 0, [entry])


async def test_an_ack_of_an_entry_that_changed_hands_a_moment_ago_is_refused(
    server: ServerProcess, client: redis.Redis
) -> None:
    """An acknowledgement of an entry that was just claimed by another is refused, although the local lease is fresh."""
    app, told = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), ack="manual")
    async def handle(msg: Message) -> None:
        taken_from_us(client, msg.id)
        for outcome in (msg.ack, msg.nack):
            with pytest.raises(EntryLostError):
                await outcome()
        told.append(msg.id)

    entry = client.xadd("s", {"x": 1})
    async with app.running():
        await aeventually(lambda: told)
    assert pending(client, "s", "g") == {entry: ("other", 2)}
    assert app.stats()["handle"] | {"lost": 1, "fenced": 1, "acked": 0} == app.stats()["handle"]


async def test_a_claim_under_the_same_name_is_noticed(server: ServerProcess, client: redis.Redis) -> None:
    """Two processes with the same consumer name are told apart by the delivery count of an entry."""
    app, told = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", consumer="same", min_idle_time=HOUR), ack="manual")
    async def handle(msg: Message) -> None:
        taken_from_us(client, msg.id, "same")
        with pytest.raises(EntryLostError):
            await msg.ack()
        told.append(msg.id)

    entry = client.xadd("s", {"x": 1})
    async with app.running():
        await aeventually(lambda: told)
    assert pending(client, "s", "g") == {entry: ("same", 2)}


async def test_of_many_acks_in_one_step_only_those_of_others_are_refused(
    server: ServerProcess, client: redis.Redis
) -> None:
    """Among 150 acknowledgements sent together, only those for entries claimed by others are refused."""
    app, ids = App(server.url), [client.xadd("s", {"x": number}) for number in range(150)]

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR, max_records=150))
    async def handle(x: int) -> None: ...

    stolen: list[str] = []

    def steal() -> None:
        if not stolen:
            held = sorted(pending(client, "s", "g"))
            stolen.extend(held[::3])
            client.xclaim("s", "g", "other", 0, stolen)

    failpoints.on("before_ack", steal)
    async with app.running():
        await aeventually(lambda: app.stats()["handle"]["acked"] + app.stats()["handle"]["lost"] == 150)
    assert len(stolen) > 20
    assert pending(client, "s", "g") == dict.fromkeys(stolen, ("other", 2))
    assert app.stats()["handle"]["fenced"] == len(stolen)
    assert set(stolen) < set(ids)


@pytest.mark.parametrize("what", ["ack", "delete", "retry", "release", "dead"])
async def test_every_outcome_is_fenced(server: ServerProcess, client: redis.Redis, what: str) -> None:
    """Every outcome of a handler is refused for an entry that another consumer has claimed."""
    points = {"ack": "before_ack", "delete": "before_ack", "dead": "in_dead"}
    app, entry = App(server.url), client.xadd("s", {"x": 1})

    @app.subscriber(
        StreamSub("s", group="g", min_idle_time=HOUR),
        on_ack="delete" if what == "delete" else "keep",
        retry=Retry(max_deliveries=1 if what == "dead" else 5, base=60 if what == "retry" else 0),
    )
    async def handle() -> None:
        if what not in ("ack", "delete"):
            raise ValueError(what)

    failpoints.on(points.get(what, f"before_{what}"), lambda: taken_from_us(client, entry))
    async with app.running():
        await aeventually(lambda: app.stats()["handle"]["fenced"] == 1)
    assert pending(client, "s", "g") == {entry: ("other", 2)}
    assert client.xlen("s") == 1
    assert not client.exists("s:dead", key("s", "g"))


async def test_a_renewal_takes_nothing_back(server: ServerProcess, client: redis.Redis) -> None:
    """A lease renewal does not take back an entry that another consumer claimed. The worker counts it as lost."""
    app, running, go = App(server.url), asyncio.Event(), asyncio.Event()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=3_000))
    async def handle() -> None:
        running.set()
        await go.wait()

    entry = client.xadd("s", {"x": 1})
    async with app.running():
        failpoints.on("before_renew", lambda: None if app.stats()["handle"]["lost"] else taken_from_us(client, entry))
        await running.wait()
        await aeventually(lambda: app.stats()["handle"]["lost"] == 1)
        assert pending(client, "s", "g")[str(entry)][0] == "other"
        go.set()


async def test_a_forgotten_script_is_sent_again(server: ServerProcess, client: redis.Redis) -> None:
    """After SCRIPT FLUSH or a failover the worker loads its scripts again, for acknowledgements and dead letters."""
    app = App(server.url)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR))
    async def handle(x: int) -> None:
        client.script_flush()
        if x % 2:
            raise Reject("odd")

    async with app.running():
        for number in range(6):
            client.xadd("s", {"x": number})
        await aeventually(all_done(client, "s", "g"))
    assert client.xlen("s:dead") == 3
    assert app.stats()["handle"]["acked"] == 3


async def test_rights_to_run_scripts_may_come_and_go(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """If the right to run scripts is revoked, acknowledgements and dead letters continue in two steps, logged once."""
    with user(client, "+@all", "~*") as name:
        app = App(server.url.replace("://", f"://{name}"), registry=False)

        @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), retry=Retry(max_deliveries=2, base=0.01))
        async def handle(x: int) -> None:
            if x % 2:
                raise ValueError("odd")

        async with app.running():
            client.xadd("s", {"x": 0})
            await aeventually(all_done(client, "s", "g"))
            client.execute_command("ACL", "SETUSER", "worker", "-@scripting")
            for number in range(1, 7):
                client.xadd("s", {"x": number})
            await aeventually(all_done(client, "s", "g"))
    assert client.xlen("s:dead") == 3
    assert app.stats()["handle"]["acked"] == 4
    said = [record for record in caplog.records if "runs no scripts" in record.getMessage()]
    assert len(said) == 1


# -- dead letters that cannot be written ------------------------------------------------------------------------------


@pytest.mark.parametrize("scripts", [True, False], ids=["script", "no-script"])
@pytest.mark.parametrize("why", ["type", "rights", "full"])
async def test_an_entry_whose_dead_letter_cannot_be_written_stays_pending(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture, why: str, scripts: bool
) -> None:
    """If the dead letter cannot be added, the entry stays pending, the log gives the reason, and it is added later."""
    rules = ["+@all", "~*"] if scripts else ["+@all", "-@scripting", "~*"]
    if why == "rights":
        rules = [*rules[:-1], "~s", "~millstream*"]
    if why == "type":
        client.set("s:dead", "text")
    if why == "full":
        client.xadd("s:dead", {"x": 1}, id="18446744073709551615-18446744073709551615")
    with user(client, *rules) as name:
        app = App(server.url.replace("://", f"://{name}"))

        @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR))
        async def handle(x: int) -> None:
            raise Reject("no good")

        entry: Any = client.xadd("s", {"x": 1})
        async with app.running():
            await aeventually(lambda: len([one for one in caplog.messages if "entries are kept" in one]) >= 2)
            assert set(pending(client, "s", "g")) == {entry}
            if why == "rights":
                client.execute_command("ACL", "SETUSER", "worker", "~s:dead")
            else:
                client.delete("s:dead")
            await aeventually(all_done(client, "s", "g"))
        rows: Any = client.xrange("s:dead")
    assert [fields["_dead.id"] for _, fields in rows] == [entry]
    assert app.stats()["handle"]["dead"] == 1


async def test_a_worker_that_may_not_use_multi_writes_no_letter(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker without the right to MULTI writes no dead letter and no acknowledgement until it has the right."""
    with user(client, "+@all", "-@scripting", "-multi", "~*") as name:
        app = App(server.url.replace("://", f"://{name}"), registry=False)

        @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR))
        async def handle(x: int) -> None:
            raise Reject("no good")

        entry: Any = client.xadd("s", {"x": 1})
        async with app.running():
            await aeventually(lambda: len([one for one in caplog.messages if "entries are kept" in one]) >= 2)
            assert set(pending(client, "s", "g")) == {entry}
            assert not client.exists("s:dead")
            client.execute_command("ACL", "SETUSER", "worker", "+multi")
            await aeventually(all_done(client, "s", "g"))
    assert client.xlen("s:dead") == 1
    assert app.stats()["handle"]["dead"] == 1


async def test_a_worker_that_may_not_ack_writes_no_letter(server: ServerProcess, client: redis.Redis) -> None:
    """A worker without the right to XACK adds no dead letter, as each retry would add another."""
    with user(client, "+@all", "-xack", "~*") as name:
        app, tries = App(server.url.replace("://", f"://{name}")), []
        failpoints.on("before_dead", lambda: tries.append(client.xlen("s:dead")))

        @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR))
        async def handle(x: int) -> None:
            raise Reject("no good")

        client.xadd("s", {"x": 1})
        async with app.running():
            await aeventually(lambda: len(tries) >= 3)
            assert set(tries) == {0}
            client.execute_command("ACL", "SETUSER", "worker", "+xack")
            await aeventually(all_done(client, "s", "g"))
    assert client.xlen("s:dead") == 1


async def test_an_entry_of_very_many_fields_is_dead(server: ServerProcess, client: redis.Redis) -> None:
    """An entry with too many fields for a script is dead-lettered through a transaction."""
    fields: dict[Any, Any] = {f"f{number}": number for number in range(5_000)}
    app, entry = App(server.url), client.xadd("s", fields)

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(msg: Message) -> None:
        raise Reject("too many")

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    rows: Any = client.xrange("s:dead")
    assert [(found["_dead.id"], found["f4999"]) for _, found in rows] == [(entry, "4999")]


async def test_only_if_is_asked_when_the_bytes_leave(server: ServerProcess) -> None:
    """A command's ``only_if`` condition is checked at sending. If it no longer holds, only that command is dropped."""
    line, holds = Line(server.url), True
    try:
        first = line.calls([("INCR", "a")], only_if=lambda: holds)
        second = line.calls([("INCR", "b")])
        holds = False
        with pytest.raises(Exception, match="the condition of these commands is no longer true"):
            await first
        assert await second == [1]
        assert await line.call("GET", "a") is None
        assert await line.calls([("INCR", "a")], only_if=lambda: True) == [1]
        with pytest.raises(ResponseError):
            await line.call("XLEN")
    finally:
        await line.close()
