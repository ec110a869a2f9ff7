"""Process that makes a snapshot for a test, and kills itself after a given number of disk operations.

The variable MILLSTREAM_TEST_KILL names the operation: ``append 3`` is the third append.
"""

import os
import signal
import sys
from pathlib import Path

from millstream.node.log import compaction
from millstream.persistence.disk import RealDisk, RealFile

WHAT, COUNT = os.environ["MILLSTREAM_TEST_KILL"].split()
LEFT = {WHAT: int(COUNT)}


def done(what: str) -> None:
    """Kill the process if this is the operation."""
    if what in LEFT:
        LEFT[what] -= 1
        if not LEFT[what]:
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyFile(RealFile):
    """A file of the real disk; the process ends when an operation is done."""

    __slots__ = ()

    def append(self, data: object) -> int:
        taken = super().append(data)  # type: ignore[arg-type] # handed on as it came
        done("append")
        return taken

    def datasync(self) -> None:
        super().datasync()
        done("datasync")


class DeadlyDisk(RealDisk):
    """The real disk; the process ends when an operation is done."""

    __slots__ = ()

    def create(self, path: Path) -> RealFile:
        file = super().create(path)
        done("create")
        return DeadlyFile(os.dup(file.fileno()), path)

    def open_read(self, path: object) -> RealFile:
        done("open_read")
        return super().open_read(path)  # type: ignore[arg-type] # handed on as it came


if __name__ == "__main__":
    compaction.RealDisk = DeadlyDisk  # type: ignore[misc] # this process has no other
    sys.exit(compaction.main(*sys.argv[1:]))
