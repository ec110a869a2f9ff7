"""``millstream archive``: move streams to files or tables, and trim entries that are archived and no longer needed."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import millstream.spark
from millstream.cli.shared.asking import replies_of
from millstream.cli.shared.extras import check_extra
from millstream.cli.shared.output import FORMATS as SHOWN
from millstream.cli.shared.output import Column, Output, Table, context_option, subcommand
from millstream.cli.shared.paths import ArchivePlace
from millstream.cli.shared.servers import server_and_rest
from millstream.cli.shared.signals import ended_by_signal
from millstream.cli.shared.time_options import span
from millstream.errors import UsageError
from millstream.spark.archiving.tables.shape import Wanted
from millstream.spark.archiving.trim import Keep

FORMATS = ("parquet", "delta", "iceberg")
PARTITIONS = ("none", "month", "day", "hour")
"""Copy of the values in ``spark.archiving.tables.shape``, so that help need not import it."""
_SHAPED = ("partition", "raw", "schema", "catalog")  # Options that set the archive's form

if TYPE_CHECKING:
    from millstream.spark.archiving.job import Outlook
    from millstream.spark.archiving.store import ArchiveSettings

_PROGRESS = (
    Column("stream"),
    Column("archived", "count"),
    Column("upto", title="archived up to", rank=3),
    Column("total", "count", "in the archive", rank=4),
    Column("trimmed", "count", rank=2),
    Column("left", "count", "left in the stream", rank=1),
    Column("held_by", "prose", "the next is kept by"),
)
_OUTLOOK = (
    Column("stream"),
    Column("archive", "count", "to archive"),
    Column("trim", "count", "to trim"),
    Column("left", "count", "left in the stream", rank=1),
    Column("held_by", "prose", "the next is kept by"),
)


@subcommand()
@click.argument("url", required=False)
@click.argument("streams", nargs=-1)
@click.option(
    "--to",
    required=True,
    type=ArchivePlace(),
    metavar="DIR|URL",
    help="Directory or URL of the archive; created if needed.",
)
@click.option(
    "--stream-pattern",
    "--pattern",
    "pattern",
    metavar="GLOB",
    help="Archive the streams that match this pattern (as in SCAN MATCH) instead of STREAMS.",
)
@click.option(
    "--partitioned", metavar="NAME", help="Archive the partitions of this stream, of all its generations, as one table."
)
@click.option(
    "--format",
    "kind",
    type=click.Choice([*FORMATS, *SHOWN]),
    help="Format of the archive: parquet, delta or iceberg; the others are for -o.  [default: parquet]",
)
@click.option(
    "--partition",
    type=click.Choice(PARTITIONS),
    help="Folders: one for all entries, or one per month, day or hour.  [default: none]",
)
@click.option("--schema", metavar="COLUMNS", help="Columns for fields of the entries: 'item string, price double'.")
@click.option(
    "--fields",
    metavar="NAMES",
    help="Fields that get columns, separated by commas; '*' is all of them, the default without --raw.",
)
@click.option(
    "--raw",
    is_flag=True,
    default=None,
    help="Also keep all fields as a list of bytes; without --fields, create no columns.",
)
@click.option("--catalog", metavar="NAME|URI", help="Iceberg catalog. Default: one in the archive's directory.")
@click.option("--once", is_flag=True, help="Archive the present entries, trim, and end.")
@click.option("--every", default="10s", metavar="SPAN", help="Time between batches.")
@click.option("--batch", default=200_000, metavar="N", help="Maximum number of entries in a batch.")
@click.option("--keep", metavar="SPAN", help="Leave entries younger than this in the stream: 30s, 10m, 1h, 7d.")
@click.option(
    "--keep-entries", type=click.IntRange(0), metavar="N", help="Leave this number of newest entries in the stream."
)
@click.option("--trim/--no-trim", default=True, help="Remove archived entries from the streams.")
@click.option("--skip-lost", is_flag=True, help="Continue if other programs trimmed entries before they were archived.")
@click.option("--file-size", default=128, metavar="MB", help="Merge files up to about this size.")
@click.option(
    "--dry-run", is_flag=True, help="Show the entries to archive and trim, and the reasons that hold the rest."
)
@click.option("--master", default="local[2]", help="Spark master.")
@context_option
@click.option(
    "-o", "form", type=click.Choice(SHOWN), default="table", help="Output format; json, jsonl and csv are for programs."
)
def archive(
    *,
    url: str | None,
    streams: tuple[str, ...],
    to: Path | str,
    pattern: str | None,
    partitioned: str | None,
    kind: str | None,
    fields: str | None,
    every: str,
    batch: int,
    keep: str | None,
    keep_entries: int | None,
    file_size: int,
    dry_run: bool,
    master: str,
    form: str,
    **given: Any,
) -> None:
    """Move streams to Parquet, Delta or Iceberg, and trim archived entries that no group still needs.

    URL names a server (redis://, rediss://, unix:// or context:NAME); or use --context. STREAMS are keys there. Each
    stream becomes a table with typed columns, made from --schema or from its entries. Values that a column cannot
    restore to the byte are also kept as bytes, so nothing is lost. Small files are merged. An archive keeps its format:
    later runs need not name it. Entries are removed from the stream only when the archive has them on disk and every
    consumer group has read and acknowledged them. The limit is the oldest pending entry of any group, or the last one
    it read. A group that has read nothing keeps everything. The command cannot see readers without a group (XREAD, most
    Spark queries): give them time with --keep.

    DIR is on this machine, or mounted. In an object store it is s3://bucket/prefix, gs://bucket/prefix or
    abfss://container@account.dfs.core.windows.net/prefix. Credentials and endpoint come from the environment
    (docs/object-storage.md).

    You can kill the command at any moment and run it again: no entry is lost or archived twice. Run one job per
    archive.

    \b
    Examples:
      millstream archive redis://127.0.0.1:6400/0 orders --to /data/archive --dry-run  show the entries
      millstream archive redis://127.0.0.1:6400/0 orders refunds --to /data/archive      until SIGTERM or Ctrl-C
      millstream archive --context prod orders --to /data/archive --once --keep 7d
      millstream archive redis://127.0.0.1:6400/0 orders --to /data/lake --format delta --partition day
      millstream archive redis://127.0.0.1:6400/0 orders --to /data/ice --format iceberg --schema 'item string, qty int'
      millstream archive redis://127.0.0.1:6400/0 --stream-pattern 'orders:*' --to /data/archive --keep-entries 10000
      millstream archive redis://127.0.0.1:6400/0 --partitioned orders --to /data/archive --once
      millstream archive redis://127.0.0.1:6400/0 orders --to s3://bucket/orders --format delta

    \b
    Read archive and stream as one table (docs/archive.md), or write entries into a stream again (millstream replay):
      spark.read.format("millstream").option("url", URL).option("stream", "orders").option("archive", "/data/archive")

    Needs a Java 17+ runtime and: pip install 'millstream[spark]', with Delta, Iceberg or an object store
    'millstream[lake]'. docs/archive.md lists the promises.

    \b
    Exit codes:
      0  done or stopped
      1  failed: fix the cause, then run it again
      2  the command line is invalid
      3  the server cannot be reached
      4  the named object does not exist
      5  refused
    """
    server, streams = server_and_rest(() if url is None else (url, *streams))
    seconds = span("--every", every, "s") / 1000
    _check((streams, pattern, partitioned), seconds, batch, file_size)
    if kind in FORMATS[1:]:
        check_extra("lake", f"--format {kind}")
    from millstream.spark.archiving.store import ArchiveSettings  # noqa: PLC0415 - needs Arrow, an extra

    names = None if fields is None else tuple(name.strip() for name in fields.split(","))
    shown = kind if kind in SHOWN else None  # --format chose the output before archives had formats
    wanted = Wanted(None if shown else kind, fields=names, **{name: given.pop(name) for name in _SHAPED})

    keep_ms = None if keep is None else span("--keep", keep)
    settings = ArchiveSettings(
        server,
        streams,
        to,
        pattern=pattern,
        every=seconds,
        per_batch=batch,
        keep=Keep(keep_ms, keep_entries, keep or ""),
        target_bytes=file_size << 20,
        wanted=wanted,
        partitioned=partitioned,
        **given,
    )
    if dry_run:
        _look(settings, Output(shown or form))
    else:
        _run(settings, master, Output(shown or form))


def _check(which: tuple[tuple[str, ...], str | None, str | None], every: float, batch: int, file_size: int) -> None:
    if sum(map(bool, which)) != 1:
        raise UsageError("Give exactly one of STREAMS, --stream-pattern and --partitioned.")
    if any("," in stream for stream in which[0]):
        raise UsageError("separate the streams with spaces; a key with a comma is not supported")
    if not every or batch < 1 or file_size < 1:
        raise UsageError("--every, --batch and --file-size must be greater than 0")


def _outlook(settings: "ArchiveSettings") -> "list[Outlook]":
    from millstream.spark.archiving.job import look  # noqa: PLC0415 - as above

    with replies_of(settings.url):
        return look(settings)


def _look(settings: "ArchiveSettings", output: Output) -> None:
    found = _outlook(settings)
    rows = [asdict(one) | {"held_by": one.held_by or None} for one in found]
    output.table(Table("streams", _OUTLOOK, rows, empty="No streams."))


def _run(settings: "ArchiveSettings", master: str, output: Output) -> None:
    from millstream.spark.archiving.job import run  # noqa: PLC0415 - as above

    _outlook(settings)  # report a refusal now, before Spark starts
    spark = millstream.spark.session("millstream archive", quiet=True, master=master, spark__log__level="OFF")
    # After Spark's start, because Spark installs its own handler for Ctrl-C.
    with ended_by_signal() as ended, output.progress({"archived": "archiving"}, unit="entries") as tell:
        report = run(settings, spark, ended, tell, lambda text: click.echo(text, err=True))
    rows = [asdict(one) | {"held_by": one.held_by or None} for one in report]
    output.table(Table("streams", _PROGRESS, rows, empty="No streams."))
