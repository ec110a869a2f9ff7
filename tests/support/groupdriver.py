"""A driver of group mode without Spark: it calls the source as Spark does, writes the same logs, and can be killed.

One process loads everything once and forks a driver for each line that it reads, so that a kill costs a tenth of a
second and not ten seconds. A line is JSON: ``options`` of the source, ``folder`` of the checkpoint and the sink,
``failpoint`` as in ``MILLSTREAM_FAILPOINTS`` (or one of :data:`OWN` with ``=kill``). The reply is the driver's exit
status.

A line with ``recover`` runs a recovery instead, with its arguments and a decision function (:func:`verdict`).

The sink is a file for each batch, replaced as a whole, as exactly-once delivery requires. A batch that runs again must
have the same rows, or the driver fails.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

OWN = ("before_log", "sunk", "committed")
"""Failpoints of the driver itself: before the offset log, before the commit log, and after both."""

LOADED = (
    "email.parser",
    "encodings.idna",
    "pyarrow.compute",
    "pyspark.sql.streaming.datasource",
    "millstream.spark.arrow.columns",
    "millstream.spark.group.planner",
    "millstream.spark.group.reader",
    "millstream.spark.group.source",
    "millstream.spark.recovery.recover",
    "millstream.spark.source",
    "millstream.spark.views",
)
"""Modules that a driver imports, loaded before the first fork to save time."""


class Drivers:
    """The process that forks drivers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, folder: Path, options: dict[str, str], failpoint: str = "") -> int:
        """Run a driver until nothing is new; return its exit code, negative for the signal that killed it."""
        return self._ask({"folder": str(folder), "options": options, "failpoint": failpoint})

    def _ask(self, line: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def recover(self, arguments: dict[str, Any], failpoint: str = "") -> int:
        """Run a recovery; return its exit code, negative for the signal that killed it."""
        return self._ask({"recover": arguments, "failpoint": failpoint})

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)


def sunk(folder: Path) -> list[str]:
    """Return the ids in the sink, in the order of batches."""
    found = []
    for path in sorted((folder / "out").iterdir(), key=lambda path: int(path.name)):
        found += json.loads(path.read_text())
    return found


def logged(folder: Path, log: str) -> list[int]:
    """Return the batches in a log."""
    return sorted(int(path.name) for path in (folder / log).iterdir())


def _put(path: Path, value: Any) -> None:
    fresh = path.parent.parent / "fresh"
    fresh.write_text(json.dumps(value, sort_keys=True))
    fresh.rename(path)


def drive(folder: Path, options: dict[str, str], failpoint: str) -> None:
    """Run batches as MicroBatchExecution does with Trigger.AvailableNow, for the source and the logs."""
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from millstream.spark.source import MillstreamSource

    for name in ("offsets", "commits", "out"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    source = MillstreamSource(options)
    reader: Any = source.streamReader(source.schema())
    reader.prepareForTriggerAvailableNow()
    batches = logged(folder, "offsets")
    number = batches[-1] + 1 if batches else 0
    start = json.loads((folder / "offsets" / str(number - 1)).read_text()) if batches else reader.initialOffset()
    if batches and number - 1 not in logged(folder, "commits"):
        number -= 1
        before = folder / "offsets" / str(number - 1)
        end, start = start, json.loads(before.read_text()) if number else reader.initialOffset()
        run(folder, reader, number, start, end, failpoint)
        number, start = number + 1, end
    while True:
        end = json.loads(json.dumps(reader.latestOffset(start, ReadMaxRows(int(options["maxEntriesPerTrigger"])))))
        if end == start:
            break
        reach("before_log", number, failpoint)
        _put(folder / "offsets" / str(number), end)
        if number:
            reader.commit(start)
        run(folder, reader, number, start, end, failpoint)
        number, start = number + 1, end
    reader.stop()


def run(folder: Path, reader: Any, number: int, start: Any, end: Any, failpoint: str) -> None:
    """Run one batch: tasks, sink, commit log."""
    ids = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            ids += batch.column("id").to_pylist()
    place = folder / "out" / str(number)
    assert not place.exists() or json.loads(place.read_text()) == ids, "the batch has other rows than it had"
    _put(place, ids)
    reach("sunk", number, failpoint)
    _put(folder / "commits" / str(number), {})
    reach("committed", number, failpoint)


def reach(point: str, number: int, failpoint: str) -> None:
    """Kill the process here in the second batch if the line names this failpoint."""
    if failpoint == f"{point}=kill" and number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def verdict(ident: str) -> str:
    """Return the action of a recovery for an entry, by its id."""
    return ("ack", "release", "dead")[int(ident.partition("-")[0]) % 3]


def recover(arguments: dict[str, Any]) -> None:
    """Run a recovery whose function needs no Spark."""
    from millstream.spark.recovery.recover import Recovery
    from millstream.spark.recovery.settle import EntryDecision

    recovery = Recovery(**arguments)
    try:
        recovery.run(lambda ids: {ident: EntryDecision(verdict(ident.decode()), f"because {ident!r}") for ident in ids})
    finally:
        recovery.close()


def main() -> None:
    """Fork a driver for each line."""
    for name in LOADED:
        importlib.import_module(name)
    from millstream import failpoints

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            failpoints.load("" if order["failpoint"].partition("=")[0] in OWN else order["failpoint"])
            status = 1
            try:
                if "recover" in order:
                    recover(order["recover"])
                else:
                    drive(Path(order["folder"]), order["options"], order["failpoint"])
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
