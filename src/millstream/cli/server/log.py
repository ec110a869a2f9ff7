"""``millstream log``: show the contents and the damage of a data directory, and cut its log on purpose."""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from millstream.cli.shared.output import FAILED, OK, USAGE, Column, Output, Subcommand, Table, output_option
from millstream.errors import UsageError
from millstream.maintenance.backup.thaw import thaw as make_thawed
from millstream.maintenance.log.cut import CutReport
from millstream.maintenance.log.cut import cut as make_cut
from millstream.maintenance.log.cut_pack import cut_packs, entries_without
from millstream.maintenance.log.data_loss import DataLoss, data_loss_in
from millstream.maintenance.log.dump import Choice
from millstream.maintenance.log.dump import dump as found
from millstream.maintenance.log.examine import Examination, advice, examine_directory, kind_of
from millstream.maintenance.log.moment import ANY, parse_moment
from millstream.maintenance.log.packs import PackedExtent, dump_pack, is_pack
from millstream.maintenance.log.records import LogRecord
from millstream.maintenance.log.tier import look_at_tier
from millstream.maintenance.log.walk import records_behind
from millstream.persistence.disk import RealDisk, disk_error
from millstream.persistence.frozen_view import FrozenView
from millstream.texts import in_one_line, plural, time_text


class DataDirectory(click.Path):
    """A path. The URL of a server is refused, since click would accept it as the name of a directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; refuse a URL."""
        if "://" in str(value):
            self.fail(
                f"{value!r} is a URL, and this reads files: name the data directory, on the machine where it is. "
                "CONFIG GET dir on a Millstream returns it",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


_DIR = DataDirectory(path_type=Path)
_SHOWN_KEYS = 20
TITLES = (
    Column("snapshot_last", title="in the snapshot"),
    Column("records", title="records after it"),
    Column("last", title="last position"),
    Column("last_ms", "time", "last record"),
    Column("bytes", "bytes", "size"),
)
_DOING = {"check": "Checking the log", "read": "Reading the records"}

_FILES = (
    Column("name"),
    Column("kind", rank=2),
    Column("bytes", "bytes"),
    Column("first", "count", rank=3),
    Column("records", "count"),
    Column("state", rank=1),
    Column("sealed", rank=4),
)
_PROBLEMS = (
    Column("file"),
    Column("offset", "count"),
    Column("kind"),
    Column("refuses", rank=1),
    Column("text", "prose"),
)
_LOST_KEYS = (
    Column("db", "count", rank=5),
    Column("key"),
    Column("changes", "count", rank=3),
    Column("entries", "count"),
    Column("first_id", rank=2),
    Column("last_id", rank=1),
    Column("ops", "prose", rank=4),
)
_PACKS = (
    Column("name"),
    Column("sealed", rank=4),
    Column("bytes", "bytes"),
    Column("live_bytes", "bytes", rank=2),
    Column("live_share"),
    Column("extents", "count", rank=3),
    Column("entries", "count", rank=1),
)
_COLD_STREAMS = (
    Column("db", "count", rank=2),
    Column("key"),
    Column("entries", "count"),
    Column("cold", "count"),
    Column("cold_bytes", "bytes", rank=1),
)


@click.group(help="Check, dump, thaw or cut the log of a data directory.")
def log() -> None:
    """Group the subcommands; ``help`` above has the help text."""


@log.command(cls=Subcommand)
@click.argument("directory", metavar="DIR", type=_DIR)
@click.option("--quick", is_flag=True, help="Read only header, size and seal of packs, as a start does.")
@output_option
def check(directory: Path, quick: bool, form: str) -> None:
    """Show the contents of a data directory, its damage, and the records that would be lost.

    The command only reads and takes no lock: a server may be running on DIR. A record that is being written does not
    count as damage. The command shows the files, positions, records, times, the snapshot and the bytes kept aside by
    earlier cuts. For damage it shows the file, the byte, the kind, and what to do next. It also shows the records after
    the damage with their keys and entry ids, as far as they can be read.

    \b
    Kinds of damage:
      torn         an unfinished write at the end; a server's start cuts it, keeps it aside and reports it
      damaged      a record's checksum is wrong and records follow; a start is refused
      missing      the manifest names a file that is not there; a start is refused
      foreign      a file is another log's, or the manifest does not name it; a start is refused
      manifest     the manifest is damaged or missing; a start is refused
      snapshot     the snapshot is damaged; a start is refused
      replaceable  the snapshot is damaged or missing, but its log files are still whole; a start uses those
      pack         entries in a file cannot be read; a start works, unless the file was cut short
      illegible    a record's checksum is right, but this Millstream cannot apply it; a start is refused
      newer        not damaged, but a newer Millstream wrote it, and only that version reads it; a start is refused

    \b
    Examples:
      millstream log check /var/lib/millstream
      millstream log check data -o json | jq .problems
      millstream log check data --quick             packs are large, and a start is urgent

    \b
    Exit codes:
      0  no damage
      1  damage, or DIR cannot be read or has no log
      2  the command line is invalid
    """
    output = Output(form)
    with output.progress(_DOING) as tell:
        found = examine_directory(directory, tell=tell, quick=quick)
    steps = advice(found)
    _show_check(output, found, steps)
    if form == "table":
        _conclude(output, found, steps)
    sys.stdout.flush()
    sys.exit(OK if found.report.ok else FAILED)


def _show_check(output: Output, found: Examination, steps: list[str]) -> None:
    report = found.report
    facts = {
        "directory": str(report.directory),
        "ok": report.ok,
        "starts": report.starts,
        "owner_pid": report.owner.pid if report.owner else None,
        "owner_address": report.owner.address if report.owner else None,
        "running": found.running,
        "snapshot": found.snapshot,
        "snapshot_last": found.begin - 1,
        "records": report.records,
        "last": found.last,
        "first_ms": found.first_ms,
        "last_ms": found.last_ms,
        "bytes": found.log_bytes,
        "pack_bytes": found.pack_bytes,
        "under_way_bytes": found.under_way,
        "lost_records": _lost_records(found),
        "lost_entries": found.lost_entries,
        "lost_bytes": None if report.newer else report.lost_bytes,
        "cut_at": "{}:{}".format(*found.cut_at) if found.cut_at else None,
        "next": steps if output.form != "table" else None,
    }
    titles = (
        Column("ok", title="nothing wrong"),
        Column("starts", title="a start works"),
        Column("running", title="in use now"),
        Column("owner_pid", title="used last by"),
        Column("first_ms", "time", "first record"),
        Column("under_way_bytes", "bytes", "being written"),
        Column("lost_records", title="lost records"),
        Column("lost_entries", "count", "lost entries of packs"),
        Column("lost_bytes", "bytes", "lost size"),
        Column("pack_bytes", "bytes", "size of packs"),
        *TITLES,
    )
    if output.form == "table":
        facts.pop("next")
        if report.ok:
            facts = {name: value for name, value in facts.items() if not name.startswith(("lost_", "cut_"))}
    tables = [_files(found), _problems(found)]
    has_keys = not report.ok and not (found.only_packs and output.form == "table")
    output.report(facts, [*tables, _lost_keys(found.losses)] if has_keys else tables, titles)


def _lost_records(found: Examination) -> int | None:
    if found.report.newer:  # records of a newer version are not lost, but this version cannot count them
        return None
    return found.losses.records if found.losses else found.report.lost_records


def _files(found: Examination) -> Table:
    rows = []
    for file in found.report.files:
        result = file.result
        row = (result.first, result.records, result.state.value, result.sealed) if result else (None,) * 4
        rows.append((file.name, _kind_of_file(file.name), file.bytes, *row))
    return Table("files", _FILES, rows, empty="No files.")


def _kind_of_file(name: str) -> str:
    kinds = {"log-": "log", "snapshot-": "snapshot", "pack-": "pack", "torn-": "kept aside", "cut-": "kept aside"}
    named = {"MANIFEST": "manifest", "lock": "lock", "BACKUP": "backup"}
    return next((kind for prefix, kind in kinds.items() if name.startswith(prefix)), named.get(name, "other"))


def _problems(found: Examination) -> Table:
    rows = [(Path(p.path).name, p.offset, kind_of(p), p.refuses, p.text) for p in found.report.problems]
    return Table("problems", _PROBLEMS, rows, empty="Nothing is wrong.")


def _lost_keys(losses: DataLoss | None) -> Table:
    rows = [
        asdict(loss) | {"ops": " ".join(f"{op}:{count}" for op, count in loss.ops.items())}
        for loss in (losses.by_weight() if losses else ())
    ]
    return Table("lost_keys", _LOST_KEYS, rows, empty="No whole record follows the damage.")


def _conclude(output: Output, found: Examination, steps: list[str]) -> None:
    if found.report.ok:
        return
    count = len(found.report.problems)
    loss = "" if found.report.newer or found.only_packs else " " + _loss_sentence(found.losses)
    if found.lost_entries:
        loss += f" {plural(found.lost_entries, 'entry', 'entries')} of packs cannot be read."
    output.say(f"\n{count} problem{'' if count == 1 else 's'}.{loss}")
    for number, step in enumerate(steps, 1):
        output.say(f"{number}. {step}")


def _loss_sentence(losses: DataLoss | None) -> str:
    if losses is None or not losses.records:
        return "No whole record follows the first."
    span = ""
    if losses.first_ms is not None and losses.last_ms is not None:
        span = f", made from {time_text(losses.first_ms)} to {time_text(losses.last_ms)}"
    count = f"{losses.records} whole record{'' if losses.records == 1 else 's'}"
    return f"After the first: {count} (positions {losses.first} to {losses.last}{span})."


@log.command(cls=Subcommand)
@click.argument("directory", metavar="DIR", type=_DIR)
@click.option("--from", "start", metavar="PLACE", help="Position or time of the first record.")
@click.option("--to", "end", metavar="PLACE", help="Position or time of the last record.")
@click.option("--key", metavar="PATTERN", help="Show only changes of keys that match, as KEYS: * ? [a-z] [^a] \\*.")
@click.option(
    "--stream", "--streams", "streams", is_flag=True, help="Show only changes of streams, groups and consumers."
)
@click.option("--past-damage", is_flag=True, help="Continue after damage with the whole records there.")
@click.option(
    "-o",
    "--format",
    "form",
    type=click.Choice(["text", "jsonl"]),
    default="text",
    help="Format: for people, or a JSON object for each record.",
)
def dump(  # noqa: PLR0917 - click passes every option by name
    directory: Path, start: str | None, end: str | None, key: str | None, streams: bool, past_damage: bool, form: str
) -> None:
    """Show the records of a log: position, time and changes of each.

    A record is one command or one transaction. DIR is a data directory, in use or not, or a file that `millstream log
    cut` kept. Records before the snapshot are not in the log any more. Memory does not grow with the log.

    DIR may also be a pack. The command then shows its extents with their entries, and marks the deleted ones. The
    options that choose records do not apply to a pack.

    PLACE is a position (4711), a time (2026-03-01T12:00:00, UTC unless it names a zone), milliseconds since 1970, or
    '10m ago' (s, m, h, d).

    \b
    Examples:
      millstream log dump data --from '10m ago'                recent changes
      millstream log dump data --key 'orders*' --streams       changes of these streams
      millstream log dump data --from 100 --to 200 -o jsonl    for a program
      millstream log dump data --past-damage                   readable records of a damaged log
      millstream log dump data/pack-*.pack                     entries of a pack

    \b
    Exit codes:
      0    all records were shown
      1    the log is damaged, or the pack is cut short; what is before that was shown
      2    the command line is invalid
      141  the reader of the output ended
    """
    if directory.is_file() and is_pack(directory):
        if start or end or key or streams:
            raise UsageError(
                f"{directory} is a pack, which has no records to choose. Omit --from, --to, --key, --stream."
            )
        _dump_pack(dump_pack(directory, past_damage=past_damage), form)
        return
    now = time.time_ns() // 1_000_000
    places = [ANY if word is None else parse_moment(word, now) for word in (start, end)]
    records = found(directory, Choice(places[0], places[1], key, streams, past_damage))
    if form == "text":
        for record in records:
            _show_record(record)
        return
    columns = (Column("position"), Column("wall_ms", "time"), Column("bytes", "bytes"), Column("changes"))
    Output("jsonl").table(Table("records", columns, _rows(records)))


def _dump_pack(extents: Iterator[PackedExtent], form: str) -> None:
    if form == "jsonl":
        columns = tuple(map(Column, ("extent", "node", "id", "deleted", "fields")))
        rows = ((e.offset, each.node, each.id, each.deleted, each.fields) for e in extents for each in e.entries)
        Output("jsonl").table(Table("entries", columns, rows))
        return
    for extent in extents:
        counts = f"{plural(extent.nodes, 'node')}, {plural(extent.size, 'byte')}"
        click.echo(f"{extent.offset:>10}  extent of {counts}")
        for entry in extent.entries:
            fields = ", ".join(repr(word)[1:] for word in entry.fields)
            click.echo(f"{'':>10}  {entry.id} [{fields}]" + " deleted" * entry.deleted)


def _rows(records: Iterator[LogRecord]) -> Iterator[tuple[object, ...]]:
    for record in records:
        changes = [{"op": c.op, "db": c.db, "key": c.key, "arguments": c.arguments} for c in record.changes]
        yield record.position, record.wall, record.size, changes


def _show_record(record: LogRecord) -> None:
    lead = f"{record.position:>10}  {time_text(record.wall)}  "
    for change in record.changes:
        click.echo(lead + in_one_line(change.sentence()))
        lead = " " * len(lead)


@log.command(cls=Subcommand)
@click.argument("directory", metavar="DIR", type=_DIR)
@click.option("--at", "place", metavar="FILE:OFFSET", help="New end of the log: a byte of a file.")
@click.option(
    "--pack", "packs", multiple=True, metavar="NAME", help="Pack to go on without, as its file's name or its number."
)
@click.option("--keep-readable", is_flag=True, help="Give up only the entries of the packs that cannot be read.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
def cut(directory: Path, place: str | None, packs: tuple[str, ...], keep_readable: bool, yes: bool) -> None:
    """Cut a damaged log at a chosen byte, or take a pack out of it, and keep the rest next to it.

    A server refuses to start on a log that is damaged in the middle, since the records after the damage had been
    acknowledged. `millstream log check` prints the byte to cut at. This command shows each key that loses data, prompts
    for confirmation, and cuts. Nothing is removed: the bytes are kept in DIR in files named cut-..., which `millstream
    log dump` reads. Try a backup first (`millstream restore`).

    A server also refuses to start without a pack that holds entries. With --pack, the command deletes these entries, as
    XDEL would, and renames the file to cut-... if it exists. Replicas then get a full copy. Repeat --pack to name all
    packs that are missing or cut short. With --keep-readable, only the entries that cannot be read are deleted.

    \b
    Examples:
      millstream log cut data --at log-00000000000000000001.seg:5120          show the loss, and prompt
      millstream log cut data --at log-00000000000000000001.seg:5120 --yes    for scripts
      millstream log cut data --pack 3                                        go on without pack 3
      millstream log cut data --pack 3 --pack 4 --keep-readable               keep what can be read of both

    \b
    Exit codes:
      0  the log was cut
      1  the log was not cut
      2  the command line is invalid
    """
    if (place is None) == (not packs):
        raise UsageError("Give either --at or --pack.")
    if place is None:
        _take_out(Output(), directory, [Path(each).name for each in packs], yes=yes, keeps_readable=keep_readable)
        return
    name, colon, offset = place.rpartition(":")
    if not colon or not offset.isdecimal():
        raise UsageError(f"{place!r} is invalid: give FILE:OFFSET as `millstream log check` shows it")
    output, directory = Output(), directory.absolute()
    try:
        with FrozenView(RealDisk(), directory) as view:
            losses = data_loss_in(records_behind(view, directory, Path(name).name, int(offset)))
    except OSError as error:
        raise disk_error(f"cannot cut the log in {directory}", error) from error
    _show_loss(output, losses)
    if not yes and not _agreed(losses.records, "records"):
        output.say("Nothing was cut.")
        sys.exit(FAILED)
    _show_cut(output, make_cut(directory, Path(name).name, int(offset)))


def _show_loss(output: Output, losses: DataLoss) -> None:
    output.say(f"Cutting there loses {plural(losses.records, 'whole record')}. {_loss_sentence(losses)}")
    table = _lost_keys(losses)
    rows = list(table.rows)
    if rows:
        output.table(Table(table.name, table.columns, rows[:_SHOWN_KEYS]))
    if len(rows) > _SHOWN_KEYS:
        output.say(f"and {plural(len(rows) - _SHOWN_KEYS, 'more key')}")


def _take_out(output: Output, directory: Path, packs: list[str], *, yes: bool, keeps_readable: bool) -> None:
    """Show the entries of packs that would be lost, prompt, and take them out."""
    missing = entries_without(directory, packs, keeps_readable=keeps_readable)
    lost = sum(each.entries for each in missing)
    output.say(f"After the cut, {plural(lost, 'entry', 'entries')} will be missing.")
    for each in missing[:_SHOWN_KEYS]:
        output.say(f"  {in_one_line(each.sentence())}")
    if len(missing) > _SHOWN_KEYS:
        output.say(f"and those of {plural(len(missing) - _SHOWN_KEYS, 'more key')}")
    if not yes and not _agreed(lost, "entries"):
        output.say("Nothing was cut.")
        sys.exit(FAILED)
    for kept in cut_packs(directory, packs, keeps_readable=keeps_readable).kept:
        output.say(f"A pack is kept in:\n  {kept}")
    output.say("Now run `millstream log check` again.")


def _agreed(count: int, what: str) -> bool:
    """Return True if the user typed the number of items to lose. Without a terminal, exit with an error."""
    if not sys.stdin.isatty():
        click.echo("millstream log cut: no terminal for the confirmation; use --yes to cut", err=True)
        sys.exit(USAGE)
    answer: str = click.prompt(f"Type the number of {what} to lose ({count}) to go on", err=True)
    return answer.strip() == str(count)


def _show_cut(output: Output, report: CutReport) -> None:
    output.say(f"Cut {plural(report.bytes, 'byte')}, kept in:")
    for path in report.kept:
        output.say(f"  {path}")
    output.say("Now run `millstream log check` again.")


@log.command(cls=Subcommand)
@click.argument("directory", metavar="DIR", type=_DIR)
@output_option
def tier(directory: Path, form: str) -> None:
    """Show the packs of a data directory and the streams that have entries in them.

    A pack is a file of entries that are not in memory. The table begins with the pack of which the smallest share is
    still needed. A rewriting of the log removes packs that nothing needs. The command only reads, and no entry: a
    server may be running on DIR. It takes as much memory as a start.

    \b
    Examples:
      millstream log tier /var/lib/millstream
      millstream log tier data -o json | jq '.packs[0].live_share'

    \b
    Exit codes:
      0  the packs were shown
      1  DIR cannot be read, is damaged or has no log
      2  the command line is invalid
    """
    found = look_at_tier(directory)
    facts = {
        "packs_count": len(found.packs),
        "bytes": sum(pack.bytes for pack in found.packs),
        "live_bytes": sum(pack.live_bytes for pack in found.packs),
        "extents": sum(pack.extents for pack in found.packs),
        "entries": sum(pack.entries for pack in found.packs),
        "index_bytes": found.index_bytes,
    }
    titles = (
        Column("packs_count", "count", title="packs"),
        Column("bytes", "bytes", "size"),
        Column("live_bytes", "bytes", "still needed"),
        Column("index_bytes", "bytes", "memory of the index"),
    )
    packs = [
        (pack.name, pack.sealed, pack.bytes, pack.live_bytes, round(pack.live_share, 3), pack.extents, pack.entries)
        for pack in found.packs
    ]
    streams = [(each.db, each.key, each.entries, each.cold, each.cold_bytes) for each in found.streams]
    tables = [
        Table("packs", _PACKS, packs, empty="No packs."),
        Table("streams", _COLD_STREAMS, streams, empty="No stream has entries in packs."),
    ]
    Output(form).report(facts, tables, titles)


@log.command(cls=Subcommand)
@click.argument("directory", metavar="DIR", type=_DIR)
@click.argument("out", metavar="OUT", type=_DIR)
@output_option
def thaw(directory: Path, out: Path, form: str) -> None:
    """Write a data directory without packs, which an older Millstream can read.

    OUT must not exist. It gets all data of DIR, with all entries in its log. A server on OUT has all of them in memory,
    but this command needs only the memory of a start on DIR, and the disk space. It only reads DIR, which may be in
    use: OUT has the state of the moment at which the command began.

    \b
    Examples:
      millstream log thaw /var/lib/millstream /var/lib/millstream-thawed

    \b
    Exit codes:
      0  OUT is written and checked
      1  OUT was not written
      2  the command line is invalid
    """
    made = make_thawed(directory, out)
    titles = (Column("last", title="last position"), Column("bytes", "bytes", "size"))
    shown = {"directory": made.directory, "last": made.last, "entries": made.entries, "bytes": made.bytes}
    Output(form).report(shown, (), (Column("entries", title="entries from packs"), *titles))
