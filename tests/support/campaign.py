"""Long campaigns of independent seeded pieces, which continue after an interruption.

Finished pieces are kept in ``.campaigns/<name>.json`` at the root of the checkout until all are done; the next run
then starts over. A piece's work must depend on its seed alone, never on the pieces before it. When the pieces change,
raise the campaign's version: the record of another version is dropped. The commit does not matter: a campaign that
stopped at a failure continues with the failed piece once that is mended. To run all of it on one state of the code,
start over.

A record also has the figures of the last whole run: the count, the seconds, the commit and the day. It has the progress
of the current run and shows if that stopped at a failure. ``make docs`` writes those figures into docs/promises.md.

``MILLSTREAM_FRESH=1`` starts over. ``MILLSTREAM_SEED=n`` runs the one piece with that seed and records nothing.
``MILLSTREAM_CAMPAIGNS`` names another folder for the records, for runs of another build.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("MILLSTREAM_CAMPAIGNS") or Path(__file__).parents[2] / ".campaigns")
LIMIT = 2700
"""Maximum duration of a campaign in seconds, 45 minutes: the timeout of its test."""

Piece = Callable[[int], object]

# True if anybody watches, and how what is written gets through pytest's capture; support/quiet.py sets both
watched = True
uncaptured: Callable[[], AbstractContextManager[None]] = nullcontext


def run(
    name: str,
    piece: Piece,
    seeds: Sequence[int],
    *,
    version: int = 1,
    processes: int = 1,
    folder: Path = FOLDER,
    unit: str = "pieces",
) -> None:
    """Run the pieces that are not done yet.

    Args:
        name: The unique name of the campaign.
        piece: The function that runs with each seed and raises if something is wrong. It is at the top of its module if
            there is more than one process. It may return the size of its work, which is then counted.
        seeds: The seeds of all pieces. New ones run next to the recorded ones. If one is removed, the campaign starts
            over, since the sum contains its count.
        version: The version of the pieces; another one drops the record.
        processes: The number of pieces at a time; with one they run in this process.
        folder: The folder of the record.
        unit: The unit of the count, in the plural.
    """
    if "MILLSTREAM_SEED" in os.environ:
        seed = int(os.environ["MILLSTREAM_SEED"])
        with repeatable(name, seed):
            piece(seed)
        return
    record = Record(folder / f"{name}.json", version, seeds, unit)
    left = record.left()
    show(name, f"{len(left)} of {len(seeds)} pieces to do")
    try:
        for seed, count in in_turn(name, piece, left) if processes == 1 else at_once(name, piece, left, processes):
            record.add(seed, count)
            show(name, record.progress())
    except Exception:
        record.fail()
        raise
    record.finish()


class Record:
    """The finished pieces of a campaign, kept in a file.

    Args:
        path: The path of the file; one that cannot be read, or is of another version, counts as none.
        version: The version of the pieces.
        seeds: The seeds of all pieces.
        unit: The unit of the count, in the plural.
    """

    def __init__(self, path: Path, version: int, seeds: Sequence[int], unit: str = "pieces") -> None:
        self._path = path
        self._seeds = seeds
        self._unit = unit
        self._commit = commit()
        self._kept: dict[str, Any] = {"version": version, "seconds": 0.0, "count": 0, "done": []}
        if not os.environ.get("MILLSTREAM_FRESH"):
            kept = read(path)
            if kept.get("version") == version:
                self._kept |= kept
            if not set(self._kept["done"]) <= set(seeds):
                self._kept |= {"seconds": 0.0, "count": 0, "done": []}
        self._started = time.monotonic() - self._kept["seconds"]
        self._done = set(self._kept["done"])
        self._before = len(self._done)

    def left(self) -> list[int]:
        """Return the seeds of the remaining pieces, in order."""
        return [seed for seed in self._seeds if seed not in self._done]

    def add(self, seed: int, count: int = 1) -> None:
        """Record a piece as done, with its count."""
        self._done.add(seed)
        self._kept["count"] += count
        self._kept.pop("failed", None)
        self._write()

    def fail(self) -> None:
        """Record that a piece failed; the campaign stays failed until that piece is done."""
        self._kept["failed"] = True
        self._write()

    def progress(self) -> str:
        """Return the progress as text, with the estimated remaining time."""
        done = len(self._done & set(self._seeds))
        seconds = time.monotonic() - self._started
        rest = seconds / done * (len(self._seeds) - done)
        return f"{done} of {len(self._seeds)} pieces in {seconds:.0f} s, about {rest:.0f} s more"

    def finish(self) -> None:
        """Record the figures of the finished run and start over with the next."""
        self._kept["last"] = self._figures()
        self._kept["count"] = 0
        self._done.clear()
        self._started = time.monotonic()
        self._write()

    def _figures(self) -> dict[str, Any]:
        """Return the figures so far."""
        return {
            "pieces": len(self._done),
            "count": self._kept["count"],
            "unit": self._unit,
            "seconds": round(time.monotonic() - self._started, 1),
            "commit": self._commit,
            "day": datetime.now(UTC).date().isoformat(),
        }

    def _write(self) -> None:
        self._kept["done"] = sorted(self._done)
        self._kept["seconds"] = round(time.monotonic() - self._started, 1)
        self._kept["begun"] = None
        if self._done or "failed" in self._kept:
            self._kept["begun"] = self._figures() | {"of": len(self._seeds), "failed": "failed" in self._kept}
        self._path.parent.mkdir(exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self._kept))
        fresh.replace(self._path)


def read(path: Path) -> dict[str, Any]:
    """Return the record in a file, or an empty one if it cannot be read."""
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def commit() -> str:
    """Return the short commit from git, or an empty text without git."""
    words = ["git", "rev-parse", "--short=9", "HEAD"]
    try:
        return subprocess.run(
            words, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        ).stdout.strip()
    except OSError:
        return ""


def counted(result: object) -> int:
    """Return the count of a piece's result: the result if it is a number, else one."""
    return result if isinstance(result, int) else 1


def in_turn(name: str, piece: Piece, seeds: list[int]) -> Iterator[tuple[int, int]]:
    """Run pieces one after the other and yield the seed and count of each finished piece."""
    for seed in seeds:
        with repeatable(name, seed):
            result = piece(seed)
        yield seed, counted(result)


def at_once(name: str, piece: Piece, seeds: list[int], processes: int) -> Iterator[tuple[int, int]]:
    """Run several pieces at a time in separate processes and yield the seed and count of each finished piece."""
    waiting = iter(seeds)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running: dict[Future[object], int] = {}
        while True:
            for seed in waiting:
                running[pool.submit(piece, seed)] = seed
                if len(running) == processes:
                    break
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                seed = running.pop(future)
                with repeatable(name, seed):
                    result = future.result()
                yield seed, counted(result)


@contextmanager
def repeatable(name: str, seed: int) -> Iterator[None]:
    """Report how to repeat a piece if it fails."""
    try:
        yield
    except BaseException:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        tell(name, f"failed with seed {seed}; repeat it with: MILLSTREAM_SEED={seed} make test-long ARGS='{test}'")
        raise


def show(name: str, text: str) -> None:
    """Show the progress if the run is watched on a terminal."""
    if watched:
        tell(name, text)


def tell(name: str, text: str) -> None:
    """Print one line on standard error, past pytest's capture."""
    with uncaptured():
        print(f"campaign {name}: {text}", file=sys.__stderr__, flush=True)
