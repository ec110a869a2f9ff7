"""Child processes of the demo: each has its own session and a log file, and none outlives the demo."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from millstream.errors import MillstreamError

_PORTS = range(10_000, 32_768)
"""Above the ports of well-known servers, below those that Linux gives to clients."""

MILLSTREAM = (sys.executable, "-c", "from millstream.cli.main import main; main()")
"""The command line of this installation, not of the one on PATH."""


class DemoError(MillstreamError):
    """The demo cannot continue; the message has the event, the reason and the remedy.

    What to do: follow the message. The files of the demo stay in the folder that it names.
    """


class Child:
    """A process that the demo started.

    In its own session a Ctrl-C at the terminal does not reach it before the demo ends it in order. The demo can also
    end
    the processes that it started.

    Args:
        name: Its log is ``<name>.log``.
        argv: Program and arguments.
        logs: Folder of the log files.
        env: Variables in addition to the demo's, from which the variable of the context is removed.
        title: Name for people; ``name`` unless given.
        on_line: Function called in a thread with each line of its standard output, which otherwise goes to the log.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        logs: Path,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
        title: str = "",
    ) -> None:
        # a context could name another server than the URL, and neither has priority
        ours = {name: value for name, value in os.environ.items() if name != "MILLSTREAM_CONTEXT"}
        self.title = title or name
        self.log = logs / f"{name}.log"
        self._expected = False
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if on_line else log,
                stderr=log,
                env={**ours, **(env or {})},
                start_new_session=True,
            )
        self._reader: threading.Thread | None = None
        if on_line:
            self._reader = threading.Thread(target=self._read, args=(on_line,), name=f"{name} output", daemon=True)
            self._reader.start()

    def _read(self, on_line: Callable[[str], None]) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            on_line(raw.decode(errors="replace").rstrip("\n"))

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its session."""
        return self.process.pid

    def say(self, line: str) -> None:
        """Write one line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def check(self) -> None:
        """Raise an error if the process ended by itself.

        Raises:
            DemoError: it ended; the message has its last lines.
        """
        if self._expected or self.process.poll() is None:
            return
        raise DemoError(f"the {self.title} ended by itself ({self.ending()}).{self.tail()}")

    def ending(self) -> str:
        """Return its end in words."""
        code = self.process.returncode
        return f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"

    def tail(self, lines: int = 12) -> str:
        """Return its last lines, for an error message."""
        text = self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []
        shown = "".join(f"\n  | {line}" for line in text)
        return f" Its log is {self.log}" + (f" and ends so:{shown}" if shown else " and is empty.")

    def kill(self) -> None:
        """Kill the process and its children by SIGKILL, and wait for its end."""
        self._expected = True
        self._signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, grace: float = 15.0) -> int:
        """End the process, by SIGKILL after ``grace`` seconds, and return its exit code."""
        self._expected = True
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        self._signal(signal.SIGKILL)  # the rest of its session
        code = self.process.wait()
        if self._reader:
            self._reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that no program uses, and that no client gets while the server restarts.

    Raises:
        OSError: no port of the range is free.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no port of 127.0.0.1 from {_PORTS[0]} to {_PORTS[-1]} is free: end some of the servers there")


class DemoServer:
    """An embedded ``millstream serve`` on a data directory.

    Args:
        data: data directory.
        logs: folder of the log files.
    """

    def __init__(self, data: Path, logs: Path) -> None:
        self._data = data
        self._logs = logs
        self._port = free_port()
        self.url = ""
        self._child: Child | None = None

    def start(self, timeout: float = 60.0) -> str:
        """Start the server, each time on the same port, and return its URL.

        Raises:
            DemoError: it was not ready after ``timeout`` seconds.
        """
        ready = threading.Event()

        def on_line(line: str) -> None:
            if line.startswith("ready "):
                self.url = line.split()[1]
                ready.set()

        argv = [*MILLSTREAM, "serve", "--dir", str(self._data), "--port", str(self._port)]
        argv += ["--maxmemory", "1gb", "--tier", "yes"]
        self._child = Child("server", argv, self._logs, on_line=on_line)
        deadline = time.monotonic() + timeout
        while not ready.wait(0.05):
            self._child.check()
            if time.monotonic() > deadline:
                raise DemoError(f"the server was not ready after {timeout:.0f} s.{self._child.tail()}")
        return self.url

    def check(self) -> None:
        """Raise an error if the server ended by itself."""
        if self._child:
            self._child.check()

    def kill(self) -> None:
        """Kill the server by SIGKILL."""
        assert self._child is not None
        self._child.kill()

    def stop(self) -> None:
        """End the server in order."""
        if self._child:
            self._child.stop()
