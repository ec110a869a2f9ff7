"""G1: the hot path beside that of an earlier commit, both without a tier."""

import contextlib
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis
from bench.pairs import free_port, running
from bench.server.cases import ENTRIES, FIELDS, ranges, stream
from bench.server.load import pack, send
from bench.server.servers import Server
from bench.tier.places import MILLSTREAM
from bench.tier.results import Result

BAR = 1.02
_GROUP = [pack("XGROUP", "DESTROY", "s", "g"), pack("XGROUP", "CREATE", "s", "g", 0)]
_ADD = [pack("XADD", "t", "*", *FIELDS)]
_EMPTY = [pack("DEL", "t")]
_ACKS = [pack("XACK", "s", "g", f"{number}-1") for number in range(1, ENTRIES + 1)]


def _reads(count: int, times: int = 1) -> list[bytes]:
    return [pack("XREADGROUP", "GROUP", "g", "a", "COUNT", count, "STREAMS", "s", ">")] * times


@dataclass(frozen=True)
class _Case:
    """One command: what is sent before each run and not measured, and the run."""

    before: list[bytes]
    commands: list[bytes]
    total: int
    pipeline: int = 1
    clients: int = 50


CASES = {
    "XADD": _Case(_EMPTY, _ADD, 8000),
    "XADD by 16": _Case(_EMPTY, _ADD, 60_000, 16),
    "XADD by 100": _Case(_EMPTY, _ADD, 100_000, 100),
    "XRANGE COUNT 100": _Case([], list(ranges(100)()), 8000),
    "XREADGROUP COUNT 1": _Case(_GROUP, _reads(1), 8000),
    "XREADGROUP COUNT 10": _Case(_GROUP, _reads(10), 8000),
    "XREADGROUP COUNT 1 by 16": _Case(_GROUP, _reads(1), 50_000, 16),
    "XREADGROUP COUNT 10 by 16": _Case(_GROUP, _reads(10), 9900, 16),
    "XACK": _Case(_GROUP + _reads(1000, ENTRIES // 1000), _ACKS, 8000, 1, 1),
    "XACK by 100": _Case(_GROUP + _reads(1000, ENTRIES // 1000), _ACKS, ENTRIES, 100, 1),
}


@contextlib.contextmanager
def _started(source: str) -> Iterator[Server]:
    """Run the server of a checkout whose folder ``src`` has a compiled core."""
    port = free_port()
    environment = {"MILLSTREAM_CORE": "native"} | ({"PYTHONPATH": source} if source else {})
    with (
        running([MILLSTREAM, "serve", "--port", str(port), "--memory"], port, environment) as (url, pid),
        redis.Redis.from_url(url, socket_timeout=None) as client,
    ):
        yield Server(source, port, pid, client)


def hot_path(before: str, rounds: int, only: str = "") -> Iterator[Result]:
    """Yield a ratio for each command: the minimum of today's processor time to the minimum of the earlier commit."""
    if not Path(before, "millstream").is_dir():
        yield Result("G1", "skipped: --before names no folder src of an earlier checkout with a compiled core")
        return
    with _started(before) as one, _started("") as other:
        for server in (one, other):
            send(server, list(stream()))
        for name, case in CASES.items():
            if only not in name:
                continue
            found: dict[str, list[float]] = {one.name: [], other.name: []}
            for number in range(rounds):
                for server in (one, other) if number % 2 else (other, one):
                    if case.before:
                        send(server, case.before)
                    how = {"total": case.total, "clients": case.clients, "pipeline": case.pipeline}
                    found[server.name].append(send(server, case.commands, **how).micros)
            was, now = found[one.name], found[other.name]
            middle = statistics.median(late / early for early, late in zip(was, now, strict=True))
            share = min(now) / min(was)
            yield Result("G1", f"{name}: now to before by minima; median of pairs {middle:.3f}", share, BAR)
