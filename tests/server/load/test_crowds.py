"""Thousands of clients, idle, waiting, hostile, coming and going: their cost is bounded, and nothing of them stays."""

import asyncio
import contextlib
import gc
import os
import random
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.server.connection import Connection
from millstream.server.thread import ServerThread
from support import campaign
from support.needs import lacking
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire, pack

SPARE = 200  # descriptors for everything else
KIB = 1024


@contextlib.contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Make room for ``count`` sockets in this process and in the servers it starts, or skip with the reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        lacking(f"{count} connections need {wanted} open files, this system allows {hard} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident(server: ServerProcess) -> int:
    """Return the bytes that a server's process has in memory."""
    assert server.process is not None
    try:
        text = Path(f"/proc/{server.process.pid}/statm").read_text()
    except FileNotFoundError:
        pytest.skip("the memory of another process is read from /proc, which this system has not")
    return int(text.split()[1]) * resource.getpagesize()


def connected(server: ServerProcess, stack: contextlib.ExitStack, count: int) -> list[socket.socket]:
    """Open ``count`` connections, all known to the server."""
    found = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 30)) for _ in range(count)]
    with server.client() as client:
        eventually(lambda: client.info("clients")["connected_clients"] > count)
    return found


def pings(client: Wire, count: int) -> float:
    """Return the 99th percentile of ``count`` round trips, in milliseconds."""
    spent = []
    for _ in range(count):
        began = time.perf_counter()
        assert client.ask("PING") == b"PONG"
        spent.append(time.perf_counter() - began)
    return sorted(spent)[int(count * 0.99)] * 1000


def idle(folder: Path, count: int) -> tuple[float, float]:
    """Open idle connections and send commands among them; return the bytes of each, and a PING's 99th percentile."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(descriptors(count))
        server = stack.enter_context(millstream_server(folder, "--memory", "--maxclients", str(count + 50)))
        with contextlib.ExitStack() as before:  # what the first connections cost in code and caches is not theirs
            connected(server, before, 50)
        client = stack.enter_context(Wire(server.url))
        empty = resident(server)
        crowd = connected(server, stack, count)
        slowest = pings(client, 1000)
        each = (resident(server) - empty) / count
        for sock in (crowd[0], crowd[count // 2], crowd[-1]):
            sock.sendall(pack("PING"))
            assert sock.recv(100) == b"+PONG\r\n"
    return each, slowest


def test_a_thousand_idle_connections(tmp_path: Path) -> None:
    """A thousand idle connections cost less than 16 KiB each, and every client gets its replies."""
    each, _ = idle(tmp_path, 1000)
    assert each < 16 * KIB


@pytest.mark.long
def test_ten_thousand_idle_connections(tmp_path: Path) -> None:
    """Ten thousand idle connections cost less than 16 KiB each, and every client gets its replies."""
    each, slowest = idle(tmp_path, 10_000)
    campaign.show("idle", f"{each:.0f} bytes a connection, p99 of PING beside them {slowest:.2f} ms")
    assert each < 16 * KIB


def slow_reader(folder: Path, size: int, limit: int) -> None:
    """Check that a client that reads none of ``size`` bytes is cut, and costs at most ``limit`` bytes."""
    with contextlib.ExitStack() as stack:
        options = ("--memory", "--set", f"client-output-buffer-limit=normal {limit} 0 0")
        server = stack.enter_context(millstream_server(folder, *options))
        control, slow = (stack.enter_context(Wire(server.url)) for _ in range(2))
        control.ask("SET", "big", b"x" * (16 * KIB * KIB))
        before = pings(control, 1000)
        empty = resident(server)
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
        slow.socket.sendall(pack("MULTI") + pack("GET", "big") * (size >> 24) + pack("EXEC"))
        eventually(lambda: field(control, "stats", "client_output_buffer_limit_disconnections") == "1")
        peak = int(field(control, "memory", "used_memory_rss_peak")) - empty
        beside = pings(control, 1000)
        campaign.show("slow", f"{peak} bytes more at most; p99 of PING {before:.2f} ms before, {beside:.2f} ms beside")
        assert peak <= limit + KIB * KIB
        assert slow.is_closed()


def test_what_passes_the_limit_is_not_handed_over(tmp_path: Path) -> None:
    """A message beyond a subscriber's output limit is never copied to the transport."""
    size, limit = 24 * KIB * KIB, 32 * KIB * KIB
    options = ("--memory", "--set", f"client-output-buffer-limit=pubsub {limit} 0 0")
    with millstream_server(tmp_path, *options) as server, Wire(server.url) as control, Wire(server.url) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
        slow.ask("SUBSCRIBE", "c")
        assert [control.ask("PUBLISH", "c", b"x" * size) for _ in range(2)] == [1, 1]
        eventually(lambda: field(control, "stats", "client_output_buffer_limit_disconnections") == "1")
        assert size < int(field(control, "stats", "total_net_output_bytes")) < 2 * size


def test_the_peak_is_of_this_process_alone(tmp_path: Path) -> None:
    """A server started by a large process reports its own peak memory, not its parent's."""
    weight = bytearray(300 * KIB * KIB)
    weight[::4096] = b"x" * len(weight[::4096])
    with millstream_server(tmp_path, "--memory") as server, Wire(server.url) as client:
        assert int(field(client, "memory", "used_memory_rss_peak")) < 200 * KIB * KIB
    del weight


def test_slow_reader_costs_no_more_than_its_limit(tmp_path: Path) -> None:
    """A client that does not read a reply of 256 MiB is disconnected, and costs at most its output limit."""
    slow_reader(tmp_path, 256 * KIB * KIB, 64 * KIB * KIB)


@pytest.mark.long
def test_slow_reader_of_a_gigabyte(tmp_path: Path) -> None:
    """A client that does not read a reply of a gigabyte is disconnected, and costs at most its output limit."""
    slow_reader(tmp_path, 1024 * KIB * KIB, 256 * KIB * KIB)


def test_hostile_clients_cost_little(tmp_path: Path) -> None:
    """A thousand clients that announce gigabytes, or send endless lines, cost less than 64 MiB in all."""
    hostile = [b"*2147483647\r\n", b"*1\r\n$536870912\r\n", b"x" * 64 * KIB, b"*1048576\r\n$1\r\na\r\n$1\r\n", b"*"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(descriptors(1000))
        server = stack.enter_context(millstream_server(tmp_path, "--memory"))
        client = stack.enter_context(Wire(server.url))
        client.ask("PING")
        empty = resident(server)
        sent = 0
        for number, sock in enumerate(connected(server, stack, 1000)):
            sock.sendall(hostile[number % len(hostile)])
            sent += len(hostile[number % len(hostile)])
        eventually(lambda: int(field(client, "stats", "total_net_input_bytes")) >= sent)
        cost = resident(server) - empty
        assert cost < 64 * KIB * KIB


def field(wire: Wire, section: str, name: str) -> str:
    """Return one field of INFO."""
    text: str = wire.ask("INFO", section).decode()
    return text.partition(f"{name}:")[2].partition("\r")[0]


def readable(sockets: list[socket.socket]) -> list[int]:
    """Return those sockets that have something to read now."""
    poll = select.poll()
    for sock in sockets:
        poll.register(sock, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll(0)}
    return [number for number, sock in enumerate(sockets) if sock.fileno() in ready]


def waiting_crowd(folder: Path, count: int) -> None:
    """Let consumers wait in one group, add entries one by one, and end some consumers meanwhile."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(descriptors(count))
        server = stack.enter_context(millstream_server(folder, "--memory", "--maxclients", str(count + 50)))
        control = stack.enter_context(Wire(server.url))
        control.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        crowd = connected(server, stack, count)
        for number, sock in enumerate(crowd):
            sock.sendall(pack("XREADGROUP", "GROUP", "g", f"c{number}", "BLOCK", 0, "STREAMS", "s", ">"))
            while int(field(control, "clients", "blocked_clients")) <= number:
                pass  # asks until it waits, so that they wait in a known order
        control.ask("XADD", "s", "1-1", "f", "v")
        assert control.ask("PING") == b"PONG"
        assert readable(crowd) == [0]
        assert crowd[0].recv(1000).count(b"1-1") == 1
        for sock in crowd[1:11]:
            sock.close()
        eventually(lambda: int(field(control, "clients", "blocked_clients")) == count - 11)
        rest = crowd[11:]
        for number in range(3):
            control.ask("XADD", "s", f"{number + 2}-1", "f", "v")
            assert control.ask("PING") == b"PONG"
            assert readable(rest) == [number]
            assert rest[number].recv(1000).count(b"%d-1" % (number + 2)) == 1
        summary = control.ask("XPENDING", "s", "g")
        assert summary[0] == 4
        assert sorted(summary[3]) == sorted([[name, b"1"] for name in (b"c0", b"c11", b"c12", b"c13")])
        for sock in rest:
            sock.close()
        eventually(lambda: field(control, "clients", "blocked_clients") == "0")
        control.ask("XADD", "s", "9-1", "f", "v")
        assert control.ask("XPENDING", "s", "g")[0] == 4


def test_five_hundred_wait_and_one_is_served(tmp_path: Path) -> None:
    """With five hundred waiting consumers an entry goes to the one that waited longest. Those who left get none."""
    waiting_crowd(tmp_path, 500)


@pytest.mark.long
def test_five_thousand_wait_and_one_is_served(tmp_path: Path) -> None:
    """With five thousand waiting consumers an entry goes to the one that waited longest."""
    waiting_crowd(tmp_path, 5000)


ENDINGS = [
    b"",
    pack("SET", "a", "x" * 300),
    pack("MULTI") + pack("SET", "a", 1) + pack("XADD", "t", "MAXLEN", 5, "*", "f", "v"),
    pack("WATCH", "a", "b") + pack("MULTI") + pack("GET", "a"),
    pack("SUBSCRIBE", "c", "d") + pack("PSUBSCRIBE", "c*"),
    pack("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">"),
    pack("XREADGROUP", "GROUP", "g", "c", "BLOCK", 5, "CLAIM", 10, "STREAMS", "s", ">") + pack("PING"),
    pack("BLPOP", "nothing", 0),
    pack("HELLO", 3) + pack("CLIENT", "REPLY", "OFF") + pack("PING"),
    pack("NOSUCH") * 100,
    pack("GET", "big") * 20,
    pack("QUIT"),
    b"*x\r\n",
    b"POST / HTTP/1.1\r\n",
]


class Visits:
    """Clients of one server that disconnect at any byte of their commands.

    Args:
        server: in this process, so that all of it can be examined.
        seed: for the time and kind of leaving.
    """

    def __init__(self, server: ServerThread, seed: int) -> None:
        self._server = server
        self._chance = random.Random(seed)

    def visit(self, count: int) -> None:
        """Let ``count`` clients visit, one after the other."""
        for _ in range(count):
            words = self._chance.choice(ENDINGS)
            with Wire(self._server.url) as wire:
                with contextlib.suppress(ConnectionError):  # QUIT, HTTP and broken bytes are cut
                    wire.socket.sendall(words[: self._chance.randint(len(words) // 2, len(words))])
                    if self._chance.random() < 0.3:
                        wire.socket.shutdown(socket.SHUT_WR)
                if self._chance.random() < 0.2:  # a reset instead of an end
                    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def held(self, control: Wire) -> list[int]:
        """Return the server's resources once all have left: descriptors, tasks, sessions, waiters and so on."""
        server, node = self._server.server, self._server.server.node
        eventually(lambda: len(server.open_connections) == 1, what="only the control is connected")
        eventually(lambda: control.ask("PING") == b"PONG")
        gc.collect()
        return [
            len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - a count, not paths
            len(asyncio.all_tasks(server.loop)),
            len(list(node.sessions)),
            sum(type(found) is Connection for found in gc.get_objects()),  # with any holder
            len(node.waits),
            len(node.sessions.watches),
            len(list(node.sessions.channels)) + len(list(node.sessions.patterns)),
        ]


def visits(count: int, seed: int) -> None:
    """Let clients come and go; check that nothing of them is left, and memory is as before."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("open descriptors are counted in /proc, which this system has not")
    with ServerThread() as server, Wire(server.url) as control:
        control.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        control.ask("SET", "big", "x" * 200_000)
        crowd = Visits(server, seed)
        crowd.visit(300)  # codes are compiled and caches filled
        before = crowd.held(control)
        gc.collect()
        blocks = sys.getallocatedblocks()
        crowd.visit(count)
        eventually(lambda: crowd.held(control) == before, what=f"the server holds what it held before: {before}")
        gc.collect()
        grown = sys.getallocatedblocks() - blocks
        assert grown < count / 2, "no object for each visit stays"
        assert not server.server.facts.internal_errors


def test_visitors_leave_nothing_behind() -> None:
    """A thousand clients that leave at any byte leave no descriptor, session, waiter or memory."""
    visits(1000, 1)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_very_many_visitors_leave_nothing_behind() -> None:
    """Ten thousand visitors on each of ten servers leave no descriptor, session, waiter or memory."""
    campaign.run("visitors", lambda seed: visits(10_000, seed), range(2, 12))
