"""``millstream replicas``."""

import sys
from typing import TYPE_CHECKING

import click

from millstream.cli.console.servers import servers
from millstream.cli.console.watching import look_at_all, watch_option
from millstream.cli.shared.output import FAILED, Column, Output, Table, context_option, exits, output_option
from millstream.errors import Disconnected
from millstream.ops.server.reading import followers

if TYPE_CHECKING:
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
_ID = 8  # digits of a history's name that people see


@click.command(context_settings={"max_content_width": 110})
@click.argument("urls", nargs=-1, metavar="[URL]...")
@watch_option
@context_option
@output_option
def replicas(urls: tuple[str, ...], watch: float | None, form: str) -> None:
    """Show which servers follow which, and the distance of each replica from its primary.

    Each URL is that of one server, Millstream, Redis or Valkey; context:NAME and @FILE stand for URLs, since a password
    never belongs on a command line. A server that another one names is in the list as well, with that one's facts about
    it. The facts of two servers are a moment apart.

    \b
    Columns, the same in JSON under the names in parentheses:
      link                     up, down, sync (a copy comes), silent (its primary has not heard of it for 10 s); of a
                               replica that was not asked its primary's word: online, wait_bgsave, send_bulk
      behind (behind_bytes)    bytes of its primary's stream of changes that it does not have
      silent for (silent_ms)   since its primary heard of it last, or else since it heard of that
      down for (down_ms)       since the link went down
      offset, history (id)     how far that stream is, and its name: who has another history holds other data
      copies, copied ago (copied_ms), copy size (copy_bytes)
                               whole copies that it took over since its start, and the last of them
      dialect                  version of Redis in whose words it tells its replicas

    \b
    Examples:
      millstream replicas redis://10.0.0.1:6379 redis://10.0.0.2:6379
      millstream replicas context:eu context:us --watch
      millstream replicas @servers -o json | jq '.[] | select(.link == "down")'

    Exit code: 0 all servers answered, 1 some did not, 2 the command line is invalid, 3 none did, 130 interrupted.
    """
    failed: list[ReplicationPlace] = []

    def every(found: "list[ReplicationPlace]") -> None:
        Output(form).table(Table("servers", _COLUMNS, [_row(one, form) for one in found]))
        failed[:] = [one for one in found if one.problem.startswith(_SILENT)]
        if found and len(failed) == len(found) and watch is None:
            raise Disconnected(f"{failed[0].address} {failed[0].problem}")

    with exits("millstream replicas"):
        look_at_all(servers(urls), watch, followers, every, form)
    if failed:
        sys.exit(FAILED)


_SILENT = "does not answer"


def _row(one: "ReplicationPlace", form: str) -> tuple[object, ...]:
    people = form == "table"
    return (
        "  " * one.depth + one.address if people else one.address,
        one.role,
        one.follows,
        one.link,
        one.behind_bytes,
        _ms(one.silent_seconds),
        _ms(one.down_seconds),
        one.offset,
        one.id[:_ID] if people and one.id else one.id,
        one.copies,
        _ms(one.copied_seconds),
        one.copy_bytes,
        one.dialect,
        one.problem or ("" if people else None),
    )


def _ms(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000
