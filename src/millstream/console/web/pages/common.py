"""What several pages are made of: the reading of all streams, command lines, rows of groups."""

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from millstream.client.line import Line
from millstream.client.url import DEFAULT_URL
from millstream.console.model.rates import GroupRate, rates
from millstream.console.model.streams import GroupStatus, StreamsSeen
from millstream.console.reading import streams
from millstream.console.web.charts.small import sparkline
from millstream.console.web.charts.trend import TrendPoint
from millstream.console.web.page import Asked
from millstream.console.web.watch import Reading

BEHIND = 60_000
"""Milliseconds from which on what a group has not read yet is marked."""

STUCK = 300_000
"""Milliseconds from which on an entry that is pending is marked."""

Rates = tuple[Mapping[str, float], Mapping[tuple[str, str], GroupRate]]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in a table.

    Attributes:
        group: as it was read.
        rate: how it did of late.
        spark: its lag as a drawing.
        late: what it has not read yet is old.
        stuck: what it has in hand is old, or nobody has it in hand.
    """

    group: GroupStatus
    rate: GroupRate | None
    spark: Markup
    late: bool
    stuck: bool


async def everything(asked: Asked) -> Reading[StreamsSeen]:
    """All streams with their groups, in one reading for all who look.

    Raises:
        MillstreamError: the server does not answer, or does not let us look.
    """

    async def work(line: Line) -> StreamsSeen:
        seen = await streams.overview(line)
        asked.watch.history.note(seen.streams, seen.at_ms)
        return seen

    return await asked.watch.read("overview", work)


def rates_of(reading: Reading[StreamsSeen]) -> Rates:
    """How streams and groups did between a reading and the one before; empty for a first one."""
    if reading.before is None or reading.before.value.at_ms >= reading.value.at_ms:
        return {}, {}
    return rates(reading.before.value, reading.value)


def is_late(group: GroupStatus, now_ms: int) -> bool:
    """Whether what a group has not read yet is old."""
    return (group.oldest_undelivered.age(now_ms) or 0) >= BEHIND


def is_stuck(group: GroupStatus, now_ms: int) -> bool:
    """Whether an entry of a group is pending for long, or held by nobody."""
    return group.pending > 0 and ((group.oldest_pending.age(now_ms) or 0) >= STUCK or bool(group.unowned))


def group_row(asked: Asked, group: GroupStatus, rate: GroupRate | None, now_ms: int) -> GroupRow:
    """A group as a row.

    Args:
        asked: for whom.
        group: as it was read.
        rate: how it did of late.
        now_ms: wall milliseconds of the reading.
    """
    late, stuck = is_late(group, now_ms), is_stuck(group, now_ms)
    moments = asked.watch.history.lags(group.stream, group.name)
    points = [(moment.at_ms, moment.most) for moment in moments]
    spark = sparkline(points, trend_words(moments), hot=late) if any(y for _, y in points) else Markup("")
    return GroupRow(group, rate, spark, late, stuck)


def trend_words(moments: list[TrendPoint]) -> str:
    """A trend for those who cannot see it."""
    if len(moments) < 2:
        return ""
    first, last = moments[0], moments[-1]
    way = "rising" if last.most > first.most else "falling" if last.most < first.most else "level"
    return f"lag {way}, from {first.most:,.0f} to {last.most:,.0f} in {(last.at_ms - first.at_ms) / 1000:.0f} s"


def command_line(asked: Asked, *words: str) -> list[str]:
    """The command line that shows the same, for this server."""
    url = asked.watch.server.address
    return ["millstream", *words, *(["--url", url] if url != DEFAULT_URL else [])]
