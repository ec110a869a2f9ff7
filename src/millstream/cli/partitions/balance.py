"""``millstream stream balance``."""

import click

from millstream.cli.console.shown import LOADS, load, partition_table
from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.output import Column, Output, Table, subcommand
from millstream.ops.streams.balance import StreamBalance, read_balance
from millstream.ops.streams.status import refused_lines

_NODES = (Column("node"), Column("partitions", "count"), *LOADS)
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
    nodes = [[node, len(there), *load(there, total)] for node, there in seen.nodes.items()]
    moves = [[one.slot, one.source, one.target, ", ".join(one.keys)] for one in seen.moves()]
    output = Output(form)
    tables = [partition_table(seen)]
    tables += [Table("nodes", _NODES, nodes, empty="All partitions are on one server.")]
    tables += [Table("moves", _MOVES, moves, empty="No move of a slot would make the nodes more even.")]
    output.report(facts, tables)
    for line in refused_lines(seen.refused):
        output.say(line)
