"""The way of each change: from a user's texts to a plan with a preview, and then to its outcome.

The shell and the pages make changes only by these functions and :mod:`millstream.ops.spread`, so both can do the same.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from millstream.client.dead_letter.put_back import PutBackOutcome
from millstream.client.line import Command, Line
from millstream.ops.actions import Action, Texts
from millstream.ops.audit import UNCHANGED, Actor, audit_command, write_down
from millstream.ops.guard import ChangeOutcome, StepResult, apply
from millstream.ops.plan import ChangePlan, ChangeRefusedError, Counting
from millstream.ops.rights import Rights, rights_on
from millstream.worker.registry import protocol

Page: TypeAlias = ChangePlan | tuple[StepResult, ...]
"""One part of a change as a plan, or the results of steps skipped because they changed after the preview."""

Pages = Callable[[Line], AsyncGenerator[Page, None]]
"""Function that yields the parts of a long change; each part is read when its turn comes."""

Work = Callable[[Line, list[StepResult], Counting, asyncio.Event], Awaitable[None]]
"""Function that makes a change without the steps of a plan.

It appends the result of each part to the list and calls back with their number. It ends between two parts if the event
is set.
"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A change that is ready for a preview and can then be made."""

    plan: ChangePlan  # Whole plan, or the summary of a change that is made page by page
    entries: int = 0  # Number of affected entries
    pages: Pages | None = None  # Parts of the change; None if the plan is complete
    work: Work | None = None  # Makes the change if the steps only show the commands; None if the steps are the commands
    # Results by letter, if the change puts letters back
    letters: PutBackOutcome = field(default_factory=PutBackOutcome)
    rights: Rights = field(default_factory=Rights)  # Rights of the user to the key
    # Texts from the user, with looked-up values filled in, so that the same texts repeat the same change
    texts: Texts = field(default_factory=dict)

    @property
    def nothing(self) -> bool:
        """True if the plan has no steps."""
        return not self.plan.steps


@dataclass(slots=True)
class ActionCall:
    """One change while it is planned, the first argument of every action's function."""

    action: Action  # The action
    line: Line  # Connection to the server
    texts: dict[str, str]  # Texts from the user; :meth:`settle` replaces them by looked-up values
    tell: Counting  # Callback that gets the number of entries counted so far
    # True if the preview is repeated for the confirmation, so that the texts must contain the looked-up values
    kept: bool
    who: str  # Author of the change, for the record
    rights: Rights = field(default_factory=Rights)  # Rights of the user to the key that the change writes

    def settle(self, **texts: str | None) -> None:
        """Replace a user's texts by looked-up values; None removes a text."""
        self.texts = {name: text for name, text in {**self.texts, **texts}.items() if text is not None}

    async def require_rights(self, key: str | None = None) -> None:
        """Read the user's rights to a key, by default to the key that the action writes; raise if one is missing."""
        if key is None:
            key = protocol.CONTROL if self.action.registry else self.texts[self.action.writes]
        self.rights = await rights_on(self.line, key)
        if (why := self.rights.why_not(self.action)) is not None:
            raise ChangeRefusedError(why)


async def prepare(
    action: Action, line: Line, texts: Texts, tell: Counting | None = None, *, kept: bool = False, who: str = ""
) -> Prepared:
    """Plan a change from a user's texts."""
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
    """Make a change after its preview."""
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
"""Note in the first audit entry of a long change."""
_LONG = 50  # number of entries above which the start of a change is also recorded


async def _worked(
    line: Line, prepared: Prepared, work: Work, audit: Command, signs: tuple[Counting, asyncio.Event]
) -> ChangeOutcome:
    """Make a change by its own function, and record it in the audit stream even if it is interrupted.

    A long change is recorded at its start too. If the server or this process ends in the middle, the finished part
    could not be recorded afterwards.
    """
    results: list[StepResult] = []
    if prepared.entries > _LONG:
        await write_down(line, (*audit, "note", BEGUN), done=0)
    try:
        await work(line, results, *signs)
    except BaseException as error:
        if isinstance(error, ChangeRefusedError) and not results:
            error.add_note(UNCHANGED)
        if why := (await _noted(line, results, audit))[1]:  # the server that went away may take no entry either
            error.add_note(why)
        raise
    entry, why = await _noted(line, results, audit)
    stopped = signs[1].is_set() and len(results) < prepared.entries
    change = str(audit[audit.index("change") + 1])
    return ChangeOutcome(tuple(results), (entry,) if entry else (), change, why, stopped=stopped)


async def _noted(line: Line, results: list[StepResult], audit: Command) -> tuple[str, str]:
    """Write the audit entry of the finished part; see :func:`write_down`. Return two empty texts if no step is done."""
    done = sum(result.became == "done" for result in results)
    return await write_down(line, audit, done=done, moved=len(results) - done) if done else ("", "")
