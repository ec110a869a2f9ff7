"""Recurring schedules: their records on the server, and the choice of the next firing. Pure but for the calls.

::

    millstream:schedules    hash: name -> JSON: the timetable, the stream, the entry's words, the time it was declared

A firing is an ordinary schedule with the id ``<name>@<time>``. So it is placed once and fires once, whichever worker
places it. There is no leader: every worker that has the schedule places the next firing once the one before is due.

Workers of two versions may declare a schedule differently. The declaration in force is in the stream's slot, in the
hash of the times that were placed. The step that places a firing refuses workers with another declaration, and all
workers once the schedule is removed. A declaration in code lapses once no worker has renewed it for ``SILENT_MS``.
"""

import base64
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from millstream.client.jsontext import parse_record
from millstream.client.later import admin, schedule
from millstream.client.later.schedule import INDEX, LATEST_MS, SCRIPT
from millstream.client.later.timetable import LONGEST_MS, MOST, Timetable
from millstream.client.line import Line
from millstream.errors import ConfigError

KEY = "millstream:schedules"
SILENT_MS = 180_000
"""Milliseconds without a declaration after which a schedule from code counts as declared by no worker."""

STREAM = "schedule:"
"""Prefix of the stream of a schedule that has a handler."""


@dataclass(frozen=True, slots=True)
class Recurring:
    """A recurring schedule.

    Attributes:
        name: unique on the server.
        table: its firing times.
        stream: key of the stream that gets an entry.
        words: arguments after ``XADD <stream>``; the time of the firing is added for a schedule with a handler.
        in_code: True if workers declare it in their code; False if a person or program put it on the server.
        group: the group that handles it, where that is known.
        started_ms: start of the worker that declares it, in milliseconds since 1970.
        seen_ms: time at which a worker last declared it, in milliseconds since 1970.
        key: chooses the partition of its entries; None for the stream's own field.
    """

    name: str
    table: Timetable
    stream: str
    words: tuple[bytes, ...]
    in_code: bool = False
    group: str = ""
    started_ms: int = 0
    seen_ms: int = 0
    key: bytes | None = None

    def prefixed(self, prefix: str) -> "Recurring":
        """Return a copy with a router's prefix before the schedule's name and the stream's key."""
        if not prefix:
            return self
        name, words = schedule.checked_id("schedule", prefix + self.name, "name"), self.words
        if self.stream == STREAM + self.name:
            words = (*words[:-1], name.encode())  # the last argument is the schedule's name, which the handler gets
        return dataclasses.replace(self, name=name, stream=prefixed(self.stream, prefix), words=words)

    def to_json(self) -> str:
        """Return the JSON record that the server holds."""
        record = dataclasses.asdict(self)
        record["words"] = [base64.b64encode(word).decode() for word in self.words]
        key = record.pop("key")  # workers of earlier versions can read only records without it
        record |= {} if key is None else {"key": base64.b64encode(key).decode()}
        return json.dumps(record)

    @classmethod
    def of_json(cls, text: bytes) -> "Recurring | None":
        """Parse a record from the server; return None if Millstream did not write it."""
        try:
            record: Any = parse_record(text)
            words = tuple(base64.b64decode(word, validate=True) for word in record.pop("words"))
            key = base64.b64decode(record.pop("key"), validate=True) if "key" in record else None
            made = cls(table=Timetable(**record.pop("table")), words=words, key=key, **record)
            checked_name("schedule", made.name)
            (made.stream + made.group).encode("utf-8", "surrogateescape")
            made.table.check(made.name)
        except Exception:  # noqa: BLE001 - any client may have written it
            return None
        return made if made._is_sound() else None

    def _is_sound(self) -> bool:
        """Return True if each value has its type and is in its bounds; a bad one would stop the worker placing it."""
        table = self.table
        spans = (table.offset_ms, table.jitter_ms, table.grace_ms, table.every_ms or 0)
        texts = (self.name, self.stream, self.group, table.tz, table.cron or "")
        return (
            all(type(one) is int and 0 <= one <= LONGEST_MS for one in spans)
            and all(type(one) is int and 0 <= one <= LATEST_MS for one in (self.started_ms, self.seen_ms))
            and all(isinstance(one, str) for one in texts)
            and bool(self.name and self.stream)
            and (table.cron is None) != (table.every_ms is None)
            and (table.every_ms is None or table.every_ms >= 1_000)
        )

    @property
    def fingerprint(self) -> str:
        """Hash of the timetable and the entry: equal declarations have equal fingerprints."""
        parts = repr((self.table, self.stream, self.words, self.group, *(() if self.key is None else (self.key,))))
        return hashlib.sha1(parts.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def checked_name(call: str, name: object) -> str:
    """Return the name of a schedule, after a check that it is valid."""
    checked = schedule.checked_id(call, name, "name")
    if checked.startswith(("paused:", "table:")):
        raise ConfigError(f"{call}(name={name!r}) is invalid: it does not begin with paused: or table:.")
    return checked


def prefixed(stream: str, prefix: str) -> str:
    """Return a stream's key with a prefix; in the stream of a schedule the prefix precedes the schedule's name."""
    # The name of a schedule's dead letters is in braces, so that they share a slot with their stream
    at = next((len(head) for head in (STREAM, "{" + STREAM) if stream.startswith(head)), 0)
    return stream[:at] + prefix + stream[at:]


@dataclass(frozen=True, slots=True)
class Placing:
    """The firing to place next, and the missed firings before it."""

    at_ms: int
    following_ms: int
    missed: tuple[int, ...] = ()
    more: bool = False  # True if more firings were missed than ``missed`` lists


def placing(table: Timetable, placed_ms: int | None, now_ms: int) -> Placing | None:
    """Return the firing to place now; None while the last placed one is still to come."""
    if placed_ms is not None and placed_ms > now_ms:
        return None
    # A new schedule fires at its next time and has no missed firings
    times = [] if placed_ms is None else list(islice(_until(table, placed_ms, now_ms), MOST + 1))
    more = len(times) > MOST
    wanted = times
    if more and placed_ms is not None:
        wanted = _last(table, placed_ms, now_ms, 1 if table.catch_up == "latest" else MOST)
    following = next(table.after(now_ms))
    if table.catch_up == "latest":
        wanted = wanted[-1:]
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


def _last(table: Timetable, after_ms: int, now_ms: int, count: int) -> list[int]:
    """Return the last times between two moments, searching backwards: there may be millions before them."""
    back = 60_000
    while True:
        start = max(after_ms, now_ms - back)
        times = list(_until(table, start, now_ms))
        if len(times) >= count or start == after_ms:
            return times[-count:]
        back *= 4


@dataclass(frozen=True, slots=True)
class Placed:
    """The state of a schedule next to its stream."""

    last_ms: int | None  # Time of the last placed firing
    mine: bool  # True if this call placed it
    now_ms: int  # By the server's clock
    paused: bool
    overruled: bool  # True if another declaration is in force, or none is


async def define(line: Line, one: Recurring, started_ms: int | None, *, lapsed: bool = False) -> bool:
    """Put a declaration in force; return False if one of a worker that started later is in force already.

    Without ``started_ms`` it takes force in any case, and so it does in place of one that has ``lapsed``.
    """
    keys = schedule.keys(one.stream, schedule.placed_key(one.stream))
    words = ("define", one.name, "" if started_ms is None else started_ms, one.fingerprint, int(lapsed))
    return bool(await SCRIPT.call(line.near(one.stream), keys, words))


async def place(line: Line, one: Recurring, at: Placing | None = None) -> Placed:
    """Place a firing and return the schedule's state; without ``at`` only return the state."""
    keys = schedule.keys(one.stream, schedule.placed_key(one.stream))
    words: tuple[bytes | str | int, ...] = ("place", one.name, "", "", "", "", "", one.fingerprint)
    if at is not None:
        skips = one.table.overlap == "skip" and one.group
        content: list[bytes | str | int] = [*([one.group] if skips else []), *one.words]
        if one.stream.startswith(STREAM):
            content += ["scheduled", at.at_ms]
        expiry = one.table.expiry(at.at_ms, at.following_ms)
        due = one.table.shifted(one.name, at.at_ms)
        after = "" if expiry is None else expiry
        words = ("place", one.name, at.at_ms, due, after, "!" if skips else "", schedule.packed(content, one.key))
        words += (one.fingerprint,)
    placed, mine, now, paused, overruled = await SCRIPT.call(line, keys, words)
    return Placed(int(placed) if placed else None, bool(mine), int(now), bool(paused), bool(overruled))


async def put(line: Line, one: Recurring) -> None:
    """Store a schedule on the server, in place of one with the same name."""
    known = await get(line, one.name)
    if known is not None and known.in_code:
        raise ConfigError(
            f"put({one.name!r}) is invalid: the code of workers declares a schedule of that name. Write another name, "
            "or remove that one."
        )
    if known is not None and known.stream != one.stream:
        await forget(line, known)
    await line.call("SADD", INDEX, one.stream)
    await line.call("HSET", schedule.CONTROL, schedule.FLAG, 1)
    await define(line, one, None)
    await line.call("HSET", KEY, one.name, one.to_json())


async def listed(line: Line) -> list[Recurring]:
    """Return every recurring schedule on the server, by name."""
    flat = await line.call("HGETALL", KEY)
    found = [Recurring.of_json(text) for text in flat[1::2]]
    return sorted((one for one in found if one is not None), key=lambda one: one.name)


async def get(line: Line, name: str) -> Recurring | None:
    """Return the schedule of this name; None without one."""
    text = await line.call("HGET", KEY, name)
    return None if text is None else Recurring.of_json(text)


async def remove(line: Line, name: str) -> bool:
    """Remove a schedule and its firings that are still waiting."""
    one = await get(line, name)
    if one is None:
        return bool(await line.call("HDEL", KEY, name))
    await line.call("HDEL", KEY, name)
    await forget(line, one)
    return True


async def forget(line: Line, one: Recurring) -> None:
    """Remove the state of a schedule next to its stream, and its firings that are still waiting."""
    near, key = line.near(one.stream), schedule.placed_key(one.stream)
    # First of all, so that workers that still have the schedule place no more firings
    await near.call("HDEL", key, f"table:{one.name}")
    await _cancelled(near, one)
    await near.call("HDEL", key, one.name, f"paused:{one.name}")


async def _cancelled(near: Line, one: Recurring) -> list[int]:
    """Remove the waiting firings and return their times: the last placed one, and earlier ones that jitter delays."""
    before = await place(near, one)
    if before.last_ms is None:
        return []
    times = [*_last(one.table, before.now_ms - one.table.jitter_ms - 1, before.last_ms, 10 * MOST), before.last_ms]
    gone = await admin.cancel(near, one.stream, [f"{one.name}@{at}" for at in dict.fromkeys(times)])
    return [int(ident.rpartition("@")[2]) for ident in gone]


async def pause(line: Line, name: str, *, paused: bool) -> bool:
    """Stop placing firings and remove the waiting one, or resume; return False if there is no such schedule."""
    one = await get(line, name)
    if one is None:
        return False
    near, key = line.near(one.stream), schedule.placed_key(one.stream)
    if not paused:
        await near.call("HDEL", key, f"paused:{name}")
        return True
    await near.call("HSET", key, f"paused:{name}", 1)
    if gone := await _cancelled(near, one):
        # They count as not placed, so that they count as missed when the pause ends
        await near.call("HSET", key, name, min(gone) - 1)
    return True
