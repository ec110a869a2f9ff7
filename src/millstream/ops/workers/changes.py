"""The actions of workers: ``quiet``, ``drain``, ``stop``, ``pause``, ``resume`` and ``reap``, with their plans."""

from collections.abc import AsyncGenerator, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from millstream import times
from millstream.client.line import Line
from millstream.clock import SystemClock
from millstream.errors import UsageError
from millstream.ops.actions import Word, action
from millstream.ops.making import ActionCall, Prepared
from millstream.ops.parameters import Group, Stream, now_ms, number
from millstream.ops.plan import (
    BeforeAfter,
    ChangePlan,
    FactCheck,
    Step,
    TargetMissingError,
    Undo,
    Words,
    consumer_check,
    counted,
)
from millstream.ops.streams.reading import read_consumers
from millstream.ops.streams.status import ConsumerStatus
from millstream.ops.words import command_words
from millstream.ops.workers.reading import PauseField, living_workers, pause_field
from millstream.ops.workers.status import WorkersSeen, WorkerStatus
from millstream.worker.model.pause import HandlerPause
from millstream.worker.registry import lookup, protocol

Workers: TypeAlias = Annotated[
    tuple[str, ...],
    Word("argument", "[ID]...", name="worker", typed="ids", title="worker", hint="web-1-4711", between=r"[\r\n]+",
         needed=True),
]  # fmt: skip
Everyone: TypeAlias = Annotated[bool, Word("flag", says="All workers that are alive.", name="all")]
AnyGroup: TypeAlias = Annotated[str | None, Word("argument", "[GROUP]")]


@action("worker quiet", "Let workers read nothing more; they stay.", "HSET", undo="worker resume", writes="registry")
async def quiet(change: ActionCall, ids: Workers, everyone: Everyone = False) -> Prepared:
    """Let workers read nothing more: entries not begun go back at once, running ones are finished.

    They stay, and `millstream worker resume ID` sets them to work again.

    \b
    Examples:
      millstream worker quiet web-1-4711
      millstream worker quiet --all --dry-run
    """
    return await _order(change, ids, everyone=everyone)


@action("worker drain", "Let workers finish what they have in hand, and end.", "HSET", undo="worker resume",
        writes="registry")  # fmt: skip
async def drain(change: ActionCall, ids: Workers, everyone: Everyone = False) -> Prepared:
    """Let workers finish what they have in hand, however long it takes, and then end.

    Entries that they have not begun go back at once. The process ends with exit code 0; `millstream run` does not start
    it again. --dry-run shows the entries in hand, and the groups that no other worker reads.

    \b
    Examples:
      millstream worker drain web-1-4711 --dry-run
      millstream worker drain web-1-4711
      millstream worker drain --all --wait && deploy    when no worker is left
    """
    return await _order(change, ids, everyone=everyone)


@action("worker stop", "Stop workers as SIGTERM does.", "HSET", writes="registry")
async def stop(change: ActionCall, ids: Workers, everyone: Everyone = False) -> Prepared:
    """Stop workers as SIGTERM does: running entries get the grace time, then they are handed back.

    `millstream run` does not start them again.

    \b
    Examples:
      millstream worker stop web-1-4711
      millstream worker stop --all --wait
    """
    return await _order(change, ids, everyone=everyone)


async def _order(change: ActionCall, wanted: Sequence[str], *, everyone: bool = False) -> Prepared:
    """Leave an order for workers, or take it back; they are named by their ids, or by the beginnings of these."""
    seen = await living_workers(change.line)
    known = {one.id: one for one in seen.workers}
    ids = lookup.pick(list(known), wanted, everyone=everyone)
    change.settle(worker="\n".join(ids), key=None, all=None)
    targets = [OrderTarget(known[each], protocol.order_field(each)) for each in ids]
    plan = plan_order(change.action.name, targets, seen, protocol.CONTROL)

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:
        # orders of workers that are gone would meet their successors
        await protocol.tidy(line, SystemClock().wall_time())
        yield plan

    return Prepared(plan, len(ids), pages)


@action("worker pause", "Let no worker run anything for a group until it is resumed.", "HSET", undo="worker resume",
        writes="registry")  # fmt: skip
async def pause(
    change: ActionCall,
    stream: Stream,
    group: Group,
    reason: Annotated[
        str,
        Word("option", "REASON", "Reason, kept with the pause.", title="reason", hint="the card provider is down",
             needed=True),
    ],
    *,
    by: Annotated[str | None, Word("option", says="Author (default: this user and host).", form=False)] = None,
    ahead: Annotated[bool, Word("flag", says="Pause even if the stream or group does not exist yet.")] = False,
    at_ms: Annotated[int | None, Word("hidden", read=number(0))] = None,
) -> ChangePlan:  # fmt: skip
    """Let no worker run anything for GROUP of STREAM until it is resumed.

    All workers see it within five seconds: entries not begun go back, running ones are finished. It holds when workers
    are started again, and for workers that are started later. A group that does not exist yet is paused with --ahead.

    \b
    Examples:
      millstream worker pause orders billing --reason 'the card provider is down'
      millstream worker ls                                       shows the pauses, with reason and author
    """
    if not reason.strip():
        raise UsageError("A reason is missing. Give one; it is kept with the pause.")
    at_ms = min(now_ms() if at_ms is None else at_ms, 10**15)
    change.settle(at_ms=str(at_ms), by=None)
    new = HandlerPause(stream, group, reason, by or change.who, at_ms)
    if not ahead:
        await lookup.require_group(change.line, stream, group)
    where, seen = await pause_field(change.line, stream, group), await living_workers(change.line)
    return plan_pause(where, new, protocol.pause_record(new), seen)


@action("worker resume", "End a pause: of a group, or of a worker that is quiet or drains.", "HDEL",
        writes="registry")  # fmt: skip
async def resume(
    change: ActionCall,
    target: Annotated[str | None, Word("argument", "STREAM|ID", name="key", typed="target")] = None,
    group: AnyGroup = None,
    worker: Annotated[str | None, Word("hidden")] = None,
) -> ChangePlan | Prepared:
    """End a pause: of GROUP of STREAM, or of the worker ID that is quiet or drains.

    \b
    Examples:
      millstream worker resume orders billing
      millstream worker resume web-1-4711 --dry-run
    """
    if group is None:
        found = await _order(change, [each for each in (worker, target) if each is not None][:1])
        change.settle(worker=None, key=change.texts["worker"])
        return found
    stream = target or ""
    where, seen = await pause_field(change.line, stream, group), await living_workers(change.line)
    return plan_resume(where, stream, group, seen)


@action("worker reap", "Remove consumers of processes that are gone, idle and holding nothing.",
        "XGROUP DELCONSUMER")  # fmt: skip
async def reap(
    change: ActionCall,
    stream: Stream,
    group: AnyGroup = None,
    idle: Annotated[
        int,
        Word("option", "SPAN", f"Idle for this long: {times.SPAN_HELP}.", title="idle for", hint="1h", read=times.span,
             usual="1h"),
    ] = 3_600_000,
) -> ChangePlan:  # fmt: skip
    """Remove consumers of STREAM's groups, or of GROUP alone, that are idle and hold no entries.

    One script on the server looks and removes, so no pending entry gets lost; workers that are alive keep their
    consumers. Workers do the same by themselves for consumers idle for an hour.

    \b
    Examples:
      millstream worker reap orders --dry-run
      millstream worker reap orders billing --idle 1d
    """
    change.settle(idle=change.texts.get("idle", "").strip() or "1h")
    if group is not None:
        await lookup.require_group(change.line, stream, group)
    names = [group] if group is not None else await lookup.groups(change.line, stream)
    seen = await living_workers(change.line)
    alive = {(sub.group, sub.consumer) for one in seen.workers for sub in one.subscribers if sub.stream == stream}
    found = {name: await read_consumers(change.line, stream, name) for name in names}
    return plan_reap(stream, found, idle_ms=idle, alive=alive)


_SHOWN = 20  # workers that a preview has a row for
_NAMED = 5  # groups that a note names

_SEEN = "Workers see it within five seconds."

_DOES = {
    "worker quiet": "They stay, and read nothing more until `millstream worker resume`.",
    "worker drain": "They finish what they have in hand, however long it takes, and end with exit code 0.",
    "worker stop": "What runs gets the grace time, then it is handed back; they end.",
}
_ENDS = {
    "worker drain": "Until a worker has ended; then whoever starts workers starts one.",
    "worker stop": "A worker that has ended is started by whoever starts workers.",
}


@dataclass(frozen=True, slots=True)
class OrderTarget:
    """A worker that is to be ordered something."""

    status: WorkerStatus  # State of the worker, from its own report
    field: str  # Field of the registry's hash, with the order


def plan_order(action: str, targets: Sequence[OrderTarget], seen: WorkersSeen, control: str) -> ChangePlan:
    """Leave an order for workers, or take it back (``worker resume``)."""
    what = None if action == "worker resume" else action.partition(" ")[2]
    changed = [one for one in targets if one.status.ordered != what]
    names = tuple(one.status.id for one in targets)
    rows = [
        BeforeAfter(f"{one.status.id} is ordered to", one.status.ordered or "go on", what or "go on")
        for one in targets[:_SHOWN]
    ]
    at_work = {one.id for one in seen.workers if one.ordered is None}
    leave = at_work - set(names) if what else at_work | set(names)
    rows.append(BeforeAfter("workers that are to read", len(at_work), len(leave)))
    whom = names[0] if len(names) == 1 else f"{len(names)} workers"
    question = f"Order {whom} to {what or 'go on'}?"
    steps = tuple(Step((_written(control, one, what),), (_unchanged(control, one),)) for one in changed)
    notes, undo = _notes(action, targets, seen), _undo(action, changed, control)
    facts: dict[str, object] = {"workers": list(names), "blocked": [one.status.id for one in _blocked(action, targets)]}
    return ChangePlan(action, "", "", question, tuple(rows), notes, steps, undo, facts, key=control)


def _blocked(action: str, targets: Sequence[OrderTarget]) -> list[OrderTarget]:
    """Workers whose event loop is blocked: they see no order until it goes on."""
    return [] if action == "worker resume" else [one for one in targets if one.status.blocked_at is not None]


def _written(control: str, one: OrderTarget, what: str | None) -> Words:
    return ("HDEL", control, one.field) if what is None else ("HSET", control, one.field, what)


def _unchanged(control: str, one: OrderTarget) -> FactCheck:
    """A check that a worker's order is unchanged."""
    about = f"what {one.status.id} is ordered to do"
    return FactCheck(about, ("HGET", control, one.field), "value", "", (("", one.status.ordered or ""),))


def _undo(action: str, changed: Sequence[OrderTarget], control: str) -> Undo:
    """The undo of an order."""
    if action == "worker stop":
        return Undo(note=_ENDS[action])
    back = tuple(_written(control, one, one.status.ordered) for one in changed)
    before = {one.status.ordered for one in changed}
    if len(changed) != 1:
        return Undo(commands=back, note=" ".join(filter(None, ("One worker at a time.", _ENDS.get(action, "")))))
    verb = before.pop() or "resume"
    return Undo(command_words(f"worker {verb}", changed[0].status.id), back, note=_ENDS.get(action, ""))


def _notes(action: str, targets: Sequence[OrderTarget], seen: WorkersSeen) -> tuple[str, ...]:
    """The other effects."""
    if action == "worker resume":
        return ("They read again what they are subscribed to.", _SEEN)
    notes = [_DOES[action], _SEEN]
    for one in _blocked(action, targets)[:_NAMED]:
        status = one.status
        notes.append(
            f"{status.id} stands still at {status.blocked_at}, and sees the order only when it goes on; until then "
            f"only a kill ends it: process {status.pid} on {status.host}."
        )
    running = sum(sub.running for one in targets for sub in one.status.subscribers)
    waiting = sum(sub.buffered for one in targets for sub in one.status.subscribers)
    notes.append(f"At the last beat they had {counted(running)} in hand, and {waiting} read and not begun.")
    if waiting:
        notes.append("What is not begun goes back at once, for other workers.")
    unread = _unread(targets, seen)
    if unread:
        named = ", ".join(f"{group!r} of {stream!r}" for stream, group in unread[:_NAMED])
        more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
        notes.append(f"No other worker reads {named}{more}: entries wait until one does.")
    return tuple(notes)


def _unread(targets: Sequence[OrderTarget], seen: WorkersSeen) -> list[tuple[str, str]]:
    """Streams and groups that no worker reads once these workers do not."""
    leaving = {one.status.id for one in targets}
    others = (one for one in seen.workers if one.id not in leaving and one.ordered is None)
    read = {(sub.stream, sub.group) for one in others for sub in one.subscribers}
    theirs = dict.fromkeys((sub.stream, sub.group) for one in targets for sub in one.status.subscribers)
    return [where for where in theirs if where not in read]


def plan_pause(where: PauseField, new: HandlerPause, record: str, seen: WorkersSeen) -> ChangePlan:
    """Let no worker run anything for a group."""
    stream, group = new.stream, new.group
    readers, running = _readers(seen, stream, group)
    table = (
        BeforeAfter("paused", where.pause.reason if where.pause else "no", new.reason),
        BeforeAfter("paused by", where.pause.by if where.pause else "nobody", new.by),
        BeforeAfter("workers that read it", readers, 0),
    )
    notes = [f"What runs is finished: {counted(running)} at the last beat. What is not begun goes back.", _SEEN]
    notes.append("It holds until somebody resumes it, also for workers that are started later.")
    undo = Undo(command_words("worker resume", stream, group), (("HDEL", where.control, where.field),))
    steps = (Step((("HSET", where.control, where.field, record),), (where.check(),)),)
    question = f"Pause the group {group!r} of {stream!r}?"
    return ChangePlan(
        "worker pause", stream, group, question, table, tuple(notes), steps, undo, {"reason": new.reason},
        key=where.control,
    )  # fmt: skip


def plan_resume(where: PauseField, stream: str, group: str, seen: WorkersSeen) -> ChangePlan:
    """End the pause of a group."""
    found = where.pause
    if found is None:
        raise TargetMissingError(f"{group} on {stream} is not paused; `millstream worker ls` shows what is")
    readers, _ = _readers(seen, stream, group)
    table = (BeforeAfter("paused", found.reason, "no"), BeforeAfter("workers that read it", 0, readers))
    notes = (_SEEN, *(() if readers else ("No worker is subscribed to it at present.",)))
    again = command_words("worker pause", stream, group, options=("--reason", found.reason))
    undo = Undo(again, (("HSET", where.control, where.field, where.value or b""),))
    question = f"End the pause of the group {group!r} of {stream!r}?"
    steps = (Step((("HDEL", where.control, where.field),), (where.check(),)),)
    return ChangePlan(
        "worker resume", stream, group, question, table, notes, steps, undo, {"reason": found.reason},
        key=where.control,
    )  # fmt: skip


def _readers(seen: WorkersSeen, stream: str, group: str) -> tuple[int, int]:
    """The number of workers that are subscribed to a group, and the number of its entries that they have in hand."""
    found = [sub for one in seen.workers for sub in one.subscribers if (sub.stream, sub.group) == (stream, group)]
    return len(found), sum(sub.running for sub in found)


_GROUPS_SHOWN = 20  # groups that a preview has a row for


def plan_reap(
    stream: str, groups: Mapping[str, Sequence[ConsumerStatus]], *, idle_ms: int, alive: Container[tuple[str, str]]
) -> ChangePlan:
    """Remove consumers that are idle for long and hold nothing, but for those of workers that are alive.

    One that waits for its first entry looks as idle as a dead one: hence the names of living workers.
    """
    gone = {
        name: [one for one in every if _is_gone(one, idle_ms) and (name, one.name) not in alive]
        for name, every in groups.items()
    }
    table = tuple(
        BeforeAfter(f"consumers of {name}", len(groups[name]), len(groups[name]) - len(found))
        for name, found in list(gone.items())[:_GROUPS_SHOWN]
    )
    steps = tuple(
        Step((("XGROUP", "DELCONSUMER", stream, name, one.name),), (consumer_check(stream, name, one.name, 0),))
        for name, found in gone.items()
        for one in found
    )
    removed = [[name, one.name] for name, found in gone.items() for one in found]
    group = next(iter(groups)) if len(groups) == 1 else ""
    notes = ("They hold nothing, so nothing is lost; one that is alive is made anew by its next read.",)
    undo = Undo(note="Nothing is to be undone: the next read by such a name makes it anew.")
    question = f"Remove {len(removed)} {'consumer' if len(removed) == 1 else 'consumers'} of {stream!r}?"
    return ChangePlan(
        "worker reap", stream, group, question, table, notes, steps, undo, {"consumers": removed},
        needs_script=True,
    )  # fmt: skip


def _is_gone(one: ConsumerStatus, idle_ms: int) -> bool:
    return one.pending == 0 and one.idle_ms >= idle_ms
