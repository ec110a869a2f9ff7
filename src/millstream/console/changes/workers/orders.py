"""Orders to workers, decided: be quiet, drain, stop, go on; a group's pause and its end. Pure.

An order is a field of the registry's hash of orders. Each is left only while the field is as it was when it was shown,
so that an order of another user in between is not overwritten.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.console.changes.plan import (
    BeforeAfter,
    ChangePlan,
    FactCheck,
    Step,
    TargetMissingError,
    Undo,
    Words,
    as_fact,
    counted,
)
from millstream.console.model.names import command_words
from millstream.console.model.workers import WorkersSeen, WorkerStatus
from millstream.worker.model.pause import HandlerPause

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


def order(action: str, targets: Sequence[OrderTarget], seen: WorkersSeen, control: str) -> ChangePlan:
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


@dataclass(frozen=True, slots=True)
class PauseField:
    """The field of a group's pause, and its present value."""

    control: str  # Key of the registry's hash
    field: str  # Field of the hash
    value: bytes | None  # Its present value; None for nothing
    pause: HandlerPause | None  # The value, read; None without a pause

    def check(self) -> FactCheck:
        """A check that the pause is unchanged."""
        read = ("HGET", self.control, self.field)
        return FactCheck("the pause", read, "value", "", (("", as_fact(self.value)),))


def pause(where: PauseField, new: HandlerPause, record: str, seen: WorkersSeen) -> ChangePlan:
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


def resume(where: PauseField, stream: str, group: str, seen: WorkersSeen) -> ChangePlan:
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
