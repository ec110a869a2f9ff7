"""Counting the entries that a group was not delivered, where the server does not know: page by page, up to a bound.

Every page carries the entries themselves, since no command counts without them. So it ends after a number of entries,
and after a number of bytes.
"""

from contextlib import suppress
from dataclasses import replace

from millstream.client.line import Line
from millstream.client.ranges import behind
from millstream.console.model.check import CheckBounds, undecided
from millstream.console.model.names import order
from millstream.console.model.repair import counted, uncounted
from millstream.console.model.streams import GroupStatus, StreamsSeen, StreamStatus
from millstream.console.reading.asking import NotAllowedError, NotReadableError, calls, checked

COUNT = 1000
"""Entries that are counted, unless asked otherwise."""

_ROWS = 100  # entries of one page
_BYTES = 8 << 20  # bytes of all pages
_GROUPS = 20  # groups that one check counts: a server that knows no lag may have thousands


async def count_lag(line: Line, stream: StreamStatus, group: GroupStatus, limit: int = COUNT) -> GroupStatus:
    """The group, its lag counted where the server does not know it; one that is known stays as it is."""
    if group.lag.known or limit == 0:
        return group
    try:
        found, whole = await _after(line, stream.key, group.last_delivered_id, limit)
    # a user that may not read entries sees all else, and the reason why this is not counted
    except NotAllowedError as error:
        lag = group.lag
        return replace(group, lag=replace(lag, why=f"{lag.why}; its entries cannot be counted: {error}"))
    make = counted if whole else uncounted
    return replace(group, lag=make(stream, group, found))


async def count_undecided(
    line: Line, seen: StreamsSeen, group: str | None, bounds: CheckBounds, most: int
) -> StreamsSeen:
    """The streams, the lags that thresholds do not decide counted: so far that they do."""
    limit = min(max(bounds.warning or 0, bounds.critical or 0), most)
    wanted = undecided(seen, group, bounds)[:_GROUPS]
    streams = []
    for stream in seen.streams:
        groups = list(stream.groups)
        for at, one in enumerate(groups):
            if one in wanted:
                with suppress(NotReadableError):  # gone meanwhile: as it was seen
                    groups[at] = await count_lag(line, stream, one, limit)
        streams.append(replace(stream, groups=tuple(groups)))
    return replace(seen, streams=tuple(streams))


async def _after(line: Line, key: str, entry: str, limit: int) -> tuple[int, bool]:
    """The number of entries after this one, and True if that is all of them."""
    found, size = 0, 0
    start: str | None = f"({entry}" if order(entry) > (0, 0) else "-"
    while start is not None:
        (reply,) = await calls(line, [("XRANGE", key, start, "+", "COUNT", _ROWS)])
        rows = checked(reply, key)
        found += len(rows)
        size += sum(len(part) for row in rows for part in row[1])
        if len(rows) < _ROWS:
            return found, True
        if found >= limit or size > _BYTES:
            return found, False
        start = behind(rows[-1][0])
    return found, True
