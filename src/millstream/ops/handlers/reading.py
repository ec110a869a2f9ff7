"""Reading the handlers of live workers, and the facts about one entry's runs that a server holds.

Nothing is read without a limit: the timeline looks for a dead letter among :data:`LETTERS` letters at each end, and for
changes by people among :data:`CHANGES`. If it stopped there, it says so.
"""

from millstream.client.dead_letter.letter import dead_key
from millstream.client.dead_letter.put_back import stored
from millstream.client.jobs import record
from millstream.client.line import Command, Line
from millstream.client.slots import beside
from millstream.errors import Disconnected, MillstreamError
from millstream.ops import audit
from millstream.ops.asking import NotReadableError, calls, refusal
from millstream.ops.entries.reading import find
from millstream.ops.handlers.status import HandlersSeen, handlers_of
from millstream.ops.handlers.timeline import FoundRuns, RunTimeline, timeline_of
from millstream.ops.jobs.reading import read_results
from millstream.ops.schedules.reading import read_recurring
from millstream.ops.schedules.status import RecurringStatus
from millstream.ops.words import milliseconds
from millstream.ops.workers.reading import read_workers
from millstream.ops.workers.status import within

LETTERS = 100
"""Number of dead letters after the entry's publication, and of the newest ones, that the timeline looks at."""

CHANGES = 200
"""Number of changes by people, the newest first, that the timeline looks at."""

_SCHEDULES = 500  # largest number of recurring schedules that are looked at


async def read_handlers(line: Line, *, cut: bool = False) -> HandlersSeen:
    """Read the handlers of all live workers, with the recurring schedules of their streams; ``cut`` for a page."""
    workers = await read_workers(line)
    workers = within(workers) if cut else workers
    schedules, why = tuple[RecurringStatus, ...](), None
    if workers.workers:
        try:
            schedules = (await read_recurring(line, _SCHEDULES)).schedules
        except Disconnected:
            raise
        except MillstreamError as error:
            why = str(error)
    past = frozenset(row for one in workers.ended for row in one.handlers)
    return HandlersSeen(workers.at_ms, handlers_of(workers, schedules), workers.why, why, len(workers.strange), past)


async def read_timeline(line: Line, key: str, entry: str) -> RunTimeline:
    """Read the runs of one entry in each group of its stream."""
    found = await find(line, key, entry)
    groups, dead = [one.group for one in found.standings], dead_key(key)
    near = line.near(key)
    commands: list[Command] = [
        *(("HGET", beside(key, "tries", group), entry) for group in groups),
        *(("ZSCORE", record.cancelled_key(key, group), entry) for group in groups),
    ]
    rest = await calls(near, commands)
    try:
        results, large = await read_results(near, key, entry, groups)
    except NotReadableError as error:
        results, large, unreadable = {}, {}, [f"The results: {error}"]
    else:
        unreadable = [f"The result in {one!r} is left out: it has {size:,} bytes." for one, size in large.items()]
    oldest, newest = await calls(
        line.near(dead),
        [
            ("XRANGE", dead, milliseconds(entry), "+", "COUNT", LETTERS),
            ("XREVRANGE", dead, "+", milliseconds(entry), "COUNT", LETTERS),
        ],
    )
    (changed,) = await calls(
        line.near(audit.KEY), [("XREVRANGE", audit.KEY, "+", milliseconds(entry), "COUNT", CHANGES)]
    )
    rows = {row[0]: row for reply in (oldest, newest) if refusal(reply) is None for row in reply}
    every = [stored(row) for _, row in sorted(rows.items())]
    known = [(dead, one.id, one.letter) for one in every if one.letter is not None]
    letters = [row for row in known if (row[2].stream, row[2].id) == (key, entry)]
    unknown = unreadable + [
        f"{name}: {why}" for name, reply in ((dead, oldest), (audit.KEY, changed)) if (why := refusal(reply))
    ]
    if len(rows) >= 2 * LETTERS:
        unknown.append(f"{len(rows)} letters of {dead} were looked at, the first and last since the publication.")
    elif not letters:
        unknown.append(f"Dead letters were looked for in {dead} alone.")
    facts = [None if refusal(one) else one for one in rest]
    return timeline_of(
        FoundRuns(
            found,
            line.wall_time(),
            results,
            dict(zip(groups, facts[: len(groups)], strict=True)),
            dict(zip(groups, facts[len(groups) :], strict=True)),
            letters,
            await read_workers(line),
            [] if refusal(changed) else list(map(audit.entry_of, changed)),
            unknown,
        )
    )
