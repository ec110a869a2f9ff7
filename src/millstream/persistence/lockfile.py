"""The lock of a data directory: the owner locks the ``lock`` file while it lives, and the file names the owner.

Its content is one line of JSON, ``{"pid": 4711, "address": "unix:/run/millstream.sock"}``; ``address`` is null until
the owner accepts connections. The file stays at the end, so its content alone does not prove that the owner still
lives.
"""

import contextlib
import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import LogLockedError
from millstream.persistence.disk import FULL, Disk, DiskLock, read_file

NAME = "lock"

_TRIES = 100  # number of attempts, if the lock file is removed meanwhile


@dataclass(frozen=True, slots=True)
class Owner:
    """The present or last holder of a data directory."""

    pid: int  # Process id
    address: str | None = None  # Address of the server, as given to ``Log.announce``

    def encode(self) -> bytes:
        """Return the lock file's content."""
        return json.dumps({"pid": self.pid, "address": self.address}).encode() + b"\n"


def read_owner(disk: Disk, directory: Path) -> Owner | None:
    """Return the owner that the lock file names; None if it cannot be parsed or does not exist."""
    data = read_file(disk, directory / NAME, 65536)
    try:
        facts = {} if data is None else json.loads(data)
        return Owner(int(facts["pid"]), None if facts["address"] is None else str(facts["address"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # it is being written now, or is not a lock file of Millstream


def write_owner(lock: DiskLock, owner: Owner) -> None:
    """Write the lock's holder into the file. A full disk is ignored, since the text does not keep anyone out."""
    try:
        lock.write(owner.encode())
    except OSError as error:
        if error.errno not in FULL:
            raise
        with contextlib.suppress(OSError):  # emptying needs no space; the earlier owner no longer holds it
            lock.write(b"")


def take_lock(disk: Disk, directory: Path) -> DiskLock:
    """Take the lock and write this process's id into the file."""
    for _ in range(_TRIES):
        try:
            lock = disk.lock(directory / NAME)
        except BlockingIOError:
            owner = read_owner(disk, directory)
            raise LogLockedError(
                _sentence(directory, owner), pid=owner.pid if owner else None, address=owner.address if owner else None
            ) from None
        try:
            if not lock.displaced():
                write_owner(lock, Owner(os.getpid()))
                return lock
        except BaseException:
            lock.release()
            raise
        reason = lock.displaced()
        lock.release()  # between opening and locking, another process removed the file, or moved the directory
    raise OSError(errno.EAGAIN, f"{reason}, repeatedly: stop the program that does it")


def _sentence(directory: Path, owner: Owner | None) -> str:
    who = f"process {owner.pid}" if owner else "another process"
    if owner and owner.address:
        who += f", which serves it at {owner.address}; connect there,"
    else:
        who += "; wait for it to end,"
    return f"the data directory {directory} is in use by {who} or name another directory"
