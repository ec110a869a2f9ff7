"""The parts of Spark's report of a micro-batch that go to the server: a few figures, whatever the query reads.

The report is Spark's ``StreamingQueryProgress``. For sources other than Millstream's, only the rows are known.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

PHASES = 16
"""Most phases of a batch that are reported, the longest ones."""

PLACES = 20
"""Most streams of a query with a reported position, the first by name."""

RECENT = 100
"""Most batches that are kept for a trend, one a second at most."""

_APART = 1000  # milliseconds between two samples


def figures(progress: "StreamingQueryProgress") -> dict[str, Any]:
    """Return the figures of one batch: rows, the time of each phase, and the query's position in each stream."""
    return {
        "batch": progress.batchId,
        "rows": progress.numInputRows,
        "rows_per_second": rate(progress.processedRowsPerSecond),
        "input_rows_per_second": rate(progress.inputRowsPerSecond),
        "batch_ms": progress.batchDuration,
        "phases": phases(progress.durationMs),
        "lag": lag(progress.sources),
        "places": places(progress.sources),
        "watermark_ms": watermark(progress.eventTime),
        "state_rows": sum(each.numRowsTotal for each in progress.stateOperators) if progress.stateOperators else None,
    }


def rate(value: float | None) -> float | None:
    """Return rows a second, rounded; None if Spark has no such figure, as for a first batch."""
    return round(value, 1) if value is not None and abs(value) < float("inf") else None


def phases(durations: Mapping[str, int]) -> dict[str, int]:
    """Return milliseconds by phase, the longest first, without the total (``triggerExecution``)."""
    parts = [(name, ms) for name, ms in durations.items() if name != "triggerExecution"]
    return dict(sorted(parts, key=lambda part: -part[1])[:PHASES])


def lag(sources: Any) -> int | None:
    """Return the entries added to the streams but not in a finished batch; None if a source does not report it."""
    total = 0
    try:
        for source in sources:
            end, latest = json.loads(source.endOffset), json.loads(source.latestOffset)
            for stream, at in latest.items():
                total += max(at["n"] - end[stream]["n"], 0)
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    return total


def places(sources: Any) -> list[dict[str, Any]]:
    """Return the position of a query in each stream that it reads by itself; empty for one that shares a group."""
    found = {}
    for source in sources:
        try:
            end, latest = json.loads(source.endOffset), json.loads(source.latestOffset or "{}")
            for stream, at in end.items():
                there = latest.get(stream) or {}
                place = {"id": str(at["id"]), "n": int(at["n"]), "latest_n": there.get("n")}
                found[stream] = {"stream": stream, **place}
        except (TypeError, ValueError, KeyError, AttributeError):
            continue  # another kind of source
    return [found[stream] for stream in sorted(found)[:PLACES]]


def watermark(times: Mapping[str, str]) -> int | None:
    """Return wall milliseconds of the watermark; None for a query without one, or before its first."""
    try:
        at = datetime.fromisoformat(times["watermark"])
    except (KeyError, TypeError, ValueError):
        return None
    return round(at.timestamp() * 1000) or None


def recent(before: Sequence[Sequence[float | None]], at_ms: int, news: Mapping[str, Any]) -> list[list[float | None]]:
    """Return the last batches as rows of numbers, with a new one: at most :data:`RECENT`, and one a second."""
    rows = [list(row) for row in before]
    if rows and (rows[-1][0] or 0) // _APART == at_ms // _APART:
        rows.pop()  # the last row belongs to the same second
    names = ("input_rows_per_second", "rows_per_second", "batch_ms", "rows", "lag")
    return [*rows, [at_ms, *(news[name] for name in names)]][-RECENT:]
