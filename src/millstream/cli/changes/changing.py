"""The steps of every change on the command line: preview, confirmation, change, and the undo command.

Exit codes:

* 0: the change was made completely, or there was nothing to do
* 1: the change was not made or not completely, for example because facts moved since the preview
* 2: the command line is invalid, or the confirmation was declined
* 3: the server cannot be reached
* 4: the object to change does not exist
* 5: the change is refused, by the user's rights or by the facts
* 130: interrupted
"""

import getpass
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.cli.shared.asking import ask
from millstream.cli.shared.confirm import confirm
from millstream.cli.shared.output import FAILED, Column, Output, Table, output_option, url_option
from millstream.client.line import Line
from millstream.errors import MillstreamError
from millstream.ops import audit
from millstream.ops.audit import Actor, cut, undo_line, until_then
from millstream.ops.guard import ChangeOutcome
from millstream.ops.making import Prepared, carry_out
from millstream.ops.plan import MOST_SHOWN, ChangePlan, Counting, Words, joined
from millstream.ops.words import raw_line, shell_line
from millstream.texts import in_one_line

if TYPE_CHECKING:
    Plan = Callable[[Line, Counting], Awaitable[Prepared]]

Command = TypeVar("Command", bound=Callable[..., Any])

#: Number of times that a change is planned again without asking the user, if facts change between plan and step.
_TRIES = 5

#: Largest number of raw commands that are shown.
_SHOWN = 20

#: Largest number of entries that are named, each with the reason why it was left alone.
_NAMED = 5

_TABLE = (Column("fact"), Column("before"), Column("after"))


@dataclass(frozen=True, slots=True)
class Ask:
    """The common options of all changes."""

    url: str | None = field(repr=False)  # The server's URL
    form: str  # Form of the output
    dry_run: bool  # Change nothing
    yes: bool  # Do not ask


def change_options(command: Command) -> Command:
    """Add the common options of all changes, as the arguments ``url``, ``form``, ``dry_run`` and ``yes``."""
    asked = click.option("--yes", is_flag=True, help="Skip the confirmation.")
    return preview_option(asked(url_option(output_option(command))))


def preview_option(command: Command) -> Command:
    """Add the option ``--dry-run``."""
    return click.option("--dry-run", is_flag=True, help="Show the effect without changing anything.")(command)


def change(options: Ask, make: "Plan", unit: str = "entries") -> None:
    """Preview a change, ask for confirmation, make it, and report its outcome.

    Exit with code 1 if it was not made completely.
    """
    output = Output(options.form)
    found = agreed(options, output, make, unit, preview_first=not options.yes)
    if found is None:
        return
    outcome = made(options, output, found, unit)
    for _ in range(_TRIES if options.yes and found.pages is None else 0):
        if outcome.done or not outcome.of("moved"):
            break
        found = prepared_by(options, output, make, unit)
        outcome = made(options, output, found, unit)
    _result(output, found.plan, outcome)
    if not outcome.whole:
        sys.exit(FAILED)


def change_unasked(options: Ask, make: "Plan", unit: str) -> tuple[ChangePlan, ChangeOutcome] | None:
    """Make a change that another command can undo, without confirmation; return its outcome.

    Return None if it was only previewed. Skipped steps are reported on standard error; the caller reports the others.
    """
    output = Output(options.form)
    found = agreed(options, output, make, unit, even_nothing=True)
    if found is None:
        return None
    outcome = made(options, output, found, unit)
    say_rest(output, outcome)
    return found.plan, outcome


def agreed(
    options: Ask,
    output: Output,
    make: "Plan",
    unit: str,
    *,
    verb: str = "do it",
    preview_first: bool = False,
    even_nothing: bool = False,
) -> Prepared | None:
    """Return a change that the user confirmed; None for a dry run, or if there is nothing to do."""
    found = prepared_by(options, output, make, unit)
    if options.dry_run or (found.nothing and not even_nothing):
        show_only(output, found)
        return None
    if preview_first:
        preview(Output(out=sys.stderr), found.plan)
    confirm(in_one_line(found.plan.question), verb, yes=options.yes or found.nothing)
    return found


def prepared_by(options: Ask, output: Output, make: "Plan", unit: str) -> Prepared:
    """Plan a change from the server's data, with a progress display if that takes long."""
    with output.progress({"count": "Looking"}, unit=unit) as tell:
        return ask(options.url, lambda line: make(line, lambda done: tell("count", done, 0)))


def made(options: Ask, output: Output, prepared: Prepared, unit: str) -> ChangeOutcome:
    """Make a change and return its outcome."""
    name = token_hex(6)
    with output.progress({"change": "Changing"}, unit=unit) as tell:

        def count(done: int) -> None:
            tell("change", done, prepared.entries)

        try:
            return ask(options.url, lambda line: carry_out(line, prepared, actor(), name, count))
        except (KeyboardInterrupt, MillstreamError) as error:
            if kept := until_then(name, error):
                output.say(f"{kept}; `millstream audit ls` lists the changes.")
            raise


def actor() -> Actor:
    """Return the user who runs this command, as this machine knows them."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "somebody"
    host = socket.gethostname()
    return Actor(f"{user}@{host}", f"{host}, process {os.getpid()}")


async def write_down(line: Line, plan: ChangePlan, done: int) -> str:
    """Record added entries in the audit stream; return a message if that failed.

    Adding has no steps of its own, so this entry is written separately.
    """
    (whoami,) = await line.near(audit.KEY).calls([("ACL", "WHOAMI")])
    user = whoami.decode(errors="surrogateescape") if isinstance(whoami, bytes) else ""
    entry = audit.audit_command(plan, replace(actor(), user=user), token_hex(6))
    _, why = await audit.write_down(line, entry, done=done)
    return f"The change is not in the audit stream: {why}" if why else ""


def show_only(output: Output, found: Prepared) -> None:
    """Show the preview of a change that will not be made."""
    preview(output, found.plan)
    output.say("There is nothing to change." if found.nothing else "Nothing was changed (--dry-run).")


def preview(output: Output, plan: ChangePlan) -> None:
    """Show the effect of a change before it is made."""
    facts = _facts(output, plan)
    facts["undo"] = _undo(plan)
    tables = [Table("before_after", _TABLE, [(row.fact, row.before, row.after) for row in plan.table], empty="")]
    output.report({"applied": False, **facts} if output.form != "table" else facts, tables)


def _facts(output: Output, plan: ChangePlan) -> dict[str, object]:
    """Return the facts of a change; for people, as sentences."""

    def listed(lines: Sequence[str]) -> object:
        shown = [*lines[:_SHOWN], *([f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])]
        return "\n".join(shown) if output.form == "table" else shown

    def raw(commands: Sequence[Words]) -> object:
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


def _undo(plan: ChangePlan, name: str = "CHANGE") -> str | None:
    """Return the command line that undoes a change. Before the change its name is not known yet."""
    return undo_line(plan, name) or None


def _result(output: Output, plan: ChangePlan, outcome: ChangeOutcome) -> None:
    """Print the result of a change: figures on standard output, skipped steps with reasons on standard error."""
    facts = _facts(output, plan)
    if output.form == "table":
        facts = {name: value for name, value in facts.items() if name in {"action", "stream", "group", "line"}}
    figures = _figures(outcome)
    facts |= {name: value for name, value in figures.items() if output.form != "table" or value}
    undo = _undo(plan, outcome.written) if outcome.done else None
    if undo is not None or output.form != "table":
        facts["undo"] = undo
    if plan.undo.note and output.form == "table":
        facts["undo_note"] = plan.undo.note
    tables = [Table("before_after", _TABLE, [(row.fact, row.before, row.after) for row in plan.table], empty="")]
    output.report(facts, tables if outcome.whole or output.form != "table" else [])
    say_rest(output, outcome)
    if plan.if_moved and outcome.of("moved"):
        output.say(plan.if_moved)


def _figures(outcome: ChangeOutcome) -> Mapping[str, object]:
    gone = sum(1 for result in outcome.of("done", "late") if result.step.entry and not result.count)
    return {
        "applied": outcome.done > 0,
        "done": outcome.done - gone,
        "gone": gone,
        "moved": len(outcome.of("moved")),
        "refused": len(outcome.of("refused")),
        "change": outcome.written or None,
    }


def say_rest(output: Output, outcome: ChangeOutcome) -> None:
    """Report the steps that were not made, and unusual events."""
    moved, late = outcome.of("moved"), outcome.of("late")
    if moved:
        done = "was done" if outcome.done else "nothing was done"
        output.say(f"Moved since the preview, so that {len(moved)} of {len(outcome.results)} steps were not taken"
                   f"{'' if outcome.done else ' and ' + done}; look again:")  # fmt: skip
    for result in (*moved[:_NAMED], *outcome.of("refused")[:_NAMED]):
        output.say(f"  {result.why}")
    for result in late[:_NAMED]:
        output.say(f"  changed, although it moved at the same moment: {result.why}")
    if outcome.unguarded:
        output.say(
            "This user or server runs no scripts: the facts were checked before the change, not in one step with it."
        )
    if outcome.unaudited:
        output.say(f"The change is not in the audit stream: {outcome.unaudited}")
