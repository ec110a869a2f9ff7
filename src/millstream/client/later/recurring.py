"""Recurring schedules: how the server keeps them, and the firing that is placed next. Pure but for the calls.

::

    millstream:schedules    hash: name -> JSON: the timetable, the stream, the entry's words, and who declared it when

A firing is an ordinary schedule with the id ``<name>@<time>``, so it is placed once and fires once, whichever worker
places it. There is no leader: every worker that knows a schedule places the next firing once the one before is due.
"""

import base64
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, get_args

from millstream.client.jsontext import parse_record
from millstream.client.later import admin, schedule
from millstream.client.later.schedule import LATEST_MS, SCRIPT
from millstream.client.later.timetable import MOST, CatchUp, Overlap, Timetable
from millstream.client.line import Line

KEY = "millstream:schedules"
SILENT_MS = 180_000
"""Milliseconds after which a schedule that code declared is declared by nobody."""

STREAM = "schedule:"
"""Begins the stream of a schedule that has a handler."""


@dataclass(frozen=True, slots=True)
class Recurring:
    """A recurring schedule.

    Attributes:
        name: unique on the server.
        table: when it fires.
        stream: key of the stream that gets an entry.
        words: those behind ``XADD <stream>``; the time of the firing is added for a schedule with a handler.
        in_code: True where the code of workers declares it; else it was put on the server.
        group: the group that handles it, where that is known.
        started_ms: when the worker that declares it started.
        seen_ms: when a worker last declared it.
    """

    name: str
    table: Timetable
    stream: str
    words: tuple[bytes, ...]
    in_code: bool = False
    group: str = ""
    started_ms: int = 0
    seen_ms: int = 0

    def to_json(self) -> str:
        """Its form on the server."""
        record = dataclasses.asdict(self)
        record["words"] = [base64.b64encode(word).decode() for word in self.words]
        return json.dumps(record)

    @classmethod
    def of_json(cls, text: bytes) -> "Recurring | None":
        """Read back; None where it is not one of ours."""
        try:
            record: Any = parse_record(text)
            table = Timetable(**record.pop("table"))
            words = tuple(base64.b64decode(word, validate=True) for word in record.pop("words"))
            made = cls(table=table, words=words, **record)
            next(table.after(0))
        except Exception:  # noqa: BLE001 - anybody may have written it
            return None
        return made if made._is_sound() else None

    def _is_sound(self) -> bool:
        """True if each value has its type and is in its bounds; another one would stop those that place it."""
        table = self.table
        times = (table.offset_ms, table.jitter_ms, table.grace_ms, self.started_ms, self.seen_ms, table.every_ms or 0)
        texts = (self.name, self.stream, self.group, table.tz, table.cron or "")
        return (
            all(type(one) is int and 0 <= one <= LATEST_MS for one in times)
            and all(isinstance(one, str) for one in texts)
            and bool(self.name and self.stream)
            and (table.every_ms is None or table.every_ms >= 1_000)
            and table.catch_up in get_args(CatchUp)
            and table.overlap in get_args(Overlap)
        )

    def declares(self, other: "Recurring") -> bool:
        """True if the other has the same timetable and the same entry."""
        return (self.table, self.stream, self.words) == (other.table, other.stream, other.words)


@dataclass(frozen=True, slots=True)
class Placing:
    """The firing to place next, and those that are made up for by it or by none."""

    at_ms: int
    following_ms: int
    missed: tuple[int, ...] = ()
    more: bool = False  # Missed ones beyond those


def placing(table: Timetable, placed_ms: int | None, now_ms: int) -> Placing | None:
    """The firing to place now; None while the last one that was placed is still to come."""
    if placed_ms is not None and placed_ms > now_ms:
        return None
    # A schedule that is new fires at its next time, and makes up for nothing
    times = [] if placed_ms is None else list(islice(_until(table, placed_ms, now_ms), MOST + 1))
    more = len(times) > MOST
    if more and table.catch_up == "latest":
        times = times[:MOST] + list(_until(table, _shortly_before(table, now_ms), now_ms))[-1:]
    following = next(table.after(now_ms))
    wanted = times[:MOST]
    if table.catch_up == "latest":
        wanted = times[-1:]
    elif table.catch_up == "none":
        wanted = [at for at in wanted if now_ms - at <= table.grace_ms]
    if not wanted:
        return Placing(following, next(table.after(following)), tuple(times[:MOST]), more)
    at = wanted[0]
    return Placing(at, next(table.after(at)), tuple(one for one in times[:MOST] if one < at), more)


def _until(table: Timetable, after_ms: int, now_ms: int) -> Iterator[int]:
    for at in table.after(after_ms):
        if at > now_ms:
            return
        yield at


def _shortly_before(table: Timetable, now_ms: int) -> int:
    """A moment with at least one firing between it and now, where there is one in a thousand years."""
    back = 60_000
    while next(table.after(now_ms - back)) > now_ms and back < 2**40:
        back *= 4
    return now_ms - back


async def place(line: Line, one: Recurring, at: Placing | None = None) -> tuple[int | None, bool, int, bool]:
    """Place a firing, or only ask; the last time placed, whether it was now, the server's now, and if it is paused."""
    keys = schedule.keys(one.stream, schedule.placed_key(one.stream))
    words: tuple[bytes | str | int, ...] = ("place", one.name, "", "", "", "", "")
    if at is not None:
        skips = one.table.overlap == "skip" and one.group
        content: list[bytes | str | int] = [*([one.group] if skips else []), *one.words]
        if one.stream.startswith(STREAM):
            content += ["scheduled", at.at_ms]
        expiry = one.table.expiry(at.at_ms, at.following_ms)
        due = one.table.shifted(one.name, at.at_ms)
        after = "" if expiry is None else expiry
        words = ("place", one.name, at.at_ms, due, after, "!" if skips else "", schedule.packed(content))
    placed, now_placed, now, paused = await SCRIPT.call(line, keys, words)
    return (int(placed) if placed else None), bool(now_placed), int(now), bool(paused)


async def listed(line: Line) -> list[Recurring]:
    """Every recurring schedule that the server knows."""
    flat = await line.call("HGETALL", KEY)
    found = [Recurring.of_json(text) for text in flat[1::2]]
    return sorted((one for one in found if one is not None), key=lambda one: one.name)


async def get(line: Line, name: str) -> Recurring | None:
    """One schedule."""
    text = await line.call("HGET", KEY, name)
    return None if text is None else Recurring.of_json(text)


async def remove(line: Line, name: str) -> bool:
    """Remove a schedule, and its firings that wait."""
    one = await get(line, name)
    if one is None:
        return bool(await line.call("HDEL", KEY, name))
    near = line.near(one.stream)
    placed = await near.call("HGET", schedule.placed_key(one.stream), name)
    await line.call("HDEL", KEY, name)
    if placed is not None:
        await admin.cancel(near, one.stream, [f"{name}@{placed.decode(errors='surrogateescape')}"])
    await near.call("HDEL", schedule.placed_key(one.stream), name, f"paused:{name}")
    return True


async def pause(line: Line, name: str, *, paused: bool) -> bool:
    """Place no firing, or go on; the one that waits is removed at a pause."""
    one = await get(line, name)
    if one is None:
        return False
    near, key = line.near(one.stream), schedule.placed_key(one.stream)
    if not paused:
        await near.call("HDEL", key, f"paused:{name}")
        return True
    await near.call("HSET", key, f"paused:{name}", 1)
    placed = await near.call("HGET", key, name)
    if placed is not None and await admin.cancel(near, one.stream, [f"{name}@{placed.decode()}"]):
        # Not placed any more: at the end of the pause it counts as a firing that was missed
        await near.call("HSET", key, name, int(placed) - 1)
    return True
