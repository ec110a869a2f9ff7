"""``millstream stream get``: show one whole entry, and its state in each group."""

import sys
from collections.abc import Sequence

import click

from millstream.cli.entries.choosing import choice_of, decoding_option
from millstream.cli.entries.shown import fields_table
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import Column, Output, Table, show_options, subcommand
from millstream.errors import UsageError
from millstream.ops.asking import NotReadableError
from millstream.ops.entries.reading import find
from millstream.ops.entries.status import EntryFound
from millstream.ops.parameters import entry_id
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.streams.partitioned import each_part
from millstream.ops.words import EntryView, command_words, shell_line

_HEADERS = (Column("name"), Column("value", "prose"))
_GROUPS = (
    Column("group"),
    Column("state"),
    Column("consumer"),
    Column("idle_ms", "span", "idle for"),
    Column("due_in_ms", "span", "due in"),
    Column("deliveries", "count"),
    Column("fatal", rank=1),
)
_STATES = {"undelivered": "not delivered yet", "pending": "pending", "passed": "acknowledged, or passed over"}


@subcommand()
@click.argument("stream")
@click.argument("id", metavar="ID")
@decoding_option
@click.option("--full", is_flag=True, help="Do not truncate long values on a terminal.")
@show_options
def get(stream: str, id: str, decoding: str, full: bool, url: str | None, form: str) -> None:  # noqa: A002 - click's argument
    """Show the entry ID of STREAM in full, with decoded values, and its state in each group.

    In a group the entry is not delivered yet, pending (with consumer, idle time and number of deliveries), or neither.
    Neither means acknowledged, or the group was set to a position after it. A server does not distinguish these two.
    An entry removed from the stream is shown while a group has it pending.

    \b
    Examples:
      millstream stream get orders 1763721600000-0
      millstream stream get orders 1763721600000-0 -o json | jq .groups
      millstream stream get orders 1763721600000-0 --as hex
    """
    whole = entry_id(id)
    each = ask(url, lambda line: each_part(line, stream, lambda key: find(line, key, whole)))
    has = [one for one in each if one.entry is not None or one.pending]
    if len(has) > 1:
        raise UsageError(f"{whole} is ambiguous: {has[0].stream!r} and {has[1].stream!r} have it. Name the partition.")
    if not has:
        gaps = shell_line(command_words("stream gaps", stream))
        raise NotReadableError(
            f"the stream {stream!r} has no entry {whole}; `{gaps}` shows what was deleted or trimmed"
        )
    found = has[0]
    cut = None if full or form != "table" or not sys.stdout.isatty() else 2000
    output = Output(form)
    payload = choice_of(decoding).payload(found.entry or EntryView(stream, whole, ()))
    _show(output, found, payload, cut)
    if found.entry is None:
        output.say("The entry is gone from the stream (deleted or trimmed) and still pending.")
    if found.refused is not None:
        output.say(f"The groups are not known: {found.refused}")


def _show(output: Output, found: EntryFound, payload: EntryPayload, cut: int | None) -> None:
    """Show the facts, the fields, the headers and the groups."""
    facts: dict[str, object] = {
        "stream": found.stream,
        "id": found.id,
        "added_ms": int(found.id.partition("-")[0]),
        "gone": found.entry is None,
        "size": None if found.entry is None else sum(len(name) + len(value) for name, value in found.entry.fields),
    }
    people = output.form == "table"
    tables = [
        fields_table(payload, output.form, cut),
        Table("headers", _HEADERS, list(payload.headers.items())),
        Table("groups", _GROUPS, _groups(found, people=people), empty="No groups."),
    ]
    if people and found.entry is not None:
        del facts["gone"]
    output.report(facts, tables, (Column("added_ms", "time", "added"), Column("size", "bytes")))


def _groups(found: EntryFound, *, people: bool) -> Sequence[Sequence[object]]:
    """Return a row for each group. For people it has "no consumer", and no deliveries for a fatal entry."""
    rows: list[tuple[object, ...]] = []
    for one in found.standings:
        held = one.pending
        if held is None:
            rows.append((one.group, _STATES[one.state] if people else one.state, None, None, None, None, None))
            continue
        owner = "no consumer" if people and held.unowned else held.consumer
        deliveries = None if people and held.fatal else held.deliveries
        rows.append((one.group, one.state, owner, held.idle_ms, held.due_in_ms, deliveries, held.fatal))
    return rows
