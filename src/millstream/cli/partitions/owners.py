"""``millstream group owners``."""

import dataclasses

import click

from millstream.cli.console.watching import look, watch_option
from millstream.cli.shared.output import Column, Output, Table, exits, output_option, url_option
from millstream.ops.groups.owners import PartitionOwner, partition_owners
from millstream.texts import plural

_COLUMNS = (
    Column("partition", "count"),
    Column("owner"),
    Column("fence", "count"),
    Column("lease_ms", "span", "lease ends in", rank=2),
    Column("entries", "count", rank=3),
    Column("lag", "count"),
    Column("pending", "count"),
    Column("key", rank=4),
)


@click.command(context_settings={"max_content_width": 110})
@click.argument("stream")
@click.argument("group")
@watch_option
@url_option
@output_option
def owners(stream: str, group: str, watch: float | None, url: str | None, form: str) -> None:
    """List the partitions of STREAM and who owns each of them in GROUP.

    `owner` is a consumer of GROUP, which `millstream worker ls` shows with its process. `fence` grows with each owner.
    A partition without an owner for longer than `min_idle_time` has no worker that takes it.

    \b
    Examples:
      millstream group owners orders billing
      millstream group owners orders billing --watch
      millstream group owners orders billing -o json | jq '[.[] | select(.owner == null)]'
    """

    def show(found: list[PartitionOwner], _: object) -> None:
        rows = [{**dataclasses.asdict(one), "partition": one.number} for one in found]
        output = Output(form)
        output.table(Table("owners", _COLUMNS, rows))
        if free := sum(one.owner is None for one in found):
            output.say(f"{free} of {plural(len(found), 'partition')} {'has' if free == 1 else 'have'} no owner.")

    with exits("millstream group owners"):
        look(url, watch, lambda line: partition_owners(line, stream, group), show, form)
