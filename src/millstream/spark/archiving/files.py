"""Parquet files of an archive: written by tasks, merged, and read back as pages.

A row holds an entry without loss (``tables.rows``). A file holds entries of one stream and one partition in the order
of ids. It has a unique name, and is hidden until it is complete.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.spark.archiving.directory import Folder
from millstream.spark.archiving.manifest import DataFile
from millstream.spark.archiving.places import open_storage
from millstream.spark.archiving.tables import rows as tables
from millstream.spark.archiving.tables.columns import TableColumn, load_columns
from millstream.spark.archiving.tables.folders import file_folder
from millstream.spark.archiving.tables.rows import DamagedFileError
from millstream.spark.archiving.tables.shape import Shape, part_of
from millstream.spark.arrow.decode import mapped
from millstream.spark.arrow.page import LISTED, Page, Want
from millstream.spark.model.offsets import Id, parse_id

SCHEMA = pa.schema([("id_ms", pa.uint64()), ("id_seq", pa.uint64()), ("fields", LISTED)])
"""Arrow schema of entries before they are written to a file."""

SOURCE_SCHEMA = "stream string, id string, fields array<struct<name:binary,value:binary>>"
"""Schema in which a job reads the streams."""

MADE = "file string"
"""Schema in which tasks report the files that they wrote: one JSON text each."""

TARGET_BYTES = 128 << 20
"""Approximate size of a file, in bytes."""

GROUP_ROWS = 50_000
"""Rows of a row group; the size of a file is checked after each."""

_GROUP_BYTES = 32 << 20
_PAGE_ROWS = 8192

Numbers = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class WritePlan:
    """The place and form of a batch's files; sent to the executors."""

    root: Path | str  # Location of the archive: a directory, or a URL in an object store
    shape: Shape = field(default_factory=Shape)  # Form of the files
    columns: Mapping[str, tuple[TableColumn, ...]] = field(default_factory=dict)  # Columns of each table
    target_bytes: int = TARGET_BYTES  # Size at which a file is closed and the next one begins

    def of(self, stream: str) -> tuple[TableColumn, ...]:
        """Return the columns of a stream's table, or the initial ones of a new table."""
        return self.columns.get(self.shape.table_of(stream)) or tables.initial(self.shape)


class FileWriter:
    """Writes one file."""

    def __init__(self, plan: WritePlan, stream: str, first: Id, label: str, columns: tuple[TableColumn, ...]) -> None:
        self._stream = stream
        self.columns = columns
        self._path = f"{file_folder(plan.shape, stream, first.ms)}/{label}-{uuid.uuid4().hex[:16]}.parquet"
        self._new = open_storage(plan.root).create(self._path)
        schema = tables.file_schema(plan.shape, columns)
        order = [pq.SortingColumn(schema.get_field_index(name)) for name in ("id_ms", "id_seq")]
        self._parquet = pq.ParquetWriter(
            self._new.file, schema, compression="zstd", sorting_columns=order, write_page_checksum=True
        )
        self._first = self._last = first
        self._rows = 0

    def add(self, rows: pa.Table, last: Id) -> None:
        """Write rows with ids greater than those before, up to the id ``last``."""
        assert not self._rows or self._last < last
        self._parquet.write_table(rows.cast(self._parquet.schema), row_group_size=GROUP_ROWS)
        self._last = last
        self._rows += rows.num_rows

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return self._new.file.tell()

    def finish(self) -> DataFile:
        """Return the file, durable and under its name."""
        self._parquet.close()
        size = self._new.keep()
        return DataFile(self._path, self._stream, self._first, self._last, self._rows, size, self.columns)

    def drop(self) -> None:
        """Discard the file."""
        self._parquet.close()  # otherwise the garbage collector would make it write to a closed file
        self._new.drop()


class PartWriter:
    """Writes the entries of one stream and partition: to one file, and to another one whenever columns are added."""

    def __init__(self, plan: WritePlan, stream: str, part: int, label: str) -> None:
        self.key = (stream, part)
        self._plan = plan
        self._label = label
        self.columns = plan.of(stream)
        self._open: FileWriter | None = None
        self._done: list[DataFile] = []
        self._unfit: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0

    def add(self, rows: pa.Table) -> None:
        """Write entries (:data:`SCHEMA`) with ids greater than those before."""
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= _GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if not self._waiting_rows:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0
        rows, columns, unfit, seen = tables.shaped(rows, self._plan.shape, self.columns, self.key[0])
        self._unfit.update(unfit)
        self._seen |= seen
        if columns != self.columns:
            self._close()
            self.columns = columns
        for begin in range(0, rows.num_rows, GROUP_ROWS):
            self._write_group(rows.slice(begin, GROUP_ROWS))

    def _write_group(self, rows: pa.Table) -> None:
        if self._open is None:
            self._open = FileWriter(self._plan, self.key[0], _id_at(rows, 0), self._label, self.columns)
        self._open.add(rows, _id_at(rows, rows.num_rows - 1))
        if self._open.bytes >= self._plan.target_bytes:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._done.append(self._open.finish())
            self._open = None

    def finish(self) -> list[DataFile]:
        """Return the files, durable and under their names."""
        self._write()
        self._close()
        first = [replace(file, unfit=self._unfit, seen=frozenset(self._seen)) for file in self._done[:1]]
        return [*first, *self._done[1:]]  # the first file contains the facts of all

    def drop(self) -> None:
        """Discard the unfinished file."""
        if self._open is not None:
            self._open.drop()


def write_batches(plan: WritePlan, label: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write a Spark task's entries, and yield one batch with a row for each file written."""
    made = [_text(file) for file in write_files(plan, label, batches)]
    yield pa.RecordBatch.from_arrays([pa.array(made, pa.string())], ["file"])


def _text(file: DataFile) -> str:
    facts = [file.path, file.stream, str(file.first), str(file.last), file.rows, file.bytes]
    return json.dumps([*facts, [column.json for column in file.columns], dict(file.unfit), sorted(file.seen)])


def file_of(text: str) -> DataFile:
    """Parse the file that a task reports."""
    path, stream, first, last, rows, size, columns, unfit, seen = json.loads(text)
    ends = parse_id(first), parse_id(last)
    return DataFile(path, stream, *ends, rows, size, load_columns(columns), unfit, frozenset(seen))


def write_files(plan: WritePlan, label: str, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Write entries to one file for each stream and partition, or several if columns are added.

    After an error the unfinished file is removed. Finished ones stay, unnamed by the manifest, until the next sweep.
    """
    done: list[DataFile] = []
    writer: PartWriter | None = None
    known = dict(plan.columns)
    try:
        for batch in batches:
            for key, rows in _by_part(batch, plan.shape):
                if writer is None or writer.key != key:
                    if writer is not None:
                        done += writer.finish()
                        known[plan.shape.table_of(writer.key[0])] = writer.columns
                    writer = PartWriter(replace(plan, columns=known), *key, label)
                writer.add(rows)
        if writer is not None:
            done += writer.finish()
    except BaseException:
        if writer is not None:
            writer.drop()
        raise
    return done


def _by_part(batch: pa.RecordBatch, shape: Shape) -> Iterator[tuple[tuple[str, int], pa.Table]]:
    """Split a batch into runs that belong to one stream and partition each, in order."""
    if not batch.num_rows:
        return
    ms, seq = split_ids(batch.column("id"))
    table = pa.table([ms, seq, batch.column("fields").cast(LISTED)], schema=SCHEMA)
    streams = batch.column("stream").dictionary_encode()
    times = ms.to_numpy()
    codes = streams.indices.to_numpy()
    hours = times // np.uint64(3_600_000)
    cuts = np.flatnonzero((hours[1:] != hours[:-1]) | (codes[1:] != codes[:-1])) + 1
    ends = [*cuts.tolist(), batch.num_rows]
    begin = 0
    for end in ends:  # a partition has one hour or more
        key = (streams[begin].as_py(), part_of(shape, int(times[begin])))
        if end < batch.num_rows and key == (streams[end].as_py(), part_of(shape, int(times[end]))):
            continue
        yield key, table.slice(begin, end - begin)
        begin = end


def split_ids(ids: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the two halves of ids such as ``5-1``."""
    halves = pc.cast(pc.split_pattern(ids, "-").flatten(), pa.uint64())
    place = np.arange(0, len(halves), 2)
    return halves.take(pa.array(place)), halves.take(pa.array(place + 1))


def merge(plan: WritePlan, files: Sequence[DataFile], label: str) -> list[DataFile]:
    """Merge files of one stream and partition into a new file; the old ones stay until a manifest names the new one."""
    stream, storage = files[0].stream, open_storage(plan.root)
    columns = plan.of(stream)
    writer = FileWriter(plan, stream, files[0].first, label, columns)
    schema = tables.file_schema(plan.shape, columns)
    try:
        for file in files:
            with _undamaged(file.path), storage.open(file.path) as opened, _checked(opened) as parquet:
                groups = parquet.num_row_groups
                for at in range(groups):
                    rows = _widened(parquet.read_row_group(at), schema)
                    last = file.last if at == groups - 1 else _id_at(rows, rows.num_rows - 1)
                    writer.add(rows, last)
        return [writer.finish()]
    except BaseException:
        writer.drop()
        raise


def _id_at(rows: pa.Table, at: int) -> Id:
    return parse_id(rows["id"][at].as_py())


def _widened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with all columns of a schema; columns that were added later are null."""
    empty = [pa.nulls(rows.num_rows, kind.type) for kind in schema]
    columns = [
        rows[kind.name].cast(kind.type) if kind.name in rows.schema.names else nothing
        for kind, nothing in zip(schema, empty, strict=True)
    ]
    return pa.table(columns, schema=schema)


# --- reading ---------------------------------------------------------------------------------------------------------


@contextmanager
def _undamaged(path: str) -> Iterator[None]:
    """Turn Arrow's error for a damaged file into one sentence."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as reason:
        if isinstance(reason, OSError) and reason.errno is not None:
            raise  # an error of the disk: Arrow's own errors have no errno
        first = (str(reason).strip().splitlines() or [""])[0]
        raise DamagedFileError(
            f"the file {path!r} of the archive is damaged ({first}): restore it from a backup"
        ) from None


def _checked(source: Path | BinaryIO) -> pq.ParquetFile:
    """Open a Parquet file with its pages' checksums verified.

    Without them, most flipped bits would go unnoticed and change entries silently.
    """
    return pq.ParquetFile(source, page_checksum_verification=True)


def read_pages(source: Path | BinaryIO, after: Id, until: Id, want: Want) -> Iterator[Page]:
    """Yield the entries of a file in ``(after, until]``, without row groups whose footer excludes them."""
    where = str(source if isinstance(source, Path) else getattr(source, "name", "of unknown name"))
    with _undamaged(where), _checked(source) as parquet:
        names = parquet.schema_arrow.names
        known = () if "fields" in names else tables.columns_of(parquet.schema_arrow)
        place = names.index("id_ms")
        groups = [
            at for at in range(parquet.num_row_groups) if _touches(parquet.metadata.row_group(at), place, after, until)
        ]
        if not groups:
            return
        columns = _wanted(names, known, want)
        for batch in parquet.iter_batches(_PAGE_ROWS, row_groups=groups, columns=columns):
            page = _page(batch, known, (after, until), want)
            if page is not None:
                yield page


def _wanted(names: Sequence[str], known: Sequence[TableColumn], want: Want) -> list[str]:
    """Return the columns of a file that must be read."""
    if not (want.listed or want.by_name):
        return ["id"]
    if not known:
        return ["id", "fields" if "fields" in names else "entry_json"]
    every = want.listed or want.pairs
    chosen = [column.name for column in known if every or column.field.encode() in want.fields]
    return ["id", "entry_json", *chosen]


def archived(folder: Folder, stream: str, after: Id, until: Id, paths: Sequence[str], want: Want) -> Iterator[Page]:
    """Yield the archived entries of ``(after, until]``, from files that may be merged into others meanwhile.

    A missing file was merged. The present manifest names the file with its entries, and reading continues there after
    the last entry that was yielded.
    """
    cursor, left, seen = after, list(paths), -1
    while left:
        try:
            with folder.storage.open(left[0]) as file:
                for page in read_pages(file, cursor, until, want):
                    cursor = page.last
                    yield page
            left.pop(0)
        except FileNotFoundError:
            manifest = folder.read()
            if manifest.generation == seen:
                raise  # the manifest names a missing file
            seen = manifest.generation
            left = [file.path for file in manifest.of(stream, cursor, until)]


def _touches(group: Any, place: int, after: Id, until: Id) -> bool:
    """Return True if a row group may hold entries in ``(after, until]``, by the bounds in its footer."""
    statistics = group.column(place).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    # The largest milliseconds in a file also represent all larger ones
    return bool(statistics.max >= min(after.ms, tables.LARGEST) and statistics.min <= until.ms)


def _page(batch: pa.RecordBatch, known: Sequence[TableColumn], between: tuple[Id, Id], want: Want) -> Page | None:
    names = batch.schema.names
    ms, seq = (half.to_numpy() for half in split_ids(batch.column("id")))
    inside = _greater(ms, seq, between[0]) & ~_greater(ms, seq, between[1])
    if not inside.any():
        return None
    if not inside.all():
        batch = batch.filter(pa.array(inside))
        ms, seq = ms[inside], seq[inside]
    fields = batch.column("fields").cast(LISTED) if "fields" in names else None
    if "entry_json" in names:
        fields = tables.entries_of(batch, known)
    texts = [pa.array(half).cast(pa.string()) for half in (ms, seq)]
    return Page(
        ids=pc.binary_join_element_wise(*texts, "-"),
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


def _fields(fields: pa.Array, wanted: Sequence[bytes]) -> dict[bytes, pa.Array]:
    """Return the values of fields by name; of a name that an entry has twice the last value, as in a live read."""
    if not wanted:
        return {}
    rows, names, values = tables.parts(fields)
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
    rows, names, values = tables.parts(fields)
    codes = names.dictionary_encode()
    marks = rows * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    if len(np.unique(marks)) == len(marks):
        offsets = np.zeros(len(fields) + 1, np.int32)
        np.cumsum(pc.list_value_length(fields).to_numpy(), out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), names.view(pa.string()), values.view(pa.string()))
    return mapped([{pair["name"]: pair["value"] for pair in row} for row in fields.to_pylist()])
