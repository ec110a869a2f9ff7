"""The content of an archive, as one value. PURE: no files, no clock.

Invariants, checked whenever a manifest changes: The files of a stream share no id and are in the order of their ids.
None of them reaches past the stream's position. A batch begins exactly at the stream's position. So no entry is left
out or archived twice, whichever job ran the batch.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

from millstream.client.jsontext import fault, parse
from millstream.errors import StorageError
from millstream.spark.archiving.tables.columns import TableColumn, load_columns
from millstream.spark.archiving.tables.shape import Shape
from millstream.spark.model.offsets import ZERO, Id, Position, parse_id
from millstream.spark.model.packing import portions
from millstream.texts import plural

FORMAT = 2
"""Version of the manifest's format."""

ONE_TABLE = 3
"""The same for an archive with one table of all streams, which earlier versions of Millstream must refuse."""


class ManifestError(StorageError):
    """The manifest of an archive is invalid, or a change would omit entries or count them twice.

    What to do: change nothing in the directory by hand. Restore its last manifest from a backup, or archive into a new
    directory.
    """


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file: entries of one stream and one partition, in the order of their ids."""

    path: str  # Path below the archive's directory, with slashes
    stream: str  # Key of the stream
    first: Id  # Id of the first entry
    last: Id  # Id of the last entry
    rows: int  # Number of entries
    bytes: int  # Size in bytes
    # Columns with which it was written; the manifest stores them by stream
    columns: tuple[TableColumn, ...] = field(default=(), compare=False)
    # Number of values in its batch that fit no column, by field; not in the manifest
    unfit: Mapping[str, int] = field(default_factory=dict, compare=False)
    # Fields of its batch that the archive's form names; not in the manifest
    seen: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True, slots=True)
class ArchivePosition:
    """The position up to which a stream is archived."""

    id: Id  # All entries of the stream up to this id are archived
    n: int  # Number of entries added to the stream up to that id
    holes: int = 0  # Further entries that may have been added, see :class:`millstream.spark.model.offsets.Position`

    @property
    def raw(self) -> dict[str, Any]:
        """The position as JSON, for the manifest and the option ``startingOffsets``."""
        return {"id": str(self.id), "n": self.n} | ({"holes": self.holes} if self.holes else {})


@dataclass(frozen=True)
class ArchiveManifest:
    """The content of an archive: positions, files, form and columns."""

    generation: int = 0  # Number that increases with each change
    places: Mapping[str, ArchivePosition] = field(default_factory=dict)  # Archived position of each stream
    files: tuple[DataFile, ...] = ()  # Files sorted by stream and id
    shape: Shape = field(default_factory=Shape)  # Form of the files
    # Columns of each table; the columns of a file are the first of them
    columns: Mapping[str, tuple[TableColumn, ...]] = field(default_factory=dict)
    # Files that were merged into others, but may still have readers of an older table state, each with the time of the
    # merge in milliseconds since 1970
    retired: tuple[tuple[str, int], ...] = ()

    def place(self, stream: str) -> ArchivePosition:
        """Return the position up to which a stream is archived; zero for an unknown stream."""
        return self.places.get(stream, ArchivePosition(ZERO, 0))

    def of(self, stream: str, after: Id, until: Id) -> list[DataFile]:
        """Return the files that may hold entries of ``(after, until]``, in order."""
        return [file for file in self.files if file.stream == stream and file.last > after and file.first <= until]

    def with_batch(
        self,
        ranges: Mapping[str, Position],
        files: Iterable[DataFile],
        columns: Mapping[str, tuple[TableColumn, ...]] | None = None,
    ) -> "ArchiveManifest":
        """Return this manifest plus one batch."""
        places = dict(self.places)
        for stream, read in ranges.items():
            at = self.places.get(stream)
            if at is not None and read.id == at.id:
                continue  # an offset also contains streams without new entries
            if at is not None and read.start != at.id:
                raise ManifestError(
                    f"the batch of stream {stream!r} begins after {read.start} and the archive ends at {at.id}: "
                    "nothing was archived; another job may have written to this archive, so run this one again"
                )
            places[stream] = ArchivePosition(read.id, read.n, read.holes)
        added = sorted(files, key=_order)
        for file in added:
            if file.stream not in ranges or file.first <= self.place(file.stream).id:
                raise ManifestError(
                    f"the file {file.path} holds entries that are archived already, or not of the batch"
                )
        made = self._checked(places, [*self.files, *added])
        return replace(made, columns={**self.columns, **(columns or {})})

    def with_merged(
        self, old: Sequence[DataFile], new: Sequence[DataFile], retired_ms: int | None = None
    ) -> "ArchiveManifest":
        """Return this manifest with some of its files merged into others."""
        if sum(file.rows for file in old) != sum(file.rows for file in new) or not set(old) <= set(self.files):
            raise ManifestError("merged files do not hold the same entries as the files before: nothing was changed")
        gone = set(old)
        made = self._checked(self.places, [*(file for file in self.files if file not in gone), *new])
        kept = () if retired_ms is None else tuple((file.path, retired_ms) for file in old)
        return replace(made, retired=(*self.retired, *kept))

    def without_retired(self, before_ms: int) -> "ArchiveManifest":
        """Return this manifest without the merged files that no reader can still be reading."""
        left = tuple((path, when) for path, when in self.retired if when >= before_ms)
        return replace(self, generation=self.generation + 1, retired=left)

    def with_table(
        self,
        stream: str,
        place: ArchivePosition,
        files: Iterable[DataFile],
        columns: tuple[TableColumn, ...],
        gone: Iterable[tuple[str, int]],
    ) -> "ArchiveManifest":
        """Return this manifest with the files and columns of a stream replaced by those of its table."""
        others = [file for file in self.files if file.stream != stream]
        made = self._checked({**self.places, stream: place}, [*others, *files])
        return replace(
            made, columns={**self.columns, self.shape.table_of(stream): columns}, retired=(*self.retired, *gone)
        )

    def _checked(self, places: Mapping[str, ArchivePosition], files: Iterable[DataFile]) -> "ArchiveManifest":
        made = replace(self, generation=self.generation + 1, places=places, files=tuple(sorted(files, key=_order)))
        problem = _contradiction(made)
        if problem is not None:
            raise ManifestError(problem)
        return made


def _order(file: DataFile) -> tuple[str, Id]:
    return file.stream, file.first


def _contradiction(manifest: ArchiveManifest) -> str | None:
    """Return the contradiction in a manifest with files in order; None without one."""
    for one, next_one in pairwise(manifest.files):
        if one.stream == next_one.stream and one.last >= next_one.first and one.path != next_one.path:
            return f"the files {one.path} and {next_one.path} would hold the same entries"
    for file in manifest.files:
        if file.first > file.last:
            return f"the file {file.path} ends before it begins"
        if file.stream not in manifest.places:
            return f"the file {file.path} is of stream {file.stream!r}, of which nothing is archived"
        if file.last > manifest.places[file.stream].id:
            return f"the file {file.path} reaches past what was read of its stream"
    seen: set[str] = set()
    for path in [*(file.path for file in manifest.files), *(path for path, _ in manifest.retired)]:
        if path in seen:
            return f"the file {path} is named twice"
        seen.add(path)
    return None


def rows_of(files: Iterable[DataFile]) -> Counter[str]:
    """Return the number of entries in some files, by stream."""
    rows = Counter[str]()
    for file in files:
        rows[file.stream] += file.rows
    return rows


def _missing(manifest: ArchiveManifest, archived: Mapping[str, Any]) -> str | None:
    """Return the fault of a stream whose files do not hold as many entries as were archived; None without one.

    The stream's position cannot show it: it counts all added entries, some of which others removed before the
    archiving.
    """
    said = {name: _count(rows) for name, rows in archived.items()}
    totals = rows_of(manifest.files)
    for stream in sorted({*said, *totals}):
        if totals[stream] != said.get(stream, 0):
            held = plural(totals[stream], "entry", "entries")
            return f"the files of stream {stream!r} hold {held}, and {said.get(stream, 0)} were archived"
    return None


def dump(manifest: ArchiveManifest) -> str:
    """Return the manifest as JSON with one data file a line, so that people can read it."""
    head: dict[str, Any] = {
        "format": _format_of(manifest.shape),
        "generation": manifest.generation,
        "places": {name: at.raw for name, at in sorted(manifest.places.items())},
        "archived": dict(sorted(rows_of(manifest.files).items())),  # merging does not change the number of entries
        "shape": manifest.shape.json,
        "columns": {name: [one.json for one in found] for name, found in sorted(manifest.columns.items())},
        "retired": [list(pair) for pair in manifest.retired],
    }
    lines = [
        json.dumps([file.path, file.stream, str(file.first), str(file.last), file.rows, file.bytes])
        for file in manifest.files
    ]
    return json.dumps(head)[:-1] + ', "files": [\n' + ",\n".join(lines) + "\n]}\n"


def _format_of(shape: Shape) -> int:
    return FORMAT if shape.table is None else ONE_TABLE


def load(text: str | bytes, where: str = "") -> ArchiveManifest:
    """Parse the text that :func:`dump` wrote, and check it."""
    place = f"{where}: " if where else ""
    try:
        raw: dict[str, Any] = parse(text)
        if raw["format"] not in (FORMAT, ONE_TABLE):
            raise ManifestError(
                f"{place}the archive is of format {raw['format']!r}, and this version reads {FORMAT} and {ONE_TABLE}: "
                "upgrade"
            )
        made = ArchiveManifest(
            _count(raw["generation"]),
            {name: _place(at) for name, at in raw["places"].items()},
            tuple(sorted((_file(*row) for row in raw["files"]), key=_order)),
            Shape.load(raw["shape"]),
            {str(name): load_columns(found) for name, found in raw["columns"].items()},
            tuple((_below(path), _count(when)) for path, when in raw["retired"]),
        )
        problem = _contradiction(made) or _missing(made, raw["archived"])
        if raw["format"] != _format_of(made.shape):
            problem = f"format {raw['format']!r} with the table {made.shape.table!r}"
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as reason:
        problem = fault(reason)
    if problem is not None:
        raise ManifestError(f"{place}the archive's manifest is damaged ({problem}): restore it from a backup") from None
    return made


def _file(path: str, stream: str, first: str, last: str, rows: int, size: int) -> DataFile:
    return DataFile(_below(path), stream, parse_id(first), parse_id(last), _count(rows, 1), _count(size))


def _count(value: object, least: int = 0) -> int:
    """Return a valid count; raise ValueError for any other value."""
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is not a whole number of {least} or more")
    return value


def _below(path: str) -> str:
    """Check that a file's path is below the archive's directory: named files are read, and removed once merged."""
    if "\0" in path or {"", ".", ".."} & set(path.split("/")):
        raise ValueError(f"the path {path!r} is not one below the archive's directory")
    path.encode(errors="surrogateescape")  # a file's name cannot contain a lone surrogate
    return path


def _place(raw: Mapping[str, Any]) -> ArchivePosition:
    return ArchivePosition(parse_id(raw["id"]), _count(raw["n"]), _count(raw.get("holes", 0)))


# --- which files are merged ------------------------------------------------------------------------------------------

FAN = 8
"""Number of files in a growing partition from which they are merged."""


def mergeable(files: Sequence[DataFile], *, closed: bool, target: int) -> list[list[DataFile]]:
    """Return runs of adjacent files that should be merged, each into one file.

    In a partition that still grows, the largest file of a run is at most half of the total. So each rewrite puts an
    entry into a file of at least twice the size. An entry is rewritten a few times, not once a batch.
    """
    if closed:
        return [run for run in portions(files, attrgetter("bytes"), target) if len(run) > 1]
    for end in range(len(files), FAN - 1, -1):
        total = largest = 0
        for begin in range(end - 1, -1, -1):
            size = files[begin].bytes
            total, largest = total + size, max(largest, size)
            if total > target:
                break
            if end - begin >= FAN and 2 * largest <= total:
                return [list(files[begin:end])]
    return []
