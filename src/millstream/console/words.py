"""Values as pages and terminals show them: names of any bytes, figures, ages. Nothing here raises for a value. Pure."""

from millstream.printable import printable
from millstream.texts import in_one_line, size_text, span_text

DASH = "\N{EN DASH}"
"""The sign for an unknown value."""

_MIDDLE = 60  # characters of a name in a table


def name(text: str | None) -> str:
    """A name in one line; one that is empty is said to be."""
    return "(empty name)" if text == "" else in_one_line(text or "")


def brief(text: str, most: int = _MIDDLE) -> str:
    """A name or value in one line of this number of characters."""
    line = in_one_line(text[: most * 4])
    return line if len(line) <= most else line[: most - 1] + "…"


def lines(text: str) -> str:
    """Text of several lines, in which nothing moves a cursor or turns the direction of writing."""
    return printable(text)


def count(value: float | None) -> str:
    """A whole number with separators; a dash where it is not known."""
    return DASH if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """A rate per second."""
    if value is None:
        return DASH
    if value == 0:
        return "0/s"
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.1f}/s" if value >= 0.1 else f"{value * 60:.1f}/min"


def span(milliseconds: float | None) -> str:
    """A length of time, no more exact than a person cares for; a dash where it is not known."""
    if milliseconds is None:
        return DASH
    if milliseconds < 1:
        return "0 s"
    text = span_text(milliseconds)
    return text.partition(" min ")[0] + " min" if " min " in text else text


def idle(idle_ms: int | None, due_in_ms: int | None) -> str:
    """The idle time of a pending entry, or the time until it is due where it is delayed."""
    return span(idle_ms) if due_in_ms is None else f"due in {span(due_in_ms)}"


def micros(microseconds: float) -> str:
    """A length of time that may be short."""
    return f"{microseconds:.3g} µs" if 0 < microseconds < 1000 else span_text(microseconds / 1000)


def ago(milliseconds: float | None) -> str:
    """The time since then, in words."""
    return DASH if milliseconds is None else "now" if milliseconds < 1000 else f"{span(milliseconds)} ago"


def size(value: int | None) -> str:
    """A size in bytes."""
    return DASH if value is None else size_text(value)


def plural(number: int, one: str, many: str = "") -> str:
    """``1 entry``, ``2 entries``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
