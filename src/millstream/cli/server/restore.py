"""``millstream restore``: restore a data directory from a backup, completely or to a point in time."""

import time
from pathlib import Path

import click

from millstream.cli.server.backup import DOING
from millstream.cli.server.log import TITLES, DataDirectory
from millstream.cli.shared.output import Column, Output, output_option, subcommand
from millstream.maintenance.backup.restore import restore as make
from millstream.maintenance.log.moment import parse_moment


@subcommand()
@click.argument("backup", type=DataDirectory(path_type=Path))
@click.argument("directory", metavar="DIR", type=DataDirectory(path_type=Path))
@click.option("--until", metavar="PLACE", help="Leave out records after this time or position.")
@click.option("--force", is_flag=True, help="Set the contents of DIR aside, under another name.")
@click.option("--link", "links", is_flag=True, help="Link packs instead of copying them; only on one file system.")
@click.option("--damaged", is_flag=True, help="Copy packs with damaged entries as they are.")
@output_option
def restore(
    backup: Path, directory: Path, until: str | None, *, force: bool, links: bool, damaged: bool, form: str
) -> None:
    """Restore a data directory from a backup, completely or to a point in time.

    BACKUP is a backup or any data directory, in use or not; it is only read. It is checked first: a damaged or
    incomplete one is refused, and nothing is created. DIR must not exist or be empty; with --force, its content is
    renamed to DIR.before-TIME and kept. No server may be running on DIR.

    --until leaves out later records. It takes a position (4711: up to and with that record), a time
    (2026-03-01T12:00:00, UTC unless it names a zone), milliseconds since 1970, or '10m ago' (s, m, h, d). `millstream
    log dump` shows both for every record. A log has no records from before its snapshot: use an older backup for such a
    time.

    With --link, full packs stay in one place under two names, and all other files are copied. A server never changes
    a full pack, but damage of the disk then concerns both.

    \b
    Examples:
      millstream restore /backups/today /var/lib/millstream
      millstream restore /backups/today data-noon --until 2026-03-01T12:00:00
      millstream restore data data-before --until '10m ago'       next to the running server, from its own log

    \b
    Exit codes:
      0    the data directory is restored and checked
      1    the restore failed
      2    the command line is invalid
      130  interrupted
    """
    output = Output(form)
    moment = parse_moment(until, time.time_ns() // 1_000_000) if until is not None else None
    with output.progress(DOING) as tell:
        made = make(backup, directory, until=moment, force=force, links=links, keeps_damage=damaged, tell=tell)
    rest = ("made_ms", "snapshot_last", "records", "last", "last_ms", "left_out_records", "set_aside", "bytes")
    shown = {"directory": made.directory, "backup": made.source, **{name: getattr(made, name) for name in rest}}
    titles = (Column("made_ms", "time", "backup of"), Column("left_out_records", title="later, left out"))
    output.report(shown, (), (*titles, *TITLES))
