"""Millstream beside redis-server, command by command: ``make bench``, or ``python -m bench.server [--quick]``.

Starts redis-server and Millstream, with its native core if there is one and in plain Python. C clients send them the
same commands in turns. The results are kept in docs/benchmarks.json; docs/benchmarks.md and its pictures are written
from there. ``--only`` measures some parts and leaves the others' results; ``--page`` measures nothing.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.server import curves, in_process, memory, page, through_redis_py, turns, waits
from bench.server.cases import CASES, QUICK
from bench.server.servers import load_average, machine

PARTS: dict[str, Callable[[turns.Effort], Any]] = {
    "cases": lambda effort: turns.all_cases((case for case in CASES if not effort.quick or case.name in QUICK), effort),
    "memory": lambda effort: memory.all_things(quick=effort.quick),
    "woken": waits.woken,
    "paced": waits.at_half_of_peak,
    "redis-py": through_redis_py.all_cases,
    "in-process": in_process.all_cases,
    "curves": curves.all_curves,
}


def circumstances(effort: turns.Effort, before: float, took: float) -> dict[str, Any]:
    """Return the facts about the machine and the run."""
    version = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=False).stdout
    return machine(before, took) | {
        "redis": version.partition("v=")[2].partition(" ")[0],
        "rounds": effort.rounds,
        "seconds": effort.seconds,
    }


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, short runs, one case for each goal")
    parser.add_argument("--rounds", type=int, default=0, help="default: 3, with --quick 1")
    parser.add_argument("--seconds", type=float, default=0, help="of each run, about; default: 1, with --quick 0.3")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; repeatable")
    parser.add_argument("--output", type=Path, help="write the results there, and no page")
    parser.add_argument("--page", action="store_true", help="write the page anew from the results there are")
    options = parser.parse_args()
    if options.page:
        page.write(json.loads(page.RESULTS.read_text()))
        return
    if options.output and not options.output.parent.is_dir():  # before minutes of measuring, not behind them
        parser.error(f"--output {options.output}: the folder {options.output.parent} does not exist. Make it first.")
    quick = options.quick
    effort = turns.Effort(options.rounds or (1 if quick else 3), options.seconds or (0.3 if quick else 1), quick)
    target = options.output or page.RESULTS
    results: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    parts = options.only or [name for name in PARTS if not quick or name not in {"curves", "redis-py"}]
    for name in parts:
        before, began = load_average(), time.monotonic()
        found = PARTS[name](effort)
        results[name] = {"about": circumstances(effort, before, time.monotonic() - began), "found": found}
        target.write_text(json.dumps(results, indent=1) + "\n")
    if options.output:
        print(page.section(results))
    else:
        page.write(results)


if __name__ == "__main__":
    main()
