"""System calls of a real process that fail: a library for it to preload, made by the system's C compiler.

See ``callfaults.c`` for what it does. Linux only.
"""

import errno
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from support.needs import lacking, program

SOURCE = Path(__file__).with_suffix(".c")

SHORT = 0
"""Half of a write is done."""

KILL = 10_000
"""In place of the call the process ends by SIGKILL."""


@dataclass(frozen=True, slots=True)
class CallFault:
    """One fault.

    Attributes:
        who: ``server``; or ``child`` for the process that makes snapshots. ``taking`` is the one that makes one of a
            primary's copy, ``diverged`` the one that writes data that no other server has.
        call: ``open``, ``write``, ``fsync``, ``rename``, ``unlink``, ``ftruncate`` or ``pread``.
        at: The number of the call on the directory, from 1.
        how: An errno; 0 for half of a write; negative for an errno that is reported though the call was done; or
            :data:`KILL`.
        times: The number of calls in a row that fail.
    """

    who: str
    call: str
    at: int
    how: int
    times: int = 1

    def __str__(self) -> str:
        name = {SHORT: "short", KILL: "SIGKILL"}.get(self.how) or errno.errorcode[abs(self.how)]
        return f"{self.who} {self.call} {self.at} {name}{'-late' if self.how < 0 else ''} x{self.times}"


@cache
def library(folder: Path) -> Path:
    """The library, made in a folder; the test is skipped (failed under CI) where there is no compiler."""
    if sys.platform != "linux":
        pytest.skip("libraries are preloaded so on Linux only")
    made = folder / "callfaults.so"
    words = [program("cc"), "-O1", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"]
    compiled = subprocess.run(words, capture_output=True, text=True, check=False)
    if compiled.returncode:
        lacking(f"the C compiler makes no library here (packages gcc and libc6-dev): {compiled.stderr[-500:]}")
    return made


def preloading(
    made: Path, directory: Path, trace: Path, fault: CallFault | None, once: Path | None = None
) -> list[str]:
    """A command prefix that counts the calls of its process on a directory and makes one fail.

    Args:
        made: the library.
        directory: on which the calls are counted.
        trace: gets a line for each.
        fault: what fails, in each process that it is for; None for nothing.
        once: a file that is not there yet, for a fault of one call in the first such process alone.
    """
    words = ["env", f"LD_PRELOAD={made}", f"CALLFAULTS_DIR={directory}", f"CALLFAULTS_TRACE={trace}"]
    if fault is not None:
        words += [f"CALLFAULTS_WHO={fault.who}", f"CALLFAULTS_CALL={fault.call}", f"CALLFAULTS_AT={fault.at}"]
        words += [f"CALLFAULTS_TIMES={fault.times}", f"CALLFAULTS_HOW={fault.how}"]
    if once is not None:
        words.append(f"CALLFAULTS_ONCE={once}")
    return words


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was counted.

    Attributes:
        who: as in :class:`CallFault`.
        call: the same.
        at: the same.
        name: the file, if the call names one.
        failed: it was made to fail.
    """

    who: str
    call: str
    at: int
    name: str
    failed: bool


def calls(trace: Path) -> list[Call]:
    """The calls of a process, in order."""
    rows = [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []
    return [Call(row[0], row[1], int(row[2]), Path(row[3]).name, row[-1] == "FAILS") for row in rows]
