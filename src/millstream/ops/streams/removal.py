"""The removal of a partitioned stream as a whole, and the refusal of changes that fit no partitioned stream."""

from collections.abc import Sequence

from millstream.client.line import Line
from millstream.client.partitions.drained import PartState, look_at
from millstream.client.partitions.layout import (
    HIGHEST_ID,
    PartitionLayout,
    descriptor_key,
    logical,
    parse_layout,
    part_key,
)
from millstream.client.partitions.removing import free, remove, scheduled
from millstream.ops.asking import calls, checked, refusal
from millstream.ops.making import Prepared
from millstream.ops.plan import BeforeAfter, ChangePlan, ChangeRefusedError, Step, Undo, Words, counted
from millstream.ops.streams.partitioned import partition_of, read_partitioned
from millstream.ops.streams.reading import names
from millstream.ops.streams.repartitioning import prepared_work
from millstream.texts import plural


async def refuse_partition(line: Line, stream: str, verb: str, *, whole: bool = False) -> None:
    """Refuse a change of one partition alone; with ``whole`` also of the whole stream."""
    if (above := await partition_of(line, stream)) is not None:
        raise ChangeRefusedError(
            f"`stream {verb}` of {stream!r} is invalid: it is a partition of {above!r}. Name the whole stream."
        )
    if whole and await _layout(line, stream) is not None:
        raise ChangeRefusedError(
            f"the stream {stream!r} is partitioned, and its partitions have their keys by its name. Partition a stream "
            "with the new name, and publish there; `millstream stream rm` removes the old one once it is drained."
        )


async def _layout(line: Line, stream: str) -> PartitionLayout | None:
    """Return the layout; None if there is none, or if a plain stream's user may not read it."""
    key = descriptor_key(stream)
    (reply,) = await calls(line.near(key), [("GET", key)])
    if refusal(reply) is not None and not await _is_sealed(line, stream):
        return None
    return parse_layout(stream, checked(reply, key))


async def _is_sealed(line: Line, key: str) -> bool:
    (reply,) = await calls(line.near(key), [("XINFO", "STREAM", key)])
    return refusal(reply) is None and HIGHEST_ID.encode() in reply


async def prepared_removal(line: Line, stream: str) -> Prepared | None:
    """Prepare the removal of a partitioned stream, or of the keys that it left; None for a plain stream."""
    layout = await _layout(line, stream)
    if layout is not None:
        return await _whole(line, stream, layout)
    if not await _is_sealed(line, stream) and not await _is_sealed(line, part_key(stream, 1, 0)):
        return None
    found = await look_at(line, await _leftover(line, stream))
    sealed = tuple(key for key, state in found.items() if state.sealed and not state.length)
    if not sealed:
        return None
    return _free(stream, sealed, (await look_at(line, [stream]))[stream], await scheduled(line, (*sealed, stream)))


async def _leftover(line: Line, stream: str) -> list[str]:
    """Return the keys in the form of the stream's partitions, the first of the first generation last."""
    prefix = "".join(f"\\{one}" if one in "*?[]^\\" else one for one in stream)
    found = [key for key in await names(line, f"{prefix}*{{*}}") if logical(key) == stream]
    return sorted(found, key=lambda key: (len(key), key), reverse=True)


async def _whole(line: Line, stream: str, layout: PartitionLayout) -> Prepared:
    seen = await read_partitioned(line, stream)
    if seen is None or (refused := [key for key in seen.parts.refused if not await _is_absent(line, key)]):
        raise ChangeRefusedError(
            f"{(refused or [stream])[0] if seen else stream!r} cannot be read. Allow XINFO, XRANGE and XPENDING on all "
            "partitions."
        )
    keys, whole = tuple(dict.fromkeys((*layout.every_key, stream))), seen.status
    shown, waiting = await look_at(line, keys), await scheduled(line, keys)
    notes = [f"{counted(whole.length).capitalize()} {'is' if whole.length == 1 else 'are'} lost."]
    notes += [f"The group {group.name!r} goes, with {counted(group.pending)} pending." for group in whole.groups]
    notes += [
        "The keys stay, empty and sealed: a program that still publishes fails. A second `stream rm` removes them.",
        "Dead letters and recurring schedules stay. Stop the workers of the stream first.",
    ]
    table = (
        BeforeAfter("partitions", len(layout.keys), 0),
        BeforeAfter("entries", whole.length, 0),
        BeforeAfter("groups", len(whole.groups), 0),
        BeforeAfter("pending", whole.pending, 0),
        BeforeAfter("scheduled entries", waiting, 0),
    )
    commands: list[Words] = [("XSETID", key, HIGHEST_ID) for key in layout.keys]
    commands += [("XGROUP", "DESTROY", key, group.name) for group in whole.groups for key in layout.every_key]
    commands += [("XTRIM", key, "MAXLEN", 0) for key in keys]
    commands.append(("DEL", descriptor_key(stream)))
    question = (
        f"Remove the stream {stream!r} of {plural(len(layout.keys), 'partition')}, with {counted(whole.length)} and "
        f"{plural(len(whole.groups), 'group')}?"
    )
    facts: dict[str, object] = {
        "partitions": len(layout.keys), "entries": whole.length, "groups": len(whole.groups), "pending": whole.pending,
        "scheduled": waiting,
    }  # fmt: skip
    plan = _planned(stream, question, table, notes, commands, facts)
    return prepared_work(plan, lambda line: remove(line, layout, shown, waiting))


async def _is_absent(line: Line, key: str) -> bool:
    return await calls(line.near(key), [("EXISTS", key)]) == [0]


def _free(stream: str, leftover: tuple[str, ...], plain: PartState, waiting: int) -> Prepared:
    """Prepare the removal of the empty sealed keys of earlier partitions, and of the stream itself."""
    groups = len(plain.groups or ())
    notes = [
        f"Entries and groups of {plural(len(leftover), 'sealed partition')} are gone already; now their keys go.",
        f"Stop all publishers first: one with the former layout would create {leftover[-1]!r} anew, unread.",
    ]
    table = (BeforeAfter("keys", len(leftover) + bool(plain.last_id), 0), BeforeAfter("entries", plain.length, 0),
             BeforeAfter("groups", groups, 0), BeforeAfter("scheduled entries", waiting, 0))  # fmt: skip
    question = f"Remove {stream!r} with {counted(plain.length)} and {plural(len(leftover), 'sealed partition')}?"
    facts: dict[str, object] = {"keys": len(leftover), "entries": plain.length, "groups": groups, "scheduled": waiting}
    plan = _planned(stream, question, table, notes, [("DEL", key) for key in (*leftover, stream)], facts)
    return prepared_work(plan, lambda line: free(line, stream, leftover, plain.length))


def _planned(
    stream: str,
    question: str,
    table: tuple[BeforeAfter, ...],
    notes: Sequence[str],
    commands: Sequence[Words],
    facts: dict[str, object],
) -> ChangePlan:
    steps = (Step(tuple(commands)),)
    copies = f"`millstream export --stream '{stream}*'` copies the partitions first"
    undo = Undo(note=f"It cannot be undone; {copies}, and `stream partition` reads them again after an import.")
    return ChangePlan("stream rm", stream, "", question, table, tuple(notes), steps, undo, facts, removes=True)
