"""The manifest: the ordered list of the log's files. A rename replaces it as a whole.

``MANIFEST`` is two lines of text: JSON, then ``crc32 `` and the CRC-32 of the first line (without its line end) as
eight hex digits. The JSON object has

- ``format``: 1 until the first snapshot, then 2, which programs without snapshots refuse. From the first
  pack on it is 3, which programs without packs refuse;
- ``snapshot``: null, or ``{"name", "last", "identity"}`` of the file that replaces all records before the first
  segment. These are its name, the position of its last record, and the mark and seed of its header;
- ``segments``: a list of ``{"name", "first", "identity"}``: file name, position of its first record, and the mark and
  seed of its header. They reveal another file of the same name. Only the last one is appended to;
- ``obsolete`` (format 2): segments that the snapshot replaced, in the same form. They may still exist, and
  may be removed; no other file of records may be removed;
- ``packs`` (format 3): a list of ``{"name", "number", "identity", "bytes", "sealed"}`` of files that hold entries.
  ``identity`` is the mark and seed of its header. ``bytes`` is the number of its valid bytes: null while it is being
  filled, or if its writer was killed. ``sealed`` is true if a seal ends them. The name of a pack that came with a
  primary's copy has a third part, since a pack of the same number may be there already;
- ``gone`` (format 3): packs that the snapshot replaced, in the same form, like ``obsolete``;
- ``next_pack`` (format 3): the number of the next pack. No number is ever used again.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from millstream.errors import LogCorruptError
from millstream.persistence.disk import Disk, read_file
from millstream.persistence.frame import HEADER_SIZE, NEWER, FormatError

NAME = "MANIFEST"
NEW_NAME = "MANIFEST.new"
MAX_BYTES = 1 << 26  # limit in bytes, since a manifest is read as a whole; enough for a million segments
FORMATS = (1, 2, 3)

_IDENTITY = re.compile(r"[0-9a-f]{16}")
_SNAPSHOT = re.compile(r"snapshot-[0-9]{20}-[0-9a-f]{16}\.snap")
_PACK = re.compile(r"pack-[0-9]{20}-[0-9a-f]{16}(-[0-9a-f]{8})?\.pack")

MISSHAPEN = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Exceptions from JSON that does not have this program's form."""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One log file in the manifest."""

    name: str  # Name in the data directory
    first: int  # Position of the first record
    identity: str  # ``FileHeader.identity`` of the file


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """A snapshot: one file that replaces every record up to a position."""

    name: str  # Name in the data directory
    last: int  # Position of the last record
    identity: str  # ``FileHeader.identity`` of the file


@dataclass(frozen=True, slots=True)
class PackEntry:
    """A pack: a file of entries that no record of the log holds any more."""

    name: str  # Name in the data directory
    number: int  # Number, starting at 1 and never reused
    identity: str  # ``FileHeader.identity`` of the file
    bytes: int | None = None  # Number of valid bytes; None while it is being filled, or if its writer was killed
    sealed: bool = False  # True if a seal follows these bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of the log's files."""

    segments: tuple[SegmentEntry, ...]  # Segments in order; the last one is appended to
    snapshot: SnapshotEntry | None = None  # Snapshot that replaces the records before them; None if there is none
    obsolete: tuple[SegmentEntry, ...] = ()  # Segments whose records are all in the snapshot
    packs: tuple[PackEntry, ...] = ()  # Packs in order of their numbers
    gone: tuple[PackEntry, ...] = ()  # Packs that are needed only by the log before the snapshot
    next_pack: int = 1  # Number of the next pack

    @property
    def names(self) -> frozenset[str]:
        """Names of the files that hold the log's records."""
        names = {segment.name for segment in self.segments}
        return frozenset(names if self.snapshot is None else names | {self.snapshot.name})

    @property
    def begin(self) -> int:
        """Position of the first record that is not in the snapshot."""
        return 1 if self.snapshot is None else self.snapshot.last + 1

    def encode(self) -> bytes:
        """Return the file's bytes."""
        line = json.dumps(self.facts()).encode()
        return line + b"\ncrc32 %08x\n" % crc32(line)

    def facts(self) -> dict[str, Any]:
        """Return the JSON object."""
        made = self.snapshot
        facts: dict[str, Any] = {
            "format": 1 if made is None else 2,
            "snapshot": None if made is None else asdict(made),
            "segments": [asdict(entry) for entry in self.segments],
        }
        if made is not None:
            facts["obsolete"] = [asdict(entry) for entry in self.obsolete]
        if self.next_pack > 1:
            packs, gone = ([asdict(entry) for entry in each] for each in (self.packs, self.gone))
            facts |= {"format": 3, "packs": packs, "gone": gone, "next_pack": self.next_pack}
        return facts

    @classmethod
    def decode(cls, data: bytes, path: Path) -> "Manifest":
        """Parse a manifest; raise if it is damaged or of a newer format."""
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
                    f"this program reads format 1 without one, and formats 2 and 3: {NEWER}",
                    version=int(facts["format"]),
                )
            return cls.of(facts)
        except MISSHAPEN as reason:  # its checksum is correct, so it was written in this form
            raise LogCorruptError(
                f"{path} names no files of a log ({type(reason).__name__}: {reason}). Nothing was changed",
                path=str(path),
                offset=0,
            ) from None

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Manifest":
        """Return the manifest of a JSON object from :meth:`facts`."""
        made = facts["snapshot"]
        if made is not None and not (_is_plain(made["name"], made["last"]) and is_snapshot_name(made["name"])):
            raise ValueError(f"{made['name']!r} is not a snapshot")
        segments = _entries(facts["segments"])
        if not segments:
            raise ValueError("no log file is left")
        snapshot = None if made is None else SnapshotEntry(made["name"], made["last"], _identity(made["identity"]))
        packs, gone = _packs(facts.get("packs", [])), _packs(facts.get("gone", []))
        next_pack = facts.get("next_pack", 1)
        numbers = [0, *(entry.number for entry in packs)]
        if not isinstance(next_pack, int) or next_pack <= max(numbers + [entry.number for entry in gone]):
            raise ValueError(f"{next_pack!r:.40} is not the number of the next pack")
        if len({*numbers}) < len(numbers):
            raise ValueError("two packs have the same number")
        if {entry.name for entry in packs} & {entry.name for entry in gone}:
            raise ValueError("a pack is needed and not needed")
        manifest = cls(segments, snapshot, _entries(facts.get("obsolete", [])), packs, gone, next_pack)
        if segments[0].first != manifest.begin:
            raise ValueError(f"its log files begin with record {segments[0].first} instead of {manifest.begin}")
        return manifest


def _entries(facts: list[dict[str, Any]]) -> tuple[SegmentEntry, ...]:
    for entry in facts:
        if not (_is_plain(entry["name"], entry["first"]) and is_segment_name(entry["name"])):
            raise ValueError(f"{entry['name']!r} is not a log file")
    return tuple(SegmentEntry(s["name"], s["first"], _identity(s["identity"])) for s in facts)


def _packs(facts: list[dict[str, Any]]) -> tuple[PackEntry, ...]:
    found = tuple(PackEntry(**each) for each in facts)
    for entry in found:
        size = HEADER_SIZE if entry.bytes is None and entry.sealed is False else entry.bytes
        if not (
            _is_plain(entry.name, entry.number)
            and is_pack_name(entry.name)
            and entry.name.startswith(pack_name(entry.number, _identity(entry.identity)).removesuffix(".pack"))
            and isinstance(entry.sealed, bool)
            and isinstance(size, int)
            and HEADER_SIZE <= size < 2**63
        ):
            raise ValueError(f"{entry.name!r:.80} is not a pack")
    return found


def _identity(text: object) -> str:
    if not isinstance(text, str) or not _IDENTITY.fullmatch(text):
        raise ValueError(f"{text!r:.40} is not a mark of a file")
    return text


def _is_plain(name: object, position: object) -> bool:
    """Return True for a name inside the directory and a number that is a position."""
    there = isinstance(name, str) and "/" not in name and "\0" not in name
    return there and isinstance(position, int) and 0 <= position < 2**63


def segment_name(first: int) -> str:
    """Return the name of the log file that starts with this position; names sort like positions."""
    return f"log-{first:020d}.seg"


def is_segment_name(name: str) -> bool:
    """Return True if a name has the form of :func:`segment_name`."""
    return name.startswith("log-") and name.endswith(".seg")


def snapshot_name(last: int, identity: str) -> str:
    """Return the name of a snapshot of all records up to this position; the identity makes it unique."""
    return f"snapshot-{last:020d}-{identity}.snap"


def is_snapshot_name(name: str) -> bool:
    """Return True if a name has the form of :func:`snapshot_name`."""
    return _SNAPSHOT.fullmatch(name) is not None


def snapshot_last(name: str) -> int:
    """Return the position in the name of a snapshot."""
    return int(name[9:29])


def snapshot_identity(name: str) -> str:
    """Return the identity in the name of a snapshot."""
    return name[30:].removesuffix(".snap")


def pack_name(number: int, identity: str) -> str:
    """Return the name of the pack with this number and identity."""
    return f"pack-{number:020d}-{identity}.pack"


def taken_name(number: int, identity: str, token: str) -> str:
    """Return the name of a pack that comes from a primary or an open file; the token (8 hex digits) makes it unique."""
    return pack_name(number, f"{identity}-{token}")


def is_taken_name(name: str) -> bool:
    """Return True if a name has the form of :func:`taken_name`."""
    found = _PACK.fullmatch(name)
    return found is not None and found[1] is not None


def is_pack_name(name: str) -> bool:
    """Return True if a name has the form of :func:`pack_name`."""
    return _PACK.fullmatch(name) is not None


def pack_number(name: str) -> int:
    """Return the number in the name of a pack."""
    return int(name[5:25])


def read_manifest(disk: Disk, directory: Path) -> Manifest | None:
    """Return the manifest of a data directory, or None if it has none."""
    path = directory / NAME
    data = read_file(disk, path, MAX_BYTES)
    return None if data is None else Manifest.decode(data, path)
