"""Runs the demo: checks what it needs, starts everything, and looks at what is left at the end."""

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import redis
from rich.console import Console

from millstream.client.connect import sync_client
from millstream.client.url import check_remote
from millstream.demo import rules, truth
from millstream.demo.cast import Cast
from millstream.demo.checks import Check, check_all
from millstream.demo.data import TOTAL_ROWS, data_file, events
from millstream.demo.evidence import Evidence, gather
from millstream.demo.flow import Flow
from millstream.demo.producer import Producer
from millstream.demo.progress import board
from millstream.demo.sample import Happening, Sample
from millstream.demo.settings import Settings
from millstream.errors import ConfigError, UsageError
from millstream.worker.settlement import failure_log

FEWEST_ROWS = 1_000
"""Fewer flights would not contain each kind of trouble that the checks are about."""


@dataclass
class Result:
    """What a run gives.

    Attributes:
        settings: the run.
        rows: number of events.
        server: name and version of the server.
        checks: the checks, in order.
        samples: the state of things over time.
        happenings: what to mark on the time line.
        alerts: events that an alert was raised for.
        routes: the table of routes that the pipeline wrote last.
        held: how many entries the killed worker held.
        seconds: how long each part took, in order.
    """

    settings: Settings
    rows: int
    server: str
    checks: list[Check]
    samples: list[Sample]
    happenings: list[Happening]
    alerts: int
    routes: list[dict[str, str]]
    held: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def write(self) -> None:
        """Leave ``checks.json`` and ``flow.json`` in the output folder."""
        summary: dict[str, Any] = {
            "ok": self.ok,
            "rows": self.rows,
            "server": self.server,
            "seconds": self.seconds,
            "checks": [check.as_dict() for check in self.checks],
        }
        (self.settings.out / "checks.json").write_text(json.dumps(summary, indent=2) + "\n")
        flow = {
            "samples": [sample.as_dict() for sample in self.samples],
            "happenings": [happening.as_dict() for happening in self.happenings],
        }
        (self.settings.out / "flow.json").write_text(json.dumps(flow) + "\n")


def preflight(settings: Settings) -> None:
    """Find out what is missing before anything slow happens.

    Raises:
        UsageError: no Java, no data, no server at the given URL, or options that do not go together.
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


def run(settings: Settings, console: Console) -> Result:
    """Run the demo.

    Args:
        settings: what to do.
        console: where progress is shown.

    Returns:
        The checks and the course of the run; ``Result.ok`` says whether all holds.

    Raises:
        UsageError: something is missing or contradictory; nothing was started.
        DemoError: something broke that was not to break.
    """
    preflight(settings)
    settings.prepare()
    clock = Stopwatch()
    with ExitStack() as stack:
        stack.enter_context(_signals_as_interrupt())
        cast = Cast(settings)
        stack.callback(cast.stop)
        client = stack.enter_context(contextlib.closing(sync_client(cast.start_server())))
        stack.callback(_clean_keys, client, settings)
        stack.callback(cast.stop_users)
        _make_group(client, settings)
        cast.start_pipeline()
        cast.start_workers()
        facts = truth.compute(settings.rows)
        producer = Producer(cast.url, settings.keys.flights, events(settings.rows), gate=facts.rows // 2)
        stack.callback(producer.stop)
        clock.lap("start")
        with board(console, expected(facts)) as screen:
            flow = Flow(settings, facts.rows, cast, client, producer, screen)
            flow.run()
        clock.lap("events and pipeline")
        cast.stop_workers()
        evidence: Evidence = gather(client, settings, flow.incidents)
        checks = check_all(facts, evidence)
        clock.lap("checks")
        name = server_name(client)
    return Result(
        settings=settings,
        rows=facts.rows,
        server=name,
        checks=checks,
        samples=flow.samples,
        happenings=flow.happenings,
        alerts=len({fields["of"] for _, fields in evidence.alerts}),
        routes=evidence.routes,
        held=len(flow.incidents.held),
        seconds=clock.laps,
    )


class Stopwatch:
    """Times of the parts of a run."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Seconds since the last lap, under ``name``."""
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 2)
        self._last = now


def expected(facts: truth.Truth) -> Sample:
    """What each figure on the board has to reach."""
    return Sample(
        published=facts.rows,
        handled=facts.rows,
        alerts=len(facts.delayed) + len(facts.cancelled) - len(facts.unusable),
        dead=len(facts.unusable),
        spark=facts.rows,
    )


def _make_group(client: "redis.Redis", settings: Settings) -> None:
    """The group from the stream's beginning, before anyone can publish: no worker's start decides what it sees."""
    client.xgroup_create(settings.keys.flights, rules.GROUP, "0", mkstream=True)


def _clean_keys(client: "redis.Redis", settings: Settings) -> None:
    """Remove our keys from a server that is not ours."""
    if not settings.url or settings.keep:
        return
    with contextlib.suppress(redis.ConnectionError):
        for key in client.scan_iter(match=f"{settings.keys.prefix}*", count=1000):
            client.unlink(key)
        client.unlink(
            failure_log.key(settings.keys.flights, rules.GROUP)
        )  # the worker's notes on what waits for a retry


def server_name(client: "redis.Redis") -> str:
    """What the server says it is."""
    info = client.info("server")
    if "millstream_version" in info:
        return f"Millstream {info['millstream_version']}"
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', '?')}"


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run as Ctrl-C does: in order, leaving no process behind.

    Only the first one counts: a second would interrupt the ending itself. What our parent told us to ignore (a shell
    does so for what runs in the background, nohup for SIGHUP) stays ignored.
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
