"""Names, ids, entries, figures and command lines, as all of this part has them. PURE.

Keys, groups and consumers may hold any bytes. They are text with ``surrogateescape``, which a line sends back as the
same bytes; every display escapes them. Ids are text too, ``"1763721600000-0"``, and compare by :func:`order`. A
written command is one line, moves no cursor, and is read back as the very same bytes.
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
    """A name in one line; one that is empty is said to be."""
    return "(empty name)" if text == "" else in_one_line(text or "")


def brief(text: str, most: int = _MIDDLE) -> str:
    """A name or value in one line of this number of characters."""
    line = in_one_line(text[: most * 4])
    return line if len(line) <= most else line[: most - 1] + "…"


def lines(text: str) -> str:
    """Text of several lines, in which nothing moves a cursor or turns the direction of writing."""
    return printable(text)


def count(value: float | None) -> str:
    """A whole number with separators; a dash where it is not known."""
    return DASH if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """A rate per second."""
    if value is None:
        return DASH
    if value == 0:
        return "0/s"
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.1f}/s" if value >= 0.1 else f"{value * 60:.1f}/min"


def span(milliseconds: float | None) -> str:
    """A length of time, no more exact than a person cares for; a dash where it is not known."""
    if milliseconds is None:
        return DASH
    if milliseconds < 1:
        return "0 s"
    text = span_text(milliseconds)
    return text.partition(" min ")[0] + " min" if " min " in text else text


def idle(idle_ms: int | None, due_in_ms: int | None) -> str:
    """The idle time of a pending entry, or the time until it is due where it is delayed."""
    return span(idle_ms) if due_in_ms is None else f"due in {span(due_in_ms)}"


def micros(microseconds: float) -> str:
    """A length of time that may be short."""
    return f"{microseconds:.3g} µs" if 0 < microseconds < 1000 else span_text(microseconds / 1000)


def ago(milliseconds: float | None) -> str:
    """The time since then, in words."""
    return DASH if milliseconds is None else "now" if milliseconds < 1000 else f"{span(milliseconds)} ago"


def size(value: int | None) -> str:
    """A size in bytes."""
    return DASH if value is None else size_text(value)


NEVER = "0-0"
"""The id before every other: of a group that was delivered nothing, of a stream of which nothing was deleted."""


def text_of(raw: bytes) -> str:
    """A name or an id as text."""
    return raw.decode(errors="surrogateescape")


def command_words(does: str, *names: str, options: Iterable[str] = ()) -> tuple[str, ...]:
    """A command line as words, in which no name passes for an option: names with a dash in front come after ``--``."""
    given = list[str]()
    for word in options:
        if word == "--" and given:  # a value: the names do not begin here
            given[-1] += "=--"
        else:
            given.append(word)
    first = ("millstream", *does.split())
    if any(name.startswith("-") for name in names):
        return (*first, *given, "--", *names)
    return (*first, *names, *given)


@lru_cache(maxsize=4096)  # groups of one stream are compared by the same few ids
def order(entry: str) -> tuple[int, int]:
    """The sort key of an id: milliseconds, then number."""
    ms, _, number = entry.partition("-")
    return int(ms), int(number)


def before(entry: str) -> str | None:
    """The id before another; None before the lowest."""
    ms, number = order(entry)
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{2**64 - 1}" if ms else None


def milliseconds(entry: str) -> int:
    """The time at which an entry was added, by its id: wall milliseconds."""
    return int(entry.partition("-")[0])


def is_time(entry: str) -> bool:
    """True if an id can be the time at which the entry was added; producers may give ids such as 1-0 of their own."""
    return milliseconds(entry) >= FIRST_TIME


def age_ms(entry: str, now_ms: int) -> int:
    """Milliseconds since an entry was added; 0 where its id is ahead of the clock."""
    return max(now_ms - milliseconds(entry), 0)


Word = bytes | str | int | float

_BARE = re.compile(rb"[A-Za-z0-9_.:/@%+=,*$<>(~{}\[\]|-]+")
_ESCAPED = {ord('"'): b'\\"', ord("\\"): b"\\\\", ord("\n"): b"\\n", ord("\r"): b"\\r", ord("\t"): b"\\t"}


def shell_line(words: Iterable[str]) -> str:
    """A command line for a shell; what cannot be printed is in the quotes of bash and zsh that escape it."""
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
    """A raw command as redis-cli reads it: words in quotes where they need them."""
    return b" ".join(map(_raw_word, command)).decode("ascii")


def _raw_word(word: Word) -> bytes:
    data = as_bytes(word)
    if _BARE.fullmatch(data):
        return data
    return b'"' + b"".join(_ESCAPED.get(c) or (b"%c" if 32 <= c < 127 else b"\\x%02x") % c for c in data) + b'"'


def as_bytes(word: Word) -> bytes:
    """A word as it is sent; of half a character, which nothing sends, what it is."""
    if isinstance(word, bytes):
        return word
    try:
        return str(word).encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return str(word).encode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class EntryView:
    """One entry, its values as they are stored."""

    stream: str  # Key of the stream
    id: str  # Id of the entry
    fields: tuple[tuple[bytes, bytes], ...]  # Names and values in their order; a name may come twice


Facts = dict[str, object]
"""Field name -> value; times and durations are milliseconds, unknown values are None."""


def rounded(rate: float | None) -> float | None:
    """A rate per second, no more exact than two readings allow."""
    return None if rate is None else round(rate, 1)
