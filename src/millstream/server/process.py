"""A server as a separate process: banner, signals, one ``ready`` line for machines, and exit codes.

========  ==========================================================================================
exit code  meaning
========  ==========================================================================================
0         stopped by a signal or SHUTDOWN; everything is on disk
1         could not start, or the disk failed; one sentence on stderr gives the reason and the remedy
2         the command line is invalid
========  ==========================================================================================
"""

import asyncio
import functools
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from millstream import core
from millstream._version import __version__
from millstream.ending import Ending
from millstream.errors import MillstreamError, UsageError
from millstream.logs import logger
from millstream.printable import printable
from millstream.server.accepting import handshakes_at
from millstream.server.app import LoadingStoppedError, Server
from millstream.server.beside import Beside, Companion
from millstream.server.loops import loop_factory
from millstream.server.settings import Settings
from millstream.server.tls import HANDSHAKES_MAX
from millstream.texts import plural, size_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

log = logger("millstream.server")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_DOING = {"check": "Checking the log", "load": "Loading the log"}
# Seconds for which a thread may keep the interpreter while another waits. The thread that syncs the log needs it
# briefly after each fsync, and replies wait for that; Python's default of 5 ms is longer than the fsync itself.
_SWITCH_INTERVAL = 0.0005
# Descriptors for other purposes than clients: some 24 for the event loop, the log and the listeners, the reserve
# (``accepting.RESERVE``), and a few for files of an embedding program. Redis, which needs fewer, keeps 32.
_RULES_SHOWN = 200  # characters of the rules of retention in the banner
_OWN_DESCRIPTORS = 48
# Smaller logs are read before a progress bar would appear.
_PROGRESS_FROM = 8 * 1024 * 1024


def py_share_heap() -> bool:
    """Let all threads allocate from one heap; return False if nothing changed.

    glibc makes a heap for each thread. Memory that a thread frees there stays resident, and no other heap can use it.
    """
    return False


if TYPE_CHECKING:
    share_heap = py_share_heap
else:
    share_heap = core.choose(py_share_heap)


def run_server(settings: Settings, companion: Companion | None = None) -> int:
    """Serve until a signal, SHUTDOWN or a failed disk.

    Returns:
        The exit code.
    """
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    share_heap()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(settings, companion))


async def _serve(settings: Settings, companion: Companion | None) -> int:
    with RecoveryProgress(sys.stderr) as progress:
        server = Server(settings, on_progress=progress.tell)
        ending, loop = Ending(), asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, _on_signal, server, ending, number)
        try:
            await server.start()
            gc.freeze()  # loaded modules stay, so the collector need not visit them
            reserve_descriptors(server)
        except LoadingStoppedError as error:
            log.info("%s", error)
            return 0
        except MillstreamError as error:
            _say(f"millstream: {error}")
            return 1
    _say(banner(server))
    print("ready", *server.urls, flush=True)  # noqa: T201 - programs wait for this line
    beside = None if companion is None else Beside(companion)
    if beside is not None:
        await beside.start(next(url for url in server.urls if not url.startswith("rediss:")))
    await server.stopping.wait()
    await asyncio.gather(server.stop(), *([] if beside is None else [beside.stop()]))
    if server.failure is not None:
        return 1
    log.info("stopped%s", "" if settings.directory is None else "; everything is on disk")
    log.info("Millstream is now ready to exit, bye bye...")  # tools made for Redis wait for this
    return 0


def _say(text: str) -> None:
    """Print for the person who started the server; do nothing if standard error was closed."""
    if sys.stderr is not None:
        print(printable(text), file=sys.stderr)  # noqa: T201 - errors at the start go to standard error


def _on_signal(server: Server, ending: Ending, number: signal.Signals) -> None:
    """Stop in good order at the first signal; a later one may end the process at once, see ``Ending``."""
    if ending.at_once(number):
        os._exit(128 + number)
    if server.stopping.is_set():
        return
    log.info("%s: stopping; Ctrl-C ends at once", number.name)
    server.shut_down()


def reserve_descriptors(server: Server) -> None:
    """Take the descriptors that ``maxclients`` may need, or lower ``maxclients`` to fit, as Redis does."""
    config, encrypted = server.node.config, bool(server.tls_port)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= _OWN_DESCRIPTORS:
        raise UsageError(
            f"the system allows {hard} open files, and the server needs {_OWN_DESCRIPTORS} for itself: raise the limit "
            "(ulimit -n) to that and one for each client"
        )
    packs = server.node.cold.packs
    config.clients_possible = functools.partial(clients_possible, encrypted=encrypted, others=lambda: len(packs.names))
    possible = config.clients_possible(config.max_clients)
    if possible < config.max_clients:
        log.warning("the system allows %d open files, so maxclients is lowered to %d (see ulimit -n)", hard, possible)
        config.set([("maxclients", str(possible))])


def clients_possible(wanted: int, *, encrypted: bool, others: Callable[[], int] = lambda: 0) -> int:
    """Raise the system's limit of descriptors for this many clients; return how many clients are possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = _OWN_DESCRIPTORS + others()
    needed = wanted + own + (HANDSHAKES_MAX if encrypted else 0)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    return max(soft - own - (handshakes_at(soft) if encrypted else 0), 1)


def banner(server: Server) -> str:
    """The lines that the server prints for people at its start."""
    settings = server.settings
    lines = [
        f"Millstream {__version__}",
        f"  address  {'  '.join(server.urls)}",
        f"  data     {settings.directory.resolve() if settings.directory else 'in memory only'}",
        f"  promise  {settings.promise}" + (f" (--fsync {settings.fsync})" if settings.directory else ""),
        f"  core     {core.NAME}{core_note()}",
    ]
    if server.report is not None:
        keys = sum(len(base.keys) for base in server.node.keyspace.databases)
        lines.append(f"  found    {plural(keys, 'key')}; {server.report.sentence()}")
    lines += [f"  limits   {', '.join(found)}"] if (found := _limits(server)) else []
    return "\n".join(lines)


def _limits(server: Server) -> list[str]:
    """Return the settings that bound memory and streams, and the number of packs, as far as there are any."""
    config, packs = server.node.config, len(server.node.cold.packs.names)
    found = [f"maxmemory {size_text(config.max_memory)}"] if config.max_memory else []
    found += ["tier yes"] if config.tier else []
    found += [f"old entries in {plural(packs, 'pack')}"] if packs else []
    rules = config.retention.text
    shown = rules if len(rules) <= _RULES_SHOWN else rules[:_RULES_SHOWN] + "..."
    return [*found, f"stream-retention '{shown}'"] if rules else found


def core_note() -> str:
    """Return advice to install the faster core, unless the Python core was chosen."""
    if core.NAME == core.NATIVE:
        return ""
    return f" ({core.VARIABLE} says so)" if core.IS_CHOSEN else f", the slower one. For the native one {core.REMEDY}"


class RecoveryProgress:
    """A progress bar while a long log is read, on a terminal only."""

    def __init__(self, out: IO[str] | None) -> None:
        self._out = out
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def tell(self, doing: str, done: int, total: int) -> None:
        """Show the progress of one step."""
        if total < _PROGRESS_FROM or self._out is None or not self._out.isatty():
            return
        if self._bar is None:
            self._bar = self._start()
        if doing not in self._tasks:
            self._tasks[doing] = self._bar.add_task(_DOING.get(doing, doing), total=total)
        self._bar.update(self._tasks[doing], completed=done)

    def _start(self) -> "Progress":
        from rich import console, progress  # noqa: PLC0415 - it takes a quarter of a start, and few logs are long

        columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.DownloadColumn())
        bar = progress.Progress(*columns, progress.TimeRemainingColumn(), console=console.Console(file=self._out))
        bar.start()
        return bar

    def __enter__(self) -> "RecoveryProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
