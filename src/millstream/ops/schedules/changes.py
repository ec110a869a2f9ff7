"""The actions ``schedule pause``, ``resume``, ``fire`` and ``rm``, with their plans."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, TypeAlias

from millstream.client.later import recurring, schedule
from millstream.client.later.recurring import KEY, STREAM
from millstream.client.line import Line
from millstream.client.partitions.declared import find_layout
from millstream.ops.actions import Word, action
from millstream.ops.guard import StepResult
from millstream.ops.making import ActionCall, Prepared
from millstream.ops.parameters import number
from millstream.ops.plan import BeforeAfter, ChangePlan, ChangeRefusedError, Counting, Step, Undo, Words, value_check
from millstream.ops.schedules.reading import named_recurring
from millstream.ops.schedules.status import RecurringStatus, entry_view
from millstream.ops.words import command_words, shell_line
from millstream.texts import time_text

Name: TypeAlias = Annotated[str, Word("argument", "NAME", name="schedule")]


@action("schedule pause", "Pause a recurring schedule until it is resumed.", "HSET", "ZREM", "HDEL",
        undo="schedule resume", writes="")  # fmt: skip
async def pause(change: ActionCall, name: Name) -> ChangePlan:
    """Pause the recurring schedule NAME until `resume`; its waiting firing is removed.

    Its setting catch_up decides about the firings missed meanwhile. It stays paused when workers restart.

    \b
    Examples:
      millstream schedule pause nightly
      millstream schedule ls                   shows the pauses
    """
    return plan_pause(await _found(change, name))


@action("schedule resume", "Resume a recurring schedule.", "HDEL", undo="schedule pause",
        writes="")  # fmt: skip
async def resume(change: ActionCall, name: Name) -> ChangePlan:
    """Resume the recurring schedule NAME; its setting catch_up decides about the missed firings.

    \b
    Examples:
      millstream schedule resume nightly
      millstream schedule resume nightly --dry-run
    """
    return plan_resume(await _found(change, name))


@action("schedule fire", "Add an entry of a recurring schedule now.", "XADD", writes="")
async def fire(
    change: ActionCall, name: Name, at_ms: Annotated[int | None, Word("hidden", read=number(0), form=False)] = None
) -> ChangePlan:
    """Add an entry of the recurring schedule NAME now, in addition to those of its timetable.

    No worker is needed for it, and a pause does not prevent it.

    \b
    Examples:
      millstream schedule fire nightly
      millstream schedule fire nightly --dry-run
    """
    one, now = await _read(change, name)
    at_ms = now if at_ms is None else min(at_ms, schedule.LATEST_MS)
    change.settle(at_ms=str(at_ms))
    one = replace(one, stream=await _place(change.line, one))
    await change.require_rights(one.stream)
    return plan_fire(one, at_ms)


@action("schedule rm", "Remove a recurring schedule, and its waiting firing.", "HDEL", loses=True, writes="")
async def remove(change: ActionCall, name: Name) -> Prepared:
    """Remove the recurring schedule NAME, its pause, and its waiting firing.

    Workers whose code declares it put it back within a minute: remove it from the code first, or pause it.

    \b
    Examples:
      millstream schedule rm report-7 --dry-run
      millstream schedule rm report-7 --yes
    """
    await change.require_rights(KEY)
    one, _ = await named_recurring(change.line, name)
    plan = plan_remove(one)

    async def work(line: Line, results: list[StepResult], tell: Counting, _: asyncio.Event) -> None:
        gone = await recurring.remove(line, name)
        why = "" if gone else f"the schedule {name!r} was gone already"
        results.append(StepResult(plan.steps[0], "done" if gone else "moved", why=why))
        tell(1)

    return Prepared(plan, 1, work=work)


async def _place(line: Line, one: RecurringStatus) -> str:
    """Return the stream that gets a schedule's entry: the partition of its key if the stream is partitioned."""
    layout = await find_layout(line, one.stream)
    if layout is None:
        return one.stream
    key = one.key if one.key is not None else dict(entry_view(one).fields).get((layout.by or "").encode())
    if key is None:
        raise ChangeRefusedError(
            f"The stream {one.stream!r} is partitioned, and entries of the schedule {one.name!r} have no key. Put it "
            "again with key=."
        )
    return layout.place(key)


async def _read(change: ActionCall, name: str) -> tuple[RecurringStatus, int]:
    one, now = await named_recurring(change.line, name)
    if one.why:
        line = shell_line(command_words("schedule rm", name))
        raise ChangeRefusedError(f"The schedule {name!r} cannot be changed: {one.why}. `{line}` removes it.")
    return one, now


async def _found(change: ActionCall, name: str) -> RecurringStatus:
    one, _ = await _read(change, name)
    await change.require_rights(schedule.placed_key(one.stream))
    return one


def plan_pause(one: RecurringStatus) -> ChangePlan:
    """Plan to pause a schedule: no firing is placed until it is resumed."""
    commands: tuple[Words, ...] = (("HSET", schedule.placed_key(one.stream), f"paused:{one.name}", 1),)
    notes = ["Its setting catch_up decides about the firings missed meanwhile."]
    if one.score is not None:
        commands = (*_without_firing(one), *commands)
        notes.append("The firing that waits is removed, and counts as missed.")
        if one.placed_ms is not None:
            # The firing is removed, so it counts as missed when the pause ends
            commands += (("HSET", schedule.placed_key(one.stream), one.name, one.placed_ms - 1),)
    undo = Undo(command_words("schedule resume", one.name), (_unpaused(one),))
    return _plan("pause", one, "yes", () if one.paused else commands, notes, undo)


def plan_resume(one: RecurringStatus) -> ChangePlan:
    """Plan to resume a schedule, so that firings are placed again."""
    notes = ["Workers see it within six seconds."]
    if one.declared == "nobody":
        notes.append("No worker declares it any more, so none places its firings.")
    back: Words = ("HSET", schedule.placed_key(one.stream), f"paused:{one.name}", 1)
    undo = Undo(command_words("schedule pause", one.name), (back,))
    return _plan("resume", one, "no", (_unpaused(one),) if one.paused else (), notes, undo)


def plan_fire(one: RecurringStatus, at_ms: int) -> ChangePlan:
    """Plan to add an entry of a schedule now."""
    words: tuple[bytes | str | int, ...] = one.words
    if one.stream.startswith(STREAM):
        words = (*words, "scheduled", at_ms)  # the handler reads the time of the firing
    steps = (Step((("XADD", one.stream, *words),)),)
    notes = ("It is paused: this entry is added nevertheless.",) if one.paused else ()
    table = (BeforeAfter(f"entries added to {one.stream}", 0, 1),)
    undo = Undo(note="It cannot be undone: the entry is in the stream, where groups read it.")
    question = f"Add an entry of the schedule {one.name!r} to {one.stream!r} now?"
    return ChangePlan(
        "schedule fire", one.stream, "", question, table, notes, steps, undo, {"schedule": one.name}, live=True
    )  # fmt: skip


def plan_remove(one: RecurringStatus) -> ChangePlan:
    """Plan to remove a schedule."""
    commands: tuple[Words, ...] = (("HDEL", KEY, one.name),)
    notes = []
    if one.table is not None:
        commands += (*_without_firing(one), ("HDEL", schedule.placed_key(one.stream), one.name, f"paused:{one.name}"))
    if one.declared == "code":
        notes.append("Code of workers declares it: they put it back within a minute.")
    table = [BeforeAfter("schedule", one.name, "none")]
    if one.score is not None:
        table.append(BeforeAfter("firing that waits", one.firing, "none"))
    note = (
        "No command restores it: a program has to put it again." if one.declared == "put" else "Code declares it again."
    )
    return ChangePlan(
        "schedule rm", one.stream, "", f"Remove the schedule {one.name!r}?", tuple(table), tuple(notes),
        (Step(commands),), Undo(note=note), {"schedule": one.name}, key=KEY,
    )  # fmt: skip


def _plan(
    verb: str, one: RecurringStatus, after: str, commands: tuple[Words, ...], notes: Sequence[str], undo: Undo
) -> ChangePlan:
    placed, due = schedule.placed_key(one.stream), schedule.due_key(one.stream)
    about = f"schedule {one.name!r}"
    checks = (
        value_check(f"the last firing of {about}", ("HGET", placed, one.name), one.placed),
        value_check(f"the next firing of {about}", ("ZSCORE", due, one.firing), one.score),
        value_check(f"the pause of {about}", ("HEXISTS", placed, f"paused:{one.name}"), one.paused),
    )
    table = [BeforeAfter("paused", "yes" if one.paused else "no", after)]
    if one.score is not None and verb == "pause":
        table.append(BeforeAfter("firing that waits", time_text(one.placed_ms or 0), "none"))
    steps = (Step(commands, checks),) if commands else ()
    return ChangePlan(
        f"schedule {verb}", one.stream, "", f"{verb.capitalize()} the schedule {one.name!r}?", tuple(table),
        tuple(notes), steps, undo, {"schedule": one.name}, key=placed,
    )  # fmt: skip


def _unpaused(one: RecurringStatus) -> Words:
    return ("HDEL", schedule.placed_key(one.stream), f"paused:{one.name}")


def _without_firing(one: RecurringStatus) -> tuple[Words, ...]:
    """Return the commands that remove the waiting firing."""
    if one.placed is None:
        return ()
    return (("HDEL", schedule.content_key(one.stream), one.firing), ("ZREM", schedule.due_key(one.stream), one.firing))
