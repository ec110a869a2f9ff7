"""Dead letters: their streams, the letters of one stream by error, filtered and counted, and one letter in full."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from markupsafe import Markup

from millstream.client.dead_letter.admin import LetterFilter
from millstream.client.dead_letter.letter import DEATHS_LIMIT, PREFIX, dead_key
from millstream.client.dead_letter.put_back import StoredLetter
from millstream.client.partitions.layout import logical
from millstream.errors import UsageError
from millstream.ops.asking import together
from millstream.ops.letters import reading as letters
from millstream.ops.letters.reading import ErrorClass, LetterCounts, letter_payload, letter_streams
from millstream.ops.parameters import instant
from millstream.ops.payloads.editing import document_of
from millstream.ops.payloads.shown import in_brief, in_full, payload_facts
from millstream.ops.watching.watch import Reading
from millstream.ops.words import Facts, name, picked
from millstream.texts import plural
from millstream.web.charts import sparkline
from millstream.web.page import Asked, FilterError, WebPage, form_word
from millstream.web.pages.common import closed_actions, command_line

LARGEST = 200_000
"""Largest size of an entry that a page can edit, in characters of its document. The command line has no limit."""

_LISTED = 50  # largest number of error classes
_SMALL = 4_000  # characters of a document up to which a list of letters opens it
_LONG = 2_000  # bytes of a raw field that are shown
_BINS = 24  # number of points in the trend
_STREAMS = 500  # largest number of streams, sorted by key


async def dead_page(asked: Asked) -> WebPage:
    """Return the page of all dead-letter streams, of those ``of`` a stream, or of the letters in the stream ``key``."""
    if "key" in asked.words:
        return await _letters_page(asked, asked.words["key"])
    reading = await asked.watch.read("letters", letter_streams)
    seen, of = reading.value, asked.words.get("of")
    if of is not None:  # the streams of the oldest and the newest letter are known, so perhaps none is found
        found = tuple(one for one in seen.streams if of in {logical(each) or each for each in one.streams})
        seen = replace(seen, streams=found or seen.streams)
    facts: Facts = {
        "letters": seen.letters,
        "streams": [picked(one, "key letters streams first_ms last_ms") for one in seen.streams[:_STREAMS]],
        "streams_found": len(seen.streams),
        "unknown": seen.why,
    }
    view = {"seen": seen, "streams": seen.streams[:_STREAMS]}
    if len(seen.streams) == 1:  # the user need not select the only stream
        return replace(await _letters_page(asked, seen.streams[0].key), facts={"page": "dead", **facts})
    return WebPage("dead", "Dead letters", facts, view, [command_line(asked, "dead ls")], **WebPage.source(reading))


async def _letters_page(asked: Asked, key: str) -> WebPage:
    """Return the page with the letters of one stream: counts over those that fit, and the newest of them opened."""
    wanted, before = _search(asked), asked.entry_id("before") if asked.words.get("before") else None
    every = "every" in asked.words
    question = ("dead", key, wanted, before, every)
    reading, closed = await together(
        asked.watch.read(question, lambda line: letters.count_letters(line, key, wanted, before, every=every)),
        closed_actions(asked, key),
    )
    found: LetterCounts = reading.value
    classes = sorted(found.classes.values(), key=lambda one: -one.letters)
    facts: Facts = {
        "stream": key,
        "letters": found.length,
        **picked(found, "looked_at fitting more"),
        "classes": [
            {
                **picked(one, "reason error group letters"),
                "newest": one.newest.id,
                "newest_ms": None if one.newest.letter is None else one.newest.letter.died_ms,
            }
            for one in classes[:_LISTED]
        ],
        "classes_found": len(classes),
        "groups": [{"group": group, "letters": count} for group, count in found.groups.most_common(_LISTED)],
        "trend": [{"at_ms": round(at), "letters": count} for at, count in _bins(found.times)],
        "letter_list": [_letter_facts(one) for one in found.letters],
    }
    opened = await _opened(asked, key, found.letters)
    view = {
        "key": key,
        "found": found,
        "trend": _trend(found.times),
        "classes": classes[:_LISTED],
        "more_classes": len(classes) - _LISTED,
        "letters": [(one, in_brief(letter_payload(one))) for one in found.letters],
        "opened": None if opened is None else _view(opened.value, _SMALL),
        "closed": closed,
        "jobs": asked.watch.jobs.under_way(key),
        "class_words": [_words(key, _class(wanted, one)) for one in classes[:_LISTED]],
        "fitting_words": _words(key, wanted),
        "filtered": not wanted.everything,
        "before": before,
        "next": found.letters[-1].id if found.fitting > len(found.letters) else found.last if found.more else None,
    }
    place = _place(key)
    shell = [
        command_line(asked, "dead ls", key, options=[*place, *_options(asked)]),
        command_line(asked, "dead retry", key, options=[*place, *(_options(asked) or ["--all"])]),
    ]
    return WebPage("letters", name(key), facts, view, shell, **WebPage.source(reading), live=not every)


async def letter_page(asked: Asked, problem: str = "") -> WebPage:
    """Return the page of one letter: its entry, its error, and the changes of it, or a text with a ``problem``."""
    key, ident = asked.word("key"), asked.entry_id("id")
    reading, closed = await together(_letter(asked, key, ident), closed_actions(asked, key))
    one: StoredLetter = reading.value
    letter, opened = one.letter, _view(one, LARGEST)
    opened["document"] = asked.words.get("document", opened["document"])
    facts: Facts = {
        "key": key,
        **_letter_facts(one),
        "traceback": None if letter is None else letter.traceback[-LARGEST:],
        "published_ms": None if letter is None else letter.published_ms,
        "history": [] if letter is None else [dict(death) for death in letter.history[-_LISTED:]],
        "tries": [] if letter is None else [one._asdict() for one in letter.tries],
        "problem": problem or None,
    }
    view = {"key": key, "opened": opened, "closed": closed, "problem": problem}
    verbs, status = ("show", "edit", "retry"), 400 if problem else 200
    shell = [command_line(asked, f"dead {verb}", key, one.id, options=_place(key)) for verb in verbs]
    return WebPage("letter", f"Letter {ident}", facts, view, shell, **WebPage.source(reading), status=status)


async def edited_page(asked: Asked, problem: str = "") -> WebPage:
    """Return the page of the letter that a form of ``dead edit`` names, also by the name of a partitioned stream."""
    key, ident = asked.word("key"), asked.entry_id("ids")
    key = await letters.place_in_parts(asked.watch.line, key, ident) or key
    page = await letter_page(replace(asked, words={**asked.words, "key": key, "id": ident}), problem)
    return replace(page, live=False)


async def _letter(asked: Asked, key: str, ident: str) -> Reading[StoredLetter]:
    return await asked.watch.read(("letter", key, ident), lambda line: letters.one_letter(line, key, ident))


async def _opened(asked: Asked, key: str, listed: Sequence[StoredLetter]) -> Reading[StoredLetter] | None:
    """Return the letter that the list opens: the first one, or the one that the address names."""
    if not listed or (listed[0].letter is None and "open" not in asked.words):
        return None
    return await _letter(asked, key, asked.entry_id("open") if asked.words.get("open") else listed[0].id)


def _view(one: StoredLetter, most: int) -> dict[str, Any]:
    """Return the template values of an opened letter; its entry can be edited up to this number of characters."""
    letter = one.letter
    document = document_of(letter_payload(one).pairs) if letter is not None else ""
    notes = [(raw, value) for raw, value in zip(one.flat[::2], one.flat[1::2], strict=True) if raw.startswith(PREFIX)]
    return {
        "id": one.id,
        "letter": letter,
        "traceback": "" if letter is None else letter.traceback[-LARGEST // 10 :],
        "history": () if letter is None else letter.history[-DEATHS_LIMIT:],
        "strange": one.strange,
        "fields": in_full(letter_payload(one)),
        "document": document if len(document) <= most else "",
        "raw": [
            (raw.decode(errors="replace"), value[:_LONG].decode(errors="replace")) for raw, value in notes[:_LISTED]
        ],
    }


def _search(asked: Asked) -> LetterFilter:
    """Return the filter for letters from the address."""
    words = {name: text.strip() for name, text in asked.words.items()}
    times: dict[str, int | None] = {}
    for end in ("since", "until"):
        try:
            times[end] = instant(words[end]) if words.get(end) else None
        except (ValueError, UsageError) as reason:
            raise FilterError(end, f"{end} {name(words[end])!r}: {reason}") from None
    group, kind, text = (asked.words.get(name) or None for name in ("group", "kind", "text"))
    return LetterFilter(None, None, group, times["since"], times["until"], kind, text)


def _options(asked: Asked) -> list[str]:
    """Return the filter as options of the command line."""
    names = ("group", "kind", "text", "since", "until")
    return [part for one in names if asked.words.get(one, "").strip() for part in (f"--{one}", asked.words[one])]


def _place(key: str) -> tuple[str, ...]:
    return () if dead_key(key) == key else ("--key", key)


def _bins(times: Sequence[int]) -> list[tuple[float, int]]:
    """Return the numbers of letters in equal parts of the time from the oldest to the newest."""
    if len(times) < 2 or min(times) == max(times):
        return []
    first, width = min(times), (max(times) - min(times)) / _BINS
    counts = Counter(min(int((at - first) / width), _BINS - 1) for at in times)
    return [(first + number * width, counts[number]) for number in range(_BINS)]


def _trend(times: Sequence[int]) -> Markup:
    bins = _bins(times)
    most = max((count for _, count in bins), default=0)
    return sparkline(bins, f"letters by time, {plural(most, 'letter')} at most in a part")


def _class(wanted: LetterFilter, one: ErrorClass) -> LetterFilter:
    """Return the filter for the letters of an error class among those that fit."""
    return replace(wanted, reason=one.reason, kind=one.error or one.reason, group=one.group)


def _words(key: str, wanted: LetterFilter) -> list[tuple[str, str]]:
    """Return the form fields that select the letters of a filter."""
    given = {name: str(value) for name, value in asdict(wanted).items() if value is not None} or {"all": "1"}
    return [form_word(name, value) for name, value in {"key": key, **given}.items()]


def _letter_facts(one: StoredLetter) -> Facts:
    names = ("stream", "group", "consumer", "reason", "error", "deliveries", "died_ms")
    facts: Facts = {"id": one.id, "entry": None if one.letter is None else one.letter.id}
    facts |= {name: getattr(one.letter, name, None) for name in names}
    return facts | {"fields": payload_facts(letter_payload(one))}
