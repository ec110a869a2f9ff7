"""Histories with made-up figures, as a writer would have written them."""

import math
from collections.abc import Callable

import redis

from millstream.ops.history import model
from millstream.ops.history.model import FIVE, FIVE_MS, TEN, TEN_MS, Row, Subject

Rows = Callable[[int], dict[Subject, Row]]


def put(client: redis.Redis, key: str, at_ms: int, rows: dict[Subject, Row]) -> None:
    """Add one entry."""
    name, value = model.packed(model.table(rows))
    client.xadd(key, {"v": 1, name: value}, id=f"{at_ms}-0")


def fill(client: redis.Redis, now_ms: int, rows: Rows | None = None, *, days: float = 30.0) -> None:
    """Fill both streams of the chosen series up to a time."""
    for key, step, over in ((TEN, TEN_MS, min(days, 1.0)), (FIVE, FIVE_MS, days)):
        with client.pipeline(transaction=False) as pipe:
            for at in range(int(now_ms - over * 86_400_000), now_ms, step):
                put(pipe, key, at, (rows or wave)(at))
            pipe.execute()


def wave(at_ms: int, stream: str = "orders", group: str = "billing") -> dict[Subject, Row]:
    """Return figures that rise and fall through the day, with a backlog in the last half hour of each hour."""
    day, minute = at_ms % 86_400_000 / 86_400_000, at_ms % 3_600_000 / 60_000
    rate = 40 + 25 * math.sin(2 * math.pi * day) + at_ms // 10_000 % 7
    lag = round((minute - 30) * 40 * (2 - abs(minute - 45) / 15)) if minute > 30 else at_ms // 10_000 % 5
    return {
        ("total",): (lag, lag * 25, 12, rate, rate - 1, at_ms // 3_600_000 % 24, rate, 0.4, 3e8 + 1e8 * day, rate * 6),
        ("version", "0.2.0" if at_ms % 518_400_000 > 259_200_000 else "0.1.0"): (3,),
        ("stream", stream): (5000 + lag, rate, at_ms // 3_600_000 % 24),
        ("group", stream, group): (lag, lag * 25, 12 + lag // 100, rate - 1),
        ("handler", "bill", stream, group): (rate, 0.4 + minute / 60, 25 if minute < 30 else 100),
    }
