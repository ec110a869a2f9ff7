"""Keeping a number of worker processes alive: start, restart after a crash, pass a stop on, wait, report.

Workers are new interpreters, not forks of one that has threads and connections. Each runs in a session of its own, so
that Ctrl-C reaches it only through us; should we be killed, the end of a pipe tells it to stop.

An app's pipelines have one process more, which is kept alive in the same way. All of them share it: a Spark driver
takes seconds to start and most of a gigabyte of memory, and within one a query that dies is started again by itself.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.ending import Ending
from millstream.logs import logger
from millstream.worker.process.run import (
    EXIT_CONFIG,
    EXIT_DISMISSED,
    EXIT_FATAL,
    EXIT_UNREACHABLE,
    PIPELINES,
    READY,
)

log = logger("millstream.run")

#: Seconds a worker must live for its end not to count as a quick one, and quick ends in a row after which starting it
#: again is given up: a mistake that every start meets is better seen once in a log than every half a minute.
_QUICK_SECONDS = 10.0
_QUICK_LIMIT = 5
#: Longest seconds between two starts of one worker.
_BACKOFF_LIMIT = 30.0
#: Seconds beyond the grace time after which a worker is killed; it needs some of them to store its last outcomes.
KILL_AFTER = 10.0

_DRIVER = 0
"""The slot of the process that runs the pipelines; workers are numbered from 1."""

_MODULE = "millstream.worker.child"


@dataclass(slots=True)
class Supervisor:
    """Runs ``workers`` processes of one app.

    Attributes:
        target: ``module:app``.
        workers: how many; they are numbered from 1.
        grace: seconds running handlers get at a stop; None leaves it to the app.
        environment: for the workers.
        watched: a folder; when a Python file in it changes, the workers are started again. For development.
        driver: module of the process that runs the app's pipelines, if it has some.
    """

    target: str
    workers: int
    grace: float | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    watched: str | None = None
    driver: str | None = None
    _edition: int = field(default=0, init=False)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition, init=False)
    _processes: dict[int, asyncio.subprocess.Process] = field(default_factory=dict, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _ending: Ending = field(default_factory=Ending, init=False)
    _kept: set[int] = field(default_factory=set, init=False)
    _reading: int = field(default=0, init=False)
    _code: int = field(default=0, init=False)
    _lifeline: int = field(default=-1, init=False)

    async def run(self) -> int:
        """Run until the stop; 0 when every worker stopped cleanly."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        self._lifeline, ours = os.pipe()
        watcher = asyncio.create_task(self._watch())
        await asyncio.sleep(0)  # it watches from before the first worker reads its files
        try:
            # the first alone: a mistake in the app or its URL is then reported once, not once per worker
            first, ready = await self._spawn(1)
            said = await self._came_up(first, ready)
            if not said:
                return self._code
            slots = self._slots(first, said)
            await self._stopping.wait()
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            await self._stop(slots)
        finally:
            watcher.cancel()
            os.close(self._lifeline)
            os.close(ours)
        return self._code

    def _slots(self, first: asyncio.subprocess.Process, said: bytes) -> "list[asyncio.Task[None]]":
        """A task for each process there is to be, by what the first one said of the app.

        Args:
            first: the process that came up alone.
            said: :data:`READY`, :data:`PIPELINES` or both; an app of pipelines only needs no workers.
        """
        started: dict[int, asyncio.subprocess.Process | None] = {}
        if READY in said:
            started = {1: first} | dict.fromkeys(range(2, self.workers + 1))
            self._reading = self.workers
        if PIPELINES in said and self.driver is not None:
            started[_DRIVER] = None
        self._kept = set(started)
        return [asyncio.create_task(self._keep(slot, process)) for slot, process in started.items()]

    def _signalled(self, number: signal.Signals) -> None:
        if self._ending.at_once(number):
            log.warning("asked again (%s): killing the workers", number.name)
            self._code = self._code or EXIT_FATAL
            self._send(signal.SIGKILL)
        self._stopping.set()

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to every process that has not ended."""
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

    async def _spawn(self, slot: int) -> tuple[asyncio.subprocess.Process, int]:
        """Start one worker; the process, and a descriptor on which it says that it reads."""
        ready, theirs = os.pipe()
        environment = {
            **self.environment,
            "MILLSTREAM_LIFELINE": str(self._lifeline),
            "MILLSTREAM_READY": str(theirs),
        }
        if slot == _DRIVER:
            # The port after the workers'; no worker's number, or its health port would be moved by it once more.
            host, colon, port = self.environment.get("MILLSTREAM_HEALTH", "").rpartition(":")
            if colon:
                environment["MILLSTREAM_HEALTH"] = f"{host}:{int(port) + self._reading}"
        elif self.workers > 1:
            environment["MILLSTREAM_WORKER"] = str(slot)
        if self.grace is not None:
            environment["MILLSTREAM_GRACE"] = str(self.grace)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _MODULE if slot != _DRIVER or self.driver is None else self.driver,
                self.target,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(self._lifeline, theirs),
                start_new_session=True,
            )
        finally:
            os.close(theirs)  # ours would keep the pipe open, and the end of a worker could not be read from it
        self._processes[slot] = process
        if self._stopping.is_set():  # the signal came while it was being started
            process.terminate()
        return process, ready

    async def _came_up(self, process: asyncio.subprocess.Process, ready: int) -> bytes:
        """What the first worker says when it reads; nothing if it is gone, or we are to stop."""
        loop = asyncio.get_running_loop()
        spoke = asyncio.Event()
        loop.add_reader(ready, spoke.set)
        waits = [asyncio.create_task(wait) for wait in (spoke.wait(), self._stopping.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        loop.remove_reader(ready)
        said = os.read(ready, 64) if spoke.is_set() else b""
        os.close(ready)
        if said:
            return said
        if self._stopping.is_set():
            self._send(signal.SIGTERM)
        code = await process.wait()
        self._code = abs(_unless_terminated(code)) if self._stopping.is_set() else abs(code) or EXIT_FATAL
        return b""

    async def _keep(self, slot: int, process: asyncio.subprocess.Process | None) -> None:
        """Keep one worker running until the stop; then wait for its end.

        What its end means is said by its exit code: dismissed, so that it is not wanted any more; a mistake in the
        configuration, which a restart repeats; anything else is a crash. A server that cannot be reached is nobody's
        mistake and tried for ever.

        Args:
            slot: its number, or that of the pipelines' process.
            process: the one that runs already; None to start one.
        """
        quick = 0
        while True:
            if process is None:
                process, ready = await self._spawn(slot)
                os.close(ready)
            started, edition = time.monotonic(), self._edition
            code = await process.wait()
            process = None
            if self._stopping.is_set():
                if _unless_terminated(code):
                    log.error("%s ended with %s", _who(slot), _word(code))
                    self._code = self._code or EXIT_FATAL
                return
            if code == EXIT_DISMISSED:
                self._dismiss(slot)
                return
            if self.watched is not None:
                await self._next_edition(slot, edition, code)
                continue
            quick = quick + 1 if time.monotonic() - started < _QUICK_SECONDS else 0
            if code == EXIT_CONFIG or (code > 0 and code != EXIT_UNREACHABLE and quick >= _QUICK_LIMIT):
                self._give_up(slot, code)
                return
            pause = min(0.5 * 2.0 ** max(quick - 1, 0), _BACKOFF_LIMIT)
            log.warning("%s ended with %s; starting it again in %.1f s", _who(slot), _word(code), pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return

    async def _watch(self) -> None:
        """Start the workers again whenever a Python file has changed."""
        if self.watched is None:
            return
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415 - only development needs it

        async for changes in awatch(self.watched, watch_filter=PythonFilter(), step=100):
            names = sorted({path.rpartition("/")[2] for _, path in changes})
            log.info("%s changed; starting the workers again", ", ".join(names))
            async with self._changed:
                self._edition += 1
                self._changed.notify_all()
            self._send(signal.SIGTERM)

    async def _next_edition(self, slot: int, edition: int, code: int) -> None:
        """A worker has ended while files are watched: go on at once if one has changed, else wait until one does."""
        if self._edition == edition:
            log.warning("%s ended with %s; waiting for a file to change", _who(slot), _word(code))
        async with self._changed:
            await self._changed.wait_for(lambda: self._edition != edition or self._stopping.is_set())

    def _dismiss(self, slot: int) -> None:
        """A process ended because it was ordered to, or has no more to do; the last one ends us too."""
        log.info("%s has ended in order and is not started again", _who(slot))
        self._kept.discard(slot)
        if not self._kept:
            self._stopping.set()

    def _give_up(self, slot: int, code: int) -> None:
        """Starting it again cannot help: that is the end, except that subscribers go on without the pipelines."""
        self._code = self._code or code
        self._kept.discard(slot)
        if slot == _DRIVER and self._kept:
            log.error("%s ended with %s; the subscribers go on without the pipelines", _who(slot), _word(code))
            return
        log.error("%s ended with %s; giving up", _who(slot), _word(code))
        self._stopping.set()

    async def _stop(self, slots: list["asyncio.Task[None]"]) -> None:
        """Pass the stop on and wait for every process; without a grace of ours, the app's own ends them."""
        async with self._changed:
            self._changed.notify_all()
        self._send(signal.SIGTERM)
        patience = None if self.grace is None else self.grace + KILL_AFTER
        _, late = await asyncio.wait(slots, timeout=patience)
        if late:
            log.error("%d workers did not stop in time; killing them", len(late))
            self._code = self._code or EXIT_FATAL
            self._send(signal.SIGKILL)
            await asyncio.wait(late)
        for slot_task in slots:
            slot_task.result()


def _unless_terminated(code: int) -> int:
    """The exit code at a stop; a worker that SIGTERM met before it could listen had nothing in hand: it ended well."""
    return 0 if code == -signal.SIGTERM else code


def _who(slot: int) -> str:
    """What a log line calls the process of a slot."""
    return f"worker {slot}" if slot != _DRIVER else "the process of the pipelines"


def _word(code: int) -> str:
    """How a process ended, in words: subprocess shows the signal that killed one as a negative code."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
