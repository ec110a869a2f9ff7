"""The actions ``group rm`` and ``consumer rm``, with their plans."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Annotated

from millstream.client.delays import due
from millstream.client.line import Line
from millstream.ops.actions import Spread, Word, action
from millstream.ops.groups.changes import position_facts
from millstream.ops.groups.reading import ConsumerFacts, removed_consumer
from millstream.ops.making import ActionCall, Prepared
from millstream.ops.parameters import Group, Stream
from millstream.ops.pending.changes import FIRST, PendingList, plan_claim
from millstream.ops.pending.reading import held_by, held_pages
from millstream.ops.pending.status import PendingChoice
from millstream.ops.plan import (
    MOST_KEPT,
    BeforeAfter,
    ChangePlan,
    ChangeRefusedError,
    HeldEntry,
    Step,
    Undo,
    Words,
    consumer_check,
    counted,
    delays_end,
    group_check,
    put_back_command,
)
from millstream.ops.streams.partitioned import parts_of
from millstream.ops.streams.reading import read_group
from millstream.ops.streams.status import GroupStatus, StreamStatus
from millstream.ops.words import command_words


@action(
    "group rm",
    "Remove a group with its position and its pending entries.",
    "XGROUP DESTROY",
    loses=True,
    undo="group create",
    parts=Spread(parts_of),
)
async def remove(change: ActionCall, stream: Stream, group: Group) -> ChangePlan:
    """Remove GROUP of STREAM, with its position and its pending entries.

    A preview shows the number of pending and of undelivered entries. The command prints the line that creates the group
    again at the same position. The audit stream keeps up to 5,000 of its pending entries, and `millstream audit undo`
    restores them.

    \b
    Examples:
      millstream group rm orders billing --dry-run
      millstream group rm orders billing
    """
    seen = await read_group(change.line, stream, group)
    status, found = seen.streams.streams[0], seen.group
    held = await held_by(change.line, stream, group) if found.pending else []
    return plan_remove(status, found, held, xnack=change.rights.capabilities.xnack)


@action(
    "consumer rm",
    "Remove a consumer; its pending entries go with it, or are moved first.",
    "XGROUP DELCONSUMER",
    "XCLAIM",
    loses=True,
    undo="audit undo",
    parts=Spread(parts_of),
)
async def remove_consumer(
    change: ActionCall,
    stream: Stream,
    group: Group,
    consumer: Annotated[str, Word("argument", "CONSUMER", title="consumer", hint="web-2", needed=True)],
    claim_to: Annotated[
        str | None,
        Word("option", "OTHER", "Move its entries to this consumer first.", title="its entries to", hint="web-1"),
    ] = None,
) -> ChangePlan | Prepared:
    """Remove CONSUMER of GROUP of STREAM. The server drops its pending entries, unless --claim-to moves them first.

    Dropped entries are not pending any more and were not processed: no consumer gets them again. `millstream audit
    undo` puts up to 5,000 of them back. A live consumer is created again by its next read.

    \b
    Examples:
      millstream consumer rm orders billing web-1 --dry-run
      millstream consumer rm orders billing web-1 --claim-to web-2
    """
    facts = await removed_consumer(change.line, stream, group, consumer)
    plan = plan_remove_consumer(facts, claim_to)
    if claim_to is None or not facts.status.pending:
        return plan
    where = PendingList(stream, group, change.rights.capabilities.xnack, due.key(stream, group))
    to = claim_to

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:
        async for held in held_pages(line, stream, group, PendingChoice(consumer=consumer)):
            if held:
                yield plan_claim(where, held, to)
        yield plan

    first = plan_claim(where, facts.held[:FIRST], to)
    back = replace(first.undo, commands=(*first.undo.commands, *plan.undo.commands))
    shown = replace(plan, steps=(*first.steps, *plan.steps), undo=back)
    return Prepared(shown, facts.status.pending, pages)


def plan_remove(
    stream: StreamStatus, group: GroupStatus, held: Sequence[HeldEntry], *, xnack: bool = False
) -> ChangePlan:
    """Plan to remove a group with its position and pending entries."""
    key, name = stream.key, group.name
    kept = tuple(held) if group.pending <= MOST_KEPT else ()
    made: Words = ("XGROUP", "CREATE", key, name, group.last_delivered_id)
    if group.entries_read is not None:
        made += ("ENTRIESREAD", group.entries_read)
    position = group.last_delivered_id
    notes = [f"Its position, {position}, is lost: a new group starts at the position that you give."]
    if group.pending:
        notes.append(
            f"{counted(group.pending)} pending {'is' if group.pending == 1 else 'are'} dropped: delivered and not "
            "acknowledged, and no consumer will process them."
        )
    if group.lag.entries != 0:
        lag = "An unknown number of entries" if group.lag.entries is None else counted(group.lag.entries).capitalize()
        notes.append(f"{lag} of the stream {'was' if group.lag.entries == 1 else 'were'} never delivered to it.")
    if group.consumers:
        notes.append("Live consumers fail with NOGROUP at their next read.")
    table = (
        BeforeAfter("last delivered id", group.last_delivered_id, None),
        BeforeAfter("lag", group.lag.entries, None),
        BeforeAfter("pending", group.pending, 0),
        BeforeAfter("consumers", group.consumers, 0),
    )
    why = "" if kept or not group.pending else f"More than {MOST_KEPT} entries are pending: they cannot be put back."
    undo = Undo(
        command_words("group create", key, name, options=("--at", group.last_delivered_id)),
        (made, *(put_back_command(key, name, each, xnack=xnack) for each in kept)),
        kept,
        note=" ".join(filter(None, (why, _by_both(kept)))),
    )
    check = group_check(key, name, pending=group.pending, **position_facts(stream, group))
    steps = (Step((("XGROUP", "DESTROY", key, name),), (check,)),)
    question = f"Remove the group {name!r} of {key!r}, with {counted(group.pending)} pending?"
    facts: dict[str, object] = {"pending_dropped": group.pending, "consumers": group.consumers}
    return ChangePlan("group rm", key, name, question, table, tuple(notes), steps, undo, facts, removes=True)


def _by_both(held: Sequence[HeldEntry]) -> str:
    """Return the note about the second command that an undo needs, if there are pending entries."""
    return "Then `millstream audit undo` puts the pending entries back." if held else ""


def plan_remove_consumer(facts: ConsumerFacts, claim_to: str | None = None) -> ChangePlan:
    """Plan to remove a consumer; its pending entries go to another consumer first, or are dropped."""
    status = facts.status
    key, group, name = status.stream, status.group, status.name
    if claim_to == name:
        raise ChangeRefusedError(f"--claim-to {name} is invalid: that consumer is the one to remove. Name another one.")
    left = 0 if claim_to is not None else status.pending
    kept = facts.held if status.pending <= MOST_KEPT else ()
    table = (
        BeforeAfter(f"held by {name}", status.pending, 0),
        *(() if claim_to is None else (BeforeAfter(f"moved to {claim_to}", 0, status.pending),)),
        BeforeAfter("dropped from the group's pending entries", 0, left),
    )
    check = consumer_check(key, group, name, left)
    steps = (Step((("XGROUP", "DELCONSUMER", key, group, name),), (check,)),)
    why = "" if kept or not status.pending else f"More than {MOST_KEPT} entries are pending: they cannot be put back."
    made: Words = ("XGROUP", "CREATECONSUMER", key, group, name)
    undo = Undo(
        commands=(made, *(put_back_command(key, group, each) for each in kept)),
        held=kept if left else (),
        note=why if status.pending else _MADE_ANEW,
    )
    question = f"Remove the consumer {name!r} of {group!r} on {key!r}?"
    if status.pending:
        does = "drop its entries" if claim_to is None else f"move them to {claim_to!r} first"
        question = f"{question[:-1]}, which holds {counted(status.pending)}, and {does}?"
    figures: dict[str, object] = {"pending_moved": status.pending - left, "pending_dropped": left}
    return ChangePlan("consumer rm", key, group, question, table, _leaving(facts, claim_to), steps, undo, figures)


_MADE_ANEW = "There is nothing to undo: the next read by that name creates it again."


def _leaving(facts: ConsumerFacts, claim_to: str | None) -> tuple[str, ...]:
    """Return notes on the other effects of removing a consumer."""
    status, notes = facts.status, []
    if status.pending and claim_to is None:
        other = next(iter(facts.others), "OTHER")
        notes.append(
            f"The server drops {counted(status.pending)} that it holds from the group's pending entries: no consumer "
            f"will process them. --claim-to {other} moves them first."
        )
    delayed = sum(one.waits for one in facts.held)
    if claim_to is not None and delayed:
        notes.append(delays_end(delayed))
    if claim_to is not None and claim_to not in facts.others:
        notes.append(f"There is no consumer {claim_to!r} in the group yet: this change creates it.")
    seconds = status.idle_ms / 1000
    notes.append(f"It last asked for something {seconds:.0f} s ago: the next read of a live consumer creates it again.")
    return tuple(notes)
