"""JSON that strangers wrote: read without a way to end the reader. Pure."""

import json
from typing import Any

DEEPEST = 50
"""Levels of lists and objects that are read; what we write ourselves has four."""


def loads(text: str | bytes) -> Any:
    """What a JSON text says.

    Python's own parser lets out errors of three kinds, and gives back what later ends whoever walks through it, as a
    thousand lists in one another.

    Raises:
        ValueError: it is none, is no UTF-8, or is nested more than :data:`DEEPEST` levels.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [found]
    for _ in range(DEEPEST + 1):
        level = [child for each in level for child in _children(each)]
        if not level:
            return found
    raise ValueError(f"nested more than {DEEPEST} levels")


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
