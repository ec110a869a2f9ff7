"""Archives in tests: one job without Spark, what an archive holds, and a program that a test may kill.

``python -m support.archives URL DIR STREAM...`` archives and trims until it has passed over what was there, as
``millstream archive --once`` does, with Spark's part done in place: the reader plans and reads as in Spark, and the
keeper takes the batches.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from millstream.spark.archiving.files import read_pages, write_files
from millstream.spark.archiving.folder import Folder
from millstream.spark.archiving.keeper import Keeper, Settings
from millstream.spark.decode import Want
from millstream.spark.offsets import MAX_PART, ZERO, Id, load
from millstream.spark.source import MillstreamSource, StreamReader

FIELDS = ArrayType(StructType([StructField("name", BinaryType()), StructField("value", BinaryType())]))
SCHEMA = StructType(
    [StructField("stream", StringType()), StructField("id", StringType()), StructField("fields", FIELDS)]
)
"""``SOURCE_SCHEMA`` of a job, which only a Spark session could parse."""

LAST = Id(MAX_PART, MAX_PART)
Entry = tuple[str, tuple[tuple[bytes, bytes], ...]]
"""An id, and the fields in their order."""


def archive_once(settings: Settings, *, label: str = "x") -> Keeper:
    """One job over what is there now; its keeper, whose archive is closed."""
    keeper = Keeper(settings)
    with keeper.open():
        places = keeper.manifest.places
        starts: dict[str, Any] = {
            stream: places[stream].raw if stream in places else "earliest" for stream in settings.streams
        }
        options = {
            "url": settings.url,
            "stream": ",".join(settings.streams),
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

            def write(root: Path, name: str, parts: Any = parts) -> Any:
                return [file for part in parts for file in write_files(root, name, reader.read(part))]

            keeper.take(f"{label}-{number:06d}", load(end), write)
            keeper.trim()
            at, number = end, number + 1
        reader.stop()
        keeper.trim()
    return keeper


def held(root: Path, stream: str) -> list[Entry]:
    """What an archive holds of a stream, in order, duplicates and all."""
    found: list[Entry] = []
    for file in Folder(root).read().of(stream, ZERO, LAST):
        for page in read_pages(root / file.path, ZERO, LAST, Want(listed=True)):
            assert page.listed is not None
            found += zip(page.ids.to_pylist(), map(_fields, page.listed.to_pylist()), strict=True)
    return found


def _fields(row: list[dict[str, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((pair["name"], pair["value"]) for pair in row)


def data_files(root: Path) -> set[str]:
    """The data files in an archive's directory, those of nobody too."""
    return {path.relative_to(root).as_posix() for path in root.glob("stream=*/**/*") if path.is_file()}


def rows_of(stream: str, entries: list[tuple[str, list[tuple[bytes, bytes]]]]) -> Iterator[pa.RecordBatch]:
    """Entries as Spark hands them to a task that archives."""
    kind = pa.list_(pa.field("element", pa.struct([("name", pa.binary()), ("value", pa.binary())])))
    fields = [[{"name": name, "value": value} for name, value in row] for _, row in entries]
    arrays = [
        pa.array([stream] * len(entries), pa.string()),
        pa.array([ident for ident, _ in entries], pa.string()),
        pa.array(fields, kind),
    ]
    yield pa.RecordBatch.from_arrays(arrays, names=["stream", "id", "fields"])


if __name__ == "__main__":
    url, root, *streams = sys.argv[1:]
    archive_once(Settings(url, tuple(streams), Path(root), per_batch=60, target_bytes=1 << 20))
