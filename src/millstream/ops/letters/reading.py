"""Reading dead letters: their streams, pages of letters, and the letters that a change selects."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TypeAlias

from millstream.client.dead_letter.admin import DeadLetterAdmin, LetterFilter, dead_letter_streams
from millstream.client.dead_letter.letter import dead_key, error_class
from millstream.client.dead_letter.put_back import StoredLetter, stored
from millstream.client.line import Line
from millstream.errors import Disconnected, MillstreamError, UsageError
from millstream.ops.asking import calls, checked
from millstream.ops.letters.status import LettersSeen, LettersStatus
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.payloads.shown import light_value
from millstream.ops.plan import Counting, TargetMissingError
from millstream.ops.streams.partitioned import parts_of
from millstream.ops.words import command_words, milliseconds, shell_line

LETTERS = 200
"""Limit of error classes that are told apart."""

COUNTED = 2_000
"""Limit of letters that one page counts, the newest first."""

LISTED = 10
"""Number of letters that one page lists."""

VOLUME = 4 << 20
"""Approximate limit of their size in bytes."""

_EVERY = 25  # times these limits for a person who asks for the counts of all letters
_ERROR, _TRACE = 2000, 4000  # shown characters: the first ones of an error, the last ones of a traceback


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Letters with the same reason, error and group."""

    reason: str  # Reason: error, nack, reject, invalid or overdue
    error: str  # Type of the error, or its text if it has no type
    group: str  # Group that gave up on the entries
    letters: int  # Number of letters among those read
    newest: StoredLetter  # The newest letter


@dataclass(slots=True)
class LetterCounts:
    """Counts over the letters of one dead-letter stream, newest first, as far as they were read."""

    length: int  # Number of all letters
    looked_at: int = 0  # Number of letters that were read
    last: str | None = None  # Id of the last letter that was read; None if there was none
    more: bool = False  # True if further letters were not read
    fitting: int = 0  # Number of letters that fit
    letters: list[StoredLetter] = field(default_factory=list)  # First of these, with long values cut
    classes: dict[tuple[str, str, str], ErrorClass] = field(default_factory=dict)  # Reason, error, group -> class
    groups: Counter[str] = field(default_factory=Counter)  # Group -> number of letters that were read
    times: list[int] = field(default_factory=list)  # Times of writing of those that fit

    def add(self, one: StoredLetter) -> None:
        """Count a letter that fits."""
        self.fitting += 1
        self.times.append(milliseconds(one.id))
        letter = one.letter
        what = ("", "", "") if letter is None else (letter.reason, error_class(letter.error), letter.group)
        if len(self.letters) < LISTED or (what not in self.classes and len(self.classes) < LETTERS):
            one = _light(one)
        if len(self.letters) < LISTED:
            self.letters.append(one)
        known = self.classes.get(what)
        if known is not None:
            self.classes[what] = replace(known, letters=known.letters + 1)
        elif len(self.classes) < LETTERS:
            self.classes[what] = ErrorClass(*what, 1, one)


async def count_letters(
    line: Line, key: str, wanted: LetterFilter, before: str | None = None, *, every: bool = False
) -> LetterCounts:
    """Count the letters that fit, the newest first, within :data:`COUNTED` letters and :data:`VOLUME` bytes.

    To count ``every`` letter, the limits are 25 times as high.
    """
    near, size, times = line.near(key), 0, _EVERY if every else 1
    (length,) = await calls(near, [("XLEN", key)])
    found = LetterCounts(int(checked(length, key)))
    start = "-" if wanted.since is None else str(wanted.since)
    end = f"({before}" if before else "+" if wanted.until is None else str(max(wanted.until - 1, 0))
    page = FIRST
    while True:
        (rows,) = await calls(near, [("XREVRANGE", key, end, start, "COUNT", page)])
        for row in checked(rows, key):
            if found.looked_at >= COUNTED * times or size >= VOLUME * times:
                found.more = True
                return found
            one = stored(row)
            found.looked_at, found.last = found.looked_at + 1, one.id
            size += sum(map(len, one.flat))
            found.groups["" if one.letter is None else one.letter.group] += 1
            if wanted.matches(one):
                found.add(one)
        if len(rows) < page:
            return found
        end = f"({found.last}"
        page = max(1, min(5 * page, 500, (VOLUME // 4) * found.looked_at // max(size, 1)))


def letter_payload(one: StoredLetter) -> EntryPayload:
    """Return the payload of the dead entry; for an entry that is not a letter, its own fields."""
    flat = one.letter.fields if one.letter is not None else one.flat
    return EntryPayload(list(zip(flat[::2], flat[1::2], strict=True)))


def _light(one: StoredLetter) -> StoredLetter:
    """Return a letter with its long values cut."""
    if one.letter is None:
        return replace(one, flat=tuple(map(light_value, one.flat)))
    error, trace = one.letter.error[:_ERROR], one.letter.traceback
    trace = trace if len(trace) <= _TRACE else f"...\n{trace[-_TRACE:]}"
    fields = tuple(map(light_value, one.letter.fields))
    return replace(one, flat=(), letter=replace(one.letter, fields=fields, error=error, traceback=trace))


ChosenLetters: TypeAlias = LetterFilter | Sequence[str]
"""A selection of letters in a dead-letter stream: a filter or ids."""
_PAGE = 200


async def after_newest(line: Line, key: str) -> int:
    """Return the millisecond after the newest dead letter."""
    (rows,) = await calls(line.near(key), [("XREVRANGE", key, "+", "-", "COUNT", 1)])
    newest = checked(rows, key)
    return int(newest[0][0].partition(b"-")[0]) + 1 if newest else 0


def admin_of(line: Line, key: str) -> DeadLetterAdmin:
    """Return the administration of one dead-letter stream, on its node of a cluster."""
    return DeadLetterAdmin(line.near(key), key)


async def parts_of_letters(line: Line, stream: str) -> tuple[str, ...]:
    """Return the dead-letter streams of a partitioned stream; none if it is not partitioned."""
    parts = await parts_of(line, stream)
    usual = [dead_key(key) for key in parts]
    there = await calls(line, [("EXISTS", key) for key in usual])
    found = [key for key, one in zip(usual, there, strict=True) if one == 1]
    if parts and not found:  # in code, one dead-letter stream may be set for all partitions
        found = [one.key for one in await dead_letter_streams(line) if set(one.streams) & set(parts)]
    return tuple(found or usual[:1])


async def place_in_parts(line: Line, stream: str, ident: str) -> str | None:
    """The dead-letter stream of a partitioned stream that has a letter; None if the stream is not partitioned."""
    places = await parts_of_letters(line, stream)
    for place in places:
        if (await admin_of(line, place).find([ident]))[0]:
            return place
    if places:
        lists = shell_line(command_words("dead ls", stream))
        raise TargetMissingError(f"there is no letter {ident} in the partitions of {stream!r}; `{lists}` lists them")
    return None


async def one_letter(line: Line, key: str, ident: str) -> StoredLetter:
    """Return one entry of a dead-letter stream in full."""
    found, _ = await admin_of(line, key).find([ident])
    if not found:
        raise TargetMissingError(
            f"there is no letter {ident} in {key}; `{shell_line(command_words('dead ls', key))}` lists them"
        )
    return found[0]


async def editable(line: Line, key: str, ident: str) -> tuple[StoredLetter, list[tuple[bytes, bytes]]]:
    """Return a letter and the fields of its entry; raise an error if it cannot be edited."""
    found = await one_letter(line, key, ident)
    if found.letter is None:
        raise UsageError(f"{ident} in {key} is {found.strange}")
    flat = found.letter.fields
    return found, list(zip(flat[::2], flat[1::2], strict=True))


@dataclass(slots=True)
class LetterTally:
    """Counts of selected letters; only the first letters are kept."""

    key: str  # Key of the dead-letter stream
    length: int  # Number of letters in it
    ids: list[str] = field(default_factory=list)  # Ids of the chosen letters, in order
    first: list[StoredLetter] = field(default_factory=list)  # First of the chosen letters
    letters: list[StoredLetter] = field(default_factory=list)  # First entries that are dead letters
    # Stream and group that gave up -> number of letters
    groups: Counter[tuple[str, str]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # Cause of death -> number of letters
    strange: int = 0  # Number of chosen entries that are not dead letters
    missing: list[str] = field(default_factory=list)  # Requested ids that do not exist

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
        """Number of letters by the stream from which they came."""
        found: Counter[str] = Counter()
        for (stream, _), count in self.groups.items():
            found[stream] += count
        return found

    @property
    def selection(self) -> str:
        """A digest that identifies this set of letters."""
        return sha256(" ".join(self.ids).encode()).hexdigest()

    @property
    def wanted(self) -> list[str]:
        """All requested ids, also those that are missing."""
        return [*self.ids, *self.missing]


async def tally(line: Line, key: str, chosen: ChosenLetters, tell: Counting | None = None) -> LetterTally:
    """Count the selected letters."""
    admin = admin_of(line, key)
    found = LetterTally(key, await admin.count())
    if not isinstance(chosen, LetterFilter):
        ids = list(dict.fromkeys(chosen))
        for at in range(0, len(ids), _PAGE):
            there, missing = await admin.find(ids[at : at + _PAGE])
            for one in there:
                found.add(one)
            found.missing += missing
        return found
    async with aclosing(admin.letters(chosen)) as letters:
        async for one in letters:
            found.add(one)
            if tell is not None and len(found.ids) % _PAGE == 0:
                tell(len(found.ids))
    return found


FIRST = 20
"""Limit of letters with commands in a preview."""


async def letter_streams(line: Line) -> LettersSeen:
    """Read the list of all dead-letter streams."""
    at_ms = line.wall_time()
    try:
        found = await dead_letter_streams(line)
    except Disconnected:
        raise
    except MillstreamError as error:
        return LettersSeen(at_ms, why=str(error))
    rows = [
        LettersStatus(one.key, one.letters, milliseconds(one.first), milliseconds(one.last), one.streams)
        for one in found
    ]
    return LettersSeen(at_ms, tuple(rows))
