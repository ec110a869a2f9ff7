"""Rates between two readings of the same server: entries a second, and the change of a lag.

A stream that was deleted and created again, or a group that was set back, has no rate between its readings. Pure.
"""

from dataclasses import dataclass

from millstream.console.model.streams import GroupStatus, StreamsSeen, StreamStatus


@dataclass(frozen=True, slots=True)
class GroupRate:
    """The rates of a group between two readings."""

    added: float | None  # Entries a second that came to the stream; None when the server does not count them
    # Entries a second that the group was delivered; None as above, and where its position was set back
    delivered: float | None
    # Entries by which the lag grew, less than 0 where it shrank; None where one of both is not known
    lag_change: int | None
    # Until nothing is left at this rate; 0 when nothing is, None when it does not shrink or is not known
    drain_ms: int | None


def added_rate(before: StreamStatus, now: StreamStatus, ms: int) -> float | None:
    """Entries a second that came to a stream; None where that is not known."""
    if before.entries_added is None or now.entries_added is None or ms <= 0:
        return None
    return None if now.entries_added < before.entries_added else (now.entries_added - before.entries_added) * 1000 / ms


def rates(before: StreamsSeen, now: StreamsSeen) -> tuple[dict[str, float], dict[tuple[str, str], GroupRate]]:
    """Entries a second that came to each stream, by key; and the rates of each group, by stream and name.

    Streams and groups that are not in both readings, or have no rate, are left out.
    """
    ms = now.at_ms - before.at_ms
    earlier = {stream.key: stream for stream in before.streams}
    streams: dict[str, float] = {}
    groups: dict[tuple[str, str], GroupRate] = {}
    for stream in now.streams:
        then = earlier.get(stream.key)
        if then is None:
            continue
        added = added_rate(then, stream, ms)
        if added is not None:
            streams[stream.key] = added
        known = {group.name: group for group in then.groups}
        for group in stream.groups:
            if group.name in known:
                groups[stream.key, group.name] = _group_rate(known[group.name], group, added, ms)
    return streams, groups


def _group_rate(before: GroupStatus, now: GroupStatus, added: float | None, ms: int) -> GroupRate:
    """The rates of a group."""
    read, since = now.entries_read, before.entries_read
    delivered = None if read is None or since is None or read < since or ms <= 0 else (read - since) * 1000 / ms
    return GroupRate(added, delivered, *_drain(before, now, ms))


def _drain(before: GroupStatus, now: GroupStatus, ms: int) -> tuple[int | None, int | None]:
    """The change of a lag, and the milliseconds until nothing is left."""
    if now.lag.entries is None or before.lag.entries is None:
        return None, None
    change = now.lag.entries - before.lag.entries
    if now.lag.entries == 0:
        return change, 0
    return change, round(now.lag.entries * ms / -change) if change < 0 and ms > 0 else None
