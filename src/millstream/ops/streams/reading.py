"""Reading streams with their groups and consumers, in one round trip for up to 480 streams.

The ages of a group's oldest entries are read by id, without a scan, and only if the group has such entries. They are
read with the next page of streams, so that they need no extra round trip. If the server does not report a lag, its
entries are counted page by page, up to a limit. Unknown fields of newer versions are skipped.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from millstream.client.cluster_line import require_whole
from millstream.client.delays import due
from millstream.client.delays.oldest import MOST, due_times, oldest_pending, undelayed
from millstream.client.line import Command, Line, Reply
from millstream.client.ranges import behind
from millstream.ops import asking
from millstream.ops.streams.status import (
    ConsumerStatus,
    GroupPosition,
    GroupSeen,
    GroupStatus,
    OldestEntry,
    PendingSummary,
    StreamsSeen,
    StreamStatus,
    counted,
    lag_of,
    uncounted,
)
from millstream.ops.words import EntryView, order, text_of

STREAMS_A_TRIP = 480
"""Limit of streams that are read in one round trip."""

_FIRST_TRIP = 50
"""Limit of streams in the first round trip, while the size of entries is unknown."""

#: Bounds of the reading of delayed entries, which takes one round trip: rows of pending entries and of due times, rows
#: of one group, and groups.
_DELAYED_ROWS, _DELAYED_SHORTEST, _DELAYED_GROUPS = 10_000, 20, 500

_TOO_MANY = OldestEntry(why="so many entries are delayed that the oldest other one was not looked up")

_BULK = 4 << 20  # expected size of the entries in one round trip, in bytes

HISTORY = "millstream:{history}:"
"""Beginning of the keys of a server's history, see ``ops/history``."""

#: Keys that the first SCAN examines, and each further one; a server examines 4,000 in about a millisecond.
_SCANNED, _SCANNED_NEXT = 4000, 16_000


async def names(line: Line, pattern: str | None = None, *, part: bool = False) -> list[str]:
    """Return the sorted keys of all streams; on a cluster, of all nodes. A history is listed only by a pattern."""
    fits: tuple[str, ...] = () if pattern is None else ("MATCH", pattern)
    nodes = await line.nodes()
    scans = [_scanned(node, fits) for node in nodes]
    # In one round trip with the first SCAN
    _, parts = await asyncio.gather(require_whole([] if part else nodes), asyncio.gather(*scans))
    found = {key for keys in parts for key in keys}
    return sorted(key for key in map(text_of, found) if pattern or not key.startswith(HISTORY))


async def all_due_keys(line: Line) -> frozenset[str]:
    """Return the keys of all due times of delayed entries, so that no group is asked in vain."""
    pattern = ("MATCH", due.key("*", "*"))
    found = await asyncio.gather(*(_scanned(node, pattern, kind="zset") for node in await line.nodes()))
    return frozenset(text_of(key) for keys in found for key in keys)


async def _scanned(node: Line, fits: Sequence[str], kind: str = "stream") -> set[bytes]:
    """Return the keys of one node that have a type."""
    found: set[bytes] = set()
    cursor, count = b"0", _SCANNED
    while True:
        (reply,) = await asking.calls(node, [("SCAN", cursor, *fits, "COUNT", count, "TYPE", kind)])
        count = _SCANNED_NEXT
        cursor, keys = asking.checked(reply, "SCAN")
        found.update(keys)
        if cursor == b"0":
            return found


async def overview(line: Line, pattern: str | None = None, *, limit: int | None = None) -> StreamsSeen:
    """Read streams with their groups, by pattern."""
    keys, delayed = await asyncio.gather(names(line, pattern), all_due_keys(line))
    seen = await read_present(line, keys[:limit], delayed)
    return replace(seen, more=limit is not None and len(keys) > limit)


async def read_present(line: Line, keys: Sequence[str], delayed: frozenset[str] | None = None) -> StreamsSeen:
    """Read the streams of these keys. A key that was removed after its name was read is not an error."""
    seen = await read(line, keys, delayed=delayed)
    refused = {key: why for key, why in seen.refused.items() if why != asking.explained("no such key", key)}
    return replace(seen, refused=refused)


async def one(line: Line, key: str) -> StreamStatus:
    """Read one stream with its groups and their ages."""
    return (await read_one(line, key)).streams[0]


async def read_one(line: Line, key: str) -> StreamsSeen:
    """Read one stream with its groups, their ages and the time of the reading."""
    seen = await read(line, [key])
    if not seen.streams:
        raise asking.unreadable(seen.refused[key], key)
    return seen


async def read(
    line: Line, keys: Sequence[str], *, ages: bool = True, delayed: frozenset[str] | None = None
) -> StreamsSeen:
    """Read the streams of these keys; a key that is not a stream is in ``refused``.

    Without the keys of all due times in ``delayed``, each stream is asked if its groups have some.
    """
    at_ms = line.wall_time()
    found: list[StreamStatus] = []
    refused: dict[str, str] = {}
    delays: set[str] = set()  # streams that may have delayed entries
    before: list[StreamStatus] = []  # page whose ages are read together with the next page
    at, size = 0, _FIRST_TRIP
    while at < len(keys) or before:
        page = keys[at : at + size]
        aged = _Ages(before if ages else (), asks_delays=delayed is None)
        answers = await asking.calls(line, [*_about(page), *aged.commands])
        split = 2 * len(page)
        found += aged.joined(answers[split:], delays) if ages else before
        before = _statuses(page, answers[:split], refused)
        at += len(page)
        size = _fitting(len(page), answers[:split:2])
    held = [group for one in found for group in one.groups if group.oldest_pending.id]
    if delayed is None:
        held = [group for group in held if group.stream in delays]
    else:
        held = [group for group in held if due.key(group.stream, group.name) in delayed] if delayed else []
    return StreamsSeen(at_ms, await _without_delays(line, found, held), refused)


async def read_some(line: Line, groups: Mapping[str, Collection[str]]) -> StreamsSeen:
    """Read streams by key, with the oldest undelivered entries of these groups only, in two round trips."""
    seen = await read(line, list(groups), ages=False)
    asked = [
        (stream.key, group)
        for stream in seen.streams
        for group in stream.groups
        if group.name in groups[stream.key] and _is_behind(stream, group)
    ]
    replies = await asking.calls(line, [_first_after(key, group) for key, group in asked])
    ages = {(key, group.name): _undelivered(reply) for (key, group), reply in zip(asked, replies, strict=True)}
    return replace(seen, streams=tuple(_aged(stream, groups[stream.key], ages) for stream in seen.streams))


def _aged(stream: StreamStatus, names: Collection[str], ages: Mapping[tuple[str, str], OldestEntry]) -> StreamStatus:
    """Return a stream in which some groups have their oldest undelivered entry, or none if all are delivered."""
    return replace(
        stream,
        groups=tuple(
            replace(group, oldest_undelivered=ages.get((stream.key, group.name), OldestEntry()))
            if group.name in names
            else group
            for group in stream.groups
        ),
    )


def _first_after(key: str, group: GroupStatus) -> Command:
    return ("XRANGE", key, f"({group.last_delivered_id}", "+", "COUNT", 1)


def _undelivered(entries: Reply) -> OldestEntry:
    said = asking.refusal(entries)
    return OldestEntry(text_of(entries[0][0]) if entries else None) if said is None else OldestEntry(why=said)


def _fitting(asked: int, infos: Sequence[Reply]) -> int:
    """Return the number of streams for the next round trip from the size of the last; replies include whole entries."""
    entries = [part for info in infos if isinstance(info, list) for part in info if isinstance(part, list) and part]
    bulk = sum(len(value) for entry in entries for value in entry[1])
    return STREAMS_A_TRIP if bulk <= _BULK else max(min(asked * _BULK // bulk, STREAMS_A_TRIP), 1)


def _about(keys: Sequence[str]) -> list[Command]:
    return [command for key in keys for command in (("XINFO", "STREAM", key), ("XINFO", "GROUPS", key))]


def _statuses(keys: Sequence[str], answers: Sequence[Reply], refused: dict[str, str]) -> list[StreamStatus]:
    """Return the streams in the replies; the reason for a missing stream goes into ``refused``."""
    found = []
    for key, info, groups in zip(keys, answers[::2], answers[1::2], strict=True):
        said = asking.refusal(info)
        if said is None:
            found.append(stream_status(key, info, groups))
        else:
            refused[key] = asking.explained(said, key)
    return found


class _Ages:
    """The second query about some streams: the oldest entries of each group.

    A group before the first entry needs no query for its oldest undelivered entry, and groups at one position share it.
    """

    def __init__(self, streams: Sequence[StreamStatus], *, asks_delays: bool) -> None:
        self._streams, self._asks_delays = streams, asks_delays
        self._held = [[group for group in stream.groups if group.pending] for stream in streams]
        self._behind = [{group.last_delivered_id: group for group in _to_look_up(stream)} for stream in streams]
        self.commands: list[Command] = []
        for stream, held, behind_ in zip(streams, self._held, self._behind, strict=True):
            self.commands += [("XPENDING", stream.key, group.name) for group in held]
            self.commands += [_first_after(stream.key, group) for group in behind_.values()]
        # Last, since a server runs one kind of command after the other faster
        self.commands += [
            ("EXISTS", *(due.key(stream.key, group.name) for group in held))
            for stream, held in zip(streams, self._held, strict=True)
            if held and asks_delays
        ]

    def joined(self, answers: Sequence[Reply], delays: set[str]) -> list[StreamStatus]:
        """Return the streams with the group ages from the replies; ``delays`` gets those with due times, or perhaps."""
        left = iter(answers)
        found = []
        for stream, held, behind_ in zip(self._streams, self._held, self._behind, strict=True):
            summaries = {group.name: next(left) for group in held}
            entries = {position: next(left) for position in behind_}
            groups = [_with_ages(stream, group, summaries.get(group.name), entries) for group in stream.groups]
            found.append(replace(stream, groups=tuple(groups)))
        if self._asks_delays:
            delays |= {one.key for one, held in zip(self._streams, self._held, strict=True) if held and next(left)}
        return found


def _to_look_up(stream: StreamStatus) -> list[GroupStatus]:
    """Return the groups whose oldest undelivered entry is not known from the stream alone."""
    return [group for group in stream.groups if _is_behind(stream, group) and not _is_before(stream, group)]


def _is_before(stream: StreamStatus, group: GroupStatus) -> bool:
    first = stream.first_entry_id
    return first is not None and order(first) > order(group.last_delivered_id)


async def _without_delays(
    line: Line, streams: Sequence[StreamStatus], held: list[GroupStatus]
) -> tuple[StreamStatus, ...]:
    """Return streams with delayed entries counted, and excluded from each group's oldest pending entry.

    The groups that may have some are read in one round trip, those with the oldest pending entries first. An entry is
    delayed if its due time is after this machine's clock, as for all ages.
    """
    held.sort(key=lambda group: order(group.oldest_pending.id or ""))
    rows = max(min(_DELAYED_ROWS // max(len(held), 1), MOST), _DELAYED_SHORTEST)
    asked, left = held[:_DELAYED_GROUPS], held[_DELAYED_GROUPS:]
    times = [due_times(group.stream, group.name, rows) for group in asked]
    replies = await asking.calls(line, [*times, *(oldest_pending(group.stream, group.name, rows) for group in asked)])
    now = line.wall_time()
    done = {(one.stream, one.name): replace(one, oldest_pending=_TOO_MANY, delayed=None) for one in left}
    for group, due_ms, pending in zip(asked, replies[: len(asked)], replies[len(asked) :], strict=True):
        done[group.stream, group.name] = _without_delayed(group, due_ms, pending, rows, now)
    if not done:
        return tuple(streams)
    return tuple(
        replace(one, groups=tuple(done.get((one.key, group.name), group) for group in one.groups)) for one in streams
    )


def _without_delayed(group: GroupStatus, times: Reply, pending: Reply, rows: int, now_ms: int) -> GroupStatus:
    """Return a group without its delayed entries, from its latest due times and its oldest pending entries."""
    ids = [row[0] for row in pending] if isinstance(pending, list) else [(group.oldest_pending.id or "").encode()]
    found = undelayed(times, ids, rows, now_ms, whole=isinstance(pending, list) and len(ids) < rows)
    if found is None or not found.waiting:
        return replace(group, delayed=None if found is None else 0)
    oldest = OldestEntry(None if found.oldest is None else text_of(found.oldest))
    return replace(
        group, oldest_pending=oldest if found.is_sure else _TOO_MANY, delayed=min(found.waiting, group.pending)
    )


def _is_behind(stream: StreamStatus, group: GroupStatus) -> bool:
    last = stream.last_entry_id
    return last is not None and order(last) > order(group.last_delivered_id)


def _with_ages(stream: StreamStatus, group: GroupStatus, summary: Reply, entries: Mapping[str, Reply]) -> GroupStatus:
    """Return a group with its oldest entries from the replies; ``entries`` are those after a position."""
    if _is_before(stream, group):
        undelivered = OldestEntry(stream.first_entry_id)
    else:
        undelivered = _undelivered(entries.get(group.last_delivered_id, ()))
    group = replace(group, delayed=0)
    said = asking.refusal(summary)
    if said is not None:
        return replace(group, oldest_undelivered=undelivered, oldest_pending=OldestEntry(why=said))
    pending = PendingSummary(0, None, None) if summary is None else pending_summary(summary)
    return replace(
        group,
        oldest_undelivered=undelivered,
        oldest_pending=OldestEntry(pending.first),
        unowned=pending.unowned,
        held=pending.held,
    )


_NAMED = 10  # largest number of groups that a message names

COUNT = 1000
"""Default limit of entries that are counted."""


async def read_group(line: Line, stream: str, name: str, *, count: int = COUNT) -> GroupSeen:
    """Read a group, its stream and its consumers."""
    seen = await read_one(line, stream)
    found = await count_lag(line, seen.streams[0], named(seen.streams[0], name), count)
    try:
        return GroupSeen(seen, found, tuple(await read_consumers(line, stream, name)))
    except asking.NotReadableError as error:
        return GroupSeen(seen, found, (), str(error))


def named(status: StreamStatus, name: str) -> GroupStatus:
    """Return the group of this name in a stream that was read; raise an error if it is missing."""
    if (refused := status.missing.get("groups")) is not None:
        raise asking.NotReadableError(f"{status.key}: its groups are not known: {refused}")
    for found in status.groups:
        if found.name == name:
            return found
    names = sorted({each.name for each in status.groups})
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    has = f"its groups are: {', '.join(names[:_NAMED])}{more}" if names else "it has none"
    raise asking.NotReadableError(f"the stream {status.key!r} has no group {name!r}; {has}")


async def read_consumers(line: Line, stream: str, name: str) -> list[ConsumerStatus]:
    """Return the consumers of a group sorted by name."""
    (reply,) = await asking.calls(line, [("XINFO", "CONSUMERS", stream, name)])
    rows = asking.checked(reply, stream, name)
    return sorted((consumer_status(stream, name, row) for row in rows), key=lambda found: found.name)


_ROWS = 100  # entries of one page
_BYTES = 8 << 20  # bytes of all pages


async def count_lag(line: Line, stream: StreamStatus, group: GroupStatus, limit: int = COUNT) -> GroupStatus:
    """Return the group with its lag counted if the server does not report it."""
    if group.lag.known or limit == 0:
        return group
    try:
        found, whole = await _after(line, stream.key, group.last_delivered_id, limit)
    # A user without permission to read entries gets all other figures, and the reason
    except asking.NotAllowedError as error:
        lag = group.lag
        return replace(group, lag=replace(lag, why=f"{lag.why}; its entries cannot be counted: {error}"))
    make = counted if whole else uncounted
    return replace(group, lag=make(stream, group, found))


async def _after(line: Line, key: str, entry: str, limit: int) -> tuple[int, bool]:
    """Return the number of entries after an id, and True if all were counted."""
    found, size = 0, 0
    start: str | None = f"({entry}" if order(entry) > (0, 0) else "-"
    while start is not None:
        (reply,) = await asking.calls(line, [("XRANGE", key, start, "+", "COUNT", _ROWS)])
        rows = asking.checked(reply, key)
        found += len(rows)
        size += sum(len(part) for row in rows for part in row[1])
        if len(rows) < _ROWS:
            return found, True
        if found >= limit or size > _BYTES:
            return found, False
        start = behind(rows[-1][0])
    return found, True


def stream_status(key: str, info: Reply, groups: Reply) -> StreamStatus:
    """Return a stream with its groups from XINFO's replies."""
    facts = asking.record(info)
    missing: dict[str, str] = {}
    for name in ("entries-added", "max-deleted-entry-id"):
        if name not in facts:
            missing[name] = "this server does not count it (Redis 7.0 and newer do)"
    bare = StreamStatus(
        key=key,
        length=facts["length"],
        last_id=text_of(facts["last-generated-id"]),
        first_entry_id=_id_of(facts.get("first-entry")),
        last_entry_id=_id_of(facts.get("last-entry")),
        entries_added=facts.get("entries-added"),
        max_deleted_id=_maybe_text(facts.get("max-deleted-entry-id")),
        missing=missing,
    )
    if (refused := asking.refusal(groups)) is not None:
        return replace(bare, missing=missing | {"groups": refused})
    return replace(bare, groups=tuple(_group_status(bare, asking.record(row)) for row in groups))


def _group_status(stream: StreamStatus, row: asking.Record) -> GroupStatus:
    delivered = text_of(row["last-delivered-id"])
    read = row.get("entries-read")
    return GroupStatus(
        stream=stream.key,
        name=text_of(row["name"]),
        consumers=row["consumers"],
        pending=row["pending"],
        last_delivered_id=delivered,
        entries_read=read,
        lag=lag_of(GroupPosition(stream, delivered, read, row.get("lag"), counts="lag" in row)),
    )


def consumer_status(stream: str, group: str, row: Sequence[Any]) -> ConsumerStatus:
    """Return a consumer from a row of XINFO CONSUMERS."""
    facts = asking.record(row)
    inactive = facts.get("inactive")
    return ConsumerStatus(
        stream=stream,
        group=group,
        name=text_of(facts["name"]),
        pending=facts["pending"],
        idle_ms=facts["idle"],
        inactive_ms=inactive if inactive is not None and inactive >= 0 else None,
        inactive_known=inactive is not None,
    )


def pending_summary(reply: Reply) -> PendingSummary:
    """Parse the short form of XPENDING; a released entry is in the total but under no consumer."""
    total, first, last, holders = reply
    held = {text_of(row[0]): int(row[1]) for row in holders or ()}
    held.pop("", None)  # on servers without XNACK, it stands for entries without a holder
    return PendingSummary(total, _maybe_text(first), _maybe_text(last), held, total - sum(held.values()))


def entry_view(stream: str, row: Sequence[Any]) -> EntryView:
    """Return an entry from a row of XRANGE."""
    flat = row[1]
    return EntryView(stream, text_of(row[0]), tuple(zip(flat[::2], flat[1::2], strict=True)))


def _id_of(entry: Sequence[Any] | None) -> str | None:
    return None if not entry else text_of(entry[0])


def _maybe_text(raw: bytes | None) -> str | None:
    return None if raw is None else text_of(raw)
