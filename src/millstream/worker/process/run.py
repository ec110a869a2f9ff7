"""One worker process: signals in, exit code out."""

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
EXIT_FATAL = 1  # the subscriber cannot go on; whoever supervises starts it again
EXIT_UNREACHABLE = 69  # sysexits.h: service unavailable
EXIT_DISMISSED = 3  # ordered to end by the control channel; whoever supervises need not start it again
EXIT_UNFINISHED = 70  # a thread would not end; its entry stays pending and will be claimed
EXIT_CONFIG = 78  # sysexits.h: configuration error; starting again cannot help

#: Seconds a worker tries to reach the server before it gives up at its start. Once started it never gives up.
CONNECT_SECONDS = 10.0

#: Seconds beyond the grace time that a process has to store its last outcomes and end in order; then it is killed.
KILL_AFTER = 10.0
# Seconds without a sign of life from the event loop after which a process that is to end does not wait for it.
_STILL = 1.0

_ORPHANED_SECONDS = 5.0  # The same for a process whose parent is gone

READY = b"ready\n"
PIPELINES = b"pipelines\n"
# Lines of a worker process to its supervisor: it reads, its app has pipelines too, the seconds of its app's grace.
GRACE = b"grace "

ALONE = b"alone\n"
# Two more: it begins to run an entry alone that a limited number of ends is charged to, and that run is over.
BESIDE = b"beside\n"

SPARE = b"spare\n"  # the spare process has work
OWN = b"own\n"  # Its own code sends SIGKILL to this process
END = b"end "  # The exit code with which it ends in order follows


STOP = b"stop\n"
"""In the lifeline of its workers, which nobody reads: the supervisor stops."""


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
    """Run with the health endpoint, if one is wanted, from before the first connection until after the last."""
    if health is None:
        return await _run(app, lifeline, ready)
    try:
        async with serving(app, *health, allow=health_allow):
            return await _run(app, lifeline, ready)
    except HealthError as error:
        log.error("%s", error)  # noqa: TRY400 - the user's mistake, not ours: no traceback
        return EXIT_CONFIG


def _outlive_nobody(app: AppRuntime, loop: asyncio.AbstractEventLoop, lifeline: int) -> None:
    """End this process in time when its parent is gone."""
    ended = select.poll()
    ended.register(lifeline, 0)  # its end alone, which is always reported
    ended.poll()
    time.sleep(app.grace + _ORPHANED_SECONDS)  # a thread of its own; a clean end in that time ends it too
    if not _goes_on(loop):
        app.leave()
    os._exit(EXIT_UNFINISHED)


def _end_if_blocked(app: AppRuntime, loop: asyncio.AbstractEventLoop) -> None:
    """End this process if its event loop stands still after the grace time; one that goes on ends by itself."""
    # A thread of its own waits; the supervisor kills the process when all of that time is over
    time.sleep(app.grace + KILL_AFTER / 2)
    while _goes_on(loop):
        time.sleep(_STILL)
    app.leave()
    os._exit(EXIT_UNFINISHED)


def _goes_on(loop: asyncio.AbstractEventLoop) -> bool:
    """True if an event loop gives a sign of life, or is closed."""
    answered = threading.Event()
    try:
        loop.call_soon_threadsafe(answered.set)
    except RuntimeError:
        return True
    return answered.wait(_STILL)


def _at_fork(numbers: Iterable[int], in_child: Callable[[], None]) -> None:
    """Call a function in each forked process before these signals reach it: Python drops those that come earlier."""
    own = threading.local()

    def block() -> None:
        own.mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, own.mask)

    # Those of a child run in the order of their registration
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)
    os.register_at_fork(after_in_child=unblock)


@contextlib.contextmanager
def _hearing(stop: Callable[[], None], app: AppRuntime) -> Iterator[None]:
    """Call ``stop`` in the event loop at the first SIGTERM or SIGINT; a loop that stands still only delays the end.

    Python runs these handlers in the main thread, also in the middle of a handler that blocks it; those of the event
    loop would wait for it to go on.
    """
    loop, ending = asyncio.get_running_loop(), Ending()

    def heard(number: int, _frame: object) -> None:
        first = not ending.asked
        if ending.at_once(number):
            os._exit(128 + number)
        if first:  # in a thread: the loop may be what is blocked
            threading.Thread(target=_end_if_blocked, args=(app, loop), name="end", daemon=True).start()
            loop.call_soon_threadsafe(stop)

    before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)}

    def forked() -> None:
        # A child of a handler's, as of multiprocessing, would not end, and would hand back the entries of this process
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
    """From the first signal handler to the exit code; signals are heard before the first connection is tried."""
    stopping = asyncio.Event()
    with _hearing(stopping.set, app):
        if lifeline is not None:
            _follow(app, lifeline, stopping)
        return await _run_until(app, stopping, ready, supervised=lifeline is not None)


def _follow(app: AppRuntime, lifeline: int, stopping: asyncio.Event) -> None:
    """Stop when the parent is gone, or stops."""
    loop = asyncio.get_running_loop()
    order = select.poll()
    order.register(lifeline, select.POLLIN)
    runs.stopped_alone = lambda: (
        stopping.is_set()
        and spare.spare is not None
        # A supervisor that was killed leaves no order, only the end of the pipe
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
    """Start, read until the stop, end in order."""
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
        log.error("%s", error)  # noqa: TRY400 - the user's mistake, not ours: no traceback
        return EXIT_CONFIG
    except MillstreamError as error:
        log.critical("%s", error)
        return EXIT_FATAL


async def _start(app: AppRuntime, stopping: asyncio.Event) -> int | None:
    """Connect, trying for a while; an exit code if that was the end of it."""
    try:
        return None if await start_patiently(app.start, app.url, CONNECT_SECONDS, stopping) else EXIT_CLEAN
    except Disconnected as error:
        log.critical("%s", error)
        return EXIT_UNREACHABLE
    except AccessDenied as error:
        log.critical("cannot log in to %s: %s. Give a valid user in the URL.", without_password(app.url), error)
        return EXIT_UNREACHABLE


async def _asked(stopping: asyncio.Event) -> None:
    """Wait until the process is to end: a task of asyncio's own could be cancelled by a handler."""
    await stopping.wait()


async def _until_stopped(app: AppRuntime, stopping: asyncio.Event, *, supervised: bool) -> int:
    """Wait for the first reason to end (a signal, a failed subscriber, an order), stop, and say which it was.

    A signal goes before the others: who sends one knows that the process ends, and asks only whether it ended cleanly.
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
        # waiting for a thread, or for a task that goes on though it was cancelled, is what the grace time was for
        logging.shutdown()
        os._exit(code)
    if code != EXIT_CLEAN:
        return code
    # only a supervisor of ours knows what it means; for any other, an end that was asked for is a clean one
    return EXIT_DISMISSED if dismissed and supervised else EXIT_CLEAN
