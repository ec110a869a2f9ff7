"""``millstream handler``: handlers over all workers, and the timeline of one entry's runs."""

import click

from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import Column, Output, Table, show_options, subcommand
from millstream.ops.asking import NotReadableError
from millstream.ops.handlers.reading import read_handlers, read_timeline
from millstream.ops.handlers.status import HandlersSeen, figure_facts, handler_facts, part_facts
from millstream.ops.handlers.timeline import event_facts, timeline_facts
from millstream.ops.parameters import entry_id
from millstream.ops.streams.partitioned import each_part

_FIGURES = (
    Column("workers", "count", rank=6),
    Column("per_second", title="rate a second"),
    Column("p50_ms", "span", "p50"),
    Column("p95_ms", "span", "p95", rank=3),
    Column("p99_ms", "span", "p99"),
    Column("over_ms", "span", "over", rank=11),
    Column("failed_per_second", title="failed a second", rank=10),
    Column("handled", "count", rank=9),
    Column("failed", "count"),
    Column("retried", "count", rank=4),
    Column("dead", "count", rank=2),
    Column("in_hand", "count", "in hand", rank=1),
    Column("running", "count", people="never"),
    Column("slots", "count", people="never"),
    Column("longest_ms", "span", "longest run", people="filled", rank=3),
    Column("frozen", "count", people="never"),
    Column("unknown", "prose", people="filled", rank=5),
)
_HANDLERS = (
    *(Column("handler"), Column("stream"), Column("group")),
    *_FIGURES,
    Column("limits", rank=7, people="filled"),
    Column("schedules", rank=8, people="filled"),
    Column("paused", "prose", people="filled", rank=12),
)
_VERSIONS = (Column("version"), *_FIGURES)
_PARTS = (Column("worker"), Column("version", rank=5), Column("state", rank=6), *_FIGURES)
_EVENTS = (
    Column("group", people="filled"),
    Column("at_ms", "time", "time"),
    Column("event"),
    Column("text", "prose"),
    Column("worker", rank=1),
    Column("dead_letter_key", people="never"),
    Column("dead_letter", people="never"),
)


@subcommand(context_settings={"max_content_width": 110})
@watch_options
def ls(watch: float | None, url: str | None, form: str) -> None:
    """List the handlers of all live workers.

    Rates and durations are those of the last five minutes, which workers report every five seconds. A worker of an
    earlier version does not report them: then they are unknown. Durations are interpolated within the buckets of a
    histogram, whose highest bound is five minutes.

    \b
    Examples:
      millstream handler ls
      millstream handler ls --watch
      millstream handler ls -o json | jq '.[] | select(.p99_ms > 1000)'
    """

    def show(seen: HandlersSeen, _: object) -> None:
        if seen.why is not None:
            raise NotReadableError(seen.why)
        Output(form).table(Table("handlers", _HANDLERS, map(handler_facts, seen.handlers), "No handlers."))

    look(url, watch, read_handlers, show, form)


@subcommand(context_settings={"max_content_width": 110})
@click.argument("stream")
@click.argument("group")
@click.argument("handler")
@show_options
def show(stream: str, group: str, handler: str, url: str | None, form: str) -> None:
    """Show one handler by version and by worker.

    \b
    Example:
      millstream handler show orders billing bill
    """
    seen = ask(url, read_handlers)
    found = [one for one in seen.handlers if (one.stream, one.group, one.handler) == (stream, group, handler)]
    if not found:
        raise NotReadableError(
            seen.why or f"no live worker runs the handler {handler!r}; `millstream handler ls` lists the handlers"
        )
    tables = [
        Table("versions", _VERSIONS, [{"version": one, **figure_facts(sums)} for one, sums in found[0].by_version()]),
        Table("workers", _PARTS, [part_facts(*each) for each in found[0].by_worker()]),
    ]
    whole = handler_facts(found[0])
    Output(form).report(whole, tables, [each for each in _HANDLERS if each.kind != "text"])


@subcommand(context_settings={"max_content_width": 110})
@click.argument("stream")
@click.argument("entry", metavar="ID")
@show_options
def timeline(stream: str, entry: str, url: str | None, form: str) -> None:
    """Show the runs of the entry ID of STREAM in each group: published, delivered, failed, done or dead.

    It is made from what the server and its workers hold, and lists what cannot be known, such as the time of an
    acknowledgement.

    \b
    Examples:
      millstream handler timeline orders 1763721600000-0
      millstream handler timeline orders 1763721600000-0 -o json | jq '.groups[].state'
    """
    whole = entry_id(entry)
    every = ask(url, lambda line: each_part(line, stream, lambda key: read_timeline(line, key, whole)))
    found = next((one for one in every if not one.gone), every[0])
    if form == "json":
        Output(form).report(timeline_facts(found), [])
        return
    events = [event_facts(one) for one in found.events]
    events += [{**event_facts(one), "group": group.group} for group in found.groups for one in group.events]
    output = Output(form)
    output.table(Table("events", _EVENTS, events, "No events."))
    for group in found.groups:
        output.say(f"{group.group}: {group.state}")
        for each in group.unknown:
            output.say(f"  not known: {each}")
    for each in found.unknown:
        output.say(f"not known: {each}")
