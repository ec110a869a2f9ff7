"""Options that are times or durations: one parser, and errors with the option's name."""

import time

from millstream import times
from millstream.errors import UsageError

SPAN_HELP, TIME_HELP = times.SPAN_HELP, times.TIME_HELP


def span(option: str, word: str, bare: str | None = None) -> int:
    """Return a duration in milliseconds."""
    try:
        return times.span(word, bare)
    except ValueError as reason:
        raise UsageError(f"{option} {word!r}: {reason}") from None


def instant(option: str, word: str | None, *, fixed: bool = False) -> int | None:
    """Return a time in wall milliseconds; None if it is not given."""
    if word is None:
        return None
    try:
        found = times.instant(word, time.time_ns() // 1_000_000)
        relative = fixed and times.is_relative(word)
    except ValueError as reason:
        raise UsageError(f"{option}: {word!r} is not a time: {reason}") from None
    if relative:
        raise UsageError(
            f"{option} {word}: give a time (ISO, or milliseconds since 1970), not a span: the same command must mean "
            "the same when it runs again"
        )
    return found
