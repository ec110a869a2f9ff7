"""Reading one job from its entry, groups and results. Any client may have written these, so all is checked."""

from collections.abc import Sequence
from itertools import chain

from millstream.client.jobs import record
from millstream.client.line import Command, Line
from millstream.ops.asking import NotReadableError, calls, checked, refusal
from millstream.ops.entries.reading import find
from millstream.ops.entries.status import EntryFound
from millstream.ops.jobs.status import GroupJob, JobSeen
from millstream.times import score_ms

_LARGEST = record.VALUE_BYTES + 65_536
"""Limit of a result's record in bytes: no worker writes a larger one, but another client may."""

_STATES = {"undelivered": "queued", "pending": "running", "passed": "unknown"}


async def read_job(line: Line, stream: str, entry: str) -> JobSeen:
    """Read the job of an entry by id."""
    return await job_of(line, await find(line, stream, entry))


async def job_of(line: Line, found: EntryFound) -> JobSeen:
    """Read the job of an entry that was already read."""
    stream, entry = found.stream, found.id
    near, key, names = line.near(stream), record.result_key(stream, entry), [one.group for one in found.standings]
    commands: list[Command] = [("TIME",), ("EXISTS", key)]
    commands += [("ZSCORE", record.cancelled_key(stream, group), entry) for group in names]
    time, kept, *marks = await calls(near, commands)
    rows, large = await read_results(near, stream, entry, names)
    wanted = None
    if found.entry is not None:
        wanted = record.take_trailer(list(chain.from_iterable(found.entry.fields)))[2]
    if wanted is None and not checked(kept, key):
        gone = "is gone" if found.entry is None else "is not a job: it was published without result="
        raise NotReadableError(f"the entry {entry} of {stream!r} {gone}, and no result of it is kept")
    seconds, micros = checked(time, "TIME")
    groups = []
    for one, mark in zip(found.standings, marks, strict=True):
        end = record.parse_result(rows.get(one.group))
        state = _STATES[one.state] if end is None else str(end["state"])
        progress = record.parse_progress(rows.get(f"progress:{one.group}"))
        since = None if mark is None or refusal(mark) or end is not None else score_ms(mark)
        groups.append(GroupJob(one.group, state, end, progress, since, large.get(one.group)))
    now = int(seconds) * 1000 + int(micros) // 1000
    return JobSeen(stream, entry, now, None if wanted is None else wanted.keep_ms, tuple(groups))


async def read_results(
    near: Line, stream: str, entry: str, groups: Sequence[str]
) -> tuple[dict[str, bytes], dict[str, int]]:
    """Return the rows of an entry's result by name, and the sizes of those that are too large to be read by group."""
    key = record.result_key(stream, entry)
    names = [name for group in groups for name in (group, f"progress:{group}")]
    sizes = [checked(size, key) for size in await calls(near, [("HSTRLEN", key, name) for name in names])]
    fitting = [name for name, size in zip(names, sizes, strict=True) if 0 < size <= _LARGEST]
    values = checked((await calls(near, [("HMGET", key, *fitting)]))[0], key) if fitting else []
    large = {name.removeprefix("progress:"): size for name, size in zip(names, sizes, strict=True) if size > _LARGEST}
    return {name: value for name, value in zip(fitting, values, strict=True) if value is not None}, large
