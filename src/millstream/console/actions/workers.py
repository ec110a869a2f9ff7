"""Orders to workers: ``worker quiet``, ``drain``, ``stop``, ``pause`` and ``resume``; and ``worker reap``."""

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, TypeAlias

from millstream import times
from millstream.client.line import Line
from millstream.clock import SystemClock
from millstream.console.actions.parameters import Group, Stream, now_ms, number
from millstream.console.changes.actions import Word, action
from millstream.console.changes.making import ActionCall, Prepared
from millstream.console.changes.plan import ChangePlan, ChangeRefusedError
from millstream.console.changes.workers import orders, reaping
from millstream.console.changes.workers.orders import OrderTarget, PauseField
from millstream.console.model.workers import WorkersSeen
from millstream.console.reading import fleet, groups
from millstream.errors import UsageError
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
    seen = await _workers(change.line)
    known = {one.id: one for one in seen.workers}
    ids = lookup.pick(list(known), wanted, everyone=everyone)
    change.settle(worker="\n".join(ids), key=None, all=None)
    targets = [OrderTarget(known[each], protocol.order_field(each)) for each in ids]
    plan = orders.order(change.action.name, targets, seen, protocol.CONTROL)

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
        Word("option", "REASON", "Why, for whoever looks later.", title="reason", hint="the card provider is down",
             needed=True),
    ],
    *,
    by: Annotated[str | None, Word("option", says="Who. Default: this user and host.", form=False)] = None,
    ahead: Annotated[bool, Word("flag", says="Also where there is no such stream or group yet.")] = False,
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
        raise UsageError("why? A reason is for whoever looks later")
    at_ms = min(now_ms() if at_ms is None else at_ms, 10**15)
    change.settle(at_ms=str(at_ms), by=None)
    new = HandlerPause(stream, group, reason, by or change.who, at_ms)
    if not ahead:
        await lookup.require_group(change.line, stream, group)
    where, seen = await _pause_field(change.line, stream, group), await _workers(change.line)
    return orders.pause(where, new, protocol.pause_record(new), seen)


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
    where, seen = await _pause_field(change.line, stream, group), await _workers(change.line)
    return orders.resume(where, stream, group, seen)


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
    seen = await _workers(change.line)
    alive = {(sub.group, sub.consumer) for one in seen.workers for sub in one.subscribers if sub.stream == stream}
    found = {name: await groups.consumers(change.line, stream, name) for name in names}
    return reaping.reap(stream, found, idle_ms=idle, alive=alive)


async def _workers(line: Line) -> WorkersSeen:
    seen = await fleet.workers(line)
    if seen.why is not None:
        raise ChangeRefusedError(seen.why)
    return seen


async def _pause_field(line: Line, stream: str, group: str) -> PauseField:
    """The field that keeps the pause of a group, and its value."""
    field = protocol.pause_field(stream, group)
    (value,) = await line.near(protocol.CONTROL).calls([("HGET", protocol.CONTROL, field)])
    if isinstance(value, Exception):
        raise ChangeRefusedError(f"{protocol.CONTROL}: {value}")
    return PauseField(protocol.CONTROL, field, value, protocol.parse_pause(stream, group, value))
