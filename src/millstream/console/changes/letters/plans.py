"""Changes of dead letters, decided: put back, correct and put back, delete.

A plan shows the commands of its first letters. :mod:`millstream.client.dead_letter.put_back` puts letters back, one
transaction after the other.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from millstream.client.dead_letter.letter import DeadLetter
from millstream.client.dead_letter.put_back import StoredLetter
from millstream.console.changes.plan import BeforeAfter, ChangePlan, Step, Undo, Words
from millstream.console.model.letters import error_class

FIRST = 20
"""Letters whose commands a preview shows."""

_NAMED = 8  # streams and errors that a preview has a row for

_NOT_AS_NEW = "Each is a new entry at its stream's end; its history goes with it, and its letter is removed."


@dataclass(slots=True)
class LetterTally:
    """Letters that were chosen, counted without keeping them."""

    key: str  # Key of the dead-letter stream
    length: int  # Letters in it
    ids: list[str] = field(default_factory=list)  # Ids of the chosen letters, in their order
    first: list[StoredLetter] = field(default_factory=list)  # The first of them
    letters: list[StoredLetter] = field(default_factory=list)  # The first of them that are dead letters
    # Stream and group that gave up -> how many of them
    groups: Counter[tuple[str, str]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # Cause of death -> number of letters
    strange: int = 0  # Entries among them that are not dead letters
    missing: list[str] = field(default_factory=list)  # Ids that were asked for and are not there

    def add(self, one: StoredLetter) -> None:
        """Count a letter."""
        self.ids.append(one.id)
        if len(self.first) < FIRST:
            self.first.append(one)
        if one.letter is None:
            self.strange += 1
            return
        if len(self.letters) < FIRST:
            self.letters.append(one)
        self.groups[one.letter.stream, one.letter.group] += 1
        self.errors[error_class(one.letter.error) or one.letter.reason] += 1

    @property
    def streams(self) -> Mapping[str, int]:
        """Stream -> how many of them came from it."""
        found: Counter[str] = Counter()
        for (stream, _), count in self.groups.items():
            found[stream] += count
        return found

    @property
    def selection(self) -> str:
        """A text that distinguishes these letters from any others."""
        return sha256(" ".join(self.ids).encode()).hexdigest()

    @property
    def wanted(self) -> list[str]:
        """All ids that were asked for."""
        return [*self.ids, *self.missing]


def retry(found: LetterTally, *, all_groups: bool, rate: float | None) -> ChangePlan:
    """Put letters back on the streams they came from."""
    count = len(found.ids)
    streams = ", ".join(sorted(found.streams)) or "no stream"
    groups = ", ".join(sorted({group for _, group in found.groups}))
    whom = "every group there" if all_groups else f"the group that gave up on it only ({groups})"
    question = f"Put back {_entries(count)} of {found.key} on {streams}, each for {whom}?"
    table = [BeforeAfter(f"letters in {found.key}", found.length, found.length - count + found.strange)]
    rows = Counter(found.streams).most_common(_NAMED)
    table += [BeforeAfter(f"put back on {stream}", 0, number) for stream, number in rows]
    notes = [_NOT_AS_NEW, *_causes(found)]
    if all_groups:
        notes.append("Every group of the stream is given it, also those that have processed it.")
    else:
        notes.append("Workers of other groups acknowledge it and run nothing; readers that are none of ours get it.")
    if rate is not None and count > rate:
        notes.append(f"At most {rate:g} a second: it takes about {count / rate:.0f} s.")
    notes += _left_out(found)
    steps = tuple(_put_back(found.key, one, one.letter) for one in found.letters if one.letter is not None)
    undo = Undo(note="It cannot be undone: the letters are gone, and the entries are on their streams.")
    facts: dict[str, object] = {"letters": count, "groups": "all" if all_groups else "failed"}
    return ChangePlan(
        "dead retry", found.key, "", question, tuple(table), _shown(notes, found), steps, undo, facts,
        selection=found.selection,
    )  # fmt: skip


def remove(found: LetterTally) -> ChangePlan:
    """Delete letters for good."""
    count = len(found.ids)
    table = (BeforeAfter(f"letters in {found.key}", found.length, found.length - count),)
    notes = [*_causes(found), "`millstream dead export` keeps a copy.", *_missing(found)]
    steps = tuple(Step((("XDEL", found.key, one.id),), entry=one.id) for one in found.first)
    undo = Undo(note="It cannot be undone.")
    letters = "dead letter" if count == 1 else "dead letters"
    question = f"Delete {count} {letters} of {found.key} for good?"
    return ChangePlan(
        "dead rm", found.key, "", question, table, _shown(notes, found), steps, undo, {"letters": count},
        selection=found.selection,
    )  # fmt: skip


def edit(key: str, one: StoredLetter, fields: Sequence[bytes], difference: Sequence[str]) -> ChangePlan:
    """Put the corrected entry of a letter back."""
    letter = one.letter
    assert letter is not None
    question = (
        f"Put the corrected entry back on {letter.stream} for the group that gave up on it only ({letter.group}), and "
        "remove its letter?"
    )
    undo = Undo(note="It cannot be undone: its letter is gone, and the corrected entry is on its stream.")
    changed = tuple(fields) != letter.fields
    steps = (_put_back(key, one, replace(letter, fields=tuple(fields))),) if changed else ()
    table = (BeforeAfter(f"put back on {letter.stream}", 0, 1),)
    notes = (_NOT_AS_NEW, "Its history says that it was edited.") if changed else ()
    return ChangePlan(
        "dead edit", letter.stream, letter.group, question, table, notes, steps, undo, {"letter": one.id},
        difference=tuple(difference),
    )  # fmt: skip


def _put_back(key: str, one: StoredLetter, letter: DeadLetter) -> Step:
    add: Words = ("XADD", letter.stream, "*", *letter.fields, "_dead.history", "...")
    return Step((add, ("XDEL", key, one.id)), entry=one.id)


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _causes(found: LetterTally) -> list[str]:
    """Their causes of death, the most frequent first."""
    named = [f"{error} {count}" for error, count in found.errors.most_common(_NAMED) if error]
    return [f"They died of: {', '.join(named)}."] if named else []


def _left_out(found: LetterTally) -> list[str]:
    strange = [f"{found.strange} of them are no dead letters, and stay."] if found.strange else []
    return [*strange, *_missing(found)]


def _missing(found: LetterTally) -> list[str]:
    return [f"{len(found.missing)} of the ids are not there."] if found.missing else []


def _shown(notes: list[str], found: LetterTally) -> tuple[str, ...]:
    if len(found.ids) > FIRST:
        notes.append(f"The commands shown are those of the first {FIRST} letters.")
    return tuple(notes)
