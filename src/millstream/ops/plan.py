"""A change before it is made: its effect, other losses, redeliveries, and its undo. Pure.

A plan holds the commands and, with each, the facts from which it was made. ``guard`` applies it and has the server
check these facts again together with the step. If a fact changed, that step is skipped, and its result reports so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, ClassVar, Literal, TypeAlias

from millstream.errors import MillstreamError
from millstream.ops.words import Word, as_bytes, order
from millstream.texts import said

Words: TypeAlias = tuple[Word, ...]

Shape = Literal["value", "map", "rows", "first"]
"""Form of the reply to a check's command.

``value``: the value itself. ``map``: a flat list of names and values. ``rows``: a list of such maps, found by name.
``first``: a list of rows, of which the first counts.
"""

MOST_SHOWN = 200
"""Steps with raw commands that a preview and the audit entry show; also the limit of one script."""

ABSENT = "-"
"""The text of a fact if its row does not exist."""

NOBODY = ""
"""The consumer name of pending entries without a holder, as in XPENDING and XCLAIM."""

MOST_KEPT = 5_000
"""Limit of pending entries that are kept for an undo; a change of more entries reports that it cannot be undone."""


class ChangeRefusedError(MillstreamError):
    """The facts, the server or the user's rights do not allow a change; nothing was changed.

    What to do: correct the cause that the message names, and try again.
    """

    exit_code: ClassVar[int] = 5


class TargetMissingError(ChangeRefusedError):
    """The target of a change, or an object that it needs, does not exist; the message names it.

    What to do: list the existing names (`millstream stream ls`, `millstream group ls`) and use one of them.
    """

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class FactCheck:
    """Facts that must be unchanged since the plan was made."""

    about: str  # Subject of the facts, for messages
    read: Words  # Command that reads the facts; it contains the stream's key and changes nothing
    shape: Shape  # Form of the reply
    row: str  # Name of the row to read, for ``rows``
    # Field -> value as text, ``""`` for null. For ``first`` a field is the position in the row, from 1; for ``value``
    # it is ``""``
    expected: tuple[tuple[str, str], ...]
    # Fields with ids, each with its lowest and highest allowed value; ``""`` for no highest value
    between: tuple[tuple[str, str, str], ...] = ()

    def moved(self, reply: Any) -> str | None:
        """Return the difference from the expected facts in words; None if there is none."""
        if isinstance(reply, Exception):
            return f"{self.about}: {said(reply)}"
        for name, expected in self.expected:
            found = _fact(self, name, reply)
            if found != expected:
                return self.worded(name, found)
        for name, low, high in self.between:
            found = _fact(self, name, reply)
            if found == ABSENT or order(found) < order(low) or (high and order(found) > order(high)):
                return self.worded(name, found)
        return None

    def worded(self, name: str, found: str) -> str:
        """Return the difference of one changed fact in words."""
        if found == ABSENT:
            return f"{self.about} does not exist any more"
        ids = next(((low, high) for each, low, high in self.between if each == name), None)
        if ids is not None:
            back = order(found) < order(ids[0])
            return f"{self.about}: {name} is {found}, {'before' if back else 'behind'} {ids[0] if back else ids[1]}"
        before = dict(self.expected)[name]
        if before == ABSENT:
            return f"{self.about} exists by now"
        if self.shape == "value":
            return f"{self.about} was {before or 'nothing'} and is {found or 'nothing'}"
        what = _PLACES.get(name, name) if self.shape == "first" else name
        return f"{self.about}: {what} was {before or 'unknown'} and is {found or 'unknown'}"


_PLACES = {"2": "its consumer", "4": "its deliveries"}


def as_fact(value: Any) -> str:
    """Return a reply's value as text, as the script in ``guard`` does: large numbers lose their last digits there."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{float(value):.0f}"
    return as_bytes(value).decode(errors="surrogateescape")


def _fact(check: FactCheck, name: str, reply: Any) -> str:
    if check.shape == "value":
        return as_fact(reply)
    if check.shape == "first":
        return as_fact(reply[0][int(name) - 1]) if reply else ABSENT
    row = reply if check.shape == "map" else next((each for each in reply if _named(each) == check.row), None)
    if row is None:
        return ABSENT
    return as_fact(_facts(row).get(name))


def _named(row: Sequence[Any]) -> str:
    return as_fact(_facts(row).get("name"))


def _facts(row: Sequence[Any]) -> dict[str, Any]:
    return {name.decode(errors="surrogateescape"): value for name, value in zip(row[::2], row[1::2], strict=True)}


@dataclass(frozen=True, slots=True)
class Step:
    """Commands that run together if their checks hold."""

    commands: tuple[Words, ...]  # Raw commands in order; each contains the stream's key
    checks: tuple[FactCheck, ...] = ()  # Facts that must hold
    entry: str = ""  # Id of the pending entry that it changes; empty if it changes none


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """One row of the table that a preview shows."""

    fact: str  # Fact, in words
    before: int | str | None  # Present value; None if unknown
    after: int | str | None  # Value afterwards; None if it will be unknown


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """A pending entry with its holder, as an undo restores it."""

    id: str  # Id of the entry
    consumer: str  # Holder; empty for none
    since_ms: int  # Wall milliseconds of the last delivery; 0 without a holder
    deliveries: int  # Number of deliveries
    waits: bool = False  # The entry is delayed; an undo does not restore the delay


@dataclass(frozen=True, slots=True)
class Undo:
    """The way to undo a change."""

    # Command line as a list; empty if there is none, or if it is ``millstream audit undo`` with the change's name
    words: tuple[str, ...] = ()
    commands: tuple[Words, ...] = ()  # Raw commands
    held: tuple[HeldEntry, ...] = ()  # Pending entries before the change, for ``millstream audit undo``
    # Holder after the change, ``""`` for none; None if they are no longer pending
    now: str | None = None
    note: str = ""  # Reason why the change cannot be undone completely; may be empty

    @property
    def by_audit(self) -> bool:
        """True if ``millstream audit undo`` restores the pending entries."""
        return bool(self.held)


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """A change that is ready to be made."""

    action: str  # Name of the action, such as ``group rewind``
    stream: str  # Key of the stream
    group: str  # Name of the group; empty if there is none
    question: str = ""  # Confirmation prompt, with its question mark
    table: tuple[BeforeAfter, ...] = ()  # Facts before and after the change
    notes: tuple[str, ...] = ()  # Other effects: losses, redeliveries, warnings
    steps: tuple[Step, ...] = ()  # Steps of the change; none if there is nothing to do
    undo: Undo = field(default_factory=Undo)  # Undo of the change
    facts: Mapping[str, object] = field(default_factory=dict)  # Figures for programs, by field name
    # Command line as a list, with the facts that were looked up, so that the same change has the same line. If it is
    # empty, the preparation of a change fills it in.
    words: tuple[str, ...] = ()
    key: str = ""  # Key that the steps write, if it differs from the stream
    selection: str = ""  # Identity of its subject, if only the first of many steps are included; a part of the digest
    difference: tuple[str, ...] = ()  # Changes of a correction, in the form of ``diff -u``
    removes: bool = False  # True if the change removes or renames its subject
    # True if data could be lost between check and step, so that a script is required
    needs_script: bool = False
    live: bool = False  # True if the group is in use, so that it advances while a person reads the preview
    moving: bool = False  # True if its facts may change until it is made: the digest covers only the commands
    if_moved: str = ""  # True if the facts may change before the change: the digest then covers only the commands

    @property
    def place(self) -> str:
        """The key that the steps write."""
        return self.key or self.stream

    @property
    def commands(self) -> tuple[Words, ...]:
        """The raw commands; commands for one entry each are joined if only their ids differ.

        Only the first :data:`MOST_SHOWN` steps of a long plan are included: a reader does not need a hundred thousand
        commands.
        """
        return joined([command for step in self.steps[:MOST_SHOWN] for command in step.commands])

    @property
    def digest(self) -> str:
        """A digest of the plan and its facts, by which a user confirms the preview.

        A page does not keep a preview. The confirmation sends the digest, and the plan is made again: a different
        digest means that the facts have changed.
        """
        made_of: tuple[object, ...] = (self.action, self.words, self.selection)
        made_of += (self.commands,) if self.moving else (self.steps, sorted(self.facts.items()))
        return sha256(repr(made_of).encode()).hexdigest()[:32]


def joined(commands: Sequence[Words]) -> tuple[Words, ...]:
    """Join commands for one id each, such as ``XACK key group id``, to one with all ids; keep other commands."""
    found: list[Words] = []
    for command in commands:
        last = found[-1] if found else None
        if last is not None and command[0] == last[0] == "XACK" and command[1:3] == last[1:3]:
            found[-1] = (*last, *command[3:])
        elif last is not None and last[0] == "XNACK" == command[0] and last[:5] == command[:5] and len(command) == 7:
            found[-1] = (*last[:5], len(last) - 5, *last[6:], command[6])
        elif last is not None and (both := _joined_claims(last, command)) is not None:
            found[-1] = both
        else:
            found.append(command)
    return tuple(found)


def _joined_claims(left: Words, right: Words) -> Words | None:
    """Join two XCLAIM commands if only their ids differ; otherwise return None."""
    if left[0] != "XCLAIM" or right[0] != "XCLAIM" or left[1:5] != right[1:5]:
        return None
    at = next(place for place, word in enumerate(left) if place > 4 and not _is_id(word))
    return (*left[:at], right[5], *left[at:]) if left[at:] == right[6:] else None


def _is_id(word: Word) -> bool:
    return isinstance(word, str) and word.partition("-")[0].isdecimal()


def group_check(stream: str, group: str, **expected: object) -> FactCheck:
    """Return a check that a group's fields are unchanged."""
    facts = tuple((name.replace("_", "-"), "" if value is None else as_fact(value)) for name, value in expected.items())
    read = ("XINFO", "GROUPS", stream)
    return FactCheck(f"the group {group!r}", read, "rows", group, facts or (("name", ABSENT),))


def position_check(stream: str, group: str, low: str, high: str) -> FactCheck:
    """Return a check that the group's position is between two ids."""
    between = (("last-delivered-id", low, high),)
    return FactCheck(f"the group {group!r}", ("XINFO", "GROUPS", stream), "rows", group, (), between)


def consumer_check(stream: str, group: str, consumer: str, pending: int) -> FactCheck:
    """Return a check that a consumer still has this number of pending entries."""
    read = ("XINFO", "CONSUMERS", stream, group)
    return FactCheck(f"the consumer {consumer!r}", read, "rows", consumer, (("pending", as_fact(pending)),))


def entry_check(stream: str, group: str, held: HeldEntry) -> FactCheck:
    """Return a check that a pending entry has the same consumer and the same number of deliveries."""
    read = ("XPENDING", stream, group, held.id, held.id, 1)
    return FactCheck(f"entry {held.id}", read, "first", "", (("2", held.consumer), ("4", as_fact(held.deliveries))))


def stream_check(stream: str, **expected: object) -> FactCheck:
    """Return a check that a stream's fields are unchanged."""
    facts = tuple((name.replace("_", "-"), "" if value is None else as_fact(value)) for name, value in expected.items())
    return FactCheck(f"the stream {stream!r}", ("XINFO", "STREAM", stream), "map", "", facts)


def no_stream_check(stream: str) -> FactCheck:
    """Return a check that a key does not exist."""
    return key_check(stream, there=False)


def value_check(about: str, read: Words, expected: object) -> FactCheck:
    """Return a check that a command still replies with this one value."""
    return FactCheck(about, read, "value", "", (("", as_fact(expected)),))


def key_check(key: str, *, there: bool = True) -> FactCheck:
    """Return a check that a key exists, or that it does not."""
    return value_check(f"the key {key!r}", ("EXISTS", key), there)


def counted(number: int, *, more: bool = False) -> str:
    """Return a number of entries in words: ``1 entry``, ``more than 1000 entries``."""
    return f"{'more than ' if more else ''}{number} {'entry' if number == 1 and not more else 'entries'}"


def delays_end(entries: int) -> str:
    """Return the note of a change that gives this number of delayed entries to a consumer."""
    waits = "waits" if entries == 1 else "wait"
    return (
        f"{counted(entries)} of them {waits} until a delay is over: this ends the delay, and an undo does not bring it "
        "back."
    )


def put_back_command(stream: str, group: str, held: HeldEntry, *, xnack: bool = False) -> Words:
    """Return the command that restores a pending entry as it was."""
    if held.consumer == NOBODY and xnack:
        return ("XNACK", stream, group, "FAIL", "IDS", 1, held.id, "RETRYCOUNT", held.deliveries, "FORCE")
    tail = ("TIME", held.since_ms, "RETRYCOUNT", held.deliveries, "FORCE", "JUSTID")
    return ("XCLAIM", stream, group, held.consumer, 0, held.id, *tail)


Counting = Callable[[int], None]
"""Callback with the number of entries counted so far."""
