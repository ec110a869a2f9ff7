"""``millstream consumer ls``."""

import click

from millstream.cli.console.shown import consumer_table
from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.output import Output, subcommand
from millstream.ops.streams.partitioned import all_consumers
from millstream.ops.streams.status import ConsumerStatus


@subcommand()
@click.argument("stream")
@click.argument("group")
@click.option("--sort", type=click.Choice(("pending", "idle", "name")), default="name", help="Order of the consumers.")
@click.option("--limit", type=click.IntRange(1), default=1000, help="Maximum number of consumers shown.")
@watch_options
def ls(  # noqa: PLR0917 - click passes every option by name
    stream: str, group: str, sort: str, limit: int, watch: float | None, url: str | None, form: str
) -> None:
    """List the consumers of GROUP of STREAM: entries they hold, and their idle times.

    `idle for` is the time since the consumer's last request, `nothing new for` the time since it last received an entry
    (Redis 7.2 and newer). On servers without XNACK the consumer named '' holds released entries.

    \b
    Examples:
      millstream consumer ls orders billing
      millstream consumer ls orders billing --sort idle
      millstream consumer ls orders billing --watch
    """

    def show(found: list[ConsumerStatus], _: object) -> None:
        output = Output(form)
        output.table(consumer_table(_sorted(found, sort)[:limit], form))
        if len(found) > limit:
            output.say(f"There are {len(found)}; --limit {len(found)} shows all.")

    look(url, watch, lambda line: all_consumers(line, stream, group), show, form)


def _sorted(found: list[ConsumerStatus], sort: str) -> list[ConsumerStatus]:
    if sort == "name":
        return found
    return sorted(found, key=lambda one: -(one.pending if sort == "pending" else one.idle_ms))
