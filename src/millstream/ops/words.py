"""Text for names, ids, entries, figures and command lines, shared by all of ``ops``. PURE.

Keys, groups and consumers may hold any bytes. They are text with ``surrogateescape``, which a line sends back as the
same bytes; every display escapes them. Ids are text too, ``"1763721600000-0"``, and compare by :func:`order`. A
displayed command is one line, does not move the cursor, and is parsed back to the same bytes.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from millstream.client.ranges import FIRST_TIME
from millstream.printable import printable
from millstream.texts import in_one_line, size_text, span_text

DASH = "\N{EN DASH}"
"""The sign for an unknown value."""

_MIDDLE = 60  # characters of a name in a table


def name(text: str | None) -> str:
    """Return a name on one line; an empty name is marked as such."""
    return "(empty name)" if text == "" else in_one_line(text or "")


def brief(text: str, most: int = _MIDDLE) -> str:
    """Return a name or value on one line, cut to this number of characters."""
    line = in_one_line(text[: most * 4])
    return line if len(line) <= most else line[: most - 1] + "…"


def lines(text: str) -> str:
    """Return a text of several lines without control characters and changes of writing direction."""
    return printable(text)


def count(value: float | None) -> str:
    """Return a whole number with thousands separators; a dash if it is unknown."""
    return DASH if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a rate per second or minute as text."""
    if value is None:
        return DASH
    if value == 0:
        return "0/s"
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.1f}/s" if value >= 0.1 else f"{value * 60:.1f}/min"


def span(milliseconds: float | None) -> str:
    """Return a duration as text, rounded for people; a dash if it is unknown."""
    if milliseconds is None:
        return DASH
    if milliseconds < 1:
        return "0 s"
    text = span_text(milliseconds)
    return text.partition(" min ")[0] + " min" if " min " in text else text


def idle(idle_ms: int | None, due_in_ms: int | None) -> str:
    """Return the idle time of a pending entry; for a delayed one, the time until it is due."""
    return span(idle_ms) if due_in_ms is None else f"due in {span(due_in_ms)}"


def micros(microseconds: float) -> str:
    """Return a duration as text, down to microseconds."""
    return f"{microseconds:.3g} µs" if 0 < microseconds < 1000 else span_text(microseconds / 1000)


def ago(milliseconds: float | None) -> str:
    """Return the time since an event as text."""
    return DASH if milliseconds is None else "now" if milliseconds < 1000 else f"{span(milliseconds)} ago"


def size(value: int | None) -> str:
    """Return a size in bytes as text."""
    return DASH if value is None else size_text(value)


NEVER = "0-0"
"""The lowest id: the position of a group without deliveries, or the last deleted id if none was deleted."""


def text_of(raw: bytes) -> str:
    """Return the bytes of a name or an id as text."""
    return raw.decode(errors="surrogateescape")


def command_words(does: str, *names: str, options: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a command line as words; names with a leading dash follow ``--``, so that none is read as an option."""
    given = list[str]()
    for word in options:
        if word == "--" and given:  # here "--" is a value, so the names do not begin after it
            given[-1] += "=--"
        else:
            given.append(word)
    first = ("millstream", *does.split())
    if any(name.startswith("-") for name in names):
        return (*first, *given, "--", *names)
    return (*first, *names, *given)


@lru_cache(maxsize=4096)  # comparisons of a stream's groups repeat the same few ids
def order(entry: str) -> tuple[int, int]:
    """The sort key of an id: milliseconds, then number."""
    ms, _, number = entry.partition("-")
    return int(ms), int(number)


def before(entry: str) -> str | None:
    """Return the id right before another; None for the lowest id."""
    ms, number = order(entry)
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{2**64 - 1}" if ms else None


def milliseconds(entry: str) -> int:
    """Return the time at which an entry was added, in wall milliseconds, from its id."""
    return int(entry.partition("-")[0])


def is_time(entry: str) -> bool:
    """Return True if an id can be the time at which its entry was added; producers may set ids such as 1-0."""
    return milliseconds(entry) >= FIRST_TIME


def age_ms(entry: str, now_ms: int) -> int:
    """Return the milliseconds since an entry was added; 0 if its id is ahead of the clock."""
    return max(now_ms - milliseconds(entry), 0)


Word = bytes | str | int | float

_BARE = re.compile(rb"[A-Za-z0-9_.:/@%+=,*$<>(~{}\[\]|-]+")
_ESCAPED = {ord('"'): b'\\"', ord("\\"): b"\\\\", ord("\n"): b"\\n", ord("\r"): b"\\r", ord("\t"): b"\\t"}


def shell_line(words: Iterable[str]) -> str:
    """Return a command line for a shell; unprintable characters are escaped in ``$'...'``, as bash and zsh read it."""
    return " ".join(_shell_word(word) for word in words)


def _shell_word(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    data = as_bytes(word)
    quoted = "".join(
        f"\\{byte:c}" if byte in b"\\'" else f"{byte:c}" if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in data
    )
    return f"$'{quoted}'"


def raw_line(command: Sequence[Word]) -> str:
    """Return a raw command as redis-cli reads it, quoted where necessary."""
    return b" ".join(map(_raw_word, command)).decode("ascii")


def _raw_word(word: Word) -> bytes:
    data = as_bytes(word)
    if _BARE.fullmatch(data):
        return data
    return b'"' + b"".join(_ESCAPED.get(c) or (b"%c" if 32 <= c < 127 else b"\\x%02x") % c for c in data) + b'"'


def as_bytes(word: Word) -> bytes:
    """Return the bytes that are sent for an argument; a surrogate that stands for no byte is sent as its escape."""
    if isinstance(word, bytes):
        return word
    try:
        return str(word).encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return str(word).encode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class EntryView:
    """One entry with its values as they are stored."""

    stream: str  # Key of the stream
    id: str  # Id of the entry
    fields: tuple[tuple[bytes, bytes], ...]  # Names and values in order; a name may be repeated


Facts = dict[str, object]
"""Field name -> value; times and durations are milliseconds, unknown values are None."""


def picked(one: object, names: str) -> Facts:
    """Return some attributes of an object as data, by their own names."""
    return {name: getattr(one, name) for name in names.split()}


def rounded(rate: float | None) -> float | None:
    """Round a rate per second to the accuracy of two readings."""
    return None if rate is None else round(rate, 1)
