"""``millstream worker``: who works, at what, and telling them to be quiet, to end, or to leave a handler alone."""

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from millstream.cli.changes.changing import Ask, actor, change_unasked
from millstream.cli.console.watching import look, watch_option
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import FAILED, Column, Output, Table, exits, output_option, url_option
from millstream.cli.shared.time_options import SPAN_HELP, span
from millstream.errors import MillstreamError, UsageError

if TYPE_CHECKING:
    from millstream.client.line import Line
    from millstream.console.changes.making import Prepared
    from millstream.worker.model.pause import HandlerPause

    _Everything = tuple[list[dict[str, Any]], list[str], list[HandlerPause]]

Command = TypeVar("Command", bound=Callable[..., Any])

#: Seconds between two looks at workers that are to end.
_LOOK = 0.25

_WIDE = {"max_content_width": 110}

_WORKERS = (
    Column("id"),
    Column("state"),
    Column("blocked", "prose"),
    Column("version", rank=9),
    Column("started_ms", "time", rank=6),
    Column("beat_ms", "time", "last beat", rank=5),
    Column("handlers", "prose", rank=1),
    Column("slots", "count", rank=8),
    Column("running", "count", rank=2),
    Column("buffered", "count", rank=7),
    Column("longest_ms", "span", "longest job", rank=4),
    Column("last_error", "prose", rank=3),
)
_PAUSES = (
    Column("stream"),
    Column("group"),
    Column("reason", "prose"),
    Column("by", rank=1),
    Column("at_ms", "time", "since", rank=2),
)
_SUBSCRIBERS = (
    Column("handler"),
    Column("stream"),
    Column("group"),
    Column("consumer", rank=7),
    Column("slots", "count", rank=8),
    Column("running", "count"),
    Column("buffered", "count", rank=6),
    Column("handled", "count", rank=5),
    Column("failed", "count", rank=4),
    Column("dead", "count", rank=3),
    Column("paused", "prose", rank=2),
)
_JOBS = (
    Column("handler", rank=1),
    Column("stream", rank=2),
    Column("id"),
    Column("since_ms", "time", rank=3),
    Column("for_ms", "span", "for"),
    Column("deliveries", "count", rank=4),
)
_REMOVED = (Column("group"), Column("consumer"))
_TIMES = (
    Column("started_ms", "time", "started"),
    Column("beat_ms", "time", "last beat"),
    Column("last_error_ms", "time", "at"),
)


def _waiting(command: Command) -> Command:
    """The options of orders that end a worker."""
    limit = click.option(
        "--timeout",
        metavar="SPAN",
        help=f"With --wait: at most so long ({SPAN_HELP}); exit code 1 then, naming who is still there.",
    )
    option = click.option(
        "--wait",
        is_flag=True,
        help="End when they have ended; exit code 1 if one is ordered to go on, or is gone without signing off.",
    )
    return option(limit(command))


def _chosen(command: Command) -> Command:
    """Which workers an order is for: by ID, or all."""
    everyone = click.option("--all", "everyone", is_flag=True, help="All workers that are alive.")
    return click.argument("ids", metavar="[ID]...", nargs=-1)(everyone(command))


def _shown_first(command: Command) -> Command:
    """The options of what is done at once, and can be looked at before: ``dry_run``, ``url`` and ``form``."""
    shown = click.option("--dry-run", is_flag=True, help="Only show what would happen; nothing is changed.")
    return output_option(url_option(shown(command)))


def _asked(options: dict[str, Any]) -> Ask:
    """These options; what a worker is told is undone by another command, so nobody is asked."""
    return Ask(**options, yes=True)


@click.group(context_settings=_WIDE)
def worker() -> None:
    """Workers: who runs, what they have in hand, and what they are ordered to do.

    Every worker tells the server about itself every five seconds, in keys under millstream: (docs/worker/reference.md),
    and looks there for what it is to do. ID is as `ls` shows it; its beginning is enough if no other begins so.

    \b
    Examples:
      millstream worker ls
      millstream worker show web-1-4711
      millstream worker pause orders billing --reason 'the card provider is down'
      millstream worker resume orders billing
      millstream worker drain web-1-4711               finish what it has, then end
      millstream worker reap orders --idle 1d          remove consumers of processes that are gone

    Exit code: 0 done, 1 not done or not all, 2 the command line is invalid, 3 no server, 4 nothing of that name,
    5 refused, 130 interrupted.
    """


@worker.command(context_settings=_WIDE)
@watch_option
@url_option
@output_option
def ls(watch: float | None, url: str | None, form: str) -> None:
    """List the workers that are alive, and the handlers that are paused.

    \b
    Examples:
      millstream worker ls
      millstream worker ls --watch
      millstream worker ls -o json | jq '.workers[] | select(.state != "running")'
    """
    with exits("millstream worker ls"):

        def show(seen: "_Everything", _: object) -> None:
            found, strange, paused = seen
            workers = Table("workers", _WORKERS, [_row(facts) for facts in found], empty="No workers.")
            pauses = [[p.stream, p.group, p.reason, p.by, p.at_ms] for p in paused]
            tables = [workers, Table("pauses", _PAUSES, pauses)]
            Output(form).report({"alive": len(found)}, tables if pauses or form != "table" else tables[:1])
            for key in strange:
                Output().say(
                    f"{key} is not a record of a worker: another program wrote it. Delete the key if nothing needs it"
                )

        look(url, watch, _everything, show, form)


@worker.command(context_settings=_WIDE)
@click.argument("id", metavar="ID")
@url_option
@output_option
def show(id: str, url: str | None, form: str) -> None:  # noqa: A002 - click's argument
    """Show one worker: its subscribers, the entries in their hands and since when, its last error.

    ID is as `ls` shows it, or its beginning. When a job began is known to about five seconds.

    \b
    Example:
      millstream worker show web-1-4711
    """
    with exits("millstream worker show"):
        facts = ask(url, lambda line: _one(line, id))
        error = facts["last_error"] or {}
        whole = {name: facts[name] for name in ("id", "host", "pid", "version", "state", "started_ms", "beat_ms")}
        whole["blocked"] = _blocked(facts)
        whole["last_error"] = error.get("error")
        whole["last_error_ms"] = error.get("at_ms")
        whole["last_error_entry"] = error.get("entry")
        rows = [[sub.get(column.name) for column in _SUBSCRIBERS] for sub in facts["subscribers"]]
        jobs = [
            [sub["handler"], sub["stream"], job["id"], job["since_ms"], _for(facts, job), job["deliveries"]]
            for sub in facts["subscribers"]
            for job in sub["jobs"]
        ]
        tables = [Table("subscribers", _SUBSCRIBERS, rows), Table("jobs", _JOBS, jobs, empty="Nothing runs.")]
        Output(form).report(whole, tables, _TIMES)


async def _one(line: "Line", wanted: str) -> dict[str, Any]:
    """What one worker tells of itself."""
    from millstream.worker.registry import lookup, protocol  # noqa: PLC0415 - help does not need it

    known = {facts["id"]: facts for facts in await protocol.workers(line)}
    return known[lookup.pick(list(known), (wanted,))[0]]


def _patience(timeout: str | None, *, wait: bool) -> float | None:
    """Seconds to wait for the end of workers; None for not at all."""
    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long --wait waits; give both")
    if timeout is None:
        return math.inf if wait else None
    try:
        return span("--timeout", timeout) / 1000
    except UsageError as error:
        raise click.UsageError(str(error)) from None


def _tell(action: str, ids: tuple[str, ...], options: Ask, *, everyone: bool, wait: float | None = None) -> None:
    """Leave an order for workers and say so, or what came of it."""
    from millstream.console.changes.workers import making  # noqa: PLC0415 - help does not need it

    verb = action.partition(" ")[2]
    with exits(f"millstream {action}"):
        done = change_unasked(options, lambda line, _: making.order(line, action, ids, everyone=everyone), "workers")
        if done is None:
            return
        plan, outcome = done
        ordered = cast("list[str]", plan.facts["workers"])
        if not ordered:
            Output().say("No workers are alive: none to order.")
            return
        if not outcome.whole:
            sys.exit(FAILED)
        Output().say(f"Ordered {len(ordered)} to {verb}: {', '.join(ordered)}. They see it within five seconds.")
        if blocked := cast("list[str]", plan.facts["blocked"]):
            Output().say(
                f"Not so {', '.join(blocked)}: the event loop stands still (`millstream worker show` says where), and "
                "until it goes on only a kill ends the process."
            )
        if wait is not None:
            ask(options.url, lambda line: _ended(line, ordered, wait))
            Output().say(f"Ended: {len(ordered)}.")


async def _ended(line: "Line", ids: list[str], seconds: float) -> None:
    """Wait until these workers have ended.

    Args:
        line: to the server.
        ids: of the workers.
        seconds: to wait at most.

    Raises:
        MillstreamError: some were ordered to go on, are gone without signing off, or are still there.
    """
    from millstream.worker.registry import protocol  # noqa: PLC0415 - help does not need it

    before: dict[str, protocol.EndState] = {}
    until = time.monotonic() + seconds
    while True:
        states = await protocol.end_states(line, ids)
        # on a cluster to sign off is not one step: it is believed that one is missing when it still is at the next look
        missing = [worker for worker in ids if states[worker] == before.get(worker) == "vanished"]
        resumed = [worker for worker in ids if states[worker] == "resumed"]
        if resumed:
            raise MillstreamError(f"ordered to go on meanwhile: {', '.join(resumed)}")
        if all(states[worker] == "ended" or worker in missing for worker in ids):
            break
        before = states
        if time.monotonic() >= until:
            there = [worker for worker in ids if states[worker] != "ended"]
            raise MillstreamError(
                f"still there: {', '.join(there)}; the order stays (`millstream worker show` says more)"
            )
        await asyncio.sleep(_LOOK)
    if missing:
        raise MillstreamError(
            f"gone without signing off: {', '.join(missing)}; what they had in hand is claimed by others when its "
            "min_idle_time is over"
        )


@worker.command(context_settings=_WIDE)
@_chosen
@_shown_first
def quiet(ids: tuple[str, ...], everyone: bool, **options: Any) -> None:
    """Let workers read nothing more: what they have not begun goes back at once, what runs is finished.

    They stay, and `millstream worker resume ID` sets them to work again.

    \b
    Examples:
      millstream worker quiet web-1-4711
      millstream worker quiet --all --dry-run
    """
    _tell("worker quiet", ids, _asked(options), everyone=everyone)


@worker.command(context_settings=_WIDE)
@_chosen
@_waiting
@_shown_first
def drain(ids: tuple[str, ...], everyone: bool, wait: bool, timeout: str | None, **options: Any) -> None:
    """Let workers finish what they have in hand, however long it takes, and then end.

    What they have not begun goes back at once. The process ends with exit code 0; `millstream run` does not start it
    again. --dry-run shows what they have in hand, and which groups nobody else reads.

    \b
    Examples:
      millstream worker drain web-1-4711 --dry-run
      millstream worker drain web-1-4711
      millstream worker drain --all --wait && deploy    when nobody works any more
    """
    _tell("worker drain", ids, _asked(options), everyone=everyone, wait=_patience(timeout, wait=wait))


@worker.command(context_settings=_WIDE)
@_chosen
@_waiting
@_shown_first
def stop(ids: tuple[str, ...], everyone: bool, wait: bool, timeout: str | None, **options: Any) -> None:
    """Stop workers as SIGTERM does: what runs gets the grace time, then it is handed back.

    `millstream run` does not start them again.

    \b
    Examples:
      millstream worker stop web-1-4711
      millstream worker stop --all --wait
    """
    _tell("worker stop", ids, _asked(options), everyone=everyone, wait=_patience(timeout, wait=wait))


@worker.command(context_settings=_WIDE)
@click.argument("stream")
@click.argument("group")
@click.option("--reason", required=True, help="Why, for whoever looks later.")
@click.option("--by", help="Who. Default: this user and host.")
@click.option("--ahead", is_flag=True, help="Also where there is no such stream or group yet.")
@_shown_first
def pause(stream: str, group: str, reason: str, by: str | None, ahead: bool, **options: Any) -> None:
    """Let no worker run anything for GROUP of STREAM until it is resumed.

    All workers see it within five seconds: what they have not begun goes back, what runs is finished. It holds when
    workers are started again, and for workers that are started later. A group that is not there yet is paused with
    --ahead.

    \b
    Examples:
      millstream worker pause orders billing --reason 'the card provider is down'
      millstream worker ls                                       shows what is paused, why, by whom
    """
    from millstream.console.changes.workers import making  # noqa: PLC0415 - help does not need it
    from millstream.worker.model.pause import HandlerPause  # noqa: PLC0415 - as above

    with exits("millstream worker pause"):
        new = HandlerPause(stream, group, reason, by or actor().who, time.time_ns() // 1_000_000)
        done = change_unasked(_asked(options), lambda line, _: making.pause(line, new, ahead=ahead), "groups")
        if done is not None and not done[1].whole:
            sys.exit(FAILED)
        if done is not None:
            from millstream.console.changes.writing import shell_line  # noqa: PLC0415 - help does not need it

            Output().say(f"Paused {group} on {stream}; `{shell_line(done[0].undo.words)}` ends it.")


@worker.command(context_settings=_WIDE)
@click.argument("target", metavar="STREAM|ID")
@click.argument("group", required=False)
@_shown_first
def resume(target: str, group: str | None, **options: Any) -> None:
    """End a pause: of GROUP of STREAM, or of the worker ID that is quiet or drains.

    \b
    Examples:
      millstream worker resume orders billing
      millstream worker resume web-1-4711 --dry-run
    """
    from millstream.console.changes.workers import making  # noqa: PLC0415 - help does not need it

    def make(line: "Line", _: object) -> "Awaitable[Prepared]":
        if group is None:
            return making.order(line, "worker resume", (target,))
        return making.resume_group(line, target, group)

    with exits("millstream worker resume"):
        done = change_unasked(_asked(options), make, "orders")
        if done is None:
            return
        if not done[1].whole:
            sys.exit(FAILED)
        if group is None:
            (found,) = cast("list[str]", done[0].facts["workers"])
            Output().say(f"Ordered {found} to go on.")
        else:
            Output().say(f"Resumed {group} on {target}.")


@worker.command(context_settings=_WIDE)
@click.argument("stream")
@click.argument("group", required=False)
@click.option("--idle", default="1h", show_default=True, metavar="SPAN", help=f"Idle for this long: {SPAN_HELP}.")
@_shown_first
def reap(stream: str, group: str | None, idle: str, **options: Any) -> None:
    """Remove consumers of STREAM's groups, or of GROUP alone, that are idle and hold nothing.

    One script on the server looks and removes, so no entry that is pending gets lost; workers that are alive keep their
    consumers. Workers do the same by themselves for consumers idle for an hour.

    \b
    Examples:
      millstream worker reap orders --dry-run
      millstream worker reap orders billing --idle 1d
    """
    from millstream.console.changes.workers import making  # noqa: PLC0415 - help does not need it
    from millstream.console.model.names import command_words  # noqa: PLC0415 - as above

    with exits("millstream worker reap"):
        idle_ms = span("--idle", idle)
        words = command_words("worker reap", stream, *(() if group is None else (group,)), options=("--idle", idle))
        asked = _asked(options)
        done = change_unasked(
            asked, lambda line, _: making.reap(line, stream, group, words, idle_ms=idle_ms), "consumers"
        )
        if done is None:
            return
        rows = [result.step.commands[0][3:5] for result in done[1].of("done", "late")]
        Output(asked.form).table(Table("removed", _REMOVED, rows, empty="Nothing to remove."))
        if not done[1].whole:
            sys.exit(FAILED)


async def _everything(line: "Line") -> "_Everything":
    from millstream.worker.registry import protocol  # noqa: PLC0415 - help does not need it

    return *await protocol.read_workers(line), await protocol.pauses(line)


def _row(facts: dict[str, Any]) -> list[object]:
    """A worker in the list: the sums of its subscribers, and the longest of what runs."""
    subscribers = facts["subscribers"]
    error = facts["last_error"] or {}
    jobs = [_for(facts, job) for sub in subscribers for job in sub["jobs"]]
    return [
        facts["id"],
        facts["state"],
        _blocked(facts),
        *(facts[name] for name in ("version", "started_ms", "beat_ms")),
        [sub["handler"] + (" (paused)" if sub["paused"] is not None else "") for sub in subscribers],
        *(sum(sub[name] for sub in subscribers) for name in ("slots", "running", "buffered")),
        max(jobs, default=None),
        error.get("error"),
    ]


def _blocked(facts: dict[str, Any]) -> str | None:
    """For how long a worker's event loop has stood still, and where; None while it goes on."""
    found = facts["blocked"]
    if found is None:
        return None
    return f"{(facts['beat_ms'] - found['since_ms']) / 1000:.0f} s at {found['where']}"


def _for(facts: dict[str, Any], job: dict[str, Any]) -> int:
    """Milliseconds a job had run at the worker's last beat, by that worker's own clock."""
    return int(facts["beat_ms"]) - int(job["since_ms"])
