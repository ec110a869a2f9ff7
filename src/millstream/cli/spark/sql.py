"""``millstream sql``: query the state of a server with SQL."""

import click

from millstream.cli.shared.output import Column, Output, Table, output_option, subcommand, url_option
from millstream.texts import Kind


@subcommand()
@click.argument("query")
@url_option
@click.option("--stream", metavar="KEYS", help="Streams to query: one key, or several with commas.")
@click.option(
    "--stream-pattern", "--pattern", metavar="GLOB", help="Pattern of keys (as SCAN MATCH). Default: all streams."
)
@output_option
def sql(query: str, url: str, stream: str | None, stream_pattern: str | None, form: str) -> None:
    """Query the streams of any server with SQL.

    \b
    Tables and their columns:
      entries     stream, id, timestamp, fields (a map: fields['carrier'])
      groups      stream, group, consumers, pending, last_delivered_id, entries_read, lag
      consumers   stream, group, consumer, pending, idle_ms, inactive_ms
      pending     stream, group, consumer, id, timestamp, idle_ms, deliveries, delivered
      dead        stream, id, group, consumer, deliveries, reason, error, traceback, published, died, returned,
                  fields, letter_stream, letter_id

    Queries only read: statements such as INSERT and CREATE are refused. QUERY is Spark SQL, which needs Java and takes
    some seconds to start. The whole result is held in memory: use LIMIT. `group` is a keyword of SQL: write it in
    backquotes.

    \b
    Examples:
      millstream sql "SELECT consumer, count(*), max(idle_ms) FROM pending GROUP BY 1"
      millstream sql 'SELECT stream, `group`, lag FROM groups ORDER BY lag DESC LIMIT 10' --stream-pattern 'orders*'
      millstream sql "SELECT reason, count(*) FROM dead GROUP BY 1" --stream orders -o json

    A query without a table needs no server.

    \b
    Exit codes:
      0    done
      1    any other failure
      2    the query or an option is invalid
      3    the server cannot be reached
      4    no stream has that name
      5    refused
      130  interrupted
    """
    from millstream.spark.sessions.sql import run  # noqa: PLC0415 - needs PySpark, an extra

    options = {"url": url}
    if stream is not None:
        options["stream"] = stream
    if stream_pattern is not None or stream is None:
        options["streamPattern"] = stream_pattern or "*"
    found = run(query, options)
    columns = [Column(name, _kind(name, kind), name) for name, kind in found.columns]
    Output(form).table(Table("rows", columns, found.rows, empty="No rows."))


def _kind(name: str, kind: str) -> Kind:
    """Return the display kind of a column: times, durations (from milliseconds), unwrapped ids and names."""
    if kind in {"timestamp", "timestamp_ntz"}:
        return "time"
    number = kind in {"tinyint", "smallint", "int", "bigint", "float", "double"}
    if number:
        return "span" if "_ms" in name else "count"
    return "text" if name in _NAMES or name.endswith("id") else "prose"


#: Columns of the tables above whose values are copied, so they are never wrapped.
_NAMES = frozenset({"stream", "group", "consumer", "key", "reason", "state"})
