"""The check that a driver wrote a query's record: any client may have overwritten it. Pure.

A figure must be a number that a page can show, and a name must be text that a command can name. No list is longer than
a driver's limit.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from millstream.spark.monitoring.progress import PHASES, PLACES, RECENT
from millstream.texts import can_be_name

_ID = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)
_LARGEST = 2**63
_SAMPLE = 6  # numbers in one row of ``recent``


def fits(name: str, value: object) -> bool:
    """Return True if a field of a record may have a value."""
    return _SHAPES.get(name, is_figure)(value)


def is_figure(value: object) -> bool:
    """Return True for a finite number in the range of a counter, a time or a rate."""
    if isinstance(value, int):
        return abs(value) < _LARGEST  # without a conversion to float, which may overflow
    return isinstance(value, float) and math.isfinite(value) and abs(value) < _LARGEST


def _is_place(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != {"stream", "id", "n", "latest_n"}:
        return False
    latest = value["latest_n"]
    if not can_be_name(value["stream"]) or not isinstance(value["id"], str) or not _ID.fullmatch(value["id"]):
        return False
    return is_figure(value["n"]) and (latest is None or is_figure(latest))


def _is_sample(value: object) -> bool:
    if not isinstance(value, list) or len(value) != _SAMPLE or value[0] is None:
        return False
    return all(each is None or is_figure(each) for each in value)


_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("id", "name", "run", "driver", "host", "state", "error"), lambda value: isinstance(value, str)),
    "phases": lambda value: isinstance(value, dict) and len(value) <= PHASES and all(map(is_figure, value.values())),
    "places": lambda value: isinstance(value, list) and len(value) <= PLACES and all(map(_is_place, value)),
    "recent": lambda value: isinstance(value, list) and len(value) <= RECENT and all(map(_is_sample, value)),
}
