"""The pages of a change: its form and preview, its outcome, and a change in progress."""

from dataclasses import asdict, replace
from typing import Any

from millstream.ops.actions import Action, form_of
from millstream.ops.audit import Actor, undo_line, until_then
from millstream.ops.every import BY_NAME
from millstream.ops.guard import ChangeOutcome, StepResult
from millstream.ops.making import Prepared
from millstream.ops.parameters import now_ms
from millstream.ops.plan import ChangePlan, ChangeRefusedError, joined
from millstream.ops.watching.jobs import ChangeJob
from millstream.ops.words import Facts, brief, name, raw_line
from millstream.web.page import Asked, NoPageError, WebPage
from millstream.web.pages.common import command_line
from millstream.web.pages.dead import edited_page
from millstream.web.planned import FormError, form_fields, plan_of, planned_reading, who_of

PATIENCE = 2.0
"""Seconds after which a change in progress gets a page of its own."""

_SHOWN = 20  # number of raw commands, and of unchanged entries, that are shown
_ADDING = ("stream add", "dead retry", "dead edit")


async def change_page(asked: Asked) -> WebPage:
    """Return the preview of a change. For a correction that is not written yet, return the letter with its editor."""
    action = _action(asked)
    if action.name == "dead edit" and "document" not in asked.words:
        return await edited_page(asked)
    reading = await planned_reading(asked, action)
    return _preview(asked, action, reading.value, at_ms=reading.at_ms)


async def make_change(asked: Asked) -> WebPage:
    """Make the change that was previewed. If the change would differ by now, show its preview again.

    A form without a digest requests the preview. It is sent in this way if it is too long for an address.
    """
    action = _action(asked)
    if not asked.settings.allow_changes:
        raise ChangeRefusedError("the console is read-only: start it with --allow-changes, or use the shell")
    found = await asked.watch.answered(plan_of(asked, action, asked.watch.line))
    shown = asked.words.get("digest")
    if found.nothing or ("anyway" not in asked.words and found.plan.digest != shown):
        return _preview(asked, action, found, at_ms=now_ms(), moved=shown is not None)
    job = asked.watch.jobs.start(found, form_fields(found), Actor(who_of(asked), asked.peer, "console"))
    if not await job.ended(PATIENCE):
        return WebPage("change", action.name, {}, location=asked.link("/job", id=job.id))
    return result_page(asked, job)


async def correct_letter(asked: Asked) -> WebPage:
    """Preview the change of an edited dead letter, or show its text again with the error in it."""
    words = {name: text for name, text in asked.words.items() if name not in {"digest", "anyway"}}
    if "document" not in words:
        return await edited_page(asked)
    try:
        return await make_change(replace(asked, words={**words, "do": "dead edit"}))
    except FormError as error:
        return await edited_page(asked, str(error))


def result_page(asked: Asked, job: ChangeJob) -> WebPage:
    """Return the page with the outcome of a change."""
    assert job.outcome is not None
    return _result(asked, BY_NAME[job.prepared.plan.action], job, job.outcome)


def _action(asked: Asked) -> Action:
    found = BY_NAME.get(asked.word("do"))
    if found is None:
        raise NoPageError(
            f"{brief(asked.words['do'])!r} is not a change of the console; these are: {', '.join(BY_NAME)}"
        )
    return found


def _preview(asked: Asked, action: Action, found: Prepared, *, at_ms: int, moved: bool = False) -> WebPage:
    """Return the page with the effect of a planned change."""
    plan, words = found.plan, form_fields(found)
    view = {
        **_view(asked, action, plan),
        "anyway": asked.link("/change", **words, even_if_moved="1") if plan.if_moved else "",
        "pause": asked.link("/change", do="worker pause", key=plan.stream, group=plan.group, reason="rewind"),
        "nothing": found.nothing,
        "moved": moved,
        "form": list(words.items()),
        "digest": plan.digest,
        "undo": undo_line(plan, "CHANGE"),
        "outcome": None,
    }
    facts: Facts = {"action": action.name, "applied": False, "digest": plan.digest, **_facts(plan)}
    return _page(asked, plan, facts, view, at_ms)


def _result(asked: Asked, action: Action, job: ChangeJob, outcome: ChangeOutcome) -> WebPage:
    """Return the page with the outcome of a change."""
    plan = job.prepared.plan
    left = [result for result in outcome.results if result.became not in {"done", "late"}]
    facts: Facts = {
        "action": action.name,
        "applied": True,
        "done": outcome.done,
        "left": len(left),
        "stopped": outcome.stopped,
        "change": outcome.written or None,
        "audit": list(outcome.audit),
        "unaudited": outcome.unaudited or None,
        **_facts(plan),
    }
    view = {
        **_view(asked, action, plan),
        "outcome": outcome,
        "left": left[:_SHOWN],
        "undo": undo_line(plan, outcome.written) if outcome.done else "",
        "undo_form": _undo_form(asked, plan, outcome),
        "again": asked.link("/change", **job.words) if outcome.stopped else "",
        "entries": job.prepared.entries,
        "added": [_added(asked, each) for each in outcome.of("done") if plan.action in _ADDING][:_SHOWN],
        "dead": (name(dead), asked.link("/dead", key=dead)) if (dead := str(plan.facts.get("dead", ""))) else None,
    }
    return _page(asked, plan, facts, view, now_ms(), 200 if outcome.whole else 409)


def _page(asked: Asked, plan: ChangePlan, facts: Facts, view: dict[str, Any], at_ms: int, status: int = 200) -> WebPage:
    shell = [asked.watch.server.command_line(*plan.words[1:])]
    return WebPage("change", plan.action, facts, view, shell, at_ms=at_ms, live=False, status=status)


def _undo_form(asked: Asked, plan: ChangePlan, outcome: ChangeOutcome) -> str:
    """Return the address of the preview for undoing a change; empty if it cannot be undone."""
    if not outcome.done:
        return ""
    kept = plan.undo.by_audit and outcome.written
    line = plan.undo.words or (("millstream", "audit", "undo", outcome.change) if kept else ())
    words = form_of(line)
    return asked.link("/change", **words) if words else ""


def _view(asked: Asked, action: Action, plan: ChangePlan) -> dict[str, Any]:
    """Return the template values of a plan, for the preview and for the result."""
    return {
        "action": action,
        "plan": plan,
        "raw": [brief(raw_line(command), 400) for command in plan.commands[:_SHOWN]],
        "raw_more": max(len(plan.commands) - _SHOWN, 0),
        "back": _back(asked, action, plan),
    }


def _back(asked: Asked, action: Action, plan: ChangePlan) -> tuple[str, str]:
    """Return the name and the address of the page with the changed object."""
    if action.noun == "dead":
        key = asked.words.get("key", plan.stream)
        return name(key), asked.link("/dead", key=key)
    if action.noun == "schedule":
        return "Schedules", asked.link("/schedules")
    if action.registry or action.noun == "limit":
        return "Workers", asked.link("/workers")
    if plan.group and not plan.removes:
        return f"{name(plan.group)} on {name(plan.stream)}", asked.link("/group", key=plan.stream, group=plan.group)
    if plan.stream and (plan.group or not plan.removes):
        return name(plan.stream), asked.link("/stream", key=plan.stream)
    return "Overview", asked.link("/")


def _added(asked: Asked, result: StepResult) -> tuple[str, str]:
    """Return an added entry as text, and the address of its page."""
    if not result.why:
        return result.reply, asked.link("/entry", key=str(result.step.commands[0][1]), id=result.reply)
    entry, _, stream = result.why.partition(" on ")
    return name(result.why), asked.link("/entry", key=stream, id=entry)


def _facts(plan: ChangePlan) -> Facts:
    return {
        "stream": plan.stream,
        "group": plan.group or None,
        "question": plan.question,
        "before_after": [asdict(row) for row in plan.table],
        "notes": list(plan.notes),
        "raw": [raw_line(command) for command in plan.commands[:_SHOWN]],
        "undo_raw": [raw_line(command) for command in joined(plan.undo.commands)[:_SHOWN]],
        "undo_note": plan.undo.note or None,
    }


async def job_page(asked: Asked) -> WebPage:
    """Return the page of a confirmed change, in progress or finished."""
    job = _job(asked)
    if job.outcome is not None:
        return result_page(asked, job)
    plan, at_ms = job.prepared.plan, now_ms()
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
    view = {"job": job, "plan": plan, "kept": kept, **facts}
    shell = [command_line(asked, "audit ls", options=("--limit", "5"))]
    return WebPage("job", plan.action, facts, view, shell, at_ms=at_ms, live=job.running)


async def stop_job(asked: Asked) -> WebPage:
    """Interrupt a change; it ends after the part in progress."""
    if not asked.settings.allow_changes:
        raise ChangeRefusedError("the console is read-only: start it with --allow-changes")
    job = _job(asked)
    job.stop.set()
    return WebPage("job", job.prepared.plan.action, {}, location=asked.link("/job", id=job.id))


def _job(asked: Asked) -> ChangeJob:
    found = asked.watch.jobs.get(asked.word("id"))
    if found is None:
        raise NoPageError("no such change is running; `millstream audit ls` lists the changes that were made")
    return found
