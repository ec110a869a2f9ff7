"""Each change, from a user's texts to a plan that can be previewed, and from there to its outcome.

The shell and the page act by these alone, and prepare by :mod:`millstream.ops.spread`, so that both can do the same.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from millstream.client.dead_letter.put_back import PutBackOutcome
from millstream.client.line import Command, Line
from millstream.ops.actions import Action, Texts
from millstream.ops.audit import Actor, audit_command, write_down
from millstream.ops.guard import ChangeOutcome, StepResult, apply
from millstream.ops.plan import ChangePlan, ChangeRefusedError, Counting
from millstream.ops.rights import Rights, rights_on
from millstream.worker.registry import protocol

Page: TypeAlias = ChangePlan | tuple[StepResult, ...]
"""One part of a change, or the results of what changed after the preview and is skipped."""

Pages = Callable[[Line], AsyncGenerator[Page, None]]
"""The parts of a change that is made page by page; each is read when it is its turn."""

Work = Callable[[Line, list[StepResult], Counting, asyncio.Event], Awaitable[None]]
"""A change that is made in another way than by the steps of a plan: puts what became of each part into the list, tells
how many there were, and ends between two parts when the event is set."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A change that can be previewed and then made."""

    plan: ChangePlan  # The whole plan, or a summary of it where it is made page by page
    entries: int = 0  # Number of entries that it concerns; 0 for none
    pages: Pages | None = None  # Its parts; None where the plan is all
    work: Work | None = None  # Makes it, where its steps only show the commands; None where the steps are the commands
    # Result for each letter, where it puts letters back
    letters: PutBackOutcome = field(default_factory=PutBackOutcome)
    rights: Rights = field(default_factory=Rights)  # The user's rights to its key
    # The words as written, with the facts that were looked up: the same texts make the same change again
    texts: Texts = field(default_factory=dict)

    @property
    def nothing(self) -> bool:
        """True if there is nothing to do."""
        return not self.plan.steps


@dataclass(slots=True)
class ActionCall:
    """One change while it is planned: the first argument of every action."""

    action: Action  # The action
    line: Line  # Connection to the server
    texts: dict[str, str]  # The words as written; :meth:`settle` replaces them by the facts that were looked up
    tell: Counting  # Called with how many entries were counted so far
    # The preview is forgotten and made again for the confirmation, so the texts must contain the facts that were looked
    # up
    kept: bool
    who: str  # Author of the change, for the record
    rights: Rights = field(default_factory=Rights)  # The user's rights to the key that it writes

    def settle(self, **texts: str | None) -> None:
        """Replace a user's texts by the facts that were looked up; None takes a word out."""
        self.texts = {name: text for name, text in {**self.texts, **texts}.items() if text is not None}

    async def require_rights(self, key: str | None = None) -> None:
        """Look what the user may do to a key, by default to that which the declaration names."""
        if key is None:
            key = protocol.CONTROL if self.action.registry else self.texts[self.action.writes]
        self.rights = await rights_on(self.line, key)
        if (why := self.rights.why_not(self.action)) is not None:
            raise ChangeRefusedError(why)


async def prepare(
    action: Action, line: Line, texts: Texts, tell: Counting | None = None, *, kept: bool = False, who: str = ""
) -> Prepared:
    """Plan a change from a person's texts."""
    values = action.bound(texts)
    change = ActionCall(action, line, dict(texts), tell or (lambda _: None), kept, who)
    if action.writes:
        await change.require_rights()
    found = await action.make(change, **values)
    prepared = found if isinstance(found, Prepared) else Prepared(found)
    plan = prepared.plan
    plan = plan if plan.words else replace(plan, words=action.typed(change.texts))
    return replace(prepared, plan=plan, rights=change.rights, texts=change.texts)


async def carry_out(
    line: Line,
    prepared: Prepared,
    actor: Actor,
    change: str,
    tell: Counting | None = None,
    stop: asyncio.Event | None = None,
) -> ChangeOutcome:
    """Make a change that was previewed."""
    actor = replace(actor, user=prepared.rights.user)
    stop, tell = stop or asyncio.Event(), tell or (lambda _: None)
    if prepared.work is not None:
        return await _worked(line, prepared, prepared.work, audit_command(prepared.plan, actor, change), (tell, stop))
    if prepared.pages is None:
        return await apply(line, prepared.plan, actor, change)
    outcome = ChangeOutcome(change=change)
    async with aclosing(prepared.pages(line)) as pages:
        async for page in pages:
            if stop.is_set():
                return replace(outcome, stopped=True)
            if isinstance(page, tuple):
                done = ChangeOutcome(page)
            else:
                done = await apply(line, replace(page, words=prepared.plan.words), actor, change)
            outcome = outcome.joined(done)
            tell(len(outcome.results))
    return outcome


BEGUN = "started; the next entry of this name has the result, unless it was interrupted"
"""Note of the first audit entry of a change that takes long."""
_LONG = 50  # entries, from which on that is worth an entry


async def _worked(
    line: Line, prepared: Prepared, work: Work, audit: Command, signs: tuple[Counting, asyncio.Event]
) -> ChangeOutcome:
    """A change that is made in a way of its own; the audit stream has it also after an interruption.

    A long one is in it from the start: if the server or this process ends in the middle, the finished part could not be
    recorded afterwards.
    """
    results: list[StepResult] = []
    if prepared.entries > _LONG:
        await write_down(line, (*audit, "note", BEGUN), done=0)
    try:
        await work(line, results, *signs)
    except BaseException as error:
        if why := (await _noted(line, results, audit))[1]:  # the server that went away may take no entry either
            error.add_note(why)
        raise
    entry, why = await _noted(line, results, audit)
    stopped = signs[1].is_set() and len(results) < prepared.entries
    change = str(audit[audit.index("change") + 1])
    return ChangeOutcome(tuple(results), (entry,) if entry else (), change, why, stopped=stopped)


async def _noted(line: Line, results: list[StepResult], audit: Command) -> tuple[str, str]:
    """The audit entry of the finished part; as of :func:`write_down`, and two empty texts where nothing was done."""
    done = sum(result.became == "done" for result in results)
    return await write_down(line, audit, done=done, moved=len(results) - done) if done else ("", "")
