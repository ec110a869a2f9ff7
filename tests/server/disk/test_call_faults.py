"""If any system call of a real server fails, the next start succeeds, and nothing acknowledged is missing."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.node.node import Node
from millstream.persistence.check import check
from millstream.persistence.log import Log
from support import campaign
from support.callfaults import SHORT, Call, CallFault, calls, library, preloading
from support.inprocess import to_words
from support.resp import decode
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire

REWRITINGS = 2
# Kinds of faults, with a bound on how many such calls a run makes; what is beyond the last is a run without a fault
KINDS: tuple[tuple[str, str, int, int, int], ...] = (
    ("server", "rename", errno.EIO, 1, 6),
    ("server", "rename", -errno.EIO, 1, 6),
    ("server", "rename", errno.ENOSPC, 1, 6),
    ("server", "rename", -errno.ENOSPC, 1, 6),
    ("server", "unlink", errno.EIO, 1, 6),
    ("server", "unlink", -errno.EIO, 1, 6),
    ("server", "ftruncate", errno.EIO, 1, 4),
    ("child", "fsync", errno.EIO, 1, 3),
    ("server", "fsync", errno.EIO, 1, 38),
    ("server", "open", errno.EMFILE, 6, 24),
    ("server", "write", errno.ENOSPC, 1, 28),
    ("child", "write", errno.EIO, 1, 5),
    ("child", "write", errno.ENOSPC, 1, 5),
    ("child", "write", SHORT, 1, 5),
    ("server", "write", SHORT, 1, 28),
    ("server", "write", errno.EIO, 1, 28),
    ("server", "open", errno.EIO, 1, 24),
    ("child", "open", errno.EIO, 1, 10),
    ("child", "open", errno.EMFILE, 1, 10),
    ("server", "fsync", errno.ENOSPC, 1, 38),
    ("server", "write", errno.ENOMEM, 1, 28),
    ("server", "open", errno.EMFILE, 1, 24),
    ("server", "open", errno.ENFILE, 6, 24),
    ("server", "open", errno.ENOMEM, 2, 24),
)


@dataclass
class Life:
    """A server's life with a fault, as its client saw it.

    Attributes:
        sent: number of the last entry sent.
        acknowledged: number of the last one acknowledged.
        started: it was ready at some time.
        code: its exit code.
    """

    folder: Path
    made: Path
    fault: CallFault | None
    sent: int = 0
    acknowledged: int = 0
    started: bool = False
    code: int = 0
    seen: list[Call] = field(default_factory=list)

    def live(self) -> "Life":
        """Write and have the log rewritten, again and again; then stop."""
        self.folder.mkdir(parents=True)
        trace = self.folder / "trace"
        server = millstream_server(self.folder)
        server.command[:0] = preloading(self.made, self.folder / "data", trace, self.fault)
        try:
            self._work(server)
        finally:
            server.__exit__()
        self.seen = calls(trace)
        text = server.log.read_text(errors="replace")
        assert "Traceback" not in text, text[-3000:]
        assert self.code in {0, 1}, text[-3000:]
        if self.code:
            assert "start again" in text or "millstream: cannot " in text, text[-3000:]
        return self

    def _work(self, server: ServerProcess) -> None:
        try:
            server.start()
        except (RuntimeError, AssertionError):
            assert server.process is None or server.process.poll() is not None, "it neither starts nor ends"
            self.code = 1
            return
        self.started = True
        with Wire(server.url) as wire:
            try:
                for _ in range(REWRITINGS):
                    self._write(wire, 4)
                    wire.ask("BGREWRITEAOF")
                    if isinstance(ended := eventually(lambda wire=wire: rewritten(wire)), Exception):
                        raise ended
                self._write(wire, 2)
            except (EOFError, ConnectionError):  # it has ended, as it must where it cannot know what is on the disk
                assert server.process is not None
                self.code = server.process.wait(30)
                assert self.code == 1
                return
        self.code = server.stop()

    def _write(self, wire: Wire, count: int) -> None:
        """Add entries, each until it is accepted."""
        for _ in range(count):
            self.sent += 1
            while isinstance(reply := wire.ask("XADD", "s", f"{self.sent}-0", "n", self.sent), Exception):
                assert str(reply).startswith("MISCONF"), reply
            self.acknowledged = self.sent

    def check_outcome(self) -> None:
        """Check the next start."""
        home = self.folder / "data"
        log, recovery = Log.open(home)
        node = Node(Config(), log)
        node.recover(recovery.payloads())
        clock = ManualClock()
        outcome = node.execute(node.sessions.open(clock.now()), to_words(["XRANGE", "s", "-", "+"]), clock.now())
        assert outcome is not None
        found = [int(entry_id.partition(b"-")[0]) for entry_id, _ in decode(b"".join(outcome.buffers))]
        log.close()
        assert found == list(range(1, len(found) + 1)), "something was left out or invented"
        assert self.acknowledged <= len(found) <= self.sent, (self.acknowledged, len(found), self.sent)
        assert check(home).ok


def rewritten(wire: Wire) -> bool | Exception:
    """Return True if no rewriting is under way, or the connection's error if the server has ended."""
    try:
        return b"aof_rewrite_in_progress:0" in wire.ask("INFO", "persistence")
    except (EOFError, ConnectionError) as error:
        return error


def survived(folder: Path, made: Path, fault: CallFault | None) -> Life:
    """Run one life and the start after it."""
    try:
        life = Life(folder / "life", made, fault).live()
        life.check_outcome()
    except AssertionError as error:
        raise AssertionError(f"{fault}: {error}") from error
    return life


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("callfaults"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, made: Path) -> list[Call]:
    """Return a server's calls in a life without a fault."""
    life = survived(tmp_path_factory.mktemp("whole"), made, None)
    assert (life.code, life.acknowledged) == (0, 4 * REWRITINGS + 2)
    return life.seen


def test_the_campaign_goes_over_the_whole_of_a_run(whole: list[Call]) -> None:
    """The campaign's bounds for each kind of call include every call of a run, with its rewritings."""
    for who, call, _, _, most in KINDS:
        found = [one.at for one in whole if (one.who, one.call) == (who, call)]
        assert 0 < max(found, default=0) <= most, (who, call, found)
    renamed = [one.name for one in whole if one.call == "rename"]
    assert renamed == ["MANIFEST"] * (1 + 2 * REWRITINGS)


def faults_of_a_switch(whole: list[Call]) -> Iterator[CallFault]:
    """Yield faults around the last switch to a snapshot, where a log can be lost as a whole."""
    ours = [one for one in whole if one.who == "server"]
    last = max(number for number, one in enumerate(ours) if one.call == "rename")
    sync = next(one for one in ours[last:] if one.call == "fsync")
    staged = max((one for one in ours[:last] if one.call == "open" and one.name == "MANIFEST.new"), key=lambda c: c.at)
    yield CallFault("server", "fsync", sync.at, errno.EIO)
    yield CallFault("server", "rename", ours[last].at, -errno.EIO)
    yield CallFault("server", "open", staged.at, errno.EMFILE, 6)
    yield CallFault("server", "unlink", 1, errno.EIO)


@pytest.mark.parametrize("number", range(4))
def test_a_call_that_fails_around_a_switch_loses_nothing(
    tmp_path: Path, made: Path, whole: list[Call], number: int
) -> None:
    """A call that fails around the switch to a snapshot loses nothing acknowledged.

    The calls are the directory sync, the rename (done, but reported as failed), the manifest's open and the final
    removal.
    """
    fault = list(faults_of_a_switch(whole))[number]
    life = survived(tmp_path, made, fault)
    assert any(one.failed for one in life.seen), fault


@pytest.mark.parametrize(
    "fault", [CallFault("server", "write", 9, errno.ENOSPC), CallFault("child", "write", 2, errno.EIO)], ids=str
)
def test_a_write_that_fails_loses_nothing(tmp_path: Path, made: Path, fault: CallFault) -> None:
    """A failing write of the log delays replies and is retried. One of a snapshot ends the rewriting."""
    life = survived(tmp_path, made, fault)
    assert any(one.failed for one in life.seen)
    assert (life.code, life.acknowledged) == (0, 4 * REWRITINGS + 2)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_every_call_of_a_server_fails_once(tmp_path: Path, made: Path) -> None:
    """Any system call that fails once, in any way, over a life with two rewritings, loses nothing acknowledged."""

    def piece(seed: int) -> int:
        who, call, how, times, _ = KINDS[seed // 100]
        life = survived(tmp_path / str(seed), made, CallFault(who, call, seed % 100, how, times))
        return any(one.failed for one in life.seen)

    seeds = [100 * number + at for number, kind in enumerate(KINDS) for at in range(1, kind[4] + 1)]
    campaign.run("server-call-faults", piece, seeds, unit="faults")
