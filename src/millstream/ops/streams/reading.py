"""Reading streams with their groups and consumers, in one round trip for up to 320 streams.

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
from millstream.client.delays.oldest import undelayed
from millstream.client.line import Command, Line, Reply
from millstream.client.ranges import behind
from millstream.ops import asking
from millstream.ops.streams.status import (
    ConsumerStatus,
    GroupSeen,
    GroupStatus,
    OldestEntry,
    PendingSummary,
    StreamsSeen,
    StreamStatus,
    counted,
    lag_of,
    position_in,
    uncounted,
)
from millstream.ops.words import EntryView, order, text_of

STREAMS_A_TRIP = 320
"""Limit of streams that are read in one round trip."""

_FIRST_TRIP = 50
"""Limit of streams in the first round trip, while the size of entries is unknown."""

_DELAYED_A_TRIP = 20
"""Limit of groups whose delayed entries are read at once, up to a thousand of each."""

_BULK = 4 << 20  # expected size of the entries in one round trip, in bytes

HISTORY = "millstream:{history}:"
"""Beginning of the keys of a server's history, see ``ops/history``."""

_SCANNED = 4000  # keys that one SCAN examines; a server examines as many in about a millisecond


async def names(line: Line, pattern: str | None = None, *, part: bool = False) -> list[str]:
    """Return the sorted keys of all streams; on a cluster, of all nodes. A history is listed only by a pattern."""
    fits: tuple[str, ...] = () if pattern is None else ("MATCH", pattern)
    nodes = await line.nodes()
    scans = [_scanned(node, fits) for node in nodes]
    # In one round trip with the first SCAN
    _, parts = await asyncio.gather(require_whole([] if part else nodes), asyncio.gather(*scans))
    found = {key for keys in parts for key in keys}
    return sorted(key for key in map(text_of, found) if pattern or not key.startswith(HISTORY))


async def _scanned(node: Line, fits: Sequence[str]) -> set[bytes]:
    """Return the keys of one node's streams."""
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        (reply,) = await asking.calls(node, [("SCAN", cursor, *fits, "COUNT", _SCANNED, "TYPE", "stream")])
        cursor, keys = asking.checked(reply, "SCAN")
        found.update(keys)
        if cursor == b"0":
            return found


async def overview(line: Line, pattern: str | None = None, *, limit: int | None = None) -> StreamsSeen:
    """Read streams with their groups, by pattern."""
    keys = await names(line, pattern)
    seen = await read(line, keys[:limit])
    # A key that was removed after its name was read is not an error
    refused = {key: why for key, why in seen.refused.items() if why != asking.explained("no such key", key)}
    return replace(seen, refused=refused, more=limit is not None and len(keys) > limit)


async def one(line: Line, key: str) -> StreamStatus:
    """Read one stream with its groups and their ages."""
    return (await read_one(line, key)).streams[0]


async def read_one(line: Line, key: str) -> StreamsSeen:
    """Read one stream with its groups, their ages and the time of the reading."""
    seen = await read(line, [key])
    if not seen.streams:
        raise asking.unreadable(seen.refused[key], key)
    return seen


async def read(line: Line, keys: Sequence[str], *, ages: bool = True) -> StreamsSeen:
    """Read the streams of these keys; a key that is not a stream is in ``refused``."""
    at_ms = line.wall_time()
    found: list[StreamStatus] = []
    refused: dict[str, str] = {}
    delays: set[str] = set()  # streams that may have delayed entries
    before: list[StreamStatus] = []  # page whose ages are read together with the next page
    at, size = 0, _FIRST_TRIP
    while at < len(keys) or before:
        page = keys[at : at + size]
        aged = _Ages(before) if ages else _Ages(())
        answers = await asking.calls(line, [*_about(page), *aged.commands])
        split = 2 * len(page)
        found += aged.joined(answers[split:], delays) if ages else before
        before = _statuses(page, answers[:split], refused)
        at += len(page)
        size = _fitting(len(page), answers[:split:2])
    return StreamsSeen(at_ms, tuple(await _without_delays(line, found, delays)), refused)


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

    def __init__(self, streams: Sequence[StreamStatus]) -> None:
        self._streams = streams
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
            if held
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
        delays |= {stream.key for stream, held in zip(self._streams, self._held, strict=True) if held and next(left)}
        return found


def _to_look_up(stream: StreamStatus) -> list[GroupStatus]:
    """Return the groups whose oldest undelivered entry is not known from the stream alone."""
    return [group for group in stream.groups if _is_behind(stream, group) and not _is_before(stream, group)]


def _is_before(stream: StreamStatus, group: GroupStatus) -> bool:
    first = stream.first_entry_id
    return first is not None and order(first) > order(group.last_delivered_id)


async def _without_delays(line: Line, streams: Sequence[StreamStatus], delays: Collection[str]) -> list[StreamStatus]:
    """Return streams with delayed entries counted, and excluded from each group's oldest pending entry.

    Most streams have no due times. A server may refuse to say that; then each group is asked alone.
    """
    asked = [(one.key, group) for one in streams if one.key in delays for group in one.groups if group.pending]
    sizes = await asking.calls(line, [("ZCARD", due.key(key, group.name)) for key, group in asked])
    known = {(key, group.name): size for (key, group), size in zip(asked, map(_number, sizes), strict=True)}
    late = [replace(group, delayed=known[key, group.name]) for key, group in asked if known[key, group.name]]
    done: dict[tuple[str, str], GroupStatus] = {}
    for at in range(0, len(late), _DELAYED_A_TRIP):
        page = await asyncio.gather(*(_without_delayed(line, group) for group in late[at : at + _DELAYED_A_TRIP]))
        done |= {(group.stream, group.name): group for group in page}

    def settled(group: GroupStatus) -> GroupStatus:
        place = (group.stream, group.name)
        return done.get(place) or replace(group, delayed=known.get(place, group.delayed))

    return [replace(one, groups=tuple(map(settled, one.groups))) if one.key in delays else one for one in streams]


def _number(reply: Reply) -> int | None:
    return reply if isinstance(reply, int) else None


async def _without_delayed(line: Line, group: GroupStatus) -> GroupStatus:
    found = await undelayed(line.near(group.stream), group.stream, group.name, patience=asking.PATIENCE)
    if found is None:
        return group
    oldest = OldestEntry(None if found.oldest is None else text_of(found.oldest))
    return replace(group, oldest_pending=oldest, delayed=min(found.waiting, group.pending))


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
        lag=lag_of(position_in(stream, delivered, read, row.get("lag"), counts="lag" in row)),
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
