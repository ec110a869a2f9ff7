"""An archive's lock in an object store: an object that names its owner, renewed while the job runs.

No clock is compared with another machine's. A job that finds the lock taken watches it. An owner that renews the lock
is alive. An owner that does not renew it within its lease counts as dead, as does an ended process of this machine.
The lock is taken by a conditional put, so only one of two jobs gets it. An owner that was only asleep finds its renewal
refused, and its manifest changed (``Folder.begin`` writes it again for the job that takes the lock).
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from millstream.errors import MillstreamError
from millstream.spark.archiving.tables.storage import ChangedMeanwhileError

logger = logging.getLogger("millstream.spark")

LEASE_SECONDS = 30.0
"""Seconds for which an owner without a sign of life keeps the lock."""

_LOOK_SECONDS = 0.5

Read = Callable[[], tuple[bytes, Any] | None]
"""Reads the lock's object and its version; None if it does not exist."""
Put = Callable[[bytes, Any | None], Any]
"""Puts bytes in place of a version, or of no object; returns the new version."""


@dataclass(frozen=True)
class LockRecord:
    """The content of the lock's object."""

    owner: str  # Unique name of the owner; empty after the lock was released
    who: str  # Name of the owner for people
    process: str  # Process of the owner, so that its death is visible on its own machine; empty if unknown
    lease_seconds: float  # Seconds that the owner keeps the lock without a renewal
    renewed: int = 0  # Number of renewals

    @property
    def data(self) -> bytes:
        """The record as bytes for the lock's object."""
        return (json.dumps(asdict(self)) + "\n").encode()

    @classmethod
    def load(cls, data: bytes) -> "LockRecord":
        """Parse a record; an unreadable one belongs to an unknown owner."""
        try:
            raw = json.loads(data)
            return cls(
                str(raw["owner"]),
                str(raw["who"]),
                str(raw["process"]),
                min(3600.0, max(0.0, float(raw["lease_seconds"]))),
                int(raw["renewed"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError):
            return cls("unknown", "somebody", "", LEASE_SECONDS)


@contextmanager
def leased(read: Read, put: Put, seconds: float = LEASE_SECONDS) -> Iterator[str | None]:
    """Hold the lock in the block; yield the owner if it is another job, else None."""
    mine = LockRecord(uuid.uuid4().hex, f"process {os.getpid()} on {socket.gethostname()}", _process(), seconds)
    holder, version = _take(read, put, mine)
    if holder is not None:
        yield holder
        return
    renewal = _Renewal(read, put, mine, version)
    try:
        yield None
    finally:
        renewal.give_back()


def _take(read: Read, put: Put, mine: LockRecord) -> tuple[str | None, Any]:
    """Take the lock; return the living owner, or None and the new version of the object."""
    watched: Any = None
    until = 0.0
    wait = threading.Event().wait
    while True:
        there = read()
        if there is not None:
            data, version = there
            record = LockRecord.load(data)
            if record.owner and not _died(record.process):
                now = time.monotonic()
                if watched is None:
                    watched, until = version, now + record.lease_seconds
                    logger.warning(
                        "the archive's lock is held by %s: waiting %g s at most for signs of life",
                        record.who,
                        record.lease_seconds,
                    )
                if version != watched:
                    return record.who, None
                if now < until:
                    wait(min(_LOOK_SECONDS, record.lease_seconds / 10))
                    continue
        try:
            return None, put(mine.data, None if there is None else there[1])
        except ChangedMeanwhileError:
            continue  # another job took it, or its owner renewed it: read it again


class _Renewal:
    """Renews a lock in a thread until it is given back, or another job has it."""

    def __init__(self, read: Read, put: Put, record: LockRecord, version: Any) -> None:
        self._read, self._put_version, self._record, self._version = read, put, record, version
        self._lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="archive lock", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._over.wait(self._record.lease_seconds / 3):
            try:
                self._put(replace(self._record, renewed=self._record.renewed + 1))
            except ChangedMeanwhileError:
                self._lost = True
                logger.error(  # noqa: TRY400 - the traceback helps no reader
                    "the archive's lock was taken by another job, since this one did not renew it in time: this job "
                    "ends with its next change"
                )
                return
            except (MillstreamError, OSError) as reason:
                logger.warning("the archive's lock was not renewed, which is tried again: %s", reason)

    def _put(self, record: LockRecord) -> None:
        """Replace the last record, or a later one of this owner if the reply to its put was lost."""
        try:
            self._version = self._put_version(record.data, self._version)
        except ChangedMeanwhileError:
            there = self._read()
            if there is None or (found := LockRecord.load(there[0])).owner != self._record.owner:
                raise
            # Renew once more: some stores treat equal bytes as the same version, so watchers could miss the change
            record = replace(record, renewed=found.renewed + 1)
            self._version = self._put_version(record.data, there[1])
        self._record = record

    def give_back(self) -> None:
        """Release the lock, so that others can take it at once."""
        self._over.set()
        self._thread.join()
        if self._lost:
            return
        try:
            self._put(replace(self._record, owner=""))
        except (MillstreamError, OSError) as reason:
            logger.warning("the archive's lock was not released, and others wait until its lease ends: %s", reason)


# --- processes of this machine ---------------------------------------------------------------------------------------


def _process() -> str:
    """Return a text that identifies this process: the machine's boot, PID namespace, PID and start time."""
    pid = os.getpid()
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{machine}/{Path('/proc/self/ns/pid').stat().st_ino}/{pid}/{_started(pid)}"
    except OSError:
        return ""  # not Linux: only the lease shows whether the process is alive


def _started(pid: int) -> str:
    """Return the start time of a process; empty if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def _died(process: str) -> bool:
    """Return True if a process was one of this machine and has ended."""
    mine, theirs = _process().split("/"), process.split("/")
    if len(mine) != len(theirs) or mine[:2] != theirs[:2] or not theirs[2].isdecimal():
        return False
    return _started(int(theirs[2])) != theirs[3]
