"""Parts of several pages: command lines, rows of groups."""

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from millstream.console.actions.every import ACTIONS
from millstream.console.model.facts.marks import is_late, is_stuck
from millstream.console.model.names import command_words
from millstream.console.model.rates import GroupRate
from millstream.console.model.streams import GroupStatus
from millstream.console.watching.history import TrendPoint
from millstream.console.watching.questions import refused_actions
from millstream.console.web.charts import sparkline
from millstream.console.web.page import Asked


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in a table."""

    group: GroupStatus  # Status as it was read
    rate: GroupRate | None  # Its rates of late
    spark: Markup  # Its lag as a drawing
    late: bool  # Its oldest unread entry is old
    stuck: bool  # Its oldest entry in hand is old, or in no consumer's hands


def group_row(asked: Asked, group: GroupStatus, rate: GroupRate | None, now_ms: int) -> GroupRow:
    """A group as a row."""
    late, stuck = is_late(group, now_ms), is_stuck(group, now_ms)
    moments = asked.watch.history.lags(group.stream, group.name)
    points = [(moment.at_ms, moment.most) for moment in moments]
    spark = sparkline(points, trend_words(moments), hot=late) if any(y for _, y in points) else Markup("")
    return GroupRow(group, rate, spark, late, stuck)


def trend_words(moments: list[TrendPoint]) -> str:
    """A trend in words, for people who cannot see it."""
    if len(moments) < 2:
        return ""
    first, last = moments[0], moments[-1]
    way = "rising" if last.most > first.most else "falling" if last.most < first.most else "level"
    return f"lag {way}, from {first.most:,.0f} to {last.most:,.0f} in {(last.at_ms - first.at_ms) / 1000:.0f} s"


async def closed_actions(asked: Asked, key: str) -> dict[str, str]:
    """Action -> why it is not open: the console is read-only, or the server's user may not."""
    if not asked.settings.allow_changes:
        return {action.name: "the console is read-only: start it with --allow-changes" for action in ACTIONS}
    return await refused_actions(asked.watch, key)


def command_line(asked: Asked, does: str, *names: str, options: Iterable[str] = ()) -> list[str]:
    """The command line that shows the same, for this server."""
    return asked.watch.server.command_line(*command_words(does, *names, options=options)[1:])
