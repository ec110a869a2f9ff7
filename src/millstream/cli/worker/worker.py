"""``millstream worker``: show workers and their work; quiet, stop or pause them."""

from typing import TYPE_CHECKING, Any

import click

from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import Column, Output, Table, show_options, subcommand
from millstream.client.line import Line
from millstream.worker.model.pause import HandlerPause
from millstream.worker.registry import lookup, protocol

if TYPE_CHECKING:
    _Everything = tuple[list[dict[str, Any]], list[str], list[HandlerPause]]


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
    Column("partitions", "prose", rank=10),
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
_TIMES = (
    Column("started_ms", "time", "started"),
    Column("beat_ms", "time", "last beat"),
    Column("last_error_ms", "time", "at"),
)


@subcommand()
@watch_options
def ls(watch: float | None, url: str | None, form: str) -> None:
    """List the workers that are alive, and the handlers that are paused.

    \b
    Examples:
      millstream worker ls
      millstream worker ls --watch
      millstream worker ls -o json | jq '.workers[] | select(.state != "running")'
    """

    def show(seen: "_Everything", _: object) -> None:
        found, strange, paused = seen
        workers = Table("workers", _WORKERS, [_row(facts) for facts in found], empty="No workers.")
        Output(form).report({"alive": len(found)}, [workers, Table("pauses", _PAUSES, paused)])
        for key in strange:
            Output().say(
                f"{key} is not a record of a worker, or larger than 1 MB: another program wrote it. Delete the key if "
                "nothing needs it"
            )

    look(url, watch, _everything, show, form)


@subcommand()
@click.argument("id", metavar="ID")
@show_options
def show(id: str, url: str | None, form: str) -> None:  # noqa: A002 - click's argument
    """Show one worker: its subscribers, their running entries with the time of each run, its last error.

    ID is a worker's id from `ls`, or an unambiguous beginning. Start times of jobs are accurate to about five seconds.

    \b
    Example:
      millstream worker show web-1-4711
    """
    facts = ask(url, lambda line: _one(line, id))
    error = facts["last_error"] or {}
    whole = {name: facts[name] for name in ("id", "host", "pid", "version", "state", "started_ms", "beat_ms")}
    whole["blocked"] = _blocked(facts)
    whole["last_error"] = error.get("error")
    whole["last_error_ms"] = error.get("at_ms")
    whole["last_error_entry"] = error.get("entry")
    subscribers = [{**sub, "partitions": _partitions(sub.get("partitions"))} for sub in facts["subscribers"]]
    rows = [[sub.get(column.name) for column in _SUBSCRIBERS] for sub in subscribers]
    jobs = [
        [sub["handler"], sub["stream"], job["id"], job["since_ms"], _for(facts, job), job["deliveries"]]
        for sub in facts["subscribers"]
        for job in sub["jobs"]
    ]
    tables = [Table("subscribers", _SUBSCRIBERS, rows, empty=""), Table("jobs", _JOBS, jobs, empty="Nothing runs.")]
    Output(form).report(whole, tables, _TIMES)


def _partitions(numbers: object) -> str | None:
    """Return the partitions that a subscriber owns; None for a plain stream."""
    return ", ".join(map(str, numbers)) if isinstance(numbers, list) else None


async def _one(line: Line, wanted: str) -> dict[str, Any]:
    """Return the facts that a worker reports about itself."""
    known = {facts["id"]: facts for facts in await protocol.workers(line)}
    return known[lookup.pick(list(known), (wanted,))[0]]


async def _everything(line: Line) -> tuple[list[dict[str, Any]], list[str], list[HandlerPause]]:
    return *await protocol.read_workers(line), await protocol.pauses(line)


def _row(facts: dict[str, Any]) -> list[object]:
    """Return a worker as a table row: the sums of its subscribers, and the longest running job."""
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
    """Return the time for which a worker's event loop has been blocked, and the code line; None if it is not."""
    found = facts["blocked"]
    if found is None:
        return None
    return f"{(facts['beat_ms'] - found['since_ms']) / 1000:.0f} s at {found['where']}"


def _for(facts: dict[str, Any], job: dict[str, Any]) -> int:
    """Return the milliseconds that a job had run at the worker's last report, by the worker's own clock."""
    return int(facts["beat_ms"]) - int(job["since_ms"])
