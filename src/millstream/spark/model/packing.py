"""The choice of the parts of a batch that one task reads: PURE, decided from numbers alone.

A task costs Spark fifty milliseconds of processor time whatever it reads, a part of it less than one. So the small
parts of many streams are read together, in their order, and the order of reading stays the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from millstream.spark.model.offsets import Range

T = TypeVar("T")

MOST_ROWS = 100_000
"""Most entries of one task, unless one part has more."""
TASKS = 8
"""Most tasks that share a batch if the options set no number."""
LEAST_ROWS = 20_000
"""Entries that make a task worth its cost: reading them takes as much processor time as the task itself."""
PART_ROWS = 200
"""Entries that could be read in the extra time that each part takes."""


def portions(items: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield the items in their order, grouped up to this weight; an item that weighs more is alone."""
    portion: list[T] = []
    held = 0
    for item in items:
        if portion and held + weight(item) > most:
            yield portion
            portion, held = [], 0
        portion.append(item)
        held += weight(item)
    if portion:
        yield portion


def packed(parts: Sequence[Range], least: int | None = None, most: int | None = None) -> list[tuple[Range, ...]]:
    """Return the parts of each task."""
    weight = sum(part.rows + PART_ROWS for part in parts)
    size = max(LEAST_ROWS, -(-weight // TASKS)) if least is None else -(-weight // least)
    size = min(size, MOST_ROWS)
    found: list[list[Range]] = []
    held = rows = 0
    for at, part in enumerate(parts):
        fits = held + part.rows + PART_ROWS <= size and (most is None or rows + part.rows <= most)
        if not found or not fits or len(found) + len(parts) - at <= (least or 0):
            found.append([])
            held = rows = 0
        found[-1].append(part)
        held += part.rows + PART_ROWS
        rows += part.rows
    return [tuple(each) for each in found]
