"""``millstream stream tail``: show the last entries of streams, all since a time, or new ones as they are added."""

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace

import click

from millstream.cli.entries.choosing import SYNTAX, choice_of, choosing_options
from millstream.cli.entries.shown import ENTRY_FORMATS, EntryOutput, flushed
from millstream.cli.shared.asking import ask_repeatedly
from millstream.cli.shared.output import Output, subcommand, url_option
from millstream.cli.shared.time_options import TIME_HELP, instant
from millstream.client.line import Line
from millstream.client.ranges import behind
from millstream.errors import UsageError
from millstream.ops.entries import reading as entries
from millstream.ops.entries.reading import Arrived, follow, group_positions
from millstream.ops.parameters import entry_id
from millstream.ops.payloads.choice import EntryChoice
from millstream.ops.streams.partitioned import read_layouts
from millstream.ops.words import NEVER, EntryView

_DEFAULT = 10


@subcommand(epilog=SYNTAX)
@click.argument("streams", metavar="STREAM...", nargs=-1, required=True)
@click.option("-f", "--follow", is_flag=True, help="Also show new entries as they are added, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(0),
    help="Number of matching entries to show, the newest. Default: 10.",
)
@click.option("--oldest", is_flag=True, help="Show the oldest of the matching entries, not the newest.")
@click.option("--since", metavar="TIME", help=f"Show entries added at this time or later: {TIME_HELP}.")
@click.option("--until", metavar="TIME", help="Show entries added before this time.")
@click.option("--after", metavar="ID", help="Show entries after this id; 0 is the start of the stream.")
@click.option("--group", metavar="NAME", help="Show entries not delivered to this group yet; the group is not changed.")
@choosing_options
@click.option(
    "--field", "names", multiple=True, metavar="NAME", help="Show only this field, or path into one such as user.city."
)
@click.option("--full", is_flag=True, help="Do not truncate long values on a terminal.")
@url_option
@click.option(
    "-o",
    "--format",
    "form",
    type=click.Choice(ENTRY_FORMATS),
    default="table",
    help="Output format; raw prints the bytes of the fields, separated by tabs.",
)
def tail(
    streams: tuple[str, ...],
    *,
    follow: bool,
    count: int | None,
    oldest: bool,
    since: str | None,
    until: str | None,
    after: str | None,
    group: str | None,
    where: tuple[str, ...],
    grep: tuple[str, ...],
    decoding: str,
    names: tuple[str, ...],
    full: bool,
    url: str | None,
    form: str,
) -> None:
    """Show the last entries of each STREAM, or the first with --oldest, by id, with decoded values.

    STREAM is a key, or a partitioned stream with all its partitions. Groups are not changed. Values are
    shown as JSON, MessagePack, the workers' envelope, text or hex. With --follow the command survives a restart of the
    server: it prints a note and continues after the last entry.

    \b
    Examples:
      millstream stream tail orders
      millstream stream tail orders payments --follow --where 'amount>100 and status!=ok'
      millstream stream tail orders --oldest -n 3                      the first three
      millstream stream tail orders --since 10m --grep timeout
      millstream stream tail orders --group billing -n 5               the newest not delivered to billing yet
      millstream stream tail orders --since 2026-03-01T12:00:00 --until 2026-03-01T12:05:00 -o csv --field amount
      millstream stream tail orders -f -o jsonl | jq .fields.amount
    """
    if follow and until is not None:
        raise UsageError("--follow and --until exclude each other: give one of them")
    if follow and oldest:
        raise UsageError("--follow and --oldest exclude each other: give one of them")
    begins = [name for name, given in (("--since", since), ("--after", after), ("--group", group)) if given]
    if len(begins) > 1:
        raise UsageError(f"{' and '.join(begins)} each set the start: give one of them")
    wanted = TailRange(
        tuple(dict.fromkeys(streams)),
        choice_of(decoding, where, grep),
        count=_DEFAULT if count is None and (oldest or not begins) else count,
        oldest=oldest,
        since=instant("--since", since),
        until=instant("--until", until),
        after=None if after is None else entry_id(after),
        group=group,
        follow=follow,
    )
    shown = EntryOutput(form, wanted.choice, names, streams=wanted.streams, whole=full)
    shown.show(_entries(url, wanted))


@dataclass(frozen=True, slots=True)
class TailRange:
    """The range and filter of the entries to show."""

    streams: Sequence[str]  # Keys of the streams
    choice: EntryChoice  # Filter for the entries
    count: int | None = None  # Number of entries; None for all
    oldest: bool = False  # They are the first ones, not the last
    since: int | None = None  # Entries added at this time or later, in wall milliseconds
    until: int | None = None  # Entries added before this time
    after: str | None = None  # Entries after this id
    group: str | None = None  # Entries after this group's position
    follow: bool = False  # Continue with new entries as they are added


def _entries(url: str | None, wanted: TailRange) -> Iterator[EntryView]:
    """Yield the entries one after the other; print notes to standard error."""
    output = Output()
    for arrived in ask_repeatedly(url, lambda line: read_tail(line, wanted)):
        if arrived.said:
            output.say(arrived.said)
        yield from arrived.entries
        flushed(reading=wanted.follow)


async def read_tail(line: Line, wanted: TailRange) -> AsyncGenerator[Arrived, None]:
    """Yield the existing entries, then new ones as they are added. None is repeated or left out in between."""
    fits = wanted.choice.fits
    wanted, parts = await _with_partitions(line, wanted)
    last = await entries.last_ids(line, wanted.streams, missing_ok=wanted.follow or bool(parts))
    if not wanted.follow:  # a partition without an entry does not exist as a key yet
        last = {stream: at for stream, at in last.items() if at != NEVER or stream not in parts}
        wanted = replace(wanted, streams=tuple(last))
    missing = [stream for stream in wanted.streams if last[stream] == NEVER and wanted.follow]
    if named := [stream for stream in missing if stream not in parts]:
        yield Arrived(said=f"nothing was ever added to {', '.join(named)}; waiting for it")
    end = None if wanted.until is None else f"{max(wanted.until - 1, 0)}"
    starts = await _starts(line, wanted, [stream for stream in wanted.streams if stream not in missing])
    bounds = {stream: (start, end or last[stream]) for stream, start in starts.items()}
    if wanted.until is not None and wanted.until <= 0:
        bounds = {}
    if wanted.count is None:
        async for page in entries.between(line, bounds, fits):
            yield Arrived(tuple(page))
    elif wanted.count and wanted.oldest:
        async for page in _first(entries.between(line, bounds, fits), wanted.count):
            yield Arrived(tuple(page))
    elif wanted.count:
        yield Arrived(tuple(await entries.newest(line, bounds, wanted.count, fits)))
    if wanted.follow:
        async for arrived in follow(line, last):
            yield Arrived(tuple(filter(fits, arrived.entries)), arrived.said)


async def _first(pages: AsyncGenerator[list[EntryView], None], count: int) -> AsyncGenerator[list[EntryView], None]:
    """Yield the first entries of pages, and read no further page."""
    async with contextlib.aclosing(pages):
        async for page in pages:
            yield page[:count]
            count -= len(page)
            if count <= 0:
                return


async def _with_partitions(line: Line, wanted: TailRange) -> tuple[TailRange, frozenset[str]]:
    """Return the range with each partitioned stream replaced by its partitions, and their keys."""
    layouts = await read_layouts(line, wanted.streams)
    keys = [(stream,) if stream not in layouts else layouts[stream].every_key for stream in wanted.streams]
    parts = frozenset(key for layout in layouts.values() for key in layout.every_key)
    return replace(wanted, streams=tuple(dict.fromkeys(key for each in keys for key in each))), parts


async def _starts(line: Line, wanted: TailRange, streams: Sequence[str]) -> dict[str, str]:
    """Return the start of each stream's range, as for XRANGE."""
    if wanted.group is not None:
        places = await group_positions(line, streams, wanted.group)
    elif wanted.after is not None:
        whole = wanted.after
        places = dict.fromkeys(streams, whole)
    else:
        return dict.fromkeys(streams, "-" if wanted.since is None else f"{wanted.since}")
    starts = {stream: behind(place.encode()) for stream, place in places.items()}
    return {stream: start for stream, start in starts.items() if start is not None}
