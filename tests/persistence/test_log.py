"""The log's interface, on the real disk."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.errors import DiskError, LogCorruptError, LogLockedError, StorageError, UsageError
from millstream.persistence.disk import RealDisk
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE, MAX_PAYLOAD, FormatError
from millstream.persistence.lockfile import Owner, read_owner
from millstream.persistence.log import Log


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "new" / "data"


@pytest.fixture
def log(home: Path) -> Iterator[Log]:
    log, _ = Log.open(home)
    yield log
    log.close()


def reopen(home: Path, **options: int) -> tuple[Log, list[bytes]]:
    log, recovery = Log.open(home, **options)
    return log, list(recovery.payloads())


def test_positions_count_from_one_and_go_on_after_a_restart(home: Path) -> None:
    """A position names one record over the life of the directory, also after a restart."""
    log, before = reopen(home)
    assert (before, log.appended, log.durable) == ([], 0, 0)
    assert [log.append(b"a"), log.append(b""), log.append(b"c")] == [1, 2, 3]
    log.close()
    log, payloads = reopen(home)
    assert payloads == [b"a", b"", b"c"]
    assert (log.appended, log.written, log.durable) == (3, 3, 3)
    assert log.append(b"d") == 4
    log.close()


def test_append_write_and_sync_move_their_own_positions(log: Log) -> None:
    """append(), write() and sync() each move their own position, so a reply may wait for exactly the step it needs."""
    log.append(b"a")
    log.append(b"b")
    assert (log.appended, log.written, log.durable) == (2, 0, 0)
    assert log.write() == 2
    log.append(b"c")
    assert (log.appended, log.written, log.durable) == (3, 2, 0)
    assert log.sync() == 2
    assert (log.appended, log.written, log.durable) == (3, 2, 2)
    assert (log.write(), log.sync()) == (3, 3)


def test_a_batch_is_one_write(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: many records take one system call to write and one to sync."""
    log, _ = reopen(home)
    calls: list[str] = []
    write, sync = os.write, os.fdatasync
    monkeypatch.setattr(os, "write", lambda *a: (calls.append("write"), write(*a))[1])
    monkeypatch.setattr(os, "fdatasync", lambda *a: (calls.append("sync"), sync(*a))[1])
    for number in range(100):
        log.append(b"%d" % number)
    log.write()
    log.sync()
    log.write()
    log.sync()
    assert calls == ["write", "sync"]
    log.close()


def test_close_keeps_what_was_appended_and_ends_the_log(home: Path) -> None:
    """close() writes all that was appended, in any mode, and a closed log refuses more records."""
    log, _ = reopen(home)
    log.append(b"only appended")
    log.close()
    log.close()
    for call in (lambda: log.append(b"x"), log.write, log.sync):
        with pytest.raises(DiskError, match="closed"):
            call()
    log, payloads = reopen(home)
    assert payloads == [b"only appended"]
    log.close()


def test_a_log_grows_over_many_files(home: Path) -> None:
    """A log that spans many files recovers all records in order. A file's name has its first record's position."""
    log, _ = reopen(home, segment_bytes=1000)
    payloads = [b"%d" % number * (number % 50) for number in range(300)]
    for payload in payloads:
        log.append(payload)
        log.write()
    log.close()
    names = sorted(path.name for path in home.glob("*.seg"))
    assert len(names) > 5
    assert [int(name[4:24]) for name in names] == sorted(int(name[4:24]) for name in names)
    log, recovery = Log.open(home)
    assert list(recovery.payloads()) == payloads
    report = recovery.report
    assert (report.records, report.first, report.last, report.segments) == (300, 1, 300, len(names))
    assert report.bytes == sum((home / name).stat().st_size for name in names)
    assert report.sentence().startswith("300 records in")
    log.close()


def test_payloads_can_be_read_while_the_log_goes_on(home: Path) -> None:
    """The recovered records are readable while the log continues, and exclude records appended after opening."""
    log, _ = reopen(home)
    log.append(b"old")
    log.close()
    log, recovery = Log.open(home)
    log.append(b"new")
    log.write()
    assert list(recovery.payloads()) == list(recovery.payloads()) == [b"old"]
    log.close()


def test_a_record_larger_than_the_reading_chunk_is_whole(home: Path) -> None:
    """A record larger than the reading chunk, such as a MULTI of many megabytes, is recovered whole."""
    log, _ = reopen(home)
    large = os.urandom(3 << 20)
    for payload in (b"a", large, b"b"):
        log.append(payload)
    log.close()
    log, payloads = reopen(home)
    assert payloads == [b"a", large, b"b"]
    log.close()


def test_too_large_a_record_is_refused_before_it_gets_a_position(log: Log) -> None:
    """A record that does not fit its length field is refused before it gets a position."""

    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_PAYLOAD + 1

    with pytest.raises(UsageError, match=str(MAX_PAYLOAD)):
        log.append(Huge())
    assert log.append(b"next") == 1


def test_progress_tells_both_passes_to_the_end(home: Path) -> None:
    """A start reports its progress through both passes to the end."""
    log, _ = reopen(home, segment_bytes=1 << 20)
    for _ in range(50):
        log.append(bytes(100_000))
        log.write()
    log.close()
    seen: list[tuple[str, int, int]] = []
    log, recovery = Log.open(home, on_progress=lambda *step: seen.append(step))
    for _ in recovery.payloads():
        pass
    log.close()
    for what in ("check", "load"):
        steps = [(done, total) for name, done, total in seen if name == what]
        assert len(steps) > 4
        assert steps == sorted(steps)
        assert steps[-1] == (recovery.report.bytes, recovery.report.bytes)


def test_second_opener_is_told_who_has_the_directory_and_where(log: Log, home: Path) -> None:
    """One process may open a directory. Another gets an error with the owner and the address to attach to."""
    with pytest.raises(LogLockedError, match=f"in use by process {os.getpid()}; wait") as caught:
        Log.open(home)
    assert (caught.value.pid, caught.value.address) == (os.getpid(), None)
    log.announce("unix:/run/mill.sock")
    with pytest.raises(LogLockedError, match=r"serves it at unix:/run/mill\.sock") as caught:
        Log.open(home)
    assert caught.value.address == "unix:/run/mill.sock"
    assert read_owner(RealDisk(), home) == Owner(os.getpid(), "unix:/run/mill.sock")


def test_an_unreadable_lock_file_still_locks(log: Log, home: Path) -> None:
    """A lock file with unreadable text still locks the directory."""
    (home / "lock").write_bytes(b"\xff{")
    with pytest.raises(LogLockedError, match="in use by another process"):
        Log.open(home)
    assert read_owner(RealDisk(), home.parent) is None


def test_a_failed_open_lets_the_directory_go(home: Path) -> None:
    """An open that fails releases the directory for other tools."""
    log, _ = reopen(home)
    log.append(b"a")
    log.close()
    (segment,) = home.glob("*.seg")
    segment.rename(home / "aside")
    with pytest.raises(LogCorruptError, match="is missing"):
        Log.open(home)
    (home / "aside").rename(segment)
    log, payloads = reopen(home)
    assert payloads == [b"a"]
    log.close()


def test_a_directory_that_cannot_be_made_is_a_disk_error(tmp_path: Path) -> None:
    """An error of the system on creating the directory is a disk error that names the path."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DiskError, match="cannot open the data directory"):
        Log.open(tmp_path / "file")


def test_a_file_that_cannot_be_opened_is_a_disk_error(tmp_path: Path) -> None:
    """An error of the system on opening a file that the manifest does not name is a disk error with its path."""
    name = f"pack-{1:020d}-{1:016x}.pack"
    (tmp_path / name).symlink_to(name)  # a loop
    with pytest.raises(DiskError, match=rf"cannot read .*{name}.*Too many levels"):
        Log.open(tmp_path)


def test_new_directories_are_synced_into_those_above_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a data directory, and of each new one above it, is durable before the first write in it."""
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), sync(fd))[1])
    RealDisk().make_directory(tmp_path / "a" / "b")
    assert synced == [tmp_path.stat().st_ino, (tmp_path / "a").stat().st_ino]


def test_directories_of_a_process_that_died_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start syncs the name of a directory that an earlier process may have created and not synced before it died."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), sync(fd))[1])
    log, _ = Log.open(tmp_path / "a" / "b")
    log.append(b"first")
    log.write()
    log.sync()
    assert {tmp_path.stat().st_ino, (tmp_path / "a").stat().st_ino} <= set(synced)
    log.close()
    synced.clear()
    Log.open(tmp_path / "a" / "b")[0].close()
    assert tmp_path.stat().st_ino not in synced  # a directory that has a log was settled once


def test_free_space_is_told(log: Log) -> None:
    """The log reports the free space, so that a server refuses writes before the disk is full."""
    assert 0 < log.free() < 1 << 62
    assert log.directory.is_dir()


def test_newer_formats_are_refused_by_name(home: Path) -> None:
    """A directory of a newer format is refused, with its version, and left unchanged."""
    from zlib import crc32

    log, _ = reopen(home)
    log.append(b"a")
    log.close()
    (segment,) = home.glob("*.seg")
    whole = segment.read_bytes()
    header = bytearray(whole[: HEADER_SIZE - 4])
    header[8:10] = (2).to_bytes(2, "little")
    segment.write_bytes(header + crc32(header).to_bytes(4, "little") + whole[HEADER_SIZE:])
    with pytest.raises(FormatError, match="format version 2; this program reads version 1"):
        Log.open(home)
    segment.write_bytes(whole)
    manifest = home / "MANIFEST"
    facts = json.loads(manifest.read_bytes().splitlines()[0])
    for change in ({"format": 4}, {"snapshot": {"name": "snap"}}):
        line = json.dumps(facts | change).encode()
        manifest.write_bytes(line + b"\ncrc32 %08x\n" % crc32(line))
        with pytest.raises(StorageError, match="this program reads format 1"):
            Log.open(home)


def test_loop_and_worker_threads_share_a_log(home: Path) -> None:
    """append() in one thread, with write() and sync() in another, stores all records, in order and once."""
    log, _ = reopen(home, segment_bytes=20_000)
    done = threading.Event()
    seen: list[tuple[int, int, int]] = []

    def commit() -> None:
        while True:
            last = done.is_set()
            log.write()
            log.sync()
            seen.append((log.durable, log.written, log.appended))
            if last:
                return

    worker = threading.Thread(target=commit)
    worker.start()
    payloads = [b"%d" % number for number in range(20_000)]
    positions = [log.append(payload) for payload in payloads]
    done.set()
    worker.join()
    assert positions == list(range(1, 20_001))
    assert log.durable == 20_000
    assert seen == sorted(seen)
    assert all(durable <= written <= appended for durable, written, appended in seen)
    log.close()
    log, recovered = reopen(home)
    assert recovered == payloads
    log.close()


def test_a_file_costs_what_the_format_says(home: Path) -> None:
    """A log file has the documented size: 32 bytes of header, 24 a record, 24 for the seal of a clean stop."""
    log, _ = reopen(home)
    log.append(b"x" * 100)
    log.close()
    (segment,) = home.glob("*.seg")
    assert segment.stat().st_size == HEADER_SIZE + FRAME_SIZE + 100 + FRAME_SIZE == 32 + 24 + 100 + 24


def test_restarts_without_records_do_not_grow_the_log(home: Path) -> None:
    """Restarts without new records do not grow the log: a sealed file is not sealed again."""
    log, _ = reopen(home)
    log.append(b"x")
    log.close()
    (segment,) = home.glob("*.seg")
    size = segment.stat().st_size
    for _ in range(3):
        reopen(home)[0].close()
    assert segment.stat().st_size == size


def test_what_changes_under_a_recovery_is_seen(home: Path) -> None:
    """Records are checked again when they are loaded, so a change during recovery is detected."""
    log, _ = reopen(home)
    log.append(b"x" * 100)
    log.close()
    log, recovery = Log.open(home)
    (segment,) = home.glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[HEADER_SIZE + FRAME_SIZE + 5] ^= 1
    segment.write_bytes(data)
    with pytest.raises(LogCorruptError, match="a moment ago"):
        list(recovery.payloads())
    log.close()
