"""Keep a number of worker processes alive: start them, restart them after a crash, stop them, and wait for their end.

Workers are new interpreters, not forks of a process with threads and connections. Each runs in its own session, so
Ctrl-C reaches it only through the supervisor. If the supervisor is killed, the end of a pipe stops the workers.

An app's pipelines have one more process, which is kept alive in the same way. All of them share it, since a Spark
driver takes seconds to start and most of a gigabyte of memory. Within the driver, a query that fails is restarted
alone.
"""

import asyncio
import contextlib
import itertools
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.ending import Ending
from millstream.logs import logger
from millstream.texts import plural
from millstream.worker.process.run import (
    EXIT_CONFIG,
    EXIT_DISMISSED,
    EXIT_FATAL,
    EXIT_UNREACHABLE,
    KILL_AFTER,
    PIPELINES,
    READY,
    STOP,
)
from millstream.worker.process.senders import OwnSignals, oom_kills
from millstream.worker.process.voice import Voice, grace_of, tick
from millstream.worker.registry.watchdog import STACKS, URGE
from millstream.worker.settlement.spare import OWN_END, RUNS, STARTS

log = logger("millstream.run")

#: Seconds below which a worker's life counts as short, and number of short lives in a row after which the supervisor
#: gives up: a mistake at every start must be logged once, not every half minute.
_QUICK_SECONDS = 10.0
_QUICK_LIMIT = 5
#: Longest seconds before a worker is started again.
_BACKOFF_LIMIT = 30.0
#: Longest seconds after an end that was charged to an entry, since the worker's other groups wait.
_CHARGED_LIMIT = 4.0
#: Longest seconds for the spare process after a kill by an unknown sender: its entry may be the cause, and the delay
#: holds up no worker.
_SPARE_LIMIT = 15.0
#: Seconds by which a check of the workers may be late; beyond that, this process or the machine was suspended.
_SLEPT = 0.5
_DRIVER = 0  # slot of the process that runs the pipelines; workers are numbered from 1

# Slot of the spare process, see :mod:`millstream.worker.settlement.spare`; started when a worker requests it.
_SPARE = -1

_NAMES = {_DRIVER: "the process of the pipelines", _SPARE: "the spare process"}
# Consequence if such a process cannot be started.
_BESIDE = {
    _DRIVER: "the subscribers continue without the pipelines",
    _SPARE: "the workers go on, and run its entries themselves",
}
_UNTIL = " before a worker has work for it"

_MODULE = "millstream.worker.child"


@dataclass(slots=True)
class Supervisor:
    """Runs ``workers`` processes of one app."""

    target: str  # ``module:app``
    workers: int  # Number of workers, numbered from 1
    grace: float | None = None  # Seconds for running handlers at a stop; None for the app's own time
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))  # Environment of the workers
    # Folder in which a change of a Python file restarts the workers, for development; None for none
    watched: str | None = None
    driver: str | None = None  # Module of the process that runs the app's pipelines; None without pipelines
    kill_after: float | None = None  # Seconds after which a blocked worker is killed; None for never
    spare: bool = True  # Run entries that may have ended a process in a spare process; ignored while files are watched
    _spare: asyncio.Task[None] | None = field(default=None, init=False)
    _edition: int = field(default=0, init=False)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition, init=False)
    _processes: dict[int, asyncio.subprocess.Process] = field(default_factory=dict, init=False)
    _voices: dict[int, Voice] = field(default_factory=dict, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _ending: Ending = field(default_factory=Ending, init=False)
    _kept: set[int] = field(default_factory=set, init=False)
    _reading: int = field(default=0, init=False)
    _code: int = field(default=0, init=False)
    _lifeline: int = field(default=-1, init=False)
    _announced: int = field(default=-1, init=False)  # Writing end of the lifeline
    _spares: int = field(default=0, init=False)  # Number of spare processes started
    _ends: int = field(default=-1, init=False)  # Number of kernel kills for memory with a known victim
    _ooms: int = field(default_factory=oom_kills, init=False)  # Kills by the kernel for memory with a known victim
    _spare_name: str = field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}-spare", init=False
    )

    async def run(self) -> int:
        """Run until the stop; return 0 if every worker stopped cleanly."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        self._lifeline, self._announced = os.pipe()
        with tempfile.TemporaryFile() as ends:
            self._ends = os.dup(ends.fileno())
        watcher = asyncio.create_task(self._watch())
        listener = asyncio.create_task(self._listen())
        await asyncio.sleep(0)  # it watches before the first worker reads its files
        try:
            # Only one worker at first, so that a mistake in the app or its URL is reported once
            first, said = await self._first()
            if not said:
                return self._code
            slots = self._slots(first, said)
            await self._stopping.wait()
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            await self._stop(slots if self._spare is None else [*slots, self._spare])
        finally:
            watcher.cancel()
            listener.cancel()
            for voice in self._voices.values():
                voice.close()
            os.close(self._lifeline)
            os.close(self._announced)
            os.close(self._ends)
        return self._code

    def _slots(self, first: asyncio.subprocess.Process, said: set[bytes]) -> "list[asyncio.Task[None]]":
        """Start a task for each process to keep, by the first process's report about the app."""
        started: dict[int, asyncio.subprocess.Process | None] = {}
        if READY in said:
            started = {1: first} | dict.fromkeys(range(2, self.workers + 1))
            self._reading = self.workers
        if PIPELINES in said and self.driver is not None:
            started[_DRIVER] = None
        self._kept = set(started)
        return [asyncio.create_task(self._keep(slot, process)) for slot, process in started.items()]

    def _call_spare(self) -> None:
        """Start the spare process unless it runs."""
        wanted = self.spare and self.watched is None and self._reading and not self._stopping.is_set()
        if wanted and (self._spare is None or self._spare.done()):
            self._kept.add(_SPARE)
            self._spare = asyncio.create_task(self._keep(_SPARE, None))

    def _signalled(self, number: signal.Signals) -> None:
        if self._ending.at_once(number):
            log.warning("signalled again (%s): killing the workers", number.name)
            self._code = self._code or EXIT_FATAL
            self._kill()
        self._stopping.set()

    def _kill(self) -> None:
        """Kill every process that has not ended."""
        for slot, voice in self._voices.items():
            if self._processes[slot].returncode is None:
                voice.kill()

    async def _listen(self) -> None:
        """Kill workers that report nothing for too long.

        Only ticks in which this process itself ran count: a machine that slept or was busy is not a worker's fault.
        """
        if self.kill_after is None:
            return
        loop, limit = asyncio.get_running_loop(), self.kill_after
        while True:
            before = loop.time()
            await asyncio.sleep(tick(limit))
            ran = loop.time() - before
            if ran > tick(limit) + _SLEPT:  # the workers were suspended too: each gets time to report first
                for voice in self._voices.values():
                    voice.silent = min(voice.silent, 0.0)
                continue
            for slot, voice in self._voices.items():
                action = voice.listen(min(ran, 2 * tick(limit)), limit)
                if action == "warn" and voice.stopped:
                    log.warning(
                        "%s (process %d) has been stopped, by SIGSTOP, for %.1f s; it is killed in %.1f s. Continue it "
                        "by SIGCONT, or choose another time with --kill-blocked-after",
                        *(_who(slot), self._processes[slot].pid, voice.silent, limit - voice.silent),
                    )
                elif action == "warn":
                    log.warning(
                        "%s has reported nothing for %.1f s: some code in it blocks all Python threads. Its "
                        "stacks follow; it is killed in %.1f s",
                        *(_who(slot), voice.silent, limit - voice.silent),
                    )
                    voice.send(STACKS)  # while the worker can still print them
                elif action == "kill":
                    what = "been stopped, by SIGSTOP," if voice.stopped else "reported nothing"
                    log.error("%s has %s for %.1f s; killing it", _who(slot), what, voice.silent)
                    voice.kill()
                if action is not None and not voice.stopped:
                    voice.send(URGE)

    async def _spawned(self, slot: int) -> asyncio.subprocess.Process | None:
        """Start one process, trying again while the machine refuses one; return None if the supervisor must stop."""
        for failed in itertools.count():
            try:
                return await self._spawn(slot)
            except (OSError, RuntimeError) as error:  # too few descriptors, processes, threads or memory at this moment
                pause = min(0.5 * 2.0 ** min(failed, 10), _BACKOFF_LIMIT)
                log.error(  # noqa: TRY400 - the reason is enough
                    "%s cannot be started: %s; trying again in %.1f s", _who(slot), error, pause
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                break
        return None

    async def _spawn(self, slot: int) -> asyncio.subprocess.Process:
        """Start one process and read its reports."""
        probe = threading.Thread(target=int)  # asyncio forks before it starts a thread, and the process would stay
        probe.start()
        probe.join()
        with contextlib.ExitStack() as undone:
            ready, theirs = os.pipe()
            undone.callback(os.close, ready)
            try:
                senders = OwnSignals() if slot == _SPARE else None
                if senders is not None:
                    undone.callback(senders.close)
                given = (self._lifeline, theirs, self._ends, *(() if senders is None else (senders.theirs.fileno(),)))
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    _MODULE if slot != _DRIVER or self.driver is None else self.driver,
                    self.target,
                    env=self._environment_of(slot, theirs, given[-1]),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=given,
                    start_new_session=True,
                )
            finally:
                os.close(theirs)  # an open copy here would hide the end of the worker
            undone.pop_all()
        if slot in self._voices:
            self._voices[slot].close()
        self._processes[slot], self._voices[slot] = process, Voice(process, ready, self._call_spare, senders)
        if self._stopping.is_set():  # the signal came during the start
            process.terminate()
        return process

    def _environment_of(self, slot: int, ready: int, signals: int) -> dict[str, str]:
        """Return the environment of a new process; ``signals`` counts only for the spare process."""
        environment = {**self.environment, "MILLSTREAM_LIFELINE": str(self._lifeline), "MILLSTREAM_READY": str(ready)}
        if self.spare and self.watched is None:
            environment |= {"MILLSTREAM_SPARE": self._spare_name, "MILLSTREAM_SPARE_ENDS": str(self._ends)}
        if slot == _DRIVER:
            # The next port after the workers'. It is not numbered like a worker, which would shift the health port
            # again.
            host, colon, port = self.environment.get("MILLSTREAM_HEALTH", "").rpartition(":")
            if colon:
                environment["MILLSTREAM_HEALTH"] = f"{host}:{int(port) + self._reading}"
        elif slot == _SPARE:
            environment |= {"MILLSTREAM_IS_SPARE": str(self._spares), "MILLSTREAM_SIGNALS": str(signals)}
            self._spares += 1
            self._note(b"" if self.kill_after is None else RUNS)
            self._ooms = oom_kills()
            environment.pop("MILLSTREAM_HEALTH", None)
        elif self.workers > 1:
            environment["MILLSTREAM_WORKER"] = str(slot)
        if self.grace is not None:
            environment["MILLSTREAM_GRACE"] = str(self.grace)
        if self.kill_after is not None:
            environment["MILLSTREAM_KILL_BLOCKED_AFTER"] = str(self.kill_after)
        return environment

    async def _first(self) -> tuple[asyncio.subprocess.Process, set[bytes]]:
        """Return the first worker and its report; start another if a file changed meanwhile."""
        while True:
            edition, code = self._edition, self._code
            process = await self._spawn(1)
            said = await self._came_up(process)
            if said or self._edition == edition or self._stopping.is_set():
                return process, said
            self._code = code

    async def _came_up(self, process: asyncio.subprocess.Process) -> set[bytes]:
        """Return the first worker's report once it reads; empty if the worker ended or the supervisor must stop."""
        voice, edition = self._voices[1], self._edition
        waits = [asyncio.create_task(wait) for wait in (voice.spoke.wait(), self._stopping.wait(), process.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        if voice.said:
            return voice.said
        if not self._stopping.is_set():
            code = await process.wait()
            voice.hear_rest()
            if voice.end != code and self._edition == edition:  # the process itself could not report it
                log.error("%s ended with %s before it read; giving up", _who(1), _word(code))
            self._code = _at_start(code)
            return set()
        await self._stop([ended := asyncio.create_task(process.wait())])
        voice.kill()  # also kills processes that it may have started
        self._code = self._code or _at_stop(ended.result())
        return set()

    async def _keep(self, slot: int, process: asyncio.subprocess.Process | None) -> None:
        """Keep one process running until the stop, then wait for its end.

        Its exit code shows the reason of its end. A dismissed process is not restarted, nor is one with a mistake in
        the configuration, since a restart repeats it. Any other end is a crash. A server that cannot be reached is not
        a mistake and is tried without end.
        """
        quick = ends = 0
        while True:
            process = process or await self._spawned(slot)
            if process is None:
                return
            started, edition = time.monotonic(), self._edition
            code = await process.wait()
            process = None
            if self._stopping.is_set():
                if _at_stop(code):
                    self._voices[slot].kill()  # it could not end the processes that it started
                    log.error("%s ended with %s", _who(slot), _word(code))
                    self._code = self._code or _at_stop(code)
                return
            voice = self._voices[slot]
            voice.hear_rest()
            meant = slot == _DRIVER or voice.end == code  # a handler may end its process with any code
            if meant and code == EXIT_DISMISSED:
                self._dismiss(slot)
                return
            if self.watched is not None:
                await self._next_edition(slot, edition, code)
                continue
            blocked = voice.killed
            foreign = code == -signal.SIGKILL and not voice.own
            starved = foreign and self._memory_ran_out()
            unknown = foreign and not starved
            if slot == _SPARE:
                self._note(b"" if unknown else OWN_END)
            # A crash while entries run uses up attempts of an entry, so any number of such ends is progress. A mistake
            # at every start, or a subscriber that cannot continue, is not.
            charged = blocked or voice.alone or (READY in voice.said and voice.end != EXIT_FATAL)
            early = time.monotonic() - started < _QUICK_SECONDS
            quick, ends = (quick + 1 if early and not charged else 0), (ends + 1 if early else 0)
            if (meant and code == EXIT_CONFIG) or (code > 0 and code != EXIT_UNREACHABLE and quick >= _QUICK_LIMIT):
                self._give_up(slot, code)
                return
            if slot > _DRIVER:
                self._call_spare()  # it must have started before the entries may be claimed
            longest = _SPARE_LIMIT if slot == _SPARE and unknown else _CHARGED_LIMIT if charged else _BACKOFF_LIMIT
            pause = min(0.5 * 2.0 ** max(ends - 1, 0), longest)
            stopped = voice.stopped and code == -signal.SIGKILL  # a process that was continued may end by itself
            still = "its event loop was blocked" if blocked else "it was stopped" if stopped else ""
            if voice.overrun and not still:
                still = f"a run took longer than hard_limit={voice.overrun} s"
            why = f"was killed, since {still}" if still else f"ended with {_word(code)}"
            why += ", as memory had run out" * starved + " from an unknown sender" * unknown
            log.warning("%s %s; restarting it in %.1f s", _who(slot), why, pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return

    def _note(self, word: bytes) -> None:
        """Write a note on the last spare for the workers."""
        os.pwrite(self._ends, word or b"\0", (self._spares - 1) % STARTS)

    def _memory_ran_out(self) -> bool:
        """Report whether the kernel killed a process for its memory and no earlier end explains that kill."""
        if oom_kills() <= self._ooms:
            return False
        self._ooms += 1
        return True

    async def _watch(self) -> None:
        """Restart the workers whenever a Python file has changed."""
        if self.watched is None:
            return
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415 - only development needs it

        async for changes in awatch(self.watched, watch_filter=PythonFilter(), step=100):
            names = sorted({path.rpartition("/")[2] for _, path in changes})
            log.info("%s changed; starting the workers again", ", ".join(names))
            async with self._changed:
                self._edition += 1
                self._changed.notify_all()
            for slot, voice in self._voices.items():
                voice.ask_to_end()
                wait = (grace_of([voice]) if self.grace is None else self.grace) + KILL_AFTER
                asyncio.get_running_loop().call_later(wait, self._kill_late, slot, voice)

    def _kill_late(self, slot: int, voice: Voice) -> None:
        """Kill a worker that did not end in time after a change."""
        if voice.runs and not self._stopping.is_set():
            log.warning("%s did not stop in time; killing it", _who(slot))
            voice.kill()

    async def _next_edition(self, slot: int, edition: int, code: int) -> None:
        """Wait until a watched file has changed since the worker started; at once if one has."""
        if self._edition == edition:
            log.warning("%s ended with %s; waiting for a file to change", _who(slot), _word(code))
        async with self._changed:
            await self._changed.wait_for(lambda: self._edition != edition or self._stopping.is_set())

    def _dismiss(self, slot: int) -> None:
        """Note the end of a process that was ordered to end or has no work; after the last, stop the supervisor."""
        log.info("%s ended normally and is not restarted%s", _who(slot), _UNTIL * (slot == _SPARE))
        if slot == _SPARE:
            self._note(b"")
        self._kept.discard(slot)
        if not self._kept:
            self._stopping.set()

    def _give_up(self, slot: int, code: int) -> None:
        """Do not restart a process that cannot start, and stop; subscribers continue without pipelines or spare."""
        if slot != _SPARE:
            self._code = self._code or code
        self._kept.discard(slot)
        if slot in _BESIDE and self._kept:
            log.error("%s ended with %s; %s", _who(slot), _word(code), _BESIDE[slot])
            return
        log.error("%s ended with %s; giving up", _who(slot), _word(code))
        self._stopping.set()

    async def _stop(self, ends: "Sequence[asyncio.Task[Any]]") -> None:
        """Stop every process and wait for its end; kill those that do not end in time."""
        async with self._changed:
            self._changed.notify_all()
        # Before the signal: without this line, a stopped worker assumes another sender
        os.write(self._announced, STOP)
        for voice in self._voices.values():
            voice.ask_to_end()
        grace = grace_of(self._voices.values()) if self.grace is None else self.grace
        _, late = await asyncio.wait(ends, timeout=grace + KILL_AFTER)
        if late:
            log.error(
                "%s did not stop in time; killing %s", plural(len(late), "worker"), "it" if len(late) == 1 else "them"
            )
            self._code = self._code or EXIT_FATAL
            self._kill()
            await asyncio.wait(late)
        for end in ends:
            end.result()


def _at_start(code: int) -> int:
    """Return the supervisor's exit code after the first worker ended before it read.

    An end by a signal has no code of its own.
    """
    return code if code > 0 else EXIT_FATAL


def _at_stop(code: int) -> int:
    """Return the supervisor's exit code for a worker's end at a stop.

    A worker that SIGTERM met before it could listen held no entries: it ended cleanly.
    """
    return 0 if code in (0, -signal.SIGTERM, EXIT_DISMISSED) else _at_start(code)


def _who(slot: int) -> str:
    """Return the name of a slot's process for a log line."""
    return _NAMES.get(slot, f"worker {slot}")


def _word(code: int) -> str:
    """Return the end of a process as text; subprocess shows a signal as a negative code."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
