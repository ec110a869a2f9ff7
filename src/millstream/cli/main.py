"""The ``millstream`` command: each subcommand's module is imported only when it is asked for, so that help is quick."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import click

from millstream._version import __version__
from millstream.cli.shared.lazy import LazyGroup, Rows, completing
from millstream.printable import without_secrets

# name -> (module:attribute, one line for the list of commands)
COMMANDS: Rows = {
    "serve": ("millstream.cli.server.serve:serve", "Run the stream server."),
    "run": (
        "millstream.cli.worker.run:run",
        "Run an app's subscribers in worker processes, and its pipelines on Spark.",
    ),
    "console": ("millstream.cli.console.console:console", "Show streams, groups and pending entries in the browser."),
    "import": ("millstream.cli.migrate:import_", "Copy streams from a live server, or from a file of commands."),
    "export": ("millstream.cli.migrate:export", "Copy streams to a live server, or to a file of commands."),
    "stream": ("millstream.cli.console.nouns:stream", "Streams: their names, their state, their entries."),
    "group": ("millstream.cli.console.nouns:group", "Groups of streams: their lag, pending entries, stuck consumers."),
    "pending": ("millstream.cli.console.nouns:pending", "Entries that were delivered and not acknowledged."),
    "consumer": ("millstream.cli.console.nouns:consumer", "Consumers of a group: their entries, their idle times."),
    "server": ("millstream.cli.console.nouns:server", "The server itself: memory, log, replicas, slow commands."),
    "replicas": ("millstream.cli.server.replicas:replicas", "Show leaders, their followers, and the lag of each."),
    "failover": ("millstream.cli.server.failover:failover", "Hand the role of a primary to a replica, without a loss."),
    "compare": ("millstream.cli.compare:compare", "Compare all keys of two servers, such as a primary and a replica."),
    "check": ("millstream.cli.console.check:check", "Check lag, ages, pending and dead letters against thresholds."),
    "report": ("millstream.cli.console.report:report", "Write a redacted report of an incident to one file."),
    "context": ("millstream.cli.contexts.context:context", "List named servers, and choose the one in use."),
    "config": ("millstream.cli.contexts.config:config", "Show the server of the commands, and its source."),
    "dashboards": (
        "millstream.cli.dashboards:dashboards",
        "Dashboards for Grafana and alerts for Prometheus, written into a folder.",
    ),
    "audit": ("millstream.cli.console.nouns:audit", "List changes with user, time and place, or undo one."),
    "worker": (
        "millstream.cli.console.nouns:worker",
        "Workers: their state and work; quiet, drain, stop, pause, resume.",
    ),
    "outbox": (
        "millstream.cli.console.nouns:outbox",
        "The outbox of a SQL database: its relay, its table, rows with errors.",
    ),
    "dead": ("millstream.cli.console.nouns:dead", "Dead letters: look, put back on their streams, remove, export."),
    "later": ("millstream.cli.console.nouns:later", "Schedules: entries that wait for their time; cancel, move, fire."),
    "schedule": ("millstream.cli.console.nouns:schedule", "Recurring schedules: list, pause, resume, fire, remove."),
    "sql": ("millstream.cli.spark.sql:sql", "SQL over entries, groups, consumers, pending entries and dead letters."),
    "recover": (
        "millstream.cli.spark.recover:recover",
        "Settle pending entries of crashed workers: ack, release or dead-letter them.",
    ),
    "spark": ("millstream.cli.console.nouns:spark", "Spark queries: running ones, former ones, their progress."),
    "archive": ("millstream.cli.spark.archive:archive", "Move streams to Parquet, and trim unneeded entries."),
    "replay": ("millstream.cli.spark.replay:replay", "Write entries of an archive or a stream into a stream again."),
    "demo": ("millstream.cli.demo:demo", "Show the place of the demo: a year of real flights, checked."),
    "log": ("millstream.cli.server.log:log", "Look into a log: its contents, its damage; cut it on purpose."),
    "backup": ("millstream.cli.server.backup:backup", "Copy a data directory while its server runs."),
    "restore": ("millstream.cli.server.restore:restore", "Make a data directory from a backup, also as of a moment."),
    "doctor": ("millstream.cli.server.doctor:doctor", "Find faults of this machine, a data directory or a server."),
}


@contextlib.contextmanager
def _redacted() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        error.__dict__["message"] = without_secrets(error.message)  # final, for those who type
        raise


class MainGroup(LazyGroup):
    """``millstream`` itself."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """As click does; its errors quote the words of the command line, which may be URLs."""
        with _redacted():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """As above, for the words of a command."""
        with _redacted():
            return super().invoke(ctx)

    def main(self, *args: Any, **options: Any) -> Any:
        """As click does; where a shell asks what may follow, with what we know of that."""
        if (words := completing()) is not None:
            words.prepare()
        return super().main(*args, **options)


@click.group(
    cls=MainGroup, rows=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="millstream")
def main() -> None:
    """Event streams in Python: Redis Streams server, claiming workers, Spark pipelines."""
    fill_standard_descriptors()


def fill_standard_descriptors() -> None:
    """Open those of 0 to 2 that were closed (``2>&-``), so that no file or socket gets their place.

    Output to standard error would go into it, even into the log; and libuv ends the process (SIGABRT) if it has to
    close one of them.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
