"""``millstream stream``, ``group``, ``pending``, ``consumer``, ``server``: the tables of their subcommands.

A subcommand that looks is a row here and a function in a file of its own, which is imported only when it is asked for.
One that changes something is a declared action (``console/actions``).
"""

import click

from millstream.cli.changes.commands import NounGroup
from millstream.cli.shared.lazy import LazyGroup, Rows

_WIDE = {"max_content_width": 110}
_ACTIONS = "millstream.console.actions"

STREAM: Rows = {
    "ls": ("millstream.cli.console.stream:ls", "List streams: length, worst lag, oldest entries, pending."),
    "show": ("millstream.cli.console.stream:show", "Show one stream and its groups."),
    "find": ("millstream.cli.console.stream:find", "Find streams, groups and consumers by a part of their names."),
    "tail": ("millstream.cli.entries.tail:tail", "Show the last entries, or those being added, decoded."),
    "get": ("millstream.cli.entries.get:get", "Show one entry whole, and its state in each group."),
    "gaps": ("millstream.cli.entries.gaps:gaps", "Show missing entries: trimmed or deleted, and where."),
    "add": ("millstream.cli.entries.add:add", "Add entries: fields, JSON, or a file of JSON objects."),
}
GROUP: Rows = {
    "ls": ("millstream.cli.console.group:ls", "List groups: lag in entries and in time, pending, consumers."),
    "show": ("millstream.cli.console.group:show", "Show one group: its lag, its consumers, advice."),
}
PENDING: Rows = {
    "ls": ("millstream.cli.console.pending:ls", "List pending entries: holder, idle time, deliveries."),
}
CONSUMER: Rows = {
    "ls": ("millstream.cli.console.consumer:ls", "List the consumers of a group: entries, idle times."),
}
SERVER: Rows = {
    "show": ("millstream.cli.console.server:show", "Show the server: memory, log, replicas, costs of commands."),
    "slow": ("millstream.cli.console.server:slow", "List the slow commands."),
}


@click.group(cls=NounGroup, rows=STREAM, changes=f"{_ACTIONS}.streams", context_settings=_WIDE)
def stream() -> None:
    """Streams of a server: their names, their state, and their entries.

    \b
    Examples:
      millstream stream ls
      millstream stream ls 'orders*' --sort lag --limit 20
      millstream stream ls --watch 2                       again every two seconds, with rates
      millstream stream show orders
      millstream stream tail orders --follow --where 'amount>100'
      millstream stream rm orders --dry-run                what would be gone

    Exit code: 0 done, 1 not done or not all, 2 the command line is invalid, 3 no server, 4 nothing of that name,
    5 refused, 130 interrupted.
    """


@click.group(cls=NounGroup, rows=GROUP, changes=f"{_ACTIONS}.groups", context_settings=_WIDE)
def group() -> None:
    """Groups that read streams: their lag in entries and in time, and their entries in hand.

    A lag is a number, or `unknown` with the least and the most it can be; `show` says why, and what to do.

    \b
    Examples:
      millstream group ls                                  of all streams, the worst first
      millstream group ls orders
      millstream group show orders billing
      millstream group rewind orders billing --to 1h-ago   shows what that means, and asks

    Exit code: 0 done, 1 not done or not all, 2 the command line is invalid, 3 no server, 4 nothing of that name,
    5 refused, 130 interrupted.
    """


@click.group(cls=NounGroup, rows=PENDING, changes=f"{_ACTIONS}.pending", context_settings=_WIDE)
def pending() -> None:
    """Pending entries: delivered to a consumer of a group, and not acknowledged yet.

    \b
    Examples:
      millstream pending ls orders billing
      millstream pending ls orders billing --sort idle --payload
      millstream pending ls orders billing --unowned       what nobody holds since it was given back
      millstream pending claim orders billing --consumer web-1 --to web-2

    Exit code: 0 done, 1 not done or not all, 2 the command line is invalid, 3 no server, 4 nothing of that name,
    5 refused, 130 interrupted.
    """


@click.group(cls=NounGroup, rows=CONSUMER, changes=f"{_ACTIONS}.groups", context_settings=_WIDE)
def consumer() -> None:
    """Consumers of a group: their entries, and the time since their last request.

    \b
    Examples:
      millstream consumer ls orders billing
      millstream consumer ls orders billing -o json | jq '.[] | select(.pending > 0)'
      millstream consumer rm orders billing web-1 --claim-to web-2

    Exit code: 0 done, 1 not done or not all, 2 the command line is invalid, 3 no server, 4 nothing of that name,
    5 refused, 130 interrupted.
    """


@click.group(cls=LazyGroup, rows=SERVER, context_settings=_WIDE)
def server() -> None:
    """The server itself: its version and its state; `millstream serve` runs one.

    \b
    Examples:
      millstream server show
      millstream server slow

    Exit code: 0 done, 1 not done or not all, 2 the command line is invalid, 3 no server, 4 nothing of that name,
    5 refused, 130 interrupted.
    """
