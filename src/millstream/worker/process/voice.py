"""Reports of a worker process to its supervisor over a pipe: first that it reads, then every second that it runs.

The reports come from the watchdog's thread, not from the event loop: that thread handles a blocked loop, see
:mod:`millstream.worker.registry.watchdog`. If no report comes, no Python code can run in the process.
"""

import asyncio
import os
import select
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from millstream.worker.process.run import ALONE, BESIDE, END, GRACE, KILL_AFTER, OVERRUN, OWN, PIPELINES, READY, SPARE
from millstream.worker.process.senders import OwnSignals
from millstream.worker.registry.watchdog import DEBUGGED, ENDING, KILLING

#: Number of checks without a report after which a signal makes the process run its watchdog.
_MISSED = 2
#: Grace time in seconds before a process has reported the app's, which it may still be importing.
_GRACE = 30.0
#: Longest seconds between two checks.
_TICK = 1.0


class Voice:
    """The reports of one process, and the signals sent to it."""

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
        self.said: set[bytes] = set()  # Lines received so far, among ``READY`` and ``PIPELINES``
        self.spoke = asyncio.Event()  # Set when the first of these lines was received, or when none will come
        self.grace: float | None = None  # Grace time of the app in seconds; None before the process has reported it
        self.killed = False  # Its event loop was blocked for too long, so it kills itself
        self.own = False  # Its own code or the supervisor ended it, not a kill from outside
        self.overrun = ""  # Hard limit in seconds that a run exceeded, for which the process kills itself
        self.end: int | None = None  # Exit code with which it ends in an orderly way
        self.alone = False  # It runs a single entry, which is charged if the process ends
        self.silent = 0.0  # Seconds without a report in which the supervisor itself was running
        self.stopped = False  # It is stopped by SIGSTOP, not by a debugger
        self._stops_itself = False
        self._noted = False
        self._senders = senders
        if senders is not None:
            senders.start(process.pid, self._sends_itself)
        asyncio.get_running_loop().add_reader(reports, self._read)

    def close(self) -> None:
        """Stop reading the reports."""
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
        """Read the last reports of a process that has ended."""
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
        self.silent, self._warned = 0.0, False  # any line shows that the process is running
        if line in (READY, PIPELINES):
            self.said.add(line)
            self.spoke.set()
        elif line in (ALONE, BESIDE):
            self.alone = line == ALONE
        elif line.startswith(END):
            with suppress(ValueError):
                self.end = int(line.removeprefix(END))
                self.silent = -KILL_AFTER  # the interpreter ends, and with it the watchdog
        elif line == OWN:
            self.own = True
        elif line.startswith(OVERRUN):
            self.own, self.overrun = True, line.removeprefix(OVERRUN).decode("ascii", "replace").strip()
        elif line == SPARE:
            self._on_spare()
        elif line.startswith(GRACE):
            with suppress(ValueError):  # the end of the process may cut a line short
                self.grace = float(line.removeprefix(GRACE))
        else:
            self._watched, self._debugged = True, line == DEBUGGED
            self.killed = self.killed or line == KILLING
            self.own = self.own or self.killed
            if line in (ENDING, KILLING):
                # An orderly end may take this much longer
                self.silent = -KILL_AFTER - (grace_of([self]) if line == ENDING else 0.0)

    def listen(self, ran: float, limit: float) -> str | None:
        """Count a tick without a report; return the action: None, ``"urge"``, ``"warn"`` or ``"kill"``.

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
        """Return the state of the process and the id of its tracer, if the machine reports them (Linux does)."""
        with suppress(OSError):
            lines = Path(f"/proc/{self._process.pid}/status").read_text(errors="replace").splitlines()
            found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            return found.get("State", "")[:1], found.get("TracerPid", "0")
        return "", "0"

    def kill(self) -> None:
        """Kill the process and the processes that it started, as a process group; also after its own end."""
        # A stop by an unknown sender counts as the process's own, so that no entry stops one process after another
        foreign = self.stopped and self._senders is not None and self._senders.hears and not self._stops_itself
        self.own = self.own or not foreign
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def runs(self) -> bool:
        """True until the process has ended."""
        return self._process.returncode is None

    def ask_to_end(self) -> None:
        """Send SIGTERM, once: a second one would end the process at once, in the middle of its handlers."""
        if not self._noted:
            self._noted = True
            self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.runs:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def grace_of(voices: Iterable[Voice]) -> float:
    """Return the grace time of the app that these processes run, as any of them reported it."""
    return max((voice.grace for voice in voices if voice.grace is not None), default=_GRACE)


def tick(limit: float) -> float:
    """Return the seconds between two looks at processes that are killed after ``limit`` seconds."""
    return min(limit / 8, _TICK)
