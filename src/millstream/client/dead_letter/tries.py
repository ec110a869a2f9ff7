"""The failed tries of an entry: the time, worker and error of each. Pure.

The row of the failure log, a dead letter and a result have the last ones as JSON: a list of ``[milliseconds since 1970,
consumer, error]``. A consumer or an error that equals the one before is ``null``, since most tries fail alike.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millstream.client.jsontext import parse

LIMIT = 5
"""Number of tries that are kept, the latest ones."""

_CHARACTERS = 120  # largest number of characters of an error or a consumer
_LATEST = 2**53  # upper bound of a time


class FailedTry(NamedTuple):
    """One run of an entry that failed."""

    at_ms: int  # Wall milliseconds of its end
    consumer: str
    error: str  # One line


def added(tries: Sequence[FailedTry], one: FailedTry) -> tuple[FailedTry, ...]:
    """Return the tries with one more, as far as they are kept."""
    return (*tries, FailedTry(one.at_ms, one.consumer[:_CHARACTERS], one.error[:_CHARACTERS]))[-LIMIT:]


def tries_text(tries: Iterable[FailedTry]) -> str:
    """Return the JSON of these tries."""
    rows: list[list[object]] = []
    before = ("", "")
    for at_ms, *texts in tries:
        rows.append([at_ms, *(None if one == other else one for one, other in zip(texts, before, strict=True))])
        before = (texts[0], texts[1])
    return json.dumps(rows, separators=(",", ":"))  # ASCII, because an error's text may contain lone surrogates


def parse_tries(text: str | bytes) -> tuple[FailedTry, ...]:
    """Return the tries in a JSON text; none if something else is there, since any client may write it."""
    try:
        rows = parse(text)
    except ValueError:
        return ()
    return tries_of(rows)


def tries_of(rows: object) -> tuple[FailedTry, ...]:
    """Return the tries in the value of such a JSON text; none if it is something else."""
    found: tuple[FailedTry, ...] = ()
    texts = ["", ""]
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, list) or len(row) != 3 or type(row[0]) is not int or not 0 <= row[0] < _LATEST:
            return ()
        if not all(one is None or isinstance(one, str) for one in row[1:]):
            return ()
        texts = [other if one is None else one for one, other in zip(row[1:], texts, strict=True)]
        found = added(found, FailedTry(row[0], texts[0], texts[1]))
    return found
