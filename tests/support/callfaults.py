"""System call failures in a real process, by a preloaded library built with the system's C compiler.

See ``callfaults.c`` for its work. Linux only.
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
"""The fault that does half of a write, or of a read that does not wait."""

KILL = 10_000
"""The fault that ends the process by SIGKILL in place of the call."""


@dataclass(frozen=True, slots=True)
class CallFault:
    """One fault.

    Attributes:
        who: ``server``; or ``child`` for the process that writes snapshots. ``taking`` is the one that takes a
            primary's copy, ``diverged`` the one that writes data that no other server has.
        call: ``open``, ``write``, ``fsync``, ``rename``, ``unlink``, ``link``, ``ftruncate``,
            ``pread`` or ``preadv`` (reads that do not wait for the disk).
        at: Number of the call on the directory, from 1.
        how: An errno; 0 for half of a write or ``preadv``; negative for an errno that is reported though the call was
            done; or :data:`KILL`.
        times: Number of consecutive calls that fail.
        then: A kind of call, the next one of which fails too; empty for none.
    """

    who: str
    call: str
    at: int
    how: int
    times: int = 1
    then: str = ""

    def __str__(self) -> str:
        name = {SHORT: "short", KILL: "SIGKILL"}.get(self.how) or errno.errorcode[abs(self.how)]
        return f"{self.who} {self.call} {self.at} {name}{'-late' if self.how < 0 else ''} x{self.times}"


@cache
def library(folder: Path) -> Path:
    """Build the library in a folder. Without a compiler, skip the test (fail it under CI)."""
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
    """Return a command prefix that counts a process's calls on a directory and lets one fail.

    Args:
        made: The library.
        directory: Directory whose calls are counted.
        trace: File that gets a line for each call.
        fault: The failure, in each process it applies to; None for none.
        once: File that does not exist yet, to limit the fault to one call in the first such process.
    """
    words = ["env", f"LD_PRELOAD={made}", f"CALLFAULTS_DIR={directory}", f"CALLFAULTS_TRACE={trace}"]
    if fault is not None:
        words += [f"CALLFAULTS_WHO={fault.who}", f"CALLFAULTS_CALL={fault.call}", f"CALLFAULTS_AT={fault.at}"]
        words += [f"CALLFAULTS_TIMES={fault.times}", f"CALLFAULTS_HOW={fault.how}"]
        words += [f"CALLFAULTS_THEN={fault.then}"] if fault.then else []
    if once is not None:
        words.append(f"CALLFAULTS_ONCE={once}")
    return words


@dataclass(frozen=True, slots=True)
class Call:
    """One counted call.

    Attributes:
        who: Process, as in :class:`CallFault`.
        call: Name of the call, as in :class:`CallFault`.
        at: Number of the call, as in :class:`CallFault`.
        name: File name, if the call has one.
        failed: True if the call was made to fail.
    """

    who: str
    call: str
    at: int
    name: str
    failed: bool


def calls(trace: Path) -> list[Call]:
    """Return the calls of a process in order."""
    rows = [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []
    return [Call(row[0], row[1], int(row[2]), Path(row[3]).name, row[-1] == "FAILS") for row in rows]
