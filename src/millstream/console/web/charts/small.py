"""Small drawings inside tables and beside figures: a line without axes, the last value marked. Pure."""

from collections.abc import Sequence

from markupsafe import Markup

from millstream.console.web.charts.paper import Point, frame, path
from millstream.scales import Scale

WIDTH, HEIGHT = 96.0, 22.0


def sparkline(points: Sequence[Point], label: str, *, hot: bool = False) -> Markup:
    """A line of the last values; nothing where there are less than two of them.

    Args:
        points: times and values, times rising.
        label: what it shows, in words.
        hot: its end is what needs a person.
    """
    if len(points) < 2:
        return Markup("")
    xs, ys = [x for x, _ in points], [y for _, y in points]
    across = Scale(min(xs), max(xs), 1, WIDTH - 3)
    # zero is in it, so that a steady value does not look like a rise; all zero lies at the bottom
    up = Scale(min(0.0, *ys), max(ys) or 1, HEIGHT - 2, 3)
    placed = [(across(x), up(y)) for x, y in points]
    base = up(min(0.0, *ys))
    filled = [(placed[0][0], base), *placed, (placed[-1][0], base)]
    x, y = placed[-1]
    body = [
        f'<polygon points="{path(filled)}" class="area"/>',
        f'<polyline points="{path(placed)}" class="line"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" class="end"/>',
    ]
    return frame(WIDTH, HEIGHT, body, label, "spark hot" if hot else "spark")
