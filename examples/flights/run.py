"""Run the demo: check its requirements, start all processes, and check the results."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType

import redis
from rich.console import Console

from flights import rules
from flights.checks import truth
from flights.checks.compare import check_all
from flights.checks.evidence import Evidence, gather
from flights.checks.result import Result
from flights.data import TOTAL_ROWS, data_file, events
from flights.producer import Producer
from flights.running.flow import Flow
from flights.running.processes import Processes
from flights.running.progress import board
from flights.running.sample import Sample
from flights.settings import DemoSettings
from millstream.client.connect import sync_client
from millstream.client.url import check_remote
from millstream.errors import ConfigError, UsageError

FEWEST_ROWS = 1_000
"""Smallest number of flights that contains each kind of fault that the checks cover."""


def preflight(settings: DemoSettings) -> None:
    """Check the requirements before the slow parts start.

    Raises:
        UsageError: Java, the data or the server of the URL is missing, or options exclude each other.
    """
    if settings.rows is not None and not FEWEST_ROWS <= settings.rows <= TOTAL_ROWS:
        raise UsageError(f"--rows takes a number from {FEWEST_ROWS:,} to {TOTAL_ROWS:,}, not {settings.rows:,}")
    if settings.kill_server and settings.url:
        raise UsageError("--kill-server kills the demo's own server; a server given by --url is never touched")
    import millstream.spark  # noqa: PLC0415 - without the spark extra the demo's help must still work

    problem = millstream.spark.java_problem()
    if problem:
        raise UsageError(problem)
    data_file("flights.csv.zip")
    if settings.url:
        _check_server(settings.url)


def _check_server(url: str) -> None:
    try:
        with contextlib.closing(sync_client(check_remote(url), socket_connect_timeout=5)) as client:
            client.ping()
    except ConfigError:
        raise
    except (redis.RedisError, ValueError, OSError) as error:
        raise UsageError(f"no server answers at --url ({error}): start it, or leave --url out") from error


def run(settings: DemoSettings, console: Console, show: Callable[[Result], None] = lambda _: None) -> Result:
    """Run the demo and return its checks and its course.

    ``show`` gets the result while the server and the console still run.

    Raises:
        UsageError: a requirement is missing, or options exclude each other; nothing was started.
        DemoError: a part of the run failed.
    """
    preflight(settings)
    settings.prepare()
    clock = Stopwatch()
    with ExitStack() as stack:
        stack.enter_context(signals_as_interrupt())
        processes = Processes(settings)
        stack.callback(processes.stop)
        client = stack.enter_context(contextlib.closing(sync_client(processes.start_server())))
        stack.callback(_clean_keys, client, settings)
        stack.callback(processes.stop_users)
        if settings.console:
            processes.start_console(partial(_tell_address, console))
        _make_group(client, settings)
        processes.start_pipeline()
        processes.start_workers()
        facts = truth.compute(settings.rows)
        producer = Producer(processes.url, settings.keys.flights, events(settings.rows), gate=facts.rows // 2)
        stack.callback(producer.stop)
        clock.lap("start")
        with board(console, expected(facts)) as screen:
            flow = Flow(settings, facts.rows, processes, client, producer, screen)
            flow.run()
        clock.lap("events and pipeline")
        processes.stop_workers()
        evidence: Evidence = gather(client, settings, flow.incidents)
        checks = check_all(facts, evidence)
        clock.lap("checks")
        result = Result(
            settings=settings,
            rows=facts.rows,
            server=server_name(client),
            checks=checks,
            samples=flow.samples,
            happenings=flow.happenings,
            alerts=len({fields["of"] for _, fields in evidence.alerts}),
            routes=evidence.routes,
            held=len(flow.incidents.held),
            seconds=clock.laps,
        )
        show(result)
        if settings.stay:
            _stay(console)
    return result


def _tell_address(console: Console, address: str) -> None:
    console.print(f"Watch it at {address}", markup=False, highlight=False, soft_wrap=True)


def _stay(console: Console) -> None:
    """Leave everything open until Ctrl-C."""
    console.print("The console stays open; Ctrl-C ends it.", markup=False, highlight=False, soft_wrap=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


class Stopwatch:
    """Durations of the parts of a run."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Store the seconds since the last lap under ``name``."""
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 2)
        self._last = now


def expected(facts: truth.Truth) -> Sample:
    """Return the final value of each figure on the board."""
    return Sample(
        published=facts.rows,
        handled=facts.rows,
        alerts=len(facts.delayed) + len(facts.cancelled) - len(facts.unusable),
        dead=len(facts.unusable),
        spark=facts.rows,
    )


def _make_group(client: "redis.Redis", settings: DemoSettings) -> None:
    """Create the group at the stream's start before the first event, so that no worker's start decides its position."""
    client.xgroup_create(settings.keys.flights, rules.GROUP, "0", mkstream=True)


def _clean_keys(client: "redis.Redis", settings: DemoSettings) -> None:
    """Remove the demo's keys from a user's server."""
    if not settings.url or settings.keep:
        return
    with contextlib.suppress(redis.ConnectionError):
        # The second pattern is for the workers' own keys of a stream, such as failures and due times
        for pattern in (f"{settings.keys.prefix}*", f"millstream:{{{settings.keys.prefix}*"):
            for key in client.scan_iter(match=pattern, count=1000):
                client.unlink(key)


def server_name(client: "redis.Redis") -> str:
    """Return the name and version that the server reports."""
    info = client.info("server")
    if "millstream_version" in info:
        return f"Millstream {info['millstream_version']}"
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', '?')}"


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """End the run after SIGTERM or SIGHUP as after Ctrl-C, without leaving a process running.

    Only the first signal counts, since a second one would interrupt the end itself. A signal that the parent process
    ignores stays ignored; a shell does so for background jobs, and nohup for SIGHUP.
    """
    stopping = False

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        nonlocal stopping
        if not stopping:
            stopping = True
            raise KeyboardInterrupt

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
