"""Receipts: event, number of the attempt, outcome and worker of each try.

A line is ``<entry id> <delivery count> <outcome>``. Each worker appends to a file of its own name.
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
    """Where this worker writes its receipts; the file is made with the first one.

    Args:
        folder: folder of the receipts; None keeps none, for those who run the app by hand.
        worker: whose receipts they are.
    """

    def __init__(self, folder: str | None, worker: str) -> None:
        self._folder = folder
        self._worker = worker
        self._file: int | None = None

    def write(self, entry_id: str, deliveries: int, outcome: str) -> None:
        """Append one receipt; it is with the operating system when this returns, so a SIGKILL does not lose it.

        Args:
            entry_id: of the entry that was run.
            deliveries: which delivery this was, from 1.
            outcome: what the handler did with it, one word.
        """
        if self._folder is None:
            return
        if self._file is None:
            path = Path(self._folder, f"{self._worker}.log")
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(self._file, f"{entry_id} {deliveries} {outcome}\n".encode())


def read(folder: Path) -> Iterator[Receipt]:
    """Every receipt of every worker, each worker's in the order it wrote them.

    Raises:
        UsageError: a file holds a line that no worker wrote.
    """
    for path in sorted(folder.glob("*.log")):
        for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
            parts = line.split(" ")
            if len(parts) != 3 or not parts[1].isdigit():
                raise UsageError(f"{path}, line {number} is not a receipt: {line!r}")
            yield Receipt(path.stem, parts[0], int(parts[1]), parts[2])
