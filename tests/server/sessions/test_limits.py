"""Every limit of the protocol and of a connection, at its value and one beyond, before and after AUTH.

``TESTED`` names the test of each limit of :mod:`millstream.protocol.limits`; a limit without a row fails here. Inputs
that must be damaged or cut in every way at the reader itself are in ``tests/protocol``.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from millstream.commands.context.config import Config
from millstream.protocol import limits
from millstream.server.connection import Connection
from millstream.server.figures.machine import peak_resident
from millstream.server.settings import Delays
from millstream.server.thread import ServerThread
from support.clock import Ahead
from support.waiting import eventually
from support.wire import Wire, pack

HERE = "tests/server/sessions/test_limits.py"
SESSIONS = "tests/server/sessions/test_sessions.py"
TESTED = {
    "INLINE_MAX": (f"{HERE}::test_last_size_and_first_too_large", "tests/protocol/test_reader.py::test_broken_input"),
    "MULTIBULK_MAX": (f"{HERE}::test_last_size_and_first_too_large",),
    "MULTIBULK_MAX_UNAUTHENTICATED": (f"{HERE}::test_last_size_and_first_too_large",),
    "BULK_MAX": (f"{HERE}::test_last_size_and_first_too_large",),
    "BULK_MAX_UNAUTHENTICATED": (f"{HERE}::test_last_size_and_first_too_large",),
    "QUERY_BUFFER_MAX": (f"{HERE}::test_query_buffer", f"{SESSIONS}::test_query_buffer_limit"),
    "QUERY_BUFFER_MAX_UNAUTHENTICATED": (f"{HERE}::test_query_buffer",),
    "CHANGE_MAX": ("tests/node/test_large_changes.py::test_a_transaction_is_refused_what_is_too_much",),
    "OUTPUT_HARD_MAX": (f"{HERE}::test_output_hard_limit", f"{HERE}::test_figures_are_the_defaults"),
    "OUTPUT_SOFT_MAX": (f"{HERE}::test_output_soft_limit", f"{HERE}::test_figures_are_the_defaults"),
    "OUTPUT_SOFT_SECONDS": (f"{HERE}::test_output_soft_limit", f"{HERE}::test_figures_are_the_defaults"),
    "MAX_CLIENTS": (f"{SESSIONS}::test_max_clients", f"{HERE}::test_figures_are_the_defaults"),
    "KEEPALIVE_SECONDS": (f"{HERE}::test_keepalive",),
}
# Limits of Redis that have no figure of ours: what is allotted for an announced size, HTTP, protected mode
ALSO = (
    "tests/protocol/test_reader.py::test_hostile_headers_cost_nothing",
    "tests/server/load/test_crowds.py::test_hostile_clients_cost_little",
    f"{HERE}::test_http_is_cut",
    f"{SESSIONS}::test_protected_mode",
)
SECRET = "secret"
ROOT = Path(__file__).parents[3]


def test_every_limit_has_its_test() -> None:
    """The table names every limit, each with an existing test."""
    assert set(TESTED) == {name for name in vars(limits) if name.isupper()}
    for place in (*ALSO, *(place for places in TESTED.values() for place in places)):
        file, _, name = place.partition("::")
        assert f"def {name}" in (ROOT / file).read_text(), place


@pytest.fixture
def server() -> Iterator[ServerThread]:
    """Yield a server with a password."""
    with ServerThread(parameters={"requirepass": SECRET}) as running:
        yield running


def stranger(server: ServerThread) -> Wire:
    """Open a connection before AUTH."""
    return Wire(server.url)


def friend(server: ServerThread) -> Wire:
    """Open a connection after AUTH."""
    wire = Wire(server.url)
    assert wire.ask("AUTH", SECRET) == b"OK"
    return wire


Open = Callable[[ServerThread], Wire]
BOTH = pytest.mark.parametrize("who", [stranger, friend])


@dataclass
class Size:
    """One limit on the wire.

    Attributes:
        largest: bytes that are still read as the beginning of a command.
        too_large: one more.
        error: Redis's error for it.
    """

    largest: bytes
    too_large: bytes
    error: str


LINE = b"x" * limits.INLINE_MAX
INLINE = Size(LINE, LINE + b"x", "too big inline request")
COUNT_LINE = Size(b"*" + LINE[1:], b"*" + LINE, "too big mbulk count string")
LENGTH_LINE = Size(b"*1\r\n$" + LINE[1:], b"*1\r\n$" + LINE, "too big bulk count string")


@pytest.mark.parametrize(
    ("who", "size"),
    [
        (stranger, INLINE),
        (friend, INLINE),
        (stranger, COUNT_LINE),
        (friend, COUNT_LINE),
        (stranger, LENGTH_LINE),
        (friend, LENGTH_LINE),
        (stranger, Size(b"*10\r\n", b"*11\r\n", "unauthenticated multibulk length")),
        (friend, Size(b"*2147483647\r\n", b"*2147483648\r\n", "invalid multibulk length")),
        (stranger, Size(b"*1\r\n$16384\r\n", b"*1\r\n$16385\r\n", "unauthenticated bulk length")),
        (friend, Size(b"*1\r\n$536870912\r\n", b"*1\r\n$536870913\r\n", "invalid bulk length")),
    ],
)
def test_last_size_and_first_too_large(server: ServerThread, who: Open, size: Size) -> None:
    """A command of the largest size is read. One larger gets Redis's error, and the connection closes."""
    with friend(server) as other, who(server) as patient, who(server) as greedy:
        patient.socket.sendall(size.largest)
        greedy.socket.sendall(size.too_large)
        assert str(greedy.read()) == f"ERR Protocol error: {size.error}"
        assert greedy.is_closed()
        assert b"millstream_protocol_errors:1\r\n" in other.ask("INFO", "stats")
        host, port = patient.socket.getsockname()
        assert f"addr={host}:{port} ".encode() in other.ask("CLIENT", "LIST")


@pytest.mark.parametrize(
    ("who", "limit"), [(stranger, "QUERY_BUFFER_MAX_UNAUTHENTICATED"), (friend, "QUERY_BUFFER_MAX")]
)
def test_query_buffer(server: ServerThread, who: Open, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More unread input than the limit before or after AUTH closes the connection without a reply, and counts."""
    monkeypatch.setattr(limits, limit, 10_000)
    with friend(server) as other, who(server) as wire:
        wire.socket.sendall(b"*2\r\n$15000\r\n" + b"x" * 15_000)
        assert wire.socket.recv(100) == b""
        assert b"client_query_buffer_limit_disconnections:1\r\n" in other.ask("INFO", "stats")


@BOTH
@pytest.mark.parametrize("words", [b"POST / HTTP/1.1\r\n", b"Host: x\r\n", pack("post", "/")])
def test_http_is_cut(server: ServerThread, who: Open, words: bytes) -> None:
    """An HTTP client is disconnected without a reply, with the password or without, and counted."""
    with friend(server) as other, who(server) as wire:
        wire.socket.sendall(words + pack("SET", "smuggled", 1))
        assert wire.is_closed()
        assert other.ask("EXISTS", "smuggled") == 0
        assert b"millstream_cross_protocol_disconnections:1\r\n" in other.ask("INFO", "stats")


def descriptor(client: Wire) -> int:
    """Return the server's end of a connection, which is a descriptor of this process."""
    return int(client.ask("CLIENT", "INFO").partition(b" fd=")[2].split()[0])


def test_keepalive(server: ServerThread) -> None:
    """TCP keepalive checks a silent client, after the same time as in Redis."""
    with friend(server) as client, socket.socket(fileno=os.dup(descriptor(client))) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == limits.KEEPALIVE_SECONDS


def test_figures_are_the_defaults() -> None:
    """A server started without options has these limits."""
    config = Config()
    output = config.output_limits.normal
    assert config.max_clients == limits.MAX_CLIENTS
    assert (output.hard, output.soft, output.seconds) == (
        limits.OUTPUT_HARD_MAX,
        limits.OUTPUT_SOFT_MAX,
        limits.OUTPUT_SOFT_SECONDS,
    )


def too_full(server: ServerThread) -> list[Connection]:
    """Return the connections above their soft output limit."""
    return [each for each in server.server.open_connections if each.slow_since is not None]


CUT = b"client_output_buffer_limit_disconnections:%d\r\n"
BIG = 32 * 1024 * 1024


def test_output_hard_limit() -> None:
    """A client above the hard output limit is disconnected at once and counted. One below it stays."""
    with (
        ServerThread(parameters={"client-output-buffer-limit": "normal 48mb 0 0"}) as server,
        Wire(server.url) as other,
    ):
        other.ask("SET", "big", b"x" * BIG)
        with Wire(server.url) as slow, Wire(server.url) as patient:
            patient.send("GET", "big")
            slow.socket.sendall(pack("MULTI") + pack("GET", "big") + pack("GET", "big") + pack("EXEC"))
            eventually(lambda: CUT % 1 in other.ask("INFO", "stats"))
            assert other.ask("PING") == b"PONG"
            assert len(patient.read()) == BIG
            assert slow.is_closed()


def test_output_hard_limit_of_small_replies() -> None:
    """The hard output limit also ends a client with many small unread replies to plain commands sent one by one."""
    with (
        ServerThread(parameters={"client-output-buffer-limit": "normal 1mb 0 0"}) as server,
        Wire(server.url) as other,
        Wire(server.url) as slow,
    ):
        other.ask("SET", "k", b"x" * 200_000)
        facts = server.server.facts
        for _ in range(300):  # the system takes some megabytes of them
            before = facts.output_bytes
            with suppress(OSError):  # it was cut for the one before
                slow.send("GET", "k")
            eventually(lambda before=before: facts.output_bytes > before or facts.output_buffer_closed)
            if facts.output_buffer_closed:
                break
        assert CUT % 1 in other.ask("INFO", "stats")
        assert slow.is_closed()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([["MGET", *["k"] * 20_000]], id="one string often"),
        pytest.param([["MULTI"], *[["GETRANGE", "k", 0, -2]] * 20_000, ["SET", "done", 1], ["EXEC"]], id="transaction"),
    ],
)
def test_a_reply_above_the_hard_limit_is_not_made(words: list[list[str | int]]) -> None:
    """A small request with a reply above the hard output limit is disconnected before that reply takes memory.

    The changes of its commands are made.
    """
    with ServerThread(parameters={"client-output-buffer-limit": "normal 8mb 0 0"}) as server, Wire(server.url) as other:
        other.ask("SET", "k", b"x" * 50_000)
        before = peak_resident()
        with Wire(server.url) as greedy:
            greedy.socket.sendall(b"".join(pack(*each) for each in words))
            assert greedy.is_closed()
        assert CUT % 1 in other.ask("INFO", "stats")
        assert other.ask("EXISTS", "done") == (len(words) > 1)
        assert peak_resident() - before < 200 * 1024 * 1024  # written out it would be 1,000 MB


def test_who_wants_no_replies_is_not_cut_for_them() -> None:
    """A large transaction under CLIENT REPLY OFF stays connected, since unsent replies take no memory."""
    with ServerThread(parameters={"client-output-buffer-limit": "normal 8mb 0 0"}) as server, Wire(server.url) as wire:
        wire.ask("SET", "k", b"x" * 50_000)
        quiet = [["CLIENT", "REPLY", "OFF"], ["MULTI"], *[["GET", "k"]] * 400, ["EXEC"], ["CLIENT", "REPLY", "ON"]]
        wire.socket.sendall(b"".join(pack(*each) for each in quiet))
        assert wire.read() == b"OK"


def test_output_soft_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client above the soft output limit is disconnected after the configured time, unless it reads its replies."""
    parameters = {"client-output-buffer-limit": "normal 0 4mb 60"}
    with ServerThread(parameters=parameters) as server, Wire(server.url) as other:
        server.server.settings = replace(server.settings, delays=Delays(slow_check=0.01))
        clock = Ahead()
        server.server.clock = clock
        other.ask("SET", "big", b"x" * BIG)
        with Wire(server.url) as slow, Wire(server.url) as quick:
            slow.send("GET", "big")
            assert len(quick.ask("GET", "big")) == BIG
            eventually(lambda: len(too_full(server)) == 1)
            clock.ms += 30_000
            (watched,) = too_full(server)
            since, checks = watched.slow_since, []
            check = type(watched).check_output
            monkeypatch.setattr(type(watched), "check_output", lambda self: checks.append(self) or check(self))
            eventually(lambda: len(checks) > 2)
            assert watched.slow_since == since
            assert CUT % 0 in other.ask("INFO", "stats")
            clock.ms += 30_000
            eventually(lambda: CUT % 1 in other.ask("INFO", "stats"))
            assert quick.ask("PING") == b"PONG"
            assert slow.is_closed()
