"""The curves as SVG files beside the page, drawn by the code for the demo's page and the console.

That page has colours and type in its style; a separate file has its own style and a white ground, so that it can be
read on a dark page too. Sizes are shown by their powers of ten, and each axis has its name.
"""

import math
from pathlib import Path
from statistics import median
from typing import Any

from bench.server.servers import NATIVE, PYTHON, REDIS
from examples.flights.page.svg import Series, line_chart

COLORS = {REDIS: "#b3261e", NATIVE: "#1a5fb4", PYTHON: "#2e7d32"}
STYLE = (
    "<style>text{font:12px sans-serif;fill:#444}.grid{stroke:#ddd}.line{fill:none;stroke-width:2}"
    ".name{font-weight:600}.axis{font-style:italic}</style><rect width='100%' height='100%' fill='#fff'/>"
)


def file_name(curve: str) -> str:
    """Return the file name of a curve's picture."""
    return curve.lower().replace(" ", "-") + ".svg"


def draw(drawn: dict[str, str], folder: Path) -> None:
    """Write each curve's picture, and remove those of other curves."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, text in drawn.items():
        (folder / file_name(name)).write_text(text)


def picture(name: str, by_size: dict[str, Any]) -> str:
    """Draw one curve: microseconds of processor per command, a line for each server."""
    found = {
        server: {
            size: median(one["micros"] for one in rounds[server])
            for size, rounds in by_size.items()
            if rounds.get(server)
        }
        for server in COLORS
    }
    _, _, across = name.partition(" by ")
    label = f"{name}: microseconds of processor a command"
    return plot(found, COLORS, label, " us", (across, "processor time of one command"))


def plot(
    found: dict[str, dict[str, float]], colors: dict[str, str], label: str, unit: str, axes: tuple[str, str]
) -> str:
    """Draw a line for each name with a value by size."""
    lines = [
        Series(name, colors[name], [(math.log10(int(size)), value) for size, value in values.items()])
        for name, values in found.items()
        if values
    ]
    marks = {math.log10(int(size)): f"{int(size):,}" for values in found.values() for size in values}
    drawn = line_chart(lines, label, x_ticks=sorted(marks.items()), unit=unit, axes=axes)
    head, _, body = drawn.partition(">")
    return f"<svg xmlns='http://www.w3.org/2000/svg' {head.removeprefix('<svg ')}>{STYLE}{body}\n"
