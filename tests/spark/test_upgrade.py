"""Queries, sinks and an archive that 0.1 left in the midst go on: the same batches, nothing twice, nothing left out."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

import millstream.spark
from support.servers import ServerProcess
from support.versions import FIXTURES, here, on_recorded_log, unpack
from upgrade import kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SOURCE = {"stream": "flights", "startingOffsets": "earliest", "maxEntriesPerTrigger": "100"}
GROUP = {"stream": "parcels", "mode": "group", "group": "lake", "queryName": "lake", "maxEntriesPerTrigger": "100"}
"""The options with which 0.1's queries ran."""

IDS = [f"{number}-0" for number in range(1, 251)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """The present server on 0.1's log."""
    with on_recorded_log(tmp_path) as made:
        with made.client(**kept.TEXT) as client:
            kept.put(client, kept.read(FIXTURES / "log.json.xz")["volatile"])
        yield made


@pytest.fixture
def client(server: ServerProcess) -> Iterator[redis.Redis]:
    """A client of it."""
    with server.client(**kept.TEXT) as made:
        yield made


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """The checkpoints of 0.1's queries, and the ids of the batches that they had run."""
    return unpack("checkpoints", tmp_path)


def read(spark: "SparkSession", url: str, options: dict[str, str]) -> "DataFrame":
    return spark.readStream.format("millstream").option("url", url).options(**options).load()


def run(writer: Any, checkpoint: Path) -> list[int]:
    """Run to the end of what is there; the numbers of the batches."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]]


def ids(checkpoints: Path, name: str) -> list[str]:
    return (checkpoints / f"{name}.ids").read_text().splitlines()


def by_number(found: list[str]) -> list[str]:
    return sorted(found, key=lambda ident: int(ident.partition("-")[0]))


def events(client: redis.Redis, after: str = "-") -> dict[str, set[str]]:
    """What queries have told: each kind of event with the names of its fields."""
    found: dict[str, set[str]] = {}
    for _, fields in client.xrange("millstream:spark:progress", after):
        found[fields["event"]] = found.get(fields["event"], set(fields)) & set(fields)
    # A query's progress is told a second after its start at the earliest, and a warm session is through before
    assert {"started", "terminated"} <= set(found) <= {"started", "progress", "terminated"}
    return found


@pytest.mark.parametrize(("name", "options"), [("source", SOURCE), ("group", GROUP)])
def test_a_query_goes_on_from_a_recorded_checkpoint(
    spark: "SparkSession",
    server: ServerProcess,
    client: redis.Redis,
    checkpoints: Path,
    tmp_path: Path,
    name: str,
    options: dict[str, str],
) -> None:
    """The batch that had failed has the same entries again; with those after it the stream is whole, each entry once.

    As a consumer group too, whose batch is claimed under a consumer's name that 0.1 chose: nothing stays pending.
    """
    batches: dict[int, list[str]] = {}

    def note(frame: "DataFrame", number: int) -> None:
        batches[number] = [row.id for row in frame.select("id").collect()]

    told = {kind: set(words) for kind, words in events(client).items()}
    assert "progress" in told
    last = client.xinfo_stream("millstream:spark:progress")["last-generated-id"]
    with contextlib.closing(millstream.spark.watch(spark, server.url)):
        query = read(spark, server.url, options).writeStream.foreachBatch(note).queryName(name)
        run(query, checkpoints / name)
    found = events(client, f"({last}")
    for kind, words in found.items():
        assert told[kind] - {"error"} <= words, "what is told of a query has other names"
    assert told["progress"] - {"error"} <= found["terminated"], "the end tells the figures of the last batch too"
    assert by_number(batches[1]) == by_number(ids(checkpoints, f"{name}-1"))
    again = ids(checkpoints, f"{name}-0") + [ident for number in sorted(batches) for ident in batches[number]]
    assert by_number(again) == IDS
    if name == "group":
        assert client.xpending("parcels", "lake")["pending"] == 0
        assert client.xinfo_consumers("parcels", "lake") == []


@pytest.mark.parametrize(("name", "target"), [("closed", "copies"), ("half", "half")])
def test_a_sink_finds_its_record_and_repeats_nothing(
    spark: "SparkSession", server: ServerProcess, client: redis.Redis, checkpoints: Path, name: str, target: str
) -> None:
    """A batch that was published and not logged, and one of which a part was published: each row is there once."""
    writer = json.loads((checkpoints / name / "metadata").read_text())["id"]
    record = json.loads(client.get(f"millstream:sink:{writer}"))
    assert (record["parts"] is None) == (name == "closed"), "the recording is not what this test is about"
    assert client.xlen(target) == (250 if name == "closed" else 130)
    client.xadd("flights", {"n": "251", "kind": "odd"}, id="251-0")
    rows = read(spark, server.url, SOURCE).selectExpr("fields['n'] n")
    run(rows.writeStream.format("millstream").options(url=server.url, stream=target), checkpoints / name)
    assert sorted(int(fields["n"]) for _, fields in client.xrange(target)) == list(range(1, 252))
    assert json.loads(client.get(f"millstream:sink:{writer}"))["parts"] is None
    assert client.keys(f"*:staged:{writer}*") == []


def test_an_archive_goes_on(spark: "SparkSession", server: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """New entries follow the recorded files, archive and stream are one table, a replay that was is known."""
    place = unpack("archive", tmp_path)
    for number in range(151, 161):
        client.xadd("readings", {"n": str(number), "kind": "late"}, id=f"{number}-0")
    millstream.spark.archive(server.url, "readings", to=place, once=True, spark=spark)
    reader = spark.read.format("millstream").option("url", server.url).option("stream", "readings")
    found = reader.option("archive", str(place)).load().select("id").collect()
    assert by_number([row.id for row in found]) == IDS[:160]
    # The recorded cursor is found: it is of an archive at another place, so its name is taken.
    replay = ("replay", str(place), "readings", "--to", server.url, "--ids", "keep")
    refused = here(*replay, "--as", "again", "--name", "kept")
    assert "'kept' at the target is of something else" in refused.output
    assert client.xlen("again") == 150
    done = here(*replay, "--as", "anew", "--name", "kept")
    assert done.exit_code == 0, done.output
    assert [ident for ident, _ in client.xrange("anew")] == IDS[:160]
