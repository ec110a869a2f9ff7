"""Dead letters: the streams with dead letters, and the letters of one stream, grouped by error."""

from dataclasses import dataclass, replace

from millstream.client.dead_letter.letter import DeadLetter, dead_key
from millstream.client.dead_letter.put_back import StoredLetter
from millstream.ops.letters.reading import ErrorClass, error_classes, letter_payload, letter_streams, read_letters
from millstream.ops.payloads.shown import Shown, in_brief, payload_facts
from millstream.ops.words import Facts, name
from millstream.web.page import Asked, WebPage, form_word
from millstream.web.pages.common import closed_actions, command_line

_LISTED = 50
_STREAMS = 500  # largest number of streams, sorted by key


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter as a table row."""

    id: str  # Id in the dead-letter stream
    letter: DeadLetter | None  # Contents of the letter; None if another program wrote the entry
    fields: list[Shown]  # Fields of the entry that died


async def dead_page(asked: Asked) -> WebPage:
    """Return the page of all dead-letter streams, or of the letters in the stream ``key``."""
    if "key" in asked.words:
        return await _letters_page(asked, asked.words["key"])
    reading = await asked.watch.read("letters", letter_streams)
    seen = reading.value
    facts: Facts = {
        "letters": seen.letters,
        "streams": [
            {name: getattr(one, name) for name in ("key", "letters", "streams", "first_ms", "last_ms")}
            for one in seen.streams[:_STREAMS]
        ],
        "streams_found": len(seen.streams),
        "unknown": seen.why,
    }
    view = {"seen": seen, "streams": seen.streams[:_STREAMS], "now": reading.at_ms}
    if len(seen.streams) == 1:  # the user need not select the only stream
        return replace(await _letters_page(asked, seen.streams[0].key), facts={"page": "dead", **facts})
    return WebPage("dead", "Dead letters", facts, view, [command_line(asked, "dead ls")], **WebPage.source(reading))


async def _letters_page(asked: Asked, key: str) -> WebPage:
    """Return the page with the letters of one stream."""
    reading = await asked.watch.read(("dead", key), lambda line: read_letters(line, key))
    letters, length = reading.value
    every = error_classes(letters)
    classes, listed = every[:_LISTED], letters[:_LISTED]
    facts: Facts = {
        "stream": key,
        "letters": length,
        "looked_at": len(letters),
        "classes": [
            {
                **{name: getattr(one, name) for name in ("reason", "error", "group", "letters")},
                "newest": one.newest.id,
                "newest_ms": None if one.newest.letter is None else one.newest.letter.died_ms,
            }
            for one in classes
        ],
        "classes_found": len(every),
        "letter_list": [_letter_facts(one) for one in listed],
    }
    view = {
        "key": key,
        "length": length,
        "looked_at": len(letters),
        "classes": classes,
        "more_classes": len(every) - len(classes),
        "letters": [LetterRow(one.id, one.letter, in_brief(letter_payload(one))) for one in listed],
        "now": reading.at_ms,
        "closed": await closed_actions(asked, key),
        "jobs": asked.watch.jobs.under_way(key),
        "class_words": [_class_words(key, one) for one in classes],
    }
    place = () if dead_key(key) == key else ("--key", key)
    shell = [
        command_line(asked, "dead ls", key, options=place),
        command_line(asked, "dead retry", key, options=(*place, "--all")),
    ]
    return WebPage("letters", name(key), facts, view, shell, **WebPage.source(reading))


def _class_words(key: str, one: ErrorClass) -> list[tuple[str, str]]:
    """Return the form fields that select the letters of an error class."""
    given = {"key": key, "reason": one.reason, "error": one.error, "group": one.group}
    return [form_word(name, value) for name, value in given.items() if value]


def _letter_facts(one: StoredLetter) -> Facts:
    names = ("stream", "group", "consumer", "reason", "error", "deliveries", "died_ms")
    facts: Facts = {"id": one.id, "entry": None if one.letter is None else one.letter.id}
    facts |= {name: getattr(one.letter, name, None) for name in names}
    return facts | {"fields": payload_facts(letter_payload(one))}
