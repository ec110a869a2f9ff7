"""Reading one job from its entry, groups and results. Any client may have written these, so all is checked."""

from itertools import chain

from millstream.client.jobs import record
from millstream.client.line import Command, Line
from millstream.ops.asking import NotReadableError, calls, checked, refusal
from millstream.ops.entries.reading import find
from millstream.ops.entries.status import EntryFound
from millstream.ops.jobs.status import GroupJob, JobSeen
from millstream.times import score_ms

_STATES = {"undelivered": "queued", "pending": "running", "passed": "unknown"}


async def read_job(line: Line, stream: str, entry: str) -> JobSeen:
    """Read the job of an entry by id."""
    return await job_of(line, await find(line, stream, entry))


async def job_of(line: Line, found: EntryFound) -> JobSeen:
    """Read the job of an entry that was already read."""
    stream, entry = found.stream, found.id
    near, key = line.near(stream), record.result_key(stream, entry)
    commands: list[Command] = [("TIME",), ("HGETALL", key)]
    commands += [("ZSCORE", record.cancelled_key(stream, one.group), entry) for one in found.standings]
    time, flat, *marks = await calls(near, commands)
    rows = record.rows_of(checked(flat, key))
    wanted = None
    if found.entry is not None:
        wanted = record.take_trailer(list(chain.from_iterable(found.entry.fields)))[2]
    if wanted is None and not rows:
        gone = "is gone" if found.entry is None else "is not a job: it was published without result="
        raise NotReadableError(f"the entry {entry} of {stream!r} {gone}, and no result of it is kept")
    seconds, micros = checked(time, "TIME")
    groups = []
    for one, mark in zip(found.standings, marks, strict=True):
        end = record.parse_result(rows.get(one.group))
        state = _STATES[one.state] if end is None else str(end["state"])
        progress = record.parse_progress(rows.get(f"progress:{one.group}"))
        since = None if mark is None or refusal(mark) or end is not None else score_ms(mark)
        groups.append(GroupJob(one.group, state, end, progress, since))
    now = int(seconds) * 1000 + int(micros) // 1000
    return JobSeen(stream, entry, now, None if wanted is None else wanted.keep_ms, tuple(groups))
