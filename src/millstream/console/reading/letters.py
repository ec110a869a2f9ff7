"""The dead letters of one stream, the newest, and what they died of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millstream.client.dead_letter.put_back import StoredLetter, stored
from millstream.client.line import Line
from millstream.console.model.letters import error_class
from millstream.console.payloads.entry import EntryPayload
from millstream.console.payloads.shown import light_value
from millstream.console.reading.asking import calls, checked

LETTERS = 200
"""Letters that are looked at, the newest; their classes are of these."""


_ERROR, _TRACE = 2000, 4000  # letters: of an error the first, of a traceback the last, which say most


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Letters that died of the same."""

    reason: str  # Error, nack, reject, invalid, overdue
    error: str  # The type of the error, or its text where it has none
    group: str  # Group that gave up on them
    letters: int  # Number of letters, of those looked at
    newest: StoredLetter  # The last one


async def read_letters(line: Line, key: str) -> tuple[list[StoredLetter], int]:
    """The newest letters, newest first, without the rest of long values; and how many there are."""
    rows, length = await calls(line, [("XREVRANGE", key, "+", "-", "COUNT", LETTERS), ("XLEN", key)])
    return [_light(stored(row)) for row in checked(rows, key)], int(checked(length, key))


def error_classes(letters: Sequence[StoredLetter]) -> list[ErrorClass]:
    """Their causes of death, the most frequent first."""
    found: dict[tuple[str, str, str], list[StoredLetter]] = {}
    for one in letters:
        letter = one.letter
        what = ("", "", "") if letter is None else (letter.reason, error_class(letter.error), letter.group)
        found.setdefault(what, []).append(one)
    every = [ErrorClass(*what, len(ones), ones[0]) for what, ones in found.items()]
    return sorted(every, key=lambda one: -one.letters)


def letter_payload(one: StoredLetter) -> EntryPayload:
    """The entry that died; for an entry that is not a letter, its own fields."""
    flat = one.letter.fields if one.letter is not None else one.flat
    return EntryPayload(list(zip(flat[::2], flat[1::2], strict=True)))


def _light(one: StoredLetter) -> StoredLetter:
    """A letter without the rest of its long values."""
    if one.letter is None:
        return replace(one, flat=tuple(map(light_value, one.flat)))
    error, trace = one.letter.error[:_ERROR], one.letter.traceback
    trace = trace if len(trace) <= _TRACE else f"...\n{trace[-_TRACE:]}"
    fields = tuple(map(light_value, one.letter.fields))
    return replace(one, flat=(), letter=replace(one.letter, fields=fields, error=error, traceback=trace))
