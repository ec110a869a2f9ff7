"""Every kind of damage is reported with its place, its loss and the next step, and the check changes nothing."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import msgpack
import pytest

import millstream
from maintenance.conftest import START, STEP, content, flip, rewritten, segments, write_log, xadd
from millstream.errors import DiskError, StorageError
from millstream.maintenance.backup.backup import back_up
from millstream.maintenance.backup.restore import restore
from millstream.maintenance.health.directory import diagnose_directory
from millstream.maintenance.log.cut import cut
from millstream.maintenance.log.dump import Choice, dump
from millstream.maintenance.log.examine import advice, examine_directory, kind_of
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE
from millstream.persistence.log import Log
from persistence.reference import HOME, disk_with
from support.clock import own_clock
from support.simdisk import Fault
from support.waiting import eventually


def test_a_whole_log(home: Path) -> None:
    """The check of an intact log reports its content with the first and last time."""
    before = content(home)
    found = examine_directory(home)
    assert (found.report.ok, found.report.records, found.begin, found.last) == (True, 20, 1, 20)
    assert (found.first_ms, found.last_ms) == (START, START + 19 * STEP)
    assert found.log_bytes == sum(path.stat().st_size for path in segments(home))
    assert (found.losses, found.cut_at, found.running, advice(found)) == (None, None, False, [])
    assert content(home) == before


def test_a_disk_that_fails_once_is_named_or_read_again(home: Path) -> None:
    """An error of a read is met by another one, since only a sector may be bad; others name the directory."""
    damage_middle(home)
    files, said, read_again = content(home), set(), 0
    for failing in itertools.count(1):
        disk = disk_with(files)
        disk.faults = {failing: Fault.EIO}
        try:
            found = examine_directory(HOME, disk)
        except DiskError as error:
            said.add(str(error))
            continue
        assert found.losses is not None
        if disk.operations < failing:
            break
        read_again += 1
    assert failing > 30
    assert read_again > 10
    assert said == {f"cannot check {HOME}: Input/output error"}


def damage_middle(home: Path) -> tuple[str, int]:
    """Flip a bit in the payload of the second record of the second file."""
    path = segments(home)[1]
    first = HEADER_SIZE + FRAME_SIZE + len(xadd(5))
    flip(path, first + FRAME_SIZE + 3)
    return path.name, first


def damage_header(home: Path) -> tuple[str, int]:
    path = segments(home)[1]
    flip(path, 13)
    return path.name, 0


def lose_file(home: Path) -> tuple[str, int]:
    path = segments(home)[1]
    path.unlink()
    return path.name, 0


def replace_file(home: Path) -> tuple[str, int]:
    """Replace a file by one of the same name from another log."""
    write_log(home.parent / "other", [xadd(number) for number in range(1, 21)])
    path = segments(home)[1]
    path.write_bytes(segments(home.parent / "other")[1].read_bytes())
    return path.name, 0


def shorten_middle(home: Path) -> tuple[str, int]:
    """Cut a file that others follow."""
    path = segments(home)[1]
    first = HEADER_SIZE + FRAME_SIZE + len(xadd(5))
    os.truncate(path, first)
    return path.name, first


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (damage_middle, "damaged"),
        (damage_header, "damaged"),
        (lose_file, "missing"),
        (replace_file, "foreign"),
        (shorten_middle, "damaged"),
    ],
    ids=["bit", "header", "missing", "replaced", "shortened"],
)
def test_damage_in_the_middle(home: Path, damage: Callable[[Path], tuple[str, int]], kind: str) -> None:
    """For damage in the middle, the check reports place, kind, lost records and keys, and a position for a cut."""
    count = {path.name: number for number, path in enumerate(segments(home))}
    place = damage(home)
    before = content(home)
    found = examine_directory(home)
    assert not found.report.starts
    problem = found.report.problems[0]
    assert (Path(problem.path).name, problem.offset, kind_of(problem)) == (*place, kind)
    assert found.cut_at == place
    assert count[place[0]] == 1
    losses = found.losses
    assert losses is not None
    last = 20
    assert (losses.last, losses.last_ms) == (last, START + (last - 1) * STEP)
    assert losses.first is not None
    assert losses.records == last - losses.first + 1
    (key,) = losses.by_weight()
    assert (key.db, key.key, key.entries) == (0, b"orders", losses.records)
    assert key.last_id == f"{START + (last - 1) * STEP}-0"
    assert any("log cut" in step and f"{place[0]}:{place[1]}" in step for step in advice(found))
    assert content(home) == before


def test_the_loss_of_a_damaged_record_and_those_before_it_is_told_apart(home: Path) -> None:
    """The check counts the records before the damage as kept, and lists those after it, without the damaged one."""
    damage_middle(home)
    found = examine_directory(home)
    assert found.losses is not None
    assert found.report.records == found.losses.first - 2


def test_a_header_that_cannot_be_read_hides_no_record(home: Path) -> None:
    """Records after a damaged file header are listed, since the manifest has the header's values."""
    damage_header(home)
    found = examine_directory(home)
    assert found.losses is not None
    assert found.losses.records == 20 - found.report.records


def test_a_torn_tail(home: Path) -> None:
    """A torn end loses nothing that was acknowledged, and a start mends it."""
    path = segments(home)[-1]
    os.truncate(path, path.stat().st_size - FRAME_SIZE - 5)  # the seal, and a part of the last record
    found = examine_directory(home)
    (problem,) = found.report.problems
    assert (kind_of(problem), problem.refuses, found.report.starts, found.report.records) == ("torn", False, True, 19)
    assert (found.under_way, found.cut_at) == (0, None)
    assert advice(found)[0].startswith("Start the server")


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_the_manifest(home: Path, how: str) -> None:
    """Without a valid manifest, a cut cannot help, but the check counts the records."""
    if how == "damaged":
        flip(home / "MANIFEST", 20)
    else:
        (home / "MANIFEST").unlink()
    found = examine_directory(home)
    assert kind_of(found.report.problems[0]) == "manifest"
    assert (found.report.starts, found.report.lost_records, found.cut_at) == (False, 20, None)
    assert any("restore" in step for step in advice(found))
    assert any("--past-damage" in step for step in advice(found)), "the way to the records for who has no backup"
    if how == "missing":
        with pytest.raises(StorageError, match=r"cannot be cut\. Copy .* restore .*--past-damage"):
            cut(home, segments(home)[0].name, 0)


def test_a_foreign_file(home: Path) -> None:
    """A log file that the manifest does not name is reported."""
    (home / "log-00000000000000000099.seg").write_bytes(segments(home)[0].read_bytes())
    found = examine_directory(home)
    assert [kind_of(problem) for problem in found.report.problems] == ["foreign"]
    assert found.cut_at is None
    assert any("does not belong" in step for step in advice(found))


def test_records_that_no_program_of_ours_wrote(tmp_path: Path) -> None:
    """Records with a right checksum that cannot be decoded are counted."""
    write_log(tmp_path / "data", [b"\xc1 not ours", b"", xadd(3)], segment_bytes=HEADER_SIZE + 1)
    segments(tmp_path / "data")[0].unlink()
    found = examine_directory(tmp_path / "data")
    assert found.losses is not None
    assert (found.losses.records, found.losses.unreadable) == (2, 1)


ILLEGIBLE = {
    "bytes of another program": (b"\xc1 not ours", "illegible"),
    "a number": (msgpack.packb(7), "illegible"),
    "no transitions": (msgpack.packb([1, START, 7]), "illegible"),
    "not transitions": (msgpack.packb([1, START, [7]]), "illegible"),
    "arguments left out": (msgpack.packb([1, START, [["xadd", 0]]]), "illegible"),
    "a newer version": (msgpack.packb([2, START, []]), "newer"),
    "a newer op": (msgpack.packb([1, START, [["later", 0, b"orders"]]]), "newer"),
}


@pytest.mark.parametrize("what", ILLEGIBLE)
def test_a_record_that_a_start_could_not_apply(tmp_path: Path, what: str) -> None:
    """A record with a right checksum that a start cannot apply is reported with its place, and the advice works."""
    payload, kind = ILLEGIBLE[what]
    home = tmp_path / "data"
    write_log(home, [*map(xadd, range(1, 11)), payload, *map(xadd, range(12, 15))])
    before = content(home)
    with pytest.raises(StorageError):
        millstream.connect(f"file://{home}")
    found = examine_directory(home)
    (problem,) = found.report.problems
    assert (kind_of(problem), problem.refuses, problem.newer) == (kind, True, kind == "newer")
    assert (found.report.records, found.report.lost_records) == (10, 4)
    assert "record 11 is as it was written" in problem.text
    assert content(home) == before
    if kind == "newer":
        assert (found.losses, found.cut_at) == (None, None)
        return
    assert positions(home) == [*range(1, 11), *range(12, 15)] or what == "arguments left out"
    assert found.losses is not None
    assert found.losses.records == 4
    assert found.cut_at is not None
    cut(home, *found.cut_at)
    assert examine_directory(home).report.ok
    with millstream.connect(f"file://{home}") as client:
        assert client.xlen("orders") == 10


def positions(home: Path) -> list[int]:
    """Return the positions of the readable records."""
    return [record.position for record in dump(home, Choice(past_damage=True))]


def test_a_snapshot_that_a_start_could_not_apply(tmp_path: Path) -> None:
    """A snapshot record that a start cannot apply is reported.

    No cut is offered, since all later records would be lost.
    """
    home = tmp_path / "data"
    rewritten(home, [xadd(1), b"\xc1 not ours"])
    found = examine_directory(home)
    (problem,) = found.report.problems
    assert kind_of(problem) == "illegible"
    assert Path(problem.path).name.startswith("snapshot-")
    assert problem.offset == HEADER_SIZE + FRAME_SIZE + len(xadd(1))
    assert (found.report.records, found.report.lost_records, found.cut_at) == (0, 10, None)


def test_the_loss_behind_a_snapshot_is_that_of_the_log(tmp_path: Path) -> None:
    """The loss after a record that a start cannot apply excludes the snapshot."""
    home = tmp_path / "data"
    rewritten(home, more=b"\xc1 not ours")
    (found, file) = examine_directory(home), segments(home)[-1]
    (problem,) = found.report.problems
    assert (problem.path, found.report.lost_records) == (str(file), 1)
    assert found.report.lost_bytes == file.stat().st_size - problem.offset


def test_the_records_are_read_with_progress(home: Path) -> None:
    """The check reports its progress, first of checksums, then of records."""
    told: list[tuple[str, int, int]] = []
    examine_directory(home, tell=lambda *words: told.append(words))
    size = sum(path.stat().st_size for path in segments(home))
    assert told == [("check", size, size), ("read", size, size)]


def test_the_owner_is_seen_without_touching_its_lock(home: Path) -> None:
    """The check detects a running owner without touching the lock."""
    log, _ = Log.open(home)
    try:
        found = examine_directory(home)
        assert (found.running, found.report.owner.pid) == (True, os.getpid())
    finally:
        log.close()
    assert not examine_directory(home).running


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """The check of a missing directory is an error."""
    with pytest.raises(DiskError, match="cannot check"):
        examine_directory(tmp_path / "wrong")


@pytest.mark.parametrize("files", [(), ("notes.txt", "appendonly.aof")])
def test_a_directory_of_something_else(tmp_path: Path, files: tuple[str, ...]) -> None:
    """An empty directory, or one of another program, is an error for the check and the dump."""
    for name in files:
        (tmp_path / name).write_text("x")
    with pytest.raises(StorageError, match="has no log"):
        examine_directory(tmp_path)
    with pytest.raises(StorageError, match="has no log"):
        list(dump(tmp_path, Choice()))
    assert [(found.level, found.what) for found in diagnose_directory(tmp_path) if found.check == "log"] == [
        ("warning", f"{tmp_path} has no log")
    ]


HALF_WRITER = """
import sys
from pathlib import Path
path, rest = Path(sys.argv[1]), bytes.fromhex(sys.argv[2])
with path.open("ab", buffering=0) as file:
    file.write(rest[:20])
    print("half", flush=True)
    sys.stdin.readline()
    file.write(rest[20:])
"""


def test_a_record_that_is_being_written_is_no_tear(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that another process is writing during the check is not reported as torn."""
    whole = content(home)
    log, _ = Log.open(home)
    log.append(xadd(21))
    log.write()
    log.sync()
    path = segments(home)[-1]
    rest = path.read_bytes()[len(whole[path.name]) :]
    os.truncate(path, len(whole[path.name]))
    with subprocess.Popen(
        [sys.executable, "-c", HALF_WRITER, str(path), rest.hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == b"half\n"
        torn = examine_directory(home)
        assert [kind_of(problem) for problem in torn.report.problems] == ["torn"]  # it stays half: a tear, to us

        def go_on(_: float) -> None:
            if not writer.stdin.closed:  # a correct check sleeps once; in later sleeps the writer has ended
                writer.stdin.write(b"\n")
                writer.stdin.close()
            eventually(lambda: path.stat().st_size == len(whole[path.name]) + len(rest), what="the write ends")

        own_clock(monkeypatch, "millstream.maintenance.log.examine", sleep=go_on)
        found = examine_directory(home)
    assert (found.report.problems, found.under_way, found.report.records) == ([], 20, 20)
    log.close()


def make_newer(path: Path) -> None:
    """Change a log file or snapshot to the format of the next version."""
    data = bytearray(path.read_bytes())
    data[8:10] = (2).to_bytes(2, "little")
    data[HEADER_SIZE - 4 : HEADER_SIZE] = crc32(data[: HEADER_SIZE - 4]).to_bytes(4, "little")
    path.write_bytes(data)


def newer_manifest(home: Path) -> None:
    line = json.dumps({"format": 4, "snapshot": None, "segments": []}).encode()
    (home / "MANIFEST").write_bytes(line + b"\ncrc32 %08x\n" % crc32(line))


def newer_file(home: Path) -> None:
    make_newer(segments(home)[1])


@pytest.mark.parametrize("make", [newer_manifest, newer_file])
def test_what_a_newer_millstream_wrote_is_no_damage(home: Path, make: Callable[[Path], None]) -> None:
    """Files of a newer version are not reported as damage. Every command names the way out, and none cuts them."""
    make(home)
    before = content(home)
    found = examine_directory(home)
    assert {kind_of(problem) for problem in found.report.problems} == {"newer"}
    assert (found.report.starts, found.losses, found.cut_at) == (False, None, None)
    (step,) = advice(found)
    assert "newest Millstream that ever ran on" in step
    for use in (
        lambda: cut(home, segments(home)[1].name, 0),
        lambda: Log.open(home),
        lambda: back_up(home, home.parent / "backup"),
        lambda: restore(home, home.parent / "new"),
    ):
        with pytest.raises(StorageError, match="a newer Millstream wrote it") as told:
            use()
        assert str(home) in str(told.value)
        assert "partial" not in str(told.value)
    assert {name: data for name, data in content(home).items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }


def test_a_snapshot_alone_is_a_lost_manifest(home: Path) -> None:
    """A snapshot alone is reported as a log without its manifest."""
    for path in segments(home):
        path.unlink()
    (home / "MANIFEST").unlink()
    (home / "snapshot-00000000000000000020-0123456789abcdef.snap").write_bytes(b"x" * 100)
    found = examine_directory(home)
    assert [kind_of(problem) for problem in found.report.problems] == ["manifest"]
    assert not found.report.starts
