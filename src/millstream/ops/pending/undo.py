"""The action ``audit undo``: it restores pending entries that another change acknowledged, moved or dropped."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Annotated

from millstream.client.line import Line
from millstream.client.partitions.layout import logical
from millstream.ops.actions import Word, action
from millstream.ops.audit import entries_of
from millstream.ops.making import ActionCall, Prepared
from millstream.ops.pending.changes import _NAMED, PendingList, Tally, pending_list
from millstream.ops.plan import (
    ABSENT,
    BeforeAfter,
    ChangePlan,
    ChangeRefusedError,
    FactCheck,
    HeldEntry,
    Step,
    Undo,
    counted,
)
from millstream.ops.streams.reading import read_group


@action(
    "audit undo", "Restore pending entries that a change acknowledged, moved, released or dropped.", "XCLAIM", writes=""
)
async def undo(
    change: ActionCall,
    name: Annotated[str, Word("argument", "CHANGE", name="change", title="change", hint="8f3c01a94b7e", needed=True)],
) -> Prepared:
    """Restore the pending entries that CHANGE acknowledged, moved, released or dropped.

    CHANGE is its name in `ls`, or its id in the audit stream. Entries are pending again with their former consumer and
    delivery count. An entry that has changed since (processed, claimed or pending again) is skipped, and so is one that
    is no longer in the stream. For changes of other kinds, run the undo line that `ls` shows.

    \b
    Examples:
      millstream audit undo 8f3c01a94b7e --dry-run
      millstream audit undo 8f3c01a94b7e --yes
    """
    found = await entries_of(change.line, name)
    strange = [one.id for one in found if one.held is None]
    if strange:
        raise ChangeRefusedError(f"the audit entry {strange[0]} cannot be read: nothing is restored")
    kept = [one for one in found if one.held]
    if not kept:
        last = found[-1]
        how = f"; this undoes it: {last.undo}" if last.undo else f": {last.note}" if last.note else ""
        raise ChangeRefusedError(f"the change {name!r} ({last.action}) kept no pending entries to restore{how}")
    stream, group = kept[0].stream, kept[0].group
    if len({(logical(one.stream) or one.stream, one.group) for one in kept}) > 1:
        raise ChangeRefusedError(
            f"the entries of {name!r} in the audit stream are of several groups, so Millstream did not write them"
        )
    where: dict[str, PendingList] = {}
    for each in dict.fromkeys(one.stream for one in kept):  # several of them may be partitions of one stream
        await change.require_rights(each)
        where[each] = pending_list(change, each, group)
        await read_group(change.line, each, group)
    tally = Tally()
    for one in kept:
        tally.add(one.held or ())

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:  # noqa: ARG001 - the entries are already here
        # Removing a consumer may have moved entries first, so each part has its own state
        for one in kept:
            yield plan_put_back(where[one.stream], one.held or (), one.now)

    first = plan_put_back(where[stream], kept[0].held or (), kept[0].now)
    return Prepared(plan_put_back_all(first, tally), tally.entries, pages)


def plan_put_back(where: PendingList, held: Sequence[HeldEntry], now: str | None) -> ChangePlan:
    """Plan to make entries pending again as they were before another change."""
    fact = ("1", ABSENT) if now is None else ("2", now)
    steps = tuple(Step((where.put_back(each),), (_held_by(where, each, fact),), each.id) for each in held)
    undo = Undo(note="You can make the undone change again.")
    return ChangePlan("audit undo", where.stream, where.group, steps=steps, undo=undo)


def plan_put_back_all(first: ChangePlan, tally: Tally) -> ChangePlan:
    """Return the plan of the first part of an undo as the preview of all parts."""
    rows = tally.held.most_common(_NAMED)
    table = [BeforeAfter(f"put back to {name or 'no consumer'}", 0, count) for name, count in rows]
    if (rest := len(tally.held) - _NAMED) > 0:
        table.append(BeforeAfter(f"put back to {rest} more", 0, tally.entries - sum(count for _, count in rows)))
    question = f"Put {counted(tally.entries)} back into the pending entries of {first.group!r} on {first.stream!r}?"
    notes = (
        "Entries that were acknowledged, claimed or released since then are skipped.",
        "Entries no longer in the stream cannot be pending again.",
    )
    facts: dict[str, object] = {"entries": tally.entries}
    return replace(first, question=question, table=tuple(table), notes=notes, facts=facts)


def _held_by(where: PendingList, held: HeldEntry, fact: tuple[str, str]) -> FactCheck:
    read = ("XPENDING", where.stream, where.group, held.id, held.id, 1)
    return FactCheck(f"entry {held.id}", read, "first", "", (fact,))
