"""A stream that is deleted and recreated while a job archives it loses nothing, and does not delay other streams.

Spark's part of a job runs in the test's process (``support.archives``), as in ``test_archive.py``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadMaxRows

from millstream.errors import UsageError
from millstream.spark.archiving.files import WritePlan, write_files
from millstream.spark.archiving.manifest import DataFile
from millstream.spark.archiving.store import ArchiveSettings, ArchiveStore
from millstream.spark.model.offsets import load
from millstream.spark.source import MillstreamSource, StreamReader
from support.archives import SCHEMA, archive_once, data_files, held
from support.servers import ServerProcess
from support.streams import fill

pytestmark = pytest.mark.realserver


@pytest.fixture
def client(both: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of an emptied server."""
    with both.client() as made:
        made.flushall()
        yield made


def ids(client: redis.Redis) -> list[int]:
    """Return the millisecond parts of the ids in the stream ``s``."""
    return [int(ident.partition(b"-")[0]) for ident, _ in client.xrange("s")]


@pytest.mark.parametrize("trimmed", [True, False])
@pytest.mark.parametrize("batch", [40, 1000])
def test_a_stream_replaced_while_a_job_runs_loses_nothing(
    both: ServerProcess, client: redis.Redis, tmp_path: Path, trimmed: bool, batch: int
) -> None:
    """If a stream is replaced between two batches of a job, no entry is trimmed that no file holds."""
    where = ArchiveSettings(both.url, ("s",), tmp_path / "a", trim=trimmed, per_batch=batch)
    store, made, at = ArchiveStore(where), streaming(where), None

    def archive() -> None:
        nonlocal at
        at = made.initialOffset() if at is None else at
        while (end := made.latestOffset(at, made.getDefaultReadLimit())) != at:
            parts = made.partitions(at, end)
            store.take(f"x-{end['s']['n']}", load(end), lambda plan, name, parts=parts: [
                file for part in parts for file in write_files(plan, name, made.read(part))
            ])  # fmt: skip
            store.trim()
            at = end

    with store.open():
        fill(client, "s", 100)
        archive()
        with client.pipeline() as anew:
            anew.delete("s")
            for number in range(50, 250):
                anew.xadd("s", {"other": number}, id=f"{number}-0")
            anew.execute()
        store.trim()
        with pytest.raises(UsageError, match="went back"):
            archive()
        store.trim()
    made.stop()
    assert ids(client) == list(range(50, 250))


@pytest.mark.parametrize("found", ["before", "while it is written"])
def test_a_batch_of_a_stream_that_stands_still_is_left_to_the_next_query(
    both: ServerProcess, client: redis.Redis, tmp_path: Path, found: str
) -> None:
    """If a stream is replaced during a batch, its query archives nothing more, and the next query starts there."""
    where = ArchiveSettings(both.url, ("s",), tmp_path / "a")
    fill(client, "s", 20)
    store, made = ArchiveStore(where), streaming(where)
    begin = made.initialOffset()
    middle = made.latestOffset(begin, ReadMaxRows(10))
    end = made.latestOffset(middle, ReadMaxRows(10))

    def take(start: dict[str, Any], upto: dict[str, Any], *, still: bool) -> None:
        def write(plan: WritePlan, name: str) -> list[DataFile]:
            files = [file for part in made.partitions(start, upto) for file in write_files(plan, name, made.read(part))]
            if still:
                store.stand_still("s", "replaced")
            return files

        store.take(f"x-{upto['s']['n']}", load(upto), write)

    with store.open():
        if found == "before":
            store.stand_still("s", "replaced")
        take(begin, middle, still=found != "before")
        store.still.clear()
        take(middle, end, still=False)
        assert (store.manifest.files, data_files(tmp_path / "a")) == ((), set())
        store.take_again()
        take(begin, middle, still=False)
        take(middle, end, still=False)
    made.stop()
    assert [ident for ident, _ in held(tmp_path / "a", "s")] == [f"{number}-0" for number in ids(client)]


def test_a_stream_replaced_by_one_with_the_same_first_id_loses_nothing(
    both: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """A stream replaced by one with the same first id is recognized by the entry's content, and loses nothing."""
    store = ArchiveStore(ArchiveSettings(both.url, ("s",), tmp_path / "a"))
    fill(client, "s", 100)
    client.xgroup_create("s", "g", "0")  # which holds all entries until it goes with them
    archive_once(ArchiveSettings(both.url, ("s",), tmp_path / "a", trim=False))
    with store.open():
        store.trim()
        with client.pipeline() as anew:
            anew.delete("s")
            for number in range(1, 251):
                anew.xadd("s", {"other": number}, id=f"{number}-0")
            anew.execute()
        store.trim()
    assert "its entry 1-0 is not in the archive" in store.still["s"]
    assert ids(client) == list(range(1, 251))


def streaming(where: ArchiveSettings) -> StreamReader:
    """Return the reader of a job's query."""
    given = {"url": where.url, "stream": "s", "startingOffsets": "earliest"}
    made = MillstreamSource(given | {"maxEntriesPerTrigger": str(where.per_batch)}).streamReader(SCHEMA)
    assert isinstance(made, StreamReader)
    return made
