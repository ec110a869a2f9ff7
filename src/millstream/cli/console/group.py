"""``millstream group ls`` and ``show``."""

import shlex
from dataclasses import replace

import click

from millstream.cli.console.shown import GROUPS, RATES, consumer_table, group_row, owner_table
from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.output import Column, Output, Table, subcommand
from millstream.client.line import Line
from millstream.ops.findings.advice import Advice, Case, advise
from millstream.ops.findings.reading import read_case
from millstream.ops.groups.owners import PartitionOwner, partition_owners
from millstream.ops.groups.status import rates
from millstream.ops.streams.partitioned import overview_by_stream, parts_seen, read_stream
from millstream.ops.streams.reading import overview
from millstream.ops.streams.status import GroupStatus, StreamsSeen, refused_lines

_ADVICE = (
    Column("level"),
    Column("code", people="never"),
    Column("consumer", people="never"),
    Column("says", "prose", "problem"),
    Column("remedy", "prose", "remedy"),
    Column("raw", people="never"),
    Column("evidence", people="never"),
)
_SORTS = ("lag", "age", "pending", "name")


@subcommand()
@click.argument("stream", required=False)
@click.option("--sort", type=click.Choice(_SORTS), default="lag", help="Sort order: by name, or the worst value first.")
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of groups shown.")
@click.option("--all", "parts", is_flag=True, help="Show each partition of a partitioned stream. Default: their sum.")
@watch_options
def ls(  # noqa: PLR0917 - click passes every option by name
    stream: str | None, sort: str, limit: int, parts: bool, watch: float | None, url: str | None, form: str
) -> None:
    """List the groups of all streams, or of STREAM.

    `lag` is the number of entries that the group has not received yet. If the server cannot report it, it is
    `unknown`, with its minimum and maximum. `behind by` is the age of the oldest such entry, `oldest pending` that of
    the oldest pending entry. `unowned` is the number of pending entries without a consumer.

    \b
    Examples:
      millstream group ls
      millstream group ls orders --watch                   with rates, and the time until the lag is 0
      millstream group ls orders --all                     each partition of a partitioned stream
      millstream group ls --sort age -o json | jq '.[0]'
    """

    async def work(line: Line) -> StreamsSeen:
        if stream is None:
            return await (overview(line) if parts else overview_by_stream(line))
        return await (read_stream(line, stream) if not parts else parts_seen(line, stream))

    def show(seen: StreamsSeen, before: StreamsSeen | None) -> None:
        _list(seen, before, sort, limit, form, many=stream is None or parts)

    look(url, watch, work, show, form)


def _list(seen: StreamsSeen, before: StreamsSeen | None, sort: str, limit: int, form: str, *, many: bool) -> None:
    """Show the groups once, for ``ls``."""
    rate = rates(before, seen)[1] if before is not None else {}
    every = [group for one in seen.streams for group in one.groups]
    found = sorted(every, key=lambda group: _rank(group, sort, seen.at_ms))[:limit]
    hidden = (*(() if many else ("stream",)), *(RATES if before is None else ()))
    shown = [group_row(group, seen.at_ms, rate.get((group.stream, group.name)), form) for group in found]
    output = Output(form)
    output.table(Table("groups", GROUPS, shown, "No groups.", hidden))
    for one in seen.streams:
        if "groups" in one.missing:
            output.say(f"{one.key}: its groups are not known: {one.missing['groups']}")
    for line in refused_lines(seen.refused):
        output.say(line)
    if len(every) > limit:
        output.say(f"There are {len(every)}; --limit {len(every)} shows all.")


def _rank(group: GroupStatus, sort: str, now_ms: int) -> tuple[int, str, str]:
    """Return the sort key of a group."""
    by = {"lag": group.lag.worst, "age": group.oldest_undelivered.age(now_ms) or 0, "pending": group.pending, "name": 0}
    return -by[sort], group.stream, group.name


@subcommand()
@click.argument("stream")
@click.argument("group")
@click.option(
    "--count", type=click.IntRange(0), default=1000, help="Maximum number of entries to count if the lag is unknown."
)
@watch_options
def show(stream: str, group: str, count: int, watch: float | None, url: str | None, form: str) -> None:
    """Show GROUP of STREAM: its position, its lag or the reason why that is unknown, its consumers, and advice.

    If the lag is unknown, the command reads and counts up to --count undelivered entries. It also shows the command
    that repairs the server's counter, if there is one. Each piece of advice has its facts and a command
    line to run. For a partitioned stream the figures are sums, and a table lists the partitions with their owners.

    \b
    Examples:
      millstream group show orders billing
      millstream group show orders billing --watch
      millstream group show orders billing -o json | jq '.advice[].remedy'
    """

    async def work(line: Line) -> tuple[Case, list[PartitionOwner]]:
        parts = await partition_owners(line, stream, group, if_any=True)
        return await read_case(line, stream, group, count=count), parts

    look(url, watch, work, lambda seen, before: _whole(seen, None if before is None else before[0], form), form)


def _whole(found: tuple[Case, list[PartitionOwner]], before: Case | None, form: str) -> None:
    """Show one group once, for ``show``."""
    case, parts = found
    seen, lag = case.seen, case.seen.group.lag
    rate = rates(before.seen.streams, seen.streams)[1] if before is not None else {}
    case = replace(case, rate=rate.get((seen.group.stream, seen.group.name)))
    facts = dict(group_row(seen.group, seen.at_ms, case.rate, form))
    facts |= {
        "oldest_undelivered_id": seen.group.oldest_undelivered.id,
        "oldest_pending_id": seen.group.oldest_pending.id,
        "lag_why": lag.why or None,
        "lag_repair": None if lag.repair is None else shlex.join(lag.repair),
        "lag_repair_note": lag.repair_note or None,
    }
    if form != "table":
        del facts["consumers"]  # the table of consumers has the same name
    else:
        hidden = {"lag_at_least", "lag_at_most", "lag_unknown"} | (set(RATES) if before is None else set())
        hidden |= {name for name in ("lag_why", "lag_repair", "lag_repair_note") if facts[name] is None}
        facts = {name: value for name, value in facts.items() if name not in hidden}
    advice = Table("advice", _ADVICE, [_advice_row(one, form) for one in advise(case)])
    owners = [owner_table("partitions", parts)] if parts else []
    Output(form).report(facts, [consumer_table(seen.consumers, form), *owners, advice], GROUPS)


def _advice_row(one: Advice, form: str) -> dict[str, object]:
    remedy, raw = None if one.remedy is None else shlex.join(one.remedy), [shlex.join(words) for words in one.raw]
    if form == "table":
        remedy = remedy or "; ".join(raw) or None
    facts = {"level": one.level, "code": one.code, "consumer": one.consumer, "says": one.says}
    return facts | {"remedy": remedy, "raw": raw, "evidence": dict(one.evidence)}
