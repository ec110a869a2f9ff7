"""Streams and their groups: their names, and their state, in one round trip for a hundred of them.

The ages of a group's oldest entries are asked for where the group has any, by their ids and not by a scan. They are
asked with the next page of streams, so that they cost no round trip of their own.
"""

from collections.abc import Sequence
from dataclasses import replace

from millstream.client.cluster_line import require_whole
from millstream.client.delays import due
from millstream.client.delays.oldest import undelayed
from millstream.client.line import Command, Line, Reply
from millstream.console.model import replies
from millstream.console.model.names import order, text_of
from millstream.console.model.pending import PendingSummary
from millstream.console.model.streams import GroupStatus, OldestEntry, StreamsSeen, StreamStatus
from millstream.console.reading.asking import PATIENCE, calls, checked, explained, unreadable

STREAMS_A_TRIP = 200
"""Streams that are asked about in one round trip."""

_FIRST_TRIP = 50
"""Streams of the first trip, when the size of the entries is not known yet."""

_BULK = 4 << 20  # bytes of entries in one round trip, as far as they can be foreseen

_SCANNED = 1000  # keys that one SCAN looks at


async def names(line: Line, pattern: str | None = None, *, part: bool = False) -> list[str]:
    """Keys of all streams, in their order; on a cluster, of all nodes."""
    found: set[bytes] = set()
    fits: tuple[str, ...] = () if pattern is None else ("MATCH", pattern)
    nodes = await line.nodes()
    if not part:
        await require_whole(nodes)
    for node in nodes:
        cursor = b"0"
        while True:
            (reply,) = await calls(node, [("SCAN", cursor, *fits, "COUNT", _SCANNED, "TYPE", "stream")])
            cursor, keys = checked(reply, "SCAN")
            found.update(keys)
            if cursor == b"0":
                break
    return sorted(map(text_of, found))


async def overview(
    line: Line, pattern: str | None = None, *, limit: int | None = None, ages: bool = True
) -> StreamsSeen:
    """Streams with their groups."""
    keys = await names(line, pattern)
    seen = await read(line, keys[:limit], ages=ages)
    # removed since it was named: it was not asked for, and nothing is wrong with it
    refused = {key: why for key, why in seen.refused.items() if why != explained("no such key", key)}
    return replace(seen, refused=refused, more=limit is not None and len(keys) > limit)


async def one(line: Line, key: str) -> StreamStatus:
    """One stream with its groups and their ages."""
    return (await read_one(line, key)).streams[0]


async def read_one(line: Line, key: str) -> StreamsSeen:
    """The same, with the moment it was read."""
    seen = await read(line, [key])
    if not seen.streams:
        raise unreadable(seen.refused[key], key)
    return seen


async def read(line: Line, keys: Sequence[str], *, ages: bool = True) -> StreamsSeen:
    """Streams of these keys; a key that is not a stream is in ``refused``."""
    at_ms = line.wall_time()
    found: list[StreamStatus] = []
    refused: dict[str, str] = {}
    before: list[StreamStatus] = []  # the page whose ages are asked for with the next one
    at, size = 0, _FIRST_TRIP
    while at < len(keys) or before:
        page = keys[at : at + size]
        aged = _Ages(before) if ages else _Ages(())
        answers = await calls(line, [*_about(page), *aged.commands])
        split = 2 * len(page)
        found += [await _undelayed(line, each) for each in aged.joined(answers[split:])] if ages else before
        before = _statuses(page, answers[:split], refused)
        at += len(page)
        size = _fitting(len(page), answers[:split:2])
    return StreamsSeen(at_ms, tuple(found), refused)


def _fitting(asked: int, infos: Sequence[Reply]) -> int:
    """Streams of the next round trip, by those of the one before; the replies bring first and last entries."""
    entries = [part for info in infos if isinstance(info, list) for part in info if isinstance(part, list) and part]
    bulk = sum(len(value) for entry in entries for value in entry[1])
    return STREAMS_A_TRIP if bulk <= _BULK else max(min(asked * _BULK // bulk, STREAMS_A_TRIP), 1)


def _about(keys: Sequence[str]) -> list[Command]:
    return [command for key in keys for command in (("XINFO", "STREAM", key), ("XINFO", "GROUPS", key))]


def _statuses(keys: Sequence[str], answers: Sequence[Reply], refused: dict[str, str]) -> list[StreamStatus]:
    """The streams that the replies tell of; why there is none goes to ``refused``."""
    found = []
    for key, info, groups in zip(keys, answers[::2], answers[1::2], strict=True):
        said = replies.refusal(info)
        if said is None:
            found.append(replies.stream_status(key, info, groups))
        else:
            refused[key] = explained(said, key)
    return found


class _Ages:
    """The second question about some streams: the oldest entries of each group."""

    def __init__(self, streams: Sequence[StreamStatus]) -> None:
        self._streams = streams
        # Commands to send
        self.commands: list[Command] = [
            command for stream in streams for group in stream.groups for command in _oldest_of(stream, group)
        ]

    def joined(self, answers: Sequence[Reply]) -> list[StreamStatus]:
        """The streams, with what the replies say of their groups."""
        left = iter(answers)
        found = []
        for stream in self._streams:
            groups = []
            for group in stream.groups:
                summary, delayed = (next(left), next(left)) if group.pending else (None, 0)
                entries = next(left) if _is_behind(stream, group) else []
                groups.append(replace(_with_ages(group, summary, entries), delayed=_number(delayed)))
            found.append(replace(stream, groups=tuple(groups)))
        return found


def _number(reply: Reply) -> int | None:
    return reply if isinstance(reply, int) else None


async def _undelayed(line: Line, stream: StreamStatus) -> StreamStatus:
    """A stream whose groups have as their oldest pending entry one that is not delayed; most have no delays at all."""
    if not any(group.delayed for group in stream.groups):
        return stream
    return replace(stream, groups=tuple([await _without_delayed(line, group) for group in stream.groups]))


async def _without_delayed(line: Line, group: GroupStatus) -> GroupStatus:
    if not group.delayed:
        return group
    found = await undelayed(line.near(group.stream), group.stream, group.name, patience=PATIENCE)
    if found is None:
        return group
    oldest = OldestEntry(None if found.oldest is None else text_of(found.oldest))
    return replace(group, oldest_pending=oldest, delayed=min(found.waiting, group.pending))


def _oldest_of(stream: StreamStatus, group: GroupStatus) -> list[Command]:
    commands: list[Command] = []
    if group.pending:
        commands += [("XPENDING", stream.key, group.name), ("ZCARD", due.key(stream.key, group.name))]
    if _is_behind(stream, group):
        commands.append(("XRANGE", stream.key, f"({group.last_delivered_id}", "+", "COUNT", 1))
    return commands


def _is_behind(stream: StreamStatus, group: GroupStatus) -> bool:
    last = stream.last_entry_id
    return last is not None and order(last) > order(group.last_delivered_id)


def _with_ages(group: GroupStatus, summary: Reply, entries: Reply) -> GroupStatus:
    """A group with its oldest entries."""
    said = replies.refusal(entries)
    undelivered = OldestEntry(text_of(entries[0][0]) if entries else None) if said is None else OldestEntry(why=said)
    said = replies.refusal(summary)
    if said is not None:
        return replace(group, oldest_undelivered=undelivered, oldest_pending=OldestEntry(why=said))
    pending = PendingSummary(0, None, None) if summary is None else replies.pending_summary(summary)
    return replace(
        group,
        oldest_undelivered=undelivered,
        oldest_pending=OldestEntry(pending.first),
        unowned=pending.unowned,
        held=pending.held,
    )
