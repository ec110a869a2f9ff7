"""Making a change: each step runs only while the facts from which it was planned are unchanged.

WATCH does not suffice: on all servers, it ignores changes of a group, a consumer or a pending entry. So one script
(``guarded.lua``) checks the facts, acts, and writes the audit entry, all atomically. If the server or the user cannot
run scripts, the facts are checked right before the transaction that acts. The transaction reads them once more, so that
a change in between is at least reported. A cluster may keep the audit stream on another node, so it is written next.

The script blocks the server for at most :data:`STEPS` steps at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from millstream.client.cluster_line import ClusterLine
from millstream.client.line import Command, Line
from millstream.errors import Disconnected
from millstream.ops.audit import KEY, Actor, audit_command, write_down
from millstream.ops.plan import MOST_SHOWN, ChangePlan, ChangeRefusedError, FactCheck, Step, as_fact
from millstream.paths import packaged
from millstream.texts import said

#: Largest number of steps in one script.
STEPS = MOST_SHOWN

SCRIPT = packaged("millstream.ops", "guarded.lua")

#: Beginnings of a server's errors when it refuses to run a script.
_NO_SCRIPTS = ("NOPERM", "ERR unknown command", "ERR Lua scripts need")

_NO_SCRIPT = (
    "this user or server runs no scripts, and without one, changes made between check and write would be overwritten"
)

Became = Literal["done", "moved", "refused", "late"]
"""Results of a step.

``done``: made. ``moved``: skipped, as its facts changed. ``refused``: the server refused it, wholly or in part.
``late``: made, though its facts changed in the moment between the check and the step.
"""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step."""

    step: Step  # The step
    became: Became  # Outcome, see :data:`Became`
    count: int = 0  # Number of entries that its last command changed, if the reply contains it
    why: str = ""  # Changed fact, or the server's error; for a letter put back, its new position
    reply: str = ""  # Reply to its last command, as text: for example the id of an added entry


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """The outcome of a change."""

    results: tuple[StepResult, ...] = ()  # Results of the steps, in order
    audit: tuple[str, ...] = ()  # Ids of the audit entries
    change: str = ""  # Name shared by the audit entries, for ``millstream audit undo``
    unaudited: str = ""  # Reason why the audit stream lacks the change or a part of it; empty if it is complete
    unguarded: bool = False  # True if no script could run, so that check and step were not atomic
    stopped: bool = False  # True if it was interrupted before all steps

    @property
    def written(self) -> str:
        """Name of the change in the audit stream, for an undo; empty if no entry was written."""
        return self.change if self.audit else ""

    def of(self, *became: Became) -> list[StepResult]:
        """Return the results of these kinds."""
        return [result for result in self.results if result.became in became]

    @property
    def done(self) -> int:
        """Number of steps that were made."""
        return len(self.of("done", "late"))

    @property
    def whole(self) -> bool:
        """True if every step was made as planned."""
        return not self.stopped and all(result.became == "done" for result in self.results)

    def joined(self, other: "ChangeOutcome") -> "ChangeOutcome":
        """Return the outcome of both parts together."""
        return ChangeOutcome(
            self.results + other.results,
            self.audit + other.audit,
            self.change or other.change,
            self.unaudited or other.unaudited,
            self.unguarded or other.unguarded,
            self.stopped or other.stopped,
        )


async def apply(line: Line, plan: ChangePlan, actor: Actor, change: str) -> ChangeOutcome:
    """Make a change, at most :data:`STEPS` steps at a time."""
    outcome = ChangeOutcome(change=change)
    for start in range(0, len(plan.steps), STEPS):
        part = replace(plan, steps=plan.steps[start : start + STEPS], undo=_part_of(plan, start))
        try:
            outcome = outcome.joined(await _StepBatch(line, part, audit_command(part, actor, change)).run())
        except Disconnected as error:
            if not error.sent:
                raise
            raise Disconnected(
                f"{error}; no answer came, so the change may have been made: check `millstream audit ls`"
            ) from error
    return outcome


def _part_of(plan: ChangePlan, start: int) -> Any:
    """Return the undo of a part of a change, with only the pending entries of that part."""
    if len(plan.steps) <= STEPS:
        return plan.undo
    ids = {step.entry for step in plan.steps[start : start + STEPS]}
    return replace(plan.undo, held=tuple(held for held in plan.undo.held if held.id in ids))


@dataclass(slots=True)
class _StepBatch:
    """Steps that run together in one script or transaction."""

    line: Line
    plan: ChangePlan
    audit: Command
    near: Line = field(init=False)

    def __post_init__(self) -> None:
        self.near = self.line.near(self.plan.place)

    async def run(self) -> ChangeOutcome:
        """Make the steps in the safest way that the server allows."""
        if not isinstance(self.line, ClusterLine):
            # If a user may not write the audit stream, the server refuses the whole script, but the change itself may
            # be allowed
            rows = await self._script(self.audit)
            if rows is not None:
                return self._outcome(rows)
        rows = await self._script(())
        if rows is None and self.plan.needs_script:
            raise ChangeRefusedError(_NO_SCRIPT)
        outcome = await self._transaction() if rows is None else self._outcome(rows)
        return await self._written(outcome) if outcome.done else outcome

    async def _script(self, audit: Command) -> list[Any] | None:
        """Run the script and return its rows; None if the script was refused."""
        keys = (self.plan.place, KEY) if audit else (self.plan.place,)
        words = _words(self.plan.steps, audit)
        reply = (await self.near.calls([("EVAL", SCRIPT, len(keys), *keys, *words)]))[0]
        if not isinstance(reply, Exception):
            return list(reply)
        if str(reply).startswith(_NO_SCRIPTS) or "permission" in str(reply):
            return None
        return [[b"failed", b"1", said(reply).encode(errors="replace")] for _ in self.plan.steps] + [[b"none"]]

    def _outcome(self, rows: list[Any]) -> ChangeOutcome:
        results = [_result(step, row) for step, row in zip(self.plan.steps, rows[:-1], strict=True)]
        state, *rest = rows[-1]
        said = tuple(word.decode(errors="replace") for word in rest)
        return ChangeOutcome(
            tuple(results),
            audit=said if state == b"done" else (),
            unaudited=" ".join(said) if state == b"failed" else "",
        )

    async def _transaction(self) -> ChangeOutcome:
        """Check the facts, then act on those unchanged and read them again in one transaction."""
        steps = self.plan.steps
        reads = [check.read for step in steps for check in step.checks]
        # An empty transaction first: if the user may not send MULTI, the commands after it would run one by one
        opened, ended, *answers = await self.near.calls([("MULTI",), ("EXEC",), *reads])
        refused = next((reply for reply in (opened, ended) if isinstance(reply, Exception)), None)
        if refused is not None:
            why = f"neither a script nor a transaction is open to this user: {refused}"
            return ChangeOutcome(tuple(StepResult(step, "refused", why=why) for step in steps), unguarded=True)
        looked = iter(answers)
        results = [_looked(step, [next(looked) for _ in step.checks]) for step in steps]
        taken = [step for step, result in zip(steps, results, strict=True) if result.became == "done"]
        if not taken:
            return ChangeOutcome(tuple(results), unguarded=True)
        queued = [words for step in taken for words in (*(check.read for check in step.checks), *step.commands)]
        replies = await self.near.calls([("MULTI",), *queued, ("EXEC",)])
        final = replies[-1]
        if isinstance(final, Exception):
            why = str(next((reply for reply in replies if isinstance(reply, Exception)), final))
            acted = {id(step): StepResult(step, "refused", why=why) for step in taken}
        else:
            acts = iter(final or ())
            acted = {id(step): _acted(step, [next(acts) for _ in (*step.checks, *step.commands)]) for step in taken}
        return ChangeOutcome(tuple(acted.get(id(result.step), result) for result in results), unguarded=True)

    async def _written(self, outcome: ChangeOutcome) -> ChangeOutcome:
        """Write the audit entry after the steps, if it could not be written with them."""
        moved = len(outcome.results) - outcome.done
        entry, why = await write_down(self.line, self.audit, done=outcome.done, moved=moved)
        return replace(outcome, unaudited=why) if why else replace(outcome, audit=(entry,))


def _words(steps: Sequence[Step], audit: Command) -> list[Any]:
    """Return the steps as arguments of the script."""
    words: list[Any] = [len(steps)]
    for step in steps:
        words.append(len(step.commands))
        for command in step.commands:
            words += [len(command), *command]
        words.append(len(step.checks))
        for check in step.checks:
            words += _check_words(check)
    return [*words, len(audit), *audit]


def _check_words(check: FactCheck) -> list[Any]:
    pairs = [word for pair in check.expected for word in pair]
    ids = [word for field in check.between for word in field]
    return [
        *(len(check.read), *check.read, check.shape, check.row),
        *(len(check.expected), *pairs),
        *(len(check.between), *ids),
    ]


def _result(step: Step, row: list[bytes]) -> StepResult:
    """Return the result of a step from the script's reply."""
    became, *rest = [word.decode(errors="surrogateescape") for word in row]
    if became == "done":
        return StepResult(step, "done", _count(rest[0]), reply=rest[0])
    if became == "moved":
        return StepResult(step, "moved", why=step.checks[int(rest[0]) - 1].worded(rest[1], rest[2]))
    if became == "refused":
        return StepResult(
            step, "moved" if _is_gone(rest[1]) else "refused", why=f"{step.checks[int(rest[0]) - 1].about}: {rest[1]}"
        )
    return StepResult(step, "refused", why=rest[1])


def _is_gone(error: str) -> bool:
    """Return True if a check failed because the stream or group does not exist any more."""
    return error.startswith(("NOGROUP", "WRONGTYPE")) or "no such key" in error


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _looked(step: Step, replies: Sequence[Any]) -> StepResult:
    why = _moved(step, replies)
    return StepResult(step, "done") if why is None else StepResult(step, "moved", why=why)


def _moved(step: Step, replies: Sequence[Any]) -> str | None:
    found = (check.moved(reply) for check, reply in zip(step.checks, replies, strict=True))
    return next((why for why in found if why is not None), None)


def _acted(step: Step, replies: Sequence[Any]) -> StepResult:
    """Return the result of a step from the transaction's replies: first to its checks, then to its commands."""
    looked, done = replies[: len(step.checks)], replies[len(step.checks) :]
    refused = next((reply for reply in done if isinstance(reply, Exception)), None)
    if refused is not None:
        return StepResult(step, "refused", why=str(refused))
    last = done[-1]
    count = len(last) if isinstance(last, list) else last if isinstance(last, int) else 0
    why = _moved(step, looked)
    said = as_fact(last) if isinstance(last, bytes | int) else ""
    return StepResult(step, "done", count, reply=said) if why is None else StepResult(step, "late", count, why, said)
