"""The server, or each node of a cluster: memory, clients, its log, replicas, what commands cost, slow ones."""

from millstream.console import words
from millstream.console.changes.writing import raw_line
from millstream.console.model.server import ServerStatus
from millstream.console.reading.server import server
from millstream.console.top.views.asked import TopAsked
from millstream.console.top.views.view import TopView, ViewColumn, ViewRow, ViewSection

_COSTS, _SLOW = 12, 20  # rows of each

_NOTED = ("info", "costs")  # what is said where a server does not tell it

_COST_COLUMNS = (
    ViewColumn("command"),
    ViewColumn("calls", right=True),
    ViewColumn("share", right=True),
    ViewColumn("in all", right=True, rank=1),
    ViewColumn("each", right=True),
    ViewColumn("failed", right=True, rank=2),
)
_SLOW_COLUMNS = (
    ViewColumn("when", right=True),
    ViewColumn("took", right=True),
    ViewColumn("command", prose=True),
    ViewColumn("client", rank=1),
)
_REPLICAS = (
    ViewColumn("replica"),
    ViewColumn("state"),
    ViewColumn("silent for", right=True),
    ViewColumn("behind", right=True),
)


async def server_view(asked: TopAsked) -> TopView:
    """The server.

    Raises:
        MillstreamError: it does not answer.
    """
    reading = await asked.watch.read("server", server)
    nodes = reading.value
    sections = [section for number, node in enumerate(nodes) for section in _sections(node, number, len(nodes) > 1)]
    return TopView(
        title="server",
        figures=_figures(nodes[0]) if len(nodes) == 1 else (("nodes", words.count(len(nodes))),),
        notes=tuple(
            f"{name}: {node.missing[name].strip()}" for node in nodes for name in _NOTED if name in node.missing
        ),
        sections=tuple(sections),
        command_lines=(asked.shell("server", "show"), asked.shell("server", "slow")),
        **asked.source(reading),
    )


def _figures(node: ServerStatus) -> tuple[tuple[str, str], ...]:
    limit = f" of {words.size(node.memory_limit)}" if node.memory_limit else ""
    log = "none" if node.log_enabled is False else f"{words.size(node.log_bytes)}, {node.log_status or 'unknown'}"
    return (
        (node.product, node.version),
        ("role", node.role or "unknown"),
        *((("link to its primary", node.primary_link),) if node.primary_link else ()),
        ("up for", words.span(None if node.uptime_seconds is None else node.uptime_seconds * 1000)),
        ("clients", f"{words.count(node.clients)}, {words.count(node.blocked_clients)} blocked"),
        ("memory", words.size(node.memory_bytes) + limit),
        ("commands", words.rate(node.commands_per_second)),
        ("log", log),
    )


def _sections(node: ServerStatus, number: int, several: bool) -> list[ViewSection]:
    """What is listed of one node.

    Args:
        node: as it was read.
        number: among the nodes.
        several: there are others.
    """
    ahead: list[ViewSection] = []
    title = ""
    if several:
        title = f"node {number + 1}: "
        cells = (" ".join(f"{name} {value}  " for name, value in _figures(node)),)
        ahead = [ViewSection(f"node {number + 1}", (ViewColumn("", prose=True),), (ViewRow(f"node {number}", cells),))]
    whole = sum(cost.microseconds for cost in node.costs) or 1
    costs = [
        ViewRow(
            f"cost {number} {cost.name}",
            (
                words.brief(cost.name, 30),
                words.count(cost.calls),
                f"{100 * cost.microseconds / whole:.0f} %",
                words.micros(cost.microseconds),
                words.micros(cost.each),
                words.count(cost.failed),
            ),
        )
        for cost in node.costs[:_COSTS]
    ]
    slow = [
        ViewRow(
            f"slow {number} {one.id}",
            (
                words.ago(node.at_ms - one.at_ms),
                words.micros(one.microseconds),
                words.brief(raw_line(one.words), 400),
                words.name(one.client),
            ),
        )
        for one in node.slow[:_SLOW]
    ]
    replicas = [
        ViewRow(
            f"replica {number} {place}",
            (
                words.name(one.address),
                words.name(one.state),
                words.span(None if one.lag_seconds is None else one.lag_seconds * 1000),
                words.size(one.behind_bytes),
            ),
            mark="" if one.state == "online" else "!",
        )
        for place, one in enumerate(node.replicas)
    ]
    none = "This server keeps no list of slow commands." if "slow" in node.missing else "No slow commands."
    return [
        *ahead,
        ViewSection(f"{title}replicas", _REPLICAS, tuple(replicas)),
        ViewSection(f"{title}what commands cost", _COST_COLUMNS, tuple(costs), "What commands cost is not known."),
        ViewSection(f"{title}slow commands", _SLOW_COLUMNS, tuple(slow), none),
    ]
