"""Times as the pages show them."""

from datetime import UTC, datetime

from markupsafe import Markup, escape

from millstream.console.words import DASH
from millstream.texts import time_text


def moment(milliseconds: int | None) -> Markup:
    """A time in UTC, to the second; all of it is in what a pointer shows."""
    if milliseconds is None:
        return escape(DASH)
    whole = time_text(milliseconds)
    try:
        short = f"{datetime.fromtimestamp(milliseconds // 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return escape(whole)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(whole, whole, short)
