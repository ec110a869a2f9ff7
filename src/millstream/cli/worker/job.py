"""``millstream job show``."""

import click

from millstream.cli.entries.shown import value_text
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import Column, Output, Table, show_options, subcommand
from millstream.ops.jobs.reading import read_job
from millstream.ops.jobs.status import group_facts
from millstream.ops.parameters import entry_id
from millstream.ops.streams.partitioned import each_part

_FACTS = (Column("keep_ms", "span", "result is kept for"),)
_GROUPS = (
    Column("group"),
    Column("state"),
    Column("ended_ms", "time", "ended", rank=2),
    Column("cancelled_ms", "time", "cancelled", rank=1),
    Column("progress", "prose", rank=3),
    Column("value", "prose", rank=4),
    Column("error", "prose"),
    Column("left_out_bytes", "bytes", people="never"),
)


@subcommand(context_settings={"max_content_width": 110})
@click.argument("stream")
@click.argument("entry", metavar="ID")
@show_options
def show(stream: str, entry: str, url: str | None, form: str) -> None:
    """Show the job ID of STREAM: its state, its progress and its result in each group.

    A job is an entry that was published with `result=`. It is queued, running (delivered to a worker), done, dead,
    cancelled, or unknown: then its result is not kept any more. `cancelled` is the time of a cancellation that no
    worker has carried out yet.

    \b
    Examples:
      millstream job show orders 1763721600000-0
      millstream job show orders 1763721600000-0 -o json | jq '.groups[].value'
    """
    whole = entry_id(entry)
    seen = ask(url, lambda line: each_part(line, stream, lambda key: read_job(line, key, whole)))[0]
    rows = []
    for one in seen.groups:
        facts = group_facts(one)
        if form == "table":
            texts = ("progress", "value", "error")
            facts |= {name: None if facts[name] is None else value_text(facts[name], 500) for name in texts}
        rows.append(tuple(facts[column.name] for column in _GROUPS))
    for one in seen.groups:
        if one.large is not None:
            Output().say(f"the result in {one.group!r} is left out: it has {one.large:,} bytes")
    about: dict[str, object] = {"stream": seen.stream, "id": seen.id, "keep_ms": seen.keep_ms}
    Output(form).report(about, [Table("groups", _GROUPS, rows, empty="No groups.")], _FACTS)
