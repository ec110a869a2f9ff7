"""Files of commands: redis-cli loads them as intended, and ambiguous files are refused."""

import gzip
import os
import subprocess
from pathlib import Path
from stat import S_ISREG
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate.history import portrait, raw
from migrate.test_moving import at, states
from millstream.client.connect import sync_client
from millstream.migrate import command_file, run
from millstream.migrate.capabilities import VERSIONS
from millstream.migrate.connection import Link, pack
from millstream.migrate.errors import MigrationError
from support.needs import program
from support.servers import ServerProcess


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_text_is_read_as_it_was_written(words: list[bytes]) -> None:
    """Any bytes survive in a text file of commands."""
    line = command_file.as_text(words)
    assert line.count(b"\n") == 1
    assert command_file.split(line) == words


@pytest.mark.parametrize("line", [b'XADD "a', b"XADD 'a'", b'XADD "a"b', b'XADD a"b"'])
def test_text_of_other_forms_is_refused(line: bytes) -> None:
    """A line that Millstream would parse in another way than redis-cli is refused."""
    assert command_file.split(line) is None


@pytest.mark.realserver
@pytest.mark.parametrize("form", ["resp", "text"])
def test_redis_cli_loads_the_file(real_redis: ServerProcess, tmp_path: Path, form: command_file.Form) -> None:
    """redis-cli loads an exported file into Redis with the same result as a direct transfer."""
    path = tmp_path / "streams"
    key = b'odd "key\\ \xff\r\n'
    with sync_client("memory://cli") as mine, Link("memory://cli") as link:
        for at in range(1, 300):
            raw(mine, "XADD", key, f"{at}-1", "", b"\x00\xff\r\n\"'\\", "a b", "", "n", at)
        mine.xgroup_create(key, b"g\n", "0")
        mine.xreadgroup(b"g\n", b"", {key: ">"}, count=250)
        mine.xdel(key, "3-1", "70-1")
        mine.xtrim(key, maxlen=200, approximate=False)
        mine.xgroup_create("empty", "g", mkstream=True)
        mine.pexpireat(key, 5_000_000_000_000)
        report = run.to_file(link, path, form, VERSIONS["7.0"], run.MigrationOptions(), lambda *_: None)
        assert report.ok
        words = [program("redis-cli"), "-p", str(real_redis.port), *(["--pipe"] if form == "resp" else [])]
        with path.open("rb") as file:
            said = subprocess.run(words, stdin=file, capture_output=True, check=True, timeout=60).stdout
        assert b"ERR" not in said
        with real_redis.client() as theirs:
            for name in (key, b"empty"):
                shown = portrait(mine, name, all_times=False, memory=False)
                assert portrait(theirs, name, all_times=False, memory=False) == shown


@pytest.mark.parametrize("form", ["resp", "text"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_file_cut_off_is_refused(tmp_path: Path, form: str, is_packed: bool) -> None:
    """A file that ends within a command is refused, also after a complete export."""
    commands = [[b"PING", b"millstream:export:end:0"], [b"XADD", b"a", b"1-1", b"f\n", b"v"]]
    before, last = (pack(words) if form == "resp" else command_file.as_text(words) for words in commands)
    whole = before + last
    path = tmp_path / "file"
    with Link("memory://cut") as link:
        for cut in (part[:end] for part in (last, whole) for end in range(1, len(part)) if part[:end] != before):
            path.write_bytes(gzip.compress(cut) if is_packed else cut)
            with pytest.raises(MigrationError):
                command_file.load(path, link)
        path.write_bytes(gzip.compress(whole)[:-3])
        with pytest.raises(MigrationError, match="cannot be read"):
            command_file.load(path, link)
        assert link.call("DBSIZE") == 0


def exported(path: Path, form: command_file.Form, keys: list[bytes]) -> bytes:
    """Export a few streams of two entries each and return the file's content."""
    with sync_client("memory://sealed") as mine, Link("memory://sealed") as link:
        mine.flushall()
        for key in keys:
            mine.xadd(key, {"f": "1"}, id="1-1")
            mine.xadd(key, {"f": "2"}, id="2-1")
        report = run.to_file(link, path, form, VERSIONS["8.8"], run.MigrationOptions(), lambda *_: None)
        assert report.ok
    return path.read_bytes()


@pytest.mark.parametrize("form", ["resp", "text"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_file_that_lost_commands_is_refused(tmp_path: Path, form: command_file.Form, is_packed: bool) -> None:
    """A file cut at any byte, or without a command in its middle, is refused and nothing is copied.

    Packed files, which contain the same, are cut at each seventh byte.
    """
    path = tmp_path / "file"
    whole = exported(path, form, [b"a", b"b"])
    begin = b"*" if form == "resp" else b"X"
    middle = whole.index(begin, len(whole) // 2)
    without = whole[:middle] + whole[whole.index(begin, middle + 1) :]
    for cut in [*(whole[:end] for end in range(0, len(whole), 7 if is_packed else 1)), without]:
        path.write_bytes(gzip.compress(cut) if is_packed else cut)
        with Link("memory://") as link, pytest.raises(MigrationError):
            command_file.load(path, link)
    path.write_bytes(gzip.compress(whole) if is_packed else whole)
    with Link("memory://") as link:
        command_file.load(path, link)
        assert link.ask([("XLEN", b"a"), ("XLEN", b"b")]) == [2, 2]


def test_exports_behind_each_other_are_one_file(tmp_path: Path) -> None:
    """Concatenated exports are one valid file, and each must be complete."""
    path = tmp_path / "file"
    one, other = exported(path, "text", [b"a"]), exported(path, "text", [b"b"])
    path.write_bytes(one + other)
    with Link("memory://") as link:
        command_file.load(path, link)
        assert link.ask([("XLEN", b"a"), ("XLEN", b"b")]) == [2, 2]
    path.write_bytes(one + other[: other.index(b"PING")])
    with Link("memory://") as link, pytest.raises(MigrationError, match="cut off; export it again"):
        command_file.load(path, link)


@pytest.mark.parametrize(
    "text", [b"FLUSHALL\n", b"*1\r\n$8\r\nFLUSHALL\r\n", b"+OK\r\n", b"*1\r\n:1\r\n", b"*x\r\n", b'"\n']
)
def test_other_files_are_refused(tmp_path: Path, text: bytes) -> None:
    """A file with other commands than an export's is refused."""
    path = tmp_path / "file"
    path.write_bytes(text)
    with Link("memory://") as link, pytest.raises(MigrationError):
        command_file.load(path, link)


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    """A failed command of a file is named by its number."""
    path = tmp_path / "file"
    path.write_bytes(b"XADD a 2-1 f v\nXADD a 1-1 f v\nPING millstream:export:end:2\n")
    with Link("memory://") as link, pytest.raises(MigrationError, match=r"command 2 \(XADD\)"):
        command_file.load(path, link)


def test_no_file_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    """If a file cannot be written completely, the old file stays and no new one is left."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), command_file.writing(path):
        raise RuntimeError
    assert path.read_bytes() == b"old"
    with pytest.raises(MigrationError, match="cannot be written"), command_file.writing(tmp_path / "no" / "file"):
        pass
    with pytest.raises(MigrationError, match="is a directory"), command_file.writing(tmp_path):
        pytest.fail("it is said before anything is written")
    assert list(tmp_path.parent.glob(f"{tmp_path.name}.part")) == []
    with command_file.writing(path) as (file, part):
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert not part.exists()


@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_a_file_is_on_the_medium_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An exported file is synced before its rename, and its directory after it."""
    path, synced, real = tmp_path / name, [], os.fsync

    def watched(descriptor: int) -> None:
        about = os.fstat(descriptor)
        synced.append((about.st_ino, about.st_size if S_ISREG(about.st_mode) else None, path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with command_file.writing(path) as (file, _):
        file.write(b"new")
    about = path.stat()
    assert synced == [(about.st_ino, about.st_size, False), (tmp_path.stat().st_ino, None, True)]


def test_a_wrong_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A written file that differs from its source is reported and does not get the final name.

    The old file stays.
    """
    path = tmp_path / "out"
    path.write_bytes(b"before")
    true = command_file.build.adding
    spoils: list[Any] = [lambda page: page[1:], lambda page: [(page[0][0], [b"n", b"?"]), *page[1:]]]
    with sync_client("memory://spoiled") as mine, Link("memory://spoiled") as link:
        mine.flushall()
        for number in range(1, 11):
            raw(mine, "XADD", "a", f"{number}-1", "n", number)
        for spoil in spoils:
            with monkeypatch.context() as patch:
                patch.setattr(command_file.build, "adding", lambda key, page, spoil=spoil: true(key, spoil(page)))
                report = run.to_file(link, path, "resp", VERSIONS["8.8"], run.MigrationOptions(), lambda *_: None)
            assert states(report) == {b"a": "failed"}
            assert report.different == tmp_path / "out.differs"
            assert report.different.exists()
            assert path.read_bytes() == b"before"
            assert any("'1-1'" in text for text in report.streams[0].differences)


def test_a_source_that_changes_while_the_file_is_compared(tmp_path: Path) -> None:
    """If the source changes during the final comparison, the file does not get the final name."""
    with sync_client("memory://late") as mine, Link("memory://late") as link:
        mine.flushall()
        for number in range(1, 3001):
            raw(mine, "XADD", "a", f"{number}-1", "n", number)
        change = at(1, "compared", lambda: mine.xdel("a", "2900-1"))
        report = run.to_file(link, tmp_path / "out", "resp", VERSIONS["8.8"], run.MigrationOptions(), change)
    assert states(report) == {b"a": "failed"}
    assert [path.name for path in tmp_path.iterdir()] == ["out.differs"]


def test_a_change_makes_the_export_start_again(tmp_path: Path) -> None:
    """If a stream changes during its export to a file, the export starts again and equals the final source."""
    with sync_client("memory://moved") as mine, Link("memory://moved") as link:
        mine.flushall()
        for number in range(1, 3001):
            raw(mine, "XADD", "a", f"{number}-1", "n", number)
        change = at(2, "copied", lambda: mine.xdel("a", "5-1", "2900-1"))
        path = tmp_path / "out"
        report = run.to_file(link, path, "resp", VERSIONS["8.8"], run.MigrationOptions(), change)
        assert states(report) == {b"a": "copied"}
        with sync_client("memory://again") as made, Link("memory://again") as other:
            made.flushall()
            command_file.load(path, other)
            shown = portrait(mine, b"a", all_times=False, memory=False)
            assert portrait(made, b"a", all_times=False, memory=False) == shown
            assert made.xlen("a") == 2998
