"""``millstream replicas``."""

import sys

import click

from millstream.cli.console.servers import servers
from millstream.cli.console.watching import look_at_all, watch_option
from millstream.cli.shared.output import FAILED, Column, Output, Table, context_option, output_option, subcommand
from millstream.errors import Disconnected
from millstream.ops.server.reading import followers
from millstream.ops.server.replicas import ReplicationPlace

_COLUMNS = (
    Column("server"),
    Column("role"),
    Column("follows", rank=7),
    Column("link"),
    Column("behind_bytes", "bytes", "behind"),
    Column("silent_ms", "span", "silent for"),
    Column("down_ms", "span", "down for", rank=2),
    Column("offset", "count", rank=3),
    Column("id", title="history", rank=6),
    Column("copies", "count", rank=5),
    Column("copied_ms", "span", "copied ago", rank=4),
    Column("copy_bytes", "bytes", "copy size", rank=9),
    Column("dialect", rank=8),
    Column("problem", "prose"),
)
_ID = 8  # digits of a replication id that are shown to people


@subcommand()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@watch_option
@context_option
@output_option
def replicas(urls: tuple[str, ...], watch: float | None, form: str) -> None:
    """Show primaries, their replicas, and the lag of each replica.

    Each URL names a Millstream, Redis or Valkey server. Use context:NAME or @FILE for URLs with a password, which never
    belongs on a command line. Servers that a listed one reports are in the list too, with the facts from that report.
    Facts of different servers are not from exactly the same moment.

    \b
    Columns, the same in JSON under the names in parentheses:
      link                     up, down, sync (receives a copy), silent (the primary got no message for 10 s); for a
                               replica that was not queried, its primary's word: online, wait_bgsave, send_bulk
      behind (behind_bytes)    bytes of the primary's changes that it has not received
      silent for (silent_ms)   time since its primary's last message from it, or else its own from the primary
      down for (down_ms)       time since the link went down
      offset, history (id)     position in the stream of changes, and the id of that stream: servers with different
                               ids hold different data
      copies, copied ago (copied_ms), copy size (copy_bytes)
                               full copies received since its start, and the age and size of the last one
      dialect                  Redis version whose commands it sends to its replicas

    \b
    Examples:
      millstream replicas redis://10.0.0.1:6379 redis://10.0.0.2:6379
      millstream replicas context:eu context:us --watch
      millstream replicas @servers -o json | jq '.[] | select(.link == "down")'

    \b
    Exit codes:
      0    all servers answered
      1    some did not answer
      2    the command line is invalid
      3    no server answered
      130  interrupted
    """
    failed: list[ReplicationPlace] = []

    def every(found: list[ReplicationPlace]) -> None:
        Output(form).table(Table("servers", _COLUMNS, [_row(one, form) for one in found]))
        failed[:] = [one for one in found if one.problem.startswith(_SILENT)]
        if found and len(failed) == len(found) and watch is None:
            raise Disconnected(f"{failed[0].address} {failed[0].problem}")

    look_at_all(servers(urls), watch, followers, every, form)
    if failed:
        sys.exit(FAILED)


_SILENT = "does not answer"


def _row(one: ReplicationPlace, form: str) -> dict[str, object]:
    people = form == "table"
    facts = {column.name: getattr(one, column.name, None) for column in _COLUMNS}
    facts |= {"server": "  " * one.depth + one.address if people else one.address}
    facts |= {"id": one.id[:_ID] if people and one.id else one.id, "problem": one.problem or ("" if people else None)}
    seconds = {"silent_ms": one.silent_seconds, "down_ms": one.down_seconds, "copied_ms": one.copied_seconds}
    return facts | {name: None if value is None else value * 1000 for name, value in seconds.items()}
