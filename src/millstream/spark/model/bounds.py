"""The bounds that Spark's filters set for ids: entries outside need not be read.

PURE; Spark filters the rows itself once more.

Bounds from times are exact. Spark compares ids letter by letter, as text. Equality gives the id itself. Greater and
less agree with the order of ids only if all milliseconds have thirteen digits (2001 to 2286). These bounds are used
only if there are no other ids.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from millstream.spark.model.offsets import MAX_PART, ZERO, Id, StreamState, before_time, parse_id

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_USUAL = re.compile(r"(\d{13})(?:-|$)")
_LAST = Id(MAX_PART, MAX_PART)

Filter = tuple[str, str, Any]
"""The name of Spark's filter class, the column, and the value."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of the entries to read."""

    after: Id = ZERO  # Exclusive lower bound of the ids
    until: Id = _LAST  # Inclusive upper bound of the ids
    low_ms: int = 0  # Lower bound in milliseconds, used if all ids have thirteen digits of them
    high_ms: int = MAX_PART  # Upper bound in milliseconds, used on the same condition
    streams: frozenset[str] | None = None  # Names of the only streams to read; None for all

    def within(self, after: Id, until: Id) -> "Bounds":
        """Return these bounds, narrowed to ``(after, until]``."""
        return replace(self, after=max(self.after, after), until=min(self.until, until))

    def range(self, ends: Sequence[Id]) -> tuple[Id, Id]:
        """Return the range ``(after, until]`` of the wanted ids."""
        if not all(10**12 <= ident.ms < 10**13 for ident in ends):
            return self.after, self.until
        return max(self.after, before_time(self.low_ms)), min(self.until, Id(self.high_ms, MAX_PART))

    def narrow(self, stream: str, after: Id, until: Id, state: StreamState) -> tuple[Id, Id]:
        """Return the wanted part of a range ``(after, until]`` of a live stream, which may be empty."""
        if not self.wants(stream):
            return until, until
        ends = [state.last] if state.first is None else [state.first, state.last]
        return self.within(after, until).range(ends)

    def wants(self, stream: str) -> bool:
        """Return True if the filters allow entries of a stream."""
        return self.streams is None or stream in self.streams


def bounds_of(filters: Iterable[object]) -> Bounds:
    """Return the bounds from Spark's filters."""
    return narrowed(
        (type(each).__name__, each.attribute[0], each.value)  # type: ignore[attr-defined] # those with both
        for each in filters
        if hasattr(each, "value") and len(getattr(each, "attribute", ())) == 1
    )


def narrowed(filters: Iterable[Filter]) -> Bounds:
    """Return the bounds of the entries that pass all these filters; filters on other columns are ignored."""
    found = Bounds()
    for name, column, value in filters:
        if column == "timestamp":
            found = _by_time(found, name, value)
        elif column == "id":
            found = _by_id(found, name, value)
        elif column == "stream" and name in ("EqualTo", "EqualNullSafe", "In"):
            wanted = frozenset(value if name == "In" else (value,))
            found = replace(found, streams=wanted if found.streams is None else found.streams & wanted)
    return found


def _by_time(bounds: Bounds, name: str, value: Any) -> Bounds:
    moments = [_micros(each) for each in (value if name == "In" else (value,))]
    known = [moment for moment in moments if moment is not None]
    if not known or len(known) < len(moments):
        return bounds
    low, high = min(known), max(known)
    if name in ("EqualTo", "EqualNullSafe", "In", "GreaterThanOrEqual"):
        bounds = bounds.within(before_time(-(-low // 1000)), _LAST)
    elif name == "GreaterThan":
        bounds = bounds.within(before_time(low // 1000 + 1), _LAST)
    if name in ("EqualTo", "EqualNullSafe", "In", "LessThanOrEqual"):
        bounds = bounds.within(ZERO, before_time(high // 1000 + 1))
    elif name == "LessThan":
        bounds = bounds.within(ZERO, before_time(-(-high // 1000)))
    return bounds


def _micros(value: Any) -> int | None:
    """Return microseconds since 1970; None for a value that is not a time."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICRO


def _by_id(bounds: Bounds, name: str, value: Any) -> Bounds:
    if name in ("EqualTo", "EqualNullSafe", "In"):
        try:
            wanted = [parse_id(each) for each in (value if name == "In" else (value,)) if each is not None]
        except ValueError:
            return bounds  # no entry has such an id; Spark's own filter drops all rows
        return bounds.within(min(wanted).before, max(wanted)) if wanted else bounds
    found = _USUAL.match(value) if isinstance(value, str) else None
    if found is None:
        return bounds
    if name in ("GreaterThan", "GreaterThanOrEqual"):
        return replace(bounds, low_ms=max(bounds.low_ms, int(found[1])))
    if name in ("LessThan", "LessThanOrEqual"):
        return replace(bounds, high_ms=min(bounds.high_ms, int(found[1])))
    return bounds
