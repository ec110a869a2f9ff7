"""``millstream stream ls`` and ``show``."""

from typing import TypeAlias

import click

from millstream.cli.console.shown import GROUPS, RATES, group_row, lag_text, partition_table
from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.output import Column, Output, Table, show_options, subcommand
from millstream.client.line import Line
from millstream.client.partitions.layout import HIGHEST_ID
from millstream.ops.groups.status import GroupRate, rates
from millstream.ops.server.retention import rule_text
from millstream.ops.streams.balance import StreamBalance, read_balance
from millstream.ops.streams.partitioned import overview_by_stream, read_partitioned
from millstream.ops.streams.reading import overview, read_one
from millstream.ops.streams.status import StreamsSeen, StreamStatus, refused_lines, search, stream_facts
from millstream.ops.streams.storage import StreamStorage, read_storage, storage_facts
from millstream.ops.words import milliseconds

_STREAMS = (
    Column("key"),
    Column("partitions", "count", rank=9, people="filled"),
    Column("length", "count"),
    Column("groups", "count", rank=3),
    Column("lag", "count", "worst lag"),
    Column("lag_at_least", "count", people="never"),
    Column("lag_at_most", "count", people="never"),
    Column("undelivered_age_ms", "span", "behind by", rank=1),
    Column("pending", "count", rank=2),
    Column("pending_age_ms", "span", "oldest pending", rank=4),
    Column("unowned", "count", rank=5),
    Column("last_entry_ms", "time", "last entry", rank=6),
    Column("entries_added", "count", "ever added", rank=7),
    Column("added_per_second", "count", "added/s", rank=8),
)
_TIMES = (Column("first_entry_ms", "time", "first entry"), Column("last_entry_ms", "time", "last entry"))
_SIZES = (
    Column("memory_bytes", "bytes", "memory usage"),
    Column("hot_bytes", "bytes", "bytes in memory"),
    Column("cold_bytes", "bytes", "bytes in packs"),
)
_WHOLE = (
    *("key", "length", "entries_added", "last_id", "first_entry", "first_entry_ms", "last_entry", "last_entry_ms"),
    *("max_deleted_id", "added_per_second", "missing"),
)
_HITS = (Column("kind"), Column("stream"), Column("group"), Column("consumer"))
_SORTS = ("key", "lag", "age", "pending", "length")


@subcommand()
@click.argument("pattern", required=False)
@click.option("--sort", type=click.Choice(_SORTS), default="key", help="Sort order: by key, or the worst value first.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of streams shown. Default: all.")
@click.option("--all", "parts", is_flag=True, help="Show each partition of a partitioned stream. Default: their sum.")
@watch_options
def ls(
    *, pattern: str | None, sort: str, limit: int | None, parts: bool, watch: float | None, url: str | None, form: str
) -> None:
    """List the streams of a server, or those whose key matches PATTERN (as in SCAN MATCH).

    A partitioned stream is one row with the sums of its partitions. `worst lag` is the largest number of entries that a
    group has not received yet. If the server cannot report it, it is `unknown`, with its minimum and maximum;
    `millstream group show` explains it. `behind by` is the age of the oldest entry that a group has not received.

    \b
    Examples:
      millstream stream ls
      millstream stream ls 'orders*' --sort lag --limit 20
      millstream stream ls --all                           each partition of a partitioned stream
      millstream stream ls --watch                         every 2 seconds, with entries added a second
      millstream stream ls -o json | jq '.[] | select(.lag == null) | .key'
    """

    async def work(line: Line) -> StreamsSeen:
        return await (overview if parts else overview_by_stream)(line, pattern, limit=limit if sort == "key" else None)

    def show(seen: StreamsSeen, before: StreamsSeen | None) -> None:
        _list(seen, before, sort, limit, form)

    look(url, watch, work, show, form)


@subcommand()
@click.argument("text")
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of names.")
@show_options
def find(text: str, limit: int, url: str | None, form: str) -> None:
    """Find streams, groups and consumers with TEXT in their names, ignoring case.

    The best match comes first. The search covers only consumers that hold entries.

    \b
    Examples:
      millstream stream find billing
      millstream stream find web-1 -o json | jq -r '.[] | select(.kind == "consumer") | .group'
    """

    async def work(line: Line) -> StreamsSeen:
        return await overview(line)

    def show(seen: StreamsSeen, _: object) -> None:
        hits = search(seen, text)
        rows = [(hit.kind, hit.stream, hit.group, hit.consumer) for hit in hits[:limit]]
        output = Output(form)
        output.table(Table("hits", _HITS, rows, empty="No name contains this text."))
        if len(hits) > limit:
            output.say(
                f"{limit} of {len(hits)} names {'is' if limit == 1 else 'are'} shown; --limit {len(hits)} shows all"
            )

    look(url, None, work, show, form)


def _list(seen: StreamsSeen, before: StreamsSeen | None, sort: str, limit: int | None, form: str) -> None:
    """Show the streams once, for ``ls``."""
    added: dict[str, float] = {}
    if before is not None:
        added = rates(before, seen)[0]
    found = sorted(seen.streams, key=lambda one: _rank(one, sort, seen.at_ms))[:limit]
    hidden = ("added_per_second",) if before is None else ()
    rows = [_row(one, seen.at_ms, added.get(one.key), form) for one in found]
    output = Output(form)
    output.table(Table("streams", _STREAMS, rows, "No streams.", hidden))
    for line in refused_lines(seen.refused):
        output.say(line)
    if seen.more or len(seen.streams) > len(found):
        output.say("There are more; leave out --limit to show all.")


def _rank(one: StreamStatus, sort: str, now_ms: int) -> tuple[int, str]:
    """Return the sort key of a stream."""
    worst = one.worst_lag
    by = {
        "key": 0,
        "lag": -1 if worst is None else worst.worst,
        "age": one.oldest_undelivered.age(now_ms) or 0,
        "pending": one.pending,
        "length": one.length,
    }
    return -by[sort], one.key


def _row(one: StreamStatus, now_ms: int, added: float | None, form: str) -> dict[str, object]:
    """Return a stream as a table row."""
    lag = one.worst_lag
    return {**stream_facts(one, now_ms, added), "lag": None if lag is None else lag_text(lag, form)}


@subcommand()
@click.argument("stream")
@watch_options
def show(stream: str, watch: float | None, url: str | None, form: str) -> None:
    """Show STREAM: its ids and counts, reasons for the unknown ones, and its groups.

    A partitioned stream has the sums, the skew, and each partition with its share of the entries, lag and bytes.

    \b
    Examples:
      millstream stream show orders
      millstream stream show orders --watch 5
      millstream stream show orders -o json | jq .groups
    """

    async def work(line: Line) -> _Found:
        whole = await read_partitioned(line, stream)
        if whole is None:
            return await read_one(line, stream), await read_storage(line, stream), None
        stored = await read_storage(line, stream, [one.key for one in whole.parts.streams], whole.layout.keys)
        return whole.seen, stored, await read_balance(line, stream)

    look(url, watch, work, lambda seen, before: _whole(seen, before and before[0], form), form)


_Found: TypeAlias = tuple[StreamsSeen, StreamStorage, StreamBalance | None]


def _whole(found: _Found, before: StreamsSeen | None, form: str) -> None:
    """Show one stream once, for ``show``."""
    seen, stored, balance = found
    one = seen.streams[0]
    added, groups = rates(before, seen) if before is not None else ({}, dict[tuple[str, str], "GroupRate"]())
    known = stream_facts(one, seen.at_ms, added.get(one.key))
    known |= {"last_id": one.last_id}
    known |= {"first_entry_ms": None if one.first_entry_id is None else milliseconds(one.first_entry_id)}
    facts = {name: known[name] for name in _WHOLE} | storage_facts(stored)
    if balance is not None:
        facts |= {"partitions_now": one.partitions, "skew": balance.skew}
    if form == "table":
        facts["retention"] = None if stored.rule is None else rule_text(stored.rule, holds=stored.holds)
        hidden = {"first_entry", "last_entry", "missing"} | ({"added_per_second"} if before is None else set())
        hidden |= {name for name in ("memory_bytes", "retention") if facts[name] is None}
        hidden |= set() if facts["cold_bytes"] else {"hot_bytes", "cold_bytes"}
        facts = {name: value for name, value in facts.items() if name not in hidden}
    rows = [group_row(group, seen.at_ms, groups.get((one.key, group.name)), form) for group in one.groups]
    table = Table("groups", GROUPS, rows, "No groups.", ("stream", *RATES))
    output = Output(form)
    output.report(facts, [table, *([] if balance is None else [partition_table(balance)])], (*_TIMES, *_SIZES))
    for name, why in one.missing.items():
        output.say(f"{name} is not known: {why}")
    for line in () if balance is None else refused_lines(balance.refused):
        output.say(line)
    if one.last_id == HIGHEST_ID and balance is None:
        output.say("It is sealed: no entry can be added. `millstream stream balance` shows a partitioned stream.")
