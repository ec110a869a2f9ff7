"""Consumers that processes left, decided: the ones to remove. Pure."""

from collections.abc import Container, Mapping, Sequence

from millstream.console.changes.plan import BeforeAfter, ChangePlan, Step, Undo, consumer_check
from millstream.console.model.streams import ConsumerStatus

_SHOWN = 20  # groups that a preview has a row for


def reap(
    stream: str,
    groups: Mapping[str, Sequence[ConsumerStatus]],
    *,
    idle_ms: int,
    alive: Container[tuple[str, str]],
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
        for name, found in list(gone.items())[:_SHOWN]
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
