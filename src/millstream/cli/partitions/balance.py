"""``millstream stream balance``."""

from collections.abc import Sequence

import click

from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.output import Column, Output, Table, subcommand
from millstream.ops.streams.balance import PartitionLoad, StreamBalance, read_balance
from millstream.ops.streams.status import refused_lines

_LOADS = (
    Column("entries", "count"),
    Column("share", title="share %"),
    Column("added", "count", "ever added", rank=2),
    Column("lag", "count", "worst lag"),
    Column("bytes", "bytes"),
)
_PARTITIONS = (Column("partition"), Column("node"), Column("state"), *_LOADS)
_NODES = (Column("node"), Column("partitions", "count"), *_LOADS)
_MOVES = (Column("slot"), Column("from"), Column("to"), Column("partitions"))


@subcommand(context_settings={"max_content_width": 110})
@click.argument("stream")
@watch_options
def balance(stream: str, watch: float | None, url: str | None, form: str) -> None:
    """Show the partitions of STREAM by node: shares of entries, lag, bytes, skew, and slot moves.

    `skew` is the largest partition over the mean, of the entries ever added to the partitions that take new ones: 1 is
    even. A key that has most entries cannot be split. `node_skew` is the same for the bytes of each cluster node.

    The moves of slots are suggestions, and this command makes none. A slot also moves the partitions of the same number
    of other streams.

    \b
    Examples:
      millstream stream balance orders
      millstream stream balance orders -o json | jq '.moves[].slot'
    """
    look(url, watch, lambda line: read_balance(line, stream), lambda seen, _: _show(seen, form), form)


def _show(seen: StreamBalance, form: str) -> None:
    facts = {"stream": seen.stream, "partitions_now": sum(one.current for one in seen.partitions)}
    facts |= {"skew": seen.skew, "node_skew": seen.node_skew}
    total = sum(one.entries for one in seen.partitions)
    partitions = [
        [one.key, one.node, "sealed" if one.sealed else "open", *_load([one], total)] for one in seen.partitions
    ]
    nodes = [[node, len(there), *_load(there, total)] for node, there in seen.nodes.items()]
    moves = [[one.slot, one.source, one.target, ", ".join(one.keys)] for one in seen.moves()]
    output = Output(form)
    tables = [Table("partitions", _PARTITIONS, partitions, empty="No partitions.")]
    tables += [Table("nodes", _NODES, nodes, empty="All partitions are on one server.")]
    tables += [Table("moves", _MOVES, moves, empty="No move of a slot would make the nodes more even.")]
    output.report(facts, tables)
    for line in refused_lines(seen.refused):
        output.say(line)


def _load(held: Sequence[PartitionLoad], total: int) -> list[object]:
    """Return the row of a partition: entries, share, entries ever added, largest lag, bytes."""
    entries = sum(one.entries for one in held)
    sizes = [one.bytes for one in held]
    size = None if None in sizes else sum(one or 0 for one in sizes)
    share = round(100 * entries / total, 1) if total else 0.0
    return [entries, share, sum(one.added for one in held), max((one.lag for one in held), default=0), size]
