"""The charts of a page over a range of time that its reader chooses, with marks of deploys and changes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from millstream.ops.history.model import Cell, Subject
from millstream.ops.history.series import Mark, SeriesSeen
from millstream.ops.history.windows import RANGES, TimeRange, stepped, window_of
from millstream.ops.watching.questions import history_reading, with_own
from millstream.ops.watching.watch import Reading
from millstream.ops.words import Facts, name
from millstream.web.charts import clock
from millstream.web.page import Asked
from millstream.web.plots import PlotLine, Unit, over_all, plot, summary
from millstream.web.wording import label

_MOMENT = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, slots=True)
class WantedPlot:
    """A chart that a page wants."""

    title: str
    unit: Unit
    lines: tuple[tuple[str, Subject, str], ...]  # Title, subject and column of each line


@dataclass(frozen=True, slots=True)
class Trends:
    """The charts of a page."""

    window: TimeRange
    seen: SeriesSeen
    plots: Sequence[tuple[str, str, str, Markup]]  # Title, newest values, mean or highest value of the range, drawing
    marks: tuple[Mark, ...]  # Marks of the page's subjects, the newest first
    link: str  # Address of the page, to which a range is appended
    notes: tuple[str, ...]

    ranges: ClassVar = tuple(RANGES)  # Names of the ranges that end now

    @property
    def script(self) -> str:
        """Data for the script: the range, its steps and the marks."""
        ends = {"start": self.window.start_ms, "end": self.window.end_ms, "step": self.window.step_ms}
        return json.dumps(ends | {"marks": [[mark.at_ms, mark_words(mark)] for mark in self.marks]})


def mark_words(mark: Mark) -> str:
    """Return a mark in the words of the pages."""
    if not mark.action:
        return mark.text
    place = " on ".join(name(each) for each in (mark.group, mark.stream) if each)
    return " ".join(filter(None, (f"{label(mark.action)}:", place, mark.about))) + f", by {mark.who}"


def _usual(wanted: Sequence[WantedPlot]) -> tuple[Subject, ...]:
    return tuple(dict.fromkeys(subject for one in wanted for _, subject, _ in one.lines))


async def read_trends(asked: Asked, wanted: Sequence[WantedPlot]) -> tuple[TimeRange, Reading[SeriesSeen]]:
    """Return the range in the address, and its written history."""
    window = window_of(asked.words.get("range", ""), asked.watch.line.wall_time())
    return window, await history_reading(asked.watch, _usual(wanted), window)


async def trends(
    asked: Asked,
    wanted: Sequence[WantedPlot],
    about: str = "",
    group: str = "",
    read: tuple[TimeRange, Reading[SeriesSeen]] | None = None,
) -> tuple[Trends, Reading[SeriesSeen]]:
    """Return the charts for the range in the address, without changes of other streams and groups than these.

    A history that was ``read`` before is drawn up to the page's own last figures.
    """
    window, written = read or await read_trends(asked, wanted)
    reading = with_own(asked.watch, written, _usual(wanted), window)
    seen = reading.value
    marks = [mark for mark in seen.marks if not about or mark.stream in {"", about}]
    marks = [mark for mark in marks if not group or mark.group in {"", group}]
    plots = [_drawn(one, seen, marks, window) for one in wanted if not _is_empty(one, seen)]
    link = asked.here(range=None)
    link += ("&" if "?" in link else "?") + "range="
    return Trends(window, seen, plots, tuple(reversed(marks)), link, tuple(_notes(seen, window))), reading


def trend_facts(shown: Trends, wanted: Sequence[WantedPlot]) -> Facts:
    """Return the figures of the charts as data."""
    seen, window = shown.seen, shown.window
    figures = [
        {"chart": one.title, "figure": name, "unit": one.unit, "points": _points(seen.column(subject, column), window)}
        for one in wanted
        for name, subject, column in one.lines
    ]
    return {
        "from_ms": window.start_ms,
        "to_ms": window.end_ms,
        "step_ms": window.step_ms,
        "figures": figures,
        "marks": [{"at_ms": mark.at_ms, "kind": mark.kind, "text": mark.text} for mark in shown.marks],
        "skipped": seen.skipped,
    }


def _points(readings: Sequence[tuple[int, Cell]], window: TimeRange) -> list[list[float | None]]:
    steps = [step for step in stepped(readings, window) if step is not None]
    return [[step.at_ms, step.value, step.least, step.most] for step in steps]


def _is_empty(one: WantedPlot, seen: SeriesSeen) -> bool:
    """Return True for a chart of a handler that no worker reported."""
    return all(subject[0] == "handler" and not seen.rows.get(subject) for _, subject, _ in one.lines)


def _drawn(one: WantedPlot, seen: SeriesSeen, marks: Sequence[Mark], window: TimeRange) -> tuple[str, str, str, Markup]:
    lines = [PlotLine(name, stepped(seen.column(subject, column), window)) for name, subject, column in one.lines]
    drawn = plot(one.title, one.unit, lines, marks, window)
    return one.title, summary(lines, one.unit), over_all(lines, one.unit), drawn


def _notes(seen: SeriesSeen, window: TimeRange) -> list[str]:
    """Return sentences about what the charts lack."""
    found = []
    if seen.why is not None:
        found.append(f"The history cannot be read: {seen.why}.")
    elif seen.own and seen.ahead_ms is not None:
        found.append(
            "The server's clock was set back: its history already has figures of "
            f"{clock(seen.ahead_ms, _MOMENT)} UTC, and continues after that time. Until then, these figures are from "
            "the times when a page was open."
        )
    elif seen.own:
        found.append(
            "No process writes a history to this server. These figures are from the times when a page was open. "
            "`millstream run`, or the console with --history, writes one."
        )
    elif seen.last_ms is None:
        found.append("There are no figures of this time.")
    if seen.first_ms is not None and seen.first_ms > window.start_ms + window.step_ms and not seen.own:
        gone = ": older entries went at the limit of 50 MB" if seen.cut_ms is not None else ""
        found.append(f"The history begins at {clock(seen.first_ms, _MOMENT)} UTC{gone}.")
    if seen.more:
        found.append("The range has more entries than one reading takes, so the charts end early.")
    if seen.skipped:
        found.append(f"Damaged entries, which are left out: {seen.skipped:,}.")
    return found


def group_plots(stream: str, group: str, runs: Sequence[Subject] = ()) -> list[WantedPlot]:
    """Return the charts of a group and its handlers."""
    this, whole = ("group", stream, group), ("stream", stream)
    return [
        WantedPlot("Lag", "count", (("lag", this, "lag"),)),
        WantedPlot("Behind", "ms", (("behind", this, "behind"),)),
        WantedPlot("Pending", "count", (("pending", this, "pending"),)),
        WantedPlot("In and out", "rate", (("out", this, "out"), ("in", whole, "in"))),
        *handler_plots(runs),
    ]


def handler_plots(runs: Sequence[Subject]) -> list[WantedPlot]:
    """Return the charts of handlers."""
    return [
        chart
        for one in runs
        for chart in (
            WantedPlot(f"Runs of {one[1]}", "rate", (("handled", one, "handled"), ("failed", one, "failed"))),
            WantedPlot(f"95th percentile of {one[1]}", "ms", (("p95", one, "p95"),)),
        )
    ]


def stream_plots(stream: str, groups: Sequence[str] = ()) -> list[WantedPlot]:
    """Return the charts of a stream, and of the lags of some groups."""
    this = ("stream", stream)
    lags = tuple((name(group), ("group", stream, group), "lag") for group in groups)
    return [
        *([WantedPlot("Lag", "count", lags)] if lags else []),
        WantedPlot("Coming in", "rate", (("in", this, "in"),)),
        WantedPlot("Entries", "count", (("entries", this, "length"),)),
        WantedPlot("Dead letters", "count", (("letters", this, "dead"),)),
    ]


TOTALS = (
    WantedPlot("Lag", "count", (("lag", ("total",), "lag"),)),
    WantedPlot("In and out", "rate", (("out", ("total",), "out"), ("in", ("total",), "in"))),
    WantedPlot("Pending", "count", (("pending", ("total",), "pending"),)),
    WantedPlot("Dead letters", "count", (("letters", ("total",), "dead"),)),
)
"""The charts of all streams."""

SERVER = (
    WantedPlot("Memory", "bytes", (("memory", ("total",), "memory"),)),
    WantedPlot("Commands", "rate", (("commands", ("total",), "commands"),)),
    WantedPlot("Handlers", "rate", (("handled", ("total",), "handled"), ("failed", ("total",), "failed"))),
    WantedPlot("Furthest behind", "ms", (("behind", ("total",), "behind"),)),
)
"""The charts of the server."""
