"""List, cancel and move schedules, over a line to their server."""

from collections.abc import AsyncIterator, Sequence

from millstream.client.later import schedule
from millstream.client.later.schedule import INDEX, SCRIPT, Schedule, When
from millstream.client.line import Line

_PAGE = 200


async def streams(line: Line) -> list[str]:
    """Return the streams that have, or had, schedules."""
    found = await line.call("SMEMBERS", INDEX)
    return sorted(name.decode(errors="surrogateescape") for name in found)


async def listed(line: Line, stream: str, limit: int | None = None) -> AsyncIterator[Schedule]:
    """Yield the schedules of a stream in the order of their due times.

    Args:
        line: to the stream's server.
        stream: key of the stream.
        limit: most schedules; None for all.
    """
    seen: set[bytes] = set()
    lowest, left = b"-inf", limit
    while left is None or left > 0:
        # Pages go by time, not by rank: a schedule that is moved meanwhile shifts the ranks of later ones
        size = _PAGE + len(seen)
        flat = await line.call(
            "ZRANGEBYSCORE", schedule.due_key(stream), lowest, "+inf", "WITHSCORES", "LIMIT", 0, size
        )
        rows = [row for row in zip(flat[::2], flat[1::2], strict=True) if row[0] not in seen]
        if not rows:
            return
        contents = await line.call("HMGET", schedule.content_key(stream), *(row[0] for row in rows))
        for (ident, at), content in zip(rows, contents, strict=True):
            if content is not None:  # None if it was removed meanwhile
                yield schedule.unpacked(stream, ident, at, content)
                left = None if left is None else left - 1
                if left == 0:
                    return
        seen = {ident for ident, at in zip(flat[::2], flat[1::2], strict=True) if at == rows[-1][1]}
        lowest = rows[-1][1]
        if len(flat) // 2 < size:
            return


async def found(line: Line, stream: str, ids: Sequence[str]) -> list[Schedule]:
    """Return the schedules with these ids that are still waiting."""
    names = [ident.encode(errors="surrogateescape") for ident in ids]
    if not names:
        return []
    scores, contents = await line.calls(
        (("ZMSCORE", schedule.due_key(stream), *names), ("HMGET", schedule.content_key(stream), *names))
    )
    for reply in (scores, contents):
        if isinstance(reply, Exception):
            raise reply
    rows = zip(names, scores, contents, strict=True)
    return [schedule.unpacked(stream, name, score, content) for name, score, content in rows if score is not None]


async def cancel(line: Line, stream: str, ids: Sequence[str]) -> list[str]:
    """Remove schedules; return the ids that were still waiting."""
    return await _changed(line, stream, "cancel", *ids)


async def move(line: Line, stream: str, ids: Sequence[str], to: When) -> list[str]:
    """Give schedules another due time; return the ids that were still waiting."""
    return await _changed(line, stream, "time", *to.words, *ids)


async def _changed(line: Line, stream: str, *words: str | int) -> list[str]:
    reply = await SCRIPT.call(line, schedule.keys(stream, schedule.mover_key(stream)), words)
    return [ident.decode(errors="surrogateescape") for ident in reply]
