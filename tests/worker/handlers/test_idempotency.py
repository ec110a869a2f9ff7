"""Effects that happen once, through ``once`` or through a key in another database's transaction."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import App, Message, Reject, Retry, StreamSub, once, once_sync
from millstream.client.dead_letter.admin import DeadLetterAdmin
from millstream.client.line import Line
from millstream.errors import UsageError
from support.groups import all_done
from support.readme import block
from support.servers import ServerProcess
from support.waiting import aeventually, eventually

HOUR = 3_600_000
QUICK = Retry(max_deliveries=4, base=0.01, jitter=False)


async def test_an_effect_is_there_once_however_often_the_entry_is_delivered(
    server: ServerProcess, client: redis.Redis
) -> None:
    """The commands of ``once`` run one time, however often the entry is delivered again after them."""
    app, told = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), retry=QUICK)
    async def handle(x: int, msg: Message) -> None:
        told.append(await once(msg, ("INCRBY", "sum", x), ("XADD", "out", "*", "of", msg.id)))
        if msg.delivery_count < 4:
            raise ValueError("after the effect")

    async with app.running():
        ids = await app.publish_batch("s", [{"x": 3}, {"x": 4}])
        await aeventually(all_done(client, "s", "g"))
    assert client.get("sum") == "7"
    rows: Any = client.xrange("out")
    assert sorted(fields["of"] for _, fields in rows) == ids
    assert sorted(told) == [False] * 6 + [True] * 2
    assert client.keys("millstream:*once*") != []
    assert {client.get(f"millstream:{{s}}:once:g:{entry}") for entry in ids} == {"done"}
    assert 0 < client.ttl(f"millstream:{{s}}:once:g:{ids[0]}") <= 7 * 24 * 3600


async def test_two_consumers_at_the_same_entry_have_its_effect_once(server: ServerProcess, client: redis.Redis) -> None:
    """If a frozen worker and its successor both handle an entry, its effect happens once.

    The later call returns False.
    """
    slow, other, told, both = App(server.url), App(server.url), [], asyncio.Barrier(2)

    async def handle(msg: Message) -> None:
        if msg.delivery_count == 1:
            client.xclaim("s", "g", "gone", 0, [msg.id], idle=HOUR)
        await both.wait()
        told.append(await once(msg, ("INCR", "count")))

    slow.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), read="new")(handle)
    other.subscriber(StreamSub("s", group="g", min_idle_time=400, polling_interval=20), read="claimed")(handle)
    async with slow.running(), other.running():
        await slow.publish("s", {"x": 1})
        await aeventually(lambda: len(told) == 2)
    assert sorted(told) == [False, True]
    assert client.get("count") == "1"


async def test_a_refused_command_is_run_later_and_those_before_it_are_not_repeated(
    server: ServerProcess, client: redis.Redis
) -> None:
    """If a command of ``once`` is refused, the next delivery continues with that command and repeats none before it."""
    app, errors = App(server.url), []
    client.set("list", "no list")

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), retry=QUICK)
    async def handle(msg: Message) -> None:
        try:
            await once(msg, ("INCR", "first"), ("RPUSH", "list", "x"), ("INCR", "third"))
        except redis.ResponseError as error:
            errors.append(str(error))
            if msg.delivery_count == 3:
                client.delete("list")
            raise

    async with app.running():
        await app.publish("s", {"x": 1})
        await aeventually(all_done(client, "s", "g"))
    assert len(errors) == 3
    assert all("WRONGTYPE" in error for error in errors)
    assert (client.get("first"), client.lrange("list", 0, -1), client.get("third")) == ("1", ["x"], "1")


async def test_a_first_command_that_is_refused_leaves_no_marker(server: ServerProcess, client: redis.Redis) -> None:
    """If the first command of ``once`` is refused, no marker is left, and a corrected handler has its effect."""
    app, commands = App(server.url), [("NOSUCH", "command")]

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), retry=QUICK)
    async def handle(msg: Message) -> None:
        try:
            await once(msg, *commands)
        except redis.ResponseError:
            assert not client.exists(f"millstream:{{s}}:once:g:{msg.id}")
            commands[0] = ("INCR", "count")
            raise

    async with app.running():
        await app.publish("s", {"x": 1})
        await aeventually(all_done(client, "s", "g"))
    assert client.get("count") == "1"


async def test_a_dead_entry_that_is_put_back_has_its_effect_once_in_every_group(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A dead letter that is put back with a new id does not repeat the effect of ``once`` in any group."""
    app, runs = App(server.url), []

    @app.subscriber(StreamSub("s", group="sick"))
    async def sick(msg: Message) -> None:
        runs.append(("sick", msg.id, msg.origin, await once(msg, ("INCR", "sick"))))
        if msg.id == msg.origin:
            raise Reject("after the effect")

    @app.subscriber(StreamSub("s", group="well"))
    async def well(msg: Message) -> None:
        runs.append(("well", msg.id, msg.origin, await once(msg, ("INCR", "well"))))

    async with app.running():
        first = await app.publish("s", {"x": 1})
        await aeventually(lambda: client.exists("s:dead") and len(runs) == 2)
        line = Line(server.url)
        admin = DeadLetterAdmin(line, "s:dead")
        letters: Any = client.xrange("s:dead")
        await admin.put_back([letters[0][0]], all_groups=True)
        await line.close()
        await aeventually(lambda: len(runs) == 4)
    assert (client.get("sick"), client.get("well")) == ("1", "1")
    assert {origin for _, _, origin, _ in runs} == {first}
    assert sorted(ran for _, entry, _, ran in runs if entry != first) == [False, False]


async def test_handlers_in_threads_have_it_too(server: ServerProcess, client: redis.Redis) -> None:
    """``once_sync`` gives handlers in threads the guarantee of ``once``, and returns after the server's reply."""
    app, told = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), retry=QUICK)
    def handle(msg: Message) -> None:
        told.append(once_sync(msg, ("INCR", "count")))
        if msg.delivery_count == 1:
            raise ValueError("again")

    async with app.running():
        await app.publish("s", {"x": 1})
        await aeventually(all_done(client, "s", "g"))
    assert told == [True, False]
    assert client.get("count") == "1"


async def test_what_cannot_be_meant_is_an_error(server: ServerProcess, client: redis.Redis) -> None:
    """``once`` without commands, with a command that is not a tuple, or with ttl=0 raises and marks nothing."""
    app, errors = App(server.url), []

    @app.subscriber(StreamSub("s", group="g"), ack="manual")
    async def handle(msg: Message) -> None:
        for commands, options in (((), {}), (("INCR",), {}), ((("INCR", "count"),), {"ttl": 0})):
            try:
                await once(msg, *commands, **options)
            except UsageError as error:
                errors.append(str(error))

    async with app.running():
        await app.publish("s", {"x": 1})
        await aeventually(lambda: len(errors) == 3)
    assert "at least one command" in errors[0]
    assert "tuple" in errors[1]
    assert "ttl" in errors[2]
    assert not client.exists("count")


@pytest.mark.either_server
def test_the_recipe_for_sql_holds(own_server: ServerProcess, tasks: Any, tmp_path: Path) -> None:
    """The SQL recipe of docs/worker/how-to.md has its effect once, also if killed before the acknowledgement."""
    database = tmp_path / "accounts.db"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE done (key TEXT PRIMARY KEY)")
        db.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER)")
        db.execute("INSERT INTO accounts VALUES ('tea', 0)")
    db.close()
    with own_server.client(decode_responses=True) as client:
        for number in range(40):
            client.xadd("payments", {"account": "tea", "amount": number})
        recipe = block("python", "sqlite3", page="docs/worker/how-to.md")
        target = tasks.app(recipe.replace('"accounts.db"', repr(str(database))))
        doomed = tasks.worker(target, own_server.url, MILLSTREAM_FAILPOINTS="before_ack=kill")
        assert doomed.wait(timeout=60) < 0  # at the failpoint: commits are made, no ack is sent
        tasks.worker(target, own_server.url)
        eventually(all_done(client, "payments", "booking"))
        counts: Any = client.xinfo_groups("payments")
    assert counts[0]["entries-read"] == 40
    with sqlite3.connect(database) as db:
        assert db.execute("SELECT balance FROM accounts").fetchone() == (sum(range(40)),)
        assert db.execute("SELECT count(*) FROM done").fetchone() == (40,)
    db.close()
