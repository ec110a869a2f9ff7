"""Detection of a process that holds a data directory.

The lock itself is never tried, since that could keep a server from starting.
"""

from pathlib import Path

from millstream.ending import has_ended
from millstream.persistence.lockfile import NAME, Owner

_LOCKS = Path("/proc/locks")


def is_running(directory: Path, owner: Owner | None) -> bool:
    """Return True if the process that the lock file names holds the lock.

    Linux lists the locks of all processes visible from here. On other systems the result is True if a process with that
    id exists, which may be a different one by now.
    """
    if owner is None:
        return False
    listed = _listed(directory / NAME)
    return listed if listed is not None else not has_ended(owner.pid)


def _listed(path: Path) -> bool | None:
    """Return True if /proc/locks lists a lock of this file; None if there is no such list. See proc(5)."""
    try:
        inode = path.stat().st_ino
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            return True
    return False
