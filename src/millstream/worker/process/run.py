"""One worker process: it handles signals and returns the exit code."""

import asyncio
import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from millstream.client.line import AccessDenied, Disconnected
from millstream.ending import Ending
from millstream.errors import ConfigError, MillstreamError
from millstream.logs import logger
from millstream.printable import without_password
from millstream.worker.monitoring.health import HealthError, serving
from millstream.worker.process.lasting import run_lasting
from millstream.worker.process.start import start_patiently
from millstream.worker.runtime import AppRuntime
from millstream.worker.settlement import spare
from millstream.worker.subscriber import runs

log = logger("millstream.worker")

EXIT_CLEAN = 0
EXIT_FATAL = 1  # a subscriber cannot continue; the supervisor restarts the process
EXIT_UNREACHABLE = 69  # sysexits.h: service unavailable
EXIT_DISMISSED = 3  # ordered to end through the control channel; the supervisor does not restart the process
EXIT_UNFINISHED = 70  # a thread did not end; its entry stays pending and will be claimed
EXIT_CONFIG = 78  # sysexits.h: configuration error; a restart cannot help

#: Seconds for which a starting worker tries to reach the server. Once started, it never gives up.
CONNECT_SECONDS = 10.0

#: Seconds after the grace time in which a process must store its last outcomes and end, before it is killed.
KILL_AFTER = 10.0
# Seconds for which a process that must end waits for a reaction of its event loop.
_STILL = 1.0

_ORPHANED_SECONDS = 5.0  # seconds after the grace time for a process whose parent has ended

READY = b"ready\n"
PIPELINES = b"pipelines\n"
# Lines from a worker process to its supervisor: it reads, its app has pipelines, and its app's grace time in seconds.
GRACE = b"grace "

ALONE = b"alone\n"
# Two more lines: a run of an entry alone begins, whose crashes are charged to the entry; and that run has ended.
BESIDE = b"beside\n"

SPARE = b"spare\n"  # the spare process has work
OWN = b"own\n"  # the process sends SIGKILL to itself
OVERRUN = b"overrun "  # the process kills itself, since a run takes longer than this hard limit in seconds
END = b"end "  # followed by the exit code of an orderly end


STOP = b"stop\n"
"""Line in the pipe to the workers, left unread: the supervisor stops."""


def run_in_process(
    app: AppRuntime,
    *,
    lifeline: int | None = None,
    ready: Callable[[], None] | None = None,
    health: tuple[str, int] | None = None,
    health_allow: Iterable[str] = (),
) -> int:
    """Run an app until SIGTERM or SIGINT and return the exit code; a second signal ends the process at once."""
    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s", level=logging.INFO)
    running = _run_watched(app, lifeline, ready, health, health_allow)
    return run_lasting(running, ends_process=lifeline is not None)


async def _run_watched(
    app: AppRuntime,
    lifeline: int | None,
    ready: Callable[[], None] | None,
    health: tuple[str, int] | None,
    health_allow: Iterable[str],
) -> int:
    """Run with the health endpoint, if requested, from before the first connection until after the last."""
    if health is None:
        return await _run(app, lifeline, ready)
    try:
        async with serving(app, *health, allow=health_allow):
            return await _run(app, lifeline, ready)
    except HealthError as error:
        log.error("%s", error)  # noqa: TRY400 - the user's mistake, so no traceback
        return EXIT_CONFIG


def _outlive_nobody(app: AppRuntime, loop: asyncio.AbstractEventLoop, lifeline: int) -> None:
    """Wait for the end of the parent, then end this process within the grace time."""
    ended = select.poll()
    ended.register(lifeline, 0)  # only the end of the pipe, which is always reported
    ended.poll()
    time.sleep(app.grace + _ORPHANED_SECONDS)  # this is a separate thread, which also ends if the process ends in time
    if not _goes_on(loop):
        app.leave()
    os._exit(EXIT_UNFINISHED)


def _end_if_blocked(app: AppRuntime, loop: asyncio.AbstractEventLoop) -> None:
    """End this process if its event loop is blocked after the grace time; a loop that runs ends by itself."""
    # A separate thread waits; when the whole time is over, the supervisor kills the process
    time.sleep(app.grace + KILL_AFTER / 2)
    while _goes_on(loop):
        time.sleep(_STILL)
    app.leave()
    os._exit(EXIT_UNFINISHED)


def _goes_on(loop: asyncio.AbstractEventLoop) -> bool:
    """Report whether an event loop responds or is closed."""
    answered = threading.Event()
    try:
        loop.call_soon_threadsafe(answered.set)
    except RuntimeError:
        return True
    return answered.wait(_STILL)


def _at_fork(numbers: Iterable[int], in_child: Callable[[], None]) -> None:
    """Call a function in each forked process before these signals reach it: Python drops earlier ones."""
    own = threading.local()

    def block() -> None:
        own.mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, own.mask)

    # Hooks of a child run in the order of their registration
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)
    os.register_at_fork(after_in_child=unblock)


@contextlib.contextmanager
def _hearing(stop: Callable[[], None], app: AppRuntime) -> Iterator[None]:
    """Call ``stop`` in the event loop at the first SIGTERM or SIGINT; a blocked loop only delays the end.

    Python runs these signal handlers in the main thread, even in the middle of a handler that blocks it. Signal
    handlers of the event loop would wait for the loop.
    """
    loop, ending = asyncio.get_running_loop(), Ending()

    def heard(number: int, _frame: object) -> None:
        first = not ending.asked
        if ending.at_once(number):
            os._exit(128 + number)
        if first:  # in a thread, since the loop may be blocked
            threading.Thread(target=_end_if_blocked, args=(app, loop), name="end", daemon=True).start()
            loop.call_soon_threadsafe(stop)

    before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)}

    def forked() -> None:
        # A child forked by a handler, for example by multiprocessing, would not end, and would release this process's
        # entries
        for number, handler in before.items():
            if signal.getsignal(number) is heard:
                signal.signal(number, handler)

    _at_fork(before, forked)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _run(app: AppRuntime, lifeline: int | None, ready: Callable[[], None] | None) -> int:
    """Run from the first signal handler to the exit code; signals are handled before the first connection."""
    stopping = asyncio.Event()
    with _hearing(stopping.set, app):
        if lifeline is not None:
            _follow(app, lifeline, stopping)
        return await _run_until(app, stopping, ready, supervised=lifeline is not None)


def _follow(app: AppRuntime, lifeline: int, stopping: asyncio.Event) -> None:
    """Stop when the parent ends or stops."""
    loop = asyncio.get_running_loop()
    order = select.poll()
    order.register(lifeline, select.POLLIN)
    runs.stopped_alone = lambda: (
        stopping.is_set()
        and spare.spare is not None
        # A killed supervisor sends no order, but its pipe closes
        and not any(events & select.POLLIN for _, events in order.poll(0))
    )

    def orphaned() -> None:
        loop.remove_reader(lifeline)
        stopping.set()

    loop.add_reader(lifeline, orphaned)
    threading.Thread(target=_outlive_nobody, args=(app, loop, lifeline), name="lifeline", daemon=True).start()


async def _run_until(
    app: AppRuntime, stopping: asyncio.Event, ready: Callable[[], None] | None, *, supervised: bool
) -> int:
    """Start, read until the stop, and end in order; return the exit code."""
    if not app.subscriptions:
        hint = "; `millstream run` runs its pipelines" if app.pipelines else ""
        log.error("the app has no subscribers; register one with @app.subscriber%s", hint)
        return EXIT_CONFIG
    try:
        code = await _start(app, stopping)
        if code is not None:
            return code
        log.info("reading %s", ", ".join(dict.fromkeys(sub.sub.stream for sub in app.subscriptions)))
        if ready is not None:
            ready()
        return await _until_stopped(app, stopping, supervised=supervised)
    except ConfigError as error:
        log.error("%s", error)  # noqa: TRY400 - the user's mistake, so no traceback
        return EXIT_CONFIG
    except MillstreamError as error:
        log.critical("%s", error)
        return EXIT_FATAL


async def _start(app: AppRuntime, stopping: asyncio.Event) -> int | None:
    """Connect, trying for a while; return an exit code if that failed or the process must stop."""
    try:
        return None if await start_patiently(app.start, app.url, CONNECT_SECONDS, stopping) else EXIT_CLEAN
    except Disconnected as error:
        log.critical("%s", error)
        return EXIT_UNREACHABLE
    except AccessDenied as error:
        log.critical(
            "cannot connect to %s: %s. Give a valid user and password.",
            without_password(app.url),
            str(error).rstrip("."),
        )
        return EXIT_UNREACHABLE


async def _asked(stopping: asyncio.Event) -> None:
    """Wait until the process must end; a handler could cancel a task of asyncio's own."""
    await stopping.wait()


async def _until_stopped(app: AppRuntime, stopping: asyncio.Event, *, supervised: bool) -> int:
    """Wait for the first reason to end (a signal, a failed subscriber, an order), stop, and return the exit code.

    A signal takes precedence: its sender knows the reason, and only needs to know whether the process ended cleanly.
    """
    waits = [asyncio.create_task(wait) for wait in (_asked(stopping), app.wait(), app.dismissed())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    fatal: BaseException | None = None
    if waits[1].done() and not stopping.is_set():
        fatal = waits[1].exception()
    dismissed = waits[2].done() and not stopping.is_set()
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    if fatal is not None:
        log.critical("%s", fatal, exc_info=None if isinstance(fatal, MillstreamError) else fatal)
    clean = await app.stop()
    code = EXIT_FATAL if fatal is not None else EXIT_CLEAN if clean else EXIT_UNFINISHED
    if not clean:
        # The grace time has been spent on waiting for a thread, or for a task that continues after its cancellation
        logging.shutdown()
        os._exit(code)
    if code != EXIT_CLEAN:
        return code
    # Only Millstream's supervisor handles this code; for others, an ordered end is a clean end
    return EXIT_DISMISSED if dismissed and supervised else EXIT_CLEAN
