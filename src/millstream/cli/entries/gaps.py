"""``millstream stream gaps``: show the missing entries that the server's data reveals."""

import click

from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import Column, Output, Table, show_options, subcommand
from millstream.ops.entries.reading import read_gaps
from millstream.ops.entries.status import StreamGaps

_GAPS = (Column("after"), Column("before"), Column("missing", "count", "ids skipped"), Column("evidence", "prose"))
_PENDING = (Column("group"), Column("entries", "count", "pending and gone"), Column("first"), Column("last"))


@subcommand()
@click.argument("stream")
@click.option("--scan", type=click.IntRange(1), default=10_000, help="Maximum number of entries to scan, oldest first.")
@show_options
def gaps(stream: str, scan: int, url: str | None, form: str) -> None:
    """Show gaps in STREAM: the number of trimmed or deleted entries, and their positions if known.

    A server keeps the number of entries ever added (Redis 7.0 and newer) and the highest deleted id, but no other
    deleted ids. Some gaps show as non-consecutive ids of one millisecond (if the server generated them), others as
    entries that a group still has pending.

    \b
    Examples:
      millstream stream gaps orders
      millstream stream gaps orders --scan 1000000 -o json | jq .missing
    """
    _show(Output(form), ask(url, lambda line: read_gaps(line, stream, scan=scan)))


def _show(output: Output, found: StreamGaps) -> None:
    one = found.stream
    facts: dict[str, object] = {
        "stream": one.key,
        "length": one.length,
        "entries_added": one.entries_added,
        "missing": found.missing,
        "first_entry": one.first_entry_id,
        "last_entry": one.last_entry_id,
        "last_id": one.last_id,
        "max_deleted_id": one.max_deleted_id,
        "deleted_inside": found.inside,
        "looked_at": found.looked_at,
        "whole": found.whole,
        "says": found.says,
    }
    if output.form == "table":
        del facts["whole"]
    titles = (
        Column("entries_added", "count", "ever added"),
        Column("max_deleted_id", title="highest deleted id"),
        Column("deleted_inside", title="deleted after the oldest"),
    )
    output.report(facts, [Table("gaps", _GAPS, found.gaps), Table("pending", _PENDING, found.pending)], titles)
    if not found.whole:
        output.say(f"There are more entries than were scanned; --scan {one.length} scans all.")
