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
from millstream.worker.process.senders import OwnSignals
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
        self,
        process: asyncio.subprocess.Process,
        reports: int,
        on_spare: Callable[[], None] = lambda: None,
        senders: OwnSignals | None = None,
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
        self.silent = 0.0  # Seconds without a report, as far as we could run
        self.stopped = False  # SIGSTOP, and no debugger, keeps it from running
        self._stops_itself = False
        self._noted = False
        self._senders = senders
        if senders is not None:
            senders.start(process.pid, self._sends_itself)
        asyncio.get_running_loop().add_reader(reports, self._read)

    def close(self) -> None:
        """Hear no more."""
        if self._senders is not None:
            self._senders.close()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._reports >= 0:
            asyncio.get_running_loop().remove_reader(self._reports)
            os.close(self._reports)
            self._reports = -1
        self.spoke.set()

    def _sends_itself(self, number: int) -> None:
        self.own = self.own or number == signal.SIGKILL
        self._stops_itself = self._stops_itself or number == signal.SIGSTOP

    def hear_rest(self) -> None:
        """Hear what it reported right before its end."""
        while self._reports >= 0 and select.select([self._reports], [], [], 0)[0]:
            self._read()

    def _read(self) -> None:
        data = os.read(self._reports, 65_536)
        if not data:
            self._hang_up()
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

        Time in which a debugger stops the process does not count as silence.
        """
        state, tracer = self._state()
        self.stopped = state == "T" and tracer == "0"
        if not self._watched or self._debugged or self._process.returncode is not None or tracer != "0":
            self.silent = min(self.silent, 0.0)
            return None
        self.silent += ran
        if self.silent >= limit:
            return "kill"
        if self.silent >= limit / 2 and not self._warned:
            self._warned = True
            return "warn"
        return "urge" if self.silent >= _MISSED * tick(limit) else None

    def _state(self) -> tuple[str, str]:
        """Its state, and the id of the process that traces it, as far as the machine reports it (Linux does)."""
        with suppress(OSError):
            lines = Path(f"/proc/{self._process.pid}/status").read_text(errors="replace").splitlines()
            found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            return found.get("State", "")[:1], found.get("TracerPid", "0")
        return "", "0"

    def kill(self) -> None:
        """Kill it, and what it has started: it leads a group of its own. After its own end this is about the rest."""
        # A stop whose sender is unknown counts as its own, so that no entry stops one process after another
        foreign = self.stopped and self._senders is not None and self._senders.hears and not self._stops_itself
        self.own = self.own or not foreign
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def runs(self) -> bool:
        """True until it has ended."""
        return self._process.returncode is None

    def ask_to_end(self) -> None:
        """Send it SIGTERM, once: a second one would end it at once, in the middle of its handlers."""
        if not self._noted:
            self._noted = True
            self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.runs:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def grace_of(voices: Iterable[Voice]) -> float:
    """The grace of the app that all of these run, as one of them reported it: others may still import the app."""
    return max((voice.grace for voice in voices if voice.grace is not None), default=_GRACE)


def tick(limit: float) -> float:
    """Seconds between two looks at processes that are killed after ``limit`` seconds."""
    return min(limit / 8, _TICK)
