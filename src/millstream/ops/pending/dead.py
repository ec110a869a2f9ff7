"""The action ``pending dead``, which turns pending entries into dead letters."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Annotated

from millstream.client.dead_letter.letter import DeadLetter, dead_key, pack, take_history
from millstream.client.dead_letter.transaction import BATCH, FIELDS_LIMIT
from millstream.client.line import Line
from millstream.errors import UsageError
from millstream.ops.actions import Word, action
from millstream.ops.asking import calls, checked
from millstream.ops.making import ActionCall, Prepared
from millstream.ops.parameters import Group, Stream, now_ms, number
from millstream.ops.pending.changes import PendingList, paged, pending_list, plan_of_page
from millstream.ops.pending.choosing import PARTS, EntriesChosen
from millstream.ops.plan import ChangePlan, ChangeRefusedError, HeldEntry, Undo
from millstream.ops.rights import rights_on
from millstream.ops.words import command_words, milliseconds, shell_line

_SET_ASIDE = "rejected by a person"
"""Error text of such a letter, if the user gives no reason."""


@action("pending dead", "Make dead letters of pending entries: no worker tries them again.", "XACK", undo="dead retry",
        parts=PARTS)  # fmt: skip
async def set_aside(
    change: ActionCall,
    stream: Stream,
    group: Group,
    chosen: EntriesChosen,
    reason: Annotated[
        str,
        Word("option", "TEXT", "Error text of the letters.", title="reason", hint="it crashes every worker"),
    ] = _SET_ASIDE,
    to: Annotated[str, Word("option", "KEY", "Dead-letter stream (default: STREAM:dead).", typed="dead")] = "",
    *,
    at_ms: Annotated[int | None, Word("hidden", read=number(0))] = None,
) -> Prepared:  # fmt: skip
    """Make dead letters of pending entries of GROUP of STREAM: no worker tries them again.

    Name entries by ID, choose them by options, or use --all. The letter is written and the entry acknowledged in one
    step. An entry that was processed, claimed or released after the preview is skipped, and the exit code is then 1.
    `millstream dead retry` puts a letter back; `millstream dead edit` corrects its entry first.

    \b
    Examples:
      millstream pending dead orders billing 1763721600000-0 --reason 'crashes every worker'
      millstream pending dead orders billing --deliveries 10 --dry-run
    """
    dead = to or dead_key(stream)
    if dead == stream:
        raise UsageError(f"{stream!r} is a dead-letter stream. Name another stream for its letters with --to.")
    if (why := (await rights_on(change.line, dead)).refusal("XADD")) is not None:
        raise ChangeRefusedError(f"{dead}: {why}")
    at_ms = min(now_ms() if at_ms is None else at_ms, 10**15)
    change.settle(at_ms=str(at_ms))  # a preview and its confirmation use the same time
    where, moment = pending_list(change, stream, group), at_ms

    async def make(line: Line, held: list[HeldEntry]) -> ChangePlan:
        letters = [
            (each, _letter(where, each, flat, reason or _SET_ASIDE, moment))
            async for each, flat in _entries(line, where, held)
        ]
        return plan_set_aside(
            where,
            dead,
            letters,
            f"`{shell_line(command_words('dead retry', dead, 'ID'))}` puts a letter back on its stream, as a new entry "
            "for this group alone.",
        )

    notes = (
        "A worker that is running one finishes; its outcome has no effect any more.",
        "Entries that are no longer in the stream stay pending: `millstream pending ack --gone` takes them out.",
    )
    return await paged(change, where, chosen, notes, make, BATCH)


async def _entries(
    line: Line, where: PendingList, held: list[HeldEntry]
) -> AsyncGenerator[tuple[HeldEntry, list[bytes]], None]:
    """Yield the entries that the stream still has, with their fields."""
    replies = await calls(line.near(where.stream), [("XRANGE", where.stream, each.id, each.id) for each in held])
    for each, reply in zip(held, replies, strict=True):
        for _, flat in checked(reply, where.stream):
            if len(flat) > FIELDS_LIMIT:
                raise ChangeRefusedError(
                    f"{each.id} has {len(flat) // 2} fields, too many for the script of this change. "
                    "Release it with pending nack; a worker makes the dead letter."
                )
            yield each, list(flat)


def _letter(where: PendingList, held: HeldEntry, flat: list[bytes], reason: str, at_ms: int) -> DeadLetter:
    fields, history = take_history(flat)
    return DeadLetter(
        tuple(fields), where.stream, held.id, where.group, held.consumer, held.deliveries, "reject", reason, "",
        milliseconds(held.id), at_ms, history,
    )  # fmt: skip


def plan_set_aside(
    where: PendingList, dead: str, letters: Sequence[tuple[HeldEntry, DeadLetter]], note: str
) -> ChangePlan:
    """Plan dead letters of entries; the letter is written first, so that no entry is lost in between."""
    found = dict(letters)
    plan = plan_of_page("pending dead", where, list(found), lambda each: ("XADD", dead, "*", *pack(found[each])))
    steps = tuple(
        replace(step, commands=(*step.commands, ("XACK", where.stream, where.group, step.entry))) for step in plan.steps
    )
    # A script is required: otherwise XACK would run even after the server refused an XADD
    return replace(plan, steps=steps, undo=Undo(note=note), facts={"dead": dead}, needs_script=True)
