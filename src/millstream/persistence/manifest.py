"""The manifest: which files make up the log, in order. Switched as a whole by a rename.

``MANIFEST`` is two lines of text: JSON, then ``crc32 `` and the CRC-32 of the first line (without its line end) as
eight hex digits. The JSON object has

- ``format``: 1 as long as there was never a snapshot, else 2, which programs without snapshots refuse;
- ``snapshot``: null, or ``{"name", "last", "identity"}`` of the file that replaces all records before the first
  segment. These are its name, the position of its last record, and the mark and seed of its header;
- ``segments``: a list of ``{"name", "first", "identity"}``: file name, position of its first record, and the mark and
  seed of its header. So a file of the same name from elsewhere is noticed. Only the last is appended to;
- ``obsolete`` (format 2): segments that the snapshot made superfluous, in the same form. They may still be there, and
  may be removed; no other file of records ever is.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from millstream.errors import LogCorruptError
from millstream.persistence.disk import Disk, read_file
from millstream.persistence.frame import NEWER, FormatError

NAME = "MANIFEST"
NEW_NAME = "MANIFEST.new"
MAX_BYTES = 1 << 26  # a manifest is read whole; this is a million segments
FORMATS = (1, 2)

_IDENTITY = re.compile(r"[0-9a-f]{16}")
_SNAPSHOT = re.compile(r"snapshot-[0-9]{20}-[0-9a-f]{16}\.snap")

MISSHAPEN = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""The errors from JSON that is not as this program writes it."""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One log file."""

    name: str  # Inside the data directory
    first: int  # Position of its first record
    identity: str  # ``FileHeader.identity`` of it


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """A snapshot: one file that replaces every record up to a position."""

    name: str  # Inside the data directory
    last: int  # Position of the last record in it
    identity: str  # ``FileHeader.identity`` of it


@dataclass(frozen=True, slots=True)
class Manifest:
    """The log's files."""

    segments: tuple[SegmentEntry, ...]  # In order; the last one is appended to
    snapshot: SnapshotEntry | None = None  # Snapshot of the records before them, if there is one
    obsolete: tuple[SegmentEntry, ...] = ()  # Segments with all their records in the snapshot

    @property
    def names(self) -> frozenset[str]:
        """The files that hold the log's records."""
        names = {segment.name for segment in self.segments}
        return frozenset(names if self.snapshot is None else names | {self.snapshot.name})

    @property
    def begin(self) -> int:
        """Position of the first record that is not in the snapshot."""
        return 1 if self.snapshot is None else self.snapshot.last + 1

    def encode(self) -> bytes:
        """The file's bytes."""
        line = json.dumps(self.facts()).encode()
        return line + b"\ncrc32 %08x\n" % crc32(line)

    def facts(self) -> dict[str, Any]:
        """The JSON object."""
        made = self.snapshot
        facts: dict[str, Any] = {
            "format": 1 if made is None else 2,
            "snapshot": None if made is None else asdict(made),
            "segments": [asdict(entry) for entry in self.segments],
        }
        if made is not None:
            facts["obsolete"] = [asdict(entry) for entry in self.obsolete]
        return facts

    @classmethod
    def decode(cls, data: bytes, path: Path) -> "Manifest":
        """Read a manifest."""
        line, _, rest = data.partition(b"\n")
        if rest != b"crc32 %08x\n" % crc32(line):
            raise LogCorruptError(
                f"{path} is damaged, and it names the files of the log. Nothing was changed", path=str(path), offset=0
            )
        try:
            facts = json.loads(line)
            if facts["format"] not in FORMATS or (facts["format"] == 1 and facts["snapshot"] is not None):
                raise FormatError(
                    f"{path} is of format {facts['format']} with a snapshot of {facts['snapshot']!r}; "
                    f"this program reads format 1 without one, and format 2: {NEWER}",
                    version=int(facts["format"]),
                )
            return cls.of(facts)
        except MISSHAPEN as reason:  # its checksum is right: it was written so
            raise LogCorruptError(
                f"{path} names no files of a log ({type(reason).__name__}: {reason}). Nothing was changed",
                path=str(path),
                offset=0,
            ) from None

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Manifest":
        """The manifest that :meth:`facts` tells of."""
        made = facts["snapshot"]
        if made is not None and not (_is_plain(made["name"], made["last"]) and is_snapshot_name(made["name"])):
            raise ValueError(f"{made['name']!r} is not a snapshot")
        segments = _entries(facts["segments"])
        if not segments:
            raise ValueError("no log file is left")
        snapshot = None if made is None else SnapshotEntry(made["name"], made["last"], _identity(made["identity"]))
        manifest = cls(segments, snapshot, _entries(facts.get("obsolete", [])))
        if segments[0].first != manifest.begin:
            raise ValueError(f"its log files begin with record {segments[0].first} instead of {manifest.begin}")
        return manifest


def _entries(facts: list[dict[str, Any]]) -> tuple[SegmentEntry, ...]:
    for entry in facts:
        if not (_is_plain(entry["name"], entry["first"]) and is_segment_name(entry["name"])):
            raise ValueError(f"{entry['name']!r} is not a log file")
    return tuple(SegmentEntry(s["name"], s["first"], _identity(s["identity"])) for s in facts)


def _identity(text: object) -> str:
    if not isinstance(text, str) or not _IDENTITY.fullmatch(text):
        raise ValueError(f"{text!r:.40} is not a mark of a file")
    return text


def _is_plain(name: object, position: object) -> bool:
    """A name inside the directory, and a number that is a position."""
    there = isinstance(name, str) and "/" not in name and "\0" not in name
    return there and isinstance(position, int) and 0 <= position < 2**63


def segment_name(first: int) -> str:
    """The name of the log file that starts with this position; names sort as positions do."""
    return f"log-{first:020d}.seg"


def is_segment_name(name: str) -> bool:
    """True if :func:`segment_name` could have made it."""
    return name.startswith("log-") and name.endswith(".seg")


def snapshot_name(last: int, identity: str) -> str:
    """The name of the snapshot of this identity that holds all up to this position. No two have the same."""
    return f"snapshot-{last:020d}-{identity}.snap"


def is_snapshot_name(name: str) -> bool:
    """True if :func:`snapshot_name` could have made it."""
    return _SNAPSHOT.fullmatch(name) is not None


def snapshot_last(name: str) -> int:
    """The position in the name of a snapshot."""
    return int(name[9:29])


def snapshot_identity(name: str) -> str:
    """The identity in the name of a snapshot."""
    return name[30:].removesuffix(".snap")


def read_manifest(disk: Disk, directory: Path) -> Manifest | None:
    """The manifest of a data directory, or None if it has none."""
    path = directory / NAME
    data = read_file(disk, path, MAX_BYTES)
    return None if data is None else Manifest.decode(data, path)
