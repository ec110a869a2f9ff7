"""The goals of streams that are larger than memory, G1 to G10, as ratios of one run.

    python -m bench.tier all --before ../earlier/src --redis ../redis/src/redis-server
    python -m bench.tier g6 g7 --entries 300000 --rounds 1
    python -m bench.tier soak --seconds 3600
    python -m bench.tier curves --folder ../disk

Each goal prints its ratios beside its bar. Absolute times are not printed, since they mean little on a shared machine.
Ten million entries need 12 GB of disk and about an hour; with fewer entries ``maxmemory`` is smaller in proportion.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.pairs import at_least_one, table
from bench.tier import before, curves, moving, nats, soak, standing
from bench.tier.results import Result

Options = argparse.Namespace
Part = Callable[[Options, Path], Iterator[Result]]
PARTS: dict[str, Part] = {
    "g1": lambda options, _: before.hot_path(options.before, options.pairs, options.only),
    "g2": lambda options, folder: standing.standing(folder, options.entries, options.redis),
    "g6": lambda options, folder: moving.beside_reader(folder, options.entries, options.rounds),
    "g7": lambda options, folder: moving.writers(folder, options.entries, options.rounds),
    "g8": lambda options, folder: moving.disk(folder, options.entries, options.rounds),
    "soak": lambda options, folder: soak.mixed(folder, options.seconds),
    "curves": lambda options, folder: curves.grown(folder, options.entries, options.output),
    "g10": lambda options, folder: nats.beside_nats(folder, options.entries),
}
"""The parts by the first goal of each: ``g2`` measures G2 to G5, and G9; ``soak`` is a mixed load for long; ``curves``
writes its section of the page."""
_ALONE = {"soak", "curves"}
OTHERS = dict.fromkeys(("g3", "g4", "g5", "g9"), "g2")


def main() -> None:
    """Measure the goals, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("goals", nargs="+", choices=["all", *PARTS, *OTHERS], help="goals to measure")
    parser.add_argument("--entries", type=at_least_one, default=10_000_000, help="number of entries")
    parser.add_argument("--rounds", type=at_least_one, default=3, help="rounds of g6, g7 and g8")
    parser.add_argument("--pairs", type=at_least_one, default=30, help="pairs of runs of each command of g1")
    parser.add_argument("--seconds", type=at_least_one, default=3600, help="seconds of soak")
    parser.add_argument("--only", default="", help="commands of g1 whose names have this")
    parser.add_argument("--before", default="", help="folder src of an earlier checkout with a compiled core, for g1")
    parser.add_argument("--redis", default=shutil.which("redis-server"), help="redis-server to compare with")
    parser.add_argument("--folder", type=Path, help="folder on the disk to measure; default: a temporary one")
    parser.add_argument("--output", type=Path, help="write the results of curves there, and no page")
    options = parser.parse_args()
    if options.output and not options.output.parent.is_dir():  # before minutes of measuring, not behind them
        parser.error(f"--output {options.output}: the folder {options.output.parent} does not exist. Make it first.")
    chosen = [OTHERS.get(goal, goal) for goal in options.goals]
    every = [name for name in PARTS if name not in _ALONE or name in chosen]
    parts = every if "all" in chosen else list(dict.fromkeys(chosen))
    rows = []
    for name in parts:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for result in PARTS[name](options, Path(folder)):
                print(" | ".join(result.row()), file=sys.stderr, flush=True)
                rows.append(result.row())
        print(f"{name} took {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    table(["goal", "ratio of", "measured", "bar", "verdict"], rows)


if __name__ == "__main__":
    main()
