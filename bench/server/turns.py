"""Runs of cases on all servers in turns: each round runs a case once on each, A B C A B C.

A first, short run that is not counted finds the number of commands. So all runs take about the same time whatever the
server's speed.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.server.cases import Case
from bench.server.load import Measured, send
from bench.server.servers import Server, all_started

Rounds = dict[str, list[dict[str, Any]]]
"""Records of the rounds, by server."""


@dataclass(frozen=True)
class Effort:
    """The amount of work.

    Attributes:
        rounds: Runs of each case on each server.
        seconds: Approximate duration of a run.
        quick: True to leave out the largest sizes.
    """

    rounds: int
    seconds: float
    quick: bool


def in_turns(
    servers: Sequence[Server], effort: Effort, run: Callable[[Server, int], Measured], *, first: int = 500
) -> Rounds:
    """Return the rounds of one case.

    Args:
        servers: Servers to run on.
        effort: Amount of work.
        run: Function that sends so many commands to a server.
        first: Number of commands in the run that finds the right number.
    """
    totals = {one.name: _enough(one, effort, run, first) for one in servers}
    found: Rounds = {one.name: [] for one in servers}
    for _ in range(effort.rounds):
        for one in servers:
            found[one.name].append(run(one, totals[one.name]).record())
    return found


def _enough(server: Server, effort: Effort, run: Callable[[Server, int], Measured], first: int) -> int:
    """Return the number of commands that take about the intended time, by larger and larger runs."""
    total = first
    while True:
        took = total / run(server, total).rate  # without the time to pack the commands
        if took > effort.seconds / 2:
            return max(first, int(total * effort.seconds / took))
        total *= 4


def all_cases(cases: Iterable[Case], effort: Effort) -> dict[str, Rounds]:
    """Run every case, with the servers of a setting started once."""
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
    """Print the progress of a case."""
    words = [
        f"{server} {found[-1]['rate']:,.0f}/s {found[-1]['micros']:.3g} us" for server, found in rounds.items() if found
    ]
    print(f"{name}: {'; '.join(words)}", file=sys.stderr, flush=True)
