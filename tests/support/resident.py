"""The resident memory of processes, as the system counts it."""

import gc
import os
import warnings
from pathlib import Path


def memory(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most_memory(pid: int) -> int:
    """Return the peak memory of a process in bytes since its start or :func:`forget_most`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def forget_most(pid: int) -> None:
    """Reset the peak memory of a process."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def collect_garbage() -> None:
    """Free what is left of earlier tests; a socket that one of them left open is not a fault of this test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
