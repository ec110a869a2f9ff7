"""Which parts of a batch one task reads: PURE, decided from numbers alone.

A task costs Spark fifty milliseconds of processor whatever it reads, a part of it less than one. So the small parts of
many streams are read together, in the order in which they come: what tasks read one after the other stays the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from millstream.spark.model.offsets import Range

T = TypeVar("T")

MOST_ROWS = 100_000
"""Entries of one task at most, unless one part has more."""
TASKS = 8
"""Tasks that share a batch, when that is worth it and no number is given."""
LEAST_ROWS = 20_000
"""Entries for which a task is worth it: as much processor as a task takes besides."""
PART_ROWS = 200
"""Entries that could be read in the time that each part takes besides its own."""


def portions(items: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Items in their order, together up to this weight; one that weighs more is alone."""
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
    """The parts of each task."""
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
