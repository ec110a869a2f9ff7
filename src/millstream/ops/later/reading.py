"""Reading the schedules of streams from the movers' keys. Any client may have written them, in any size."""

from collections.abc import Iterable, Sequence

from millstream.client.later import schedule
from millstream.client.later.schedule import INDEX
from millstream.client.line import Command, Line, Reply
from millstream.ops.asking import NotReadableError, calls, explained, is_missing, refusal, unreadable
from millstream.ops.later.status import ScheduleStatus, StreamSchedules
from millstream.ops.payloads.shown import LIGHT
from millstream.ops.streams.partitioned import candidates, each_part, read_layouts
from millstream.ops.words import text_of
from millstream.texts import size_text

WHOLE = 64 << 20
"""Limit of a content in bytes, for a schedule that is read by id."""

_AT_ONCE = 100  # streams read in one round trip
_PATTERN = "millstream:{*}:later:*due"


def server_ms(reply: Reply, key: str) -> int:
    """Return the server's wall time in milliseconds, from the reply to TIME."""
    seconds, micros = answer(reply, key)
    return int(seconds) * 1000 + int(micros) // 1000


def answer(reply: Reply, key: str) -> Reply:
    """Return the reply about a schedules key; raise an error if it is a refusal."""
    said = refusal(reply)
    if said is None:
        return reply
    raise unreadable(f"{key}: {said}", key)


async def scheduled_streams(line: Line, *, search: bool = False) -> list[str]:
    """Return the streams with present or past schedules; a search also finds those missing in the index."""
    (reply,) = await calls(line.near(INDEX), [("SMEMBERS", INDEX)])
    found = {text_of(name) for name in answer(reply, INDEX)}
    for node in await line.nodes() if search else ():
        cursor: bytes | int = 0
        while cursor != b"0":
            (page,) = await calls(node, [("SCAN", cursor, "MATCH", _PATTERN, "COUNT", 1000)])
            cursor, keys = answer(page, "SCAN")
            found |= {stream for key in keys if (stream := _stream_of(text_of(key))) is not None}
    return sorted(found)


def _stream_of(key: str) -> str | None:
    """Return the stream of a key with due times; None for another key."""
    tag, _, rest = key.removeprefix("millstream:{").partition("}:later:")
    for stream in (tag, rest.removesuffix(":due")):
        if schedule.due_key(stream) == key:
            return stream
    return None


async def counts_by_stream(line: Line, streams: Sequence[str]) -> list[StreamSchedules]:
    """Count schedules as :func:`read_counts` does, with the partitions of a stream summed up."""
    layouts = await read_layouts(line, candidates(streams))
    whole = {key: stream for stream, layout in layouts.items() for key in layout.every_key}
    parts: dict[str, list[StreamSchedules]] = {}
    for one in await read_counts(line, streams):
        parts.setdefault(whole.get(one.stream, one.stream), []).append(one)
    return [joined(stream, each) for stream, each in parts.items()]


async def read_counts(line: Line, streams: Iterable[str]) -> list[StreamSchedules]:
    """Return the number of schedules and the first due time of each stream; skip streams without schedules."""
    every, found = list(streams), list[StreamSchedules]()
    for start in range(0, len(every), _AT_ONCE):
        page = every[start : start + _AT_ONCE]
        asked: list[Command] = [("TIME",)]
        for stream in page:
            key = schedule.due_key(stream)
            asked += [("ZCARD", key), ("ZRANGE", key, 0, 0, "WITHSCORES")]
        time, *replies = await calls(line, asked)
        now = server_ms(time, "TIME")
        found += [_counted(stream, now, *replies[2 * at : 2 * at + 2]) for at, stream in enumerate(page)]
    return [one for one in found if one.total or one.why]


def _counted(stream: str, now: int, count: Reply, first: Reply) -> StreamSchedules:
    why = refusal(count) or refusal(first)
    if why is not None:
        return StreamSchedules(stream, now, why=explained(why, schedule.due_key(stream)))
    at = schedule.unpacked(stream, b"", first[1], None).at_ms if first else None
    return StreamSchedules(stream, now, int(count), at)


async def read_schedules(line: Line, stream: str, count: int, most: int = LIGHT) -> StreamSchedules:
    """Read the first schedules of a stream; a content larger than ``most`` bytes is not read."""
    near, key = line.near(stream), schedule.due_key(stream)
    time, total, flat = await calls(near, [("TIME",), ("ZCARD", key), ("ZRANGE", key, 0, count - 1, "WITHSCORES")])
    rows = answer(flat, key)
    found = await _with_contents(near, stream, list(zip(rows[::2], rows[1::2], strict=True)), most)
    first = found[0].at_ms if found else None
    return StreamSchedules(stream, server_ms(time, key), int(answer(total, key)), first, found)


async def scheduling_keys(line: Line, stream: str) -> tuple[str, ...]:
    """Return the keys of a partitioned stream that may have schedules; none if it is not partitioned.

    A schedule may be the first entry of its partition. Firings of recurring schedules belong to the stream's own name.
    """
    layout = (await read_layouts(line, [stream])).get(stream)
    return () if layout is None else (*layout.every_key, stream)


async def read_all_schedules(line: Line, stream: str, count: int) -> StreamSchedules:
    """Read the first schedules of a stream, over all partitions if it is partitioned."""
    keys = await scheduling_keys(line, stream)
    seen = joined(stream, await each_part(line, stream, lambda key: read_schedules(line, key, count), keys), count)
    if not (seen.total or keys) and await is_missing(line, stream):  # a stream's first entry may be a scheduled one
        raise NotReadableError(explained("no such key", stream))
    return seen


async def find_schedule(line: Line, stream: str, ident: str) -> StreamSchedules | None:
    """Find a schedule by id, with the partition to which it belongs; None if it does not wait."""
    keys = await scheduling_keys(line, stream)
    found = await each_part(line, stream, lambda key: named_schedules(line, key, [ident]), keys)
    return next((one for one in found if one.schedules), None)


def joined(stream: str, parts: Sequence[StreamSchedules], count: int = 0) -> StreamSchedules:
    """Join the schedules of partitions to those of their stream."""
    if len(parts) == 1 and parts[0].stream == stream:
        return parts[0]
    every = sorted((one for part in parts for one in part.schedules), key=lambda one: one.at_ms)
    first = min((part.first_ms for part in parts if part.first_ms is not None), default=None)
    why = next((part.why for part in parts if part.why), "")
    return StreamSchedules(
        stream, max(part.at_ms for part in parts), sum(part.total for part in parts), first, tuple(every[:count]), why
    )


async def named_schedules(line: Line, stream: str, ids: Sequence[str], most: int = WHOLE) -> StreamSchedules:
    """Read the schedules with these ids; ids that do not wait are left out."""
    near, key = line.near(stream), schedule.due_key(stream)
    time, total, scores = await calls(near, [("TIME",), ("ZCARD", key), ("ZMSCORE", key, *ids)])
    rows = zip(ids, answer(scores, key), strict=True)
    waiting = [(one.encode(errors="surrogateescape"), score) for one, score in rows if score is not None]
    found = await _with_contents(near, stream, waiting, most)
    return StreamSchedules(stream, server_ms(time, key), int(answer(total, key)), None, found)


async def _with_contents(
    line: Line, stream: str, rows: Sequence[tuple[bytes, bytes]], most: int
) -> tuple[ScheduleStatus, ...]:
    """Return schedules with their contents, except contents that are too large."""
    key = schedule.content_key(stream)
    sizes = [int(answer(reply, key)) for reply in await calls(line, [("HSTRLEN", key, ident) for ident, _ in rows])]
    small = [ident for (ident, _), size in zip(rows, sizes, strict=True) if size <= most]
    (contents,) = await calls(line, [("HMGET", key, *small)]) if small else ([],)
    known = dict(zip(small, answer(contents, key), strict=True))
    return tuple(
        _schedule(stream, ident, score, known.get(ident), size)
        for (ident, score), size in zip(rows, sizes, strict=True)
    )


def _schedule(stream: str, ident: bytes, score: bytes, content: bytes | None, size: int) -> ScheduleStatus:
    one = schedule.unpacked(stream, ident, score, content)
    fields = tuple(zip(one.fields[::2], one.fields[1::2], strict=len(one.fields) % 2 == 0))
    why = ""
    if content is None:
        why = f"its content is not read: it has {size_text(size)}" if size else "it has no content: it is dropped"
    elif not fields or len(one.fields) % 2:
        why, fields = "its content is damaged: no mover can add it", ()
    return ScheduleStatus(
        stream, one.id, one.at_ms, text_of(score), size, content, fields, one.trim, one.expires_ms, why
    )  # fmt: skip
