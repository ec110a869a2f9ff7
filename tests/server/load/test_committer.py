"""Group commit: no reply before its record is where the fsync mode promises, and none after the disk failed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.clock import SystemClock
from millstream.errors import DiskError, DiskFullError, StorageError
from millstream.node.durability.disk_guard import TRIES, DiskGuard
from millstream.node.durability.outage import Outage
from millstream.node.log import codec
from millstream.persistence.log import Log
from millstream.server.committer import Committer
from millstream.server.thread import ServerThread
from support.waiting import aeventually, eventually
from support.wire import Wire, pack

LATE = (1000.0, 1000.0)  # a full disk is not tried again while the test lasts


class HeldLog:
    """A log whose writes and syncs wait for a permit from the test.

    Attributes:
        let: one permit for each write or sync.
        calls: the finished calls, in order.
        tries: number of begun calls, with any result.
        broken: the next call fails.
        full: writes find no space.
        space: free bytes.
        floor: bytes that are to stay free.
        told: reports to the node: an outage, or None at its end.
        on_sync: called after each sync.
    """

    directory = Path("data")

    def __init__(self) -> None:
        self.appended = self.written = self.durable = 0
        self.let = threading.Semaphore(0)
        self.calls: list[str] = []
        self.tries = 0
        self.broken = self.full = False
        self.space, self.floor = 1000, 0
        self.told: list[Outage | None] = []
        self.on_sync: Callable[[], None] = lambda: None

    def free(self) -> int:
        return self.space

    def held(self) -> list[bytes]:
        return [codec.pack(0, [("set", 0, b"key", b"value", None)])] * (self.appended - self.written)

    def suspend(self, outage: Outage) -> None:
        self.told.append(outage)

    def resume(self) -> None:
        self.told.append(None)

    def _step(self, name: str) -> None:
        assert self.let.acquire(timeout=30)
        self.tries += 1
        if self.broken:
            raise DiskError("the disk is broken")
        if self.full and name == "write":
            raise DiskFullError("the disk is full")
        self.calls.append(name)

    def write(self) -> int:
        taken = self.appended
        self._step("write")
        self.written = taken
        return taken

    def sync(self) -> int:
        taken = self.written
        self._step("sync")
        self.durable = taken
        self.on_sync()
        return taken


def committing(
    log: HeldLog,
    policy: str,
    on_failure: Callable[[StorageError], None],
    *,
    tries: tuple[float, float] = TRIES,
    **seconds: float,
) -> Committer:
    """Return a committer of the log, whose disk guard reports to the log instead of a node."""
    guard = DiskGuard(log, log, lambda: log.floor, SystemClock(), tries=tries)
    return Committer(log, policy, guard, on_failure, **seconds)  # type: ignore[arg-type] # parametrised


class Client:
    """Waits for positions, and notes the time of each release."""

    def __init__(self, committer: Committer, log: HeldLog) -> None:
        self.committer, self.log = committer, log
        self.got: list[int] = []

    def release(self) -> None:
        self.got.append(self.committer.gate.released)

    def command(self) -> None:
        """Append one record and wait for it."""
        self.log.appended += 1
        self.committer.gate.holders[self] = None
        self.committer.poke()


class NoMemoryOnce:
    """Proxy of an object for which the next call of one method finds no memory."""

    def __init__(self, real: Any, name: str) -> None:
        self.real, self.name, self.calls = real, name, 0

    def __getattr__(self, name: str) -> Any:
        return self.fail if name == self.name and not self.calls else getattr(self.real, name)

    def fail(self, *_: object) -> None:
        self.calls += 1
        raise MemoryError


def failing(monkeypatch: pytest.MonkeyPatch, committer: Committer, part: str, name: str) -> NoMemoryOnce:
    """Let the next call of a method of a part of the committer find no memory."""
    failing = NoMemoryOnce(getattr(committer, part), name)
    monkeypatch.setattr(committer, part, failing)
    return failing


@pytest.fixture
async def log() -> AsyncIterator[HeldLog]:
    """Yield a log that does nothing without permits; at the end all are given."""
    held = HeldLog()
    yield held
    held.let.release(1000)


async def test_always_releases_after_the_sync(log: HeldLog) -> None:
    """Under ``always`` a reply waits for the sync; the write alone releases nothing."""
    committer = committing(log, "always", pytest.fail)
    client = Client(committer, log)
    client.command()
    log.let.release()
    await aeventually(lambda: log.calls == ["write"])
    assert client.got == []
    log.let.release()
    await aeventually(lambda: client.got == [1])
    assert log.durable == 1
    log.let.release(10)
    await committer.close()


async def test_commands_during_a_sync_share_the_next(log: HeldLog) -> None:
    """Commands that run during a sync form one further group, however many there are."""
    committer = committing(log, "always", pytest.fail)
    client = Client(committer, log)
    client.command()
    log.let.release()
    await aeventually(lambda: log.calls == ["write"])
    for _ in range(100):
        client.command()
    log.let.release()
    await aeventually(lambda: client.got == [1])
    log.let.release(2)
    await aeventually(lambda: client.got == [1, 101])
    assert log.calls == ["write", "sync"] * 2
    log.let.release(10)
    await committer.close()


async def test_a_step_that_does_not_reach_the_thread_is_tried_again(
    log: HeldLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If memory ends as a step goes to the thread, it is tried again without another command, and closing ends."""
    committer = committing(log, "always", pytest.fail)
    client = Client(committer, log)
    put = failing(monkeypatch, committer, "_steps", "put")
    log.let.release(10)
    client.command()
    await aeventually(lambda: client.got[-1:] == [1])
    assert put.calls == 1
    assert log.calls == ["write", "sync"]
    await asyncio.wait_for(committer.close(), 20)


@pytest.mark.parametrize("name", ["call_soon_threadsafe", "time"])
async def test_a_report_that_finds_no_memory_is_told_again(
    log: HeldLog, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """If memory ends as the thread reports or the loop receives a report, the report comes again."""
    committer = committing(log, "always", pytest.fail)
    client = Client(committer, log)
    log.let.release()
    client.command()
    await aeventually(lambda: log.calls == ["write"])
    called = failing(monkeypatch, committer, "_loop", name)
    log.let.release(9)
    await aeventually(lambda: client.got[-1:] == [1])
    assert called.calls == 1
    await asyncio.wait_for(committer.close(), 20)


async def test_replies_that_were_not_let_out_for_memory_follow(log: HeldLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies not released for lack of memory are released by themselves in the next turn."""
    committer = committing(log, "always", pytest.fail)
    client = Client(committer, log)
    opened = failing(monkeypatch, committer, "gate", "open")
    log.let.release(10)
    client.command()
    await aeventually(lambda: client.got[-1:] == [1])
    assert opened.calls == 1
    await asyncio.wait_for(committer.close(), 20)


async def test_a_quick_disk_is_waited_for_and_a_slow_one_is_not(log: HeldLog) -> None:
    """Once syncs are quick, the event loop itself syncs in the turn of the command, and then sends its reply."""
    committer = committing(log, "always", pytest.fail)
    client = Client(committer, log)
    at_sync: list[tuple[str, bool]] = []
    log.on_sync = lambda: at_sync.append((threading.current_thread().name, log.durable in client.got))
    log.let.release(1000)
    for number in range(1, 51):
        client.command()
        await aeventually(lambda number=number: client.got[-1:] == [number])
        assert log.durable == number
    assert at_sync[0] == ("millstream-commit", False), "nothing is known of the disk yet"
    # Not the last one for certain: a machine that stalled a moment ago is taken for a slow disk
    assert (threading.current_thread().name, False) in at_sync
    assert not any(shown for _, shown in at_sync)
    assert log.calls == ["write", "sync"] * 50
    await committer.close()


@pytest.mark.parametrize("policy", ["everysec", "no"])
async def test_others_release_after_the_write(log: HeldLog, policy: str) -> None:
    """Under ``everysec`` and ``no`` a reply waits for the write, not for a sync. Closing syncs in any mode."""
    committer = committing(log, policy, pytest.fail)
    client = Client(committer, log)
    log.let.release()
    client.command()
    await aeventually(lambda: client.got == [1])
    assert log.calls == ["write"]
    log.let.release(10)
    await committer.close()
    assert log.durable == 1


@pytest.mark.parametrize("policy", ["everysec", "no"])
async def test_others_release_nothing_that_is_not_written(log: HeldLog, policy: str) -> None:
    """Under ``everysec`` and ``no`` a write that fails releases no reply."""
    told: list[StorageError] = []
    committer = committing(log, policy, told.append)
    client = Client(committer, log)
    log.broken = True
    log.let.release(10)
    client.command()
    await aeventually(lambda: told)
    assert client.got == []
    assert committer.gate.released == 0
    await committer.close()


async def test_everysec_syncs_by_itself(log: HeldLog) -> None:
    """Under ``everysec`` written data is synced after a while without a further command."""
    committer = committing(log, "everysec", pytest.fail, sync_seconds=0.01)
    log.let.release(10)
    Client(committer, log).command()
    await aeventually(lambda: log.durable == 1)
    await committer.close()


async def test_everysec_syncs_while_one_command_keeps_the_loop(log: HeldLog) -> None:
    """Under ``everysec`` a slow script or range does not delay the sync of earlier writes."""
    committer = committing(log, "everysec", pytest.fail, sync_seconds=0.01, early=-1000)  # the loop is much too late
    log.let.release()
    client = Client(committer, log)
    client.command()
    await aeventually(lambda: set(client.got) == {1})
    synced = threading.Event()
    log.on_sync = synced.set
    log.let.release(10)
    assert synced.wait(30), "no sync before the loop went on"  # the loop is blocked here
    assert log.durable == 1
    await committer.close()


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
async def test_closing_leaves_nothing_behind_for_the_next_turn(log: HeldLog, policy: str) -> None:
    """Records appended in the turn of a stop are committed by it, and none is written after it."""
    committer = committing(log, policy, pytest.fail)
    client = Client(committer, log)
    log.let.release(10)
    client.command()
    await committer.close()
    assert log.durable == 1
    assert set(client.got) == {1}
    done = list(log.calls)
    for _ in range(5):
        await asyncio.sleep(0)
    assert log.calls == done


@pytest.mark.parametrize("policy", ["always", "everysec"])
async def test_broken_disk_releases_nothing(log: HeldLog, policy: str) -> None:
    """After a failed write or sync no reply is released, the server gets one report, and closing does not retry."""
    told: list[StorageError] = []
    committer = committing(log, policy, told.append)
    client = Client(committer, log)
    log.broken = True
    log.let.release(10)
    client.command()
    await aeventually(lambda: told)
    client.command()
    await asyncio.sleep(0)
    await committer.close()
    assert len(told) == 1
    assert client.got == []
    assert log.calls == []


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
async def test_full_disk_holds_and_goes_on(log: HeldLog, policy: str, caplog: pytest.LogCaptureFixture) -> None:
    """On a full disk replies are delayed and the node gets one report. The data is written once there is space."""
    committer = committing(log, policy, pytest.fail)
    client = Client(committer, log)
    log.full = True
    log.let.release(1000)
    client.command()
    client.command()
    await aeventually(lambda: log.told)
    (outage,) = log.told
    assert outage is not None
    assert outage.held == 2
    await aeventually(lambda: log.tries > 3, what="it was tried again")
    assert client.got == []
    assert len(log.told) == 1
    log.full = False
    await aeventually(lambda: client.got == [2])
    assert log.told == [outage, None]
    assert log.durable == 2
    client.command()
    await aeventually(lambda: client.got[-1] == 3)
    await committer.close()
    assert len(caplog.records) == 2, "one line for each change of state"


@pytest.mark.parametrize("floor", [0, 900])
async def test_sync_of_what_was_written_ends_no_outage(log: HeldLog, floor: int) -> None:
    """A sync that was due stores data written before the disk was full; delayed replies stay delayed."""
    committer = committing(log, "everysec", pytest.fail, tries=LATE, sync_seconds=0.2)
    client = Client(committer, log)
    log.let.release(1000)
    client.command()
    await aeventually(lambda: client.got == [1])
    log.full, log.floor = True, floor
    client.command()
    await aeventually(lambda: log.told)
    await aeventually(lambda: log.durable == 1, what="the sync that was due is done")
    await asyncio.sleep(0)
    (outage,) = log.told
    assert outage is not None
    assert outage.held == 1
    assert client.got == [1]
    log.full = False
    await committer.close()


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
async def test_too_little_space_turns_writes_away_before_one_fails(log: HeldLog, policy: str) -> None:
    """Below the free-space floor writes are refused and pending ones released. A quarter above it they resume."""
    committer = committing(log, policy, pytest.fail)
    client = Client(committer, log)
    log.let.release(1000)
    committer.begin()
    assert log.told == []
    log.floor = 1001
    client.command()
    await aeventually(lambda: client.got == [1])
    await aeventually(lambda: log.told)
    (outage,) = log.told
    assert outage is not None
    assert outage.held == 0
    client.command()
    await aeventually(lambda: client.got[-1] == 2)
    log.floor, looks = 801, len(log.calls)
    await aeventually(lambda: len(log.calls) > looks + 1, what="it was looked at again")
    assert log.told == [outage]
    log.floor = 800
    await aeventually(lambda: log.told == [outage, None])
    await committer.close()


async def test_a_floor_that_is_lowered_counts_at_once(log: HeldLog) -> None:
    """A new free-space floor applies at once. On a full disk it causes one more try, and not one a command."""
    committer = committing(log, "always", pytest.fail, tries=LATE)
    client = Client(committer, log)
    log.let.release(1000)
    log.floor = 1001
    committer.begin()
    client.command()
    await aeventually(lambda: client.got == [1])
    assert len(log.told) == 1
    log.floor = 0
    committer.poke()
    await aeventually(lambda: log.told[1:] == [None])
    log.full = True
    client.command()
    await aeventually(lambda: len(log.told) == 3)
    before = log.tries
    log.floor = 5
    for _ in range(20):
        committer.poke()
        await aeventually(lambda: committer.is_idle)
    assert log.tries - before == 1
    log.full = False
    await committer.close()


async def test_start_on_a_disk_with_too_little_space(log: HeldLog) -> None:
    """On a disk with too little space at the start, the first write is refused."""
    committer = committing(log, "always", pytest.fail)
    log.floor = 1001
    committer.begin()
    assert len(log.told) == 1
    log.let.release(1000)
    await committer.close()


@pytest.mark.parametrize("policy", ["always", "everysec"])
async def test_closing_again_waits_for_the_first(log: HeldLog, policy: str) -> None:
    """A second close, during or after the first, waits for it, and every reply is released once."""
    committer = committing(log, policy, pytest.fail)
    client = Client(committer, log)
    client.command()
    log.let.release(1000)
    async with asyncio.timeout(30):
        await asyncio.gather(committer.close(), committer.close())
        await committer.close()
    assert client.got == [1]
    assert log.calls.count("write") <= 2


@pytest.mark.parametrize("policy", ["always", "everysec"])
async def test_closing_on_a_full_disk_releases_nothing(log: HeldLog, policy: str) -> None:
    """Closing on a full disk tries once more. Without space the delayed replies are left to the caller."""
    for space in (False, True):
        committer = committing(log, policy, pytest.fail)
        client = Client(committer, log)
        log.full, log.told = True, []
        log.let.release(1000)
        client.command()
        await aeventually(lambda: log.told)
        log.full = not space
        await committer.close()
        assert set(client.got) == ({2} if space else set())


def test_server_shows_nothing_after_a_failed_sync(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk fails, neither the writer nor a reader of the written data gets a reply, and the server stops."""
    holding, go_on = threading.Event(), threading.Event()

    def failing(self: Log) -> int:
        holding.set()
        assert go_on.wait(30)
        raise DiskError("the disk is broken")

    running = ServerThread(str(tmp_path)).start()
    with Wire(running.url) as writer, Wire(running.url) as reader:
        assert writer.ask("XADD", "s", "1-1", "f", "v") == b"1-1"
        monkeypatch.setattr(Log, "sync", failing)
        writer.send("XADD", "s", "2-1", "f", "v")
        assert holding.wait(30)
        reader.send("XRANGE", "s", "-", "+")
        go_on.set()
        for wire in (writer, reader):
            with pytest.raises((EOFError, ConnectionResetError)):
                wire.read()
    with pytest.raises(DiskError, match="the disk is broken"):
        running.stop()


def test_replies_keep_their_order_across_barriers(tmp_path: object) -> None:
    """Reads between writes, which need not wait for the disk, never overtake the writes' replies."""
    with ServerThread(str(tmp_path)) as server, Wire(server.url) as wire:
        wire.socket.sendall(b"".join(pack("INCR", "n") + pack("ECHO", n) for n in range(1000)))
        for n in range(1000):
            assert wire.read() == n + 1
            assert wire.read() == b"%d" % n


def test_what_no_reply_waits_for_is_written_all_the_same(tmp_path: Path) -> None:
    """A fruitless claim has its reply at once, and its record is written soon, without a further command."""
    with ServerThread(str(tmp_path)) as running, Wire(running.url) as wire:
        for line in ("XADD s 1-1 a b", "XGROUP CREATE s g 0", "XGROUP CREATECONSUMER s g c"):
            wire.ask(*line.split())
        node = running.server.node
        log = node.journal.log
        assert log is not None
        appended, position = log.appended, node.journal.position
        eventually(lambda: wire.ask("XAUTOCLAIM", "s", "g", "c", 0, 0) and log.appended > appended)
        assert node.journal.position == position
        eventually(lambda: log.durable == log.appended)
