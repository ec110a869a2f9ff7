"""Durability of ``file://``: acknowledged writes survive a kill at any moment, as with a server."""

import asyncio
import errno
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

import millstream
from millstream.clock import Now, SystemClock
from millstream.embedded.guard import Helper
from millstream.embedded.place import parse_place
from millstream.embedded.spilling import StoreSpilling
from millstream.embedded.store import Store
from millstream.embedded.stores import Lease
from millstream.errors import ConfigError, Disconnected, LogLockedError, StorageError
from millstream.node.log.rewriting import Rewriter
from millstream.persistence.disk import RealDisk, RealFile
from support.servers import millstream_server
from support.waiting import eventually

WRITER = """
import sys, threading, millstream
client = millstream.connect(sys.argv[1], decode_responses=True)
guard = threading.Lock()

def write(writer):
    while True:
        ids = client.pipeline(transaction=False).xadd("s", {"w": writer}).xadd("s", {"w": writer}).execute()
        with guard:
            print(*ids, sep="\\n", flush=True)

for writer in range(4):
    threading.Thread(target=write, args=(writer,)).start()
"""

DIRECT_WRITER = """
import sys, threading, millstream
store = millstream.open_store(sys.argv[1], text=True)
guard = threading.Lock()

def write(writer):
    while True:
        entry = store.xadd("s", {"w": writer})
        with guard:
            print(entry, flush=True)

for writer in range(4):
    threading.Thread(target=write, args=(writer,)).start()
"""

HOLDER = """
import sys, millstream
client = millstream.connect(sys.argv[1])
print(client.xadd("s", {"from": "holder"}).decode(), flush=True)
sys.stdin.read()
"""


@contextmanager
def child(text: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Yield a Python process, which is ended afterwards."""
    command = [sys.executable, "-W", "error", "-c", text, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a data directory that does not exist yet."""
    return (tmp_path / "data").as_uri()


@pytest.mark.parametrize("writer", [WRITER, DIRECT_WRITER], ids=["redis-py", "direct"])
@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_killed_process_loses_nothing_it_acknowledged(url: str, fsync: str, writer: str) -> None:
    """If a process with four writing threads is killed, every acknowledged entry is stored."""
    with child(writer, f"{url}?fsync={fsync}") as process:
        assert process.stdout is not None
        told = [process.stdout.readline().strip() for _ in range(200)]
        process.send_signal(signal.SIGKILL)
        told += [line for line in process.stdout.read().split("\n")[:-1] if line]
    assert process.returncode == -signal.SIGKILL
    with millstream.connect(url, decode_responses=True) as client:
        stored = [entry for entry, _ in client.xrange("s")]
        assert set(told) <= set(stored)
        assert len(set(stored)) == len(stored) == client.xlen("s")
        assert client.xadd("s", {"w": "after"}) > max(stored)


def test_process_that_ends_without_closing_closes(url: str) -> None:
    """A program that ends without closing its store writes everything to the disk, with any fsync setting."""
    text = """
import atexit, sys
atexit.register(lambda: print(log.appended, log.durable))  # runs after what is registered later
import millstream
from millstream.embedded import stores
client = millstream.connect(sys.argv[1])
client.xadd("s", {"a": "b"})
log = next(iter(stores._process.open))._durable.log
assert log.durable == 0
"""
    words = [sys.executable, "-W", "error", "-c", text, f"{url}?fsync=no"]
    ended = subprocess.run(words, check=True, timeout=60, capture_output=True, text=True)
    assert ended.stdout.split() == ["1", "1"]
    with millstream.connect(url) as client:
        assert client.xlen("s") == 1
        assert client.info("persistence")["aof_enabled"] == 1


def test_second_process_is_told_who_has_the_directory(url: str) -> None:
    """A second process gets an error that names the directory's owner, and can open it once the first has ended."""
    with child(HOLDER, url) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        with pytest.raises(LogLockedError, match=rf"in use by process {process.pid}; wait for it to end") as caught:
            millstream.connect(url)
        assert caught.value.pid == process.pid
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
    with millstream.connect(url) as client:
        assert client.xlen("s") == 1


async def test_served_directory_is_attached_to(tmp_path: Path) -> None:
    """``file://`` connects to the server that runs on the directory, for both kinds of client."""
    url = (tmp_path / "data").as_uri()
    with millstream_server(tmp_path) as server, server.client() as direct:
        with millstream.connect(url) as attached:
            entry = attached.xadd("s", {"a": "b"})
            assert direct.xrange("s") == [(entry, {b"a": b"b"})]
        async with millstream.connect_async(f"{url}?db=2") as other:
            assert await other.exists("s") == 0
        with pytest.raises(ConfigError, match=r"controls fsync\. Leave"):
            millstream.connect(f"{url}?fsync=always")


def test_forked_child_is_told_and_holds_nothing(url: str) -> None:
    """A forked child gets an error for its parent's store, and does not keep the directory locked."""
    text = """
import os, sys, millstream
client = millstream.connect(sys.argv[1])
client.xadd("s", {"a": "b"})
reading, writing = os.pipe()
if os.fork():
    os.close(writing)
    print(os.read(reading, 10_000).decode(), flush=True)
    client.close()
    with millstream.connect(sys.argv[1]) as again:
        print(again.xlen("s"), flush=True)
else:
    try:
        client.ping()
    except millstream.errors.UsageError as error:
        said = str(error)
    with millstream.connect() as own:
        own.xadd("s", {"a": "b"})
        said += f" own {own.xlen('s')}"
    os.write(writing, said.encode())
    os.close(writing)
    sys.stdin.read()  # lives on after its parent
"""
    with child(text, url) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "was forked from one that had the store" in said
        assert said.endswith("own 1\n")
        assert process.stdout.readline() == "1\n"
        assert process.wait(30) == 0  # the parent; its child holds our end of stdin
        with millstream.connect(url) as client:
            assert client.xlen("s") == 1


class GatedFile:
    """A file whose fdatasync waits for the test or fails."""

    def __init__(self, disk: "GatedDisk", file: RealFile) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def datasync(self) -> None:
        self._disk.syncs += 1
        self._disk.entered.set()
        self._disk.gate.wait()
        if self._disk.broken:
            raise OSError(errno.EIO, "the medium is gone")
        self._file.datasync()


class GatedDisk(RealDisk):
    """A disk that syncs while the gate is open.

    Attributes:
        gate: Event that lets syncs run; set at first.
        entered: Event that is set when a sync begins.
        broken: True to let syncs fail.
        store: The store on this disk.
        syncs: Number of syncs begun since the gate was last shut.
    """

    __slots__ = ("broken", "entered", "gate", "store", "syncs")

    store: Store

    def __init__(self) -> None:
        self.gate, self.entered, self.broken = threading.Event(), threading.Event(), False
        self.syncs = 0
        self.gate.set()

    def open_append(self, path: Path) -> Any:
        return GatedFile(self, super().open_append(path))

    def shut(self) -> None:
        """Let syncs wait from now on."""
        self.gate.clear()
        self.syncs = 0
        self.entered.clear()


@pytest.fixture
def disk(url: str) -> Iterator[GatedDisk]:
    """Yield the disk under ``url``, for every client of this process."""
    found = GatedDisk()
    lease = Lease(parse_place(url), disk=found)
    found.store = lease.store()
    yield found
    found.gate.set()
    lease.give_up()


def test_nothing_is_shown_before_it_is_durable(url: str, disk: GatedDisk) -> None:
    """With ``file://``, no writer, blocked reader or subscriber sees an entry before it is durable."""
    heard: list[Any] = []
    with millstream.connect(url) as client, client.pubsub() as listener:
        client.config_set("notify-keyspace-events", "KEA")
        listener.psubscribe("__key*__:*")
        assert listener.get_message(timeout=20)["type"] == "psubscribe"
        client.set("other", "x")  # its own events are not the question
        assert [listener.get_message(timeout=20)["data"] for _ in range(2)] == [b"set", b"other"]
        disk.shut()
        reader = threading.Thread(target=lambda: heard.append(client.xread({"s": "$"}, block=30_000)))
        reader.start()
        eventually(lambda: len(disk.store.node.waits) == 1, what="the reader waits")
        writer = threading.Thread(target=lambda: heard.append(client.xadd("s", {"a": "b"})))
        writer.start()
        assert disk.entered.wait(30)
        assert len(disk.store.node.waits) == 0, "the reader's answer is made, and held back"
        assert listener.get_message(timeout=0.05) is None
        assert heard == []
        assert reader.is_alive()
        assert writer.is_alive()
        disk.gate.set()
        reader.join()
        writer.join()
        assert len(heard) == 2
        assert listener.get_message(timeout=20)["data"] == b"xadd"


def test_a_direct_call_returns_when_it_is_durable(url: str, disk: GatedDisk) -> None:
    """While the disk syncs, no call of a store returns: neither the write nor a blocked read nor any other."""
    heard: list[Any] = []
    with millstream.open_store(url) as store:
        store.execute("PING")
        disk.shut()
        reader = threading.Thread(target=lambda: heard.append(store.xread({"s": "$"}, block=30_000)))
        reader.start()
        eventually(lambda: len(disk.store.node.waits) == 1, what="the reader waits")
        writer = threading.Thread(target=lambda: heard.append(store.xadd("s", {"a": "b"})))
        writer.start()
        assert disk.entered.wait(30)
        other = threading.Thread(target=lambda: heard.append(store.xlen("s")))
        other.start()
        eventually(lambda: disk.store.node.stats.lookups.hits > 0, what="the length was looked up")
        assert len(disk.store.node.waits) == 0, "the reader's answer is made, and held back"
        assert heard == []
        disk.gate.set()
        for thread in (reader, writer, other):
            thread.join()
        assert len(heard) == 3


def test_a_direct_call_says_that_the_disk_failed(url: str, disk: GatedDisk) -> None:
    """If the disk fails, the write is not acknowledged, and every later call fails with the same reason."""
    with millstream.open_store(url) as store:
        disk.broken = True
        with pytest.raises(Disconnected, match=r"cannot sync .*the medium is gone"):
            store.xadd("s", {"a": "b"})
        with pytest.raises(StorageError, match=r"cannot sync .*the medium is gone"):
            store.xlen("s")


async def test_event_loop_goes_on_while_the_disk_syncs(url: str, disk: GatedDisk) -> None:
    """While a task waits for the disk, other tasks run."""
    async with millstream.connect_async(url) as client:
        await client.ping()
        disk.shut()
        writing = asyncio.create_task(client.xadd("s", {"a": "b"}))
        assert await asyncio.to_thread(disk.entered.wait, 30)
        reading = asyncio.create_task(client.get("word"))
        await asyncio.sleep(0)
        assert not writing.done()
        assert not reading.done(), "it may not tell of what is not yet durable"
        disk.gate.set()
        assert await writing
        assert await reading is None


def test_what_gathers_during_a_sync_is_one_group(url: str, disk: GatedDisk) -> None:
    """Writes of ten threads during a sync need one further sync together."""
    with millstream.connect(url) as client:
        pool = client.connection_pool
        for connection in [pool.get_connection() for _ in range(11)]:  # a greeting, too, would wait for the disk
            pool.release(connection)
        disk.shut()
        threads = [threading.Thread(target=client.xadd, args=("s", {"a": "b"})) for _ in range(11)]
        threads[0].start()
        assert disk.entered.wait(30)
        for thread in threads[1:]:
            thread.start()
        eventually(lambda: disk.store.node.stats.dirty == 11, what="all have run")
        disk.gate.set()
        for thread in threads:
            thread.join()
        assert disk.syncs == 2


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


def no_memory(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("what", "error", "reason"),
    [
        (Store, "_perform", r"background thread of .* has failed \(MemoryError"),
        (Helper, "start", r"background thread of .* cannot be started \(RuntimeError"),
    ],
)
def test_a_store_without_its_thread_says_so(
    url: str, what: type, error: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call waits for ever: each fails with the reason, and the directory opens again with whole commands."""
    with millstream.open_store(url) as store:
        with monkeypatch.context() as patched:
            patched.setattr(what, error, no_memory if what is Store else fail)
            with pytest.raises(Disconnected, match=reason):
                store.xadd("s", {"a": "b"})
        with pytest.raises(StorageError, match=reason):
            store.xlen("s")
    with millstream.open_store(url) as again:
        assert again.xlen("s") == 1
        assert again.xadd("s", {"a": "c"})


@pytest.mark.parametrize("what", [Rewriter, StoreSpilling])
def test_a_close_that_fails_releases_the_directory(url: str, what: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while a thread is ended reaches the caller, and the directory opens again with all data."""
    store = millstream.open_store(url)
    store.xadd("s", {"a": "b"})
    with monkeypatch.context() as patched:
        patched.setattr(what, "stop", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            store.close()
    with millstream.open_store(url) as again:
        assert again.xlen("s") == 1


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
async def test_failed_disk_reveals_no_reply(url: str, disk: GatedDisk, kind: str) -> None:
    """If the disk fails, the write is not acknowledged, and every error states the reason until all clients close."""
    disk.broken = True

    async def add() -> Any:
        if kind == "sync":
            with millstream.connect(url) as client:
                return client.xadd("s", {"a": "b"})
        async with millstream.connect_async(url) as client:
            return await client.xadd("s", {"a": "b"})

    with pytest.raises(redis.ConnectionError, match=r"cannot sync .*the medium is gone"):
        await add()
    with pytest.raises((StorageError, redis.ConnectionError), match=r"cannot sync .*the medium is gone"):
        await add()


def test_directory_opens_again_after_its_disk_failed(url: str, tmp_path: Path) -> None:
    """After a disk failure and the last close, the directory opens again with the durable data."""
    disk = GatedDisk()
    lease = Lease(parse_place(url), disk=disk)
    client = millstream.connect(url)
    entry = client.xadd("s", {"a": "b"})
    disk.broken = True
    with pytest.raises(redis.ConnectionError):
        client.xadd("s", {"a": "c"})
    client.close()
    lease.give_up()
    with millstream.connect(url) as again:
        assert again.xrange("s")[0] == (entry, {b"a": b"b"})
        assert again.xadd("s", {"a": "d"})


@pytest.mark.parametrize(("fsync", "syncs"), [("everysec", 1), ("no", 0)])
def test_weaker_fsync_answers_before_the_sync(tmp_path: Path, fsync: str, syncs: int) -> None:
    """With ``everysec`` and ``no``, the reply does not wait for the sync, which follows later or at the close."""
    disk = GatedDisk()
    lease = Lease(parse_place(f"{tmp_path.as_uri()}?fsync={fsync}"), disk=disk)
    with millstream.connect(tmp_path.as_uri()) as client:
        disk.shut()
        assert client.xadd("s", {"a": "b"})
        if syncs:
            assert disk.entered.wait(30)
        disk.gate.set()
        assert client.xadd("s", {"a": "c"})
        assert disk.syncs == syncs
    lease.give_up()
    assert disk.syncs > syncs
    with millstream.connect(tmp_path.as_uri()) as client:
        assert client.xlen("s") == 2


class InterruptedClock(SystemClock):
    """A clock whose next reading raises Ctrl-C, once armed."""

    armed = False

    def now(self) -> Now:
        self._press()
        return super().now()

    def wall_time(self) -> int:
        self._press()
        return super().wall_time()

    def _press(self) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


def test_command_that_was_interrupted_is_not_gone_on_from(url: str) -> None:
    """After Ctrl-C inside a command, the store refuses to continue, and the directory contains whole commands only."""
    clock = InterruptedClock()
    lease = Lease(parse_place(url), clock=clock)
    with millstream.connect(url) as client, millstream.connect(url) as other:
        entry = client.xadd("s", {"a": "b"})
        assert other.ping()
        clock.armed = True
        with pytest.raises(KeyboardInterrupt):
            client.xadd("s", {"a": "c"})
        with pytest.raises((StorageError, redis.ConnectionError), match="was interrupted halfway"):
            other.xrange("s")
    lease.give_up()
    with millstream.connect(url) as again:
        assert again.xrange("s") == [(entry, {b"a": b"b"})]
