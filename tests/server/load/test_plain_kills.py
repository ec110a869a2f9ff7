"""A server is killed, or its system calls fail, while clients send plain commands without waiting for replies."""

import asyncio
import errno
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from server.load.pipeline import FEW, SHARED, SIZES, Pipeline, Watcher
from support import campaign
from support.callfaults import SHORT, CallFault, calls, library, preloading
from support.servers import ServerProcess, millstream_server

CLIENTS = 6
# Calls that may fail, with a bound on the number of the call: some lives end before
FAULTS = (
    ("server", "write", errno.ENOSPC, 40),
    ("server", "write", SHORT, 40),
    ("server", "write", errno.EIO, 40),
    ("server", "fsync", errno.EIO, 40),
    ("server", "fsync", errno.ENOSPC, 40),
    ("server", "write", errno.ENOSPC, 15),
    ("server", "open", errno.EMFILE, 12),
    ("server", "rename", -errno.EIO, 3),
    ("child", "write", errno.ENOSPC, 2),
    ("child", "fsync", errno.EIO, 2),
)


class Lives:
    """The lives of one data directory.

    Args:
        folder: for it.
        seed: the random seed.
        options: of the server.
        refusals: a full disk may refuse commands.
            ``Lives`` then sends fewer together, so that the refused ones can be found.
    """

    def __init__(self, folder: Path, seed: int, *options: str, refusals: bool = False) -> None:
        self.chance = random.Random(seed)
        self.clients = [Pipeline(number, FEW if refusals else SIZES, refusals) for number in range(CLIENTS)]
        self.lengths = (200, 600, 1500) if refusals else (1, 100, 2000, 6000)  # commands answered before the end
        self.watcher = Watcher()
        folder.mkdir(parents=True)
        self.server: ServerProcess = millstream_server(folder, *options)
        self.words = self.server.command
        self.folder = folder

    def begin(self) -> None:
        """Start for the first time and create the keys."""
        with self.server.start().client() as client:
            client.execute_command("XADD", SHARED, "0-1", "by", -1, "n", 0)
            for one in self.clients:
                one.prepare(client)

    def live(self) -> None:
        """Let all clients work, and end the server meanwhile."""
        before = sum(one.answered for one in self.clients)
        wanted = self.chance.choice(self.lengths)
        server = self.server

        async def work() -> None:
            working = asyncio.gather(
                *(one.work(server.port, random.Random(self.chance.random())) for one in self.clients),
                self.watcher.work(server.port),
            )
            while sum(one.answered for one in self.clients) < before + wanted:
                await asyncio.sleep(0)  # the kill then meets any work under way
                if working.done():  # it has ended, as it must where it cannot know what is on the disk
                    break
            ending = threading.Thread(target=server.kill)
            ending.start()
            await working
            ending.join()

        asyncio.run(work())

    def start(self) -> None:
        """Start without a fault, and find the data."""
        self.server.command = self.words
        with self.server.start().client() as client:
            newest: Any = client.xrevrange(SHARED, count=20_000)
            shared = [(int(fields[b"by"]), int(fields[b"n"])) for _, fields in reversed(newest)]
            for one in self.clients:
                one.settle(client, shared)
            self.watcher.check(client)

    def start_failing(self, made: Path, fault: CallFault) -> bool:
        """Start with a failing call; return False if it fails during the start."""
        trace = self.folder / "trace"
        trace.unlink(missing_ok=True)
        self.server.command = preloading(made, self.folder / "data", trace, fault) + self.words
        try:
            self.server.start()
        except (RuntimeError, AssertionError):
            return False
        return True

    def end(self) -> int:
        """Check that everything is there; return the number of entries."""
        with self.server.client() as client:
            found = sum(one.check_all(client) for one in self.clients)
        text = self.server.log.read_text(errors="replace")
        assert "Traceback" not in text, text[-3000:]
        return found


def kills(folder: Path, seed: int, cycles: int, fsync: str) -> int:
    """Run ``cycles`` lives, each checked in the next; return their number."""
    lives = Lives(folder, seed, "--fsync", fsync)
    try:
        lives.begin()
        for _ in range(cycles):
            lives.live()
            lives.start()
        assert lives.end() > cycles
    finally:
        lives.server.__exit__()
    return cycles


def failures(
    folder: Path, made: Path, seed: int, cycles: int, fsync: str, faults: tuple[tuple[str, str, int, int], ...] = FAULTS
) -> int:
    """Run lives with a failing system call in each, and a kill some time after it; return the number of failures."""
    lives = Lives(folder, seed, "--fsync", fsync, refusals=True)
    failed = 0
    try:
        lives.begin()
        for number in range(seed * cycles, (seed + 1) * cycles):
            lives.server.kill()
            who, call, how, most = faults[number % len(faults)]
            fault = CallFault(who, call, lives.chance.randint(1, most), how, lives.chance.choice((1, 1, 3)))
            if lives.start_failing(made, fault):
                lives.live()
            failed += any(one.failed for one in calls(folder / "trace"))
            lives.start()
        assert lives.end() > cycles
    finally:
        lives.server.__exit__()
    return failed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("callfaults"))


@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_a_server_killed_under_plain_commands_is_as_the_model_says(tmp_path: Path, fsync: str) -> None:
    """After a kill under pipelined plain commands the server has the model's data, with every acknowledged command.

    Every reply is the model's too. Two kills in each mode; 300 in each are in ``make test-long``.
    """
    kills(tmp_path / "some", 1, 2, fsync)


def test_a_call_that_fails_under_plain_commands_loses_nothing(tmp_path: Path, made: Path) -> None:
    """A full disk or a failed sync under pipelined plain commands, then a kill, loses nothing acknowledged.

    Other faults are in ``make test-long``.
    """
    faults = (("server", "write", errno.ENOSPC, 5), ("server", "fsync", errno.EIO, 8))
    assert failures(tmp_path / "some", made, 0, 2, "always", faults) == 2


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_a_server_killed_many_times_under_plain_commands(tmp_path: Path, fsync: str) -> None:
    """After 300 kills under plain commands in each mode, with rewritings, the server has the model's data each time."""
    name = f"plain-kills-{fsync}"
    campaign.run(name, lambda n: kills(tmp_path / str(n), n, 10, fsync), range(30), unit="kills")


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_calls_that_fail_many_times_under_plain_commands(tmp_path: Path, made: Path, fsync: str) -> None:
    """After 200 lives with a failing system call in each mode, plain commands have lost nothing acknowledged."""
    name = f"plain-call-faults-{fsync}"
    campaign.run(name, lambda n: failures(tmp_path / str(n), made, n, 10, fsync), range(20), unit="faults")
