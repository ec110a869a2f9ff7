"""Detection of pack extents that no version can use, although their checksums are right."""

from contextlib import suppress

from millstream.engine.streams import extents
from millstream.errors import LogCorruptError
from millstream.persistence.check import CheckReport, Problem
from millstream.persistence.disk import Disk
from millstream.persistence.frame import FormatError
from millstream.persistence.manifest import Manifest
from millstream.persistence.packs import extents_of


def find_unreadable_extents(disk: Disk, report: CheckReport, manifest: Manifest) -> None:
    """Add each unreadable extent to the report. Memory use is bounded by the largest extent."""
    for entry in manifest.packs:
        path = report.directory / entry.name
        with suppress(LogCorruptError, FormatError):  # the report has it
            for at, payload in extents_of(disk, report.directory, entry):
                try:
                    for _ in extents.nodes(payload):
                        pass
                except ValueError as error:
                    text = f"{path}: the extent at byte {at} is as it was written, but cannot be read: {error}"
                    newer = isinstance(error, extents.NewerExtentError)
                    report.problems.append(Problem(str(path), at, text, refuses=False, newer=newer))
