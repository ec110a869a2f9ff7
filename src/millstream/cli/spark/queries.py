"""``millstream spark``: show the streaming queries that run on Spark, and the ended ones."""

from collections.abc import Mapping
from typing import Any

import click

from millstream.cli.shared.asking import replies_of
from millstream.cli.shared.exposition import gauge
from millstream.cli.shared.output import Column, Output, Table, output_option, show_options, subcommand, url_option
from millstream.errors import UsageError
from millstream.spark.monitoring.store import find, look

_QUERIES = (
    Column("name"),
    Column("id", rank=5),
    Column("run", rank=8),
    Column("state"),
    Column("batch", rank=3),
    Column("rows", "count", "rows in it", people="never"),
    Column("input_rows_per_second", "count", "coming in/s", people="never"),
    Column("rows_per_second", "count", "rows/s", rank=4),
    Column("batch_ms", "span", "it took", people="never"),
    Column("lag", "count", rank=1),
    Column("total_rows", "count", "rows since its start", rank=7),
    Column("started_ms", "time", people="never"),
    Column("at_ms", "time", "last report", rank=6),
    Column("host", people="never"),
    Column("pid", people="never"),
    Column("watermark_ms", "time", people="never"),
    Column("state_rows", "count", "rows of state", people="never"),
    Column("error", "prose", "last error", rank=2),
)
_PHASES = (Column("phase"), Column("ms", "span", "took"))
_PLACES = (
    Column("stream"),
    Column("id", title="read up to"),
    Column("n", "count", "added then"),
    Column("latest_n", "count", "added in all then"),
)
_RECENT = (
    Column("at_ms", "time", "at"),
    Column("input_rows_per_second", "count", "coming in/s"),
    Column("rows_per_second", "count", "rows/s"),
    Column("batch_ms", "span", "it took"),
    Column("rows", "count"),
    Column("lag", "count"),
)
_LAST = 10  # number of batches that are shown to people


@subcommand()
@url_option
@click.option("--json", "as_json", is_flag=True, hidden=True, help="Print JSON, as `-o json` does.")
@output_option
def ls(url: str, as_json: bool, form: str) -> None:
    """List the queries that report to this server, those that reported last first.

    Pipelines of `millstream run` report, and so does any PySpark program after millstream.spark.watch(spark, url). A
    query is `running`, `stopped` (in order, or at its end), `failed` (the error is its last), or `gone`: its driver was
    killed or is unreachable. Its history is in the stream millstream:spark:progress. A query is removed 30 days after
    its last report.

    \b
    Examples:
      millstream spark ls
      millstream spark ls -o json
      redis-cli XREVRANGE millstream:spark:progress + - COUNT 10

    \b
    Exit codes:
      0  done
      1  the command failed
      2  the command line is invalid
      3  the server cannot be reached
      5  refused
    """
    if as_json and form not in ("table", "json"):
        raise UsageError(f"--json and -o {form} exclude each other. Omit --json.")
    form = "json" if as_json else form
    with replies_of(url):
        rows = look(url)
    if form == "table":  # the beginning of an id is enough for people
        rows = [{**row, "id": str(row["id"])[:8], "run": str(row["run"])[:8]} for row in rows]
    Output(form).table(Table("queries", _QUERIES, rows, empty="No query has reported to this server."))


_METRICS = (
    ("millstream_pipeline_lag", "lag", 1, "Entries in the streams and not in a finished batch."),
    ("millstream_pipeline_last_batch_rows", "rows", 1, "Rows of the last batch."),
    ("millstream_pipeline_last_batch_seconds", "batch_ms", 1000, "Time the last batch took."),
    ("millstream_pipeline_rows_per_second", "rows_per_second", 1, "Rows a second of the last batch."),
    ("millstream_pipeline_last_report_timestamp_seconds", "at_ms", 1000, "When the query reported last."),
)
"""Metric names that `millstream run` exports too, so that the same dashboards and alerts fit."""


@subcommand()
@url_option
def metrics(url: str) -> None:
    """Print the reports of queries to this server in Prometheus format, for a textfile collector.

    It has all queries that `ls` lists, under the names that `millstream run` exports for its pipelines. The figures are
    lag in entries, rows and time of the last batch, time of the last report, and millstream_pipeline_up, 1 while it
    runs. An unknown figure, such as the lag of a query that does not read a stream, is left out.

    \b
    Examples:
      millstream spark metrics > /var/lib/node_exporter/spark.prom
      millstream spark metrics | grep _lag

    \b
    Exit codes:
      0  done
      2  the command line is invalid
      3  the server cannot be reached
      5  refused
    """
    with replies_of(url):
        rows = look(url)
    rows = list({_label_of(row): row for row in reversed(rows)}.values())  # the last report under each name
    up = [({"pipeline": _label_of(row)}, float(row["state"] == "running")) for row in rows]
    lines = gauge("millstream_pipeline_up", "1 while its query runs.", up)
    for name, field, unit, text in _METRICS:
        known = [row for row in rows if row[field] is not None]
        lines += gauge(name, text, [({"pipeline": _label_of(row)}, row[field] / unit) for row in known])
    for line in lines:
        click.echo(line)


def _label_of(row: Mapping[str, Any]) -> str:
    return str(row["name"] or row["id"])


@subcommand()
@click.argument("query")
@show_options
def show(query: str, url: str, form: str) -> None:
    """Show QUERY: its rates, the time of each phase of its last batch, its positions, its last batches.

    QUERY is a name, an id or the beginning of an id from `ls`. If several queries have the name, the last that reported
    is shown.

    \b
    Examples:
      millstream spark show orders-lake
      millstream spark show 3f2a9c1e -o json | jq .phases

    \b
    Exit codes:
      0  done
      1  the command failed
      2  the command line is invalid
      3  the server cannot be reached
      4  no query has that name
      5  refused
    """
    with replies_of(url):
        facts = find(url, query)
    phases = [*(facts["phases"] or {}).items()]
    recent = (facts["recent"] or [])[-_LAST if form == "table" else 0 :]
    tables = [
        Table("phases", _PHASES, phases, empty="No batch is finished yet."),
        Table("places", _PLACES, facts["places"] or (), empty="It does not read a stream itself."),
        Table("recent", _RECENT, recent, empty="No batch is finished yet."),
    ]
    Output(form).report({column.name: facts[column.name] for column in _QUERIES}, tables, _QUERIES)
