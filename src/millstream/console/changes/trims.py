"""Trims of a stream, decided: the number of entries that are removed, and the groups that still need them. Pure.

For every kind of bound, the change is XTRIM MINID with the oldest id that stays. So it removes exactly the entries that
were shown, even if others are added between the preview and the change.
"""

from dataclasses import dataclass

from millstream.console.changes.plan import (
    BeforeAfter,
    ChangePlan,
    Step,
    Undo,
    counted,
    stream_check,
)
from millstream.console.model.names import order
from millstream.console.model.streams import StreamStatus


@dataclass(frozen=True, slots=True)
class TrimmedGroup:
    """The loss of a group."""

    group: str  # Its name
    pending: int  # Entries that it was delivered and has not acknowledged, as far as they were counted
    pending_more: bool  # True if there are more of these
    undelivered: int  # Entries that it was not delivered yet, as far as they were counted
    undelivered_more: bool  # True if there are more of these


@dataclass(frozen=True, slots=True)
class TrimFacts:
    """The known facts before a stream is trimmed."""

    stream: StreamStatus  # State of the stream
    oldest: str  # The lowest id that stays; entries below it go
    entries: int  # Number of removed entries, as far as they were counted
    more: bool  # True if there are more
    groups: tuple[TrimmedGroup, ...] = ()  # The loss of each


def trim(facts: TrimFacts, *, approximately: bool = False) -> ChangePlan:
    """Remove the oldest entries of a stream."""
    stream = facts.stream
    key, goes = stream.key, counted(facts.entries, more=facts.more)
    sign = "~" if approximately else "="
    at_most = "at most " if approximately and facts.entries else ""
    left = None if facts.more else stream.length - facts.entries
    table = [BeforeAfter("entries", stream.length, left)]
    if left and not approximately:
        table.append(BeforeAfter("first entry not below", stream.first_entry_id, facts.oldest))
    losing = [group for group in facts.groups if group.pending or group.undelivered]
    for group in losing:
        if group.pending:
            table.append(BeforeAfter(f"{group.group}: pending entries that go", group.pending, 0))
        if group.undelivered:
            table.append(BeforeAfter(f"{group.group}: undelivered entries that go", group.undelivered, 0))
    # a group that was made meanwhile might need all of them; the length moves with every entry that is added
    check = stream_check(key, groups=len(stream.groups))
    steps = (Step((("XTRIM", key, "MINID", sign, facts.oldest),), (check,)),) if facts.entries else ()
    whom = f", some of which {_names(losing)} still need{'s' if len(losing) == 1 else ''}" if losing else ""
    figures: dict[str, object] = {
        "entries": facts.entries,
        "entries_more": facts.more,
        "oldest": facts.oldest,
        "pending": sum(group.pending for group in facts.groups),
        "undelivered": sum(group.undelivered for group in facts.groups),
    }
    undo = Undo(
        note="It cannot be undone; `millstream export` keeps a copy, `millstream archive` moves them to Parquet."
    )
    question = f"Trim {at_most}{goes} of {key!r}{whom}?"
    return ChangePlan("stream trim", key, "", question, tuple(table), _notes(facts, losing), steps, undo, figures)


def _names(losing: list[TrimmedGroup]) -> str:
    names = [repr(group.group) for group in losing[:3]]
    return ", ".join(names) + (f" and {len(losing) - 3} more" if len(losing) > 3 else "")


def _notes(facts: TrimFacts, losing: list[TrimmedGroup]) -> tuple[str, ...]:
    """The other losses."""
    notes = []
    for group in losing:
        if group.pending:
            some = counted(group.pending, more=group.pending_more)
            notes.append(
                f"{group.group!r} has {some} of them pending: delivered and not acknowledged. They stay pending "
                "without their fields, until a claim drops them; nobody can process them again."
            )
        if group.undelivered:
            some = counted(group.undelivered, more=group.undelivered_more)
            notes.append(f"{group.group!r} was not delivered {some} of them, and never will be.")
    if "groups" in facts.stream.missing:
        notes.append(f"Who still needs them is not known: {facts.stream.missing['groups']}")
    elif facts.stream.groups and facts.entries and not losing:
        notes.append("Every group was delivered all of them and has acknowledged them.")
    if facts.entries and order(facts.oldest) > order(facts.stream.last_id):
        notes.append("The stream is empty afterwards, unless entries are added meanwhile.")
    return tuple(notes)
