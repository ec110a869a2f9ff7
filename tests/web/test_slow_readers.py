"""A slow or silent reader costs bounded memory and blocks no other reader."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
import redis

from millstream.web.serving import connections, live
from support.console import ConsoleThread
from support.waiting import DEADLINE, eventually

_LARGE = b"x" * 1_000_000


@contextlib.contextmanager
def unread(console: ConsoleThread, path: str, accept: str = "*/*") -> Iterator[socket.socket]:
    """A browser that requests a page and does not read it."""
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.settimeout(DEADLINE)
        opened.connect(("127.0.0.1", console.port))
        opened.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\nAccept: {accept}\r\n\r\n".encode())
        yield opened


def connected(console: ConsoleThread) -> int:
    return len(console.process.server_state.connections)


def test_somebody_who_reads_nothing_is_hung_up_on(
    console: ConsoleThread, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that reads nothing is closed and its data freed. One that reads slowly receives all of it."""
    monkeypatch.setattr(connections, "PATIENCE", 1.0)
    for _ in range(20):
        client.xadd("large", {"v": _LARGE})
    eventually(lambda: connected(console) == 0, what="the pages before are gone")
    with (
        unread(console, "/stream.jsonl?key=large&count=20") as stuck,
        unread(console, "/stream.jsonl?key=large&count=20") as slow,
    ):
        read = 0

        def hung_up() -> bool:
            nonlocal read
            read += len(slow.recv(400_000))
            return connected(console) == 1

        eventually(hung_up, what="who reads nothing is gone, who reads is there")
        while read < 20 * len(_LARGE):
            got = len(slow.recv(1 << 20))
            assert got, "the file was cut"
            read += got
        kept = 0
        while piece := stuck.recv(1 << 20):  # what the kernel had taken
            kept += len(piece)
        assert kept < 20 * len(_LARGE)


def test_no_more_pages_are_live_than_the_console_bears(
    console: ConsoleThread, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit of live pages a reader gets the page with the reason, and updates once there is room."""
    client.xadd("orders", {"n": 1})
    monkeypatch.setattr(live, "MOST", 2)
    eventually(lambda: not console.process.server_state.tasks, what="the pages before are gone")
    with contextlib.ExitStack() as others:
        for _ in range(2):
            others.enter_context(unread(console, "/", "text/event-stream"))
        eventually(lambda: len(console.process.server_state.tasks) == 2, what="both are live")
        with console.events("/") as one:
            kind, facts = one.next()
        assert kind == "full"
        assert facts["trouble"].startswith("This page is not live: the limit of 2 live pages is reached.")
        assert console.ask("/").status == 200

    def is_live() -> bool:
        with console.events("/") as one:
            return one.next()[0] == "page"

    eventually(is_live, what="there is room again")


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nkey=",
        b"GET /static/icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nG",
    ],
    ids=["nothing", "head", "body", "second"],
)
def test_a_request_that_does_not_come_is_not_awaited_for_ever(
    console: ConsoleThread, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """A connection without a complete request is closed, also after an earlier request."""
    monkeypatch.setattr(connections, "PATIENCE", 1.0)
    with socket.create_connection(("127.0.0.1", console.port), DEADLINE) as opened:
        opened.sendall(begun)
        with contextlib.suppress(ConnectionResetError):
            while opened.recv(1 << 16):
                pass


def test_who_only_waits_makes_room_for_who_asks(console: ConsoleThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections are closed to make room for a new request."""
    monkeypatch.setattr(connections, "MOST", 4)
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(socket.create_connection(("127.0.0.1", console.port), DEADLINE))
        assert console.ask("/static/icon.svg").status == 200
        eventually(lambda: connected(console) <= 4)  # also the connection of the reply ends
