"""The outbox: a committed row becomes one entry, and a rolled-back one none, on each database."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy
from click.testing import CliRunner
from sqlalchemy import orm

from millstream import App, PayloadError, outbox
from millstream.cli.main import main
from millstream.errors import ConfigError, UsageError
from millstream.worker.handlers.sender import Sender
from millstream.worker.outbox import database
from millstream.worker.outbox.database import Turn
from millstream.worker.outbox.relay import OutboxRelay
from support.databases import Database
from support.reader import Reader
from support.readme import block
from support.servers import ServerProcess
from support.waiting import aeventually, eventually


@asynccontextmanager
async def relaying(engine: sqlalchemy.Engine, server: ServerProcess) -> AsyncIterator[OutboxRelay]:
    """Run a relay."""
    sender = Sender(server.url)
    relay = OutboxRelay(engine, lambda: sender)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.stop()
        await sender.close()


MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def left(engine: sqlalchemy.Engine) -> int:
    """Count the rows in the outbox."""
    with engine.connect() as connection:
        return int(connection.scalar(sqlalchemy.select(sqlalchemy.func.count()).select_from(outbox.table)) or 0)


def numbers(client: redis.Redis, stream: str = "orders") -> list[int]:
    """Return the numbers in a stream's entries."""
    rows: Any = client.xrange(stream)
    return [int(fields["n"]) for _, fields in rows]


async def test_committed_rows_are_entries_in_their_order(
    engine: sqlalchemy.Engine, server: ServerProcess, client: redis.Redis
) -> None:
    """The committed ones among 350 transactions become one entry each, in order, and their rows are removed."""
    async with relaying(engine, server):
        for n in range(350):
            with engine.connect() as connection:
                outbox.add(connection, "orders", {"n": n})
                if n % 3:
                    connection.commit()
        await aeventually(lambda: not left(engine))
    assert numbers(client) == [n for n in range(350) if n % 3]


async def test_every_kind_of_connection(
    base: Database, engine: sqlalchemy.Engine, server: ServerProcess, client: redis.Redis
) -> None:
    """The outbox accepts SQLAlchemy's connection, session and scoped session, and the driver's own connection."""
    with engine.begin() as connection:
        outbox.add(connection, "orders", {"n": 1})
        connection.execute(outbox.insert("orders", {"n": 2}, headers={"kind": "order"}))
    with orm.Session(engine) as session:
        outbox.add(session, "orders", {"n": 3}, key="c7")
        session.commit()
    scoped = orm.scoped_session(orm.sessionmaker(engine))
    outbox.add(scoped, "orders", {"n": 4})
    scoped.commit()
    scoped.remove()
    raw: Any = engine.raw_connection()
    outbox.add(raw.driver_connection, "orders", {"n": 5, "bytes": bytes(range(256))})
    raw.driver_connection.commit()
    outbox.add(raw.driver_connection, "orders", {"n": 6})
    raw.driver_connection.rollback()
    raw.close()
    async with relaying(engine, server):
        await aeventually(lambda: not left(engine))
    with server.client() as binary:
        rows: Any = binary.xrange("orders")
    assert [b"n" in fields for _, fields in rows] == [True, False, True, True, True]
    assert rows[-1][1][b"bytes"] == bytes(range(256))


async def test_a_delayed_row_waits_on_the_server(
    engine: sqlalchemy.Engine, server: ServerProcess, client: redis.Redis
) -> None:
    """A delayed row is moved to the server at once as a schedule, and a worker adds it at its time."""
    app = App(server.url)
    app.outbox(engine)
    with engine.begin() as connection:
        outbox.add(connection, "orders", {"n": 1}, delay="1h")
        outbox.add(connection, "orders", {"n": 2}, delay=0)
    async with app.running():
        await aeventually(lambda: not left(engine))
        waiting = [one async for one in app.later.list("orders")]
        assert [one.fields for one in waiting if one.at_ms > database.now()] == [(b"n", b"1")]
        await aeventually(lambda: numbers(client) == [2])


async def test_rows_go_to_the_partition_of_their_key(
    engine: sqlalchemy.Engine, server: ServerProcess, client: redis.Redis
) -> None:
    """An outbox row goes to the partition of its ``key=`` or of the stream's key field.

    A row with neither is set aside.
    """
    app = App(server.url, registry=False)
    await app.partition("orders", 8, by="customer")
    with engine.begin() as connection:
        for n in range(24):
            outbox.add(connection, "orders", {"n": n}, key=f"c{n % 12}")
            outbox.add(connection, "orders", {"n": n + 100, "customer": f"c{n % 12}"})
        outbox.add(connection, "orders", {"n": 200}, key="c7", delay="1h")
        outbox.add(connection, "orders", {"n": 300})
        outbox.add(connection, "plain", {"n": 400}, key="c7")
        columns = {"mark": "m", "stream": "plain", "added_ms": 1, "fields": b"1:n1:0"}
        connection.execute(sqlalchemy.insert(outbox.table).values(**columns, entry_key=""))
    async with relaying(engine, server) as relay:
        await aeventually(lambda: left(engine) == 2 and relay.put_aside == 2)
    for n in range(12):
        key = f"orders{{{zlib.crc32(f'c{n}'.encode()) % 8}}}"
        assert [row for row in numbers(client, key) if row % 100 % 12 == n] == [n, n + 100, n + 12, n + 112]
    (waits,) = [one async for one in app.later.list(f"orders{{{zlib.crc32(b'c7') % 8}}}")]
    assert (waits.fields, numbers(client, "plain")) == ((b"n", b"200"), [400])
    await app.close()


async def test_a_row_that_was_published_before_a_crash_is_not_added_again(
    engine: sqlalchemy.Engine, server: ServerProcess, client: redis.Redis
) -> None:
    """A row that a killed relay had published but not removed is not added again, and the next relay removes it."""
    with engine.begin() as connection:
        outbox.add(connection, "orders", {"n": 1})
        outbox.add(connection, "bills", {"n": 2}, delay="1h")
    sender = Sender(server.url)
    relay = OutboxRelay(engine, lambda: sender)
    turn = Turn(engine)
    await relay._publish_all(turn.rows, [], [])  # noqa: SLF001 - and there it ends
    turn.end()
    await sender.close()
    assert left(engine) == 2
    async with relaying(engine, server):
        await aeventually(lambda: not left(engine))
    assert numbers(client) == [1]
    marks = list(client.scan_iter("millstream:*published*"))
    assert len(marks) == 2
    assert all(86_000 < int(client.ttl(mark)) <= 86_400 for mark in marks)


async def test_poison_rows_are_put_aside(
    engine: sqlalchemy.Engine, server: ServerProcess, client: redis.Redis, tmp_path: Any, base: Database
) -> None:
    """Rows that cannot be published are set aside while others continue. ``outbox ls`` shows their errors."""
    client.set("text", "no stream")
    columns = {"mark": "m", "stream": "orders", "added_ms": 1, "fields": b"1:n1:0"}
    with engine.begin() as connection:
        outbox.add(connection, "text", {"n": 1})
        for wrong in ({"fields": b""}, {"fields": b"9:n1:0"}, {"fields": b"1:n"}, {"at_ms": -1}, {"stream": ""}):
            connection.execute(sqlalchemy.insert(outbox.table).values(**{**columns, **wrong}))
        outbox.add(connection, "orders", {"n": 2})
    async with relaying(engine, server) as relay:
        await aeventually(lambda: left(engine) == 6 and relay.put_aside == 6)
        assert numbers(client) == [2]
        (tmp_path / "shop.py").write_text(f"import sqlalchemy\nengine = sqlalchemy.create_engine({base.url!r})\n")
        words = ["outbox", "ls", "shop:engine", "--app-dir", str(tmp_path), "-o", "csv"]
        done = await asyncio.to_thread(
            subprocess.run, [MILLSTREAM, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "WRONGTYPE" in done.stdout
        assert done.stdout.count("is not one that outbox.add wrote") == 5
        client.delete("text")
        with engine.begin() as connection:
            connection.execute(outbox.table.update().values(next_ms=0))
        await aeventually(lambda: left(engine) == 5 and relay.put_aside == 11)
    assert numbers(client, "text") == [1]


async def test_one_relay_at_a_time(engine: sqlalchemy.Engine, server: ServerProcess, client: redis.Redis) -> None:
    """While one relay has a turn, another gets none, or waits for it on SQLite. Its end frees the lock."""
    with engine.begin() as connection:
        outbox.add(connection, "orders", {"n": 1})
    turn = Turn(engine)
    assert [row.stream for row in turn.rows] == ["orders"]
    if engine.dialect.name != "sqlite":
        second = Turn(engine)
        assert (second.locked, second.rows) == (False, [])
    turn.end()
    third = Turn(engine)
    assert third.locked
    third.end([third.rows[0].id])
    assert left(engine) == 0


async def test_relays_together_add_each_row_once(
    engine: sqlalchemy.Engine, server: ServerProcess, client: redis.Redis
) -> None:
    """Three relays of one database add each row once, in order."""
    with engine.begin() as connection:
        for n in range(300):
            outbox.add(connection, "orders", {"n": n})
    async with relaying(engine, server), relaying(engine, server), relaying(engine, server):
        await aeventually(lambda: not left(engine))
    assert numbers(client) == list(range(300))


async def test_a_server_that_is_away_loses_nothing(
    engine: sqlalchemy.Engine, server: ServerProcess, client: redis.Redis
) -> None:
    """While the server is down the relay waits for it, writers of the database continue, and no row is lost."""
    server.kill()
    async with relaying(engine, server) as relay:
        for n in range(3):
            with engine.begin() as connection:
                outbox.add(connection, "orders", {"n": n})
        assert relay.moved == 0
        await asyncio.to_thread(server.start)
        await aeventually(lambda: not left(engine), 60)
    assert numbers(client) == [0, 1, 2]


def test_the_command_moves_rows_until_its_end(
    engine: sqlalchemy.Engine, base: Database, server: ServerProcess, client: redis.Redis, tmp_path: Any
) -> None:
    """``millstream outbox create`` and ``relay`` work from the shell. SIGTERM ends the relay with code 0."""
    (tmp_path / "shop.py").write_text(f"import sqlalchemy\nengine = sqlalchemy.create_engine({base.url!r})\n")
    start = [MILLSTREAM, "outbox"]
    environment = {**os.environ, "MILLSTREAM_URL": server.url}
    subprocess.run([*start, "create", "shop:engine"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    with engine.begin() as connection:
        outbox.add(connection, "orders", {"n": 1})
    relay = subprocess.Popen([*start, "relay", "shop:engine"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    eventually(lambda: numbers(client) == [1] and not left(engine))
    relay.send_signal(signal.SIGTERM)
    _, said = relay.communicate(timeout=30)
    assert (relay.returncode, b"1 row moved, 0 put aside" in said) == (0, True), said


def test_django_transactions_have_an_outbox(tmp_path: Any) -> None:
    """An outbox row on Django's connection is committed or rolled back with ``transaction.atomic``."""
    program = f"""
import django
from django.conf import settings
settings.configure(DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {str(tmp_path / "d")!r}}}}})
django.setup()
import sqlalchemy
from django.db import connection, transaction
from millstream import outbox
engine = sqlalchemy.create_engine("sqlite:///{tmp_path}/d")
outbox.create(engine)
with transaction.atomic():
    outbox.add(connection, "orders", {{"n": 1}})
try:
    with transaction.atomic():
        outbox.add(connection, "orders", {{"n": 2}})
        raise KeyError
except KeyError:
    pass
with engine.connect() as own:
    print([(row.stream, row.fields) for row in own.execute(sqlalchemy.select(outbox.table))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[('orders', b'1:n1:1')]", done.stderr


MEMORY = sqlalchemy.create_engine("sqlite://")
WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "an engine": (lambda _: outbox.add(MEMORY, "s", {"a": 1}), UsageError, "engine.begin"),
    "no connection": (lambda _: outbox.add("s", "s", {"a": 1}), UsageError, "connection of your transaction"),
    "no stream": (lambda one: outbox.add(one, "", {"a": 1}), ConfigError, "stream=''"),
    "half a letter": (lambda one: outbox.add(one, "\ud800", {"a": 1}), ConfigError, "stream="),
    "NUL": (lambda one: outbox.add(one, "a\0", {"a": 1}), ConfigError, "without NUL"),
    "bytes": (
        lambda one: outbox.add(one, b"s", {"a": 1}),
        ConfigError,
        "it must be text of 1 to 500 characters without NUL",
    ),  # type: ignore[arg-type] # as without a type checker
    "too long": (lambda one: outbox.add(one, "s" * 501, {"a": 1}), ConfigError, "1 to 500"),
    "a key": (lambda one: outbox.add(one, "s", {"a": 1}, key=""), ConfigError, "key=''"),
    "a delay": (lambda one: outbox.add(one, "s", {"a": 1}, delay="soon"), ConfigError, "delay"),
    "headers": (lambda one: outbox.add(one, "s", {"a": 1}, headers=7), ConfigError, "headers"),  # type: ignore[arg-type] # as above
    "no form": (lambda one: outbox.add(one, "s", {"a": object}), PayloadError, "a"),
    "too many fields": (
        lambda one: outbox.add(one, "s", dict.fromkeys(map(str, range(4_000)), 1)),
        PayloadError,
        "3750",
    ),
    "a URL": (lambda _: App().outbox("sqlite://"), ConfigError, "create_engine"),
    "another object": (lambda _: App().outbox(None), ConfigError, "create_engine"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_refused_in_the_transaction(case: str) -> None:
    """Wrong use of the outbox is an error at the call, inside the transaction, and inserts nothing."""
    call, kind, words = WRONG[case]
    connection = sqlite3.connect(":memory:")
    outbox.create(MEMORY)
    with pytest.raises(kind, match=words):
        call(connection)
    connection.close()


def test_a_missing_table_is_named(tmp_path: Any) -> None:
    """A missing outbox table is an error that names the command for its creation."""
    (tmp_path / "empty.py").write_text(
        f"import sqlalchemy\nengine = sqlalchemy.create_engine('sqlite:///{tmp_path}/e')\n"
    )
    done = CliRunner().invoke(main, ["outbox", "ls", "empty:engine", "--app-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert "millstream outbox create" in done.output


def test_the_page_of_the_outbox_runs_as_printed(server: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """The program and commands on the outbox page turn an order into an entry."""
    page = "docs/worker/outbox.md"
    (tmp_path / "shop.py").write_text(block("python", "# shop.py", page=page))
    reader = Reader(tmp_path, server.url)
    create, relay = block("sh", "millstream outbox create", page=page).splitlines()[1:]
    reader.types(create)
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE bought (item TEXT)")
    connection.close()
    with reader.starts(relay, "relay.log"):
        reader.types("python -c 'import shop; shop.order(\"tea\")'")
        eventually(lambda: client.xlen("orders") == 1)
    assert "No row was set aside" in reader.types(block("sh", "millstream outbox ls", page=page).strip())
    rows: Any = client.xrange("orders")
    assert [fields for _, fields in rows] == [{"item": "tea"}]
