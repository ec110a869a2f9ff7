"""The nouns of the command line, such as ``millstream stream``, with the tables of their subcommands.

A subcommand that only reads is a row here and a function in its own file, which is imported on use. A subcommand that
changes something is a declared action (``changes`` in a folder of ``ops``).
"""

import click

from millstream.cli.shared.lazy import LazyGroup, NounGroup, Rows
from millstream.cli.shared.output import EXIT_LIST

STREAM: Rows = {
    "ls": ("console.stream:ls", "List streams: length, worst lag, oldest entries, pending."),
    "show": ("console.stream:show", "Show one stream and its groups."),
    "balance": (
        "partitions.balance:balance",
        "Show the partitions of a stream by node: shares, lag, bytes, skew, slot moves.",
    ),
    "find": ("console.stream:find", "Find streams, groups and consumers by a part of their names."),
    "tail": ("entries.tail:tail", "Show the last entries, or those being added, decoded."),
    "get": ("entries.get:get", "Show one entry in full, and its state in each group."),
    "gaps": ("entries.gaps:gaps", "Show gaps: the number and positions of trimmed or deleted entries."),
    "add": ("entries.add:add", "Add entries: fields, JSON, or a file of JSON objects."),
}
GROUP: Rows = {
    "ls": ("console.group:ls", "List groups: lag in entries and in time, pending, consumers."),
    "show": ("console.group:show", "Show one group: its lag, its consumers, advice."),
    "owners": ("partitions.owners:owners", "List the owners of a partitioned stream's partitions."),
}
PENDING: Rows = {"ls": ("console.pending:ls", "List pending entries: holder, idle time, deliveries.")}
CONSUMER: Rows = {"ls": ("console.consumer:ls", "List the consumers of a group: entries, idle times.")}
SERVER: Rows = {
    "show": ("console.server:show", "Show the server: memory, log, replicas, costs of commands."),
    "slow": ("console.server:slow", "List the slow commands."),
    "tier": ("console.places:tier", "List streams by the place of their entries: in memory or in packs."),
    "vacuum": ("console.places:vacuum", "Write parts of packs with deleted entries anew, and remove unneeded packs."),
}
AUDIT: Rows = {"ls": ("changes.audit:ls", "List changes, the newest first: of all streams, or of STREAM.")}
ALERT: Rows = {
    "ls": ("alerts.alert:ls", "List open and past alerts: event, time and duration."),
    "watch": ("alerts.alert:watch", "Watch a server: keep its alerts, and notify hooks."),
    "test": ("alerts.alert:test", "Send a test message to the hooks."),
}
WORKER: Rows = {
    "ls": ("worker.worker:ls", "List the workers that are alive, and the handlers that are paused."),
    "show": (
        "worker.worker:show",
        "Show one worker: its subscribers, their running entries with the time of each run, its last error.",
    ),
}
HANDLER: Rows = {
    "ls": ("worker.handlers:ls", "List the handlers of all live workers: rates, durations, failures, entries in hand."),
    "show": ("worker.handlers:show", "Show one handler by version and by worker."),
    "timeline": ("worker.handlers:timeline", "Show the runs of one entry in each group, and what cannot be known."),
}
OUTBOX: Rows = {
    "relay": ("worker.outbox:relay", "Move committed rows of a database's outbox to their streams."),
    "ls": ("worker.outbox:ls", "List the rows that could not be published, with their errors."),
    "create": ("worker.outbox:create", "Create the table of an outbox."),
}
DEAD: Rows = {
    "ls": (
        "worker.dead:ls",
        "List the letters of one dead-letter stream, oldest first; without STREAM, the dead-letter streams themselves.",
    ),
    "show": ("worker.dead:show", "Show one letter in full: fields, error, traceback, times, and its earlier deaths."),
    "export": (
        "worker.dead:export",
        "Export the letters of STREAM, or of a dead-letter stream, as JSON lines with all details.",
    ),
}
LATER: Rows = {
    "ls": (
        "later.later:ls",
        "List the schedules of STREAM, the first due first; without STREAM, the streams that have some.",
    ),
    "show": ("later.later:show", "Show one schedule in full: its time, and its decoded entry."),
}
JOB: Rows = {"show": ("worker.job:show", "Show one job: its state, its progress and its result in each group.")}
SCHEDULE: Rows = {
    "ls": ("later.schedule:ls", "List the recurring schedules: their times, delays and missed firings."),
    "show": ("later.schedule:show", "Show one recurring schedule: its timetable, its next times."),
}
LIMIT: Rows = {"ls": ("later.limit:ls", "List the limits that all workers share: used, in use, refused, waiting.")}
SPARK: Rows = {
    "ls": ("spark.queries:ls", "List the queries that report to this server, those that reported last first."),
    "metrics": (
        "spark.queries:metrics",
        "Print the reports of queries to this server in Prometheus format, for a textfile collector.",
    ),
    "show": (
        "spark.queries:show",
        "Show QUERY: its rates, the time of each phase of its last batch, and its positions.",
    ),
}


@click.group(cls=NounGroup, rows=STREAM, changes=("streams.changes", "streams.repartitioning"), epilog=EXIT_LIST)
def stream() -> None:
    """List, show and change streams and their entries.

    \b
    Examples:
      millstream stream ls
      millstream stream ls 'orders*' --sort lag --limit 20
      millstream stream ls --watch 2                       again every two seconds, with rates
      millstream stream show orders
      millstream stream tail orders --follow --where 'amount>100'
      millstream stream rm orders --dry-run                shows the effect
    """


@click.group(cls=NounGroup, rows=GROUP, changes=("groups.changes", "groups.removals"), epilog=EXIT_LIST)
def group() -> None:
    """List, show and change consumer groups.

    A lag is a number, or `unknown` with its minimum and maximum; `show` explains it and the remedy.

    \b
    Examples:
      millstream group ls                                  of all streams, the worst first
      millstream group ls orders
      millstream group show orders billing
      millstream group rewind orders billing --to 1h-ago   shows a preview, and prompts
    """


@click.group(cls=NounGroup, rows=PENDING, changes=("pending.changes", "pending.dead"), epilog=EXIT_LIST)
def pending() -> None:
    """List, acknowledge, move and release pending entries: delivered but not acknowledged yet.

    \b
    Examples:
      millstream pending ls orders billing
      millstream pending ls orders billing --sort idle --payload
      millstream pending ls orders billing --unowned       entries without a consumer
      millstream pending claim orders billing --consumer web-1 --to web-2
    """


@click.group(cls=NounGroup, rows=CONSUMER, changes=("groups.changes", "groups.removals"), epilog=EXIT_LIST)
def consumer() -> None:
    """List and remove the consumers of a group.

    \b
    Examples:
      millstream consumer ls orders billing
      millstream consumer ls orders billing -o json | jq '.[] | select(.pending > 0)'
      millstream consumer rm orders billing web-1 --claim-to web-2
    """


@click.group(cls=LazyGroup, rows=SERVER, epilog=EXIT_LIST)
def server() -> None:
    """Show the state of a server, its slow commands and its packs; `millstream serve` runs one.

    \b
    Examples:
      millstream server show
      millstream server slow
      millstream server tier --sort cold --limit 20
    """


@click.group(cls=NounGroup, rows=AUDIT, changes=("pending.undo",), epilog=EXIT_LIST)
def audit() -> None:
    """List changes made by these commands and by the console, or undo one.

    Each change is an entry of the stream millstream:audit, which keeps about the last 10,000. Changes by other clients
    of the server are not recorded. A user who may write to the stream can forge entries.

    \b
    Examples:
      millstream audit ls --since 1d
      millstream audit undo 8f3c01a94b7e
    """


@click.group(cls=LazyGroup, rows=ALERT)
def alert() -> None:
    """List past alerts, watch a server, and notify a webhook or a command.

    \b
    Examples:
      millstream alert ls
      millstream alert watch --webhook https://alerts.example.org/millstream --secret-file alert.secret
      millstream alert test --command 'notify --team ops'
    """


@click.group(cls=NounGroup, rows=WORKER, changes=("workers.changes",), own="worker.orders", epilog=EXIT_LIST)
def worker() -> None:
    """Show workers; quiet, drain, stop, pause or resume them.

    Every worker reports to the server every five seconds, in keys under millstream: (docs/worker/reference.md), and
    reads its orders there. ID is a worker's id from `ls`; an unambiguous beginning is enough.

    \b
    Examples:
      millstream worker ls
      millstream worker show web-1-4711
      millstream worker pause orders billing --reason 'the card provider is down'
      millstream worker resume orders billing
      millstream worker drain web-1-4711               finish its running entries, then exit
      millstream worker reap orders --idle 1d          remove consumers of processes that are gone
    """


@click.group(cls=LazyGroup, rows=HANDLER, epilog=EXIT_LIST)
def handler() -> None:
    """Show handlers over all workers, and the runs of one entry.

    \b
    Examples:
      millstream handler ls
      millstream handler show orders billing bill
      millstream handler timeline orders 1763721600000-0
    """


@click.group(cls=NounGroup, rows=DEAD, changes=("letters.changes",), own="worker.letter_changes", epilog=EXIT_LIST)
def dead() -> None:
    """Show, retry, edit, remove or export dead letters: entries that workers gave up on.

    They are in <stream>:dead, or in the stream of a subscriber's dead=, each with its error, traceback and times.
    STREAM is the stream or its dead-letter stream; --key gives the key of another one. ID is the letter's own id from
    `ls`.

    \b
    Examples:
      millstream dead ls                                       list the dead-letter streams
      millstream dead ls orders --since 1h                     list the letters of the last hour
      millstream dead show orders 1763721600000-0              show one in full, with traceback and payload
      millstream dead retry orders 1763721600000-0             put one back
      millstream dead retry orders --error timeout --rate 20   put back many, at most 20 a second
      millstream dead edit orders 1763721600000-0              correct one in your editor, and put it back
      millstream dead rm orders --until 30d --yes              delete those older than thirty days
      millstream dead export orders > dead.jsonl               export all, one JSON object a line
    """


@click.group(cls=NounGroup, rows=LATER, changes=("later.changes",), epilog=EXIT_LIST)
def later() -> None:
    """List, cancel, move or fire schedules: entries published for a later time, kept next to their stream.

    Any worker adds entries that are due. An entry is overdue if no worker runs, or if its stream accepts no entries.

    \b
    Examples:
      millstream later ls                                  list the streams with schedules
      millstream later ls bills
      millstream later show bills xmas-7
      millstream later cancel bills xmas-7
      millstream later move bills xmas-7 --delay 2h
      millstream later fire bills xmas-7                   add its entry now
    """


@click.group(cls=NounGroup, rows=JOB, changes=("jobs.changes",), epilog=EXIT_LIST)
def job() -> None:
    """Show and cancel jobs: entries published with `result=`, which keeps the handler's return value.

    \b
    Examples:
      millstream job show orders 1763721600000-0
      millstream job cancel orders billing 1763721600000-0
    """


@click.group(cls=NounGroup, rows=SCHEDULE, changes=("schedules.changes",), epilog=EXIT_LIST)
def schedule() -> None:
    """List, pause, resume, fire or remove recurring schedules: cron lines and intervals.

    Workers place the next firing, which waits as a schedule of its stream: `millstream later ls` lists it.

    \b
    Examples:
      millstream schedule ls
      millstream schedule show nightly
      millstream schedule pause nightly
      millstream schedule resume nightly
      millstream schedule fire nightly                     once, now
      millstream schedule rm report-7
    """


@click.group(cls=NounGroup, rows=LIMIT, changes=("limits.changes",))
def limit() -> None:
    """Show and set limits that all workers share: rates and numbers of simultaneous runs.

    The code of workers declares them (`@app.subscriber(limit=)`). A rate that is set here holds in place of the code's.

    \b
    Examples:
      millstream limit ls
      millstream limit set crm 30/m
      millstream limit rm crm                              the rate in the code holds again

    Exit code: 0 done, 1 failed wholly or in part, 2 the command line is invalid, 3 no server, 4 nothing of that name,
    5 refused, 130 interrupted.
    """


@click.group(cls=LazyGroup, rows=SPARK)
def spark() -> None:
    """List Spark queries and show their progress.

    \b
    Examples:
      millstream spark ls
      millstream spark ls -o json | jq '.[] | select(.state == "failed")'
      millstream spark show orders-lake
    """


@click.group(cls=LazyGroup, rows=OUTBOX)
def outbox() -> None:
    """Publish rows from an outbox table: transactions write them, and a relay adds them to their streams.

    MODULE:ENGINE names an engine of SQLAlchemy, as shop:engine names `engine` in shop.py.
    """
