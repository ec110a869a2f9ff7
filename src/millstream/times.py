"""Times, durations and sizes as people write them: one spelling in every subcommand and every option.

A duration is ``500ms``, ``30s``, ``10m``, ``12h`` or ``7d``. Parts may be joined (``1h30m``) and have a fraction
(``1.5h``). A time is ISO 8601 (UTC unless it names a zone), a duration before now (``10m``, ``10m ago``, ``10m-ago``),
``now``, milliseconds since 1970, or an entry's id, which begins with them. This module does no I/O.
"""

import re
from datetime import UTC, datetime, timedelta

from millstream.errors import ConfigError

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {"": 1, "b": 1, "k": 1000, "kb": 1024, "m": 10**6, "mb": 1024**2, "g": 10**9, "gb": 1024**3}
# As many digits as Redis reads: for thousands of them, Python raises its own errors
_SIZE = re.compile(r"([0-9]{1,127})([A-Za-z]*)")
_PIECE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]+)\s*", re.ASCII)
_ID = re.compile(r"(\d{10,20})-\d{1,20}", re.ASCII)
_CENTURY = 100 * 366 * _UNITS["d"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

SPAN_HELP = "30s, 10m, 12h, 7d"
TIME_HELP = "2026-03-01T12:00:00 (UTC if it names no zone), 10m or '10m ago', milliseconds since 1970, an entry's id"
"""Examples of durations and times for the help of options."""

SPAN = "it must be a length of time such as 500ms, 30s, 10m, 12h or 7d"
INSTANT = (
    "it must be milliseconds since 1970 or a time such as 2026-01-31T12:00:00Z (UTC unless it names a zone), 10m or "
    "'10m ago' (ms, s, m, h, d), now, or an entry's id"
)


def span(text: str, bare: str | None = None) -> int:
    """Return a duration in milliseconds. ``bare`` is the unit of a number without one."""
    text = text.strip().lower()
    if bare is not None and re.fullmatch(r"\d{1,15}(\.\d{1,6})?", text, re.ASCII):
        text += bare
    total, at = 0.0, 0
    while found := _PIECE.match(text, at):
        unit = _UNITS.get(found[2])
        if unit is None:
            break
        total, at = total + float(found[1]) * unit, found.end()
    if not text or at < len(text):
        raise ValueError(SPAN)
    if total > _CENTURY:
        raise ValueError("it must not be longer than a hundred years")
    return round(total)


def configured(option: str, value: float | str, unit: str) -> float:
    """Return a duration in a unit. The option is a number in that unit or a text such as ``"10m"``."""
    if isinstance(value, str):
        try:
            return span(value) / _UNITS[unit]
        except ValueError as reason:
            raise ConfigError(f"{option}{value!r}) is invalid: {reason}.") from None
    given: object = value
    if not isinstance(given, int | float) or isinstance(given, bool):
        name = "milliseconds" if unit == "ms" else "seconds"
        raise ConfigError(f'{option}{value!r}) is invalid: it must be a number of {name}, or a text such as "10m".')
    if not 0 <= value <= _CENTURY / _UNITS[unit]:  # also rejects NaN
        raise ConfigError(f"{option}{value!r}) is invalid: it must be between 0 and a hundred years.")
    return value


def instant(text: str, now_ms: int) -> int:
    """Return a time as wall milliseconds."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return _number(text)
    if entry := _ID.fullmatch(text):
        return int(entry[1])
    if text.lower() == "now":
        return now_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return _before(text, now_ms)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MS


def is_relative(text: str) -> bool:
    """Return True if the time depends on the moment of reading: a duration before now, or ``now``."""
    return instant(text, 0) != instant(text, 1)


def _before(text: str, now_ms: int) -> int:
    try:
        return now_ms - span(text.lower().removesuffix("ago").removesuffix("-"))
    except ValueError as reason:
        raise ValueError(INSTANT if str(reason) == SPAN else str(reason)) from None


def _number(text: str) -> int:
    if len(text) > 20:  # longer than any entry id
        raise ValueError(INSTANT)
    return int(text)


def score_ms(score: bytes | str | float) -> int:
    """Return a sorted set's score as milliseconds. Any client may write one, also an infinite one."""
    return int(min(max(float(score), 0), 2**53))


def bytes_of(text: str) -> int:
    """Return a size such as ``512mb`` in bytes, as Redis reads it."""
    found = _SIZE.fullmatch(text)
    unit = None if found is None else _BYTES.get(found[2].lower())
    if found is None or unit is None:
        raise ValueError("argument must be a memory value")
    return int(found[1]) * unit
