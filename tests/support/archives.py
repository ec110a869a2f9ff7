"""Archives in tests: one job without Spark, the content of an archive, and a program that a test may kill.

``python -m support.archives URL PLACE FORMAT[:MS][=CATALOG] STREAM...`` archives and trims the entries that exist at
its start, as ``millstream archive --once`` does; ``--partitioned NAME`` stands for the partitions of a stream. Spark's
part runs in this process: the reader plans and reads as in Spark, and the store takes the batches. Merged files of a
table stay for MS milliseconds, a day unless given.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from millstream.paths import archive_place
from millstream.spark.archiving.directory import Folder
from millstream.spark.archiving.files import WritePlan, read_pages, write_files
from millstream.spark.archiving.store import ArchiveSettings, ArchiveStore
from millstream.spark.archiving.tables.publishing import RETAIN_MS
from millstream.spark.archiving.tables.shape import Wanted
from millstream.spark.arrow.page import Want
from millstream.spark.model.offsets import MAX_PART, ZERO, Id, load
from millstream.spark.options.read import parse
from millstream.spark.read.stream_info import StreamInfo
from millstream.spark.source import MillstreamSource, StreamReader
from support.servers import ServerProcess

RAW = Wanted(partition="hour", raw=True)
"""The archive form with the plain list of fields and no columns for them."""

FIELDS = ArrayType(StructType([StructField("name", BinaryType()), StructField("value", BinaryType())]))
SCHEMA = StructType(
    [StructField("stream", StringType()), StructField("id", StringType()), StructField("fields", FIELDS)]
)
"""The value of ``SOURCE_SCHEMA`` for a job, which only a Spark session could parse."""

LAST = Id(MAX_PART, MAX_PART)
Entry = tuple[str, tuple[tuple[bytes, bytes], ...]]
"""An id with the fields in order."""


def archive_once(settings: ArchiveSettings, *, label: str = "x") -> ArchiveStore:
    """Run one job over the existing entries and return its closed store."""
    store = ArchiveStore(settings)
    with store.open():
        places = store.manifest.places
        with closing(StreamInfo(parse(settings.source))) as info:
            streams = info.keys()
        starts: dict[str, Any] = {stream: places[stream].raw if stream in places else "earliest" for stream in streams}
        options = settings.source | {
            "startingOffsets": json.dumps(starts),
            "maxEntriesPerTrigger": str(settings.per_batch),
        }
        reader = MillstreamSource(options).streamReader(SCHEMA)
        assert isinstance(reader, StreamReader)
        reader.prepareForTriggerAvailableNow()
        at = reader.initialOffset()
        number = 0
        while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
            parts = reader.partitions(at, end)

            def write(plan: WritePlan, name: str, parts: Any = parts) -> Any:
                return [file for part in parts for file in write_files(plan, name, reader.read(part))]

            store.take(f"{label}-{number:06d}", load(end), write)
            store.trim()
            at, number = end, number + 1
        reader.stop()
        store.trim()
    return store


def child(server: ServerProcess, root: Path, form: str, *streams: str, hook: str) -> int:
    """Run an archive job in a child process, killed at a failpoint if ``hook`` names one, and return its exit code."""
    words = [sys.executable, "-m", "support.archives", server.url, str(root), form, *streams]
    environment = os.environ | {
        "MILLSTREAM_FAILPOINTS": hook and f"{hook}=kill",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(words, env=environment, capture_output=True, check=False, timeout=600)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()[-3000:]
    return done.returncode


def held(root: Path | str, stream: str) -> list[Entry]:
    """Return the entries of a stream in an archive in order, with duplicates."""
    found: list[Entry] = []
    folder = Folder(root)
    for file in folder.read().of(stream, ZERO, LAST):
        with folder.storage.open(file.path) as opened:
            for page in read_pages(opened, ZERO, LAST, Want(listed=True)):
                assert page.listed is not None
                found += zip(page.ids.to_pylist(), map(_fields, page.listed.to_pylist()), strict=True)
    return found


def _fields(row: list[dict[str, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((pair["name"], pair["value"]) for pair in row)


def data_files(root: Path) -> set[str]:
    """Return the data files in an archive's directory, including files that no manifest names."""
    every = (path for path in root.rglob("*") if path.is_file() and path.suffix in (".parquet", ".writing"))
    return {path.relative_to(root).as_posix() for path in every if "_delta_log" not in path.parts}


def rows_of(stream: str, entries: list[tuple[str, list[tuple[bytes, bytes]]]]) -> Iterator[pa.RecordBatch]:
    """Build entries as Spark passes them to a task that archives."""
    kind = pa.list_(pa.field("element", pa.struct([("name", pa.binary()), ("value", pa.binary())])))
    fields = [[{"name": name, "value": value} for name, value in row] for _, row in entries]
    arrays = [
        pa.array([stream] * len(entries), pa.string()),
        pa.array([ident for ident, _ in entries], pa.string()),
        pa.array(fields, kind),
    ]
    yield pa.RecordBatch.from_arrays(arrays, names=["stream", "id", "fields"])


class Traffic:
    """Producers that add entries, and two groups that read them, until they are stopped.

    One group acknowledges at once. The other keeps every seventh entry pending, and checks later that it still exists.
    """

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._done = threading.Event()
        self._added_all = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,)) for work in (self._add, self._fast, self._slow)
        ]
        self.added: list[bytes] = []
        self.read: dict[str, list[bytes]] = {"fast": [], "slow": []}
        self.failed: list[Exception] = []
        with server.client() as client:
            for group in self.read:
                client.xgroup_create("s", group, "0", mkstream=True)

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._threads[0].join()
        self._added_all.set()
        for thread in self._threads[1:]:
            thread.join()

    def _guarded(self, work: Callable[[redis.Redis], None]) -> None:
        try:
            with self._server.client() as client:
                work(client)
        except Exception as reason:  # noqa: BLE001 - the test's own thread shows it
            self.failed.append(reason)

    def _add(self, client: redis.Redis) -> None:
        number = 0
        while not self._done.is_set():
            pipeline = client.pipeline(transaction=False)
            for _ in range(20):
                number += 1
                pipeline.xadd("s", {"n": str(number), "b": b"\xff\r\n"})
            self.added += pipeline.execute()
            self._done.wait(0.02)

    def _fast(self, client: redis.Redis) -> None:
        while self._batches(client, "fast", 50) is not None:
            pass

    def _batches(self, client: redis.Redis, group: str, count: int) -> list[bytes] | None:
        """Return the ids of a group's next entries, or None after the last one."""
        ended = self._added_all.is_set()  # asked before the group is read: what it is read of after that is all
        rows = self._batch(client, group, count)
        return None if ended and not rows else rows

    def _batch(self, client: redis.Redis, group: str, count: int) -> list[bytes]:
        found = client.xreadgroup(group, "c", {"s": ">"}, count=count, block=20)
        rows = [ident for _, entries in found for ident, _ in entries]
        self.read[group] += rows
        if rows and group == "fast":
            client.xack("s", group, *rows)
        return rows

    def _slow(self, client: redis.Redis) -> None:
        pending: list[bytes] = []
        while (rows := self._batches(client, "slow", 30)) is not None:
            mine = rows[::7]
            if rest := [ident for ident in rows if ident not in mine]:
                client.xack("s", "slow", *rest)
            pending += mine
            if len(pending) > 60:
                self._settle(client, pending)
                pending = []
        self._settle(client, pending)

    @staticmethod
    def _settle(client: redis.Redis, pending: list[bytes]) -> None:
        for ident in pending:
            assert client.xrange("s", ident, ident), f"{ident!r} was pending and is gone"
        if pending:
            client.xack("s", "slow", *pending)


if __name__ == "__main__":
    url, root, form, *streams = sys.argv[1:]
    form, _, catalog = form.partition("=")
    form, _, retain = form.partition(":")
    where = ArchiveSettings(
        url,
        () if streams[0] == "--partitioned" else tuple(streams),
        archive_place(root),
        partitioned=streams[1] if streams[0] == "--partitioned" else None,
        per_batch=60,
        target_bytes=1 << 20,
        wanted=RAW if form == "raw" else Wanted(form, catalog=catalog or None),
        retain_ms=int(retain or RETAIN_MS),
    )
    archive_once(where)
