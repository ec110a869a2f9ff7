"""``millstream report``: write one file with the facts that others need to understand an incident."""

import gzip
import io
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click

from millstream._version import __version__
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import FAILED, Output, Tell, subcommand, url_option
from millstream.cli.shared.time_options import SPAN_HELP, span
from millstream.client.line import Line
from millstream.client.recorded.report import FORMAT
from millstream.errors import UsageError
from millstream.ops.report.gather import Gathering, ReportBounds, ReportWriter
from millstream.ops.report.redact import Redactor
from millstream.printable import without_password
from millstream.texts import plural, size_text

_DOING = {"streams": "Streams", "groups": "Groups", "entries": "Entries"}
_NAMED = 10  # number of omitted parts that are named


@dataclass(frozen=True, slots=True)
class Include:
    """Optional contents of a report."""

    payloads: bool  # Include the values of entries
    addresses: bool  # Include the addresses of clients and servers
    characters: int  # Maximum length of the unpacked file, in characters


@subcommand()
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    help="New file for the report; gzipped if it ends in .gz; - is standard output.",
)
@click.option("--payloads", is_flag=True, help="Include the values of entries, and the arguments of slow commands.")
@click.option("--addresses", is_flag=True, help="Include addresses of clients and servers.")
@click.option("--limit", type=click.IntRange(1), default=1000, help="Maximum number of streams.")
@click.option("--timeout", default="60s", metavar="SPAN", help=f"Maximum time for reading the server: {SPAN_HELP}.")
@click.option("--max-size", type=click.IntRange(1, 100), default=32, metavar="MB", help="Maximum size of the file.")
@url_option
def report(  # noqa: PLR0917 - click passes every option by name
    file: str | None, payloads: bool, addresses: bool, limit: int, timeout: str, max_size: int, url: str
) -> None:
    """Write a report of the server: one file with the facts that others need to understand an incident.

    For each stream it has the groups with lag, consumers, the oldest and the most delivered pending entries, the first
    and last entries, and dead letters by class. For the server it has workers, pauses, Spark queries, changes, INFO,
    slow commands, parameters and connections. It leaves out addresses, texts of errors, and anything that may be a
    secret. It has sizes and field names of entries, but no values. It includes names of streams, groups, consumers,
    fields and users: check the file before you share it. The command only reads.

    `millstream console --report FILE` shows it in the browser, and with `--url report:FILE` other commands read it.

    \b
    Examples:
      millstream report                                 a file millstream-report-TIME.json.gz; its name is printed
      millstream report -o incident.json --limit 50
      millstream report -o - | jq '.left_out'
      millstream group ls --url report:incident.json

    \b
    Exit codes:
      0  written
      1  written but incomplete; the command lists the missing parts
      2  the command line is invalid
      3  the server cannot be reached
      5  refused
    """
    seconds = span("--timeout", timeout, "s") / 1000
    include = Include(payloads, addresses, max_size << 20)
    name = file or f"millstream-report-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json.gz"
    output = Output()
    with _opened(name) as opened, output.progress(_DOING, unit="") as tell:
        left_out, size = _write(opened, url, include, ReportBounds(limit, seconds), tell)
    if name != "-":
        print(name)  # noqa: T201 - the one line of facts
    output.say(f"Wrote {size_text(size)}{' before compression' if name.endswith('.gz') else ''}; {_said(include)}.")
    for what, why in list(left_out.items())[:_NAMED]:
        output.say(f"Left out: {what}: {why}.")
    if len(left_out) > _NAMED:
        output.say(f"And {len(left_out) - _NAMED} more; the file has all, under left_out.")
    sys.exit(FAILED if left_out else 0)


def _said(include: Include) -> str:
    """Return a text about the optional contents that may be secret."""
    values = "with the values of entries" if include.payloads else "without the values of entries"
    return f"{values} and {'with' if include.addresses else 'without'} addresses"


@contextmanager
def _opened(name: str) -> Iterator[IO[str]]:
    """Yield a new file that only its owner can read; remove it if the block fails."""
    if name == "-":
        yield sys.stdout
        return
    path = Path(name)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} exists already, and is not overwritten: give another name with -o") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; give another path with -o") from None
    try:
        with os.fdopen(opened, "wb") as raw:
            packed = gzip.GzipFile("", "wb", 6, raw) if path.name.endswith(".gz") else raw
            with io.TextIOWrapper(packed, "utf-8", write_through=True) as text:
                yield text
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _write(file: IO[str], url: str, include: Include, bounds: ReportBounds, tell: Tell) -> tuple[dict[str, str], int]:
    """Read the facts and write them. Return the missing parts with reasons, and the number of characters written."""
    writer = ReportWriter(file, Redactor(payloads=include.payloads, addresses=include.addresses), include.characters)

    async def work(line: Line) -> None:
        began = line.wall_time()
        writer.begin(
            {
                "millstream_report": FORMAT,
                "at_ms": began,
                "millstream": __version__,
                "python": platform.python_version(),
                "server": without_password(url) if include.addresses else url.partition(":")[0],
                "payloads": include.payloads,
                "addresses": include.addresses,
            }
        )
        gathering = Gathering(line, writer, bounds, tell)
        await gathering.run()
        if gathering.streams_left_out:
            writer.left_out[plural(gathering.streams_left_out, "stream")] = "beyond --limit, or the time was up"
        writer.end({"streams_left_out": gathering.streams_left_out, "took_ms": line.wall_time() - began})

    ask(url, work)
    return writer.left_out, writer.size
