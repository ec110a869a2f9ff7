"""The actions ``pending ack``, ``claim`` and ``nack``, with their plans.

Entries are changed page by page. Each entry is a step of its own, made only while the same consumer holds it with the
same number of deliveries. An entry that was processed, claimed or released after the preview is skipped.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias

from millstream.client import emulate
from millstream.client.capabilities import Capabilities
from millstream.client.delays import due
from millstream.client.line import Line
from millstream.errors import UsageError
from millstream.ops.actions import Word, action
from millstream.ops.guard import StepResult
from millstream.ops.making import ActionCall, Page, Prepared
from millstream.ops.parameters import Group, Stream
from millstream.ops.pending.choosing import PARTS, EntriesChosen, EntriesOrGone
from millstream.ops.pending.reading import held_pages
from millstream.ops.pending.status import Chosen, PendingChoice
from millstream.ops.plan import (
    MOST_KEPT,
    NOBODY,
    BeforeAfter,
    ChangePlan,
    ChangeRefusedError,
    HeldEntry,
    Step,
    Undo,
    Words,
    counted,
    delays_end,
    entry_check,
    put_back_command,
)
from millstream.ops.streams.measuring import ENTRIES_A_TRIP
from millstream.ops.streams.reading import read_consumers

_NOT_READ = (
    "The consumer is not notified. A worker starts them only after its min_idle_time, another program when it reads "
    "its own pending entries (XREADGROUP with an id). Release them instead, and the group's workers start them at once."
)
_DROPPED = "Entries no longer in the stream are dropped from the pending entries."


@action("pending ack", "Acknowledge pending entries: they count as processed.", "XACK", undo="audit undo", parts=PARTS)
async def acknowledge(change: ActionCall, stream: Stream, group: Group, chosen: EntriesOrGone) -> Prepared:
    """Acknowledge pending entries of GROUP of STREAM: they count as processed.

    Name entries by ID, choose them by options, or use --all. An entry that was processed, claimed or released after the
    preview is skipped, and the exit code is then 1. `millstream audit undo` makes them pending again, with the same
    consumer and delivery count, unless they are gone from the stream.

    \b
    Examples:
      millstream pending ack orders billing 1763721600000-0
      millstream pending ack orders billing --consumer web-1 --idle 1h --dry-run
      millstream pending ack orders billing --deliveries 10 --yes
      millstream pending ack orders billing --gone            entries trimmed before they were processed
    """
    where = pending_list(change, stream, group)
    gone = isinstance(chosen, PendingChoice) and chosen.gone
    note = "They are trimmed or deleted from the stream, with nothing to process." if gone else (
        "They count as processed: no consumer receives them again."
    )  # fmt: skip
    return await paged(change, where, chosen, (note,), _made(lambda held: plan_acknowledge(where, held, gone=gone)))


@action("pending claim", "Claim pending entries for another consumer.", "XCLAIM", undo="audit undo", parts=PARTS)
async def claim(
    change: ActionCall,
    stream: Stream,
    group: Group,
    chosen: EntriesChosen,
    to: Annotated[
        str, Word("option", "CONSUMER", "Consumer that takes the entries over.", title="to", hint="web-1", needed=True)
    ],
) -> Prepared:
    """Claim pending entries of GROUP of STREAM for another consumer; their delivery counts stay.

    Name entries by ID, choose them by options, or use --all. An entry that was processed, claimed or released after the
    preview is skipped, and the exit code is then 1. `millstream audit undo` returns them to their former consumers.

    \b
    Examples:
      millstream pending claim orders billing 1763721600000-0 --to web-2
      millstream pending claim orders billing --consumer web-1 --to web-2 --dry-run
    """
    if not to:
        raise UsageError("The consumer is missing. Name one; `millstream pending nack` releases entries without one.")
    where = pending_list(change, stream, group)
    known = {found.name for found in await read_consumers(change.line, stream, group)}
    notes = [_NOT_READ, _DROPPED]
    if to not in known:
        notes.append(f"There is no consumer {to!r} in the group yet: this change creates it.")
    return await paged(change, where, chosen, tuple(notes), _made(lambda held: plan_claim(where, held, to)))


Mode = Literal["silent", "fail", "fatal"]
"""Ways to release an entry.

``silent``: the delivery is not counted. ``fail``: it stays counted. ``fatal``: no consumer shall process the entry.
"""


@action("pending nack", "Release pending entries, for any consumer to take.", "XNACK", undo="audit undo", parts=PARTS)
async def nack(
    change: ActionCall,
    stream: Stream,
    group: Group,
    chosen: EntriesChosen,
    mode: Annotated[
        Mode,
        Word(
            "option",
            says="silent: do not count the delivery; fail: count it; fatal: mark the entry as impossible to process "
            "(needs XNACK).",
            usual="fail",
        ),
    ] = "fail",
) -> Prepared:
    """Release pending entries of GROUP of STREAM: any consumer can take them at once.

    Name entries by ID, choose them by options, or use --all. An entry that was processed, claimed or released after the
    preview is skipped, and the exit code is then 1. `millstream audit undo` returns them to their former consumers.
    On a server without XNACK (Redis before 8.8), a consumer named '' holds them.

    \b
    Examples:
      millstream pending nack orders billing 1763721600000-0
      millstream pending nack orders billing --consumer web-1 --mode silent
    """
    change.settle(mode=mode)
    capabilities, where = change.rights.capabilities, pending_list(change, stream, group)
    if mode == "fatal" and not capabilities.xnack:
        raise ChangeRefusedError(
            "--mode fatal needs XNACK (Redis 8.8 and newer), which this server does not have: the delivery counter "
            "would overflow. `millstream pending ack` removes the entry from the pending ones."
        )
    note = {
        "silent": "The delivery is not counted: deliveries are one fewer, at least 0.",
        "fail": "The delivery stays counted.",
        "fatal": "Their delivery counts are set to the maximum: workers make dead letters of such entries.",
    }[mode]
    others = () if capabilities.xnack else (
        "This server has no XNACK: a consumer named '' holds them, and any claim can take them at once.", _DROPPED,
    )  # fmt: skip

    def page(held: list[HeldEntry]) -> ChangePlan:
        return plan_nack(where, held, lambda each: _release(where, capabilities, each, mode))

    return await paged(change, where, chosen, (note, *others), _made(page))


@dataclass(frozen=True, slots=True)
class PendingList:
    """The pending list of one group."""

    stream: str  # Key of the stream
    group: str  # Name of the group
    # True if the server keeps entries without a holder (XNACK); otherwise a consumer ``""`` holds them
    xnack: bool = False
    due: str = ""  # Key of the group's due times

    def put_back(self, held: HeldEntry) -> Words:
        """Return the command that restores a pending entry as it was."""
        return put_back_command(self.stream, self.group, held, xnack=self.xnack)


def _release(where: PendingList, capabilities: Capabilities, held: HeldEntry, mode: Mode) -> Words:
    """Return the command that releases one entry."""
    if mode == "fatal":
        return ("XNACK", where.stream, where.group, "FATAL", "IDS", 1, held.id)
    move = emulate.release(capabilities, where.group, held.deliveries, charge=mode == "fail")
    words = move.command(where.stream, [held.id.encode()])
    return tuple(held.id if word == held.id.encode() else word for word in words)


def pending_list(change: ActionCall, stream: str, group: str) -> PendingList:
    """Return the group's pending list with the server's capabilities."""
    return PendingList(stream, group, change.rights.capabilities.xnack, due.key(stream, group))


Maker: TypeAlias = Callable[[Line, list[HeldEntry]], Awaitable[ChangePlan]]
"""Function that plans the change of one page of pending entries."""


def _made(plan: Callable[[list[HeldEntry]], ChangePlan]) -> Maker:
    """Return a maker that sends nothing to the server."""

    async def make(_: Line, held: list[HeldEntry]) -> ChangePlan:
        return plan(held)

    return make


async def paged(
    change: ActionCall,
    where: PendingList,
    chosen: Chosen,
    notes: tuple[str, ...],
    make: Maker,
    size: int = ENTRIES_A_TRIP,
) -> Prepared:
    """Prepare a change of pending entries: count them now, and read each page again when its turn comes.

    Up to 5,000 entries are compared with their earlier state. For more entries, only the number of missing ones is
    reported.
    """
    tally, first, shown = Tally(), list[HeldEntry](), dict[str, tuple[str, int]]()
    looked = 0
    async for page in held_pages(change.line, where.stream, where.group, chosen):
        tally.add(page)
        first += page[: FIRST - len(first)]
        looked += len(page)
        if looked <= MOST_KEPT:
            shown.update({held.id: (held.consumer, held.deliveries) for held in page})
        else:
            shown.clear()
        change.tell(looked)

    async def pages(line: Line) -> AsyncGenerator[Page, None]:
        left, seen = dict(shown), 0
        async for page in held_pages(line, where.stream, where.group, chosen):
            held = [one for one in page if not shown or left.get(one.id) == (one.consumer, one.deliveries)]
            seen += len(held)
            for one in held:
                left.pop(one.id, None)
            for at in range(0, len(held), size):
                yield await make(line, held[at : at + size])
        if left:
            yield tuple(StepResult(Step((), entry=each), "moved", why=f"entry {each} was {_SKIPPED}") for each in left)
        elif seen < looked:
            yield (StepResult(Step(()), "moved", why=f"{counted(looked - seen)} {_SKIPPED}"),)

    if isinstance(chosen, tuple) and (missing := len(chosen) - tally.entries):
        notes = (*notes, f"{missing} of the {len(chosen)} ids {'is' if missing == 1 else 'are'} not pending there.")
    plan = await make(change.line, first)
    if len(first) == tally.entries:  # the plan contains all entries except those that the change does not affect
        changed = {step.entry for step in plan.steps}
        tally = Tally()
        tally.add([held for held in first if held.id in changed])
    return Prepared(previewed(plan, tally, notes), tally.entries, pages)


_SKIPPED = "processed, claimed or released after the preview"


FIRST = 20
"""Limit of raw commands in a preview of several pages, for the first entries."""

_NAMED = 8  # number of consumers that a preview names

_VERBS = {
    "pending ack": "Acknowledge",
    "pending claim": "Claim",
    "pending nack": "Release",
    "pending dead": "Make dead letters of",
}


@dataclass(slots=True)
class Tally:
    """Counts over selected pending entries, without the entries themselves."""

    # Consumer -> number of its entries; ``""`` for entries without a holder
    held: Counter[str] = field(default_factory=Counter)
    waiting: int = 0  # Number of delayed entries

    def add(self, entries: Sequence[HeldEntry]) -> None:
        """Count some entries."""
        self.held.update(held.consumer for held in entries)
        self.waiting += sum(held.waits for held in entries)

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.held.total()


_NOT_BACK = (
    "They cannot be pending again: they are no longer in the stream, and Redis 7.0 and newer claim no such entries."
)


def plan_acknowledge(where: PendingList, held: Sequence[HeldEntry], *, gone: bool = False) -> ChangePlan:
    """Plan to acknowledge entries, so that they count as processed."""
    plan = plan_of_page("pending ack", where, held, lambda each: ("XACK", where.stream, where.group, each.id))
    return replace(plan, undo=Undo(note=_NOT_BACK)) if gone else plan


def plan_claim(where: PendingList, held: Sequence[HeldEntry], consumer: str) -> ChangePlan:
    """Plan to move entries to another consumer; their delivery counts stay."""
    stream, group = where.stream, where.group
    plan = plan_of_page(
        "pending claim", where, held, lambda each: ("XCLAIM", stream, group, consumer, 0, each.id, "JUSTID")
    )
    return replace(plan, undo=replace(plan.undo, now=consumer))


def plan_nack(where: PendingList, held: Sequence[HeldEntry], command: Callable[[HeldEntry], Words]) -> ChangePlan:
    """Plan to release entries, so that any consumer can take them."""
    plan = plan_of_page("pending nack", where, held, command)
    return replace(plan, undo=replace(plan.undo, now=NOBODY))


def plan_of_page(
    action: str, where: PendingList, held: Sequence[HeldEntry], command: Callable[[HeldEntry], Words]
) -> ChangePlan:
    """Plan one command for each entry, which runs only while the entry's holder and deliveries are unchanged."""
    stream, group = where.stream, where.group
    steps = tuple(
        Step((*_no_delay(where, each), command(each)), (entry_check(stream, group, each),), each.id) for each in held
    )
    undo = Undo(commands=tuple(map(where.put_back, held)), held=tuple(held))
    return ChangePlan(action, stream, group, steps=steps, undo=undo)


def _no_delay(where: PendingList, held: HeldEntry) -> tuple[Words, ...]:
    """Return the command that ends an entry's delay, since a person's decision overrides it."""
    return (("ZREM", where.due, held.id),) if held.waits else ()


def previewed(first: ChangePlan, tally: Tally, notes: tuple[str, ...] = ()) -> ChangePlan:
    """Return the plan of the first page as the preview of all pages."""
    now = first.undo.now
    verb, where = _VERBS[first.action], f" for {now!r}" if now else ""
    question = f"{verb} {counted(tally.entries)} pending in {first.group!r} of {first.stream!r}{where}?"
    rows = [
        BeforeAfter(f"of these held by {name or 'no consumer'}", count, tally.entries if name == now else 0)
        for name, count in tally.held.most_common(_NAMED)
    ]
    if now is not None and not any(name == now for name, _ in tally.held.most_common(_NAMED)):
        rows.append(BeforeAfter(f"of these held by {now or 'no consumer'}", tally.held[now], tally.entries))
    if (rest := len(tally.held) - _NAMED) > 0:
        more = tally.entries - sum(count for _, count in tally.held.most_common(_NAMED))
        rows.append(BeforeAfter(f"of these held by {rest} more", more, 0))
    if first.action == "pending ack":
        rows.append(BeforeAfter("acknowledged", 0, tally.entries))
    if dead := first.facts.get("dead"):
        rows.append(BeforeAfter(f"of these in {dead}", 0, tally.entries))
    if tally.waiting:
        notes = (*notes, delays_end(tally.waiting))
    if tally.entries > len(first.steps):
        notes = (*notes, f"The commands shown are those of the first {len(first.steps)} entries.")
    facts: dict[str, object] = {**first.facts, "entries": tally.entries, "held_by": dict(tally.held)}
    return replace(first, question=question, table=tuple(rows), notes=notes, facts=facts)
