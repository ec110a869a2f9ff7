"""The demo's page and drawings: well-formed, complete without a network, and correct about failures."""

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from flights.checks.compare import Check
from flights.checks.evidence import Evidence
from flights.checks.result import Result
from flights.page import document, svg
from flights.running.progress import board
from flights.running.sample import Happening, Sample
from flights.settings import DemoSettings, Keys
from millstream import scales


def result(out: Path, found: Evidence, *, ok: bool) -> Result:
    """Return a short run's result with its tables on disk."""
    settings = DemoSettings(out, Keys.under(""), rows=2_000)
    settings.prepare()
    for name, table in found.tables.items():
        (settings.parquet / name).mkdir()
        table.to_parquet(settings.parquet / name / "part.parquet")
    samples = [Sample(at=at, published=at * 500, handled=at * 400, pending=7, spark=at * 300) for at in range(5)]
    marks = [Happening(1.0, "kill", "worker-2 killed"), Happening(2.0, "claim", "claimed"), Happening(3.0, "end", "x")]
    checks = [Check("stream", "a < b & c", "1", "1" if ok else "2", ok)]
    return Result(settings, 2_000, "Redis <7>", checks, samples, marks, 12_345, found.routes, 20, {"start": 1.0})


def test_bars_end_where_they_should() -> None:
    """If an alert is raised twice after a claim, the progress shows this, and no bar exceeds its end."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with board(console, Sample(published=10, handled=10, alerts=4, dead=2, spark=10)) as shown:
        shown.show(Sample(published=10, handled=10, alerts=7, dead=2, spark=10))
    assert "4 of 4" in screen.getvalue()
    assert "3 raised again" in screen.getvalue()
    assert "7 of 4" not in screen.getvalue()


@pytest.mark.parametrize("ok", [True, False])
def test_page_stands_alone_and_tells_the_truth(tmp_path: Path, faultless: Evidence, ok: bool) -> None:
    """The demo's page loads nothing from elsewhere, escapes its texts, and shows the result first."""
    text = document.write(result(tmp_path / "out", faultless, ok=ok)).read_text()
    assert "http" not in text.replace("http-equiv", "")
    assert "a &lt; b &amp; c" in text
    assert "Redis &lt;7&gt;" in text
    assert ("all 1 checks hold" in text) == ok
    assert ("1 of 1 checks fail" in text) != ok
    assert ("none lost" in text) == ok
    assert "12,345" in text
    assert "Delays through the days" in text  # these flights are of a few days; only a whole run shows a year
    for drawing in text.split("<svg")[1:]:
        ET.fromstring("<svg" + drawing.split("</svg>")[0] + "</svg>")
    assert text.count("<svg") == 6


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (-3, 47, [0, 10, 20, 30, 40]), (0, 336_776, [0, 100_000, 200_000, 300_000])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    """The axes' ticks are round numbers within the range."""
    assert scales.ticks(low, high) == expected


def test_marks_do_not_cover_each_other() -> None:
    """Two marks close together are drawn in two rows."""
    marks = [svg.Mark(x, "something long enough", "red") for x in (1.0, 1.1, 9.0)]
    line = svg.Series("a", "blue", [(0, 0), (10, 10)])
    drawing = ET.fromstring(svg.line_chart([line], "test", marks=marks))
    heights = [node.get("y") for node in drawing.iter("text") if node.get("class") == "note"]
    assert heights[0] != heights[1]
    assert heights[0] == heights[2]
