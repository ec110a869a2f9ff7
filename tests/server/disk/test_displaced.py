"""A server whose data directory is removed, moved or replaced reports it and acknowledges nothing more."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.errors import DiskError, LogLockedError
from millstream.persistence.log import Log
from support.servers import millstream_server
from support.wire import Wire


def removed(data: Path) -> None:
    shutil.rmtree(data)


def moved(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def unlocked(data: Path) -> None:
    (data / "lock").unlink()


def lock_replaced(data: Path) -> None:
    (data / "lock").unlink()
    (data / "lock").write_text("{}")


def file_removed(data: Path) -> None:
    max(data.glob("log-*")).unlink()


def file_moved(data: Path) -> None:
    """Rename a log file, as a network file system does if an open file is removed."""
    max(data.glob("log-*")).rename(data / "kept")


def file_linked_elsewhere(data: Path) -> None:
    (data.parent / "kept").hardlink_to(max(data.glob("log-*")))
    file_removed(data)


def file_replaced(data: Path) -> None:
    """Replace a log file by a copy, as a program does that renames the original."""
    path = max(data.glob("log-*"))
    file_moved(data)
    path.write_bytes((data / "kept").read_bytes())


def file_emptied(data: Path) -> None:
    """Empty a file, as a person or log rotation does to free space."""
    max(data.glob("log-*")).write_bytes(b"")


def looped(data: Path) -> None:
    """Replace the directory by a link to itself."""
    moved(data)
    data.symlink_to(data.name)


def exchanged(data: Path) -> None:
    """Replace the directory by a copy."""
    shutil.copytree(data, data.with_name("copy"))
    moved(data)
    data.with_name("copy").rename(data)


WAYS = [
    removed,
    moved,
    unlocked,
    lock_replaced,
    file_removed,
    file_moved,
    file_linked_elsewhere,
    file_replaced,
    file_emptied,
    looped,
    exchanged,
]


@pytest.mark.parametrize("what", WAYS)
def test_nothing_is_promised_that_a_start_would_not_find(tmp_path: Path, what: Callable[[Path], None]) -> None:
    """After the directory is displaced, the log promises no further record, old or new, and gives the reason."""
    home = tmp_path / "data"
    log, _ = Log.open(home)
    log.append(b"1")
    log.write()
    assert log.sync() == 1
    log.append(b"2")
    log.write()
    what(home)
    with pytest.raises(DiskError, match=f"{home}.* while this process used it: .* position 1 .*start again"):
        log.sync()
    assert log.durable == 1
    for call in (log.write, log.sync, log.remove_obsolete, log.begin_rewrite, lambda: log.append(b"3")):
        with pytest.raises(DiskError, match="while this process used it"):
            call()
    log.close()


@pytest.mark.parametrize("what", WAYS)
def test_a_write_into_a_displaced_directory_is_not_released(tmp_path: Path, what: Callable[[Path], None]) -> None:
    """The log checks its directory before it writes, so no policy releases a reply for a displaced directory."""
    log, _ = Log.open(tmp_path / "data")
    what(tmp_path / "data")
    log.append(b"1")
    with pytest.raises(DiskError, match="while this process used it"):
        log.write()
    assert log.written == 0
    log.close()


@pytest.mark.parametrize(("fsync", "what"), [("always", removed), ("no", moved)])
def test_no_write_is_acknowledged_that_a_start_would_not_find(
    tmp_path: Path, fsync: str, what: Callable[[Path], None]
) -> None:
    """A server with a displaced directory cuts connections and exits with 1 and advice. Put back, it has all data."""
    server, home = millstream_server(tmp_path, "--fsync", fsync), tmp_path / "data"
    with server, Wire(server.url) as wire:
        assert wire.ask("XADD", "s", "1-0", "f", "v") == b"1-0"
        what(home)
        wire.send("XADD", "s", "2-0", "f", "v")
        assert wire.is_closed()
        assert server.process is not None
        assert server.process.wait(30) == 1
        line = server.log.read_text().splitlines()[-1]
        assert str(home) in line
        assert "while this process used it" in line
        assert "start again" in line
    if what is moved:
        (tmp_path / "elsewhere").rename(home)
        log, recovery = Log.open(home)
        assert [b"xadd" in payload for payload in recovery.payloads()] == [True]
        log.close()


def test_a_rewriting_touches_no_other_servers_directory(tmp_path: Path) -> None:
    """Two servers, one of which had its directory moved and replaced by the other, each use their own files only."""
    first, second = millstream_server(tmp_path), millstream_server(tmp_path / "other")
    data = tmp_path / "data"
    second.command[second.command.index("--dir") + 1] = str(data)
    with first, Wire(first.url) as one:
        assert one.ask("XADD", "s", "1-0", "who", "first") == b"1-0"
        moved(data)
        with second, Wire(second.url) as two:
            assert two.ask("XADD", "s", "1-0", "who", "second") == b"1-0"
            before = {path.name: path.read_bytes() for path in data.iterdir()}
            one.send("BGREWRITEAOF")
            assert first.process is not None
            assert first.process.wait(30) == 1
            assert {path.name: path.read_bytes() for path in data.iterdir()} == before
            assert two.ask("XADD", "s", "2-0", "who", "second") == b"2-0"
    for home, expected in ((data, [b"second"] * 2), (tmp_path / "elsewhere", [b"first"])):
        log, recovery = Log.open(home)
        assert [payload.count(b"first") + payload.count(b"second") for payload in recovery.payloads()] == [1] * len(
            expected
        )
        log.close()


def test_the_lock_outlives_its_file(tmp_path: Path) -> None:
    """Removing the lock file lets no other process in, since the directory is locked too."""
    log, _ = Log.open(tmp_path / "data")
    (tmp_path / "data" / "lock").unlink()
    with pytest.raises(LogLockedError, match="is in use by another process"):
        Log.open(tmp_path / "data")
    with pytest.raises(DiskError, match="lock, which keeps other processes out, was removed"):
        log.close()
    Log.open(tmp_path / "data")[0].close()


def test_a_log_follows_its_directory_and_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative data directory is resolved at opening, so a program may change its working directory."""
    monkeypatch.chdir(tmp_path)
    log, _ = Log.open(Path("data"))
    monkeypatch.chdir("/")
    log.append(b"x")
    log.write()
    assert log.sync() == 1
    log.begin_rewrite()
    log.close()
    assert len(list((tmp_path / "data").glob("log-*"))) == 2
    assert os.listdir(tmp_path) == ["data"]  # noqa: PTH208 - names are wanted
