"""A change that is under way: its progress, and the button that interrupts it; at its end, its outcome."""

import time

from millstream.console.changes.audit import until_then
from millstream.console.changes.plan import ChangeRefusedError
from millstream.console.watching.jobs import ChangeJob
from millstream.console.web.changing.change import result_page
from millstream.console.web.page import Asked, NoPageError, WebPage
from millstream.console.web.pages.common import command_line


async def job_page(asked: Asked) -> WebPage:
    """A change that was confirmed."""
    job = _job(asked)
    if job.outcome is not None:
        return result_page(asked, job)
    plan, now_ms = job.prepared.plan, time.time_ns() // 1_000_000
    facts = {
        "action": plan.action,
        "running": job.running,
        "done": job.done,
        "entries": job.prepared.entries,
        "began_ms": job.began_ms,
        "error": None if job.error is None else str(job.error),
        "change": job.id,
    }
    kept = "" if job.error is None else until_then(job.id, job.error)
    view = {"job": job, "plan": plan, "now": now_ms, "open": asked.settings.allow_changes, "kept": kept, **facts}
    shell = [command_line(asked, "audit ls", options=("--limit", "5"))]
    return WebPage("job", plan.action, facts, view, shell, at_ms=now_ms, live=job.running)


async def stop_job(asked: Asked) -> WebPage:
    """Interrupt a change; it ends after the part that is under way."""
    if not asked.settings.allow_changes:
        raise ChangeRefusedError("the console is read-only: start it with --allow-changes")
    job = _job(asked)
    job.stop.set()
    return WebPage("job", job.prepared.plan.action, {}, location=asked.link("/job", id=job.id))


def _job(asked: Asked) -> ChangeJob:
    found = asked.watch.jobs.get(asked.word("id"))
    if found is None:
        raise NoPageError("there is no such change under way; `millstream audit ls` shows what was done")
    return found
