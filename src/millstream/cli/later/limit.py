"""``millstream limit ls``."""

import click

from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.output import Column, Output, Table, subcommand
from millstream.ops.limits.reading import LimitsSeen, read_limits
from millstream.ops.limits.status import limit_facts

_LIMITS = (
    Column("limit"),
    Column("rate"),
    Column("declared", people="never"),
    Column("set", rank=1),
    Column("running"),
    Column("by_key", title="by key", rank=2),
    Column("in_use", "count", "in use"),
    Column("granted", "count", "used", rank=3),
    Column("refused", "count", rank=6),
    Column("waiting", "count"),
    Column("workers", "count", rank=4),
    Column("handlers", rank=5),
    Column("problem", "prose", people="filled"),
)


@subcommand(context_settings={"max_content_width": 110})
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of limits shown.")
@watch_options
def ls(limit: int, watch: float | None, url: str | None, form: str) -> None:
    """List the limits that all workers share, with the use that living workers reported in the last five seconds.

    `set`: the rate was set at run time. `in use`: slots of entries that run. `used` and `refused`: permits since the
    start of these workers. `waiting`: entries in hand or put aside until a permit is there.

    \b
    Examples:
      millstream limit ls
      millstream limit ls -o json | jq '.[] | select(.waiting > 0)'
    """
    look(url, watch, lambda line: read_limits(line, limit), lambda seen, _: _show(seen, form), form)


def _show(seen: LimitsSeen, form: str) -> None:
    rows = [limit_facts(one) for one in seen.limits]
    output = Output(form)
    output.table(Table("limits", _LIMITS, rows, "No limits."))
    if seen.found > len(rows):
        output.say(f"{len(rows)} shown of {seen.found}; --limit {seen.found} shows all.")
