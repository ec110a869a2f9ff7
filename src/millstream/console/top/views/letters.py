"""Dead letters: which streams have some, the letters of one by what they died of, and one of them whole."""

from millstream.client.dead_letter.letter import DeadLetter, dead_key
from millstream.client.dead_letter.put_back import StoredLetter
from millstream.console import words
from millstream.console.payloads.shown import in_full
from millstream.console.reading import fleet
from millstream.console.reading.letters import ErrorClass, error_classes, letter_payload, read_letters
from millstream.console.top.views.asked import NoPlaceError, TopAsked, payload_words
from millstream.console.top.views.entry import fields_section
from millstream.console.top.views.view import TopView, ViewColumn, ViewRow, ViewSection, place
from millstream.texts import time_text

LISTED = 100
"""Letters that are listed, the newest."""

ACTIONS = ("dead retry", "dead edit", "dead rm")

_STREAMS = (
    ViewColumn("dead-letter stream", prose=True),
    ViewColumn("letters", right=True),
    ViewColumn("the newest", right=True),
    ViewColumn("the oldest", right=True, rank=1),
    ViewColumn("letters of", rank=2, prose=True),
)
_CLASSES = (
    ViewColumn("letters", right=True),
    ViewColumn("reason"),
    ViewColumn("error", prose=True),
    ViewColumn("given up by", prose=True, rank=1),
    ViewColumn("the newest", right=True),
)
_LETTERS = (
    ViewColumn("id"),
    ViewColumn("died", right=True),
    ViewColumn("group", rank=2, prose=True),
    ViewColumn("times", right=True, rank=3),
    ViewColumn("error", prose=True),
    ViewColumn("fields", rank=1, prose=True),
)


async def dead_view(asked: TopAsked) -> TopView:
    """The dead-letter streams.

    Raises:
        MillstreamError: the server does not answer.
    """
    reading = await asked.watch.read("letters", fleet.letters)
    seen = reading.value
    rows = []
    for one in seen.streams:
        ages = (words.ago(seen.at_ms - one.last_ms), words.ago(seen.at_ms - one.first_ms))
        cells = (words.name(one.key), words.count(one.letters), *ages, ", ".join(map(words.name, one.streams)))
        to = place("letters", key=one.key)
        rows.append(ViewRow(f"letters {one.key!r}", cells, to, "!" if one.letters else "", {"key": one.key}))
    return TopView(
        title="dead letters",
        figures=(("letters", words.count(seen.letters)), ("streams", words.count(len(seen.streams)))),
        notes=(f"They are not known: {seen.why}",) if seen.why else (),
        sections=(ViewSection("dead letters", _STREAMS, tuple(rows), "No dead letters."),),
        command_lines=(asked.shell("dead", "ls"),),
        actions=ACTIONS,
        **asked.source(reading),
    )


async def letters_view(asked: TopAsked) -> TopView:
    """The letters of one stream.

    Raises:
        MillstreamError: there is no such stream, the server does not answer.
    """
    key = asked.word("key")
    reading = await asked.watch.read(("dead", key), lambda line: read_letters(line, key))
    letters, length = reading.value
    classes = [_class_row(key, number, one, reading.at_ms) for number, one in enumerate(error_classes(letters))]
    rows = [_letter_row(key, one, reading.at_ms) for one in letters[:LISTED]]
    return TopView(
        title=words.name(key),
        figures=(("letters", words.count(length)), ("looked at", words.count(len(letters)))),
        sections=(
            ViewSection("what they died of", _CLASSES, tuple(classes)),
            ViewSection("the newest letters", _LETTERS, tuple(rows), "No dead letters."),
        ),
        command_lines=(asked.shell("dead", "ls", *shell_place(key)),),
        about={"key": key},
        actions=ACTIONS,
        **asked.source(reading),
    )


async def letter_view(asked: TopAsked) -> TopView:
    """One letter.

    Raises:
        MillstreamError: there is none of that id among the newest, the server does not answer.
    """
    key, ident = asked.word("key"), asked.word("id")
    reading = await asked.watch.read(("dead", key), lambda line: read_letters(line, key))
    found = next((one for one in reading.value[0] if one.id == ident), None)
    if found is None:
        raise NoPlaceError(f"there is no letter {ident!r} among the newest of {key!r}: it was put back or removed")
    letter = found.letter
    return TopView(
        title=ident,
        figures=_letter_figures(letter, reading.at_ms),
        notes=() if letter is not None else ("Something else wrote this entry: it is no letter of a worker's.",),
        sections=(
            *([_traceback(letter)] if letter is not None else []),
            fields_section(in_full(letter_payload(found)), "It has no fields."),
        ),
        command_lines=(asked.shell("dead", "show", *shell_place(key), ident),),
        about={"key": key, "ids": ident},
        actions=ACTIONS,
        **asked.source(reading),
    )


def shell_place(key: str) -> tuple[str, ...]:
    """A dead-letter stream as the shell's words for it."""
    return (key,) if dead_key(key) == key else (key, "--key", key)


def _class_row(key: str, number: int, one: ErrorClass, now_ms: int) -> ViewRow:
    """A class as a row.

    Args:
        key: of the dead-letter stream.
        number: of the class.
        one: the class.
        now_ms: wall milliseconds of the reading.
    """
    newest = words.DASH if one.newest.letter is None else words.ago(now_ms - one.newest.letter.died_ms)
    cells = (words.count(one.letters), one.reason or "-", one.error or "(no letter)", words.name(one.group), newest)
    return ViewRow(f"class {number}", cells, place("letter", key=key, id=one.newest.id))


def _letter_row(key: str, one: StoredLetter, now_ms: int) -> ViewRow:
    letter, fields = one.letter, payload_words(letter_payload(one))
    about = {"key": key, "ids": one.id}
    to = place("letter", key=key, id=one.id)
    if letter is None:
        return ViewRow(f"letter {one.id}", (one.id, words.DASH, "", "", "(no letter)", fields), to, "", about)
    died = words.ago(now_ms - letter.died_ms)
    cells = (one.id, died, words.name(letter.group), words.count(letter.deliveries), letter.error, fields)
    return ViewRow(f"letter {one.id}", cells, to, "", about)


def _letter_figures(letter: DeadLetter | None, now_ms: int) -> tuple[tuple[str, str], ...]:
    if letter is None:
        return ()
    return (
        ("of", words.name(letter.stream)),
        ("entry", letter.id),
        ("group", words.name(letter.group)),
        ("consumer", words.name(letter.consumer)),
        ("reason", letter.reason),
        ("times", words.count(letter.deliveries)),
        ("died", f"{words.ago(now_ms - letter.died_ms)} ({time_text(letter.died_ms)})"),
    )


def _traceback(letter: DeadLetter) -> ViewSection:
    lines = tuple(letter.traceback.rstrip().split("\n")) if letter.traceback else ()
    return ViewSection("error", (ViewColumn("", prose=True),), (ViewRow("error", (letter.error,), under=lines),))
