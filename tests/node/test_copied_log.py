"""A log as one sequence of bytes: it is read as written, or is an error if it was cut or changed."""

import json
import random
from dataclasses import dataclass
from struct import pack
from zlib import crc32

import pytest

from millstream.errors import LogCorruptError, MillstreamError, UsageError
from millstream.node.log import copied_log
from millstream.node.log.copied_log import MAGIC, head, payloads
from millstream.persistence.log import Log
from millstream.persistence.manifest import Manifest
from millstream.persistence.rewrite import contents, make
from millstream.persistence.segment import LogFiles
from persistence.reference import HOME, entropy
from support.simdisk import SimDisk

HEAD = len(MAGIC) + 8


@dataclass
class Whole:
    """All bytes of a copied log.

    Attributes:
        data: the bytes.
    """

    data: bytes

    def read_at(self, offset: int, size: int) -> bytes:
        assert size >= 0
        assert offset >= 0
        return self.data[offset : offset + size]


def sent(files: LogFiles) -> bytes:
    """Return the bytes of a log's files as they are sent."""
    return head(files) + b"".join(file.read_at(0, size) for file, size in files.files)


def read(data: bytes) -> list[bytes]:
    return list(payloads(Whole(data).read_at))


def record(number: int) -> bytes:
    return b"%d:" % number + b"x" * (number % 7 * 9)


class Growing:
    """A log on a simulated disk, with files of a kilobyte.

    Attributes:
        disk: the simulated disk.
        log: the log.
    """

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.log, _ = Log.open(HOME, self.disk, segment_bytes=1000, entropy=entropy(1))

    def add(self, count: int) -> None:
        for _ in range(count):
            self.log.append(record(self.log.appended + 1))
            self.log.write()
        self.log.sync()

    def rewrite(self) -> None:
        """Replace the log so far by a snapshot."""
        rewrite = self.log.begin_rewrite()
        assert rewrite is not None
        make(self.disk, HOME, rewrite, list(contents(self.disk, HOME, rewrite)))
        self.log.commit_rewrite(rewrite)
        self.log.remove_obsolete()


@pytest.fixture
def growing() -> Growing:
    return Growing()


def test_each_position_of_a_log_with_and_without_a_snapshot(growing: Growing) -> None:
    """Reading a copy from any position skips the records before it, with and without a snapshot."""
    growing.add(60)
    for last in range(61):
        assert read(sent(growing.log.files(last))) == [record(number) for number in range(1, last + 1)]
    growing.rewrite()
    growing.add(40)
    assert growing.log.count > 2
    for last in range(60, 101):
        files = growing.log.files(last)
        assert read(sent(files)) == [record(number) for number in range(1, last + 1)]
        assert len(files.files) <= growing.log.count
        files.close()


def test_an_empty_log(growing: Growing) -> None:
    """An empty log has one file without a record."""
    assert read(sent(growing.log.files(0))) == []


def test_files_that_are_open_outlive_a_rewriting(growing: Growing) -> None:
    """Files that are being sent stay readable after a rewriting removed them.

    A position that only the new snapshot contains is refused with an error.
    """
    growing.add(30)
    files = growing.log.files(25)
    growing.add(5)
    growing.rewrite()
    assert read(sent(files)) == [record(number) for number in range(1, 26)]
    with pytest.raises(UsageError, match="no files up to record 25: it begins with 36"):
        growing.log.files(25)
    with pytest.raises(UsageError, match="up to record 36"):
        growing.log.files(36)


def copies() -> list[tuple[bytes, list[bytes]]]:
    """Return copies with and without a snapshot, each with its content; the last file continues behind the position."""
    growing, found = Growing(), []
    growing.add(40)
    for _ in range(2):
        last = growing.log.appended - 3
        found.append((sent(growing.log.files(last)), [record(number) for number in range(1, last + 1)]))
        growing.rewrite()
        growing.add(40)
    return found


COPIES = copies()


@pytest.mark.parametrize(("data", "expected"), COPIES, ids=["log", "snapshot"])
def test_a_copy_that_is_cut_anywhere(data: bytes, expected: list[bytes]) -> None:
    """A copy that is cut anywhere is an error, unless only bytes behind the position are missing."""
    whole = 0
    for size in range(len(data)):
        found: list[bytes] = []
        try:
            found.extend(payloads(Whole(data[:size]).read_at))
            whole += 1
            assert found == expected
        except LogCorruptError as error:
            assert str(error)  # noqa: PT017 - how many do not raise is asserted below
    assert 0 < whole < 300


@pytest.mark.parametrize(("data", "expected"), COPIES, ids=["log", "snapshot"])
def test_a_copy_with_one_byte_changed(data: bytes, expected: list[bytes]) -> None:
    """A copy with any one byte changed is an error, or has the original records."""
    chance, refused = random.Random(7), 0
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << chance.randrange(8)
        try:
            assert read(bytes(changed)) == expected
        except MillstreamError:
            refused += 1
    assert refused > len(data) * 3 // 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sizes": []}, "its list of files is invalid"),
        ({"sizes": [-1, 2]}, "its list of files is invalid"),
        ({"sizes": [True]}, "its list of files is invalid"),
        ({"sizes": "ab"}, "its list of files is invalid"),
        ({"sizes": None}, "its list of files is invalid"),
        ({"last": "1"}, "its list of files is invalid"),
        ({"last": -1}, "its list of files is invalid"),
        ({"last": 10**30}, "its list of files is invalid"),
        ({"last": 2**63 - 1}, "damaged or cut short"),
        ({"source": {}}, "its list of files is invalid"),
        ({"source": {"snapshot": None, "segments": []}}, "its list of files is invalid"),
        ({"sizes": [10**30]}, "its list of files is invalid"),
        ({"sizes": [0]}, "header is cut short"),
    ],
    ids=str,
)
def test_a_head_that_somebody_made_up(change: dict[str, object], reason: str) -> None:
    """An invented head with a valid checksum is refused with the reason, before memory of its sizes is allocated."""
    growing = Growing()
    growing.add(3)
    data = sent(growing.log.files(3))
    length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    facts = json.loads(data[HEAD : HEAD + length])
    text = json.dumps(facts | change).encode()
    made = MAGIC + pack("<II", len(text), crc32(text)) + text + data[HEAD + length :]
    with pytest.raises(LogCorruptError, match=reason):
        read(made)


def test_files_that_do_not_follow_each_other(growing: Growing) -> None:
    """Files out of order are refused, since records of one could be read as those of another."""
    growing.add(40)
    files = growing.log.files(40)
    first, second, third, *_ = files.manifest.segments
    assert third.first > second.first > first.first
    mixed = Manifest((first, third, second))
    with pytest.raises(LogCorruptError, match="do not follow each other"):
        read(sent(LogFiles(mixed, 40, [files.files[at] for at in (0, 2, 1)])))


def test_a_head_without_an_end() -> None:
    """A head that announces more bytes than any head has is refused at once."""
    with pytest.raises(LogCorruptError, match="cut short"):
        read(MAGIC + pack("<II", 2**32 - 1, 0) + b"{}" * 100)
    with pytest.raises(LogCorruptError, match="does not begin"):
        read(copied_log.MAGIC[:-1])


def test_a_file_that_cannot_be_opened(growing: Growing) -> None:
    """A file that cannot be opened is named in the error, and all files are closed."""
    growing.add(40)
    growing.disk.remove(HOME / growing.log.files(1).manifest.segments[0].name)
    with pytest.raises(MillstreamError, match=r"cannot open .*log-"):
        growing.log.files(40)
