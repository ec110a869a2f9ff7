"""Streams with contents that tests can name."""

from typing import Any

import redis


def fill(client: redis.Redis, stream: str, count: int, *, first: int = 1) -> list[str]:
    """Add entries ``first-0``, ``first+1-0``, ... with fields n and kind; returns their ids."""
    pipeline = client.pipeline(transaction=False)
    for number in range(first, first + count):
        pipeline.xadd(stream, {"n": str(number), "kind": "even" if number % 2 == 0 else "odd"}, id=f"{number}-0")
    made: list[Any] = pipeline.execute()
    return [ident.decode() if isinstance(ident, bytes) else ident for ident in made]
