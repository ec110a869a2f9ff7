"""Reports of a worker process to its supervisor over a pipe: that it reads, and then, every second, that it runs.

The reports come from the watchdog's thread, not from the event loop: a loop that stands still is for that thread to
deal with, see :mod:`millstream.worker.registry.watchdog`. No reports at all mean that no Python code can run there.
"""

import asyncio
import os
import select
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from millstream.worker.process.run import ALONE, BESIDE, END, GRACE, KILL_AFTER, OWN, PIPELINES, READY, SPARE
from millstream.worker.registry.watchdog import DEBUGGED, ENDING, KILLING

#: Ticks without a report after which the process is asked to let its watchdog run.
_MISSED = 2
#: Seconds of grace as long as no process has reported the app's: it may be importing that.
_GRACE = 30.0
#: Longest seconds between two looks.
_TICK = 1.0


class Voice:
    """The reports of one process."""

    def __init__(
        self, process: asyncio.subprocess.Process, reports: int, on_spare: Callable[[], None] = lambda: None
    ) -> None:
        self._process = process
        self._reports = reports
        self._on_spare = on_spare
        self._rest = b""
        self._watched = False
        self._debugged = False
        self._warned = False
        self.said: set[bytes] = set()  # Which of ``READY`` and ``PIPELINES`` came
        self.spoke = asyncio.Event()  # Set when the first of them has come, and when none will come
        self.grace: float | None = None  # Seconds of the app's grace; None as long as the process has not reported it
        self.killed = False  # Its event loop stood still for too long, and it ends itself
        self.own = False  # Its own code, or we, ended it: not a kill from outside
        self.end: int | None = None  # The exit code with which it ends in order
        self.alone = False  # It runs an entry alone that is charged for its end
        self.silent = 0.0  # Seconds without a report, as far as we and the process could run
        asyncio.get_running_loop().add_reader(reports, self._read)

    def close(self) -> None:
        """Hear no more."""
        if self._reports >= 0:
            asyncio.get_running_loop().remove_reader(self._reports)
            os.close(self._reports)
            self._reports = -1
        self.spoke.set()

    def hear_rest(self) -> None:
        """Hear what it reported right before its end."""
        while self._reports >= 0 and select.select([self._reports], [], [], 0)[0]:
            self._read()

    def _read(self) -> None:
        data = os.read(self._reports, 65_536)
        if not data:
            self.close()
        *lines, self._rest = (self._rest + data).splitlines(keepends=True) or [b""]
        if self._rest.endswith(b"\n"):
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._hear(line)

    def _hear(self, line: bytes) -> None:
        self.silent, self._warned = 0.0, False  # any line is a sign of life
        if line in (READY, PIPELINES):
            self.said.add(line)
            self.spoke.set()
        elif line in (ALONE, BESIDE):
            self.alone = line == ALONE
        elif line.startswith(END):
            with suppress(ValueError):
                self.end = int(line.removeprefix(END))
                self.silent = -KILL_AFTER  # the interpreter ends, and its watchdog with it
        elif line == OWN:
            self.own = True
        elif line == SPARE:
            self._on_spare()
        elif line.startswith(GRACE):
            with suppress(ValueError):  # a line may be cut short by the end of the process
                self.grace = float(line.removeprefix(GRACE))
        else:
            self._watched, self._debugged = True, line == DEBUGGED
            self.killed = self.killed or line == KILLING
            self.own = self.own or self.killed
            if line in (ENDING, KILLING):
                # an orderly end may take this much longer
                self.silent = -KILL_AFTER - (grace_of([self]) if line == ENDING else 0.0)

    def listen(self, ran: float, limit: float) -> str | None:
        """Take note of a tick without a report; what is to be done: None, ``"urge"``, ``"warn"`` or ``"kill"``.

        Time in which the process is stopped, by a signal or by a debugger, does not count as silence.
        """
        if not self._watched or self._debugged or self._is_over() or self._is_stopped():
            self.silent = min(self.silent, 0.0)
            return None
        self.silent += ran
        if self.silent >= limit:
            return "kill"
        if self.silent >= limit / 2 and not self._warned:
            self._warned = True
            return "warn"
        return "urge" if self.silent >= _MISSED * tick(limit) else None

    def _is_over(self) -> bool:
        """True when no report can come: another process may have its id by now."""
        return self._reports < 0 or self._process.returncode is not None

    def _is_stopped(self) -> bool:
        """True while it is stopped or traced, as far as the machine tells (Linux does)."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_bytes()
            return stat[stat.rindex(b")") + 2 :][:1] in (b"T", b"t")
        except (OSError, ValueError):
            return False

    def kill(self) -> None:
        """Kill it, and what it has started: it leads a group of its own. After its own end this is about the rest."""
        self.own = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def grace_of(voices: Iterable[Voice]) -> float:
    """The grace of the app that all of these run, as one of them reported it: others may still import the app."""
    return max((voice.grace for voice in voices if voice.grace is not None), default=_GRACE)


def tick(limit: float) -> float:
    """Seconds between two looks at processes that are killed after ``limit`` seconds."""
    return min(limit / 8, _TICK)
