"""What workers are told, from what a person asked for to a plan that can be previewed and then made."""

from collections.abc import AsyncGenerator, Sequence

from millstream.client.line import Line
from millstream.clock import SystemClock
from millstream.console.changes.making import Prepared, require_rights
from millstream.console.changes.plan import ChangePlan, ChangeRefusedError
from millstream.console.changes.workers import orders, reaping
from millstream.console.changes.workers.orders import OrderTarget, PauseField
from millstream.console.model.workers import WorkersSeen
from millstream.console.reading import fleet, groups
from millstream.worker.model.pause import HandlerPause
from millstream.worker.registry import lookup, protocol


async def order(line: Line, action: str, wanted: Sequence[str], *, everyone: bool = False) -> Prepared:
    """Leave an order for workers, or take it back.

    Args:
        line: to the server.
        action: ``worker quiet``, ``drain``, ``stop`` or ``resume``.
        wanted: their ids, or what these begin with.
        everyone: all that are alive, and none is named.

    Raises:
        ChangeRefusedError: the user may not, or may not look.
        UsageError: none is named, or a name is that of several.
        NotThereError: none that is alive has such a name.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, action, protocol.CONTROL)
    seen = await _workers(line)
    known = {one.id: one for one in seen.workers}
    ids = lookup.pick(list(known), wanted, everyone=everyone)
    plan = orders.order(
        action, [OrderTarget(known[each], protocol.order_field(each)) for each in ids], seen, protocol.CONTROL
    )

    async def pages(line: Line) -> AsyncGenerator[ChangePlan, None]:
        # orders of workers that are gone would meet their successors
        await protocol.tidy(line, SystemClock().wall_time())
        yield plan

    return Prepared(plan, rights, len(ids), pages)


async def pause(line: Line, new: HandlerPause, *, ahead: bool = False) -> Prepared:
    """Let no worker run anything for a group until it is resumed.

    Args:
        line: to the server.
        new: the pause: of which group, why, by whom, since when.
        ahead: also where there is no such stream or group yet.

    Raises:
        ChangeRefusedError: the user may not, or may not look.
        NotThereError: there is no such stream or group.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "worker pause", protocol.CONTROL)
    if not ahead:
        await lookup.require_group(line, new.stream, new.group)
    where, seen = await _pause_field(line, new.stream, new.group), await _workers(line)
    return Prepared(orders.pause(where, new, protocol.pause_record(new), seen, ahead=ahead), rights)


async def resume_group(line: Line, stream: str, group: str) -> Prepared:
    """End the pause of a group.

    Args:
        line: to the server.
        stream: key of the stream.
        group: name of the group.

    Raises:
        TargetMissingError: it is not paused.
        ChangeRefusedError: the user may not, or may not look.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "worker resume", protocol.CONTROL)
    where, seen = await _pause_field(line, stream, group), await _workers(line)
    return Prepared(orders.resume(where, stream, group, seen), rights)


async def reap(line: Line, stream: str, group: str | None, words: tuple[str, ...], *, idle_ms: int) -> Prepared:
    """Remove consumers that are idle for long and hold nothing.

    Args:
        line: to the server.
        stream: key of the stream.
        group: of it; None for all its groups.
        words: the command line.
        idle_ms: they asked for nothing for so long, milliseconds.

    Raises:
        ChangeRefusedError: the user may not, or may not look.
        NotThereError: there is no such stream or group.
        Disconnected: no answer came.
    """
    if group is not None:
        await lookup.require_group(line, stream, group)
    names = [group] if group is not None else await lookup.groups(line, stream)
    rights = await require_rights(line, "worker reap", stream)
    seen = await _workers(line)
    alive = {(sub.group, sub.consumer) for one in seen.workers for sub in one.subscribers if sub.stream == stream}
    found = {name: await groups.consumers(line, stream, name) for name in names}
    return Prepared(reaping.reap(stream, found, words, idle_ms=idle_ms, alive=alive), rights)


async def _workers(line: Line) -> WorkersSeen:
    seen = await fleet.workers(line)
    if seen.why is not None:
        raise ChangeRefusedError(seen.why)
    return seen


async def _pause_field(line: Line, stream: str, group: str) -> PauseField:
    """Where the pause of a group is kept, and how it is now."""
    field = protocol.pause_field(stream, group)
    (value,) = await line.near(protocol.CONTROL).calls([("HGET", protocol.CONTROL, field)])
    if isinstance(value, Exception):
        raise ChangeRefusedError(f"{protocol.CONTROL}: {value}")
    return PauseField(protocol.CONTROL, field, value, protocol.parse_pause(stream, group, value))
