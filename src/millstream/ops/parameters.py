"""Parameters that several actions share, such as a position in a stream, and the parsers of their texts."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from millstream import times
from millstream.errors import UsageError
from millstream.ops.actions import Word

_SHIFT = re.compile(r"[+-]\d{1,18}", re.ASCII)
_ID = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)
_LARGEST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A position in a stream as the user gave it, before the stream is read."""

    # ``time``: deliver entries added at this time or later; ``id``: deliver entries after this id; ``shift``: move by a
    # number of entries; ``like``: take the position of another group
    kind: Literal["start", "end", "time", "id", "shift", "like"]
    ms: int = 0  # Wall milliseconds for ``time``
    id: str = ""  # Id for ``id``
    shift: int = 0  # Number of entries for ``shift``; negative moves back
    group: str = ""  # Name of the other group for ``like``


def entry_id(text: str) -> str:
    """Return an entry's id in full; the user may leave out its second part."""
    milliseconds, _, number = text.strip().partition("-")
    parts = (milliseconds, number or "0")
    if not all(part.isascii() and part.isdigit() and len(part) <= 20 and int(part) <= _LARGEST for part in parts):
        raise UsageError(f"{text!r} is not an entry's id. Give one such as 1763721600000-0.")
    return "-".join(str(int(part)) for part in parts)


def place_of(text: str, now_ms: int) -> StreamPlace:
    """Parse a position in a stream."""
    word = text.strip().lower()
    if word == "start":
        return StreamPlace("start")
    if word == "end":
        return StreamPlace("end")
    if _SHIFT.fullmatch(word):
        return StreamPlace("shift", shift=int(word))
    if _ID.fullmatch(word):
        return StreamPlace("id", id=entry_id(word))
    try:
        ms = times.instant(word, now_ms)
    except ValueError as reason:
        if str(reason) != times.INSTANT:
            raise UsageError(f"{text!r} is not a position in a stream: {reason}.") from None
        raise UsageError(
            f"{text!r} is not a position in a stream. Give start, end, a number of entries such as -100 (only to move "
            f"a group), {times.INSTANT.removeprefix('it must be ')}."
        ) from None
    if ms > _LARGEST:
        raise UsageError(f"{text!r} is not a time that an ID can have. Give an earlier one.")
    return StreamPlace("time", ms=max(ms, 0))


SEVERAL_IDS = r"[\s,]+"

Stream: TypeAlias = Annotated[str, Word("argument", "STREAM", name="key", typed="stream")]
Group: TypeAlias = Annotated[str, Word("argument", "GROUP")]


def now_ms() -> int:
    """Return the wall time in milliseconds."""
    return time.time_ns() // 1_000_000


def instant(text: str) -> int:
    """Parse a time and return it in wall milliseconds."""
    return max(times.instant(text.strip(), now_ms()), 0)


def place(text: str) -> StreamPlace:
    """Parse a position in a stream; times such as 1h-ago count from now."""
    return place_of(text, now_ms())


def number(least: float) -> Callable[[str], int]:
    """Return a parser of whole numbers with this minimum."""

    def read(text: str) -> int:
        text = text.strip()
        if not (text.isascii() and text.isdigit() and len(text) < 19) or int(text) < least:
            raise ValueError(f"it must be a whole number, {least:g} or more")
        return int(text)

    return read


IDS = Word("argument", "[ID]...", name="ids", title="ids", hint="1763721600000-0", read=entry_id, between=SEVERAL_IDS)
