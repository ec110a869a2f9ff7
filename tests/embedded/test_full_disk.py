"""``file://`` on a full disk: writes fail with a typed error, reads work, and held writes are completed later."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import millstream
from millstream.embedded.place import parse_place
from millstream.embedded.store import Store
from millstream.embedded.stores import Lease
from millstream.node.durability.disk_guard import DiskGuard
from millstream.persistence.disk import Data, RealDisk, RealFile
from support.waiting import eventually

FSYNC = pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
REFUSED = "MISCONF Errors writing to the AOF file: "


class SmallFile:
    """A file that takes no bytes while its disk is full."""

    def __init__(self, disk: "SmallDisk", file: RealFile) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def append(self, data: Data) -> int:
        if self._disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.append(data)


class SmallDisk(RealDisk):
    """A disk that may be full.

    Attributes:
        full: True to take nothing.
        space: Reported free bytes, None for the real ones.
    """

    __slots__ = ("full", "space")

    def __init__(self) -> None:
        self.full = False
        self.space: int | None = None

    def open_append(self, path: Path) -> Any:
        return SmallFile(self, super().open_append(path))

    def free(self, directory: Path) -> int:
        return super().free(directory) if self.space is None else self.space


class Held:
    """A store on such a disk, for every client of this process."""

    def __init__(self, url: str) -> None:
        self.disk = SmallDisk()
        self.url = url.partition("?")[0]
        self.lease = Lease(parse_place(url), disk=self.disk)
        self.store: Store = self.lease.store()


@pytest.fixture
def held(tmp_path: Path, fsync: str) -> Iterator[Held]:
    found = Held(f"{(tmp_path / 'data').as_uri()}?fsync={fsync}")
    yield found
    found.disk.full, found.disk.space = False, None
    found.lease.give_up()


@FSYNC
def test_full_disk_holds_refuses_and_goes_on(held: Held) -> None:
    """On a full disk the failed write waits for space, other writes are refused, and reads of other data work."""
    answers: list[Any] = []
    with millstream.connect(held.url) as client:
        client.set("calm", "x")
        client.set("word", "x")
        held.disk.full = True
        writer = threading.Thread(target=lambda: answers.append(client.append("word", "y")))
        writer.start()
        eventually(lambda: held.store.node.journal.is_holding)
        with pytest.raises(redis.ResponseError, match=f"{REFUSED}No space left on device. Writes are refused"):
            client.xadd("s", {"a": "b"})
        with pytest.raises(redis.ResponseError, match="with changes that wait for space"):
            client.get("word")
        assert client.get("calm") == b"x"
        info = client.info("persistence")
        assert (info["aof_last_write_status"], info["millstream_disk_state"]) == ("err", "full")
        assert answers == []
        held.disk.full = False
        writer.join()
        assert answers == [2]
        eventually(lambda: held.store.node.journal.outage is None)
        assert client.get("word") == b"xy"
        assert client.xadd("s", {"a": "b"})
        assert client.info("persistence")["aof_last_write_status"] == "ok"
    held.lease.give_up()
    with millstream.connect(held.url) as again:
        assert again.get("word") == b"xy"
        assert again.xlen("s") == 1


@pytest.mark.parametrize("fsync", ["everysec", "no"])
def test_waitaof_says_that_the_disk_is_full(held: Held) -> None:
    """On a full disk, WAITAOF replies with the same error as SAVE."""
    with millstream.connect(held.url) as client:
        client.set("word", "x")
        held.disk.full = True
        writer = threading.Thread(target=lambda: client.append("word", "y"))
        writer.start()
        eventually(lambda: held.store.node.journal.is_holding)
        for command in (["SAVE"], ["WAITAOF", 1, 0, 0]):
            with pytest.raises(redis.ResponseError, match=f"{REFUSED}.*No space left on device"):
                client.execute_command(*command)
        held.disk.full = False
        writer.join()
        assert client.execute_command("WAITAOF", 1, 0, 0) == [1, 0]


@FSYNC
def test_too_little_space_refuses_before_a_write_fails(held: Held) -> None:
    """Below the free-space floor, writes are refused, and accepted again when there is more space."""
    with millstream.connect(held.url) as client:
        client.set("calm", "x")
        held.disk.space = 1000
        eventually(lambda: refused(client))
        assert client.get("calm") == b"y"
        assert client.info("persistence")["millstream_disk_state"] == "low"
        held.disk.space = None
        eventually(lambda: not refused(client))


@FSYNC
def test_space_is_looked_at_again_though_nobody_asks(held: Held) -> None:
    """A store that was opened without enough space accepts writes once there is more, without a request in between."""
    held.lease.give_up()
    held.disk.space = 1000
    held.store = held.lease.store()
    assert held.store.node.journal.outage is not None
    held.disk.space = None
    eventually(lambda: held.store.node.journal.outage is None, what="writes are taken again")
    with millstream.connect(held.url) as client:
        assert client.set("word", "x")


@FSYNC
def test_a_floor_that_is_lowered_counts_at_once(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowered ``disk-free-floor`` applies at once."""
    monkeypatch.setattr(DiskGuard, "delay", lambda _: 1000.0)
    with millstream.connect(held.url) as client:
        held.disk.space = 1000
        eventually(lambda: refused(client))
        client.config_set("disk-free-floor", 1001)
        eventually(lambda: refused(client))
        client.config_set("disk-free-floor", 800)
        eventually(lambda: not refused(client))
        assert client.get("calm") == b"y"


def refused(client: Any) -> bool:
    """Return True if a write is refused now."""
    try:
        client.set("calm", "y")
    except redis.ResponseError as error:
        return "are free on the disk (disk-free-floor)" in str(error)
    return False


@pytest.mark.parametrize("fsync", ["always"])
def test_closing_while_it_is_full_loses_only_what_was_not_acknowledged(held: Held) -> None:
    """Closing on a full disk fails the waiting write, and the next start has every acknowledged one."""
    heard: list[str] = []

    def write() -> None:
        with millstream.connect(held.url) as client:
            try:
                client.append("word", "y")
            except redis.RedisError as error:
                heard.append(str(error))

    with millstream.connect(held.url) as client:
        client.set("word", "x")
        held.disk.full = True
        writer = threading.Thread(target=write)
        writer.start()
        eventually(lambda: held.store.node.journal.is_holding)
        with pytest.raises(millstream.errors.DiskFullError, match="No space left on device; free some space there"):
            held.store.close()
        writer.join()
    assert len(heard) == 1
    assert "the store was closed" in heard[0]
