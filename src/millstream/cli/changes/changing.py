"""What every change does in the shell: preview, question, change, and how it is undone.

Exit code 0: all of it was done, or there was nothing to do. 1: it could not be done, or not all of it, which facts that
moved since the preview are one reason for. 2: the command line is invalid, or the answer was no. 3: no server. 4: what
is to be changed is not there. 5: the change is refused, by the user's rights or by the facts. 130: interrupted.
"""

import getpass
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.cli.shared.asking import ask
from millstream.cli.shared.confirm import confirm
from millstream.cli.shared.output import FAILED, Column, Output, Table, output_option, url_option
from millstream.errors import Disconnected, MillstreamError
from millstream.texts import in_one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from millstream.client.line import Line
    from millstream.console.changes.audit import Actor
    from millstream.console.changes.gather import Counting
    from millstream.console.changes.guard import ChangeOutcome
    from millstream.console.changes.making import Prepared
    from millstream.console.changes.plan import ChangePlan, Words

Command = TypeVar("Command", bound=Callable[..., Any])

#: How often a change is planned anew that nobody was asked about, when facts move between plan and step.
_TRIES = 5

#: Raw commands that are shown.
_SHOWN = 20

#: Entries, each with a reason, that are named when they were left alone.
_NAMED = 5

_TABLE = (Column("fact"), Column("before"), Column("after"))


@dataclass(frozen=True, slots=True)
class Ask:
    """The options that all changes have.

    Attributes:
        url: of the server.
        form: of what is shown.
        dry_run: change nothing.
        yes: do not ask.
    """

    url: str | None
    form: str
    dry_run: bool
    yes: bool


def change_options(command: Command) -> Command:
    """The options that all changes have; they come as ``url``, ``form``, ``dry_run`` and ``yes``."""
    for option in (
        output_option,
        url_option,
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only show what would happen; nothing is changed."),
    ):
        command = option(command)
    return command


def change(options: Ask, make: "Callable[[Line, Counting], Awaitable[Prepared]]", unit: str = "entries") -> None:
    """Preview a change, ask, make it, and say what became of it; ends with exit code 1 where not all was done.

    Args:
        options: of the command line.
        make: the change from what the server has.
        unit: of what is counted and changed.

    Raises:
        ChangeRefusedError: the change is not made; the text says why.
        UsageError: the answer was no, or nobody can be asked.
        Disconnected: the server cannot be reached, or went away.
    """
    output = Output(options.form)

    def prepare() -> "Prepared":
        with output.progress({"count": "Looking"}, unit=unit) as tell:
            return ask(options.url, lambda line: make(line, lambda done: tell("count", done, 0)))

    prepared = prepare()
    if options.dry_run or prepared.nothing:
        _preview(output, prepared.plan)
        output.say("There is nothing to change." if prepared.nothing else "Nothing was changed (--dry-run).")
        return
    if not options.yes:
        _preview(Output(out=sys.stderr), prepared.plan)
        confirm(in_one_line(prepared.plan.question), "do it")
    outcome = made(options, output, prepared, unit)
    for _ in range(_TRIES if options.yes and prepared.pages is None else 0):
        if outcome.done or not outcome.of("moved"):
            break
        prepared = prepare()
        outcome = made(options, output, prepared, unit)
    _result(output, prepared.plan, outcome)
    if not outcome.whole:
        sys.exit(FAILED)


def made(options: Ask, output: Output, prepared: "Prepared", unit: str) -> "ChangeOutcome":
    """Make a change; what became of it.

    Args:
        options: of the command line.
        output: for its progress.
        prepared: the change.
        unit: of what is changed.
    """
    from secrets import token_hex  # noqa: PLC0415 - help does not need it

    from millstream.console.changes.making import carry_out  # noqa: PLC0415 - as above

    name = token_hex(6)
    with output.progress({"change": "Changing"}, unit=unit) as tell:

        def count(done: int) -> None:
            tell("change", done, prepared.entries)

        try:
            return ask(options.url, lambda line: carry_out(line, prepared, actor(), name, count))
        except (KeyboardInterrupt, MillstreamError):
            output.say(f"What was changed until then is in the audit stream as {name}: `millstream audit ls` shows it.")
            raise


def actor() -> "Actor":
    """Who runs this command, as far as this machine knows."""
    from millstream.console.changes.audit import Actor  # noqa: PLC0415 - as above

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "somebody"
    host = socket.gethostname()
    return Actor(f"{user}@{host}", f"{host}, process {os.getpid()}")


def note(
    url: str | None,
    words: "Sequence[str]",
    *,
    stream: str = "",
    group: str = "",
    undo: "Sequence[str]" = (),
    done: int = 1,
) -> None:
    """Put a change of ``dead`` or ``worker`` into the audit stream; where that cannot be, say so.

    Args:
        url: of the server.
        words: of the command line, without ``millstream``; the first two name the action.
        stream: that it was about.
        group: that it was about.
        undo: the command line that undoes it, without ``millstream``.
        done: what was changed, counted; nothing is written down of nothing.
    """
    from millstream.console.changes.plan import ChangePlan, Undo  # noqa: PLC0415 - as above

    if not done:
        return
    back = Undo(("millstream", *undo)) if undo else Undo()
    plan = ChangePlan(" ".join(words[:2]), stream, group, ("millstream", *words), "", undo=back)
    try:
        why = ask(url, lambda line: write_down(line, plan, done))
    except Disconnected as error:
        why = f"The change is not in the audit stream: {error}"
    if why:
        Output().say(why)


async def write_down(line: "Line", plan: "ChangePlan", done: int) -> str:
    """Put a change into the audit stream that has no steps of its own, as adding entries; what to say if it failed.

    Args:
        line: to the server.
        plan: what was done.
        done: how much of it.
    """
    from secrets import token_hex  # noqa: PLC0415 - as above

    from millstream.console.changes import audit  # noqa: PLC0415 - as above

    (whoami,) = await line.near(audit.KEY).calls([("ACL", "WHOAMI")])
    user = whoami.decode(errors="surrogateescape") if isinstance(whoami, bytes) else ""
    entry = audit.audit_command(plan, replace(actor(), user=user), token_hex(6))
    _, why = await audit.write_down(line, entry, done=done)
    return f"The change is not in the audit stream: {why}" if why else ""


def _preview(output: Output, plan: "ChangePlan") -> None:
    """What will happen."""
    facts = _facts(output, plan)
    facts["undo"] = _undo(plan)
    tables = [Table("before_after", _TABLE, [(row.fact, row.before, row.after) for row in plan.table])]
    output.report({"applied": False, **facts} if output.form != "table" else facts, tables)


def _facts(output: Output, plan: "ChangePlan") -> dict[str, object]:
    """What a change is; people get what programs need to tell apart as sentences."""
    from millstream.console.changes.audit import cut  # noqa: PLC0415 - as above
    from millstream.console.changes.plan import MOST_SHOWN, joined  # noqa: PLC0415 - as above
    from millstream.console.changes.writing import raw_line, shell_line  # noqa: PLC0415 - as above

    def listed(lines: "Sequence[str]") -> object:
        shown = [*lines[:_SHOWN], *([f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])]
        return "\n".join(shown) if output.form == "table" else shown

    def raw(commands: "Sequence[Words]") -> object:
        texts = [raw_line(command) for command in commands[:_SHOWN]]
        return listed([*map(cut, texts), *([""] * (len(commands) - _SHOWN))])

    found: dict[str, object] = {
        "action": plan.action,
        "stream": plan.stream,
        "group": plan.group or None,
        **({} if output.form == "table" else plan.facts),
        "notes": listed(plan.notes),
        "line": shell_line(plan.words),
        "commands": raw(plan.commands),
        "undo_commands": raw(joined(plan.undo.commands[:MOST_SHOWN])),
        "undo_note": plan.undo.note or None,
    }
    return {name: value for name, value in found.items() if output.form != "table" or value}


def _undo(plan: "ChangePlan", name: str = "CHANGE") -> str | None:
    """The command line that undoes it; before the change its name is not known yet."""
    from millstream.console.changes.audit import undo_line  # noqa: PLC0415 - as above

    return undo_line(plan, name) or None


def _result(output: Output, plan: "ChangePlan", outcome: "ChangeOutcome") -> None:
    """What became of a change: figures on standard output, what was left alone and why on standard error."""
    facts = _facts(output, plan)
    if output.form == "table":
        facts = {name: value for name, value in facts.items() if name in {"action", "stream", "group", "line"}}
    figures = _figures(outcome)
    facts |= {name: value for name, value in figures.items() if output.form != "table" or value}
    undo = _undo(plan, outcome.change) if outcome.done else None
    if undo is not None or output.form != "table":
        facts["undo"] = undo
    if plan.undo.note and output.form == "table":
        facts["undo_note"] = plan.undo.note
    tables = [Table("before_after", _TABLE, [(row.fact, row.before, row.after) for row in plan.table])]
    output.report(facts, tables if outcome.whole or output.form != "table" else [])
    _say_rest(output, outcome)


def _figures(outcome: "ChangeOutcome") -> Mapping[str, object]:
    gone = sum(1 for result in outcome.of("done", "late") if result.step.entry and not result.count)
    return {
        "applied": outcome.done > 0,
        "done": outcome.done - gone,
        "gone": gone,
        "moved": len(outcome.of("moved")),
        "refused": len(outcome.of("refused")),
        "change": outcome.change if outcome.audit else None,
    }


def _say_rest(output: Output, outcome: "ChangeOutcome") -> None:
    """What was not done, and what went otherwise than usual."""
    moved, late = outcome.of("moved"), outcome.of("late")
    if moved:
        done = "was done" if outcome.done else "nothing was done"
        output.say(f"Moved since the preview, so that {len(moved)} of {len(outcome.results)} steps were not taken"
                   f"{'' if outcome.done else ' and ' + done}; look again:")  # fmt: skip
    for result in (*moved[:_NAMED], *outcome.of("refused")[:_NAMED]):
        output.say(f"  {result.why}")
    for result in late[:_NAMED]:
        output.say(f"  changed, though it moved in the same moment: {result.why}")
    if outcome.unguarded:
        output.say(
            "This user or server runs no scripts: the facts were looked at right before the change, not with it."
        )
    if outcome.unaudited:
        output.say(f"The change is not in the audit stream: {outcome.unaudited}")
