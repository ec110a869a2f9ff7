"""``millstream backup``: copy a data directory while its server runs."""

from pathlib import Path

import click

from millstream.cli.server.log import TITLES, DataDirectory
from millstream.cli.shared.output import Column, Output, context_option, output_option, subcommand
from millstream.cli.shared.servers import server_and_rest
from millstream.errors import UsageError
from millstream.maintenance.backup.backup import back_up
from millstream.maintenance.backup.copying import leftovers

_FACTS = ("source", "made_ms", "snapshot_last", "records", "last", "last_ms")
DOING = {"copy": "Copying the log", "check": "Reading the copy back"}


@subcommand()
@click.argument("source", required=False)
@click.argument("dest", required=False)
@click.option("--link", "links", is_flag=True, help="Link packs instead of copying them; only on one file system.")
@click.option(
    "--since", metavar="EARLIER", type=DataDirectory(path_type=Path), help="Link packs to those of this earlier backup."
)
@click.option(
    "--verify",
    type=click.Choice(["new", "all"]),
    default="new",
    show_default=True,
    help="Files to read back: the copied ones, or linked packs as well.",
)
@click.option("--damaged", is_flag=True, help="Copy packs with damaged entries as they are.")
@context_option
@output_option
def backup(
    source: str | None, dest: str | None, *, links: bool, since: Path | None, verify: str, damaged: bool, form: str
) -> None:
    """Copy a data directory while its server runs.

    SOURCE is a data directory on this machine, or the URL of a Millstream that runs on this machine (or context:NAME,
    or --context). The backup holds everything that was acknowledged before the command began. It is consistent: each
    command and each transaction is in it whole or not at all. The command writes the backup under another name next to
    DEST, syncs it, reads it back, and only then names it DEST. So a backup with that name is complete. The command
    overwrites nothing, and does not back up a damaged log.

    The backup is a data directory with a file BACKUP, which has its time and the size of each file. Restore it with
    `millstream restore`; do not run a server on it. The file of users (--aclfile) is not part of it: copy it too.

    Packs, which hold entries that are not in memory, never change. With --since, packs of an earlier backup are linked,
    so a daily backup copies one day's packs. With --link, packs are linked to those of SOURCE at once, whatever their
    size. A link does not protect against damage of the disk, since both names lead to the same bytes. Without
    --damaged, damaged entries in a pack make the backup fail.

    \b
    Examples:
      millstream backup /var/lib/millstream /backups/$(date +%F)
      millstream backup redis://127.0.0.1:6379 /backups/today
      millstream backup --context local /backups/today
      millstream backup data /backups/today --since /backups/yesterday
      millstream log check /backups/today

    For a server on another machine, run the command there, or use `millstream export URL`, which reads the streams over
    the network.

    \b
    Exit codes:
      0    the backup is written and checked
      1    the backup failed
      2    the command line is invalid
      4    no context has that name
      130  interrupted
    """
    found, rest = server_and_rest(tuple(word for word in (source, dest) if word is not None))
    if len(rest) != 1:
        raise UsageError("Give SOURCE, or --context, and DEST.")
    output, target = Output(form), Path(rest[0])
    directory = _directory(found)
    for partial in leftovers(target.absolute()):
        output.say(f"{partial} was left by an unfinished backup (or one is running); remove it if none runs.")
    with output.progress(DOING) as tell:
        made = back_up(
            directory, target, tell=tell, links=links, since=since, reads_all=verify == "all", keeps_damage=damaged
        )
    for text in made.damage:
        output.say(text)
    shown = {
        "backup": made.path,
        **{name: getattr(made.facts, name) for name in _FACTS},
        "files": len(made.facts.files),
        "bytes": made.bytes,
        "linked_bytes": made.linked,
        "left_out_bytes": made.left_out,
    }
    titles = (
        Column("linked_bytes", "bytes", "of these linked"),
        Column("made_ms", "time", "state of"),
        Column("left_out_bytes", "bytes", "unfinished, left out"),
    )
    output.report(shown, (), (*titles, *TITLES))


def _directory(source: str) -> Path:
    if "://" not in source:
        return Path(source)
    from millstream.maintenance.locate import directory_of  # noqa: PLC0415 - a directory needs no client

    return directory_of(source)
