"""``pending ack``, ``claim``, ``nack`` and ``dead``; and ``audit undo``, which puts their entries back."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Annotated, TypeAlias

from millstream.client import emulate
from millstream.client.capabilities import Capabilities
from millstream.client.dead_letter.letter import DeadLetter, dead_key, take_history
from millstream.client.dead_letter.transaction import BATCH, FIELDS_LIMIT
from millstream.client.delays import due
from millstream.client.line import Line
from millstream.console.actions.parameters import EntriesChosen, EntriesOrGone, Group, Stream, now_ms, number
from millstream.console.changes import gather, pending
from millstream.console.changes.actions import Word, action
from millstream.console.changes.audit import entries_of
from millstream.console.changes.making import ActionCall, Prepared
from millstream.console.changes.pending import Mode, PendingList, Tally
from millstream.console.changes.plan import ChangePlan, ChangeRefusedError, HeldEntry, Words
from millstream.console.changes.rights import rights_on
from millstream.console.model.names import milliseconds
from millstream.console.model.pending import Chosen, PendingChoice
from millstream.console.reading import groups as reading_groups
from millstream.console.reading.asking import calls, checked
from millstream.errors import UsageError

_NOT_READ = (
    "It is not given them by that: it finds them when it reads what is its own (XREADGROUP with an id), or others "
    "claim them when they are idle again."
)
_DROPPED = "What is no longer in the stream is dropped from the pending entries."


@action("pending ack", "Acknowledge pending entries: they count as processed.", "XACK", undo="audit undo")
async def acknowledge(change: ActionCall, stream: Stream, group: Group, chosen: EntriesOrGone) -> Prepared:
    """Acknowledge entries that are pending in GROUP of STREAM: they count as processed.

    Name entries by ID, or choose them by options, or say --all. They are changed by pages. An entry that was processed,
    claimed or given back since it was looked at is left alone, and the exit code is 1 then. `millstream audit undo`
    makes them pending again, with the same consumer and deliveries. Entries that are gone cannot be pending again.

    \b
    Examples:
      millstream pending ack orders billing 1763721600000-0
      millstream pending ack orders billing --consumer web-1 --idle 1h --dry-run
      millstream pending ack orders billing --deliveries 10 --yes
      millstream pending ack orders billing --gone            entries that were trimmed before they were done
    """
    where = _pending_list(change, stream, group)
    gone = isinstance(chosen, PendingChoice) and chosen.gone
    note = "They are trimmed or deleted from the stream, with nothing to process." if gone else (
        "They count as processed: nobody will be given them again."
    )  # fmt: skip
    return await _paged(change, where, chosen, (note,), _made(lambda held: pending.acknowledge(where, held, gone=gone)))


@action("pending claim", "Move pending entries to another consumer.", "XCLAIM", undo="audit undo")
async def claim(
    change: ActionCall,
    stream: Stream,
    group: Group,
    chosen: EntriesChosen,
    to: Annotated[str, Word("option", "CONSUMER", "Who gets them.", title="to", hint="web-1", needed=True)],
) -> Prepared:
    """Move entries that are pending in GROUP of STREAM to another consumer; their deliveries stay as they are.

    Name entries by ID, or choose them by options, or say --all. They are changed by pages. An entry that was processed,
    claimed or given back since it was looked at is left alone, and the exit code is 1 then. `millstream audit undo`
    gives them back to their earlier consumers.

    \b
    Examples:
      millstream pending claim orders billing 1763721600000-0 --to web-2
      millstream pending claim orders billing --consumer web-1 --to web-2 --dry-run
    """
    if not to:
        raise UsageError("to whom? Name a consumer; `millstream pending nack` gives entries back to nobody")
    where = _pending_list(change, stream, group)
    known = {found.name for found in await reading_groups.consumers(change.line, stream, group)}
    notes = [_NOT_READ, _DROPPED]
    if to not in known:
        notes.append(f"There is no consumer {to!r} in the group yet: it is made by getting them.")
    return await _paged(change, where, chosen, tuple(notes), _made(lambda held: pending.claim(where, held, to)))


@action("pending nack", "Give pending entries back, for any consumer to take.", "XNACK", undo="audit undo")
async def nack(
    change: ActionCall,
    stream: Stream,
    group: Group,
    chosen: EntriesChosen,
    mode: Annotated[
        Mode,
        Word(
            "option",
            says="The delivery is not counted; it stays counted; nobody is to process the entry (only where there is "
            "XNACK).",
            usual="fail",
        ),
    ] = "fail",
) -> Prepared:
    """Give entries that are pending in GROUP of STREAM back: any consumer may take them, at once.

    Name entries by ID, or choose them by options, or say --all. They are changed by pages. An entry that was processed,
    claimed or given back since it was looked at is left alone, and the exit code is 1 then. `millstream audit undo`
    gives them back to their earlier consumers. On a server without XNACK (Redis before 8.8), a consumer named '' holds
    them.

    \b
    Examples:
      millstream pending nack orders billing 1763721600000-0
      millstream pending nack orders billing --consumer web-1 --mode silent
    """
    change.settle(mode=mode)
    capabilities, where = change.rights.capabilities, _pending_list(change, stream, group)
    if mode == "fatal" and not capabilities.xnack:
        raise ChangeRefusedError(
            "--mode fatal: this server has no XNACK (Redis has since 8.8), and without it the next "
            "delivery would count on from the greatest number there is; `millstream pending ack` takes the entry out"
        )
    note = {
        "silent": "The delivery is not counted: deliveries are one fewer, at least 0.",
        "fail": "The delivery stays counted.",
        "fatal": "Their deliveries are set to the greatest number there is: workers set such entries aside as dead.",
    }[mode]
    others = () if capabilities.xnack else (
        "This server has no XNACK: a consumer named '' holds them, which any claim takes them from at once.", _DROPPED,
    )  # fmt: skip

    def page(held: list[HeldEntry]) -> ChangePlan:
        return pending.give_back(where, held, lambda each: _release(where, capabilities, each, mode))

    return await _paged(change, where, chosen, (note, *others), _made(page))


def _release(where: PendingList, capabilities: Capabilities, held: HeldEntry, mode: Mode) -> Words:
    """The command that gives one entry back."""
    if mode == "fatal":
        return ("XNACK", where.stream, where.group, "FATAL", "IDS", 1, held.id)
    move = emulate.release(capabilities, where.group, held.deliveries, charge=mode == "fail")
    words = move.command(where.stream, [held.id.encode()])
    return tuple(held.id if word == held.id.encode() else word for word in words)


_SET_ASIDE = "set aside by a person"
"""The error of such a letter, unless the person gives a reason."""


@action("pending dead", "Make dead letters of pending entries: nobody tries them again.", "XACK", undo="dead retry")
async def set_aside(
    change: ActionCall,
    stream: Stream,
    group: Group,
    chosen: EntriesChosen,
    reason: Annotated[
        str,
        Word("option", "TEXT", "The error that the letters have.", title="reason", hint="it crashes every worker"),
    ] = _SET_ASIDE,
    to: Annotated[str, Word("option", "KEY", "Dead-letter stream, where it is not STREAM:dead.", typed="dead")] = "",
    *,
    at_ms: Annotated[int | None, Word("hidden", read=number(0))] = None,
) -> Prepared:  # fmt: skip
    """Make dead letters of entries that are pending in GROUP of STREAM: no worker tries them again.

    Name entries by ID, or choose them by options, or say --all. The letter is written and the entry acknowledged in one
    step. An entry that was processed, claimed or given back since it was looked at is left alone, and the exit code is
    1 then. `millstream dead retry` puts a letter back; `millstream dead edit` corrects its entry first.

    \b
    Examples:
      millstream pending dead orders billing 1763721600000-0 --reason 'crashes every worker'
      millstream pending dead orders billing --deliveries 10 --dry-run
    """
    dead = to or dead_key(stream)
    if dead == stream:
        raise UsageError(f"{stream!r} is a dead-letter stream: name another one for its letters by --to")
    if (why := (await rights_on(change.line, dead)).refusal("XADD")) is not None:
        raise ChangeRefusedError(f"{dead}: {why}")
    at_ms = min(now_ms() if at_ms is None else at_ms, 10**15)
    change.settle(at_ms=str(at_ms))  # a preview and its confirmation are of one moment
    where, moment = _pending_list(change, stream, group), at_ms

    async def make(line: Line, held: list[HeldEntry]) -> ChangePlan:
        letters = [
            (each, _letter(where, each, flat, reason or _SET_ASIDE, moment))
            async for each, flat in _entries(line, where, held)
        ]
        return pending.set_aside(
            where,
            dead,
            letters,
            f"`millstream dead retry` puts a letter of {dead} back on its stream, as a new entry for this group alone.",
        )

    notes = (
        "A worker that has one in hand finishes its run; its outcome changes nothing any more.",
        "Entries that are no longer in the stream stay pending: `millstream pending ack --gone` takes them out.",
    )
    return await _paged(change, where, chosen, notes, make, BATCH)


async def _entries(
    line: Line, where: PendingList, held: list[HeldEntry]
) -> AsyncGenerator[tuple[HeldEntry, list[bytes]], None]:
    """Those that are in the stream, with their fields."""
    replies = await calls(line.near(where.stream), [("XRANGE", where.stream, each.id, each.id) for each in held])
    for each, reply in zip(held, replies, strict=True):
        for _, flat in checked(reply, where.stream):
            if len(flat) > FIELDS_LIMIT:
                raise ChangeRefusedError(
                    f"{each.id} has {len(flat) // 2} fields, more than the script of this change passes on: "
                    "give it back by pending nack, and a worker sets it aside"
                )
            yield each, list(flat)


def _letter(where: PendingList, held: HeldEntry, flat: list[bytes], reason: str, at_ms: int) -> DeadLetter:
    fields, history = take_history(flat)
    return DeadLetter(
        tuple(fields), where.stream, held.id, where.group, held.consumer, held.deliveries, "reject", reason, "",
        milliseconds(held.id), at_ms, history,
    )  # fmt: skip


def _pending_list(change: ActionCall, stream: str, group: str) -> PendingList:
    return PendingList(stream, group, change.rights.capabilities.xnack, due.key(stream, group))


Maker: TypeAlias = Callable[[Line, list[HeldEntry]], Awaitable[ChangePlan]]
"""The change of one page of pending entries."""


def _made(plan: Callable[[list[HeldEntry]], ChangePlan]) -> Maker:
    """A maker that asks the server nothing."""

    async def make(_: Line, held: list[HeldEntry]) -> ChangePlan:
        return plan(held)

    return make


async def _paged(
    change: ActionCall,
    where: PendingList,
    chosen: Chosen,
    notes: tuple[str, ...],
    make: Maker,
    size: int = gather.PAGE,
) -> Prepared:
    """A change of pending entries: all of them counted now, and each page read again when it is its turn."""
    tally, first = Tally(), list[HeldEntry]()
    looked = 0
    async for page in gather.pages(change.line, where.stream, where.group, chosen):
        tally.held.update(held.consumer for held in page)
        tally.waiting += sum(held.waits for held in page)
        first += page[: pending.FIRST - len(first)]
        looked += len(page)
        change.tell(looked)

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:
        async for held in gather.pages(line, where.stream, where.group, chosen):
            for at in range(0, len(held), size):
                yield await make(line, held[at : at + size])

    if isinstance(chosen, tuple) and (missing := len(chosen) - tally.entries):
        notes = (*notes, f"{missing} of the {len(chosen)} ids {'is' if missing == 1 else 'are'} not pending there.")
    return Prepared(pending.previewed(await make(change.line, first), tally, notes), tally.entries, pages)


@action("audit undo", "Put back what a change acknowledged, moved, gave back or dropped.", "XCLAIM", writes="")
async def undo(
    change: ActionCall,
    name: Annotated[str, Word("argument", "CHANGE", name="change", title="change", hint="8f3c01a94b7e", needed=True)],
) -> Prepared:
    """Put back the pending entries that CHANGE acknowledged, moved, gave back or dropped.

    CHANGE is its name in `ls`, or the id of its entry there. Entries are put back with their earlier consumer and
    deliveries. An entry that has changed since (processed, claimed or pending again) is left alone. One that is no
    longer in the stream cannot be pending. The line that `ls` shows undoes the other changes.

    \b
    Examples:
      millstream audit undo 8f3c01a94b7e --dry-run
      millstream audit undo 8f3c01a94b7e --yes
    """
    found = await entries_of(change.line, name)
    strange = [one.id for one in found if one.held is None]
    if strange:
        raise ChangeRefusedError(f"what the audit entry {strange[0]} kept cannot be read: nothing is put back")
    kept = [one for one in found if one.held]
    if not kept:
        last = found[-1]
        how = f"; this undoes it: {last.undo}" if last.undo else f": {last.note}" if last.note else ""
        raise ChangeRefusedError(f"the change {name!r} ({last.action}) kept no pending entries to put back{how}")
    stream, group = kept[0].stream, kept[0].group
    if any((one.stream, one.group) != (stream, group) for one in kept):
        raise ChangeRefusedError(f"the entries of {name!r} in the audit stream are of several groups: none of ours")
    await change.require_rights(stream)
    where = _pending_list(change, stream, group)
    await reading_groups.read_group(change.line, stream, group)
    tally = Tally()
    for one in kept:
        tally.held.update(held.consumer for held in one.held or ())

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:  # noqa: ARG001 - the entries are here already
        # a consumer's removal moved some of its entries first: each part is as its own change left it
        for one in kept:
            yield pending.put_back(where, one.held or (), one.now)

    first = pending.put_back(where, kept[0].held or (), kept[0].now)
    return Prepared(pending.put_back_all(first, tally), tally.entries, pages)
