"""The format of a dead letter: the original entry, and the reason for its death. Pure.

The original fields come first, unchanged and in order (repeated names included); the fields named ``_dead.*`` follow.
``_dead.fields`` counts the original fields. So an entry that was dead before, and has such names itself, can still be
restored exactly.

An entry that is put back on its stream gets one field more, after its own: ``_dead.history``, a JSON list of its
earlier deaths. Workers take it off before the entry is decoded, so the handler gets the same fields as the first time.
If the entry dies again, the new dead letter continues the history.

The last death may contain ``for``, the group that is to have the entry, and ``of``, the stream of that group. Workers
of other groups of that stream acknowledge the entry without running it. In any other stream, after a copy or replay,
both have no effect. They are in the history, not in fields of their own, for earlier versions. Workers of those
versions still take off the whole history, and give the entry to every group as they always did.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from millstream.client.dead_letter.tries import FailedTry, parse_tries, tries_text
from millstream.client.jsontext import parse

PREFIX = b"_dead."

#: Default suffix of the names of dead-letter streams.
SUFFIX = ":dead"

#: Field with earlier deaths, in a returned entry and in its next dead letter.
HISTORY = PREFIX + b"history"

#: Limits of a history: the number of earlier deaths (the first, whose id identifies side effects, and the latest ones),
#: and the characters of each error.
DEATHS_LIMIT = 20
ERROR_LIMIT = 500

#: Types of the parts of an earlier death that this version knows.
_DEATH: Mapping[str, type] = {
    **dict.fromkeys(("id", "group", "consumer", "reason", "error"), str),
    **dict.fromkeys(("deliveries", "died_ms", "returned_ms"), int),
}

#: Bound of the integers in a letter or a history, equal to that of the server's own counters.
_HIGHEST = 2**63

REASONS = ("error", "nack", "reject", "invalid", "overdue")
"""Reasons for which a worker moves an entry to the dead-letter stream."""

# Integer milliseconds only: float seconds would be inexact for times after the year 2242
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The contents of a dead letter."""

    fields: tuple[bytes, ...]  # Names and values of the original entry, alternating
    stream: str  # Stream of the original entry
    id: str  # Id of the original entry
    group: str  # Group that gave up on it
    consumer: str  # Consumer that had it last
    deliveries: int  # Number of deliveries
    reason: str  # One of REASONS
    error: str  # Type and text of the last error, or the reason given to ``reject``
    traceback: str  # Traceback of the last error; empty if there was none
    published_ms: int  # Time in the original's id, milliseconds since 1970
    died_ms: int  # Time of death, milliseconds since 1970
    # Earlier deaths, oldest first, each with ``id``, ``group``, ``consumer``, ``deliveries``, ``reason``, ``error``,
    # ``died_ms`` and ``returned_ms`` (the time of its return to the stream)
    history: tuple[Mapping[str, object], ...] = ()
    tries: tuple[FailedTry, ...] = ()  # Failed tries before the last one, oldest first


#: Parts of a dead letter that have fields of the same name in its stream.
_SAME = ("stream", "id", "group", "consumer", "deliveries", "reason", "error", "traceback")


_CLASS = 80  # largest number of characters of a class


def error_class(error: str) -> str:
    """Return the class of an error: its type if the text begins with one, otherwise its first line."""
    kind, colon, _ = error.partition(":")
    return (kind if colon and kind.replace(".", "").isidentifier() else error.partition("\n")[0])[:_CLASS]


def dead_key(stream: str) -> str:
    """Return the key of the dead-letter stream of ``stream``; the key of a dead-letter stream stays the same."""
    return stream if stream.endswith(SUFFIX) else stream + SUFFIX


def pack(letter: DeadLetter) -> list[bytes]:
    """Return the fields and values of a letter, for XADD."""
    notes = {
        "fields": str(len(letter.fields) // 2),
        **{name: str(getattr(letter, name)) for name in _SAME},
        "published_at": _iso(letter.published_ms),
        "died_at": _iso(letter.died_ms),
    }
    if letter.history:
        notes["history"] = _history_text(letter.history)
    if letter.tries:
        notes["tries"] = tries_text(letter.tries)
    packed = list(letter.fields)
    for name, value in notes.items():
        packed += (PREFIX + name.encode(), _encoded(value))
    return packed


def unpack(flat: Sequence[bytes]) -> DeadLetter:
    """Parse a dead letter from the fields and values of its entry."""
    notes = _notes(flat)  # a later field overrides an earlier one of its name: the last death counts
    try:
        count = _number(notes["fields"])
        if count < 0:
            raise ValueError(f"not a dead letter: _dead.fields is {count}")
        notes = _notes(flat[2 * count :])
        same: dict[str, Any] = {name: notes[name] for name in _SAME}
        return DeadLetter(
            fields=tuple(flat[: 2 * count]),
            **same | {"deliveries": _number(notes["deliveries"])},
            published_ms=_ms(notes["published_at"]),
            died_ms=_ms(notes["died_at"]),
            history=parse_history(notes.get("history", "[]")) or (),
            tries=parse_tries(notes.get("tries", "[]")),
        )
    except KeyError as missing:
        raise ValueError(f"not a dead letter: it has no field _dead.{missing.args[0]}") from None


def is_of(flat: Sequence[bytes], letter: DeadLetter) -> bool:
    """Return True if these fields are a dead letter of the same entry and group as ``letter``, by any writer."""
    try:
        found = unpack(flat)
    except (ValueError, RecursionError):
        return False
    return (found.stream, found.id, found.group) == (letter.stream, letter.id, letter.group)


def returning(letter: DeadLetter, now_ms: int, *, all_groups: bool = False, edited: bool = False) -> list[bytes]:
    """Return the fields and values of the entry that is put back: the original's, followed by its history."""
    death: dict[str, object] = {
        **{name: getattr(letter, name) for name in ("id", "group", "consumer", "deliveries", "reason")},
        "error": letter.error[:ERROR_LIMIT],
        "died_ms": letter.died_ms,
        "returned_ms": now_ms,
    }
    if not all_groups:
        death |= {"for": letter.group, "of": letter.stream}
    if edited:
        death["edited"] = True
    deaths = [*letter.history, death]
    if len(deaths) > DEATHS_LIMIT:
        deaths = [deaths[0], *deaths[1 - DEATHS_LIMIT :]]
    return [*letter.fields, HISTORY, _history_text(deaths).encode()]


def is_return(flat: Sequence[bytes], letter: DeadLetter) -> bool:
    """Return True if these fields are the entry that this letter was put back as, by any client at any time."""
    fields, history = take_history(list(flat))
    last = history[-1] if history else {}
    death = (last.get("id"), last.get("group"), last.get("died_ms"))
    return tuple(fields) == letter.fields and death == (letter.id, letter.group, letter.died_ms)


def parse_history(text: str | bytes) -> tuple[Mapping[str, object], ...] | None:
    """Return the earlier deaths in a ``_dead.history`` field; None if it holds something else.

    Any client may write such a field. So the result must be safe to write and show: a list of flat objects with values
    of the known types. Names that a later version adds may have any flat value.
    """
    try:
        found = parse(text)
    except ValueError:
        return None
    if not isinstance(found, list) or not all(_is_death(death) for death in found):
        return None
    return tuple(found)


def _is_death(death: object) -> bool:
    return isinstance(death, dict) and all(
        isinstance(value, _DEATH.get(name, str | int | float | None))
        and not (isinstance(value, int) and not -_HIGHEST <= value < _HIGHEST)
        for name, value in death.items()
    )


def take_history(flat: list[bytes]) -> tuple[list[bytes], tuple[Mapping[str, object], ...]]:
    """Return an entry's own fields and its earlier deaths; ``flat`` itself without deaths if it was never put back."""
    if len(flat) > 2 and flat[-2] == HISTORY and (history := parse_history(flat[-1])) is not None:
        return flat[:-2], history
    return flat, ()


def meant_for(history: Sequence[Mapping[str, object]], stream: str) -> str | None:
    """Return the only group that is to have an entry of this stream with these deaths; None if all groups are."""
    last = history[-1] if history else {}
    group = last.get("for") if last.get("of") == stream else None
    return group if isinstance(group, str) else None


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, which JSON may contain
        return text.encode("utf-8", "backslashreplace")


def _notes(flat: Sequence[bytes]) -> dict[str, str]:
    return {
        name[len(PREFIX) :].decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for name, value in zip(flat[::2], flat[1::2], strict=True)
        if name.startswith(PREFIX)
    }


def _history_text(deaths: Sequence[Mapping[str, object]]) -> str:
    return json.dumps(list(deaths), separators=(",", ":"))  # ASCII, because an error's text may contain lone surrogates


def _iso(ms: int) -> str:
    try:
        return (_EPOCH + ms * _MS).isoformat(timespec="milliseconds")
    except OverflowError:
        return str(ms)  # an id such as 9999999999999999-1 is legal but not a date


def _ms(text: str) -> int:
    if text.lstrip("-").isdigit():
        return _number(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"not a dead letter: the time {text[:40]!r} is not a time") from None
    if when.tzinfo is None:
        raise ValueError(f"not a dead letter: the time {text[:40]!r} names no zone")
    return (when - _EPOCH) // _MS


def _number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"not a dead letter: {text[:40]!r} is not a number") from None
    if not -_HIGHEST <= number < _HIGHEST:
        raise ValueError(f"not a dead letter: {text[:40]} is beyond 64 bits")
    return number
