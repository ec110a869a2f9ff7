"""``millstream server tier`` and ``vacuum``."""

import sys
from dataclasses import asdict

import click

from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import FAILED, Column, Output, Table, show_options, subcommand
from millstream.client.line import Line
from millstream.ops import words
from millstream.ops.streams.places import StreamTier, Vacuumed, read_places, run_vacuum
from millstream.texts import plural

_PLACES = (
    Column("key"),
    Column("entries", "count"),
    Column("cold_entries", "count", "entries in packs", rank=2),
    Column("hot_bytes", "bytes", "bytes in memory"),
    Column("cold_bytes", "bytes", "bytes in packs"),
    Column("packs", "count", rank=3),
    Column("oldest_id", title="oldest id", rank=1),
)
_SORTS = {
    "key": lambda one: one.key,
    "entries": lambda one: -one.entries,
    "hot": lambda one: -one.hot_bytes,
    "cold": lambda one: -one.cold_bytes,
    "packs": lambda one: -one.packs,
}
_WHY = {
    "disk-low": "the disk must keep room for the next rewriting of the log",
    "disk-full": "the disk is full",
    "interrupted": "the tier was turned off, or the data were replaced",
    "error": "packs cannot be read or written; the server's log names them",
    "not-rewritten": "no rewriting of the log could begin; the next one removes the packs that nothing needs",
}


@subcommand()
@click.argument("pattern", required=False)
@click.option("--sort", type=click.Choice(list(_SORTS)), default="key", help="Sort order: by key, or the most first.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of streams shown. Default: all.")
@watch_options
def tier(*, pattern: str | None, sort: str, limit: int | None, watch: float | None, url: str | None, form: str) -> None:
    """List the streams, or those whose key matches PATTERN, by the place of their entries: in memory or in packs.

    A server moves entries to packs if its parameter tier is `yes`; otherwise all entries are in memory. Bytes in packs
    include deleted entries until the server writes their part of the pack anew.

    \b
    Examples:
      millstream server tier
      millstream server tier 'orders*' --sort cold --limit 20
      millstream server tier -o json | jq 'map(.cold_bytes) | add'

    \b
    Exit codes:
      0  the streams are listed
      2  the command line is invalid
      3  the server does not answer
      4  the server does not report the place of entries, as Redis
    """

    async def work(line: Line) -> list[StreamTier]:
        return await read_places(line, pattern)

    def every(found: list[StreamTier], _: object) -> None:
        output = Output(form)
        rows = [asdict(one) for one in sorted(found, key=_SORTS[sort])]
        output.table(Table("streams", _PLACES, rows[:limit], empty="No streams."))
        if limit is not None and len(rows) > limit:
            output.say(f"{limit} of {len(rows)} streams {'is' if limit == 1 else 'are'} shown")
        if found and not any(one.cold_entries for one in found):
            output.say("all entries are in memory")

    look(url, watch, work, every, form)


@subcommand()
@show_options
def vacuum(url: str | None, form: str) -> None:
    """Write parts of packs with deleted entries anew, and remove packs that nothing needs.

    The server does both by itself once it is worth the work; this command does it now, and waits for the end. Ctrl-C
    ends only the wait. The parameter tier-vacuum-rate bounds the bytes a second.

    \b
    Examples:
      millstream server vacuum
      millstream server vacuum -o json | jq .bytes_after

    \b
    Exit codes:
      0    the vacuum has ended
      1    the vacuum ended early: the message names the reason
      2    the command line is invalid
      3    the server does not answer
      4    the server has no packs, as Redis
      130  interrupted; the vacuum continues
    """
    output = Output(form)
    with output.progress({"renew": "Writing parts of packs anew"}) as tell:

        async def work(line: Line) -> Vacuumed:
            return await run_vacuum(line, tell)

        found = ask(url, work)
    if form == "table":
        click.echo(
            f"{plural(found.extents, 'part')} of packs ({words.size(found.rewritten_bytes)}) written anew; packs take "
            f"{words.size(found.bytes_after)} instead of {words.size(found.bytes_before)}"
        )
    else:
        output.report(asdict(found), [])
    if found.status != "ok":
        output.say(f"the vacuum ended early: {_WHY.get(found.status, found.status)}")
        sys.stdout.flush()
        sys.exit(FAILED)
