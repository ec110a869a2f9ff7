"""The manifest: which files make up the log, in order. Switched as a whole by a rename.

``MANIFEST`` is two lines of text: JSON, then ``crc32 `` and the CRC-32 of the first line (without its line end) as
eight hex digits. The JSON object has

- ``format``: 1;
- ``snapshot``: null; reserved for the file that stands for all records before the first segment;
- ``segments``: a list of ``{"name", "first", "identity"}``: file name, position of its first record, and the mark and
  seed of its header, so that a file of the same name from elsewhere is noticed. Only the last is appended to.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from millstream.errors import LogCorruptError
from millstream.persistence.disk import Disk
from millstream.persistence.frame import FORMAT_VERSION, FormatError

NAME = "MANIFEST"
NEW_NAME = "MANIFEST.new"
MAX_BYTES = 1 << 26  # a manifest is read whole; this is a million segments


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One log file.

    Attributes:
        name: inside the data directory.
        first: position of its first record.
        identity: ``FileHeader.identity`` of it.
    """

    name: str
    first: int
    identity: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The log's files in order; the last one is appended to."""

    segments: tuple[SegmentEntry, ...]

    def encode(self) -> bytes:
        """The file's bytes."""
        segments = [{"name": s.name, "first": s.first, "identity": s.identity} for s in self.segments]
        line = json.dumps({"format": FORMAT_VERSION, "snapshot": None, "segments": segments}).encode()
        return line + b"\ncrc32 %08x\n" % crc32(line)

    @classmethod
    def decode(cls, data: bytes, path: Path) -> "Manifest":
        """Read a manifest.

        Args:
            data: the file's bytes.
            path: for the error's text.

        Raises:
            LogCorruptError: it is damaged.
            FormatError: it is whole, but of a format this program does not read.
        """
        line, _, rest = data.partition(b"\n")
        if rest != b"crc32 %08x\n" % crc32(line):
            raise LogCorruptError(
                f"{path} is damaged, and it names the files of the log. Nothing was changed", path=str(path), offset=0
            )
        facts = json.loads(line)
        if facts["format"] != FORMAT_VERSION or facts["snapshot"] is not None:
            raise FormatError(
                f"{path} is of format {facts['format']} with a snapshot of {facts['snapshot']!r}; "
                f"this program reads format {FORMAT_VERSION} without one",
                version=int(facts["format"]),
            )
        return cls(tuple(SegmentEntry(s["name"], s["first"], s["identity"]) for s in facts["segments"]))


def segment_name(first: int) -> str:
    """The name of the log file that starts with this position; names sort as positions do."""
    return f"log-{first:020d}.seg"


def is_segment_name(name: str) -> bool:
    """Whether :func:`segment_name` could have made it."""
    return name.startswith("log-") and name.endswith(".seg")


def read_manifest(disk: Disk, directory: Path) -> Manifest | None:
    """The manifest of a data directory, or None if it has none."""
    path = directory / NAME
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        return None
    try:
        return Manifest.decode(file.read_at(0, MAX_BYTES), path)
    finally:
        file.close()
