"""The actions ``limit set`` and ``limit rm``, with their plans."""

from typing import Annotated, TypeAlias

from millstream.client.limits.rate import MOST, RATES, Rate, is_name, parse_rate
from millstream.errors import UsageError
from millstream.ops import plan
from millstream.ops.actions import Word, action
from millstream.ops.limits.reading import named_limit
from millstream.ops.limits.status import LimitStatus
from millstream.ops.making import ActionCall
from millstream.ops.words import command_words


def _rate(text: str) -> Rate:
    rate = parse_rate(text)
    if rate is None:
        raise UsageError(
            f"the rate {text!r} is invalid: it is a number of 1 to {MOST} for each s, m, h or d. Write it such as 30/m."
        )
    return rate


Name: TypeAlias = Annotated[str, Word("argument", "NAME", name="limit")]
NewRate: TypeAlias = Annotated[
    Rate, Word("argument", "RATE", name="rate", title="rate", hint="30/m", read=_rate, needed=True)
]

_SEEN = "Workers see it within five seconds."


@action("limit set", "Set the rate of a limit in place of the code's.", "HSET", undo="limit rm", writes="")
async def set_rate(
    change: ActionCall,
    name: Name,
    rate: NewRate,
    *,
    ahead: Annotated[bool, Word("flag", says="Set it even if no living worker has this limit.")] = False,
) -> plan.ChangePlan:
    """Set the rate of the limit NAME for all workers, in place of the rate in their code.

    RATE is a number for each s, m, h or d, such as 100/s or 30/m. It holds until `millstream limit rm`, also for
    workers that are started later. The burst and `running` stay those of the code.

    \b
    Examples:
      millstream limit set crm 30/m
      millstream limit set crm 30/m --dry-run
    """
    await change.require_rights(RATES)
    try:
        one = await named_limit(change.line, name)
    except plan.TargetMissingError as error:
        if not ahead:
            raise plan.TargetMissingError(f"{error}, and --ahead sets one that no worker has yet") from None
        if not is_name(name):
            raise UsageError(
                f"the limit {name!r} is invalid: it is a text of 1 to 100 characters without : {{ and }}."
            ) from None
        one = LimitStatus(name)
    return plan_set(one, str(rate))


@action("limit rm", "Take back the rate of a limit that was set at run time.", "HDEL", undo="limit set", writes="")
async def remove(change: ActionCall, name: Name) -> plan.ChangePlan:
    """Take back the rate of the limit NAME that was set at run time: the rate in the code of workers holds again.

    \b
    Examples:
      millstream limit rm crm
      millstream limit rm crm --dry-run
    """
    await change.require_rights(RATES)
    one = await named_limit(change.line, name)
    if one.written is None:
        raise plan.TargetMissingError(
            f"the limit {name!r} has only the rate of its code, which cannot be removed; `millstream limit ls` shows "
            "all limits"
        )
    return plan_remove(one)


def plan_set(one: LimitStatus, rate: str) -> plan.ChangePlan:
    """Plan to set the rate of a limit."""
    if one.workers and not one.declared:
        raise plan.ChangeRefusedError(
            f"the limit {one.name!r} has no rate: its code declares only running=. Write Limit(rate, ...) in the code."
        )
    set_now: plan.Words = ("HSET", RATES, one.name, rate)
    same = one.written is not None and plan.as_fact(one.written) == rate
    notes = [_SEEN, "It holds until it is taken back, also for workers that are started later."]
    if one.by_key:
        notes.append("It is the rate of each key.")
    if not one.workers:
        notes.append("No living worker has this limit.")
    return _plan("set", one, rate, () if same else (set_now,), notes)


def plan_remove(one: LimitStatus) -> plan.ChangePlan:
    """Plan to remove a rate that was set at run time."""
    after = " or ".join(one.declared) or ("none" if one.workers else "the code's")
    return _plan("rm", one, after, (("HDEL", RATES, one.name),), [_SEEN])


def _plan(
    verb: str, one: LimitStatus, after: str, commands: tuple[plan.Words, ...], notes: list[str]
) -> plan.ChangePlan:
    undo = plan.Undo(command_words("limit rm", one.name), (("HDEL", RATES, one.name),))
    if one.set_rate is not None:
        before = str(one.set_rate)
        ahead = () if one.workers else ("--ahead",)
        undo = plan.Undo(
            command_words("limit set", one.name, before, options=ahead), (("HSET", RATES, one.name, before),)
        )
    elif one.written is not None:
        undo = plan.Undo(note="The rate that was there was damaged.")
    check = plan.value_check(f"the rate of the limit {one.name!r}", ("HGET", RATES, one.name), one.written)
    question = f"Set the rate of the limit {one.name!r} to {after}?" if verb == "set" else (
        f"Take back the rate of the limit {one.name!r}?"
    )  # fmt: skip
    table = (plan.BeforeAfter("rate", one.rate or "none", after),)
    steps = (plan.Step(commands, (check,)),) if commands else ()
    return plan.ChangePlan(
        f"limit {verb}", "", "", question, table, tuple(notes), steps, undo, {"limit": one.name, "rate": after},
        key=RATES,
    )  # fmt: skip
