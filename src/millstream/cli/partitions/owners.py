"""``millstream group owners``."""

import click

from millstream.cli.console.shown import owner_table
from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.output import Output, subcommand
from millstream.ops.groups.owners import PartitionOwner, partition_owners
from millstream.texts import plural


@subcommand(context_settings={"max_content_width": 110})
@click.argument("stream")
@click.argument("group")
@watch_options
def owners(stream: str, group: str, watch: float | None, url: str | None, form: str) -> None:
    """List the partitions of STREAM with the owner of each in GROUP.

    `owner` is a consumer of GROUP, which `millstream worker ls` shows with its process. `fence` grows with each owner.
    A partition without an owner for longer than `min_idle_time` has no worker that takes it.

    \b
    Examples:
      millstream group owners orders billing
      millstream group owners orders billing --watch
      millstream group owners orders billing -o json | jq '[.[] | select(.owner == null)]'
    """

    def show(found: list[PartitionOwner], _: object) -> None:
        output = Output(form)
        output.table(owner_table("owners", found))
        if free := sum(one.owner is None for one in found):
            output.say(f"{free} of {plural(len(found), 'partition')} {'has' if free == 1 else 'have'} no owner.")

    look(url, watch, lambda line: partition_owners(line, stream, group), show, form)
