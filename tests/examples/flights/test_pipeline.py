"""The Spark pipeline as a process: killed and run again, it counts every event exactly once."""

import argparse
import json
import os
import sys
from pathlib import Path

import pandas as pd
import pytest

from flights.checks.truth import Truth
from flights.data import events
from flights.pipeline import FlightPipeline, top
from flights.producer import Producer
from flights.running.child import Child
from support.servers import ServerProcess
from support.waiting import eventually

COLUMNS = ["flights", "departed", "delay"]


class PipelineProcess:
    """One run of the pipeline on ``work``, with small batches.

    Args:
        url: URL of the server.
        work: Folder of its checkpoint, its results and its log.
    """

    def __init__(self, url: str, work: Path) -> None:
        self.batches: list[dict[str, int]] = []
        self.done = False
        argv = [sys.executable, "-m", "flights.pipeline", "--stream", "flights", "--routes", "routes"]
        argv += ["--work", str(work / "work"), "--parquet", str(work / "parquet"), "--per-batch", "700", "--quick"]
        self.child = Child("spark", argv, work, {"MILLSTREAM_URL": url}, self._heard)

    def _heard(self, line: str) -> None:
        if line.startswith("{"):
            word = json.loads(line)
            if word["event"] == "batch":
                self.batches.append(word)
            self.done |= word["event"] == "done"

    def has_counted(self) -> bool:
        """Return True if a batch with rows is done."""
        self.child.check()
        return any(batch["rows"] for batch in self.batches)

    def is_done(self) -> bool:
        """Return True if the tables are written."""
        if not self.done:
            self.child.check()
        return self.done


@pytest.mark.spark
@pytest.mark.realserver
def test_killed_and_run_again_counts_once(tmp_path: Path, real_redis: ServerProcess, facts: Truth) -> None:
    """If the demo's pipeline is killed between batches and run again, its totals equal the source file's."""
    producer = Producer(real_redis.url, "flights", events(facts.rows), 10**9)
    producer.start()
    producer.open()
    first = PipelineProcess(real_redis.url, tmp_path)
    try:
        eventually(first.has_counted, 90)
    finally:
        first.child.kill()
        first.child.stop()
    producer.join(30)
    second = PipelineProcess(real_redis.url, tmp_path)
    try:
        eventually(second.has_counted, 90)
        second.child.say("finish")
        eventually(second.is_done, 90)
    finally:
        second.child.stop()
    assert max(batch["total"] for batch in first.batches) < facts.rows, "it was killed too late to show anything"
    assert second.batches[-1]["total"] == facts.rows
    for name, key, expected in (
        ("hourly_by_airport", "origin", facts.airports),
        ("hourly_by_carrier", "carrier", facts.carriers),
    ):
        found = pd.read_parquet(tmp_path / "parquet" / name).sort_values(["time_hour", key]).reset_index(drop=True)
        assert found[key].tolist() == expected[key].tolist()
        assert found[COLUMNS].to_numpy().tolist() == expected[COLUMNS].to_numpy().tolist()
    with real_redis.client() as client:
        ids = [entry_id for entry_id, _ in client.xrange("routes")]
        last = client.xrevrange("routes", count=10)
    assert len({entry_id.partition(b"-")[0] for entry_id in ids}) == sum(
        1 for number in {batch["batch"]: batch["rows"] for batch in first.batches + second.batches}.values() if number
    )
    assert [int(fields[b"flights"]) for _, fields in reversed(last)] == facts.routes["flights"].tolist()


@pytest.mark.realserver
def test_table_of_routes_is_not_written_twice(
    tmp_path: Path, real_redis: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that runs again writes its table of routes to the stream once."""
    monkeypatch.setitem(os.environ, "MILLSTREAM_URL", real_redis.url)
    args = argparse.Namespace(stream="s", routes="routes", work=tmp_path / "w", parquet=tmp_path / "p", per_batch=1)
    pipeline = FlightPipeline(None, args)
    rows = [{"origin": "JFK", "dest": dest, "flights": 3, "departed": 3, "delay": 6} for dest in ("BOS", "LAX")]
    (tmp_path / "w" / "routes" / "000004.json").write_text(json.dumps(rows))
    with real_redis.client() as client:
        client.xadd("routes", {"rank": "1"}, id="5-1")  # half of the table: the process died here
        pipeline.publish_routes(4)
        pipeline.publish_routes(4)
        assert [entry_id for entry_id, _ in client.xrange("routes")] == [b"5-1", b"5-2"]


def test_equal_routes_have_a_fixed_order() -> None:
    """Routes are ordered by flights, then by name, whatever the order of rows."""
    totals = {
        ("LGA", "ATL"): {"flights": 2, "departed": 0, "delay": 0},
        ("EWR", "BOS"): {"flights": 2, "departed": 2, "delay": 5},
        ("JFK", "LAX"): {"flights": 9, "departed": 4, "delay": 2},
    }
    ranked = top(totals)
    assert [(row["origin"], row["mean"]) for row in ranked] == [("JFK", 0.5), ("EWR", 2.5), ("LGA", 0.0)]
