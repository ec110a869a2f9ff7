"""The parts of Spark's report of a micro-batch that go to the server: a few figures, whatever the query reads.

The report is Spark's ``StreamingQueryProgress``. For sources that are not ours, only their rows are known.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

PHASES = 16
"""Number of phases of a batch to report, the longest ones."""

PLACES = 20
"""Number of streams of a query whose place is reported, the first by name."""

RECENT = 100
"""Batches that are kept for a trend, one a second at most."""

_APART = 1000  # milliseconds


def figures(progress: "StreamingQueryProgress") -> dict[str, Any]:
    """One batch: what it read, how long each phase took, and the present place of the query in each stream."""
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
    """Rows a second; None if Spark has no such figure, as for a first batch."""
    return round(value, 1) if value is not None and abs(value) < float("inf") else None


def phases(durations: Mapping[str, int]) -> dict[str, int]:
    """Milliseconds by phase, the longest first, without the whole (``triggerExecution``)."""
    parts = [(name, ms) for name, ms in durations.items() if name != "triggerExecution"]
    return dict(sorted(parts, key=lambda part: -part[1])[:PHASES])


def lag(sources: Any) -> int | None:
    """Entries added to the streams and not in a finished batch; None if a source does not report it."""
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
    """The place of a query in each stream that it reads by itself; nothing for one that shares a group."""
    found = {}
    for source in sources:
        try:
            end, latest = json.loads(source.endOffset), json.loads(source.latestOffset or "{}")
            for stream, at in end.items():
                there = latest.get(stream) or {}
                place = {"id": str(at["id"]), "n": int(at["n"]), "latest_n": there.get("n")}
                found[stream] = {"stream": stream, **place}
        except (TypeError, ValueError, KeyError, AttributeError):
            continue  # of another kind of source
    return [found[stream] for stream in sorted(found)[:PLACES]]


def watermark(times: Mapping[str, str]) -> int | None:
    """Wall milliseconds of the watermark; None for a query without one, or before its first."""
    try:
        at = datetime.fromisoformat(times["watermark"])
    except (KeyError, TypeError, ValueError):
        return None
    return round(at.timestamp() * 1000) or None


def recent(before: Sequence[Sequence[float | None]], at_ms: int, news: Mapping[str, Any]) -> list[list[float | None]]:
    """The last batches as rows of numbers, with one more: :data:`RECENT` of them, one a second at most."""
    rows = [list(row) for row in before]
    if rows and (rows[-1][0] or 0) // _APART == at_ms // _APART:
        rows.pop()  # of the same second
    names = ("input_rows_per_second", "rows_per_second", "batch_ms", "rows", "lag")
    return [*rows, [at_ms, *(news[name] for name in names)]][-RECENT:]
