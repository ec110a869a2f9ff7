"""Changes of pending entries, decided: acknowledge, claim, give back, put back. Pure.

Entries are changed by pages. Each is a step of its own, taken only while the same consumer holds it with the same
number of deliveries. An entry that was processed, claimed or given back meanwhile is left alone.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.console.changes.plan import (
    ABSENT,
    NOBODY,
    BeforeAfter,
    ChangePlan,
    FactCheck,
    HeldEntry,
    Step,
    Undo,
    Words,
    counted,
    delays_end,
    entry_check,
    put_back_command,
)

Mode = Literal["silent", "fail", "fatal"]
MODES: tuple[Mode, ...] = ("silent", "fail", "fatal")
"""Ways to give an entry back: the delivery is taken back; it stays counted; no consumer is to process the entry."""

FIRST = 20
"""Number of raw commands in a preview of many pages: those of its first entries."""

_NAMED = 8  # consumers that a preview names

_VERBS = {
    "pending ack": "Acknowledge",
    "pending claim": "Move",
    "pending nack": "Give back",
    "pending dead": "Make dead letters of",
}


@dataclass(slots=True)
class Tally:
    """Counts over a choice of pending entries, without the entries themselves."""

    # Consumer -> number of the entries it holds; ``""`` for those without a holder
    held: Counter[str] = field(default_factory=Counter)
    waiting: int = 0  # Entries whose delay is not over

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.held.total()


@dataclass(frozen=True, slots=True)
class PendingList:
    """The pending entries list of one group."""

    stream: str  # Key of the stream
    group: str  # Name of the group
    # True if the server keeps entries without a holder (XNACK), or a consumer ``""`` holds them
    xnack: bool = False
    due: str = ""  # Key of the group's due times

    def put_back(self, held: HeldEntry) -> Words:
        """The command that makes an entry pending again as it was."""
        return put_back_command(self.stream, self.group, held, xnack=self.xnack)


_NOT_BACK = (
    "They cannot be pending again: they are no longer in the stream, where servers since Redis 7.0 claim nothing."
)


def acknowledge(where: PendingList, held: Sequence[HeldEntry], *, gone: bool = False) -> ChangePlan:
    """Acknowledge entries: they count as processed."""
    plan = _plan("pending ack", where, held, lambda each: ("XACK", where.stream, where.group, each.id))
    return replace(plan, undo=Undo(note=_NOT_BACK)) if gone else plan


def claim(where: PendingList, held: Sequence[HeldEntry], consumer: str) -> ChangePlan:
    """Move entries to another consumer; their deliveries stay as they are."""
    stream, group = where.stream, where.group
    plan = _plan("pending claim", where, held, lambda each: ("XCLAIM", stream, group, consumer, 0, each.id, "JUSTID"))
    return replace(plan, undo=replace(plan.undo, now=consumer))


def give_back(where: PendingList, held: Sequence[HeldEntry], command: Callable[[HeldEntry], Words]) -> ChangePlan:
    """Give entries back, for any consumer to take."""
    plan = _plan("pending nack", where, held, command)
    return replace(plan, undo=replace(plan.undo, now=NOBODY))


def set_aside(where: PendingList, dead: str, letters: Sequence[tuple[HeldEntry, DeadLetter]], note: str) -> ChangePlan:
    """Make entries dead letters: the letter is written first, so that the entry is never in neither place."""
    found = dict(letters)
    plan = _plan("pending dead", where, list(found), lambda each: ("XADD", dead, "*", *pack(found[each])))
    steps = tuple(
        replace(step, commands=(*step.commands, ("XACK", where.stream, where.group, step.entry))) for step in plan.steps
    )
    # outside of a script XACK would run after an XADD that the server refused
    return replace(plan, steps=steps, undo=Undo(note=note), facts={"dead": dead}, needs_script=True)


def _plan(
    action: str, where: PendingList, held: Sequence[HeldEntry], command: Callable[[HeldEntry], Words]
) -> ChangePlan:
    """A change with one command for each entry, which is taken while the entry is held as it was."""
    stream, group = where.stream, where.group
    steps = tuple(
        Step((*_no_delay(where, each), command(each)), (entry_check(stream, group, each),), each.id) for each in held
    )
    undo = Undo(commands=tuple(map(where.put_back, held)), held=tuple(held))
    return ChangePlan(action, stream, group, steps=steps, undo=undo)


def _no_delay(where: PendingList, held: HeldEntry) -> tuple[Words, ...]:
    """The command that ends the delay of an entry: a person's decision comes before it."""
    return (("ZREM", where.due, held.id),) if held.waits else ()


def put_back(where: PendingList, held: Sequence[HeldEntry], now: str | None) -> ChangePlan:
    """Make entries pending again as they were, the undo of all of the above."""
    fact = ("1", ABSENT) if now is None else ("2", now)
    steps = tuple(Step((where.put_back(each),), (_held_by(where, each, fact),), each.id) for each in held)
    undo = Undo(note="The change that was undone can be made again.")
    return ChangePlan("audit undo", where.stream, where.group, steps=steps, undo=undo)


def put_back_all(first: ChangePlan, tally: Tally) -> ChangePlan:
    """The plan of the first part of an undo as the preview of all parts."""
    rows = tally.held.most_common(_NAMED)
    table = [BeforeAfter(f"put back to {name or 'nobody'}", 0, count) for name, count in rows]
    if (rest := len(tally.held) - _NAMED) > 0:
        table.append(BeforeAfter(f"put back to {rest} more", 0, tally.entries - sum(count for _, count in rows)))
    question = f"Put {counted(tally.entries)} back into the pending entries of {first.group!r} on {first.stream!r}?"
    notes = (
        "What was acknowledged, claimed or given back by others since then is left alone.",
        "What is no longer in the stream cannot be pending again.",
    )
    facts: dict[str, object] = {"entries": tally.entries}
    return replace(first, question=question, table=tuple(table), notes=notes, facts=facts)


def _held_by(where: PendingList, held: HeldEntry, fact: tuple[str, str]) -> FactCheck:
    read = ("XPENDING", where.stream, where.group, held.id, held.id, 1)
    return FactCheck(f"entry {held.id}", read, "first", "", (fact,))


def previewed(first: ChangePlan, tally: Tally, notes: tuple[str, ...] = ()) -> ChangePlan:
    """The plan of the first page as the preview of all pages."""
    now = first.undo.now
    verb, where = _VERBS[first.action], f" to {now!r}" if now else ""
    question = f"{verb} {counted(tally.entries)} pending in {first.group!r} of {first.stream!r}{where}?"
    rows = [
        BeforeAfter(f"of these held by {name or 'nobody'}", count, tally.entries if name == now else 0)
        for name, count in tally.held.most_common(_NAMED)
    ]
    if now is not None and not any(name == now for name, _ in tally.held.most_common(_NAMED)):
        rows.append(BeforeAfter(f"of these held by {now or 'nobody'}", tally.held[now], tally.entries))
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
