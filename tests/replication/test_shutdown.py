"""SHUTDOWN and SIGTERM wait for lagging replicas, with the same replies as a redis-server."""

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from replication.test_redis_follows import info
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver

NOT_ENDED = "ERR Errors trying to SHUTDOWN. Check logs."


@pytest.fixture(params=["ours", pytest.param("memory", marks=pytest.mark.long), "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    if request.param == "redis":
        made = redis_server(tmp_path)
    else:
        made = millstream_server(tmp_path, *(["--memory"] if request.param == "memory" else []))
    with made:
        yield made


class Lagging:
    """A replica that reads the stream and acknowledges on request.

    Args:
        server: its primary.
    """

    def __init__(self, server: ServerProcess) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        self._socket.sendall(b"REPLCONF listening-port 1\r\n")
        assert self._socket.recv(100) == b"+OK\r\n"
        self._socket.sendall(b"PSYNC ? -1\r\n")
        data = b""
        while (found := re.search(rb"FULLRESYNC \w+ \d+\r\n\n*\$(\d+)\r\n", data)) is None:
            data += self._socket.recv(65536)
        while len(data) < found.end() + int(found[1]):
            data += self._socket.recv(65536)

    def acknowledge(self, offset: str) -> None:
        self._socket.sendall(b"REPLCONF ACK %d\r\n" % int(offset))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def lagging(server: ServerProcess) -> Iterator[Lagging]:
    """Yield a replica that follows and lacks a write."""
    with contextlib.closing(Lagging(server)) as replica, Wire(server.url) as wire:
        replica.acknowledge("0")
        eventually(lambda: "state=online" in info(wire).get("slave0", ""), what="it is online")
        wire.ask("SET", "k", "1")
        yield replica


def is_waiting(wire: Wire) -> bool:
    return int(info(wire, "server").get("shutdown_in_milliseconds", "0")) > 0


def ended(server: ServerProcess) -> str:
    """Return the log of a server after a clean end."""
    assert server.process is not None
    assert server.process.wait(30) == 0
    return server.log.read_text()


def test_shutdown_waits_and_can_be_aborted(server: ServerProcess, lagging: Lagging) -> None:
    """While SHUTDOWN waits, its client and writers are blocked, readers are not.

    ABORT ends the wait, SIGTERM repeats it.
    """
    with Wire(server.url) as one, Wire(server.url) as two, Wire(server.url) as wire, Wire(server.url) as writer:
        assert str(wire.ask("SHUTDOWN", "ABORT")) == "ERR No shutdown in progress."
        assert str(wire.ask("SHUTDOWN", "ABORT", "NOW")) == "ERR syntax error"
        waiting = one.ask("CLIENT", "ID")
        one.send("SHUTDOWN")
        eventually(lambda: is_waiting(wire), what="it waits for the replica")
        two.send("SHUTDOWN", "NOSAVE")
        writer.send("INCR", "k")
        eventually(lambda: info(wire, "clients")["blocked_clients"] == "3", what="three wait")
        assert wire.ask("GET", "k") == b"1"
        if server.release() >= (8, 8):  # TIMEOUT crashes 7.0.15, where ERROR ends the wait and then the server
            assert [wire.ask("CLIENT", "UNBLOCK", waiting, word) for word in ("TIMEOUT", "ERROR")] == [0, 0]
        assert wire.ask("CLIENT", "UNPAUSE") == b"OK"  # that is another pause
        assert wire.ask("SHUTDOWN", "ABORT") == b"OK"
        assert [str(each.read()) for each in (one, two)] == [NOT_ENDED] * 2
        assert writer.read() == 2
        assert not is_waiting(wire)
        assert server.process is not None
        server.process.terminate()  # a second SHUTDOWN crashes Redis 7.0.15
        eventually(lambda: is_waiting(wire), what="it waits for the replica")
        lagging.acknowledge(info(wire)["master_repl_offset"])
        assert one.is_closed()
    text = ended(server)
    for line in (
        "User requested shutdown...",
        "Waiting for replicas before shutting down.",
        "Shutdown manually aborted.",
        "1 of 1 replicas are in sync when shutting down.",
        "is now ready to exit, bye bye...",
    ):
        assert line in text
    assert "Lagging replica" not in text


@pytest.mark.usefixtures("lagging")
def test_it_waits_no_longer_than_told(server: ServerProcess) -> None:
    """SHUTDOWN and SIGTERM wait at most ``shutdown-timeout`` seconds; then the log names the lagging replicas."""
    with Wire(server.url) as wire:
        assert wire.ask("CONFIG", "GET", "shutdown-timeout") == [b"shutdown-timeout", b"10"]
        wire.ask("CONFIG", "SET", "shutdown-timeout", "1")
        assert server.process is not None
        server.process.terminate()
        eventually(lambda: is_waiting(wire), what="it waits for the replica")
    text = ended(server)
    assert re.search(r"Lagging replica 127\.0\.0\.1:1 reported offset \d+ behind master, lag=\d+, state=online", text)
    assert "0 of 1 replicas are in sync when shutting down." in text


@pytest.mark.usefixtures("lagging")
@pytest.mark.parametrize("words", [["NOW"], pytest.param(["NOW", "NOSAVE", "FORCE"], marks=pytest.mark.long), []])
def test_now_waits_for_nobody(server: ServerProcess, words: list[str]) -> None:
    """SHUTDOWN NOW waits for no replica, nor does SHUTDOWN with ``shutdown-timeout`` 0."""
    with Wire(server.url) as wire:
        wire.ask("CONFIG", "SET", "shutdown-timeout", "300" if words else "0")
        wire.send("SHUTDOWN", *words)
        assert wire.is_closed()
    text = ended(server)
    assert "0 of 1 replicas are in sync when shutting down." in text
    assert "Waiting for replicas" not in text
