"""The goals of the comparison with redis-server, and their results: a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.server.servers import NATIVE, PYTHON, REDIS

Results = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """One goal.

    Attributes:
        name: Subject of the goal.
        cases: Cases that must all reach it.
        native: Minimum ratio to redis-server with the native core.
        python: Minimum ratio to redis-server in plain Python.
    """

    name: str
    cases: tuple[str, ...]
    native: float
    python: float


_PENDING = tuple(f"{name} of 10, 100,000 pending" for name in ("XCLAIM", "XAUTOCLAIM", "XPENDING"))
GOALS = (
    Goal("XADD pipelined by 16", ("XADD by 16",), 1.0, 0.25),
    Goal("XADD, 50 clients, unpipelined", ("XADD",), 0.9, 0.3),
    Goal("the same two with fsync always on both sides", ("XADD by 16, fsync always", "XADD, fsync always"), 1.0, 0.3),
    Goal("SET, GET, PING pipelined", ("SET by 16", "GET by 16", "PING by 16"), 0.75, 0.2),
    Goal(
        "XRANGE, XREAD COUNT 100 and more",
        ("XRANGE COUNT 100", "XREAD COUNT 100", "XRANGE COUNT 1000", "XREAD COUNT 1000"),
        3.0,
        1.5,
    ),
    Goal("XRANGE COUNT 1 pipelined", ("XRANGE COUNT 1 by 16",), 1.2, 0.2),
    Goal(
        "XREADGROUP COUNT 10 + XACK; XCLAIM, XAUTOCLAIM, XPENDING range",
        ("XREADGROUP COUNT 10 + XACK by 16", *_PENDING),
        1.0,
        0.3,
    ),
)
SIZES = (
    ("bytes an entry of three short fields", "an entry of three short fields", 33, 100),
    ("bytes a pending entry", "a pending entry", 120, 200),
)
"""Name, measured thing and maximum size for each core; with the native core Redis's own size is accepted too."""
SLOWER = 1.5
"""Maximum ratio to Redis's p99 at half of Redis's peak with the native core."""


def ratios(rounds: dict[str, list[dict[str, Any]]], server: str) -> tuple[float, float] | None:
    """Return the median ratios to redis-server of processor time and rate; above 1 is better."""
    pairs = list(zip(rounds.get(REDIS, ()), rounds.get(server, ()), strict=False))
    if not pairs:
        return None
    micros = median(base["micros"] / mine["micros"] for base, mine in pairs)
    return micros, median(mine["rate"] / base["rate"] for base, mine in pairs)


def rows(results: Results) -> list[list[str]]:
    """Return the table's rows: the goal, its minimum and its result, for both cores."""
    cases = results.get("cases", {}).get("found", {})
    found = []
    for goal in GOALS:
        cells = [
            cell
            for server, least in ((NATIVE, goal.native), (PYTHON, goal.python))
            for cell in (f"at least {least:g}", _reached(cases, goal.cases, server, least))
        ]
        found.append([goal.name, *cells])
    return found + _sizes(results) + _waits(results)


def _reached(cases: dict[str, Any], names: Sequence[str], server: str, least: float) -> str:
    both = [told for name in names if (told := ratios(cases.get(name, {}), server)) is not None]
    if not both:
        return "not measured"
    # Of several cases the worst counts
    processor, rate = min(one[0] for one in both), min(one[1] for one in both)
    if processor < least:
        verdict = "not reached"
    else:
        verdict = "**reached**" if rate >= least else "**reached** by processor time"
    return f"{verdict}: {processor:.2f}, rate {rate:.2f}"


def _sizes(results: Results) -> list[list[str]]:
    found = []
    for name, thing, native, python in SIZES:
        by_server = results.get("memory", {}).get("found", {}).get(thing, {})
        cells = []
        for server, most in ((NATIVE, max(native, by_server.get(REDIS, 0))), (PYTHON, python)):
            value = by_server.get(server)
            cells.append(f"at most {most:g}")
            cells.append("not measured" if value is None else f"{_verdict(value <= most)}: {value:g}")
        found.append([name, *cells])
    return found


def _waits(results: Results) -> list[list[str]]:
    cells = "not measured"
    told = []
    for rounds in results.get("paced", {}).get("found", {}).values():
        pairs = list(zip(rounds.get(REDIS, ()), rounds.get(NATIVE, ()), strict=False))
        told += [median(mine["p99"] / base["p99"] for base, mine in pairs)] if pairs else []
    if told:
        cells = f"{_verdict(max(told) <= SLOWER)}: {max(told):.2f}"
    return [["p99 at half of Redis's peak, times Redis's", f"at most {SLOWER:g}", cells, "", ""]]


def _verdict(is_reached: bool) -> str:
    return "**reached**" if is_reached else "not reached"
