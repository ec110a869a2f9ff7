"""Orders to workers, made without confirmation since another command undoes them, and the wait for their end."""

import asyncio
import math
import sys
import time
from typing import cast

import click

from millstream.cli.changes.changing import Ask, change_unasked, preview_option
from millstream.cli.changes.commands import Run, TypedChange, command_of
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import FAILED, Column, Output, Table, output_option, url_option
from millstream.cli.shared.time_options import SPAN_HELP, span
from millstream.client.line import Line
from millstream.errors import MillstreamError, UsageError
from millstream.ops.guard import ChangeOutcome
from millstream.ops.plan import ChangePlan
from millstream.ops.words import shell_line
from millstream.ops.workers import changes as workers
from millstream.worker.registry import protocol

_LOOK = 0.25  # seconds between two checks of workers that are to end
_REMOVED = (Column("group"), Column("consumer"))

_WAITING = (
    click.Option(
        ["--wait"],
        is_flag=True,
        help="Wait until they have ended; exit code 1 if a worker was resumed, or disappeared.",
    ),
    click.Option(
        ["--timeout"],
        metavar="SPAN",
        help=f"Maximum time of --wait ({SPAN_HELP}); then list the remaining workers, and exit with 1.",
    ),
)


def _options(command: Run) -> Run:
    return output_option(url_option(preview_option(command)))


def _made(typed: TypedChange, options: Ask, unit: str) -> tuple[ChangePlan, ChangeOutcome] | None:
    """Make a change and return its outcome; None for a dry run. If it was not made completely, end the process."""
    done = change_unasked(options, typed, unit)
    if done is not None and not done[1].whole:
        sys.exit(FAILED)
    return done


def _order(typed: TypedChange, options: Ask, wait: bool = False, timeout: str | None = None) -> None:
    """Store an order for workers and report it, or its effect."""
    patience = _patience(timeout, wait=wait)
    done = change_unasked(options, typed, "workers")
    if done is None:
        return
    plan, outcome = done
    ordered = cast("list[str]", plan.facts["workers"])
    if not ordered:
        Output().say("No workers are alive.")
        return
    if not outcome.whole:
        sys.exit(FAILED)
    verb = typed.action.verb
    Output().say(f"Ordered {len(ordered)} to {verb}: {', '.join(ordered)}. They see it within five seconds.")
    if blocked := cast("list[str]", plan.facts["blocked"]):
        Output().say(
            f"Except {', '.join(blocked)}: the event loop is blocked (`millstream worker show` names the line). Until "
            "it continues, only a kill ends the process."
        )
    if patience is not None:
        ask(options.url, lambda line: _ended(line, ordered, patience))
        Output().say(f"Ended: {len(ordered)}.")


def _patience(timeout: str | None, *, wait: bool) -> float | None:
    """Return the seconds to wait for the end of workers; None for no wait."""
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait: give both")
    if timeout is None:
        return math.inf if wait else None
    try:
        return span("--timeout", timeout) / 1000
    except UsageError as error:
        raise click.UsageError(str(error)) from None


async def _ended(line: Line, ids: list[str], seconds: float) -> None:
    """Wait until these workers have ended."""
    before: dict[str, protocol.EndState] = {}
    until = time.monotonic() + seconds
    while True:
        states = await protocol.end_states(line, ids)
        # On a cluster, deregistration is not atomic: a worker counts as missing only after two checks in a row
        missing = [worker for worker in ids if states[worker] == before.get(worker) == "vanished"]
        resumed = [worker for worker in ids if states[worker] == "resumed"]
        if resumed:
            raise MillstreamError(f"these workers were resumed meanwhile: {', '.join(resumed)}")
        if all(states[worker] == "ended" or worker in missing for worker in ids):
            break
        before = states
        if time.monotonic() >= until:
            there = [worker for worker in ids if states[worker] != "ended"]
            raise MillstreamError(f"still running: {', '.join(there)}; the order stays (see `millstream worker show`)")
        await asyncio.sleep(_LOOK)
    if missing:
        raise MillstreamError(
            f"no longer reporting, and not stopped in order: {', '.join(missing)}; other workers claim their entries "
            "after min_idle_time"
        )


def _pause(typed: TypedChange, options: Ask) -> None:
    if (done := _made(typed, options, "groups")) is not None:
        stream, group = typed.texts["key"], typed.texts["group"]
        Output().say(f"Paused {group} on {stream}; `{shell_line(done[0].undo.words)}` ends it.")


def _resume(typed: TypedChange, options: Ask) -> None:
    if (done := _made(typed, options, "orders")) is None:
        return
    if "group" in typed.texts:
        Output().say(f"Resumed {typed.texts['group']} on {typed.texts['key']}.")
    else:
        (found,) = cast("list[str]", done[0].facts["workers"])
        Output().say(f"Ordered {found} to continue.")


def _reap(typed: TypedChange, options: Ask) -> None:
    done = change_unasked(options, typed, "consumers")
    if done is None:
        return
    rows = [result.step.commands[0][3:5] for result in done[1].of("done", "late")]
    Output(options.form).table(Table("removed", _REMOVED, rows, empty="Nothing to remove."))
    if not done[1].whole:
        sys.exit(FAILED)


COMMANDS = {
    "quiet": command_of(workers.quiet, _order, _options),
    "drain": command_of(workers.drain, _order, _options, _WAITING),
    "stop": command_of(workers.stop, _order, _options, _WAITING),
    "pause": command_of(workers.pause, _pause, _options),
    "resume": command_of(workers.resume, _resume, _options),
    "reap": command_of(workers.reap, _reap, _options),
}
