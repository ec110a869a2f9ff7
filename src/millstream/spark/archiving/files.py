"""Parquet files of an archive: written by tasks, merged, and read back as pages.

A row is an entry without loss: both halves of its id as they are, its fields as a list of names and values in bytes. A
file holds one stream and one hour in the order of ids, under a name that nobody else has, hidden until it is whole.
"""

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.spark.archiving.directory import Folder, hour_folder, inside
from millstream.spark.archiving.manifest import DataFile
from millstream.spark.arrow.decode import mapped
from millstream.spark.arrow.page import LISTED, Page, Want
from millstream.spark.model.offsets import Id

SCHEMA = pa.schema([("id_ms", pa.uint64()), ("id_seq", pa.uint64()), ("fields", LISTED)])
"""What a file holds; Spark reads the halves of the id as decimal(20,0), other tools as unsigned numbers."""

SOURCE_SCHEMA = "stream string, id string, fields array<struct<name:binary,value:binary>>"
"""What a job reads of the streams."""

MADE = "path string, stream string, first string, last string, rows long, bytes long"
"""What a task tells of the files it wrote."""

_MADE = pa.schema(
    [
        ("path", pa.string()),
        ("stream", pa.string()),
        ("first", pa.string()),
        ("last", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
_HOUR_MS = 3_600_000
_GROUP_ROWS = 50_000
_GROUP_BYTES = 32 << 20
_PAGE_ROWS = 8192

Numbers = np.ndarray[Any, np.dtype[np.uint64]]


class FileWriter:
    """One file while it is written.

    Args:
        root: the archive's directory.
        stream: whose entries.
        hour: of the entries, since 1970.
        label: begins the file's name, for people.
    """

    def __init__(self, root: Path, stream: str, hour: int, label: str) -> None:
        self._root = root
        self._stream = stream
        self.key = (stream, hour)
        self._folder = hour_folder(stream, hour)
        self._name = f"{label}-{uuid.uuid4().hex[:16]}.parquet"
        self._hidden = root / self._folder / f".{self._name}.writing"
        inside(root, self._folder).mkdir(parents=True, exist_ok=True)
        self._file = self._hidden.open("wb")
        self._parquet = pq.ParquetWriter(self._file, SCHEMA, compression="zstd")
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._first: Id | None = None
        self._last: Id | None = None
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Write entries, whose ids are greater than those before."""
        if not rows.num_rows:
            return
        first, last = (Id(rows["id_ms"][at].as_py(), rows["id_seq"][at].as_py()) for at in (0, rows.num_rows - 1))
        assert self._last is None or self._last < first
        self._first, self._last = self._first or first, last
        self._rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= _GROUP_ROWS or self._waiting_bytes >= _GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._parquet.write_table(pa.concat_tables(self._waiting), row_group_size=_GROUP_ROWS)
            self._waiting = []
            self._waiting_rows = self._waiting_bytes = 0

    def finish(self) -> DataFile:
        """The file, durable and under its name."""
        assert self._first is not None
        assert self._last is not None
        self._write()
        self._parquet.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        self._hidden.replace(self._root / self._folder / self._name)
        return DataFile(f"{self._folder}/{self._name}", self._stream, self._first, self._last, self._rows, size)

    def drop(self) -> None:
        """Give up."""
        self._parquet.close()  # or it would write its end when it is collected, to a closed file
        self._file.close()
        self._hidden.unlink(missing_ok=True)


def write_batches(root: str, label: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task of Spark's does: writes its entries, and gives a row for each file it made.

    Args:
        root: the archive's directory; text, since it is sent to the executors.
        label: begins the files' names, for people.
        batches: the entries, in the columns of :data:`SOURCE_SCHEMA`, in the order of their ids.
    """
    files = write_files(Path(root), label, batches)
    rows = [(file.path, file.stream, str(file.first), str(file.last), file.rows, file.bytes) for file in files]
    columns = list(zip(*rows, strict=True)) or [()] * len(_MADE)
    yield pa.RecordBatch.from_arrays(
        [pa.array(list(column), kind.type) for column, kind in zip(columns, _MADE, strict=True)], schema=_MADE
    )


def write_files(root: Path, label: str, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Write entries to one file for each stream and hour.

    After an error the file at work is removed; finished ones stay, unnamed by the manifest, until the next sweep.

    Args:
        root: the archive's directory.
        label: begins the files' names, for people.
        batches: entries in the order of their ids, stream by stream.
    """
    done: list[DataFile] = []
    writer: FileWriter | None = None
    try:
        for batch in batches:
            for key, rows in _by_hour(batch):
                if writer is None or writer.key != key:
                    if writer is not None:
                        done.append(writer.finish())
                    writer = FileWriter(root, *key, label)
                writer.add(rows)
        if writer is not None:
            done.append(writer.finish())
    except BaseException:
        if writer is not None:
            writer.drop()
        raise
    return done


def _by_hour(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], pa.Table]]:
    """The parts of a batch that belong to one stream and hour each, in order."""
    if not batch.num_rows:
        return
    ms, seq = split_ids(batch.column("id"))
    table = pa.table([ms, seq, batch.column("fields").cast(LISTED)], schema=SCHEMA)
    streams = batch.column("stream").dictionary_encode()
    hours = ms.to_numpy() // np.uint64(_HOUR_MS)
    codes = streams.indices.to_numpy()
    cuts = np.flatnonzero((hours[1:] != hours[:-1]) | (codes[1:] != codes[:-1])) + 1
    ends = [*cuts.tolist(), batch.num_rows]
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        yield (streams[begin].as_py(), int(hours[begin])), table.slice(begin, end - begin)


def split_ids(ids: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The halves of ids such as ``5-1``."""
    halves = pc.cast(pc.split_pattern(ids, "-").flatten(), pa.uint64())
    place = np.arange(0, len(halves), 2)
    return halves.take(pa.array(place)), halves.take(pa.array(place + 1))


def merge(root: Path, files: Sequence[DataFile], label: str) -> list[DataFile]:
    """Files of one stream and hour as one new file; the old ones stay until a manifest names the new one.

    Args:
        root: the archive's directory.
        files: in the order of their ids, which do not overlap.
        label: begins the new file's name.

    Raises:
        StorageError: a link leads out of the archive.
    """
    hour = files[0].first.ms // _HOUR_MS
    writer = FileWriter(root, files[0].stream, hour, label)
    try:
        for file in files:
            with pq.ParquetFile(inside(root, file.path)) as parquet:
                for batch in parquet.iter_batches(_PAGE_ROWS):
                    writer.add(pa.Table.from_batches([batch]).cast(SCHEMA))
        return [writer.finish()]
    except BaseException:
        writer.drop()
        raise


def hour_of(file: DataFile) -> int:
    """The hour of a file's entries, since 1970."""
    return file.first.ms // _HOUR_MS


# --- reading ---------------------------------------------------------------------------------------------------------


def read_pages(path: Path, after: Id, until: Id, want: Want) -> Iterator[Page]:
    """The entries of a file in ``(after, until]``, without those row groups whose footer says they hold none of them.

    Args:
        path: of the file.
        after: exclusive.
        until: inclusive.
        want: which of the columns; what is not wanted is not read from the disk.

    Raises:
        FileNotFoundError: the file is gone, merged into another one.
    """
    columns = ["id_ms", "id_seq"]
    if want.listed or want.by_name:
        columns.append("fields")
    with pq.ParquetFile(path) as parquet:
        groups = [at for at in range(parquet.num_row_groups) if _touches(parquet.metadata.row_group(at), after, until)]
        if not groups:
            return
        for batch in parquet.iter_batches(_PAGE_ROWS, row_groups=groups, columns=columns):
            page = _page(batch, after, until, want)
            if page is not None:
                yield page


def archived(folder: Folder, stream: str, after: Id, until: Id, paths: Sequence[str], want: Want) -> Iterator[Page]:
    """The archived entries of ``(after, until]``, from files that may be merged into others meanwhile.

    A file that is gone was merged: the manifest of now says where its entries are, and reading goes on after the last
    entry that was given out.

    Args:
        folder: the archive.
        stream: whose entries.
        after: exclusive.
        until: inclusive.
        paths: of the files that held them when the read was planned.
        want: which of the columns.

    Raises:
        FileNotFoundError: the manifest names a file that is not there.
        ManifestError: the manifest is damaged.
    """
    cursor, left, seen = after, list(paths), -1
    while left:
        try:
            for page in read_pages(inside(folder.root, left[0]), cursor, until, want):
                cursor = page.last
                yield page
            left.pop(0)
        except FileNotFoundError:
            manifest = folder.read()
            if manifest.generation == seen:
                raise  # the manifest names a file that is not there
            seen = manifest.generation
            left = [file.path for file in manifest.of(stream, cursor, until)]


def _touches(group: Any, after: Id, until: Id) -> bool:
    """Whether a row group may hold such entries, by what its footer says."""
    statistics = group.column(0).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.max >= after.ms and statistics.min <= until.ms)


def _page(batch: pa.RecordBatch, after: Id, until: Id, want: Want) -> Page | None:
    ms, seq = (batch.column(name).to_numpy() for name in ("id_ms", "id_seq"))
    inside = _greater(ms, seq, after) & ~_greater(ms, seq, until)
    if not inside.any():
        return None
    if not inside.all():
        batch = batch.filter(pa.array(inside))
        ms, seq = ms[inside], seq[inside]
    halves = [batch.column(name).cast(pa.string()) for name in ("id_ms", "id_seq")]
    fields = batch.column("fields").cast(LISTED) if "fields" in batch.schema.names else None
    return Page(
        ids=pc.binary_join_element_wise(*halves, "-"),
        times=ms,
        fields={} if fields is None else _fields(fields, want.fields),
        pairs=_pairs(fields) if want.pairs else None,
        first=Id(int(ms[0]), int(seq[0])),
        last=Id(int(ms[-1]), int(seq[-1])),
        listed=fields if want.listed else None,
    )


def _greater(ms: Numbers, seq: Numbers, than: Id) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    high, low = np.uint64(than.ms), np.uint64(than.seq)
    found: np.ndarray[Any, np.dtype[np.bool_]] = (ms > high) | ((ms == high) & (seq > low))
    return found


def _parts(fields: pa.Array) -> tuple[Any, pa.Array, pa.Array]:
    """For every field of a page's entries: the row it is of, its name and its value."""
    counts = pc.list_value_length(fields).to_numpy()
    names, values = fields.flatten().flatten()
    return np.repeat(np.arange(len(counts)), counts), names, values


def _fields(fields: pa.Array, wanted: Sequence[bytes]) -> dict[bytes, pa.Array]:
    """Fields by name; of one that an entry has twice the last value, as in a live read."""
    if not wanted:
        return {}
    rows, names, values = _parts(fields)
    found = {}
    for name in wanted:
        hits = np.flatnonzero(pc.equal(names, pa.scalar(name, pa.binary())).to_numpy(zero_copy_only=False))
        place = np.zeros(len(fields), np.int64)
        absent = np.ones(len(fields), bool)
        place[rows[hits]] = hits
        absent[rows[hits]] = False
        found[name] = values.take(pa.array(place, mask=absent)).view(pa.string())
    return found


def _pairs(fields: pa.Array | None) -> pa.Array:
    assert fields is not None
    rows, names, values = _parts(fields)
    codes = names.dictionary_encode()
    marks = rows * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    if len(np.unique(marks)) == len(marks):
        offsets = np.zeros(len(fields) + 1, np.int32)
        np.cumsum(pc.list_value_length(fields).to_numpy(), out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), names.view(pa.string()), values.view(pa.string()))
    return mapped([{pair["name"]: pair["value"] for pair in row} for row in fields.to_pylist()])
