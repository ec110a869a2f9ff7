"""Streams with known contents."""

from typing import Any

import redis


def fill(client: redis.Redis, stream: str, count: int, *, first: int = 1) -> list[str]:
    """Add entries ``first-0``, ``first+1-0``, ... with fields n and kind; return their ids."""
    pipeline = client.pipeline(transaction=False)
    for number in range(first, first + count):
        pipeline.xadd(stream, {"n": str(number), "kind": "even" if number % 2 == 0 else "odd"}, id=f"{number}-0")
    made: list[Any] = pipeline.execute()
    return [ident.decode() if isinstance(ident, bytes) else ident for ident in made]


REGULAR, CHANGING, ODD = "regular", "changing", "odd"
SHAPES = (REGULAR, CHANGING, ODD)
"""Shapes of entries: the same fields in each; fields that change; and those that a fast decoder must decline."""


def words(number: int, shape: str) -> list[str]:
    """Return names and values of an entry of a shape; its field ``n`` is the number."""
    found: list[str] = ["n", str(number), "text", f"{number:09}"]
    if shape != REGULAR and number % 3:
        found += [f"field{number % 5}", "ü" * (number % 7)]
    if shape == ODD and number % 2:
        found += ["text", "line\r\n$5\r\nbreak"]  # named a second time
    return found


def fill_shaped(client: redis.Redis, stream: str, count: int, shape: str, *, first: int = 1) -> None:
    """Add entries of a shape, one per millisecond."""
    pipeline = client.pipeline(transaction=False)
    for number in range(first, first + count):
        pipeline.execute_command("XADD", stream, f"{1_700_000_000_000 + number}-0", *words(number, shape))
    pipeline.execute()
