"""The actions ``later cancel``, ``move`` and ``fire``, with their plans."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from millstream import times
from millstream.client.later import schedule
from millstream.client.later.schedule import LATEST_MS, WORDS_LIMIT
from millstream.errors import UsageError
from millstream.ops import plan
from millstream.ops.actions import Spread, Together, Word, action
from millstream.ops.later.reading import named_schedules, scheduling_keys
from millstream.ops.later.status import ScheduleStatus, StreamSchedules
from millstream.ops.making import ActionCall
from millstream.ops.parameters import Stream
from millstream.ops.payloads.shown import LIGHT
from millstream.ops.rights import rights_on
from millstream.ops.streams.partitioned import known_by
from millstream.ops.words import command_words, shell_line
from millstream.texts import time_text

# An id may contain any byte, but a command line cannot contain NUL
Schedules: TypeAlias = Annotated[
    tuple[str, ...],
    Word("argument", "ID...", name="ids", typed="schedules", title="id", hint="xmas-7", between="\0", needed=True),
]


def due_time(text: str) -> int:
    """Parse a due time with a time zone and return it in wall milliseconds."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("it is not a time. Give one such as 2026-12-24T18:00+01:00.") from None
    if moment.tzinfo is None:
        raise ValueError("it has no time zone. Give one such as 2026-12-24T18:00+01:00, or Z for UTC.")
    return schedule.when("move", moment, None).at_ms or 0


def _time(values: Mapping[str, Any]) -> tuple[int | None, int]:
    """Return the new time in wall milliseconds and 0, or None and the milliseconds from now."""
    at, delay = values["at"], values["delay"]
    if (at is None) == (delay is None):
        raise UsageError("Give the new time: either --at or --delay.")
    return at, delay or 0


_AT = Word("option", "TIME", "New time, with its zone, such as 2026-12-24T18:00+01:00.", name="at", title="at",
           hint="2026-12-24T18:00+01:00", read=due_time, shown=True)  # fmt: skip
_DELAY = Word("option", "SPAN", f"New time, counted from now: {times.SPAN_HELP}.", name="delay", title="or in",
              hint="10m", read=times.span)  # fmt: skip


_PARTS = Spread(scheduling_keys, known_by(lambda texts: ("ZSCORE", schedule.due_key(texts["key"]), texts["ids"])))


@action("later cancel", "Remove schedules: their entries are never added.", "ZREM", "HDEL", loses=True, writes="",
        parts=_PARTS)  # fmt: skip
async def cancel(change: ActionCall, stream: Stream, ids: Schedules) -> plan.ChangePlan:
    """Remove schedules of STREAM: their entries are never added.

    A schedule that was moved, replaced or added after the preview is skipped, and the exit code is then 1.
    A recurring schedule continues: `millstream schedule rm` removes it.

    \b
    Examples:
      millstream later cancel bills xmas-7 --dry-run
      millstream later cancel bills xmas-7 xmas-8 --yes
    """
    return plan_cancel(await _chosen(change, stream, ids), ids)


@action("later move", "Give schedules another time.", "ZADD", "HSET", undo="later move", writes="", parts=_PARTS)
async def move(
    change: ActionCall,
    stream: Stream,
    ids: Schedules,
    to: Annotated[tuple[int | None, int], Together(_time, (_AT, _DELAY))],
) -> plan.ChangePlan:
    """Give schedules of STREAM another time; the time at which each expires moves with it.

    A time in the past means now. A schedule that was moved, replaced or added after the preview is skipped, and the
    exit code is then 1.

    \b
    Examples:
      millstream later move bills xmas-7 --at 2026-12-24T20:00+01:00
      millstream later move bills xmas-7 --delay 2h --dry-run
    """
    seen = await _chosen(change, stream, ids)
    at = min(seen.at_ms + to[1], LATEST_MS) if to[0] is None else to[0]
    change.settle(at=time_text(at), delay=None)
    return plan_move(seen, ids, at)


@action("later fire", "Add the entries of schedules now.", "ZREM", "HDEL", writes="", parts=_PARTS)
async def fire(change: ActionCall, stream: Stream, ids: Schedules) -> plan.ChangePlan:
    """Add the entries of schedules to STREAM now; no worker is needed for it.

    One script of the server adds the entry and removes the schedule, so it is added once. A schedule that was moved,
    replaced or added after the preview is skipped, and the exit code is then 1.

    \b
    Examples:
      millstream later fire bills xmas-7
      millstream later fire bills xmas-7 --dry-run
    """
    seen = await _chosen(change, stream, ids)
    if (why := (await rights_on(change.line, stream)).refusal("XADD")) is not None:
        raise plan.ChangeRefusedError(why)
    for one in seen.schedules:
        if one.why:
            line = shell_line(command_words("later cancel", stream, one.id))
            raise plan.ChangeRefusedError(f"The schedule {one.id!r} cannot be added: {one.why}. `{line}` removes it.")
        if 2 * len(one.fields) + len(one.trim) > WORDS_LIMIT:
            raise plan.ChangeRefusedError(f"The schedule {one.id!r} has too many fields for a script of the server.")
    return plan_fire(seen, ids)


async def _chosen(change: ActionCall, stream: str, ids: Sequence[str]) -> StreamSchedules:
    if not ids:
        raise UsageError("No schedules are named. Give their ids, which `millstream later ls STREAM` lists.")
    await change.require_rights(schedule.due_key(stream))
    seen = await named_schedules(change.line, stream, ids)
    if not seen.schedules:
        whom = repr(ids[0]) if len(ids) == 1 else f"any of the {len(ids)} ids"
        lists = shell_line(command_words("later ls", stream))
        raise plan.TargetMissingError(f"no schedule {whom} waits in {stream!r}; `{lists}` lists those that wait")
    return seen


_SHOWN = 20  # largest number of schedules in a preview's table


def plan_cancel(seen: StreamSchedules, ids: Sequence[str]) -> plan.ChangePlan:
    """Plan to remove schedules."""
    back = [_put_back(one) for one in seen.schedules]
    note = "No `millstream` command restores a schedule: "
    note += "send the undo commands with redis-cli, or publish it again." if all(back) else "publish it again."
    table = (_waiting(seen), *_rows(seen, lambda _: "never"))
    undo = plan.Undo(commands=tuple(command for each in back for command in each), note=note)
    return _plan("cancel", seen, ids, table, _removal, undo)


def plan_move(seen: StreamSchedules, ids: Sequence[str], at_ms: int) -> plan.ChangePlan:
    """Plan to give schedules another due time."""
    key = schedule.due_key(seen.stream)

    def commands(one: ScheduleStatus) -> tuple[plan.Words, ...]:
        due: plan.Words = ("ZADD", key, "XX", at_ms, one.id)
        if one.expires_ms is None or one.content is None:
            return (due,)
        head, rest = str(one.expires_ms).encode(), one.content[len(str(one.expires_ms)) :]
        if not one.content.startswith(head):
            return (due,)
        moved = b"%d%b" % (max(one.expires_ms + at_ms - one.at_ms, 0), rest)
        return (("HSET", schedule.content_key(seen.stream), one.id, moved), due)

    before = {one.at_ms for one in seen.schedules}
    back = tuple(command for one in seen.schedules for command in _put_back(one) or (("ZADD", key, one.score, one.id),))
    names = [one.id for one in seen.schedules]
    if len(before) == 1:
        old = command_words("later move", seen.stream, *names, options=("--at", time_text(before.pop())))
        undo = plan.Undo(old, back)
    else:
        undo = plan.Undo((), back, note="One schedule at a time: they had different times.")
    return _plan("move", seen, ids, _rows(seen, lambda _: time_text(at_ms)), commands, undo)


def plan_fire(seen: StreamSchedules, ids: Sequence[str]) -> plan.ChangePlan:
    """Plan to add the entries of schedules now."""

    def commands(one: ScheduleStatus) -> tuple[plan.Words, ...]:
        words = [word for pair in one.fields for word in pair]
        # The entry is added first: if the server refuses it, the schedule stays
        return (("XADD", seen.stream, *one.trim, "*", *words), *_removal(one))

    undo = plan.Undo(note="It cannot be undone: the entries are in the stream, where groups read them.")
    return _plan("fire", seen, ids, (_waiting(seen), *_rows(seen, lambda _: "now")), commands, undo, script=True)


def _plan(
    verb: str,
    seen: StreamSchedules,
    ids: Sequence[str],
    table: Sequence[plan.BeforeAfter],
    commands: Callable[[ScheduleStatus], tuple[plan.Words, ...]],
    undo: plan.Undo,
    *,
    script: bool = False,
) -> plan.ChangePlan:
    found, notes = seen.schedules, list[str]()
    if missing := len(ids) - len(found):
        notes.append(f"{missing} of the {len(ids)} ids {'is' if missing == 1 else 'are'} not waiting there.")
    whom = repr(found[0].id) if len(found) == 1 else f"{len(found)} schedules"
    question = f"{verb.capitalize()} {whom} of {seen.stream!r}?"
    steps = tuple(plan.Step(commands(one), _unchanged(one)) for one in found)
    facts: dict[str, object] = {"schedules": [one.id for one in found]}
    return plan.ChangePlan(
        f"later {verb}", seen.stream, "", question, tuple(table), tuple(notes), steps, undo, facts,
        key=schedule.due_key(seen.stream), needs_script=script,
    )  # fmt: skip


def _waiting(seen: StreamSchedules) -> plan.BeforeAfter:
    return plan.BeforeAfter("schedules that wait", seen.total, seen.total - len(seen.schedules))


def _rows(seen: StreamSchedules, after: Callable[[ScheduleStatus], str]) -> tuple[plan.BeforeAfter, ...]:
    return tuple(
        plan.BeforeAfter(f"{one.id} is due", time_text(one.at_ms), after(one)) for one in seen.schedules[:_SHOWN]
    )


def _unchanged(one: ScheduleStatus) -> tuple[plan.FactCheck, ...]:
    """Return checks that a schedule has the same time and content; for a large content only the same size."""
    key, about = schedule.content_key(one.stream), f"schedule {one.id!r}"
    due = plan.value_check(f"the due time of {about}", ("ZSCORE", schedule.due_key(one.stream), one.id), one.score)
    if one.content is None or len(one.content) > LIGHT:
        return due, plan.value_check(f"the size of {about}", ("HSTRLEN", key, one.id), one.size)
    return due, plan.value_check(f"the content of {about}", ("HGET", key, one.id), one.content)


def _removal(one: ScheduleStatus) -> tuple[plan.Words, ...]:
    """Return the commands that remove a schedule."""
    return (("HDEL", schedule.content_key(one.stream), one.id), ("ZREM", schedule.due_key(one.stream), one.id))


def _put_back(one: ScheduleStatus) -> tuple[plan.Words, ...]:
    """Return the commands that restore a removed schedule; none for a large content."""
    if one.content is None or len(one.content) > LIGHT:
        return ()
    return (
        ("HSET", schedule.content_key(one.stream), one.id, one.content),
        ("ZADD", schedule.due_key(one.stream), one.score, one.id),
    )
