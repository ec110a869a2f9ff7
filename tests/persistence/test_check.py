"""A check lists the contents of a data directory, its problems and the records at risk, and changes nothing."""

import json
import os
from pathlib import Path
from zlib import crc32

import pytest

from millstream.errors import DiskError, LogCorruptError
from millstream.persistence.check import check
from millstream.persistence.disk import RealDisk
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE
from millstream.persistence.log import Log
from millstream.persistence.rewrite import contents, make
from millstream.persistence.segment import TailState


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a log of ten records of 50 bytes, four in a file."""
    log, _ = Log.open(tmp_path / "data", segment_bytes=4 * (FRAME_SIZE + 50))
    for number in range(10):
        log.append(b"%d" % number * 50)
        log.write()
        log.sync()
    log.close()
    return tmp_path / "data"


def content(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.iterdir()}


def segments(home: Path) -> list[Path]:
    return sorted(home.glob("*.seg"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_whole_log_is_ok(home: Path) -> None:
    """A check of a whole log lists every file and no problem."""
    before = content(home)
    report = check(home)
    assert (report.ok, report.starts, report.records, report.lost_records, report.lost_bytes) == (True, True, 10, 0, 0)
    assert report.owner.pid == os.getpid()
    assert [file.name for file in report.files] == sorted(before)
    logs = [file.result for file in report.files if file.result]
    assert [(result.first, result.records, result.state) for result in logs] == [
        (1, 4, TailState.WHOLE),
        (5, 4, TailState.WHOLE),
        (9, 2, TailState.WHOLE),
    ]
    assert content(home) == before


def test_a_log_in_use_can_be_checked(home: Path) -> None:
    """A check works while a server uses the log, and takes no lock."""
    log, _ = Log.open(home)
    log.append(b"x")
    log.write()
    assert check(home).records == 11
    log.close()


@pytest.mark.parametrize(("rest", "text"), [(1, "the last 1 byte "), (10, "the last 10 bytes ")])
def test_a_torn_tail_is_a_problem_that_a_start_mends(home: Path, rest: int, text: str) -> None:
    """A check reports the place of a torn tail, and the next start repairs it as reported."""
    os.truncate(segments(home)[-1], HEADER_SIZE + FRAME_SIZE + 50 + rest)
    before = content(home)
    report = check(home)
    (problem,) = report.problems
    assert (report.ok, report.starts, problem.refuses) == (False, True, False)
    assert (report.records, report.lost_records, report.lost_bytes) == (9, 0, rest)
    assert problem.offset == HEADER_SIZE + FRAME_SIZE + 50
    assert text in problem.text
    assert content(home) == before
    log, recovery = Log.open(home)
    assert (recovery.report.records, recovery.report.torn_bytes) == (9, rest)
    assert text in recovery.report.sentence()
    log.close()
    report = check(home)
    assert report.ok
    assert any(file.name.startswith("torn-") for file in report.files)


def test_damage_in_the_middle_counts_what_would_be_lost(home: Path) -> None:
    """A check counts the records behind damage in the middle, in that file and in the later ones, as lost."""
    flip(segments(home)[1], HEADER_SIZE + FRAME_SIZE + 50 + FRAME_SIZE)
    report = check(home)
    (problem,) = report.problems
    assert (report.starts, problem.refuses, problem.path) == (False, True, str(segments(home)[1]))
    assert problem.offset == HEADER_SIZE + FRAME_SIZE + 50
    assert (report.records, report.lost_records) == (5, 4)
    tail = segments(home)[2].stat().st_size
    assert report.lost_bytes == segments(home)[1].stat().st_size - problem.offset + tail


def test_every_problem_is_listed(home: Path) -> None:
    """A check lists every problem, and not only the first, as a start does."""
    first, second, third = segments(home)
    flip(first, HEADER_SIZE + 30)
    second.unlink()
    flip(third, 3)
    report = check(home)
    assert [problem.path for problem in report.problems] == [str(first), str(second), str(third)]
    assert (report.records, report.lost_records) == (0, 3)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_without_a_manifest_the_log_files_are_still_read(home: Path, how: str) -> None:
    """A check of a directory without a manifest still reads the log files, which may be saved by hand."""
    if how == "missing":
        (home / "MANIFEST").unlink()
    else:
        flip(home / "MANIFEST", 20)
    report = check(home)
    assert not report.starts
    assert "MANIFEST" in report.problems[0].text or "no manifest" in report.problems[0].text
    assert (report.records, report.lost_records) == (0, 10)


def test_a_newer_format_is_a_problem(home: Path) -> None:
    """A check names a file of a newer format as a problem, and still checks the other files."""
    first = segments(home)[0]
    data = bytearray(first.read_bytes())
    data[8:10] = (2).to_bytes(2, "little")
    data[HEADER_SIZE - 4 : HEADER_SIZE] = crc32(data[: HEADER_SIZE - 4]).to_bytes(4, "little")
    first.write_bytes(data)
    report = check(home)
    assert "format version 2" in report.problems[0].text
    assert (report.starts, report.records, report.lost_records) == (False, 0, 6)


@pytest.mark.parametrize(
    ("of", "name", "value"),
    [
        ("segments", "identity", "no hex"),
        ("segments", "identity", 7),
        ("segments", "identity", "00"),
        ("snapshot", "identity", {}),
        ("obsolete", "identity", None),
        ("snapshot", "last", 0),
        ("segments", "first", 2),
        ("", "segments", ""),
        ("", "segments", []),
        ("", "snapshot", None),
    ],
)
def test_a_manifest_that_no_program_of_ours_wrote(home: Path, of: str, name: str, value: object) -> None:
    """A manifest with a valid checksum and impossible content is refused by a start and a check. Nothing changes."""
    log, _ = Log.open(home)
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    make(RealDisk(), home, rewrite, list(contents(RealDisk(), home, rewrite)))
    log.commit_rewrite(rewrite)
    log.close()
    facts = json.loads((home / "MANIFEST").read_text().splitlines()[0])
    place = facts[of] if of else facts
    (place[0] if isinstance(place, list) else place)[name] = value
    line = json.dumps(facts).encode()
    (home / "MANIFEST").write_bytes(line + b"\ncrc32 %08x\n" % crc32(line))
    before = content(home)
    with pytest.raises(LogCorruptError, match="MANIFEST names no files of a log"):
        Log.open(home)
    assert not check(home).starts
    assert {**content(home), "lock": b""} == {**before, "lock": b""}


def test_a_snapshot_whose_name_is_no_name_of_ours_is_not_read(home: Path) -> None:
    """A file with a malformed snapshot name is never read, though its name looks like that of a snapshot."""
    log, _ = Log.open(home)
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    make(RealDisk(), home, rewrite, list(contents(RealDisk(), home, rewrite)))
    log.commit_rewrite(rewrite)
    log.close()
    (home / rewrite.target.name).unlink()
    for name in ("snapshot-00000000000000000004-zz.snap", f"snapshot-{'²' * 20}-0123456789abcdef.snap"):
        (home / name).write_bytes(b"x")
    assert check(home).starts
    log, recovery = Log.open(home)
    assert len(list(recovery.payloads())) == 10
    log.close()


def test_a_file_that_no_manifest_names_is_a_problem_if_it_holds_records(home: Path) -> None:
    """A start refuses an unnamed file that holds records, so a check reports it.

    An empty one is left by a crash and is fine.
    """
    source = segments(home)[0].read_bytes()
    (home / "log-00000000000000000099.seg").write_bytes(source[:HEADER_SIZE])
    assert check(home).ok
    (home / "log-00000000000000000099.seg").write_bytes(source)
    report = check(home)
    assert not report.starts
    assert report.lost_bytes == len(source)


def test_a_fresh_or_half_made_directory_is_ok(tmp_path: Path) -> None:
    """A directory with neither manifest nor records is healthy: a start loses nothing."""
    assert check(tmp_path).ok
    (tmp_path / "log-00000000000000000001.seg").write_bytes(b"\x89MSL")
    assert check(tmp_path).starts
    log, recovery = Log.open(tmp_path)
    assert recovery.report.records == 0
    log.close()


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A check of a missing directory is an error, so that a wrong path does not look like an empty log."""
    with pytest.raises(DiskError, match="cannot check"):
        check(tmp_path / "wrong")


def test_a_snapshot_without_a_manifest_is_a_problem(tmp_path: Path) -> None:
    """A check reports a snapshot without a manifest as a problem. A start refuses it, since it may be the only copy."""
    log, _ = Log.open(tmp_path)
    log.append(b"one")
    log.write()
    work = log.begin_rewrite()
    assert work is not None
    make(RealDisk(), tmp_path, work, contents(RealDisk(), tmp_path, work))
    log.commit_rewrite(work)
    log.remove_obsolete()
    log.close()
    (tmp_path / "MANIFEST").unlink()
    for log_file in tmp_path.glob("log-*"):
        log_file.unlink()
    report = check(tmp_path)
    (problem,) = report.problems
    assert (Path(problem.path).name, problem.refuses) == (work.target.name, True)
    assert "no manifest" in problem.text
    assert report.lost_bytes == (tmp_path / work.target.name).stat().st_size
    with pytest.raises(LogCorruptError, match="there is no manifest"):
        Log.open(tmp_path)
