"""Backups while twenty clients write and the log rolls, checks of a growing log, and SIGKILL, with real servers."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import millstream
from millstream.maintenance.backup.backup import back_up
from millstream.maintenance.backup.restore import restore
from millstream.maintenance.log.dump import Choice, dump
from millstream.maintenance.log.examine import examine_directory
from support.ports import free_port
from support.servers import ServerProcess
from support.waiting import eventually

WRITERS = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a server with small log files."""
    port = free_port()
    program = str(Path(__file__).with_name("rolling_server.py"))
    words = [sys.executable, program, "serve", "--port", str(port), "--dir", str(tmp_path / "data")]
    with ServerProcess(words, port, tmp_path / "server.out") as running:
        yield running


class Crowd:
    """Clients that add numbers, each to its own stream, and note the acknowledged ones."""

    def __init__(self, server: ServerProcess) -> None:
        self.acknowledged = [0] * WRITERS
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(server, each)) for each in range(WRITERS)]

    def _write(self, server: ServerProcess, each: int) -> None:
        with server.client() as client:
            while not self._stop.is_set():
                number = self.acknowledged[each] + 1
                try:
                    client.xadd(f"w{each}", {"n": number, "pad": "x" * 100})
                except redis.RedisError:  # killed
                    return
                self.acknowledged[each] = number

    def __enter__(self) -> "Crowd":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, more: int) -> list[int]:
        """Wait for that many more acknowledged entries, and return the number of each client."""
        wanted = sum(self.acknowledged) + more
        eventually(lambda: sum(self.acknowledged) >= wanted, what=f"{more} entries more")
        return list(self.acknowledged)


def entries(home: Path) -> list[list[int]]:
    """Return the numbers of every writer in a data directory."""
    with millstream.connect(f"file://{home}", decode_responses=True) as client:
        return [[int(fields["n"]) for _, fields in client.xrange(f"w{each}")] for each in range(WRITERS)]


def rewrite(client: redis.Redis) -> None:
    """Start a rewrite of the log, unless one is running."""
    try:
        client.bgrewriteaof()
    except redis.ResponseError as error:
        assert "already in progress" in str(error)  # noqa: PT017 - either is right


def test_backups_in_a_loop(server: ServerProcess, tmp_path: Path) -> None:
    """Each backup under load restores a prefix of each client's writes, with all acknowledged before it began."""
    rounds = 8
    with Crowd(server) as crowd, server.client() as client:
        crowd.wait_for(200)
        for each in range(rounds):
            before = list(crowd.acknowledged)
            made = back_up(tmp_path / "data", tmp_path / f"backup{each}")
            after = crowd.wait_for(300)
            if each % 2:
                rewrite(client)
            restore(made.path, tmp_path / f"restored{each}")
            found = entries(tmp_path / f"restored{each}")
            for writer in range(WRITERS):
                assert found[writer] == list(range(1, len(found[writer]) + 1)), (each, writer)
                assert before[writer] <= len(found[writer]) <= after[writer] + 1, (each, writer)
    assert len(list((tmp_path / "data").glob("log-*"))) + made.facts.snapshot_last > 2  # it had rolled
    assert not list(tmp_path.glob("*.partial-*"))


def test_checks_and_dumps_of_a_growing_log_find_nothing_wrong(server: ServerProcess, tmp_path: Path) -> None:
    """A check or dump of a log beside its running server finds no damage."""
    with Crowd(server) as crowd:
        for _ in range(25):
            before = sum(crowd.wait_for(20))
            found = examine_directory(tmp_path / "data")
            assert found.report.problems == []
            assert found.running
            assert found.last >= before
        added = sum(change.op == "xadd" for record in dump(tmp_path / "data", Choice()) for change in record.changes)
        assert added + 20 * found.begin >= before


def test_killed_in_the_midst_of_writing(server: ServerProcess, tmp_path: Path) -> None:
    """After SIGKILL under load, ``log check`` reports how many records a start will have, and the start has them."""
    with Crowd(server) as crowd:
        crowd.wait_for(500)
        server.kill()
    found = examine_directory(tmp_path / "data")
    assert found.report.starts
    assert not found.running
    assert found.last >= sum(crowd.acknowledged)
    made = back_up(tmp_path / "data", tmp_path / "backup")
    assert made.facts.last == found.last
    server.start()
    with server.client() as client:
        recovered = [client.xlen(f"w{each}") for each in range(WRITERS)]
    server.kill()
    assert recovered == [len(numbers) for numbers in entries(tmp_path / "backup")]
    assert all(there >= wanted for there, wanted in zip(recovered, crowd.acknowledged, strict=True))
