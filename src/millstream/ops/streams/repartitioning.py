"""The actions that change the number of a stream's partitions: ``stream repartition`` and ``stream unseal``."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from millstream.client.line import Line
from millstream.client.partitions.changing import check_unused, drained, finish, planned, withdraw
from millstream.client.partitions.declared import find_layout
from millstream.client.partitions.layout import HIGHEST_ID, PartitionLayout, described, descriptor_key
from millstream.errors import UsageError
from millstream.ops.actions import Word, action
from millstream.ops.asking import is_missing
from millstream.ops.guard import StepResult
from millstream.ops.making import ActionCall, Prepared
from millstream.ops.parameters import Stream, number
from millstream.ops.plan import BeforeAfter, ChangePlan, ChangeRefusedError, Counting, Step, Undo
from millstream.ops.words import command_words, shell_line
from millstream.texts import plural


@action("stream repartition", "Change the number of partitions of a stream that is in use.", "XGROUP CREATE", "XTRIM",
        loses=True)  # fmt: skip
async def repartition(
    change: ActionCall,
    stream: Stream,
    to: Annotated[
        int | None,
        Word("argument", "[NUMBER]", name="number", title="partitions", hint="32", read=number(1), least=1),
    ] = None,
    finished: Annotated[
        bool,
        Word("flag", says="Remove the entries and groups of earlier partitions that no group needs any more.",
             name="finish", title="finish", hint="remove earlier partitions that no group needs"),
    ] = False,
    keep: Annotated[
        bool,
        Word("flag", says="With --finish, keep these entries for Spark or an archive that still reads them.",
             name="keep", title="keep", hint="their entries stay, for Spark and archives"),
    ] = False,
) -> Prepared:  # fmt: skip
    """Give STREAM a new number of partitions, while it is published to and read.

    The partitions are sealed: they keep their entries, and new entries go to new streams. A worker reads a new
    partition once its group has handled all earlier entries of the partition's keys. So entries of a key keep their
    order. Publishers find the new partitions by themselves; other programs that add to a sealed stream fail.

    After an interruption, the same command line goes on. Later, --finish removes the entries of the sealed partitions;
    it is refused while a group has entries there.

    \b
    Examples:
      millstream stream repartition orders 32 --dry-run
      millstream stream repartition orders 32
      millstream stream repartition orders --finish
    """
    if (to is None) != finished or (keep and not finished):
        raise UsageError("NUMBER or --finish is missing. Give one of them; --keep goes only with --finish.")
    if to is not None:
        if await find_layout(change.line, stream) is None:
            fault = "does not exist" if await is_missing(change.line, stream) else "is not partitioned"
            line = shell_line(command_words("stream partition", stream, str(to), options=("--by", "FIELD")))
            raise ChangeRefusedError(f"the stream {stream!r} {fault}. Run `{line}` to make it a partitioned one.")
        return await prepared_repartition(change, "stream repartition", stream, to)
    try:
        layout, found = await drained(change.line, stream)
    except UsageError as error:
        raise ChangeRefusedError(str(error)) from None
    commands = [("XTRIM", key, "MAXLEN", 0) for key in found if not keep]
    plan = ChangePlan(
        "stream repartition", stream, "",
        f"Remove the {'groups' if keep else 'entries and groups'} of {plural(len(found), 'sealed partition')} of "
        f"{stream!r}?",
        (BeforeAfter("entries in them", entries := sum(one.length for one in found.values()), entries if keep else 0),
         BeforeAfter("their groups", sum(len(one.groups or ()) for one in found.values()), 0)),
        ("Their keys stay, sealed: publishers that know an earlier layout only are refused there.",),
        (Step((*commands, ("SET", descriptor_key(stream), described(layout)))),) if found else (),
        Undo(note="It cannot be undone; `millstream export` keeps a copy."), {"partitions": len(found)},
    )  # fmt: skip
    return prepared_work(plan, lambda line: finish(line, stream, keep=keep))


@action("stream unseal", "Withdraw a change of the number of partitions.", "XGROUP CREATE")
async def unseal(change: ActionCall, stream: Stream) -> Prepared:
    """Withdraw the last change of STREAM's number of partitions, while the new partitions have no entry.

    The partitions of before, or the plain stream, take entries again. For a moment publishers may be refused. Once an
    entry is in a new partition it is refused; repartition to the earlier number then.

    \b
    Examples:
      millstream stream unseal orders --dry-run
      millstream stream unseal orders
    """
    layout = await find_layout(change.line, stream)
    if layout is None or len(layout.generations) < 2:
        raise ChangeRefusedError(f"No change of the number of partitions of {stream!r} can be withdrawn.")
    *_, old, new = layout.generations
    try:
        await check_unused(change.line, new.keys, stream)
    except UsageError as error:
        raise ChangeRefusedError(str(error)) from None
    plan = ChangePlan(
        "stream unseal", stream, "",
        f"Have {plural(len(old.keys), 'sealed partition')} of {stream!r} take entries again?",
        (BeforeAfter("partitions", len(new.keys), len(old.keys) if old.number else 0),), (),
        (Step(tuple(("XSETID", key, "<its last id>") for key in old.keys)),),
        Undo(command_words(f"stream {'re' * bool(old.number)}partition", stream, str(len(new.keys)),
                           options=() if old.number or not layout.by else ("--by", layout.by))),
        {"partitions": len(old.keys)},
    )  # fmt: skip
    return prepared_work(plan, lambda line: withdraw(line, stream))


async def prepared_repartition(change: ActionCall, name: str, stream: str, to: int, by: str | None = None) -> Prepared:
    """Prepare a change of the number of partitions, or the first division of a stream with entries."""
    try:
        wanted = await planned(change.line, stream, to, by)
    except UsageError as error:
        raise ChangeRefusedError(str(error)) from None
    *_, old, new = wanted.layout.generations if len(wanted.layout.generations) > 1 else (None, None)
    now = len(wanted.before.keys) if wanted.before else 0
    plan = ChangePlan(
        name, stream, "", f"Divide {stream!r} into {plural(to, 'partition')}?", (BeforeAfter("partitions", now, to),),
        _notes(wanted.layout), () if wanted.nothing or old is None or new is None else (Step(
            (("SET", descriptor_key(stream), described(wanted.layout)),
             *(("XSETID", key, HIGHEST_ID) for key in old.keys))),),
        Undo(command_words("stream unseal", stream), note="Only while the new partitions have no entry."),
        {"partitions": to, "before": now, "by": wanted.layout.by},
    )  # fmt: skip
    return prepared_work(plan, wanted.run)


def _notes(layout: PartitionLayout) -> tuple[str, ...]:
    return (
        f"New entries go to {layout.keys[0]!r} to {layout.keys[-1]!r}, which are read once the earlier ones are.",
        "The earlier streams are sealed: a program that adds to them without the layout fails.",
        "Workers that read a plain stream must be started again to read its partitions.",
        key_field(layout),
    )[: 4 if layout.generations[0].number == 0 else 2]


def key_field(layout: PartitionLayout) -> str:
    """Return a note for the preview about the source of an entry's key."""
    return (
        f"The field with an entry's key is {repr(layout.by) if layout.by else 'not set: each publish gives its key'}."
    )


def prepared_work(plan: ChangePlan, make: Callable[[Line], Awaitable[object]]) -> Prepared:
    """Return a change that a function makes; its UsageError is a refusal."""

    async def work(line: Line, results: list[StepResult], tell: Counting, _: asyncio.Event) -> None:
        try:
            await make(line)
        except UsageError as error:
            raise ChangeRefusedError(str(error)) from None
        results.append(StepResult(plan.steps[0], "done"))
        tell(1)

    return Prepared(plan, 1, work=work)
