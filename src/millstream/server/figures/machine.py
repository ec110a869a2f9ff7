"""The operating system's figures of this process, for INFO."""

import os
import platform
import resource
import sys
from functools import cache
from pathlib import Path

from millstream.commands.admin.info import MachineFacts

# ru_maxrss counts KiB on Linux and bytes on macOS.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def resident() -> int:
    """Resident memory in bytes; 0 without ``/proc``."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def peak_resident() -> int:
    """Largest resident memory so far, in bytes.

    Linux's ``ru_maxrss`` includes the process that started this one, whatever its size; ``VmHWM`` does not.
    """
    try:
        lines = Path("/proc/self/status").read_bytes().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"VmHWM:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


@cache
def _fixed() -> tuple[str, str, int]:
    """System, Python version and memory of the machine, which do not change."""
    names = os.sysconf_names
    known = "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else 0
    return f"{platform.system()} {platform.release()} {platform.machine()}", platform.python_version(), total


def read_machine() -> MachineFacts:
    """Return all facts as of now."""
    usage, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    system, python, total = _fixed()
    peak = peak_resident()
    return MachineFacts(
        pid=os.getpid(),
        system=system,
        python=python,
        memory=resident() or peak,
        memory_peak=peak,
        memory_total=total,
        cpu_system=usage.ru_stime,
        cpu_user=usage.ru_utime,
        cpu_system_children=children.ru_stime,
        cpu_user_children=children.ru_utime,
    )
