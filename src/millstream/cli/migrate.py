"""``millstream import`` and ``millstream export``: copy streams and compare them with their source; RDB files."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from millstream.cli.shared.asking import replies_of
from millstream.cli.shared.output import Column, Output, Table, output_option, subcommand
from millstream.cli.shared.servers import ServerUrl
from millstream.errors import UsageError
from millstream.migrate.capabilities import VERSIONS
from millstream.migrate.command_file import load
from millstream.migrate.connection import Link, same_place
from millstream.migrate.rdb_file import FORMATS, export_rdb, import_rdb, rdb_path
from millstream.migrate.run import Existing, MigrationOptions, MigrationReport, move, to_file
from millstream.texts import plural

Command = TypeVar("Command", bound=Callable[..., Any])

# Text below the options, for both commands
EPILOG = """\
Stop writers and readers first. A stream that changes during the copy is copied again, up to three times; after that it
is reported and not copied. After an interruption run the same command again: equal streams count as copied. Keys of
other types are counted, but copied only from and to RDB files. docs/moving.md lists the limits.

\b
Exit codes:
  0    the target has all streams
  1    a stream is missing or different, no stream matches a PATTERN, or the copy failed
  2    the command line is invalid
  3    a server cannot be reached
  5    a server refused
  130  interrupted
"""


def _choices(command: Command) -> Command:
    """Add the common options of import and export."""
    for option in reversed(
        (
            click.option(
                "--stream",
                "patterns",
                multiple=True,
                metavar="PATTERN",
                help="Copy only keys that match this pattern (as in SCAN MATCH); repeatable.",
            ),
            click.option(
                "--db",
                type=click.IntRange(0),
                metavar="N",
                help="Number of the database of SOURCE, instead of the URL's.",
            ),
            click.option("--replace", is_flag=True, help="Overwrite streams that exist at the target."),
            click.option("--skip-existing", is_flag=True, help="Skip streams that exist at the target."),
            click.option(
                "--way",
                type=click.Choice(["auto", "dump", "commands"]),
                default="auto",
                help="Copy method: dump uses DUMP and RESTORE, which copy everything; commands work with every target.",
            ),
            click.option("--allow-none", is_flag=True, help="Accept a PATTERN that no stream matches."),
            click.option("--check/--no-check", default=True, help="Compare both sides after the copy."),
            click.option(
                "--strict",
                is_flag=True,
                help="Refuse a stream that the target cannot hold completely; consumers' times do not count.",
            ),
        )
    ):
        command = option(command)
    return output_option(command)


@subcommand("import", epilog=EPILOG)
@click.argument("source", type=ServerUrl(secret=True))
@click.option(
    "--to",
    "target",
    required=True,
    type=ServerUrl(secret=True),
    metavar="URL",
    help="Target: redis://..., file:///DIR.",
)
@_choices
def import_(source: str, target: str, db: int | None, form: str, **choices: Any) -> None:
    """Copy streams from SOURCE to a data directory or to any server.

    SOURCE is the URL of a server (redis://, rediss://, unix://, context:NAME) or of a data directory (file:///DIR), or
    a file. The file is an RDB file of Redis or Valkey, or an export by `millstream export`. It is only read. The
    command copies entries, ids, counters, groups, consumers and pending entries. Each stream has a temporary name until
    both sides have been read again and are alike.

    \b
    Examples:
      millstream import redis://old:6379/0 --to file:///var/lib/millstream
      millstream import redis://old --to redis://127.0.0.1:6380 --stream 'orders:*' --stream audit
      millstream import streams.resp.gz --to redis://127.0.0.1:6380
      millstream import /var/lib/redis/dump.rdb --db 0 --to redis://127.0.0.1:6380
    """
    output = Output(form)
    report = _between(output, source, target, db, _chosen(**choices))
    _show(output, report)
    sys.exit(0 if report.ok else 1)


@subcommand(epilog=EPILOG)
@click.argument("source", type=ServerUrl(secret=True))
@click.argument("target", type=ServerUrl(secret=True))
@click.option("--text", is_flag=True, help="Write a text file, one command a line, instead of RESP.")
@click.option(
    "--for",
    "version",
    type=click.Choice(["6.2", "7.0", "7.2", "8.8"]),
    default="7.0",
    help="Oldest Redis version that must read the file; ignored if TARGET is a server.",
)
@_choices
def export(source: str, target: str, text: bool, version: str, db: int | None, form: str, **choices: Any) -> None:
    """Copy streams from SOURCE to TARGET.

    SOURCE is a URL: redis://, rediss://, unix://, or file:///DIR for a data directory. TARGET is the URL of a server
    that speaks Redis Streams (6.2 or newer), or a file. The file has plain commands for `redis-cli --pipe`, or with
    --text one command a line as redis-cli reads it. A file whose name ends in .gz is compressed. Its last command is a
    PING with the number of commands, so that `millstream import` refuses an incomplete file. A file whose name ends in
    .rdb is an RDB file: redis-server starts from it (--dbfilename), with the keys of all types.

    \b
    Examples:
      millstream export file:///var/lib/millstream redis://new:6379/0
      millstream export redis://127.0.0.1:6380 streams.resp.gz       then: zcat streams.resp.gz | redis-cli --pipe
      millstream export redis://127.0.0.1:6380 orders.txt --text --stream orders
      millstream export file:///var/lib/millstream dump.rdb --for 7.2
    """
    output = Output(form)
    chosen = _chosen(**choices)
    if "://" in target:
        if text:
            raise UsageError(f"--text is for a file, and {target!r} is a server, which always gets plain commands")
        report = _between(output, source, target, db, chosen)
    else:
        if "://" not in source:
            raise UsageError(f"{source!r} is a file, and only `millstream import` reads files")
        report = _file(output, source, target, db, chosen, text=text, version=version)
    _show(output, report)
    sys.exit(0 if report.ok else 1)


def _chosen(*, replace: bool, skip_existing: bool, **choices: Any) -> "MigrationOptions":
    """Return the common options. The two for existing streams exclude each other."""
    if replace and skip_existing:
        raise UsageError("--replace and --skip-existing exclude each other: give one of them")
    existing: Existing = "replace" if replace else "skip" if skip_existing else "refuse"
    return MigrationOptions(existing=existing, **choices)


NAMES = {"copied": "copying", "compared": "comparing"}


def _between(
    output: Output, source: str, target: str, db: int | None, choices: "MigrationOptions"
) -> "MigrationReport":
    """Copy from a server or a file to a server."""
    path = rdb_path(source)
    with ExitStack() as stack:
        stack.enter_context(replies_of(*(each for each in (source, target) if "://" in each)))
        if path is not None:
            there = stack.enter_context(Link(target))
            with output.progress(NAMES, unit="entries") as tell:
                return import_rdb(path, db or 0, there, choices, tell)
        if "://" in source:
            link = stack.enter_context(_opened(source, db))
        else:
            link = stack.enter_context(Link("memory://"))
            load(Path(source), link)
        there = stack.enter_context(Link(target))
        if same_place(link, there):
            raise UsageError("source and target are the same database: there is nothing to copy")
        with output.progress(NAMES, unit="entries") as tell:
            return move(link, there, choices, tell)


def _opened(source: str, db: int | None) -> "Link":
    """Return a link to a source.

    A mistyped directory must neither look like a store without streams nor be created.
    """
    if source.startswith("file://"):
        directory = Path(unquote(urlsplit(source).path))
        if not (directory / "MANIFEST").exists():
            raise UsageError(f"{directory} has no log, so there is nothing to copy. Give a data directory.")
    return Link(source, db=db)


def _file(
    output: Output, source: str, target: str, db: int | None, choices: "MigrationOptions", *, text: bool, version: str
) -> "MigrationReport":
    """Copy from a server to a file."""
    is_rdb = target.endswith(".rdb")
    if is_rdb and (text or version not in FORMATS):
        raise UsageError(f"an RDB file is not text, and Redis {min(FORMATS)} is the oldest that reads it")
    bar = output.progress(NAMES, unit="entries")
    with replies_of(source), _opened(source, db) as link, bar as tell:
        if is_rdb:
            return export_rdb(link, Path(target), version, choices, tell)
        return to_file(link, Path(target), "text" if text else "resp", VERSIONS[version], choices, tell)


COLUMNS = (
    Column("stream"),
    Column("state"),
    Column("way", rank=3),
    Column("entries", "count"),
    Column("groups", "count", rank=2),
    Column("pending", "count", rank=1),
    Column("reason", "prose", people="never"),
    Column("losses", "prose", people="never"),
    Column("differences", "prose", people="never"),
)


def _show(output: Output, report: "MigrationReport") -> None:
    """Print the table to standard output, and the sentences to standard error."""
    rows = [asdict(one) | {"stream": one.key} for one in report.streams]
    output.table(Table("streams", COLUMNS, rows, empty="There are no streams to copy."))
    if output.form == "table":
        for outcome in report.streams:
            name = outcome.key.decode(errors="backslashreplace")
            for text in (outcome.reason, *outcome.differences, *(f"not carried: {lost}" for lost in outcome.losses)):
                if text:
                    output.say(f"{name}: {text}")
    for sentence in _sentences(report):
        output.say(sentence)


# Largest number of named keys for each kind of omitted content
_NAMES = 20


def _keys_of_files(report: "MigrationReport") -> list[str]:
    """Return sentences about keys that are not streams, from and to RDB files."""
    said = []
    if report.carried:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.carried.items()))
        said.append(f"Copied besides the streams: {kinds}.")
    said += [f"Not copied: {repr(key)[1:]}: {reason}." for key, reason in report.left]
    for what in sorted({what for what, _ in report.not_held}):
        keys = [key for each, key in report.not_held if each == what]
        names = [repr(key)[1:] for key in keys if key is not None]
        more = ", ..." if len(names) > _NAMES else ""
        shown = f" ({', '.join(names[:_NAMES])}{more})" if names else ""
        said.append(f"Left out, since the target does not support it: {len(keys)} {what}{shown}.")
    return said


def _sentences(report: "MigrationReport") -> list[str]:
    """Return sentences about the migration as a whole."""
    said = []
    if report.lacks_times:
        said.append(
            "Consumers copied by commands were last seen and active when they were copied: no command sets these times."
        )
    if report.others:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.others.items()))
        said.append(f"Not copied, since they are not streams: {kinds}.")
    said += _keys_of_files(report)
    if report.elsewhere:
        places = ", ".join(f"{number} ({plural(count, 'key')})" for number, count in sorted(report.elsewhere.items()))
        said.append(f"Not read: databases {places} of the source. --db N copies one, to the database of --to.")
    if report.unmatched:
        patterns = ", ".join(repr(pattern) for pattern in report.unmatched)
        said.append(
            f"No stream of the source matches {patterns}: check the database (--db), or accept this with --allow-none."
        )
    if report.different is not None:
        said.append(
            f"The file differs from its source and is kept as {report.different}, to be looked at and not to be used: "
            "stop who writes and reads, and export again."
        )
    if report.leftovers:
        names = ", ".join(repr(key)[1:] for key in report.leftovers)
        said.append(f"An earlier run left unfinished copies at the target; delete them if no copy is running: {names}.")
    good = sum(outcome.ok for outcome in report.streams)
    entries = sum(outcome.entries for outcome in report.streams if outcome.ok)
    said.append(
        f"{good} of {plural(len(report.streams), 'stream')} {'is' if good == 1 else 'are'} at the target, with "
        f"{plural(entries, 'entry', 'entries')}."
    )
    return said
