"""The resident memory of processes, as the system counts it."""

import os
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
