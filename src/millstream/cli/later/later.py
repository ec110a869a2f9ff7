"""``millstream later ls`` and ``show``."""

import click

from millstream.cli.console.watching import look, watch_options
from millstream.cli.entries.choosing import choice_of, decoding_option
from millstream.cli.entries.shown import fields_table
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import Column, Output, Table, exits, show_options
from millstream.client.line import Line
from millstream.ops.asking import NotReadableError
from millstream.ops.later import status
from millstream.ops.later.reading import counts_by_stream, find_schedule, read_all_schedules, scheduled_streams
from millstream.ops.payloads.choice import EntryChoice
from millstream.ops.payloads.shown import in_brief
from millstream.ops.words import command_words, shell_line

_STREAMS = (
    Column("stream"),
    Column("waiting", "count"),
    Column("first_ms", "time", "first due", rank=2),
    Column("due_in_ms", "span", "due in", rank=1),
    Column("overdue_ms", "span", "overdue", rank=2),
    Column("problem", "prose", rank=3, people="filled"),
)
_SCHEDULES = (
    Column("stream"),
    Column("id"),
    Column("at_ms", "time", "at", people="never"),
    Column("due_in_ms", "span", "due in"),
    Column("overdue_ms", "span", "overdue"),
    Column("expires_ms", "time", "expires", rank=3),
    Column("size", "bytes", people="never"),
    Column("fields", "prose"),
    Column("problem", "prose", rank=1, people="filled"),
)
_SHOWN = 10  # fields of an entry that a list shows


@click.command()
@click.argument("stream", required=False)
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of schedules shown.")
@decoding_option
@watch_options
def ls(stream: str | None, limit: int, decoding: str, watch: float | None, url: str | None, form: str) -> None:
    """List the schedules of STREAM, the first due first; without STREAM, the streams that have some.

    The name of a partitioned stream includes all its partitions. `overdue` is the time by which an entry is late. A
    worker drops an entry after its time `expires`. Contents of more than 16 KiB are not read; `show` shows them.

    \b
    Examples:
      millstream later ls
      millstream later ls bills --limit 20
      millstream later ls bills -o json | jq '.[] | select(.overdue_ms > 60000)'
    """
    with exits("millstream later ls"):
        if stream is None:
            look(url, watch, _streams, lambda found, _: _show_streams(found, form), form)
            return
        choice, key = choice_of(decoding), stream

        async def work(line: Line) -> status.StreamSchedules:
            return await read_all_schedules(line, key, limit)

        look(url, watch, work, lambda seen, _: _show(seen, choice, form), form)


async def _streams(line: Line) -> list[status.StreamSchedules]:
    return status.latest_first(await counts_by_stream(line, await scheduled_streams(line, search=True)))


def _show_streams(found: list[status.StreamSchedules], form: str) -> None:
    rows = [status.stream_schedules_facts(one) for one in found]
    Output(form).table(Table("streams", _STREAMS, rows, "No schedules."))


def _show(seen: status.StreamSchedules, choice: EntryChoice, form: str) -> None:
    rows = [_row(one, seen.at_ms, choice, form) for one in seen.schedules]
    in_parts = any(one.stream != seen.stream for one in seen.schedules)
    output = Output(form)
    output.table(Table("schedules", _SCHEDULES, rows, "No schedules wait.", () if in_parts else ("stream",)))
    if seen.total > len(rows):
        output.say(f"{len(rows)} shown of {seen.total} that wait; --limit {seen.total} shows all.")


def _row(one: status.ScheduleStatus, now_ms: int, choice: EntryChoice, form: str) -> dict[str, object]:
    payload = choice.payload(one.view)
    facts = status.schedule_facts(one, now_ms, payload)
    if form == "table":
        brief = in_brief(payload)
        texts = [f"{field.name}={field.text}{'...' if field.cut else ''}" for field in brief[:_SHOWN]]
        facts["fields"] = " ".join(texts) + (f" and {len(brief) - _SHOWN} more" if len(brief) > _SHOWN else "") or None
    return facts


@click.command()
@click.argument("stream")
@click.argument("schedule", metavar="ID")
@decoding_option
@show_options
def show(stream: str, schedule: str, decoding: str, url: str | None, form: str) -> None:
    """Show the schedule ID of STREAM in full: its time, and its decoded entry.

    \b
    Examples:
      millstream later show bills xmas-7
      millstream later show bills xmas-7 -o json | jq .fields
    """
    with exits("millstream later show"):
        seen = ask(url, lambda line: find_schedule(line, stream, schedule))
        if seen is None:
            lists = shell_line(command_words("later ls", stream))
            raise NotReadableError(f"no schedule {schedule!r} waits in {stream!r}; `{lists}` lists those that wait")
        one = seen.schedules[0]
        payload = choice_of(decoding).payload(one.view)
        facts = status.schedule_facts(one, seen.at_ms, payload) | {"trim": " ".join(one.trim) or None}
        del facts["fields"]
        if form == "table":
            facts = {name: value for name, value in facts.items() if value is not None}
        Output(form).report(facts, [fields_table(payload, form)], _SCHEDULES)
