"""``millstream recover``: settle the pending entries of crashed workers, by one decision or a user's function."""

from contextlib import nullcontext

import click

import millstream.spark
from millstream.cli.shared.asking import replies_of
from millstream.cli.shared.confirm import confirm
from millstream.cli.shared.output import Output, show_options, subcommand
from millstream.cli.shared.time_options import SPAN_HELP, span
from millstream.errors import UsageError


@subcommand()
@click.argument("stream")
@click.option("--group", required=True, help="Group of the pending entries.")
@click.option("--min-idle", required=True, metavar="SPAN", help=f"Minimum idle time of an entry: {SPAN_HELP}.")
@click.option("--verdict", type=click.Choice(["ack", "release", "dead"]), help="Decision for all entries.")
@click.option(
    "--reason", default="", show_default=False, metavar="TEXT", help="Reason in the dead letters, with --verdict dead."
)
@click.option("--function", metavar="MODULE:NAME", help="Function that decides; MODULE may be in this directory.")
@click.option("--key", metavar="KEY", help="Key of the dead-letter stream. Default: <stream>:dead.")
@click.option("--slice", "size", type=click.IntRange(1), default=50_000, help="Number of entries in a claim.")
@click.option("--yes", is_flag=True, help="Do not ask before acknowledging everything.")
@show_options
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
    url: str,
    form: str,
) -> None:
    """Settle entries of STREAM that have been pending for too long, such as those of crashed workers.

    Every entry of GROUP that has been idle for --min-idle is claimed and then acknowledged, released (for the next
    claim) or put into <stream>:dead, where `millstream dead` finds it. Decide for all of them with --verdict, or name a
    function that decides for each. It gets the entries as a Spark DataFrame (stream, id, timestamp, fields,
    deliveries). It returns one with the columns id, verdict and, optionally, reason. That needs Java. An entry for
    which it returns nothing is released.

    After an interruption run the same command again: it continues where it stopped, and settles each entry once.
    The value of --min-idle must be longer than the interval at which live workers renew their entries.

    \b
    Examples:
      millstream recover orders --group billing --min-idle 10m --verdict release
      millstream recover orders --group billing --min-idle 2d --verdict dead --reason "left by the old cluster"
      millstream recover orders --group billing --min-idle 10m --function triage:decide

    \b
      # triage.py
      from pyspark.sql import functions as F
      def decide(entries):
          bad = entries.fields["amount"].isNull() | (entries.deliveries > 5)
          return entries.select("id", F.when(bad, "dead").otherwise("release").alias("verdict"))

    \b
    Exit codes:
      0    done
      1    the command failed
      2    the command line or the function's result is invalid
      3    the server cannot be reached
      5    refused
      130  interrupted
    """
    from millstream.spark.recovery.user_function import load_function  # noqa: PLC0415 - needs PySpark, an extra

    if (verdict is None) == (function is None):
        raise UsageError("give either --verdict ack|release|dead or --function module:name")
    if reason and verdict != "dead":
        raise UsageError("--reason is for --verdict dead; a function gives reasons in a column of that name")
    idle_ms = span("--min-idle", min_idle)
    if verdict == "ack":
        question = f"Acknowledge every entry of {group!r} that was idle for {min_idle}, so that no worker handles it?"
        confirm(question, "acknowledge", yes=yes)
    else:
        confirm(f"Settle every entry of {group!r} that was idle for {min_idle}?", "settle them", yes=True)
    called = None if function is None else load_function(function)
    # A single decision for all entries needs no Java
    spark = (
        None
        if called is None
        else millstream.spark.session("millstream recover", quiet=True, spark__log__level="ERROR")
    )
    output = Output(form)
    own = replies_of(url) if called is None else nullcontext()  # for the user's function, the traceback reports more
    with own, output.progress({"recover": "Settling"}, unit="entries") as tell:
        outcome = millstream.spark.recover(
            spark, url, stream, group, idle_ms, called,
            verdict=verdict, reason=reason, dead=key, slice_size=size,
            progress=lambda done, total: tell("recover", done, total),
        )  # fmt: skip
    names = ("acked", "released", "dead", "unjudged", "deleted", "taken")
    output.report({name: getattr(outcome, name) for name in names})
