"""G10: beside nats-server with a file store: the same messages in one stream, read back, and a restart."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.pairs import free_port
from bench.server.servers import Server
from bench.tier.places import STEP, base_memory, fill, millstream, pages, settled
from bench.tier.results import Result
from bench.tier.standing import limit_for

_SIZE = 86
"""Bytes of a message: those of an entry's fields."""
_PAGE = 1000
_CONFIG = "port: {port}\nhttp: -1\njetstream {{ store_dir: {folder}, max_mem: 64M, max_file: 100G }}\n"


class _Client:
    """As much of the protocol of NATS as is needed here."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=600)
        self._file = self._socket.makefile("rb", 1 << 20)
        self._file.readline()
        self.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB back.* 1\r\n')

    def send(self, data: bytes) -> None:
        """Send lines."""
        self._socket.sendall(data)

    def message(self) -> tuple[bytes, bytes]:
        """Return the subject for replies and the body of the next message."""
        while True:
            line = self._file.readline()
            words = line.split()
            if not words:
                raise RuntimeError("nats-server closed the connection")
            if words[0] == b"PING":
                self.send(b"PONG\r\n")
            elif words[0] in {b"MSG", b"HMSG"}:
                reply = words[3] if len(words) > (4 if words[0] == b"MSG" else 5) else b""
                return reply, self._file.read(int(words[-1]) + 2)[:-2]
            elif words[0] == b"-ERR":
                raise RuntimeError(line.decode())

    def ask(self, subject: str, body: object) -> dict[str, object]:
        """Send a request of JetStream's interface, and return its answer."""
        data = json.dumps(body).encode()
        self.send(b"PUB %b back.a %d\r\n%b\r\n" % (subject.encode(), len(data), data))
        answer: dict[str, object] = json.loads(self.message()[1])
        if "error" in answer:
            raise RuntimeError(f"{subject}: {answer['error']}")
        return answer

    def publish(self, count: int) -> None:
        """Publish messages to the stream, and await the acknowledgement of each."""
        line = b"PUB s back.p %d\r\n%b\r\n" % (_SIZE, b"x" * _SIZE)
        for at in range(0, count, STEP):
            most = min(STEP, count - at)
            self.send(line * most)
            for _ in range(most):
                self.message()

    def read(self, count: int) -> None:
        """Read all messages by a consumer that pulls and needs no acknowledgements."""
        consumer = {"deliver_policy": "all", "ack_policy": "none", "durable_name": "c"}
        self.ask("$JS.API.CONSUMER.DURABLE.CREATE.s.c", {"stream_name": "s", "config": consumer})
        for at in range(0, count, STEP):
            most = min(STEP, count - at)
            body = b'{"batch":%d}' % most
            self.send(b"PUB $JS.API.CONSUMER.MSG.NEXT.s.c back.m %d\r\n%b\r\n" % (len(body), body))
            for _ in range(most):
                self.message()


class _Nats:
    """A nats-server on a folder."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder, self.port = program, folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "nats.conf"
        self._config.write_text(_CONFIG.format(port=self.port, folder=folder / "store"), encoding="ascii")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> tuple[_Client, float]:
        """Start the server; return a client and the seconds until its stream answered."""
        begun = time.perf_counter()
        self.process = subprocess.Popen(
            [self._program, "-c", str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while True:
            with contextlib.suppress(OSError):
                client = _Client(self.port)
                break
            time.sleep(0.005)  # a server does not report that it listens
        with contextlib.suppress(RuntimeError):  # there is none at the first start
            client.ask("$JS.API.STREAM.INFO.s", {})
        return client, time.perf_counter() - begun

    @property
    def resident(self) -> int:
        """Return its resident bytes."""
        assert self.process is not None
        return Server("nats-server", 0, self.process.pid, None).memory()  # type: ignore[arg-type] - not asked anything

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def beside_nats(folder: Path, entries: int) -> Iterator[Result]:
    """Yield resident bytes, restart and reading of all, each to nats-server's."""
    program = shutil.which("nats-server")
    if program is None:
        yield Result("G10", "skipped: nats-server is not installed: apt-get install nats-server")
        return
    nats = _Nats(program, folder / "nats")
    try:
        client, _ = nats.start()
        client.ask("$JS.API.STREAM.CREATE.s", {"name": "s", "subjects": ["s"], "storage": "file"})
        client.publish(entries)
        time.sleep(2)  # its store is synced later
        resident = nats.resident
        begun = time.perf_counter()
        client.read(entries)
        read = time.perf_counter() - begun
        nats.kill()
        _, restart = nats.start()
    finally:
        nats.kill()
        shutil.rmtree(folder / "nats", ignore_errors=True)
    limit = limit_for(entries, base_memory(folder))
    with millstream(folder / "ours", "ours", f"maxmemory={limit}", "tier=yes") as ours:
        fill(ours.server, entries)
        settled(ours.server.client)
        ratios = {"resident bytes": ours.server.memory() / resident}
        begun = time.perf_counter()
        pages(ours.server, _PAGE, split=True)
        ratios["reading all"] = (time.perf_counter() - begun) / read
        ours.kill()
        ours.start()
        ratios["restart"] = ours.seconds / restart
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    for name, ratio in ratios.items():
        yield Result("G10", f"{name}: to {version}", ratio)
    better = sum(ratio <= 1 for ratio in ratios.values())
    yield Result("G10", "comparisons of three that Millstream wins or draws", float(better), 2, is_least=True)
