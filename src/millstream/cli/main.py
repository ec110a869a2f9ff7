"""The ``millstream`` command. Each subcommand's module is imported only on use, so that help is fast."""

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
    "serve": ("server.serve:serve", "Run the stream server."),
    "run": ("worker.run:run", "Run an app's subscribers in worker processes, and its pipelines on Spark."),
    "console": ("console.console:console", "Show streams, groups and pending entries in the browser."),
    "import": ("migrate:import_", "Copy streams from a live server, or from a file of commands."),
    "export": ("migrate:export", "Copy streams to a live server, or to a file of commands."),
    "stream": ("console.nouns:stream", "List, show and change streams and their entries."),
    "group": ("console.nouns:group", "List, show and change consumer groups."),
    "pending": ("console.nouns:pending", "List, acknowledge, move and release pending entries."),
    "consumer": ("console.nouns:consumer", "List and remove the consumers of a group."),
    "server": ("console.nouns:server", "Show memory, log, replicas and slow commands of a server."),
    "replicas": ("server.replicas:replicas", "Show primaries, their replicas, and the lag of each."),
    "failover": ("server.failover:failover", "Promote a replica without losing data."),
    "compare": ("compare:compare", "Compare all keys of two servers, such as a primary and a replica."),
    "check": ("console.check:check", "Check lag, ages, pending and dead letters against thresholds."),
    "alert": ("console.nouns:alert", "List past alerts, watch a server, notify a webhook or a command."),
    "report": ("console.report:report", "Write a redacted report of an incident to one file."),
    "context": ("contexts.context:context", "Name servers, list them, and choose the one in use."),
    "config": ("contexts.config:config", "Show the server that commands use, and the source of that setting."),
    "dashboards": ("dashboards:dashboards", "Write Grafana dashboards and Prometheus alerts to a folder."),
    "audit": ("console.nouns:audit", "List the changes that users made, or undo one."),
    "worker": ("console.nouns:worker", "Show workers; quiet, drain, stop, pause or resume them."),
    "handler": ("console.nouns:handler", "Show handlers over all workers, and the runs of one entry."),
    "outbox": ("console.nouns:outbox", "Publish rows from an outbox table of a SQL database."),
    "dead": ("console.nouns:dead", "Show, retry, edit, remove or export dead letters."),
    "later": ("console.nouns:later", "List, cancel, move or fire scheduled entries."),
    "schedule": ("console.nouns:schedule", "List, pause, resume, fire or remove recurring schedules."),
    "sql": ("spark.sql:sql", "Query entries, groups, consumers, pending entries and dead letters with SQL."),
    "job": ("console.nouns:job", "Show one job and its result, or cancel it."),
    "limit": ("console.nouns:limit", "List limits, set a rate at run time, or take it back."),
    "recover": (
        "spark.recover:recover",
        "Settle pending entries of crashed workers: ack, release or dead-letter them.",
    ),
    "spark": ("console.nouns:spark", "List Spark queries and show their progress."),
    "archive": ("spark.archive:archive", "Archive streams to Parquet, Delta or Iceberg, and trim archived entries."),
    "replay": ("spark.replay:replay", "Replay entries of an archive or a stream into a stream."),
    "demo": ("demo:demo", "Describe the demo: a year of real flights."),
    "log": ("server.log:log", "Check, dump, thaw or cut the log of a data directory."),
    "backup": ("server.backup:backup", "Copy a data directory while its server runs."),
    "restore": ("server.restore:restore", "Restore a data directory from a backup, if needed to a point in time."),
    "doctor": ("server.doctor:doctor", "Diagnose problems of this machine, a data directory or a server."),
}


@contextlib.contextmanager
def _redacted() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.option_name == "--json" and _has_forms(error.ctx):
            error.__dict__["possibilities"] = ["-o json"]
        error.__dict__["message"] = without_secrets(error.message) + _dash(error)  # click declares it as final
        raise


def _has_forms(ctx: click.Context | None) -> bool:
    """Return True for a command with the option ``-o``. Users of other programs try ``--json`` there."""
    return ctx is not None and any(one.name == "form" for one in ctx.command.params)


def _dash(error: click.ClickException) -> str:
    """Return advice for a name that was parsed as an option; empty for a long option."""
    if not isinstance(error, click.NoSuchOption | click.BadOptionUsage):
        return ""
    return "" if error.option_name.startswith("--") else " If it is a name, write -- before it."


class MainGroup(LazyGroup):
    """The ``millstream`` command itself."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Parse the command line as click does, with secrets removed from errors that quote it."""
        with _redacted():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command as click does, with secrets removed from errors that quote the command line."""
        with _redacted():
            return super().invoke(ctx)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run as click does. If a shell requests completions, prepare them first."""
        if (words := completing()) is not None:
            words.prepare()
        return super().main(*args, **options)


# All subcommands inherit these settings
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


@click.group(cls=MainGroup, rows=COMMANDS, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="millstream")
def main() -> None:
    """Event streams in Python: a Redis Streams server, workers and Spark pipelines."""
    fill_standard_descriptors()


def fill_standard_descriptors() -> None:
    """Open the descriptors 0 to 2 that were closed (``2>&-``), so that no file or socket gets their numbers.

    Otherwise output to standard error would go into that file, perhaps the log. Also, libuv ends the process (SIGABRT)
    if it has to close one of them.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
