"""``millstream pending ls``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import click

from millstream.cli.changes.options import with_words
from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.output import Column, Output, Table, subcommand
from millstream.client.line import Line
from millstream.client.partitions.layout import logical
from millstream.errors import UsageError
from millstream.ops.pending import reading as pending
from millstream.ops.pending.choosing import CHOOSING, GONE, choice_of
from millstream.ops.pending.status import PendingChoice, PendingEntry, PendingOrder, PendingPage, pending_facts
from millstream.ops.streams.status import PendingSummary
from millstream.texts import in_one_line, shown

if TYPE_CHECKING:
    from millstream.ops.workers.status import WorkersSeen

_CUT = 80  # bytes of a value in a list for people
_SHOWN = 10  # fields of an entry that are shown
_HELD = 10  # blocked keys that are shown

_Answer: TypeAlias = "tuple[PendingSummary, PendingPage, WorkersSeen | None]"

_PENDING = (
    Column("stream", rank=6),
    Column("id"),
    Column("added_ms", "time", "added", rank=3),
    Column("consumer"),
    Column("idle_ms", "span", "idle for"),
    Column("due_in_ms", "span", "due in", rank=3, people="filled"),
    Column("deliveries", "count", rank=1),
    Column("unowned", people="never"),
    Column("fatal", rank=2, people="filled"),
    Column("gone", rank=4),
    Column("fields", "prose"),
)


@with_words(*CHOOSING, GONE)
@subcommand()
@click.argument("stream")
@click.argument("group")
@click.option("--sort", type=click.Choice(("id", "idle", "deliveries")), default="id", help="Order of the entries.")
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of entries shown.")
@click.option("--scan", type=click.IntRange(1), default=10_000, help="Maximum number of entries to scan.")
@click.option("--start", metavar="ID", help="First id of the page; the previous page prints it.")
@click.option("--payload", is_flag=True, help="Show the fields of each entry too.")
@watch_options
def ls(
    stream: str,
    group: str,
    *,
    sort: str,
    limit: int,
    scan: int,
    start: str | None,
    payload: bool,
    watch: float | None,
    url: str | None,
    form: str,
    **chosen: object,
) -> None:
    """List entries that were delivered to GROUP of STREAM and not acknowledged yet.

    The list is in order of ids, in pages; for a partitioned stream it has the entries of all partitions. With a filter
    or --sort the command scans up to --scan entries (of each partition), the oldest first. The last line reports if
    there are more. An entry without an owner has no consumer and no idle time. `due in` is the time until a delayed
    entry is delivered again. `fatal` marks an entry that a consumer released as impossible to process. `gone` marks one
    that is no longer in the stream; only --payload and --gone check that.

    \b
    Examples:
      millstream pending ls orders billing
      millstream pending ls orders billing --idle 10m --payload
      millstream pending ls orders billing --sort deliveries --limit 10 --scan 1000000
      millstream pending ls orders billing --unowned -o jsonl | jq -r .id
    """
    if start is not None and sort != "id":
        raise UsageError("--start needs entries in the order of their ids: leave out --sort")
    choice = choice_of({name: str(value) for name, value in chosen.items() if value not in {None, False}})
    asked = _Asked(stream, group, choice, sort, limit, scan, start or "-", payload)
    look(url, watch, asked.ask, lambda found, _: asked.show(found, form), form)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments and options of ``ls``."""

    stream: str
    group: str
    choice: PendingChoice
    sort: str
    limit: int
    scan: int
    start: str
    payload: bool

    async def ask(self, line: Line) -> _Answer:
        """Return the number of pending entries, the requested page, and the workers of a partitioned stream."""
        choice = None if self.choice == PendingChoice() else self.choice
        by: PendingOrder | None = None if self.sort == "id" else "idle" if self.sort == "idle" else "deliveries"
        wanted = pending.PendingWanted(
            self.stream, self.group, self.limit, choice, by, self.start, self.scan, self.payload
        )  # fmt: skip
        total, page = await pending.read_wanted(line, wanted)
        parted = logical(self.stream) or any(entry.stream != self.stream for entry in page.entries)
        if not parted:
            return total, page, None
        from millstream.ops.workers.reading import read_workers  # noqa: PLC0415 - a plain stream does not load it

        return total, page, await read_workers(line)

    def show(self, found: _Answer, form: str) -> None:
        """Show the entries once."""
        summary, page, workers = found
        in_parts = any(entry.stream != self.stream for entry in page.entries)
        hidden = (*(() if in_parts else ("stream",)), *(() if self.payload else ("gone", "fields")))
        rows = (_row(entry, form) for entry in page.entries)
        output = Output(form)
        empty = "Nothing is pending." if not summary.total else "No pending entry matches."
        output.table(Table("pending", _PENDING, rows, empty, hidden))
        if page.next is not None or len(page.entries) < summary.total:
            output.say(self._rest(summary, page))
        if workers is not None:
            for one in workers.held_up(self.stream, self.group)[:_HELD]:
                output.say(f"{in_one_line(one.text(workers.at_ms))}.")

    def _rest(self, summary: PendingSummary, page: PendingPage) -> str:
        """Return a sentence about the entries that are not shown, with the option that shows them."""
        said = f"{len(page.entries)} shown of {summary.total} pending ({summary.unowned} without a consumer)"
        if page.next is None:
            return f"{said}."
        if self.sort == "id":
            return f"{said}, {page.looked_at} scanned. The next page: --start '{page.next}'"
        return f"{said}, the {page.looked_at} oldest scanned; --scan {summary.total} scans all."


def _row(entry: PendingEntry, form: str) -> dict[str, object]:
    """Return a pending entry as a table row."""
    if entry.entry is None:
        return pending_facts(entry)
    pairs = entry.entry.fields
    return pending_facts(entry, _fields(pairs) if form == "table" else [list(pair) for pair in pairs])


def _fields(pairs: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return fields as one short line, with the beginning of each value."""
    texts = [f"{shown(name[:_CUT])}={shown(value[:_CUT])}{'...' if len(value) > _CUT else ''}" for name, value in pairs]
    return " ".join(texts[:_SHOWN]) + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "") or None
