"""The stored part of Spark's progress report: few figures for any number of streams."""

import json
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from millstream.spark.monitoring import progress, store
from millstream.spark.monitoring.record import fits


def report(sources: dict[str, dict[str, Any]], **more: Any) -> StreamingQueryProgress:
    """Build a progress report as Spark's JSON has it, of one source at these positions."""
    end = {stream: {"from": "0-0", "from_n": 0, "id": at["id"], "n": at["n"]} for stream, at in sources.items()}
    latest = {stream: {"id": "9-9", "n": at["latest"]} for stream, at in sources.items()}
    source = {
        "description": "x", "startOffset": None, "endOffset": json.dumps(end), "latestOffset": json.dumps(latest),
        "numInputRows": 5, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 2.0,
    }  # fmt: skip
    facts = {
        "id": "3f2a9c1e-0000-4000-8000-000000000001", "runId": "3f2a9c1e-0000-4000-8000-000000000002", "name": "q",
        "timestamp": "2026-01-01T00:00:00.000Z", "batchId": 7, "batchDuration": 300, "numInputRows": 5,
        "inputRowsPerSecond": 1.25, "processedRowsPerSecond": float("inf"), "stateOperators": [], "eventTime": {},
        "durationMs": {"triggerExecution": 300, "addBatch": 200, "walCommit": 90}, "sources": [source],
        "sink": {"description": "s", "numOutputRows": -1}, "observedMetrics": {},
    }  # fmt: skip
    return StreamingQueryProgress.fromJson({**facts, **more})


def test_a_batch_is_told_by_phase_rate_and_place() -> None:
    """A report has phases by length, rates and positions.

    An invalid rate is left out, and lag counts the added entries.
    """
    told = progress.figures(report({"orders": {"id": "5-0", "n": 12, "latest": 15}}))
    assert list(told["phases"].items()) == [("addBatch", 200), ("walCommit", 90)]
    assert (told["rows"], told["input_rows_per_second"], told["rows_per_second"], told["lag"]) == (5, 1.2, None, 3)
    assert told["places"] == [{"stream": "orders", "id": "5-0", "n": 12, "latest_n": 15}]
    assert (told["watermark_ms"], told["state_rows"]) == (None, None)
    late = progress.figures(report({}, eventTime={"watermark": "2026-01-01T00:00:01.500Z"}))
    assert late["watermark_ms"] == 1_767_225_601_500


def test_what_is_told_is_bounded_and_can_be_read_again() -> None:
    """Lists of streams, phases and recent batches are cut at the length that readers of the record accept."""
    many = {f"s{number:03}": {"id": "5-0", "n": 1, "latest": 1} for number in range(300)}
    told = progress.figures(report(many, durationMs={f"phase{number}": number for number in range(99)}))
    assert (len(told["places"]), len(told["phases"])) == (progress.PLACES, progress.PHASES)
    rows: list[list[float | None]] = []
    for second in range(500):
        for ms in (0, 300, 600):
            rows = progress.recent(rows, second * 1000 + ms, told)
    assert len(rows) == progress.RECENT
    assert [row[0] for row in rows[-2:]] == [498_600, 499_600]
    facts = {**store.NEW, "id": "i", "driver": "d", **told, "recent": rows}
    assert store.query_facts(json.dumps(facts).encode()) == {
        name: value for name, value in facts.items() if value is not None
    }


def test_a_source_of_another_kind_has_no_place() -> None:
    """A source of another kind, or one of group mode, has no position."""
    strange = report({})
    for end in ("7", '{"claims": {}, "group": "g"}', '{"topic": {"0": 5}}', "nonsense"):
        strange.sources[0]["endOffset"] = end
        assert progress.places(strange.sources) == []


def test_a_field_fits_only_what_a_driver_writes() -> None:
    """A record with lists, numbers or names that no driver writes is rejected."""
    place = {"stream": "s", "id": "1-0", "n": 1, "latest_n": None}
    assert fits("places", [place])
    assert fits("lag", 3)
    for name, value in [
        ("lag", 10**400),
        ("lag", float("nan")),
        ("lag", "3"),
        ("name", 3),
        ("phases", {"a": "b"}),
        ("phases", dict.fromkeys(map(str, range(99)), 1)),
        ("places", [place] * 21),
        ("places", [{**place, "stream": "\ud800"}]),
        ("places", [{**place, "id": "\N{ARABIC-INDIC DIGIT ONE}-0"}]),
        ("places", [{**place, "more": 1}]),
        ("recent", [[1, 2, 3]]),
        ("recent", [[None] * 6]),
        ("recent", [[1] * 6] * 101),
    ]:
        assert (name, fits(name, value)) == (name, False)


def test_a_record_of_somebody_else_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """An invalid record of another program is logged once, not at each read."""
    caplog.set_level("WARNING", logger="millstream.spark")  # a test before this one may have silenced it
    forged = b'{"id": "forged by test_progress"}'
    assert [store.query_facts(forged) for _ in range(3)] == [None] * 3
    assert [record.getMessage().count("is passed over") for record in caplog.records] == [1]
