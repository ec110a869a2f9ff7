"""Dead letters: which streams have some, and of one of them the letters, by what they died of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millstream.client.dead_letter.letter import DeadLetter, dead_key
from millstream.client.dead_letter.put_back import StoredLetter, stored
from millstream.client.line import Line
from millstream.console.payloads.entry import EntryPayload
from millstream.console.reading import fleet
from millstream.console.reading.asking import calls, checked
from millstream.console.web.facts import Facts, payload_facts
from millstream.console.web.page import Asked, WebPage
from millstream.console.web.pages.common import command_line
from millstream.console.web.shown import LIGHT, Shown, in_brief, light_value
from millstream.console.web.words import name

LETTERS = 200
"""Letters that are looked at, the newest; their classes are of these."""

_LISTED = 50
_CLASS = 80  # letters of what an error is called


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A letter in the table.

    Attributes:
        id: in the dead-letter stream.
        letter: what it says of itself; None where something else wrote the entry.
        fields: of the entry that died.
    """

    id: str
    letter: DeadLetter | None
    fields: list[Shown]


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Letters that died of the same.

    Attributes:
        reason: error, nack, reject, invalid, overdue.
        error: the type of the error, or its text where it has none.
        group: that gave up on them.
        letters: how many, of those looked at.
        newest: the last one.
    """

    reason: str
    error: str
    group: str
    letters: int
    newest: StoredLetter


async def dead_page(asked: Asked) -> WebPage:
    """The dead-letter streams, or the letters of the one that ``key`` names.

    Raises:
        MillstreamError: there is none, the server does not answer.
    """
    if "key" in asked.words:
        return await _letters_page(asked, asked.words["key"])
    reading = await asked.watch.read("letters", fleet.letters)
    seen = reading.value
    facts: Facts = {
        "letters": seen.letters,
        "streams": [
            {
                "key": one.key,
                "letters": one.letters,
                "streams": list(one.streams),
                "first_ms": one.first_ms,
                "last_ms": one.last_ms,
            }
            for one in seen.streams
        ],
        "unknown": seen.why,
    }
    view = {"seen": seen, "now": reading.at_ms}
    return WebPage("dead", "Dead letters", facts, view, [command_line(asked, "dead", "ls")], **WebPage.source(reading))


async def _letters_page(asked: Asked, key: str) -> WebPage:
    """The letters of one stream."""
    reading = await asked.watch.read(("dead", key), lambda line: _read(line, key))
    letters, length = reading.value
    classes = _classes(letters)
    listed = letters[:_LISTED]
    facts: Facts = {
        "stream": key,
        "letters": length,
        "looked_at": len(letters),
        "classes": [
            {
                "reason": one.reason,
                "error": one.error,
                "group": one.group,
                "letters": one.letters,
                "newest": one.newest.id,
                "newest_ms": None if one.newest.letter is None else one.newest.letter.died_ms,
            }
            for one in classes
        ],
        "letter_list": [_letter_facts(one) for one in listed],
    }
    view = {
        "key": key,
        "length": length,
        "looked_at": len(letters),
        "classes": classes,
        "letters": [LetterRow(one.id, one.letter, in_brief(_payload(one))) for one in listed],
        "now": reading.at_ms,
    }
    place = (key,) if dead_key(key) == key else (key, "--key", key)
    shell = [command_line(asked, "dead", "ls", *place), command_line(asked, "dead", "retry", *place, "--all")]
    return WebPage("letters", name(key), facts, view, shell, **WebPage.source(reading))


async def _read(line: Line, key: str) -> tuple[list[StoredLetter], int]:
    """The newest letters, newest first, and how many there are."""
    rows, length = await calls(line, [("XREVRANGE", key, "+", "-", "COUNT", LETTERS), ("XLEN", key)])
    return [_light(stored(row)) for row in checked(rows, key)], int(checked(length, key))


def _light(one: StoredLetter) -> StoredLetter:
    """A letter without the rest of its long values."""
    if one.letter is None:
        return replace(one, flat=tuple(map(light_value, one.flat)))
    error, trace = one.letter.error[:LIGHT], one.letter.traceback[:LIGHT]
    fields = tuple(map(light_value, one.letter.fields))
    return replace(one, flat=(), letter=replace(one.letter, fields=fields, error=error, traceback=trace))


def _classes(letters: Sequence[StoredLetter]) -> list[ErrorClass]:
    """What they died of, the most frequent first."""
    found: dict[tuple[str, str, str], list[StoredLetter]] = {}
    for one in letters:
        letter = one.letter
        what = ("", "", "") if letter is None else (letter.reason, _class(letter.error), letter.group)
        found.setdefault(what, []).append(one)
    every = [ErrorClass(*what, len(ones), ones[0]) for what, ones in found.items()]
    return sorted(every, key=lambda one: -one.letters)


def _class(error: str) -> str:
    """What an error is called: its type, where its text begins with one."""
    kind, colon, _ = error.partition(":")
    return kind if colon and kind.replace(".", "").isidentifier() else error[:_CLASS]


def _payload(one: StoredLetter) -> EntryPayload:
    flat = one.letter.fields if one.letter is not None else one.flat
    return EntryPayload(list(zip(flat[::2], flat[1::2], strict=True)))


def _letter_facts(one: StoredLetter) -> Facts:
    letter = one.letter
    return {
        "id": one.id,
        "stream": None if letter is None else letter.stream,
        "entry": None if letter is None else letter.id,
        "group": None if letter is None else letter.group,
        "consumer": None if letter is None else letter.consumer,
        "reason": None if letter is None else letter.reason,
        "error": None if letter is None else letter.error,
        "deliveries": None if letter is None else letter.deliveries,
        "died_ms": None if letter is None else letter.died_ms,
        "fields": payload_facts(_payload(one)),
    }
