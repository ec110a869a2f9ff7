"""Where each group of a stream stands, on one axis of time: what it was delivered, what it was not, what is pending.

The axis is the stream from its oldest entry to its newest, by the times in their ids. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from millstream.console.web.charts.paper import below, fitted, frame, time_ticks, words
from millstream.scales import Scale

WIDTH, ROW, TOP = 1100.0, 26.0, 8.0
_LEFT, _RIGHT = 190.0, 12.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How far one group is.

    Attributes:
        name: for people.
        delivered_ms: its position; None where it was delivered nothing that is there.
        pending_ms: when the oldest pending entry was added; None without one, or where that is not known.
        words: the same in words, for those who cannot see it.
        hot: it needs a person.
    """

    name: str
    delivered_ms: int | None
    pending_ms: int | None
    words: str
    hot: bool = False


def ground(standings: Sequence[Standing], first_ms: int, last_ms: int, more: int = 0) -> Markup:
    """The drawing.

    Args:
        standings: a row for each.
        first_ms: when the oldest entry was added.
        last_ms: when the newest was.
        more: how many others read the stream, and have no row.
    """
    across = Scale(first_ms, max(last_ms, first_ms + 1), _LEFT, WIDTH - _RIGHT)
    body: list[str] = []
    for index, one in enumerate(standings):
        body += _row(one, TOP + index * ROW, across)
    bottom = TOP + len(standings) * ROW
    if more:
        body.append(words(_LEFT - 12, bottom + ROW / 2 + 4, f"and {more:,} more", "name", "end"))
        bottom += ROW
    for at, text in time_ticks(across.low, across.high, 7):
        body.append(below(across(at), bottom + 16, text, WIDTH))
    label = "Where each group stands between the oldest and the newest entry: " + "; ".join(
        f"{one.name}: {one.words}" for one in standings
    )
    return frame(WIDTH, bottom + 24, body, label, "ground")


def _row(one: Standing, y: float, across: Scale) -> list[str]:
    """One group: a track for the whole stream, filled as far as it was delivered."""
    middle, wide = y + ROW / 2, across.end - across.start
    body = [
        words(_LEFT - 12, middle + 4, fitted(one.name, _LEFT - 12), "name", "end"),
        f'<rect x="{across.start:.1f}" y="{middle - 5:.1f}" width="{wide:.1f}" height="10" rx="2" class="track"/>',
    ]
    if one.delivered_ms is not None:
        done = max(_inside(across, one.delivered_ms) - across.start, 2.0)
        body.append(
            f'<rect x="{across.start:.1f}" y="{middle - 5:.1f}" width="{done:.1f}" height="10" rx="2" class="done"/>'
        )
    if one.pending_ms is not None:
        x = _inside(across, one.pending_ms)
        kind = "pending hot" if one.hot else "pending"
        body.append(
            f'<path d="M{x - 5:.1f} {middle - 11:.1f} h10 l-5 7 z" class="{kind}"><title>oldest pending</title></path>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{middle - 5:.1f}" y2="{middle + 5:.1f}" class="{kind}"/>'
        )
    return body


def _inside(across: Scale, at_ms: int) -> float:
    """The place of a time; of one outside the axis, the end it lies beyond."""
    return min(max(across(at_ms), across.start), across.end)
