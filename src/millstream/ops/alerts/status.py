"""Alerts as facts: when a cause opens an alert, when its absence closes it, and the entries of both. PURE.

An entry has no payloads and no errors of programs. Anyone who may write the stream (``client/alerts/store.py``) can
write anything into it, so texts are cut here, and escaped where they are shown.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from millstream.client.jsontext import parse
from millstream.ops.findings.causes import Cause
from millstream.ops.words import Facts, brief, picked, text_of

OPEN = 200
"""Limit of alerts that are open at the same time."""

OPENS_MS = 10_000
"""Milliseconds for which a cause must last until its alert opens; those of :data:`_OPENS_MS` have their own."""

_OPENS_MS = {"memory-near-limit": 60_000, "spilling-fails": 600_000, "removed-unread": 0}

CLOSES_MS = 60_000
"""Milliseconds for which a cause must be absent until its alert closes; doubled with each reopening, up to an hour."""

_LONGEST_MS = 3_600_000
_FLAPS_MS = 21_600_000  # an alert that opened again within this time keeps its doubled limit
_CLOSED = 1_000  # largest number of alerts whose closings are remembered
_AFFECTED = 6
_TEXT = 300

Became = Literal["opened", "closed", "test"]


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem that needed a person, from its beginning to its end."""

    id: str  # Name of its cause
    code: str  # Kind of the problem, for programs
    level: str  # ``problem`` or ``warning``
    says: str  # Event, as a sentence
    since_ms: int | None = None  # Beginning of the problem, wall milliseconds; None if it is unknown
    opened_ms: int = 0  # Time when the alert opened, wall milliseconds
    closed_ms: int | None = None  # Time when it closed; None while it is open
    affects: tuple[str, ...] = ()  # Groups that it holds up, as text
    remedy: str = ""  # Command line that helps; empty if there is none

    @property
    def began_ms(self) -> int:
        """The beginning of the problem, or of the alert if that is unknown."""
        return self.opened_ms if self.since_ms is None else self.since_ms

    def for_ms(self, now_ms: int) -> int:
        """Return its duration in milliseconds, so far for an open one."""
        end = now_ms if self.closed_ms is None else self.closed_ms
        return max(end - self.began_ms, 0)


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """An alert that opened or closed, as an entry of the stream."""

    became: Became
    alert: Alert
    entry: str = ""  # Id of the entry; empty if it is not written yet


@dataclass(frozen=True, slots=True)
class AlertsSeen:
    """The alerts of a server, read at one moment."""

    alerts: tuple[Alert, ...] = ()  # Open alerts first, then the others; the newest first
    why: str | None = None  # Reason why they are unknown; None if they are known
    more: bool = False  # True if entries above the limit of bytes were not read

    @property
    def note(self) -> str:
        """A sentence about what is left out; empty if nothing is."""
        return "Earlier alerts are left out: the entries of the stream millstream:alerts are too large." * self.more


def alert_of(cause: Cause, remedy: str) -> Alert:
    """Return the alert of a cause; it contains neither payloads nor errors of programs."""
    affects = tuple(brief(one.text(), _TEXT) for one in cause.affects[:_AFFECTED])
    return Alert(cause.id, cause.head.code, cause.level, cause.plain, cause.head.since_ms, 0, None, affects, remedy)


def alert_facts(alert: Alert, now_ms: int) -> Facts:
    """Return an alert as data."""
    return {
        **picked(alert, "id code level says since_ms opened_ms closed_ms"),
        "for_ms": alert.for_ms(now_ms),
        "affects": list(alert.affects),
        "remedy": alert.remedy or None,
    }


def words_of(event: AlertEvent) -> list[str]:
    """Return the fields of an event's entry."""
    one = event.alert
    values = {
        "event": event.became,
        "alert": one.id,
        **picked(one, "code level says since_ms opened_ms closed_ms"),
        "affects": json.dumps(one.affects) if one.affects else None,
        "remedy": one.remedy or None,
    }
    # A half of a surrogate pair, which only a forged record has, would not be sent
    words = [str(word) for field, value in values.items() if value is not None for word in (field, value)]
    return [word.encode(errors="backslashreplace").decode() for word in words]


def event_of(row: Any) -> AlertEvent | None:
    """Parse an entry of the stream, whatever its content; None if no watcher wrote it."""
    entry, flat = row
    raw: Mapping[str, str] = {text_of(key): text_of(value) for key, value in zip(flat[::2], flat[1::2], strict=True)}
    became, opened = raw.get("event"), _time(raw.get("opened_ms"))
    if became not in {"opened", "closed"} or opened is None or not raw.get("alert"):
        return None
    try:
        affects = parse(raw.get("affects", "[]").encode(errors="surrogateescape"))
    except ValueError:
        affects = []
    rows = affects if isinstance(affects, list) else []
    alert, code, level, says = (brief(raw.get(field, ""), _TEXT) for field in ("alert", "code", "level", "says"))
    found = Alert(
        alert,
        code,
        level,
        says,
        since_ms=_time(raw.get("since_ms")),
        opened_ms=opened,
        closed_ms=_time(raw.get("closed_ms")) if became == "closed" else None,
        affects=tuple(brief(one, _TEXT) for one in rows[:_AFFECTED] if isinstance(one, str)),
        remedy=brief(raw.get("remedy", ""), _TEXT * 2),
    )
    return AlertEvent("opened" if became == "opened" else "closed", found, text_of(entry))


def _time(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def folded(events: Iterable[AlertEvent]) -> tuple[Alert, ...]:
    """Return each alert once, from events in order of time: open ones first, then the others, the newest first."""
    found: dict[tuple[str, int], Alert] = {}
    for event in events:
        found[event.alert.id, event.alert.opened_ms] = event.alert
    opened = {alert.id: alert for alert in found.values() if alert.closed_ms is None}
    closed = [alert for alert in found.values() if alert.closed_ms is not None]
    return (
        *sorted(opened.values(), key=lambda one: -one.opened_ms),
        *sorted(closed, key=lambda one: (-(one.closed_ms or 0), -one.opened_ms)),
    )


class AlertBoard:
    """The open alerts of a server. It decides when a cause opens an alert, and when its absence closes it."""

    def __init__(self, known: Sequence[Alert] = (), now_ms: int = 0) -> None:
        self._open = {one.id: one for one in known if one.closed_ms is None}
        self._seen = dict.fromkeys(self._open, now_ms)
        self._first: dict[str, int] = {}
        self._closed: dict[str, list[int]] = {}
        for one in known:
            if one.closed_ms is not None:
                self._closed.setdefault(one.id, []).append(one.closed_ms)

    @property
    def open(self) -> tuple[Alert, ...]:
        """The open alerts."""
        return tuple(self._open.values())

    def update(self, present: Iterable[Alert], now_ms: int) -> list[AlertEvent]:
        """Note the alerts whose causes a reading shows; return those that opened and closed with it."""
        there = {one.id: one for one in present if one.level != "hint"}
        # A time in the future is from before the clock was set back
        self._first = {one: min(self._first.get(one, now_ms), now_ms) for one in there if one not in self._open}
        self._seen = {one: min(seen, now_ms) for one, seen in self._seen.items()}
        self._seen.update(dict.fromkeys((one for one in there if one in self._open), now_ms))
        lasted = [(there[one], now_ms - first) for one, first in self._first.items()]
        due = [one for one, lasts_ms in lasted if lasts_ms >= _OPENS_MS.get(one.code, OPENS_MS)]
        found = [self._opened(one, now_ms) for one in due]
        gone = [one for one, seen in self._seen.items() if now_ms - seen >= self.patience(one, now_ms)]
        worse = [one for one in there.values() if one.level == "problem" != self._open.get(one.id, one).level]
        found += [self._worsened(one) for one in worse]
        return [event for event in found if event is not None] + [self._close(one, now_ms) for one in gone]

    def patience(self, alert: str, now_ms: int) -> int:
        """Return the milliseconds of absence that close an alert; more for one that opens again and again."""
        times = sum(0 <= now_ms - closed < _FLAPS_MS for closed in self._closed.get(alert, ()))
        return min(CLOSES_MS << min(times, 16), _LONGEST_MS)

    def _opened(self, alert: Alert, now_ms: int) -> AlertEvent | None:
        if len(self._open) >= OPEN:
            return None
        found = replace(alert, opened_ms=now_ms)
        self._open[alert.id], self._seen[alert.id] = found, now_ms
        return AlertEvent("opened", found)

    def _worsened(self, alert: Alert) -> AlertEvent:
        """Open an alert again as a problem, with the same time, so that hooks for problems alone are told of it."""
        found = replace(alert, opened_ms=self._open[alert.id].opened_ms)
        self._open[alert.id] = found
        return AlertEvent("opened", found)

    def _close(self, alert: str, now_ms: int) -> AlertEvent:
        seen = self._seen.pop(alert)
        found = replace(self._open.pop(alert), closed_ms=max(seen, 0))
        recent = [closed for closed in self._closed.get(alert, []) if now_ms - closed < _FLAPS_MS]
        self._closed[alert] = [*recent, now_ms]
        if len(self._closed) > _CLOSED:
            del self._closed[next(iter(self._closed))]
        return AlertEvent("closed", found)
