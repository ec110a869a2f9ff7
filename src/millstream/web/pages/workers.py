"""Workers with their entries in hand and the times of these, workers that vanished, and paused handlers."""

from dataclasses import asdict

from millstream.ops.groups.status import LONG_JOB
from millstream.ops.workers.reading import read_workers
from millstream.ops.workers.status import within
from millstream.web.page import Asked, WebPage
from millstream.web.pages.common import closed_actions, command_line
from millstream.worker.registry import protocol


async def workers_page(asked: Asked) -> WebPage:
    """All workers."""
    reading = await asked.watch.read("workers", read_workers)
    every = reading.value
    seen = within(every)
    found = {name: len(getattr(every, name)) for name in ("workers", "vanished", "pauses", "strange")}
    facts = {
        "workers": [asdict(worker) for worker in seen.workers],
        "vanished": [asdict(worker) for worker in seen.vanished],
        "pauses": [asdict(pause) for pause in seen.pauses],
        "strange": list(seen.strange),
        "found": found,
        "unknown": seen.why,
    }
    view = {"seen": seen, "found": found, "now": seen.at_ms, "in_hand": sum(len(each.jobs) for each in every.workers)}
    view["jobs"] = [job for worker in seen.workers for job in worker.jobs]
    view["still"] = sum(each.blocked_at is not None for each in every.workers)
    view["long_job"] = LONG_JOB
    view["closed"] = await closed_actions(asked, protocol.CONTROL)
    return WebPage("workers", "Workers", facts, view, [command_line(asked, "worker ls")], **WebPage.source(reading))
