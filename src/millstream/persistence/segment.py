"""Reading one log file: its whole records in order, then the result for the bytes after them. It only reads.

:class:`LogFiles` are the open files of a whole log, for a replica that loads them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from millstream.errors import LogCorruptError
from millstream.persistence.disk import Disk, DiskFile, ReadableFile
from millstream.persistence.frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    MAGIC,
    FileHeader,
    FormatError,
    Head,
    decode_head,
    decode_run,
    payload_matches,
)
from millstream.persistence.manifest import Manifest, PackEntry

CHUNK = 1 << 20  # bytes of one read; memory contains only these and one record


class TailState(Enum):
    """The kind of bytes that follow the last whole record of a file."""

    WHOLE = "whole"  # no damage
    TORN = "torn"  # probably an incomplete write, interrupted by a crash
    CORRUPT = "corrupt"  # damage to durable bytes


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The contents of a log file and the state of its end."""

    state: TailState  # State of the end of the file
    first: int  # Position of the first record that the file may contain
    records: int  # Number of whole records from the start
    end: int  # Bytes up to the end of the last whole frame, where any damage begins
    size: int  # Size of the file in bytes
    whole_behind: int = 0  # Number of whole records after ``end``, which cutting there would lose
    reason: str = ""  # Description of the fault as a clause; empty if there is none
    sealed: bool = False  # True if the last whole frame is a seal, so that all bytes are known to be durable

    @property
    def rest(self) -> int:
        """Number of bytes after ``end``."""
        return self.size - self.end


def read_header(file: ReadableFile, path: Path, expected: FileHeader | None = None) -> FileHeader:
    """Read the header of an open file; raise if it is damaged or not the expected one."""
    data = file.read_at(0, HEADER_SIZE)
    try:
        header = FileHeader.decode(data, expected.magic if expected else MAGIC)
    except FormatError as error:
        if error.version:
            raise FormatError(f"{path}: {error}", version=error.version) from None
        size = file.size()
        raise LogCorruptError(
            f"{path}: {error}; none of its {size} bytes can be read as records", path=str(path), offset=0
        ) from None
    if expected is not None and header != expected:
        raise LogCorruptError(f"{path} is not the file that the manifest names", path=str(path), offset=0)
    return header


def open_file(disk: Disk, path: Path, holds: str) -> DiskFile:
    """Open a file that the log needs; if it is missing, the error names its contents."""
    try:
        return disk.open_read(path)
    except FileNotFoundError:
        raise LogCorruptError(f"{path} is missing, which holds {holds}", path=str(path), offset=0) from None


class Scan:
    """One pass over a file's whole records, in order; afterwards the attributes have its final state.

    Memory: one chunk, or one record if that is larger.
    """

    def __init__(self, file: ReadableFile, header: FileHeader, size: int) -> None:
        self.file = file
        self.header = header
        self.size = size
        self.end = HEADER_SIZE  # Bytes up to the end of the last whole frame so far
        self.records = 0  # Number of whole records so far
        self.sealed = False  # True if the last whole frame is a seal
        self.misplaced = False  # True if a whole frame follows at ``end`` but has the wrong position

    def runs(self) -> Iterator[list[bytes]]:
        """Yield lists of payloads, a chunk at a time; a list may be empty."""
        want = CHUNK
        while (left := self.size - self.end) > 0:
            data = self.file.read_at(self.end, min(want, left))
            payloads, stop, sealed = decode_run(self.header, data, self.records)
            if stop:
                self.end += stop
                self.records += len(payloads)
                self.sealed = sealed
                want = CHUNK
                yield payloads
                continue
            head = decode_head(self.header, data, 0)
            if head is None:
                return
            need = FRAME_SIZE + head.length
            if want < need <= left:
                want = need
                continue
            if need <= len(data) and head.number != self.records:
                self.misplaced = payload_matches(head, (data[FRAME_SIZE:need],))
            return


def assess(scan: Scan) -> ScanResult:
    """Classify the end of a file after its scan is complete.

    Bytes after the last whole record are a torn write, unless something proves that the damaged part had been durable:

    - a later frame shows it (by its ``unsynced``);
    - the next expected record is found further on, so the damage lies between records;
    - a valid frame there has the wrong index, so records are missing in between.

    The search reads these bytes once. Payloads of damaged frames are charged to a budget of twice the searched bytes.
    When the budget is used up, the result is corrupt, which loses nothing.
    """
    rest = scan.size - scan.end
    if rest <= 0:
        return ScanResult(TailState.WHOLE, scan.header.first, scan.records, scan.end, scan.size, sealed=scan.sealed)
    proof = "records before it are missing" if scan.misplaced else ""
    whole = 0
    search = _Search(scan.file, scan.header, scan.size, scan.end)
    for at, head, good in search:
        if head.number < scan.records or (at == scan.end and not scan.misplaced):
            continue
        whole += good and head.unsynced > 0
        if head.proven > scan.records:
            proof = proof or "later records show that it had been durable"
        elif head.number == scan.records:
            proof = proof or "the next record follows it"
    if search.spent:
        proof = proof or "what follows cannot be searched in bounded time"
    position = scan.header.first + scan.records
    if proof:
        reason = f"record {position} at byte {scan.end} is damaged ({proof})"
    else:
        reason = f"from byte {scan.end} on, where record {position} would be, there is no whole record"
    state = TailState.CORRUPT if proof else TailState.TORN
    return ScanResult(state, scan.header.first, scan.records, scan.end, scan.size, whole_behind=whole, reason=reason)


def salvage(file: ReadableFile, header: FileHeader, start: int, number: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, position and payload of each whole record after damage, confirmed by its CRCs."""
    for at, head, good in _Search(file, header, file.size(), start):
        if good and head.unsynced and head.number >= number:
            yield at, header.first + head.number, file.read_at(at + FRAME_SIZE, head.length)


def frame_ends(file: ReadableFile, header: FileHeader, start: int, size: int) -> Iterator[tuple[int, int]]:
    """Step over frames known to be whole; yield the number of records so far and the offset after each frame."""
    at = start
    while at < size and (head := decode_head(header, file.read_at(at, FRAME_SIZE), 0)) is not None:
        at += FRAME_SIZE + head.length
        yield head.number + (head.unsynced > 0), at


class _Search:
    """Search for frames at any offset: yields the offset, each valid head, and True if its payload is whole too."""

    def __init__(self, file: ReadableFile, header: FileHeader, size: int, start: int) -> None:
        self.file = file
        self.header = header
        self.size = size
        self.start = start
        self.budget = 2 * (size - start) + CHUNK
        self.spent = False

    def __iter__(self) -> Iterator[tuple[int, Head, bool]]:
        mark = self.header.mark
        at = self.start
        while at + FRAME_SIZE <= self.size and not self.spent:
            data = self.file.read_at(at, min(CHUNK, self.size - at))
            last = len(data) - FRAME_SIZE  # last position of a head that fits in this chunk
            if last < 0:  # the file became shorter, as after a write that a full disk refused
                return
            after = 0
            while not self.spent and 0 <= (found := data.find(mark, after)) <= last:
                after = found + 1
                head = decode_head(self.header, data, found)
                if head is not None:
                    good = self._whole(head, at + found)
                    if good:
                        after = found + FRAME_SIZE + head.length
                    yield at + found, head, good
            at += max(after, last + 1)

    def _whole(self, head: Head, at: int) -> bool:
        start, stop = at + FRAME_SIZE, at + FRAME_SIZE + head.length
        if stop > self.size:
            return False
        parts = (self.file.read_at(place, min(CHUNK, stop - place)) for place in range(start, stop, CHUNK))
        good = payload_matches(head, parts)
        if not good:
            self.budget -= head.length
            self.spent = self.budget < 0
        return good


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The open files of a log up to a written position."""

    manifest: Manifest  # Manifest that contains the files
    last: int  # Last written position
    files: Sequence[tuple[DiskFile, int]]  # Each file with its number of valid bytes
    packs: Sequence[tuple[PackEntry, int]] | None = None  # Packs that are wanted, likewise; None without packs
    release: Callable[[], None] = lambda: None  # Lets packs be removed; called at the end

    def close(self) -> None:
        """Close the files, and let packs be removed."""
        for file, _ in self.files:
            file.close()
        self.release()
