"""``millstream schedule ls`` and ``show``."""

import click

from millstream.cli.console.watching import look, watch_options
from millstream.cli.entries.choosing import choice_of, decoding_option
from millstream.cli.entries.shown import fields_table
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import Column, Output, Table, show_options, subcommand
from millstream.ops.schedules.reading import named_recurring, read_recurring
from millstream.ops.schedules.status import MOST_MISSED, SchedulesSeen, entry_view, recurring_facts, table_facts

_SCHEDULES = (
    Column("schedule"),
    Column("stream", rank=4),
    Column("timetable"),
    Column("next_ms", "time", "next", rank=1),
    Column("placed_ms", "time", "last placed", rank=5),
    Column("late_ms", "span", "late by", rank=3),
    Column("missed", "count", rank=2),
    Column("paused"),
    Column("declared_by", title="declared by"),
    Column("declared_ms", "time", "seen", people="never"),
    Column("problem", "prose", people="filled"),
)
_OPTIONS = (
    Column("offset_ms", "span", "offset"),
    Column("every_ms", "span", "every"),
    Column("jitter_ms", "span", "jitter"),
    Column("grace_ms", "span", "grace"),
)
_TIMES = (Column("at_ms", "time", "next times"),)


@subcommand()
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of schedules shown.")
@watch_options
def ls(limit: int, watch: float | None, url: str | None, form: str) -> None:
    """List the recurring schedules: their times, delays and missed firings.

    `last placed` is the firing that waits, or that was added last. `late by` and `missed` are about firings that were
    due but not added: no worker ran, or none places this schedule. `declared by` is the code of workers, a call of
    `put`, or nobody if no worker declared it for three minutes.

    \b
    Examples:
      millstream schedule ls
      millstream schedule ls -o json | jq '.[] | select(.declared_by == "nobody")'
    """
    look(url, watch, lambda line: read_recurring(line, limit), lambda seen, _: _show(seen, form), form)


def _show(seen: SchedulesSeen, form: str) -> None:
    rows = [recurring_facts(one, seen.at_ms) for one in seen.schedules]
    output = Output(form)
    output.table(Table("schedules", _SCHEDULES, rows, "No schedules."))
    if any(row["missed"] == MOST_MISSED for row in rows):
        output.say(f"Missed firings are counted up to {MOST_MISSED}.")
    if seen.found > len(rows):
        output.say(f"{len(rows)} shown of {seen.found}; --limit {seen.found} shows all.")


@subcommand()
@click.argument("schedule", metavar="NAME")
@decoding_option
@show_options
def show(schedule: str, decoding: str, url: str | None, form: str) -> None:
    """Show the recurring schedule NAME: its timetable, its next times, and the entry that it adds.

    \b
    Examples:
      millstream schedule show nightly
      millstream schedule show nightly -o json | jq .times
    """
    one, now = ask(url, lambda line: named_recurring(line, schedule))
    facts = recurring_facts(one, now)
    times: list[tuple[int]] = []
    if one.table is not None:
        facts |= table_facts(one.table)
        times = [(at,) for at in one.ahead(now)]
    tables = [Table("times", _TIMES, times), fields_table(choice_of(decoding).payload(entry_view(one)), form)]
    if form == "table":
        facts = {name: value for name, value in facts.items() if value is not None}
    Output(form).report(facts, tables, (*_SCHEDULES, *_OPTIONS))
