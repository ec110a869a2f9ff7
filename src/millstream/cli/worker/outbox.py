"""``millstream outbox``: run the relay of a SQL database's outbox, create its table, and list unpublished rows."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import click
from sqlalchemy import Engine

from millstream.cli.shared.output import Column, Output, Table, exits, output_option, url_option
from millstream.cli.shared.signals import stopped_by_signal
from millstream.client.url import find_url
from millstream.texts import plural
from millstream.worker.child import find
from millstream.worker.handlers.sender import Sender
from millstream.worker.outbox import database, rows
from millstream.worker.outbox.relay import OutboxRelay

Command = TypeVar("Command", bound=Callable[..., Any])

_ROWS = (
    Column("id", "count"),
    Column("stream"),
    Column("added_ms", "time", "added", rank=2),
    Column("tries", "count"),
    Column("next_ms", "time", "next try", rank=1),
    Column("error", "prose"),
)


def _engine(command: Command) -> Command:
    """Add the argument that names the database."""
    command = click.option(
        "--app-dir", type=click.Path(exists=True, file_okay=False), help="Directory to search first for MODULE."
    )(command)
    return click.argument("target", metavar="MODULE:ENGINE")(command)


def _found(target: str, app_dir: str | None) -> Engine:
    return database.checked(find(target, Engine, "engine", app_dir))


@click.command()
@_engine
@url_option
def relay(target: str, app_dir: str | None, url: str | None) -> None:
    """Move committed rows of a database's outbox to their streams, until SIGTERM or Ctrl-C.

    MODULE:ENGINE names an engine of SQLAlchemy: shop:engine is `engine` in shop.py. Several relays may run: one
    works, and another takes over when that one ends.

    \b
    Example:
      millstream outbox relay shop:engine
    """
    with exits("millstream outbox relay", "outbox"):
        logging.basicConfig(format="%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s", level="INFO")
        asyncio.run(_relay(_found(target, app_dir), find_url(url)))


async def _relay(engine: Engine, url: str) -> None:
    sender, stop = Sender(url), stopped_by_signal()
    worker = OutboxRelay(engine, lambda: sender)
    await worker.start()
    await stop.wait()
    await worker.stop()
    await sender.close()
    Output().say(f"{plural(worker.moved, 'row')} moved, {worker.put_aside} put aside")


@click.command()
@_engine
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of rows shown.")
@output_option
def ls(target: str, app_dir: str | None, limit: int, form: str) -> None:
    """List the rows that could not be published: their errors, tries, and the time of the next try.

    A relay tries them again, after a minute at first. Remove a row with SQL, as in
    DELETE FROM millstream_outbox WHERE id = 7.

    \b
    Example:
      millstream outbox ls shop:engine
    """
    with exits("millstream outbox ls", "outbox"), database.readable_errors():
        count, found = database.aside(_found(target, app_dir), limit)
        output = Output(form)
        output.table(Table("rows", _ROWS, found, empty="No row was set aside."))
        output.say(f"{plural(count, 'row')} in the outbox.")


@click.command()
@_engine
def create(target: str, app_dir: str | None) -> None:
    """Create the table of an outbox, millstream_outbox, unless it exists.

    \b
    Example:
      millstream outbox create shop:engine
    """
    with exits("millstream outbox create", "outbox"), database.readable_errors():
        rows.create(_found(target, app_dir))
        Output().say(f"The table {rows.table.name} is there.")
