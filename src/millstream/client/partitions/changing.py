"""Change the number of partitions, step by step: a run that was interrupted continues when it is run again.

1. :func:`planned` reads the state, and :meth:`LayoutChange.check` refuses a change that could not be completed.
2. The new streams get every group of the old ones, at their beginning.
3. The descriptor gets the new generation. Publishers offer an entry to the old one first, so a key has one place.
4. Each old stream is sealed. From then on its keys' entries go to the new one.
5. The descriptor marks the old generation as sealed.

Owners read a new partition when its parents are drained (:mod:`millstream.client.partitions.drained`).
"""

from dataclasses import dataclass, replace

from redis.exceptions import ResponseError

from millstream import failpoints
from millstream.client.later.scripts import ServerScript
from millstream.client.line import Line, passes
from millstream.client.partitions.declared import find_layout, free_generation
from millstream.client.partitions.drained import PartState, look_at
from millstream.client.partitions.layout import (
    HIGHEST_ID,
    Generation,
    PartitionLayout,
    described,
    descriptor_key,
    first_layout,
    part_key,
)
from millstream.client.ranges import LAST, order_of
from millstream.client.slots import beside, tag_of
from millstream.errors import UsageError

SCRIPT = ServerScript.beside("millstream.client.partitions", "repartition.lua")

_SCANNED = 1_000


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """A change of a stream's partitions."""

    before: PartitionLayout | None  # None for a plain stream
    layout: PartitionLayout  # Layout after all streams of the last generation but one are sealed

    @property
    def nothing(self) -> bool:
        """True if the change is already complete."""
        return self.before == self.layout

    async def check(self, line: Line) -> None:
        """Refuse a change that could not be completed; nothing is changed.

        Raises:
            UsageError: Spark keeps rows for one of the streams, or the user does not have the rights.
            ResponseError: the server is full.
        """
        old = self.layout.generations[-2].keys
        await _no_staged_rows(line, old)
        for key in old:
            try:
                await SCRIPT.call(line, (beside(key, "seal", "try"),), ("try", HIGHEST_ID))
            except ResponseError as error:
                if passes(error) or "OOM" in str(error):  # Redis 6 has OOM in the middle of the text
                    raise
                raise UsageError(
                    f"{key!r} cannot be sealed, and nothing was changed: {error}. Allow EVAL, EVALSHA, XSETID, XGROUP, "
                    "SET, DEL and the keys millstream:*."
                ) from error

    async def run(self, line: Line) -> None:
        """Make the change, or the missing steps of it."""
        if self.nothing:
            return
        *before, old, new = self.layout.generations
        open_ = replace(self.layout, generations=(*before, replace(old, sealed=False), new))
        if self.before != open_:
            await self.check(line)
        failpoints.reach("repartition")
        found = await look_at(line, old.keys)
        groups = sorted({group for one in found.values() for group in one.groups or ()})
        made = await line.calls(
            [("XGROUP", "CREATE", key, group, "0", "MKSTREAM") for key in new.keys for group in groups]
        )
        for reply in made:
            if isinstance(reply, Exception) and not str(reply).startswith("BUSYGROUP"):
                raise reply
        failpoints.reach("repartition")
        if self.before != open_:
            await swap(line, self.before, open_)
        for key in old.keys:
            failpoints.reach("repartition")
            await seal(line, key)
        failpoints.reach("repartition")
        await swap(line, open_, self.layout)


async def planned(line: Line, stream: str, number: int, by: str | None = None) -> LayoutChange:
    """Return the change of a stream to this number of partitions, or the missing steps of an interrupted change.

    Raises:
        UsageError: the change is invalid.
    """
    first = first_layout(stream, number, by)
    layout, name = await find_layout(line, stream), f"the change of {stream!r} to {number} partitions"
    if layout is None:
        (state,) = (await look_at(line, (stream,))).values()
        if not state.last_id:
            raise UsageError(f"{name} is invalid: there is no such stream. Check the name, or partition it first.")
        layout, before = replace(first, generations=(Generation(0, (stream,)),)), None
    else:
        before = layout
    *_, last = layout.generations
    if by not in (None, layout.by):
        raise UsageError(f"{name} is invalid: the stream is partitioned by {layout.by!r} for good. Omit the field.")
    under_way = any(not one.sealed for one in layout.generations[:-1])
    if under_way and number != len(last.keys):
        raise UsageError(
            f"{name} is invalid: a change to {len(last.keys)} is under way. Finish it with that number, or withdraw it "
            f"by `millstream stream unseal {stream}`."
        )
    if before and number == len(last.keys):
        return LayoutChange(layout, _all_sealed(layout))
    fresh = await free_generation(line, stream, last.number + 1)
    keys = tuple(part_key(stream, fresh, at) for at in range(number))
    wanted = replace(layout, generations=(*layout.generations, Generation(fresh, keys, last.keys)))
    return LayoutChange(before, _all_sealed(wanted))


def _all_sealed(layout: PartitionLayout) -> PartitionLayout:
    """Return the layout as it is once all generations but the last are sealed."""
    *before, last = layout.generations
    return replace(layout, generations=(*(replace(one, sealed=True) for one in before), last))


async def _no_staged_rows(line: Line, keys: tuple[str, ...]) -> None:
    tags = {tag_of(key) for key in keys}
    for node in await line.nodes():
        at: bytes | int = 0
        while True:
            at, found = await node.call("SCAN", at, "MATCH", "millstream:{*}:staged:*", "COUNT", _SCANNED)
            for key in found:
                tag, _, rest = key.decode(errors="replace").removeprefix("millstream:{").partition("}:staged:")
                if tag in tags:
                    raise UsageError(
                        f"{keys[0]!r} cannot be sealed: the Spark query {rest.partition(':')[0]} has rows on their way "
                        "next to it. Run this again when its batch is over, or stop the query."
                    )
            if int(at) == 0:
                break


async def swap(line: Line, before: PartitionLayout | None, after: PartitionLayout | None) -> None:
    """Replace a descriptor, provided that no other client changed it meanwhile.

    Raises:
        UsageError: another client changed it.
    """
    one = before or after
    assert one is not None
    key = descriptor_key(one.stream)
    words = [described(each) if each else "" for each in (before, after)]
    if not await SCRIPT.call(line.near(key), (key,), ("swap", *words)):
        raise UsageError(f"{key} was changed meanwhile. Look at the stream, and run the same again.")


async def seal(line: Line, key: str) -> None:
    """Make a stream refuse new entries from any client."""
    await SCRIPT.call(line, (key,), ("seal", HIGHEST_ID))


async def unseal(line: Line, key: str, state: PartState) -> None:
    """Make a sealed stream accept entries again, with ids after all that it had."""
    groups = state.groups or {}
    ids = [one for one, _ in groups.values() if one != LAST]
    last = max([b"0-0", state.last_entry, state.highest_deleted, *ids], key=order_of)
    # A group that was created at the end of the sealed stream would get no more entries
    for group, (delivered, _) in groups.items():
        if delivered == LAST:
            await line.call("XGROUP", "SETID", key, group, last)
    await line.call("XSETID", key, last)


async def check_unused(line: Line, keys: tuple[str, ...], stream: str) -> None:
    """Refuse to withdraw a change if one of its new partitions has, or had, an entry.

    Raises:
        UsageError: one has entries.
    """
    for key, one in (await look_at(line, keys)).items():
        if one.last_entry != b"0-0" or one.highest_deleted != b"0-0":
            raise UsageError(
                f"the change of {stream!r} cannot be withdrawn: {key!r} has entries. Repartition it again instead."
            )


async def withdraw(line: Line, stream: str) -> PartitionLayout | None:
    """Go back to the generation before the last one; return the new layout, None for a plain stream.

    Raises:
        UsageError: there is no change to withdraw, or the last generation has entries.
    """
    layout = await find_layout(line, stream)
    if layout is None or len(layout.generations) < 2:
        raise UsageError(f"{stream!r} has no change of its number of partitions that can be withdrawn.")
    *before, old, new = layout.generations
    for key in new.keys:
        await seal(line, key)
    try:
        await check_unused(line, new.keys, stream)
    except UsageError:
        for key, one in (await look_at(line, new.keys)).items():
            await unseal(line, key, one)
        raise
    failpoints.reach("repartition")
    for key, one in (await look_at(line, old.keys)).items():
        if one.sealed:
            await unseal(line, key, one)
    failpoints.reach("repartition")
    after = None if not old.number else replace(layout, generations=(*before, replace(old, sealed=False)))
    await swap(line, layout, after)
    return after


async def drained(line: Line, stream: str) -> tuple[PartitionLayout, dict[str, PartState]]:
    """Return the layout, and the partitions of earlier generations, which must all be drained.

    Raises:
        UsageError: one is not sealed, or a group has entries of it to handle.
    """
    layout = await find_layout(line, stream)
    if layout is None:
        raise UsageError(f"the stream {stream!r} is not partitioned, so it has no earlier partitions to finish.")
    found = await look_at(line, [key for one in layout.generations[:-1] for key in one.keys])
    for key, state in found.items():
        busy = [group for group in state.groups or () if state.busy(group)]
        if busy or not state.sealed:
            why = f"the group {busy[0]!r} has entries of it to handle" if busy else "it is not sealed"
            raise UsageError(f"{key!r} is needed: {why}. Run this again when it is drained.")
    return layout, found


async def finish(line: Line, stream: str, *, keep: bool = False) -> int:
    """Remove the entries and groups of drained, sealed partitions; return the number of these partitions.

    Their keys stay, empty and sealed: a publisher with an old layout must be refused, not create them again. With
    ``keep`` their entries stay for readers without a group.

    Raises:
        UsageError: one is not sealed, or a group has entries of it to handle.
    """
    layout, found = await drained(line, stream)
    *old, last = layout.generations
    over = replace(layout, generations=(*(replace(one, finished=True) for one in old), last))
    # First of all, so that no worker recreates its group there
    await swap(line, layout, over)
    for key, state in found.items():
        failpoints.reach("repartition")
        for group in state.groups or ():
            await line.call("XGROUP", "DESTROY", key, group)
        if not keep:
            await line.call("XTRIM", key, "MAXLEN", 0)
    failpoints.reach("repartition")
    if not keep:
        await swap(line, over, replace(layout, generations=(replace(last, parents=()),)))
    return len(found)
