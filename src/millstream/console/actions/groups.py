"""``group rewind``, ``create`` and ``rm``, and ``consumer rm``."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from millstream.client.delays import due
from millstream.client.line import Line
from millstream.console.actions.parameters import Group, Stream, place
from millstream.console.changes import gather, groups, pending, removals
from millstream.console.changes.actions import Together, Word, action
from millstream.console.changes.making import ActionCall, Prepared
from millstream.console.changes.plan import ChangePlan, TargetMissingError
from millstream.console.changes.positions import StreamPlace
from millstream.console.model.pending import PendingChoice
from millstream.console.reading import groups as reading_groups
from millstream.console.reading import streams as reading_streams
from millstream.console.reading.asking import NotReadableError, is_missing
from millstream.errors import UsageError

_LIKE = Word("option", "OTHER", "Where this group of the same stream stands.", name="like")


def _to(values: Mapping[str, Any]) -> StreamPlace:
    to, like = values["to"], values["like"]
    if (to is None) == (like is None):
        raise UsageError("where to? say --to PLACE, or --like OTHER")
    found: StreamPlace = StreamPlace("like", group=like) if to is None else to
    return found


def _at(values: Mapping[str, Any]) -> StreamPlace:
    if values["like"] is not None:
        return StreamPlace("like", group=values["like"])
    found: StreamPlace = values["at"] or StreamPlace("end")
    if found.kind == "shift":
        raise UsageError("a group that is to be made stands nowhere yet: +N and -N are for group rewind")
    return found


@action(
    "group rewind",
    "Set a group to another place: entries are delivered again, or skipped.",
    "XGROUP SETID",
    undo="group rewind",
)
async def rewind(
    change: ActionCall,
    stream: Stream,
    group: Group,
    to: Annotated[
        StreamPlace,
        Together(
            _to,
            (
                Word("option", "PLACE", "Where it is to stand: see above.", name="to", typed="place", title="to",
                     hint="1h-ago, a time, an id, start, end, -100", read=place, needed=True),
                _LIKE,
            ),
        ),
    ],
    even_if_moved: Annotated[
        bool,
        Word("flag", says="Also if the group reads on meanwhile: see above.", title="even if moved",
             hint="also if the group reads on meanwhile"),
    ] = False,
) -> ChangePlan:  # fmt: skip
    """Set GROUP of STREAM to another place: entries after it are delivered again, those before it are not.

    \b
    PLACE is one of
      1h-ago, or a time     entries added then and later are delivered again; 2026-03-01T12:00:00 is in UTC
      1763721600000-0       an entry's id: the last one that counts as delivered
      start, end            all entries of the stream again; none of them
      -100, +100            this number of entries back, or on, from the group's place

    Before anything changes you see the position, the next entry and the lag before and after. You also see the number
    of entries that are delivered again or skipped, and the number of them that are still pending. The entries read are
    set as well, where the server counts them, so that the lag stays known. Pending entries stay pending.

    If the group has moved on when you say yes, nothing is changed: pause its workers first (`millstream worker pause`).
    With --even-if-moved it is set to the shown place nevertheless. The exceptions: another user has set it back
    meanwhile, or it is past a place that it was to skip to.

    \b
    Examples:
      millstream group rewind orders billing --to 1h-ago --dry-run
      millstream group rewind orders billing --to start
      millstream group rewind orders billing --to -100 --yes
      millstream group rewind orders billing --like shipping
      millstream group rewind orders billing --to 1h-ago --even-if-moved
    """
    facts = await gather.rewind_facts(change.line, stream, group, to, tell=change.tell)
    # a group in use moves on before a person has read a page's preview
    anyway = even_if_moved or (change.kept and bool(facts.read_by.names))
    change.settle(to=facts.there.id, like=None, even_if_moved="1" if anyway else None)
    places = (facts.here, facts.there, facts.between, facts.read_by)
    return groups.rewind(facts.stream, facts.group, *places, even_if_moved=anyway)


@action("group create", "Make a group, at the start, the end, a time or an entry.", "XGROUP CREATE", undo="group rm")
async def create(
    change: ActionCall,
    stream: Stream,
    group: Annotated[str, Word("argument", "GROUP", title="name", hint="billing", needed=True)],
    at: Annotated[
        StreamPlace,
        Together(
            _at,
            (
                Word("option", "PLACE", "Where it begins: see above.", name="at", typed="place", title="at",
                     hint="start, end, 1h-ago, an id", read=place, needed=True, usual="end"),
                _LIKE,
            ),
        ),
    ],
    mkstream: Annotated[bool, Word("flag", says="Make an empty stream where there is none.")] = False,
) -> ChangePlan:  # fmt: skip
    """Create GROUP of STREAM, which begins at PLACE: start, end, a time such as 1h-ago, or an entry's id.

    \b
    Examples:
      millstream group create orders billing                  entries added from now on
      millstream group create orders billing --at start       all entries of the stream
      millstream group create orders audit --at 1d-ago --yes
      millstream group create orders second --like billing
      millstream group create orders billing --mkstream       even if there is no stream yet
    """
    try:
        status = await reading_streams.one(change.line, stream)
    except NotReadableError:
        if not await is_missing(change.line, stream):
            raise
        if not mkstream:
            raise TargetMissingError(f"there is no stream {stream!r}: --mkstream makes an empty one") from None
        status = None
    there = await gather.place_facts(change.line, status, at)
    change.settle(at=there.id, like=None, mkstream="1" if status is None else None)
    return groups.create(status, stream, group, there)


@action(
    "group rm",
    "Remove a group with its position and its pending entries.",
    "XGROUP DESTROY",
    loses=True,
    undo="group create",
)
async def remove(change: ActionCall, stream: Stream, group: Group) -> ChangePlan:
    """Remove GROUP of STREAM, with its position and its pending entries.

    You see first the number of entries that are pending, and the number that were never delivered. The line that
    creates it again at the same place is shown. Its pending entries are kept in the audit stream, up to 5,000 of them,
    and `millstream audit undo` puts them back.

    \b
    Examples:
      millstream group rm orders billing --dry-run
      millstream group rm orders billing
    """
    seen = await reading_groups.read_group(change.line, stream, group)
    status, found = seen.streams.streams[0], seen.group
    held = await gather.held_by(change.line, stream, group) if found.pending else []
    return removals.remove_group(status, found, held, xnack=change.rights.capabilities.xnack)


@action(
    "consumer rm",
    "Remove a consumer; its pending entries go with it, or are moved first.",
    "XGROUP DELCONSUMER",
    "XCLAIM",
    loses=True,
    undo="audit undo",
)
async def remove_consumer(
    change: ActionCall,
    stream: Stream,
    group: Group,
    consumer: Annotated[str, Word("argument", "CONSUMER", title="consumer", hint="web-2", needed=True)],
    claim_to: Annotated[
        str | None,
        Word("option", "OTHER", "Move what it holds to this consumer first.", title="its entries to", hint="web-1"),
    ] = None,
) -> ChangePlan | Prepared:
    """Remove CONSUMER of GROUP of STREAM. The server drops its pending entries, unless --claim-to moves them first.

    Dropped entries are not pending any more and were not processed: no consumer gets them again. `millstream audit
    undo` puts up to 5,000 of them back. The next read of a consumer that is alive creates it again.

    \b
    Examples:
      millstream consumer rm orders billing web-1 --dry-run
      millstream consumer rm orders billing web-1 --claim-to web-2
    """
    facts = await gather.consumer_facts(change.line, stream, group, consumer)
    plan = removals.remove_consumer(facts, claim_to)
    if claim_to is None or not facts.status.pending:
        return plan
    where = pending.PendingList(stream, group, change.rights.capabilities.xnack, due.key(stream, group))
    to = claim_to

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:
        async for held in gather.pages(line, stream, group, PendingChoice(consumer=consumer)):
            if held:
                yield pending.claim(where, held, to)
        yield plan

    first = pending.claim(where, facts.held[: pending.FIRST], to)
    back = replace(first.undo, commands=(*first.undo.commands, *plan.undo.commands))
    shown = replace(plan, steps=(*first.steps, *plan.steps), undo=back)
    return Prepared(shown, facts.status.pending, pages)
