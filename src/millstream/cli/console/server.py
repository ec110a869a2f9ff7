"""``millstream server show`` and ``slow``."""

import click

from millstream.cli.console.watching import look, watch_options
from millstream.cli.shared.output import Column, Output, Table, subcommand
from millstream.client.line import Line
from millstream.ops.server.reading import server
from millstream.ops.server.retention import matched, rule_facts
from millstream.ops.server.status import ServerStatus
from millstream.ops.streams.reading import names

_FACTS = (
    *("product", "version", "redis_version", "role", "primary_link", "uptime_ms", "clients", "blocked_clients"),
    *("commands_per_second", "memory_bytes", "memory_limit_bytes", "log_enabled", "log_bytes", "log_status"),
)
_KINDS = (
    Column("uptime_ms", "span", "up for"),
    Column("memory_bytes", "bytes", "memory"),
    Column("memory_limit_bytes", "bytes", "memory limit"),
    Column("log_bytes", "bytes", "log size"),
    Column("retention_holds", title="retention waits for groups"),
)
_REPLICAS = (Column("address"), Column("state"), Column("lag_seconds", "count"), Column("behind_bytes", "bytes"))
_COSTS = (
    Column("command"),
    Column("calls", "count"),
    Column("total_ms", "span", "in all"),
    Column("each_ms", "span", "each"),
    Column("failed", "count", rank=1),
)
_SLOW = (
    Column("at_ms", "time", "at"),
    Column("took_ms", "span", "it took"),
    Column("command", "prose"),
    Column("client", rank=1),
    Column("name", rank=2),
)
_RULES = (
    Column("pattern"),
    Column("age_ms", "span", "kept for"),
    Column("max_bytes", "bytes", "up to"),
    Column("streams", "count"),
)
_KEPT = ("holds", "removed", "removed_unread")
# Figures of packs that the table always has; it omits others with a value that says nothing
_TIER = frozenset({"enabled", "bytes", "entries", "hot_bytes", "waste_bytes", "stalls", "last_spill_status"})
_QUIET = frozenset({0, "ok", "unknown", "p50=0,p99=0"})
_CUT = 200  # characters of a command that are shown to people


@subcommand()
@click.option("--limit", type=click.IntRange(1), default=20, help="Maximum number of commands in the list of costs.")
@watch_options
def show(limit: int, watch: float | None, url: str | None, form: str) -> None:
    """Show the server: its version, memory, log, replicas, and the commands that took most of its time.

    In a cluster, each node that has slots is shown, one after the other. The table omits figures of packs that are 0;
    `-o json` has all.

    \b
    Examples:
      millstream server show
      millstream server show --watch 5
      millstream server show -o json | jq '.costs[0]'
    """

    async def work(line: Line) -> tuple[list[ServerStatus], list[str]]:
        found = await server(line)
        ruled = any(one.retention is not None and one.retention.text for one in found)
        return found, await names(line) if ruled else []

    def every(found: tuple[list[ServerStatus], list[str]], _: object) -> None:
        for one in found[0]:
            _report(one, found[1], limit, form)

    look(url, watch, work, every, form)


def _report(one: ServerStatus, keys: list[str], limit: int, form: str) -> None:
    """Show one server."""
    facts = {name: getattr(one, name, None) for name in _FACTS}
    kept = one.retention
    if kept is not None or form != "table":
        facts |= {f"retention_{name}": getattr(kept, name, None) for name in _KEPT}
    tier = {
        f"tier_{name}": value
        for name, value in one.tier.items()
        if form != "table" or name in _TIER or value not in _QUIET
    }
    facts |= tier
    rules = (
        []
        if kept is None
        else [{**rule_facts(rule), "streams": len(there)} for rule, there in matched(kept.text or "", tuple(keys))]
    )
    facts["uptime_ms"] = None if one.uptime_seconds is None else one.uptime_seconds * 1000
    facts["memory_limit_bytes"] = one.memory_limit or None
    costs = [
        (each.name, each.calls, round(each.microseconds / 1000, 3), round(each.each / 1000, 3), each.failed)
        for each in one.costs[:limit]
    ]
    tables = [
        Table("costs", _COSTS, costs, empty="The cost of commands is unknown."),
        Table("replicas", _REPLICAS, one.replicas),
        Table("retention", _RULES, rules),
    ]
    output = Output(form)
    sizes = [Column(name, "bytes") for name in tier if name.endswith("bytes") or name == "tier_disk_needed"]
    output.report(facts, tables, (*_KINDS, *sizes))
    for name in ("info", "costs"):
        if name in one.missing:
            output.say(f"{name}: {one.missing[name]}")


@subcommand()
@click.option("--limit", type=click.IntRange(1), default=20, help="Maximum number of commands.")
@click.option(
    "--sort",
    type=click.Choice(["took", "time"]),
    default="took",
    help="Order: `took` lists the longest first, `time` the latest first.",
)
@watch_options
def slow(limit: int, sort: str, watch: float | None, url: str | None, form: str) -> None:
    """List the slow commands that the server keeps (SLOWLOG), the longest first.

    The server's setting slowlog-log-slower-than decides which commands count as slow. If a server does not keep such a
    list, `server show` reports which commands take most of its time.

    \b
    Examples:
      millstream server slow
      millstream server slow --sort time --limit 100
      millstream server slow -o json | jq -r '.[].command'
    """

    def every(found: list[ServerStatus], _: object) -> None:
        output = Output(form)
        commands = [each for one in found for each in one.slow]
        commands.sort(key=lambda each: -each.at_ms if sort == "time" else -each.microseconds)
        rows = []
        for each in commands[:limit]:
            text = b" ".join(each.words).decode(errors="surrogateescape")
            cut = text[:_CUT] + ("..." if len(text) > _CUT else "") if form == "table" else text
            rows.append((each.at_ms, each.microseconds / 1000, cut, each.client, each.name))
        output.table(Table("slow", _SLOW, rows, empty="No slow commands."))
        if len(commands) > limit:
            output.say(
                f"{limit} of {len(commands)} slow commands {'is' if limit == 1 else 'are'} shown; --limit "
                f"{len(commands)} shows all"
            )
        for one in found:
            if "slow" in one.missing:
                output.say(
                    f"this server does not list slow commands ({one.missing['slow'].strip()}); see `server show`"
                )

    look(url, watch, server, every, form)
