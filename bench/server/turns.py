"""Running cases on all servers in turns: each round runs a case once on each, A B C A B C.

How many commands a run has is found by a first, short one that is not counted, so that all runs take about as long
however fast the server is.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.server.cases import Case
from bench.server.load import Measured, send
from bench.server.servers import Server, all_started

Rounds = dict[str, list[dict[str, Any]]]
"""By server, the record of each round."""


@dataclass(frozen=True)
class Effort:
    """How much is done.

    Attributes:
        rounds: how often each case runs on each server.
        seconds: how long a run shall take, about.
        quick: whether the largest sizes are left out.
    """

    rounds: int
    seconds: float
    quick: bool


def in_turns(
    servers: Sequence[Server], effort: Effort, run: Callable[[Server, int], Measured], *, first: int = 500
) -> Rounds:
    """The rounds of one case.

    Args:
        servers: on which.
        effort: how much.
        run: sends so many commands to a server.
        first: how many commands the run has that only finds out how many there shall be.
    """
    totals = {one.name: _enough(one, effort, run, first) for one in servers}
    found: Rounds = {one.name: [] for one in servers}
    for _ in range(effort.rounds):
        for one in servers:
            found[one.name].append(run(one, totals[one.name]).record())
    return found


def _enough(server: Server, effort: Effort, run: Callable[[Server, int], Measured], first: int) -> int:
    """How many commands take about as long as they shall: more and more, until connecting is a small part of it."""
    total = first
    while True:
        began = time.perf_counter()
        run(server, total)
        took = time.perf_counter() - began
        if took > effort.seconds / 2:
            return max(first, int(total * effort.seconds / took))
        total *= 4


def all_cases(cases: Iterable[Case], effort: Effort) -> dict[str, Rounds]:
    """Every case, the servers of a setting started once."""
    found: dict[str, Rounds] = {}
    chosen = list(cases)
    for setting in dict.fromkeys(case.setting for case in chosen):
        with all_started(setting) as servers:
            made: object = None
            for case in (case for case in chosen if case.setting == setting):
                if case.fresh or case.ready is not made:
                    made = case.ready
                    for server in servers:
                        server.client.flushall()
                        if commands := list(case.ready()):
                            send(server, commands)
                made = None if case.fresh else made
                found[case.name] = in_turns(servers, effort, case.run, first=4 * case.clients * case.pipeline)
                say(case.name, found[case.name])
    return found


def say(name: str, rounds: Rounds) -> None:
    """Tell who watches how it goes."""
    words = [
        f"{server} {found[-1]['rate']:,.0f}/s {found[-1]['micros']:.3g} us" for server, found in rounds.items() if found
    ]
    print(f"{name}: {'; '.join(words)}", file=sys.stderr, flush=True)
