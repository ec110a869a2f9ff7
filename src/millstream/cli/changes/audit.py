"""``millstream audit``: list changes with user, time and origin, and undo them."""

from contextlib import aclosing

import click

from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import Column, Output, Table, show_options, subcommand
from millstream.cli.shared.time_options import TIME_HELP, instant
from millstream.client.line import Line
from millstream.ops.audit import AuditEntry, entries

_CHANGES = (
    Column("id", people="never"),
    Column("at_ms", "time", "when", rank=1),
    Column("change", rank=2),
    Column("action"),
    Column("stream"),
    Column("group", rank=3),
    Column("who", rank=4),
    Column("user", people="never"),
    Column("from", people="never"),
    Column("via", people="never"),
    Column("done", "count", rank=5),
    Column("moved", "count", people="never"),
    Column("line", "prose", rank=6),
    Column("commands", "prose", people="never"),
    Column("undo", "prose", rank=11),
    Column("undo_note", "prose", people="never"),
)
_TEXTS = ("action", "line", "commands")  # facts that may be an empty text; any other fact without a text is null


@subcommand()
@click.argument("stream", required=False)
@click.option("--since", metavar="TIME", help=f"Show changes made at this time or later: {TIME_HELP}.")
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of changes shown.")
@show_options
def ls(stream: str | None, since: str | None, limit: int, url: str | None, form: str) -> None:
    """List changes, the newest first: of all streams, or of STREAM.

    \b
    Examples:
      millstream audit ls
      millstream audit ls orders --since 1h
      millstream audit ls -o jsonl | jq -r '[.who, .line] | @tsv'
    """
    since_ms = instant("--since", since) or 0
    found = ask(url, lambda line: _entries(line, stream, since_ms, limit + 1))
    output = Output(form)
    output.table(Table("changes", _CHANGES, map(_row, found[:limit]), empty="No changes."))
    if len(found) > limit:
        output.say(f"There are more; use --limit {limit * 10}.")


async def _entries(line: Line, stream: str | None, since_ms: int, limit: int) -> list[AuditEntry]:
    """Return changes, the newest first."""
    found: list[AuditEntry] = []
    async with aclosing(entries(line, since_ms=since_ms)) as changes:
        async for one in changes:
            if stream in {None, one.stream}:
                found.append(one)
            if len(found) == limit:
                break
    return found


def _row(one: AuditEntry) -> dict[str, object]:
    moved = {"at_ms": int(one.id.partition("-")[0]), "from": one.place, "undo_note": one.note}
    found = {name: moved.get(name, getattr(one, name, "")) for name in (column.name for column in _CHANGES)}
    return {name: None if value == "" and name not in _TEXTS else value for name, value in found.items()}
