"""A table as its log must show it, and the differences from the present log. PURE: no files, no libraries.

The manifest decides; each commit brings a Delta or Iceberg log to it. So a new batch, merged files, and the state after
a killed job are handled in one way: the difference is committed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millstream.errors import StorageError
from millstream.spark.archiving.tables.columns import TableColumn
from millstream.spark.archiving.tables.shape import Shape


class TableChangedError(StorageError):
    """Another program changed a table of the archive. No entry outside of the table was trimmed.

    What to do: archive into a new directory, and let only the job change its tables.
    """


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table."""

    path: str  # Path below the table's folder
    stream: str  # Key of the stream
    rows: int  # Number of entries
    bytes: int  # Size in bytes
    ms: int  # Milliseconds of the first entry's id
    last: tuple[int, int]  # Milliseconds and sequence number of the last entry's id


@dataclass(frozen=True)
class TablePlan:
    """A table by the manifest."""

    name: str  # Key of the stream, or name of the partitioned stream whose partitions share the table
    folder: str  # Folder of the table, below the archive's directory
    shape: Shape  # Form of the archive
    columns: tuple[TableColumn, ...]  # Columns of the table
    files: Mapping[str, TableFile]  # Files by path
    retired: frozenset[str]  # Paths of files that were merged into others
    generation: int  # Generation of the manifest

    def changes(self, there: Mapping[str, int]) -> tuple[list[TableFile], list[str]]:
        """Return the files to add to a table and the paths to remove from it."""
        foreign = sorted(there.keys() - self.files.keys() - self.retired)
        if foreign:
            raise self._changed(f"it has {foreign[0]!r}, which is none of the archive's files")
        added = [file for path, file in self.files.items() if path not in there]
        removed = sorted(there.keys() - self.files.keys())
        ends: dict[str, tuple[int, int]] = {}
        for path in self.files.keys() & there.keys():
            file = self.files[path]
            ends[file.stream] = max(ends.get(file.stream, file.last), file.last)
        again = sum(file.rows for file in added if file.stream in ends and file.last <= ends[file.stream])
        if again > sum(there[path] for path in removed):
            raise self._changed("files that it had are missing in it")
        return added, removed

    def extended(self, there: Sequence[str], wanted: Sequence[str]) -> bool:
        """Return True if columns must be added to the table."""
        for at, name in enumerate(there):
            if at >= len(wanted) or wanted[at] != name:
                raise self._changed(f"it has the column {name!r} where the archive has another, or none")
        return len(there) < len(wanted)

    def confirm(self, there: Iterable[str]) -> None:
        """Check, after a commit, that a table shows the files that it should."""
        if set(there) != self.files.keys():
            raise self._changed("it does not show what was just committed to it")

    def _changed(self, how: str) -> TableChangedError:
        return TableChangedError(
            f"the {self.shape.format} table of stream {self.name!r} was changed by another program: {how}. Nothing "
            "was trimmed; an archive's tables are written by its job alone: archive into a new directory"
        )
