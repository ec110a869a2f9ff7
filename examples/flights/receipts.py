"""Receipts: the event, the number of the attempt and the outcome of each try, by worker.

A line is ``<entry id> <delivery count> <outcome>``. Each worker appends to its own file.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from millstream.errors import UsageError

FINE = "fine"
LATE = "late"
CANCELLED = "cancelled"
FAILED = "failed"
HANDLED = frozenset({FINE, LATE, CANCELLED})
"""Outcomes after which the event is done."""


class Receipt(NamedTuple):
    """One attempt."""

    worker: str
    id: str
    deliveries: int
    outcome: str


class Book:
    """The receipts that this worker writes; the first one creates the file.

    Args:
        folder: folder of the receipts; None writes none, if a user runs the app alone.
        worker: name of the worker.
    """

    def __init__(self, folder: str | None, worker: str) -> None:
        self._folder = folder
        self._worker = worker
        self._file: int | None = None

    def write(self, entry_id: str, deliveries: int, outcome: str) -> None:
        """Append one receipt. The operating system has it when this returns, so a SIGKILL does not lose it."""
        if self._folder is None:
            return
        if self._file is None:
            path = Path(self._folder, f"{self._worker}.log")
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(self._file, f"{entry_id} {deliveries} {outcome}\n".encode())


def read(folder: Path) -> Iterator[Receipt]:
    """Return every receipt of every worker, in the order in which each worker wrote them.

    Raises:
        UsageError: a file has a line that no worker wrote.
    """
    for path in sorted(folder.glob("*.log")):
        for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
            parts = line.split(" ")
            if len(parts) != 3 or not parts[1].isdigit():
                raise UsageError(f"{path}, line {number} is not a receipt: {line!r}")
            yield Receipt(path.stem, parts[0], int(parts[1]), parts[2])
