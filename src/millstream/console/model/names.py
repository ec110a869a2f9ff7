"""Names and ids in this part of the project: text, for any bytes. Pure.

Keys, groups and consumers may hold any bytes. They are text with ``surrogateescape``, which a line sends back as the
same bytes; every display escapes them. Ids are text too, ``"1763721600000-0"``, and compare by :func:`order`.
"""

from collections.abc import Iterable
from functools import lru_cache

from millstream.client.ranges import FIRST_TIME

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


def milliseconds(entry: str) -> int:
    """The time at which an entry was added, by its id: wall milliseconds."""
    return int(entry.partition("-")[0])


def is_time(entry: str) -> bool:
    """True if an id can be the time at which the entry was added; producers may give ids such as 1-0 of their own."""
    return milliseconds(entry) >= FIRST_TIME


def age_ms(entry: str, now_ms: int) -> int:
    """Milliseconds since an entry was added; 0 where its id is ahead of the clock."""
    return max(now_ms - milliseconds(entry), 0)
