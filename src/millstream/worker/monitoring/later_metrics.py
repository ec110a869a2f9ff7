"""Figures of schedules as Prometheus metrics: this worker's counters, and the waiting entries on the server."""

import asyncio
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from millstream.client.later.schedule import due_key
from millstream.client.line import Disconnected, Line
from millstream.worker.later.mover import Mover
from millstream.worker.later.scheduler import Scheduler
from millstream.worker.monitoring.metrics import family

if TYPE_CHECKING:
    from prometheus_client import Metric

_COUNTERS = ("moved", "dropped", "skipped", "refused")


async def later_metrics(mover: Mover | None, scheduler: Scheduler | None) -> "list[Metric]":
    """Return the metrics of every stream with schedules; the server's figures are absent if it does not reply."""
    if mover is None or scheduler is None:
        return []
    made = {name: family(f"millstream_later_{name}") for name in (*_COUNTERS, "waiting", "overdue_seconds")}
    lines = mover.lines
    for (stream, counts), state in zip(
        mover.counts.items(), await asyncio.gather(*(_state(*one) for one in lines.items())), strict=True
    ):
        for name in _COUNTERS:
            made[name].add_metric([stream], getattr(counts, name))
        if state is not None:
            made["waiting"].add_metric([stream], state[0])
            made["overdue_seconds"].add_metric([stream], state[1])
    missed = family("millstream_schedule_missed")
    for name, count in scheduler.missed.items():
        missed.add_metric([name], count)
    return [*made.values(), missed]


async def _state(stream: str, line: Line) -> tuple[int, float] | None:
    """Return the number of a stream's schedules, and the seconds for which the first has been due."""
    key = due_key(stream)
    try:
        count, first, now = await line.calls((("ZCARD", key), ("ZRANGE", key, 0, 0, "WITHSCORES"), ("TIME",)))
    except Disconnected:
        return None
    if any(isinstance(one, ResponseError) for one in (count, first, now)):
        return None
    late = int(now[0]) + int(now[1]) / 1e6 - float(first[1]) / 1000 if first else 0.0
    return int(count), max(late, 0.0)
