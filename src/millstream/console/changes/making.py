"""Each change, from what a person asked for to a plan that can be previewed, and from there to what became of it.

The shell and the page call these, and nothing below: what one of them can do the other can.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeAlias

from millstream.client import emulate
from millstream.client.capabilities import Capabilities
from millstream.client.delays import due
from millstream.client.line import Command, Line
from millstream.console.changes import adding, gather, groups, pending, removals, trims
from millstream.console.changes.actions import BY_NAME
from millstream.console.changes.audit import Actor, audit_command, entries_of, write_down
from millstream.console.changes.gather import Chosen, Counting
from millstream.console.changes.guard import ChangeOutcome, StepResult, apply
from millstream.console.changes.pending import Mode, PendingList, Tally
from millstream.console.changes.plan import ChangePlan, ChangeRefusedError, HeldEntry, TargetMissingError, Words
from millstream.console.changes.positions import StreamPlace
from millstream.console.changes.rights import Rights, rights_on
from millstream.console.model.pending import PendingChoice
from millstream.console.reading import groups as reading_groups
from millstream.console.reading import streams as reading_streams
from millstream.console.reading.asking import NotReadableError
from millstream.errors import UsageError

Pages = Callable[[Line], AsyncGenerator[ChangePlan, None]]
"""The parts of a change that is made page by page; each is read when it is its turn."""

Work = Callable[[Line, list[StepResult], Counting, asyncio.Event], Awaitable[None]]
"""A change that is made in another way than by the steps of a plan: puts what became of each part into the list, tells
how many there were, and ends between two parts when the event is set."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A change that can be previewed and then made.

    Attributes:
        plan: the whole, or what stands for it where it is made page by page.
        rights: what the user may do there.
        entries: how many entries it is about; 0 where it is about none.
        pages: its parts; None where the plan is all.
        work: makes it, where its steps only show what is done; None where they are what is done.
    """

    plan: ChangePlan
    rights: Rights
    entries: int = 0
    pages: Pages | None = None
    work: Work | None = None

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to do."""
        return not self.plan.steps


async def carry_out(
    line: Line,
    prepared: Prepared,
    actor: Actor,
    change: str,
    tell: Counting | None = None,
    stop: asyncio.Event | None = None,
) -> ChangeOutcome:
    """Make a change that was previewed.

    Args:
        line: to the server; nobody else asks over it meanwhile.
        prepared: the change.
        actor: who makes it.
        change: a name that no other change has, for its audit entries.
        tell: called with how many steps were looked at so far.
        stop: when it is set, the change ends between two of its parts.

    Raises:
        ChangeRefusedError: it needs a script, and none can be run.
        MillstreamError: dead letters could not be put back; those before were.
        Disconnected: no answer came; whether the last steps were taken is unknown.
    """
    actor = replace(actor, user=prepared.rights.user)
    stop, tell = stop or asyncio.Event(), tell or (lambda _: None)
    if prepared.work is not None:
        return await _worked(line, prepared, prepared.work, audit_command(prepared.plan, actor, change), (tell, stop))
    if prepared.pages is None:
        return await apply(line, prepared.plan, actor, change)
    outcome = ChangeOutcome(change=change)
    async with aclosing(prepared.pages(line)) as pages:
        async for page in pages:
            if stop.is_set():
                return replace(outcome, stopped=True)
            outcome = outcome.joined(await apply(line, replace(page, words=prepared.plan.words), actor, change))
            tell(len(outcome.results))
    return outcome


BEGUN = "begun; what was done is in the next entry of this name, or it broke off"
"""Note of the first audit entry of a change that takes long."""
_LONG = 50  # entries, from which on that is worth an entry


async def _worked(
    line: Line, prepared: Prepared, work: Work, audit: Command, signs: tuple[Counting, asyncio.Event]
) -> ChangeOutcome:
    """A change that is made in a way of its own; the audit stream has it also where it is interrupted.

    One that takes long is in it from the start: where the server or this process ends amid it, nobody can write down
    what was done.
    """
    results: list[StepResult] = []
    if prepared.entries > _LONG:
        await write_down(line, (*audit, "note", BEGUN), done=0)
    try:
        await work(line, results, *signs)
    except BaseException as error:
        if why := (await _noted(line, results, audit))[1]:  # the server that went away may take no entry either
            error.add_note(why)
        raise
    entry, why = await _noted(line, results, audit)
    stopped = signs[1].is_set() and len(results) < prepared.entries
    change = str(audit[audit.index("change") + 1])
    return ChangeOutcome(tuple(results), (entry,) if entry else (), change, why, stopped=stopped)


async def _noted(line: Line, results: list[StepResult], audit: Command) -> tuple[str, str]:
    """The audit entry of what was done; as of :func:`write_down`, and twice nothing where nothing was done."""
    done = sum(result.became == "done" for result in results)
    return await write_down(line, audit, done=done, moved=len(results) - done) if done else ("", "")


async def require_rights(line: Line, name: str, stream: str) -> Rights:
    """What the user may do to a stream, this change included.

    Args:
        line: to the server.
        name: of the action.
        stream: key of the stream, or of what else the change writes.

    Raises:
        ChangeRefusedError: not this.
        Disconnected: no answer came.
    """
    rights = await rights_on(line, stream)
    why = rights.why_not(BY_NAME[name])
    if why is not None:
        raise ChangeRefusedError(why)
    return rights


async def rewind(
    line: Line,
    stream: str,
    group: str,
    place: StreamPlace,
    tell: Counting | None = None,
    *,
    even_if_moved: bool = False,
) -> Prepared:
    """Set a group to another place.

    Args:
        line: to the server.
        stream: key of the stream.
        group: name of the group.
        place: where it is to stand.
        tell: called with how many entries were counted so far.
        even_if_moved: also where the group was read on meanwhile.

    Raises:
        ChangeRefusedError: the user may not, or the place is none.
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "group rewind", stream)
    facts = await gather.rewind_facts(line, stream, group, place, tell=tell)
    places = (facts.here, facts.there, facts.between, facts.read_by)
    return Prepared(groups.rewind(facts.stream, facts.group, *places, even_if_moved=even_if_moved), rights)


async def create(line: Line, stream: str, group: str, place: StreamPlace, *, mkstream: bool = False) -> Prepared:
    """Make a group.

    Args:
        line: to the server.
        stream: key of the stream.
        group: name of the group.
        place: where it is to begin.
        mkstream: make an empty stream where there is none.

    Raises:
        ChangeRefusedError: the user may not, there is such a group, or the place is none.
        NotReadableError: there is no such stream, or the server does not let us look.
        UsageError: the place is counted from where the group stands.
        Disconnected: no answer came.
    """
    if place.kind == "shift":
        raise UsageError("a group that is to be made stands nowhere yet: +N and -N are for group rewind")
    rights = await require_rights(line, "group create", stream)
    try:
        status = await reading_streams.one(line, stream)
    except NotReadableError:
        if not await _is_missing(line, stream):
            raise
        if not mkstream:
            raise TargetMissingError(f"there is no stream {stream!r}: --mkstream makes an empty one") from None
        status = None
    there = await gather.place_facts(line, status, place)
    return Prepared(groups.create(status, stream, group, there), rights)


async def remove_group(line: Line, stream: str, group: str) -> Prepared:
    """Remove a group.

    Args:
        line: to the server.
        stream: key of the stream.
        group: name of the group.

    Raises:
        ChangeRefusedError: the user may not.
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "group rm", stream)
    seen = await reading_groups.read_group(line, stream, group)
    status, found = seen.streams.streams[0], seen.group
    held = await gather.held_by(line, stream, group) if found.pending else []
    return Prepared(removals.remove_group(status, found, held, xnack=rights.capabilities.xnack), rights)


async def remove_consumer(line: Line, stream: str, group: str, consumer: str, claim_to: str | None = None) -> Prepared:
    """Remove a consumer, after what it holds was moved to another, or with it.

    Args:
        line: to the server.
        stream: key of the stream.
        group: its group.
        consumer: its name.
        claim_to: who gets what it holds.

    Raises:
        ChangeRefusedError: the user may not, or there is no such consumer.
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "consumer rm", stream)
    facts = await gather.consumer_facts(line, stream, group, consumer)
    plan = removals.remove_consumer(facts, claim_to)
    if claim_to is None or not facts.status.pending:
        return Prepared(plan, rights)
    where, to = pending_list(stream, group, rights), claim_to

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:
        async for held in gather.pages(line, stream, group, PendingChoice(consumer=consumer)):
            if held:
                yield pending.claim(where, held, to)
        yield plan

    first = pending.claim(where, facts.held[: pending.FIRST], to)
    back = replace(first.undo, commands=(*first.undo.commands, *plan.undo.commands))
    shown = replace(plan, steps=(*first.steps, *plan.steps), undo=back)
    return Prepared(shown, rights, facts.status.pending, pages)


async def remove_stream(line: Line, stream: str) -> Prepared:
    """Remove a stream with its groups.

    Args:
        line: to the server.
        stream: its key.

    Raises:
        ChangeRefusedError: the user may not.
        NotReadableError: there is no such stream, or the server does not let us look.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "stream rm", stream)
    return Prepared(removals.remove_stream(await reading_streams.one(line, stream)), rights)


async def add_entry(line: Line, stream: str, fields: Sequence[tuple[bytes, bytes]], words: tuple[str, ...]) -> Prepared:
    """Add one entry to a stream.

    Args:
        line: to the server.
        stream: its key; it need not be there.
        fields: names and values.
        words: the command line.

    Raises:
        ChangeRefusedError: the user may not.
        NotReadableError: the key holds no stream, or the server does not let us look.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "stream add", stream)
    status = None if await _is_missing(line, stream) else await reading_streams.one(line, stream)
    return Prepared(adding.add(status, stream, fields, words), rights)


async def _is_missing(line: Line, key: str) -> bool:
    """Whether nothing is at a key."""
    return await line.near(key).calls([("EXISTS", key)]) == [0]


async def trim_stream(
    line: Line,
    stream: str,
    *,
    minid: str | None = None,
    maxlen: int = 0,
    approximately: bool = False,
    tell: Counting | None = None,
) -> Prepared:
    """Remove the oldest entries of a stream.

    Args:
        line: to the server.
        stream: its key.
        minid: the lowest id that stays; None to go by the number of entries.
        maxlen: so many entries stay, where ``minid`` is None.
        approximately: leave what the server keeps together with entries that stay.
        tell: called with how many entries were counted so far.

    Raises:
        ChangeRefusedError: the user may not.
        NotReadableError: there is no such stream, or the server does not let us look.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "stream trim", stream)
    facts = await gather.trim_facts(line, stream, minid=minid, maxlen=maxlen, tell=tell)
    return Prepared(trims.trim(facts, approximately=approximately), rights)


async def acknowledge(
    line: Line, stream: str, group: str, chosen: Chosen, words: tuple[str, ...], *, tell: Counting | None = None
) -> Prepared:
    """Acknowledge pending entries.

    Args:
        line: to the server.
        stream: key of the stream.
        group: name of the group.
        chosen: which.
        words: the command line.
        tell: called with how many entries were counted so far.

    Raises:
        ChangeRefusedError: the user may not.
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "pending ack", stream)
    where = pending_list(stream, group, rights)
    gone = isinstance(chosen, PendingChoice) and chosen.gone
    note = "They are trimmed or deleted from the stream, with nothing to process." if gone else (
        "They count as processed: nobody will be given them again."
    )  # fmt: skip
    return await paged(
        line,
        rights,
        where,
        chosen,
        words,
        (note,),
        _made(lambda held: pending.acknowledge(where, held, gone=gone)),
        tell,
    )


async def claim(
    line: Line,
    stream: str,
    group: str,
    chosen: Chosen,
    words: tuple[str, ...],
    *,
    consumer: str,
    tell: Counting | None = None,
) -> Prepared:
    """Move pending entries to another consumer.

    Args:
        line: to the server.
        stream: key of the stream.
        group: name of the group.
        chosen: which.
        words: the command line.
        consumer: who gets them.
        tell: called with how many entries were counted so far.

    Raises:
        ChangeRefusedError: the user may not.
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "pending claim", stream)
    where = pending_list(stream, group, rights)
    known = {found.name for found in await reading_groups.consumers(line, stream, group)}
    notes = [_NOT_READ, _DROPPED]
    if consumer not in known:
        notes.append(f"There is no consumer {consumer!r} in the group yet: it is made by getting them.")
    return await paged(
        line, rights, where, chosen, words, tuple(notes), _made(lambda held: pending.claim(where, held, consumer)), tell
    )


_NOT_READ = (
    "It is not given them by that: it finds them when it reads what is its own (XREADGROUP with an id), or others "
    "claim them when they are idle again."
)
_DROPPED = "What is no longer in the stream is dropped from the pending entries."


async def nack(
    line: Line,
    stream: str,
    group: str,
    chosen: Chosen,
    words: tuple[str, ...],
    *,
    mode: Mode,
    tell: Counting | None = None,
) -> Prepared:
    """Give pending entries back.

    Args:
        line: to the server.
        stream: key of the stream.
        group: name of the group.
        chosen: which.
        words: the command line.
        mode: what becomes of the delivery.
        tell: called with how many entries were counted so far.

    Raises:
        ChangeRefusedError: the user may not, or the server has no such mode.
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "pending nack", stream)
    capabilities = rights.capabilities
    where = pending_list(stream, group, rights)
    if mode == "fatal" and not capabilities.xnack:
        raise ChangeRefusedError(
            "--mode fatal: this server has no XNACK (Redis has since 8.8), and without it the next "
            "delivery would count on from the greatest number there is; `millstream pending ack` takes the entry out"
        )
    notes = {
        "silent": "The delivery is not counted: deliveries are one fewer, at least 0.",
        "fail": "The delivery stays counted.",
        "fatal": "Their deliveries are set to the greatest number there is: workers set such entries aside as dead.",
    }[mode]
    others = () if capabilities.xnack else (
        "This server has no XNACK: a consumer named '' holds them, which any claim takes them from at once.", _DROPPED,
    )  # fmt: skip
    return await paged(
        line,
        rights,
        where,
        chosen,
        words,
        (notes, *others),
        _made(lambda held: pending.give_back(where, held, lambda each: _release(where, capabilities, each, mode))),
        tell,
    )


def _release(where: PendingList, capabilities: Capabilities, held: HeldEntry, mode: Mode) -> Words:
    """The command that gives one entry back."""
    if mode == "fatal":
        return ("XNACK", where.stream, where.group, "FATAL", "IDS", 1, held.id)
    move = emulate.release(capabilities, where.group, held.deliveries, charge=mode == "fail")
    words = move.command(where.stream, [held.id.encode()])
    return tuple(held.id if word == held.id.encode() else word for word in words)


def pending_list(stream: str, group: str, rights: Rights) -> PendingList:
    """The pending entries of a group, as its server keeps them.

    Args:
        stream: key of the stream.
        group: name of the group.
        rights: what the user may do there.
    """
    return PendingList(stream, group, rights.capabilities.xnack, due.key(stream, group))


Maker: TypeAlias = Callable[[Line, list[HeldEntry]], Awaitable[ChangePlan]]
"""The change of one page of pending entries."""


def _made(plan: Callable[[list[HeldEntry]], ChangePlan]) -> Maker:
    """A maker that asks the server nothing."""

    async def make(_: Line, held: list[HeldEntry]) -> ChangePlan:
        return plan(held)

    return make


async def paged(  # noqa: PLR0917 - the same eight for four changes
    line: Line,
    rights: Rights,
    where: PendingList,
    chosen: Chosen,
    words: tuple[str, ...],
    notes: tuple[str, ...],
    make: Maker,
    tell: Counting | None,
    size: int = gather.PAGE,
) -> Prepared:
    """A change of pending entries: all of them counted now, and each page read again when it is its turn.

    Args:
        line: to the server.
        rights: of the user.
        where: the group.
        chosen: entries.
        words: command line.
        notes: for the preview.
        make: one page.
        tell: takes counts.
        size: of pages.
    """
    tally, first = Tally(), list[HeldEntry]()
    looked = 0
    async for page in gather.pages(line, where.stream, where.group, chosen):
        tally.held.update(held.consumer for held in page)
        tally.waiting += sum(held.waits for held in page)
        first += page[: pending.FIRST - len(first)]
        looked += len(page)
        if tell is not None:
            tell(looked)

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:
        async for held in gather.pages(line, where.stream, where.group, chosen):
            for at in range(0, len(held), size):
                yield await make(line, held[at : at + size])

    if isinstance(chosen, tuple) and (missing := len(chosen) - tally.entries):
        notes = (*notes, f"{missing} of the {len(chosen)} ids {'is' if missing == 1 else 'are'} not pending there.")
    plan = pending.previewed(await make(line, first), words, tally, notes)
    return Prepared(plan, rights, tally.entries, pages)


async def undo(line: Line, change: str) -> Prepared:
    """Put back the pending entries that a change acknowledged, moved, gave back or dropped.

    Args:
        line: to the server.
        change: its name, or the id of one of its audit entries.

    Raises:
        ChangeRefusedError: there is no such change, it kept no entries, or the user may not.
        Disconnected: no answer came.
    """
    found = await entries_of(line, change)
    strange = [one.id for one in found if one.held is None]
    if strange:
        raise ChangeRefusedError(f"what the audit entry {strange[0]} kept cannot be read: nothing is put back")
    kept = [one for one in found if one.held]
    if not kept:
        last = found[-1]
        how = f"; this undoes it: {last.undo}" if last.undo else f": {last.note}" if last.note else ""
        raise ChangeRefusedError(f"the change {change!r} ({last.action}) kept no pending entries to put back{how}")
    stream, group = kept[0].stream, kept[0].group
    if any((one.stream, one.group) != (stream, group) for one in kept):
        raise ChangeRefusedError(f"the entries of {change!r} in the audit stream are of several groups: none of ours")
    rights = await require_rights(line, "audit undo", stream)
    where = pending_list(stream, group, rights)
    await reading_groups.read_group(line, stream, group)
    tally = Tally()
    for one in kept:
        tally.held.update(held.consumer for held in one.held or ())

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:  # noqa: ARG001 - the entries are here already
        # a consumer's removal moved some of its entries first: each part is as its own change left it
        for one in kept:
            yield pending.put_back(where, one.held or (), one.now)

    first = pending.put_back(where, kept[0].held or (), kept[0].now)
    words = ("millstream", "audit", "undo", change)
    return Prepared(pending.put_back_all(first, words, tally), rights, tally.entries, pages)
