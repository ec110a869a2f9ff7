"""Servers with a data directory, the same entries for each of them, and what the system says about their processes."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis
from bench.pairs import free_port
from bench.server.servers import Server

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))
KEY, STEP = b"s", 10_000
"""The stream, and the number of entries or commands that are sent together."""
_FIRST = 1_700_000_000_000
_PATIENCE = 3600.0
_TICK: float = 1 / os.sysconf("SC_CLK_TCK")


def identifier(number: int) -> bytes:
    """Return the id of an entry: ten in each millisecond."""
    return b"%d-%d" % (_FIRST + number // 10, number % 10)


def additions(first: int, count: int) -> bytes:
    """Encode XADD for some entries of two fields: a number of 12 digits, and 60 bytes."""
    body = b"x" * 48
    made = []
    for number in range(first, first + count):
        name = identifier(number)
        words = (b"$%d\r\n%b\r\n" % (len(name), name), b"$1\r\nn\r\n$12\r\n%012d\r\n" % number)
        made.append(b"*7\r\n$4\r\nXADD\r\n$1\r\ns\r\n%b%b$1\r\nb\r\n$60\r\n%012d%b\r\n" % (*words, number, body))
    return b"".join(made)


def pack(*words: bytes | str | int) -> bytes:
    """Encode a command."""
    found = [each if isinstance(each, bytes) else str(each).encode() for each in words]
    return b"*%d\r\n" % len(found) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in found)


class Raw:
    """A connection that does not parse what it need not."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._mark = b"$8\r\nthe-end!\r\n"
        self._echo = pack("ECHO", "the-end!")

    def ask(self, commands: bytes) -> bytes:
        """Send commands, and return the bytes of their replies."""
        self._socket.sendall(commands + self._echo)
        parts, tail = [], b""
        while not tail.endswith(self._mark):
            part = self._socket.recv(1 << 20)
            if not part:
                raise RuntimeError("the server closed the connection")
            parts.append(part)
            tail = (tail + part)[-len(self._mark) :]
        return b"".join(parts)[: -len(self._mark)]

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def fill(server: Server, entries: int, first: int = 0) -> float:
    """Add entries to the stream; return the seconds that it took."""
    raw, begun = Raw(server.port), time.perf_counter()
    for at in range(first, first + entries, STEP):
        replies = raw.ask(additions(at, min(STEP, first + entries - at)))
        if replies.startswith(b"-"):
            raise RuntimeError(replies[:200].decode())
    raw.close()
    return time.perf_counter() - begun


def pages(
    server: Server,
    count: int,
    *,
    take: Callable[[bytes], None] = lambda page: None,  # noqa: ARG005 - most only count
    wait: Callable[[int], None] = lambda number: None,  # noqa: ARG005 - most do not wait
    split: bool = False,
) -> int:
    """Read the stream by XRANGE from its first entry to its last; return the bytes of all replies.

    With ``split`` the replies' lines are separated, as a client that parses would do.
    """
    raw, size, number, first = Raw(server.port), 0, 0, b"-"
    while True:
        reply = raw.ask(pack("XRANGE", KEY, first, "+", "COUNT", count))
        if reply.startswith(b"-"):
            raise RuntimeError(reply[:200].decode())
        size += len(reply)
        if reply == b"*0\r\n":
            raw.close()
            return size
        take(reply)
        if split:
            reply.split(b"\r\n")
        number += 1
        wait(number)
        last = reply[reply.rindex(b"\r\n*4\r\n") - 25 :].split(b"\r\n")
        first = b"(" + next(each for each in last if b"-" in each and not each.startswith(b"$"))


class Place:
    """A data directory and the server on it."""

    def __init__(self, folder: Path, name: str, words: Callable[[int, Path], list[str]]) -> None:
        self.folder, self.name, self._words = folder, name, words
        folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.server: Server
        self.seconds = self.processor = 0.0  # Result of the last start

    def start(self) -> Server:
        """Start the server, and wait until it has loaded its data."""
        port = free_port()
        begun = time.perf_counter()
        self.process = subprocess.Popen(
            self._words(port, self.folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        client = redis.Redis(port=port, socket_timeout=_PATIENCE)
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended at once")
            with contextlib.suppress(redis.RedisError, OSError):
                client.ping()
                if not client.info("persistence").get("loading"):
                    break
            time.sleep(0.005)  # the end of loading is only found by asking
        self.server = Server(self.name, port, self.process.pid, client)
        self.seconds, self.processor = time.perf_counter() - begun, self.server.clock()
        return self.server

    def kill(self) -> None:
        """End the server by SIGKILL."""
        if self.process is not None:
            self.server.client.close()
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def __enter__(self) -> "Place":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def millstream(folder: Path, name: str, *options: str, fsync: str = "everysec") -> Place:
    """Return a place for Millstream with some parameters."""
    settings = [word for each in ("auto-aof-rewrite-percentage=0", *options) for word in ("--set", each)]

    def words(port: int, where: Path) -> list[str]:
        return [MILLSTREAM, "serve", "--port", str(port), "--dir", str(where), "--fsync", fsync, *settings]

    return Place(folder, name, words)


def redis_server(folder: Path, program: str) -> Place:
    """Return a place for redis-server with an append-only file."""

    def words(port: int, where: Path) -> list[str]:
        plain = ["--save", "", "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"]
        return [program, "--port", str(port), "--dir", str(where), *plain]

    return Place(folder, "redis-server", words)


def base_memory(folder: Path) -> int:
    """Return ``used_memory`` of an empty server."""
    with millstream(folder / "empty", "empty") as place:
        return int(place.server.client.info("memory")["used_memory"])


def tier(client: redis.Redis) -> dict[str, int]:
    """Return the numbers of INFO's section ``tier``."""
    return {name: value for name, value in client.info("tier").items() if isinstance(value, int)}


def settled(client: redis.Redis, seconds: float = 600.0) -> dict[str, int]:
    """Wait until nothing goes to packs for a second; return the figures."""
    ends, before = time.monotonic() + seconds, -1
    while True:
        figures = tier(client)
        if not figures["tier_spill_in_progress"] and figures["tier_spilled_bytes"] == before:
            return figures
        if time.monotonic() > ends:
            raise RuntimeError(f"entries still go to packs after {seconds:.0f} s")
        before = figures["tier_spilled_bytes"]
        time.sleep(1.2)  # longer than a round of spilling: equal figures then mean that it has ended


def packs(folder: Path) -> list[Path]:
    """Return the files of cold entries."""
    return sorted(folder.rglob("*.pack"))


def forget(files: list[Path]) -> None:
    """Write files out, and drop them from the page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def child_of(pid: int) -> Iterator[tuple[int, float, int]]:
    """Yield process id, seconds of processor and largest memory in bytes of each child."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    for word in " ".join(each.read_text(encoding="ascii") for each in lists).split():
        with contextlib.suppress(OSError, StopIteration):  # it ended meanwhile
            stat = Path(f"/proc/{word}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            lines = Path(f"/proc/{word}/status").read_text(encoding="ascii").splitlines()
            peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
            yield int(word), (int(stat[11]) + int(stat[12])) * _TICK, peak
