"""``millstream recover``: what crashed workers left pending, settled by one verdict or by a function of the user's."""

import sys
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.shared.output import Output, exits, output_option
from millstream.cli.shared.time_options import SPAN_HELP, span
from millstream.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command()
@click.argument("stream")
@click.option("--group", required=True, help="Whose pending entries.")
@click.option("--min-idle", required=True, metavar="SPAN", help=f"How long an entry must have been idle: {SPAN_HELP}.")
@click.option("--verdict", type=click.Choice(["ack", "release", "dead"]), help="The same for all.")
@click.option("--reason", default="", metavar="TEXT", help="Of the dead letters, with --verdict dead.")
@click.option(
    "--function", metavar="MODULE:NAME", help="Gives each entry its verdict; MODULE may be in this directory."
)
@click.option("--key", metavar="KEY", help="The dead-letter stream, if it is not <stream>:dead.")
@click.option("--slice", "size", type=click.IntRange(1), default=50_000, show_default=True, help="Claimed at a time.")
@click.option("--yes", is_flag=True, help="Do not ask before acknowledging everything.")
@click.option("--url", help="Server. Default: MILLSTREAM_URL, REDIS_URL, redis://127.0.0.1:6379/0.")
@output_option
def recover(  # noqa: PLR0917 - click passes every option by name
    stream: str,
    group: str,
    min_idle: str,
    verdict: str | None,
    reason: str,
    function: str | None,
    key: str | None,
    size: int,
    yes: bool,
    url: str | None,
    form: str,
) -> None:
    """Settle entries that have been pending for too long: what crashed workers left.

    Every entry of GROUP that has been idle for --min-idle is claimed and then acknowledged, released (to whoever
    claims it next) or put into <stream>:dead, where `millstream dead` finds it. Give one verdict for all of them, or a
    function that gives each its own: it gets the entries as a Spark DataFrame (stream, id, timestamp, fields,
    deliveries) and returns one with the columns id, verdict and, if it likes, reason. That needs Java. An entry
    without a verdict is released.

    Interrupted or killed, run the same command again: it goes on where it stopped, and settles nothing twice.
    --min-idle must be longer than any living worker works on an entry without a sign.

    \b
    Examples:
      millstream recover orders --group billing --min-idle 10m --verdict release
      millstream recover orders --group billing --min-idle 2d --verdict dead --reason "left by the old cluster"
      millstream recover orders --group billing --min-idle 10m --function triage:judge

    \b
      # triage.py
      from pyspark.sql import functions as F
      def judge(entries):
          bad = entries.fields["amount"].isNull() | (entries.deliveries > 5)
          return entries.select("id", F.when(bad, "dead").otherwise("release").alias("verdict"))

    Exit code: 0 done, 1 it could not be done, 2 the command line or the function's result cannot be meant, 130
    interrupted.
    """
    from millstream.client.url import find_url  # noqa: PLC0415 - help does not need it

    with exits("millstream recover"):
        from millstream.spark.recovery.recover import recover as run  # noqa: PLC0415 - as above

        if (verdict is None) == (function is None):
            raise UsageError("say --verdict ack|release|dead, or --function module:name, and not both")
        if reason and verdict != "dead":
            raise UsageError("--reason is for --verdict dead; a function gives reasons in a column of that name")
        idle_ms = span("--min-idle", min_idle)
        if verdict == "ack" and not yes:
            _agree(f"Acknowledge every entry of {group!r} that was idle for {min_idle}, so that nobody processes it?")
        called = None if function is None else _function(function)
        session = None if called is None else _session()
        output = Output(form)
        with output.progress({"recover": "Settling"}, unit="entries") as tell:
            outcome = run(
                session, find_url(url), stream, group, idle_ms, called,
                verdict=verdict, reason=reason, dead=key, slice_size=size,
                progress=lambda done, total: tell("recover", done, total),
            )  # fmt: skip
        names = ("acked", "released", "dead", "unjudged", "deleted", "taken")
        output.report({name: getattr(outcome, name) for name in names})


def _agree(question: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can be asked here; say --yes to acknowledge")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was done")


def _function(spec: str) -> "Callable[..., Any]":
    from millstream.spark.recovery.user_function import load_function  # noqa: PLC0415 - as above

    return load_function(spec)


def _session() -> Any:
    from millstream.spark import session  # noqa: PLC0415 - as above

    return session("millstream recover", quiet=True, spark__log__level="ERROR")
