"""Facts from the server about a stream and the groups of this process, read in a few round trips.

The cost does not depend on the length of the stream (XINFO STREAM without FULL). Only the part about consumers grows
with their number. A fact that the server refuses or lacks is None or missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

from millstream.client.delays import due
from millstream.client.delays.oldest import MOST, Undelayed, due_times, oldest_pending, undelayed
from millstream.client.line import Command, Line, Reply
from millstream.client.ranges import FIRST_TIME, order_of
from millstream.clock import SystemClock

_PATIENCE = 3.0

Record: TypeAlias = dict[str, Any]  # one of XINFO's maps; names and ids are bytes


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Facts about one group."""

    info: Record | None  # Row of XINFO GROUPS; None if the group does not exist
    unowned: int | None  # Number of pending entries without a holder, because XNACK released them
    delayed: int | None  # Number of delayed pending entries
    # Seconds since the oldest pending entry without a delay was added; 0 if there is none, None if it is not known
    pending_age: float | None
    undelivered_age: float | None  # Seconds since the oldest undelivered entry was added
    consumers: Sequence[Record]  # Rows of XINFO CONSUMERS, if requested


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Facts about one stream."""

    length: int | None  # Number of entries in the stream
    info: Record | None  # Reply to XINFO STREAM; None if the stream does not exist
    groups: dict[str, GroupFacts]  # Facts of the requested groups
    dead: dict[str, int | None]  # Number of entries by dead-letter stream


async def ask(
    line: Line, stream: str, groups: Sequence[str], dead: Sequence[str], *, consumers: bool = True
) -> StreamFacts:
    """Read the facts about one stream and some of its groups."""
    asked: list[Command] = [("XLEN", stream), ("XINFO", "STREAM", stream), ("XINFO", "GROUPS", stream)]
    # One round trip; the slices below follow the order of these lines
    asked += [("XLEN", key) for key in dead]
    asked += [("XPENDING", stream, group) for group in groups]
    asked += [("ZCARD", due.key(stream, group)) for group in groups]
    asked += [("XINFO", "CONSUMERS", stream, group) for group in groups if consumers]
    replies = [_unless_refused(reply) for reply in await line.calls(asked, timeout=_PATIENCE)]
    length, about, rows = replies[:3]
    waiting, further = replies[3 : 3 + len(dead)], replies[3 + len(dead) :]
    info = None if about is None else _record(about)
    known = {row["name"]: row for row in _records(rows)}
    found = {group: known.get(group.encode()) for group in groups}
    ages = await _undelivered(line, stream, info, found)
    counts, members = further[len(groups) : 2 * len(groups)], further[2 * len(groups) :]
    members = members if consumers else [None] * len(groups)
    delayed = {group: await _delayed(line, stream, group, count) for group, count in zip(groups, counts, strict=True)}
    return StreamFacts(
        length,
        info,
        {
            group: GroupFacts(found[group], *_pending(summary, delayed[group]), ages.get(group), _records(listed))
            for group, summary, listed in zip(groups, further, members, strict=False)
        },
        dict(zip(dead, waiting, strict=True)),
    )


def milliseconds(entry: bytes) -> int:
    """Return the milliseconds of an entry's id."""
    return order_of(entry)[0]


async def _delayed(line: Line, stream: str, group: str, count: Reply) -> Undelayed | None:
    """Return the oldest entry that is not delayed and the number of delayed ones; None if there are no due times."""
    if not count:
        return None
    asked = (("TIME",), due_times(stream, group, MOST), oldest_pending(stream, group, MOST))
    time, times, pending = await line.near(stream).calls(asked, timeout=_PATIENCE)
    if not isinstance(time, list) or not isinstance(pending, list):
        return None
    now = int(time[0]) * 1000 + int(time[1]) // 1000
    return undelayed(times, [row[0] for row in pending], MOST, now, whole=len(pending) < MOST)


def _pending(summary: Reply, delayed: Undelayed | None) -> tuple[int | None, int | None, float | None]:
    """Return the numbers of unowned and delayed entries, and the age of the oldest entry that is not delayed.

    ``summary`` is the reply to the short form of XPENDING.
    """
    if summary is None:
        return None, None, None
    total, oldest, _, holders = summary
    waiting = 0 if delayed is None else min(delayed.waiting, total)
    if delayed is not None:
        oldest = delayed.oldest
    # The total includes released entries, but no consumer does; without XNACK the two numbers are always equal
    unowned = total - sum(int(row[1]) for row in holders or ())
    if delayed is not None and delayed.waiting and not delayed.is_sure:
        return unowned, waiting, None
    return unowned, waiting, _age(oldest) if total and oldest is not None else 0.0


async def _undelivered(
    line: Line, stream: str, info: Record | None, groups: dict[str, Record | None]
) -> dict[str, float | None]:
    """Return the seconds since the oldest undelivered entry of each group was added; 0 without one.

    Unknown groups are absent. The result is known even if the lag is not, since it only needs the first entry after the
    last delivered one.
    """
    if info is None:
        return {}
    last = info["last-entry"]
    delivered = {group: row["last-delivered-id"] for group, row in groups.items() if row is not None}
    behind = [group for group, entry in delivered.items() if last and order_of(last[0]) > order_of(entry)]
    found: dict[str, float | None] = dict.fromkeys(delivered.keys() - behind, 0.0)
    # The entry after the last delivered one is the oldest undelivered entry
    asked: list[Command] = [("XRANGE", stream, b"(" + delivered[group], "+", "COUNT", 1) for group in behind]
    replies = await line.calls(asked, timeout=_PATIENCE) if asked else []
    for group, entries in zip(behind, map(_unless_refused, replies), strict=True):
        if entries is not None:
            found[group] = _age(entries[0][0]) if entries else 0.0
    return found


def _unless_refused(reply: Reply) -> Reply:
    """Return the reply, or None for an error reply."""
    return None if isinstance(reply, ResponseError) else reply


def _records(rows: Reply) -> list[Record]:
    return [_record(row) for row in rows or ()]


def _record(row: Sequence[Any]) -> Record:
    return {name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)}


def _age(entry: bytes) -> float | None:
    """Return the seconds since the entry was added, by its id; None if the id does not contain a time."""
    if milliseconds(entry) < FIRST_TIME:
        return None
    return max(SystemClock().now().wall - milliseconds(entry), 0) / 1000
