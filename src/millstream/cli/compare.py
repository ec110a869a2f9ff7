"""``millstream compare``."""

import sys

import click

from millstream.cli.shared.output import FAILED, OK, Column, Output, Table, output_option, subcommand
from millstream.cli.shared.servers import ServerUrl
from millstream.client.url import check_url
from millstream.migrate.compare_keys import KeyComparison, compare_servers
from millstream.texts import plural

_COLUMNS = (
    Column("db", rank=2),
    Column("key"),
    Column("type", rank=1),
    Column("differences", "count", rank=3),
    Column("what", "prose"),
)


@subcommand()
@click.argument("source", type=ServerUrl())
@click.argument("copy", type=ServerUrl())
@output_option
def compare(source: str, copy: str, form: str) -> None:
    """Compare all keys of all databases of two servers, such as a primary and its replica: Millstream, Redis, Valkey.

    SOURCE and COPY are URLs or context:NAME. The command only reads, and no client may write meanwhile: stop the
    writers, or use CLIENT PAUSE, and wait until the replica has caught up. The command compares streams by entries,
    counters, positions, consumers, and pending entries with owner, time and count. It compares other types by value,
    and all keys by their expiry. It ignores the times at which consumers were last seen, and the keys remembered for
    idempotent adding.

    \b
    Examples:
      millstream compare redis://10.0.0.1:6379 redis://10.0.0.2:6379
      millstream compare context:old context:new -o json | jq -r '.different[].key'

    \b
    Exit codes:
      0    equal
      1    different
      2    the command line is invalid
      3    a server cannot be reached
      5    a server refuses to be read
      130  interrupted
    """
    output = Output(form)
    with output.progress({"compared": "comparing"}, unit="keys") as tell:
        found = compare_servers(check_url(source), check_url(copy), tell)
    _show(output, found)
    sys.stdout.flush()
    sys.exit(FAILED if found.different else OK)


def _show(output: Output, found: "KeyComparison") -> None:
    people = output.form == "table"
    rows = [
        (one.db, one.key, one.type, one.count, "; ".join(one.texts) if people else list(one.texts))
        for one in found.different
    ]
    table = Table("different", _COLUMNS, rows, empty="Both hold the same data.")
    if people or output.form == "csv":
        output.table(table)
    else:
        output.report({"keys": found.keys, "not_compared": found.unread}, [table])
    if people:
        output.say(
            f"{len(found.different):,} of {plural(found.keys, 'key')} "
            f"{'differs' if len(found.different) == 1 else 'differ'}."
        )
        if found.unread:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.unread.items()))
            output.say(f"Compared only by expiry: {kinds}.")
