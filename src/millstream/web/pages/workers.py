"""Workers with their running entries and their times, workers that vanished, and paused handlers."""

from dataclasses import asdict

from millstream.client.limits.rate import RATES
from millstream.client.line import Line
from millstream.errors import Disconnected, MillstreamError
from millstream.ops.asking import together
from millstream.ops.groups.status import LONG_JOB
from millstream.ops.limits.reading import LimitsSeen, read_limits
from millstream.ops.limits.status import limit_facts
from millstream.ops.workers.reading import read_workers
from millstream.ops.workers.status import WorkersSeen, within
from millstream.web.page import Asked, WebPage
from millstream.web.pages.common import closed_actions, command_line
from millstream.worker.registry import protocol

_FEW = 5  # number of rows up to which the cards below those of workers and limits are open
_MOST_LIMITS = 100  # largest number of limits on the page


async def workers_page(asked: Asked) -> WebPage:
    """Return the page of all workers."""
    reading, limited, closed = await together(
        asked.watch.read("workers", read_workers),
        asked.watch.read("limits", _limits),
        closed_actions(asked, protocol.CONTROL),
    )
    every: WorkersSeen = reading.value
    limits: LimitsSeen = limited.value
    seen = within(every)
    lists, whole = ("workers", "vanished", "ended", "pauses", "strange"), asdict(seen)
    found = {name: len(getattr(every, name)) for name in lists}
    rows = [limit_facts(one) for one in limits.limits]
    facts = {**{name: whole[name] for name in lists}, "limits": rows, "found": found, "unknown": seen.why}
    view = {"seen": seen, "found": found, "in_hand": sum(len(each.jobs) for each in every.workers)}
    view["jobs"] = [job for worker in seen.workers for job in worker.jobs]
    view["still"] = sum(each.blocked_at is not None for each in every.workers)
    view["long_job"], view["few"] = LONG_JOB, _FEW
    view["closed"] = closed
    view["limits"], view["limits_found"] = rows, limits.found
    view["limits_closed"] = await closed_actions(asked, RATES) if rows else {}
    shell = [command_line(asked, "worker ls"), *([command_line(asked, "limit ls")] if rows else [])]
    return WebPage("workers", "Workers", facts, view, shell, **WebPage.source(reading))


async def _limits(line: Line) -> LimitsSeen:
    """Return the limits; none if the server refuses to read them, so that the page can show everything else."""
    try:
        return await read_limits(line, _MOST_LIMITS)
    except Disconnected:
        raise
    except MillstreamError:
        return LimitsSeen()
