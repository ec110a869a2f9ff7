"""The actions of workers: ``quiet``, ``drain``, ``stop``, ``pause``, ``resume`` and ``reap``, with their plans."""

from collections.abc import AsyncGenerator, Container, Mapping, Sequence
from typing import Annotated, TypeAlias

from millstream import times
from millstream.client.line import Line
from millstream.clock import SystemClock
from millstream.errors import UsageError
from millstream.ops.actions import Spread, Word, action
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
    value_check,
)
from millstream.ops.streams.partitioned import partition_of, parts_of
from millstream.ops.streams.reading import read_consumers
from millstream.ops.streams.status import ConsumerStatus
from millstream.ops.words import command_words, shell_line
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


@action(
    "worker quiet",
    "Stop workers from reading more entries; the processes stay.",
    "HSET",
    undo="worker resume",
    writes="registry",
)
async def quiet(change: ActionCall, ids: Workers, everyone: Everyone = False) -> Prepared:
    """Stop workers from reading: entries not started are released at once, running ones finish.

    The processes stay; `millstream worker resume ID` lets them read again.

    \b
    Examples:
      millstream worker quiet web-1-4711
      millstream worker quiet --all --dry-run
    """
    return await _order(change, ids, everyone=everyone)


@action("worker drain", "Let workers finish their running entries, and exit.", "HSET", undo="worker resume",
        writes="registry")  # fmt: skip
async def drain(change: ActionCall, ids: Workers, everyone: Everyone = False) -> Prepared:
    """Let workers finish their running entries, however long that takes, and then exit.

    Entries not started are released at once. The process ends with exit code 0; `millstream run` does not restart it.
    --dry-run shows the running entries, and the groups that no other worker reads.

    \b
    Examples:
      millstream worker drain web-1-4711 --dry-run
      millstream worker drain web-1-4711
      millstream worker drain --all --wait && deploy    deploys when no worker is left
    """
    return await _order(change, ids, everyone=everyone)


@action("worker stop", "Stop workers as SIGTERM does.", "HSET", writes="registry")
async def stop(change: ActionCall, ids: Workers, everyone: Everyone = False) -> Prepared:
    """Stop workers as SIGTERM does: running entries get the grace time, then they are released.

    `millstream run` does not restart them.

    \b
    Examples:
      millstream worker stop web-1-4711
      millstream worker stop --all --wait
    """
    return await _order(change, ids, everyone=everyone)


async def _order(change: ActionCall, wanted: Sequence[str], *, everyone: bool = False) -> Prepared:
    """Prepare an order to workers, or its withdrawal; workers are named by id or by a prefix of it."""
    seen = await living_workers(change.line)
    known = {one.id: one for one in seen.workers}
    ids = lookup.pick(list(known), wanted, everyone=everyone)
    change.settle(worker="\n".join(ids), key=None, all=None)
    plan = plan_order(change.action.name, [known[each] for each in ids], seen)

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:
        # Orders to workers that are gone would reach their successors
        await protocol.tidy(line, SystemClock().wall_time())
        yield plan

    return Prepared(plan, len(ids), pages)


@action("worker pause", "Pause a group: no worker processes its entries until `resume`.", "HSET", undo="worker resume",
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
    """Pause GROUP of STREAM: no worker processes its entries until `resume`.

    All workers follow within five seconds: entries not started are released, running ones finish. The pause also holds
    for restarted and new workers. Use --ahead for a group that does not exist yet.

    \b
    Examples:
      millstream worker pause orders billing --reason 'the card provider is down'
      millstream worker ls                                       shows the pauses, with reason and author
    """
    if not reason.strip():
        raise UsageError("The reason is missing. Give one; it is kept with the pause.")
    at_ms = min(now_ms() if at_ms is None else at_ms, 10**15)
    change.settle(at_ms=str(at_ms), by=None)
    new = HandlerPause(stream, group, reason, by or change.who, at_ms)
    whole = await partition_of(change.line, stream)
    if whole is not None:
        line = shell_line(command_words("worker pause", whole, group, options=("--reason", reason)))
        raise UsageError(
            f"{stream!r} is a partition: a group is paused in all partitions of {whole!r}. Write `{line}`."
        )
    if not ahead:
        await lookup.require_group(change.line, stream, group, await parts_of(change.line, stream))
    where, seen = await pause_field(change.line, stream, group), await living_workers(change.line)
    return plan_pause(where, new, protocol.pause_record(new), seen)


@action("worker resume", "Resume a group after a pause, or a worker after quiet or drain.", "HDEL",
        writes="registry")  # fmt: skip
async def resume(
    change: ActionCall,
    target: Annotated[str | None, Word("argument", "STREAM|ID", name="key", typed="target")] = None,
    group: AnyGroup = None,
    worker: Annotated[str | None, Word("hidden")] = None,
) -> ChangePlan | Prepared:
    """Resume GROUP of STREAM after a pause, or a worker by its ID after `quiet` or `drain`.

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


@action("worker reap", "Remove idle consumers without pending entries whose process is gone.",
        "XGROUP DELCONSUMER", parts=Spread(parts_of))  # fmt: skip
async def reap(
    change: ActionCall,
    stream: Stream,
    group: AnyGroup = None,
    idle: Annotated[
        int,
        Word("option", "SPAN", f"Minimum idle time: {times.SPAN_HELP}.", title="idle for", hint="1h", read=times.span,
             usual="1h"),
    ] = 3_600_000,
) -> ChangePlan:  # fmt: skip
    """Remove consumers of STREAM's groups, or of GROUP alone, that are idle and hold no entries.

    One script on the server checks and removes, so no pending entry is lost; live workers keep their consumers. Workers
    also do this themselves for consumers idle for an hour.

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
    alive = {
        (sub.group, sub.consumer)
        for one in seen.workers
        for sub in one.subscribers
        if sub.stream == seen.named(stream, sub.group)
    }
    found = {name: await read_consumers(change.line, stream, name) for name in names}
    return plan_reap(stream, found, idle_ms=idle, alive=alive)


_SHOWN = 20  # limit of workers that a preview shows
_NAMED = 5  # largest number of groups that a note names

_SEEN = "Workers see it within five seconds."

_DOES = {
    "worker quiet": "They stay, and read no more entries until `millstream worker resume`.",
    "worker drain": "They finish their running entries, however long that takes, and end with exit code 0.",
    "worker stop": "Running entries get the grace time, then they are released, and the workers end.",
}
_ENDS = {
    "worker drain": "Until a worker has ended; then start a new one.",
    "worker stop": "A worker that has ended must be started again.",
}


def plan_order(action: str, targets: Sequence[WorkerStatus], seen: WorkersSeen) -> ChangePlan:
    """Plan an order to workers, or its withdrawal (``worker resume``)."""
    what = None if action == "worker resume" else action.partition(" ")[2]
    changed = [one for one in targets if one.ordered != what]
    names = tuple(one.id for one in targets)
    rows = [BeforeAfter(f"{one.id} is ordered to", one.ordered or "go on", what or "go on") for one in targets[:_SHOWN]]
    at_work = {one.id for one in seen.workers if one.ordered is None}
    leave = at_work - set(names) if what else at_work | set(names)
    rows.append(BeforeAfter("workers that are to read", len(at_work), len(leave)))
    whom = names[0] if len(names) == 1 else f"{len(names)} workers"
    question = f"Order {whom} to {what or 'continue'}?"
    steps = tuple(Step((_written(one, what),), (_unchanged(one),)) for one in changed)
    notes, undo = _notes(action, targets, seen), _undo(action, changed)
    facts: dict[str, object] = {"workers": list(names), "blocked": [one.id for one in _blocked(action, targets)]}
    return ChangePlan(action, "", "", question, tuple(rows), notes, steps, undo, facts, key=protocol.CONTROL)


def _blocked(action: str, targets: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    """Return the workers with a blocked event loop, which see an order only after it runs again."""
    return [] if action == "worker resume" else [one for one in targets if one.blocked_at is not None]


def _written(one: WorkerStatus, what: str | None) -> Words:
    field = protocol.order_field(one.id)
    return ("HDEL", protocol.CONTROL, field) if what is None else ("HSET", protocol.CONTROL, field, what)


def _unchanged(one: WorkerStatus) -> FactCheck:
    """Return a check that a worker's order is unchanged."""
    read = ("HGET", protocol.CONTROL, protocol.order_field(one.id))
    return value_check(f"the order of {one.id}", read, one.ordered)


def _undo(action: str, changed: Sequence[WorkerStatus]) -> Undo:
    """Return the undo of an order."""
    if action == "worker stop":
        return Undo(note=_ENDS[action])
    back = tuple(_written(one, one.ordered) for one in changed)
    if len(changed) != 1:
        return Undo(commands=back, note=" ".join(filter(None, ("One worker at a time.", _ENDS.get(action, "")))))
    verb = changed[0].ordered or "resume"
    return Undo(command_words(f"worker {verb}", changed[0].id), back, note=_ENDS.get(action, ""))


def _notes(action: str, targets: Sequence[WorkerStatus], seen: WorkersSeen) -> tuple[str, ...]:
    """Return notes on the other effects of an order."""
    if action == "worker resume":
        return ("They read their streams again.", _SEEN)
    notes = [_DOES[action], _SEEN]
    notes += [
        f"{one.id} is blocked at {one.blocked_at}, and sees the order only when it runs again; until then "
        f"only a kill ends it: process {one.pid} on {one.host}."
        for one in _blocked(action, targets)[:_NAMED]
    ]
    running = sum(sub.running for one in targets for sub in one.subscribers)
    waiting = sum(sub.buffered for one in targets for sub in one.subscribers)
    notes.append(f"At the last beat they had {counted(running)} running, and {waiting} read but not started.")
    if waiting:
        notes.append("Entries not started are released at once, for other workers.")
    unread = _unread(targets, seen)
    if unread:
        named = ", ".join(f"{group!r} of {stream!r}" for stream, group in unread[:_NAMED])
        more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
        notes.append(f"No other worker reads {named}{more}: entries wait until one does.")
    return tuple(notes)


def _unread(targets: Sequence[WorkerStatus], seen: WorkersSeen) -> list[tuple[str, str]]:
    """Return the streams and groups that no worker reads without these workers."""
    leaving = {one.id for one in targets}
    others = (one for one in seen.workers if one.id not in leaving and one.ordered is None)
    read = {(sub.stream, sub.group) for one in others for sub in one.subscribers}
    theirs = dict.fromkeys((sub.stream, sub.group) for one in targets for sub in one.subscribers)
    return [where for where in theirs if where not in read]


def plan_pause(where: PauseField, new: HandlerPause, record: str, seen: WorkersSeen) -> ChangePlan:
    """Plan a pause, so that no worker processes entries of the group."""
    stream, group = new.stream, new.group
    readers, running = _readers(seen, stream, group)
    table = (
        BeforeAfter("paused", where.pause.reason if where.pause else "no", new.reason),
        BeforeAfter("paused by", where.pause.by if where.pause else "no user", new.by),
        BeforeAfter("workers that read it", readers, 0),
    )
    notes = [f"Running entries finish: {counted(running)} at the last beat. Entries not started are released.", _SEEN]
    notes.append("It holds until it is resumed, also for workers that are started later.")
    undo = Undo(command_words("worker resume", stream, group), (where.removal,))
    steps = (Step((("HSET", protocol.CONTROL, where.field, record),), (where.check(),)),)
    question = f"Pause the group {group!r} of {stream!r}?"
    return ChangePlan(
        "worker pause", stream, group, question, table, tuple(notes), steps, undo, {"reason": new.reason},
        key=protocol.CONTROL,
    )  # fmt: skip


def plan_resume(where: PauseField, stream: str, group: str, seen: WorkersSeen) -> ChangePlan:
    """Plan the end of a group's pause."""
    found = where.pause
    if found is None:
        raise TargetMissingError(f"{group} on {stream} is not paused; `millstream worker ls` lists the pauses")
    readers, _ = _readers(seen, stream, group)
    table = (BeforeAfter("paused", found.reason, "no"), BeforeAfter("workers that read it", 0, readers))
    notes = (_SEEN, *(() if readers else ("No worker is subscribed to it at present.",)))
    again = command_words("worker pause", stream, group, options=("--reason", found.reason))
    undo = Undo(again, (("HSET", protocol.CONTROL, where.field, where.value or b""),))
    question = f"End the pause of the group {group!r} of {stream!r}?"
    steps = (Step((where.removal,), (where.check(),)),)
    return ChangePlan(
        "worker resume", stream, group, question, table, notes, steps, undo, {"reason": found.reason},
        key=protocol.CONTROL,
    )  # fmt: skip


def _readers(seen: WorkersSeen, stream: str, group: str) -> tuple[int, int]:
    """Return the number of workers subscribed to a group, and the number of its entries that they are running."""
    found = [sub for one in seen.workers for sub in one.subscribers if (sub.stream, sub.group) == (stream, group)]
    return len(found), sum(sub.running for sub in found)


_GROUPS_SHOWN = 20  # limit of groups that a preview shows


def plan_reap(
    stream: str, groups: Mapping[str, Sequence[ConsumerStatus]], *, idle_ms: int, alive: Container[tuple[str, str]]
) -> ChangePlan:
    """Plan to remove consumers that are idle for long and hold no entries, except those of live workers.

    A consumer that waits for its first entry looks as idle as a dead one, so the names of live workers are needed.
    """
    gone = {
        name: [one for one in every if not one.pending and one.idle_ms >= idle_ms and (name, one.name) not in alive]
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
    notes = ("They hold nothing, so nothing is lost; the next read of a live consumer creates it again.",)
    undo = Undo(note="There is nothing to undo: the next read by such a name creates it again.")
    question = f"Remove {len(removed)} {'consumer' if len(removed) == 1 else 'consumers'} of {stream!r}?"
    return ChangePlan(
        "worker reap", stream, group, question, table, notes, steps, undo, {"consumers": removed},
        needs_script=True,
    )  # fmt: skip
