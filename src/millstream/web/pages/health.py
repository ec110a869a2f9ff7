"""The state of the server: memory, clients, its log on disk, replicas, costs of commands, and slow commands."""

from dataclasses import asdict, dataclass

from millstream.client.url import CLUSTERS
from millstream.ops.server.reading import server
from millstream.ops.server.status import CommandCost, ServerStatus, SlowCommand
from millstream.ops.watching import questions
from millstream.ops.words import Facts, brief, raw_line
from millstream.web.page import Asked, WebPage
from millstream.web.pages.common import alerts_facts, cards, command_line, problem_facts
from millstream.web.pages.trends import SERVER, trend_facts, trends

_ALERTS = 100  # number of alerts in the table
_COSTS = 12  # number of commands in the table of costs
_SLOW = 50  # number of slow commands in the table
_LETTERS = 160  # characters of a slow command


@dataclass(frozen=True, slots=True)
class CostRow:
    """A command in the table of costs. ``share`` is its share of the total time, in percent."""

    cost: CommandCost
    share: float


@dataclass(frozen=True, slots=True)
class SlowRow:
    """A slow command as a table row."""

    slow: SlowCommand
    line: str


async def health_page(asked: Asked) -> WebPage:
    """Return the page of the server, or of each node of a cluster."""
    reading = await asked.watch.read("server", server)
    nodes = reading.value
    trouble = await questions.problems(asked.watch)
    shown, kept = await trends(asked, SERVER)
    alerts = await questions.alerts_reading(asked.watch)
    facts: Facts = {"servers": [_facts(node) for node in nodes]}
    facts |= {"history": trend_facts(shown, SERVER), **problem_facts(asked, trouble), **alerts_facts(alerts)}
    view = {
        "nodes": [(node, _costs(node), [SlowRow(slow, _line(slow)) for slow in node.slow[:_SLOW]]) for node in nodes],
        "now": reading.at_ms,
        "urgent": cards(asked, trouble.causes, hints=False),
        "alerts": alerts.value.alerts[:_ALERTS],
        "more_alerts": max(len(alerts.value.alerts) - _ALERTS, 0),
        "alerts_why": alerts.value.why,
        "trends": shown,
        "is_cluster": asked.watch.server.url.startswith(CLUSTERS),
    }
    shell = [command_line(asked, does) for does in ("server show", "server slow", "alert ls", "doctor")]
    source = WebPage.source(reading, trouble.seen, *trouble.readings, alerts, kept)
    return WebPage("health", "Server", facts, view, shell, **source)


def _costs(node: ServerStatus) -> list[CostRow]:
    whole = sum(cost.microseconds for cost in node.costs) or 1
    return [CostRow(cost, 100 * cost.microseconds / whole) for cost in node.costs[:_COSTS]]


def _line(slow: SlowCommand) -> str:
    return brief(raw_line(slow.words), _LETTERS)


def _facts(node: ServerStatus) -> Facts:
    return {**asdict(node), "costs": [asdict(cost) for cost in node.costs], "missing": dict(node.missing)}
