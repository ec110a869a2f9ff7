"""The recorded part of a range, from several replies to XRANGE, XREVRANGE and XPENDING. Pure."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from millstream.client.ranges import order_of

Id: TypeAlias = tuple[int, int]
Row: TypeAlias = list[Any]

FIRST: Id = (0, 0)
LAST: Id = (2**64 - 1, 2**64 - 1)

_BOUND = re.compile(rb"(\(?)([0-9]{1,20})(?:-([0-9]{1,20}))?")


def low_of(word: bytes) -> Id:
    """Return the lowest id in a range, from the text of its start."""
    if word == b"-":
        return FIRST
    exclusive, milliseconds, number = _parts(word)
    found = (milliseconds, number or 0)
    return _behind(found) if exclusive else found


def high_of(word: bytes) -> Id:
    """Return the highest id in a range, from the text of its end."""
    if word == b"+":
        return LAST
    exclusive, milliseconds, number = _parts(word)
    found = (milliseconds, LAST[1] if number is None else number)
    return _before(found) if exclusive else found


def _parts(word: bytes) -> tuple[bool, int, int | None]:
    found = _BOUND.fullmatch(word)
    if found is None:
        raise ValueError("it is not a bound of a range")
    return bool(found[1]), int(found[2]), None if found[3] is None else int(found[3])


def _behind(one: Id) -> Id:
    return (one[0], one[1] + 1) if one[1] < LAST[1] else (one[0] + 1, 0)


def _before(one: Id) -> Id:
    return (one[0], one[1] - 1) if one[1] else (one[0] - 1, LAST[1])


@dataclass(slots=True)
class KnownRange:
    """Rows by their ids, with the spans of ids that are recorded completely."""

    _rows: dict[Id, Row] = field(default_factory=dict)
    _spans: list[tuple[Id, Id]] = field(default_factory=list)
    _ids: list[Id] = field(default_factory=list)

    def learn(self, low: Id, high: Id, rows: Sequence[Row], *, count: int | None, falling: bool) -> None:
        """Add the rows of one reply."""
        found = [order_of(row[0]) for row in rows]
        self._rows.update(zip(found, rows, strict=True))
        if count is not None and found and len(found) >= count:  # COUNT ended the reply before the end of the range
            low, high = (min(found), high) if falling else (low, max(found))
        elif count == 0:
            return
        self._spans.append((low, high))

    def settle(self) -> None:
        """Join the spans; call it after the last :meth:`learn` and before :meth:`find`."""
        self._ids = sorted(self._rows)
        joined: list[tuple[Id, Id]] = []
        for low, high in sorted(self._spans):
            if joined and low <= _behind(joined[-1][1]):
                joined[-1] = (joined[-1][0], max(joined[-1][1], high))
            else:
                joined.append((low, high))
        self._spans = joined

    def find(
        self, low: Id, high: Id, *, count: int | None, falling: bool, fits: Callable[[Row], bool] | None = None
    ) -> list[Row] | None:
        """Return the rows of a range as the server would have sent them; None unless all of them are recorded."""
        if low > high:
            return []
        start = high if falling else low
        at = bisect_right(self._spans, (start, LAST)) - 1
        if at < 0 or not self._spans[at][0] <= start <= self._spans[at][1]:
            return None
        known_low, known_high = self._spans[at]
        first, last = bisect_left(self._ids, max(low, known_low)), bisect_right(self._ids, min(high, known_high))
        found: list[Row] = []
        for each in reversed(self._ids[first:last]) if falling else self._ids[first:last]:
            if count is not None and len(found) >= count:
                return found
            if fits is None or fits(self._rows[each]):
                found.append(self._rows[each])
        whole = known_low <= low if falling else high <= known_high
        return found if whole or (count is not None and len(found) >= count) else None
