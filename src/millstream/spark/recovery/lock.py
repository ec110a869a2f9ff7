"""A lock for one recovery of a name at a time: a key on the server that its holder renews, and that expires."""

import os
import secrets
import socket

from millstream.ending import has_ended
from millstream.errors import UsageError
from millstream.spark.connection import routing
from millstream.spark.connection.router import Router, checked

LOCK_MS = 30_000
"""Milliseconds after which a lock that is not renewed is free."""


class RecoveryLock:
    """The lock of one recovery.

    A recovery that was killed on this machine is detected at once, by its process id. One on another machine is
    detected when its key expires. One driver owns the lock; the thread that renews it has a separate connection.
    """

    def __init__(self, router: Router, key: str, name: str) -> None:
        self._router = router
        self._key = key
        self._name = name
        self._token = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}".encode()
        self._lost = False

    def acquire(self) -> None:
        """Take the lock."""
        for _ in range(3):
            _, owner = self._router.once([("WATCH", self._key), ("GET", self._key)])
            if isinstance(owner, bytes) and not died_here(owner):
                host, pid = _owner(owner)
                raise UsageError(
                    f"a recovery named {self._name!r} of this group is running (process {pid} on {host}, less than "
                    f"{LOCK_MS // 1000} s ago): wait for it, or give this one another name"
                )
            set_ = ("SET", self._key, self._token, "PX", LOCK_MS)
            try:
                if checked(self._router.once([("MULTI",), set_, ("EXEC",)])[-1]) is not None:
                    return
            except routing.Redirected:
                continue
        raise UsageError(f"several recoveries named {self._name!r} began at the same time: leave one")

    def renew(self, router: Router) -> None:
        """Keep the lock for another :data:`LOCK_MS`, over the caller's connection; see :meth:`check`."""
        (owner,) = router.once([("GET", self._key)])
        if owner in (None, self._token):
            router.once([("SET", self._key, self._token, "PX", LOCK_MS)])
        else:
            self._lost = True

    def check(self) -> None:
        """Raise if another recovery has taken the lock; called before entries are settled."""
        if self._lost:
            raise UsageError(
                f"another recovery named {self._name!r} began while the server was out of reach for more than "
                f"{LOCK_MS // 1000} s: nothing of this slice was settled here; leave one of the two"
            )

    def release(self) -> None:
        """Release the lock, unless another recovery has it by now."""
        if self._router.ask([("GET", self._key)])[0] == self._token:
            self._router.ask([("DEL", self._key)])


def died_here(owner: bytes) -> bool:
    """Return True if the owner of a lock was a process of this machine and has ended."""
    host, pid = _owner(owner)
    return host == socket.gethostname() and pid.isdecimal() and len(pid) < 19 and has_ended(int(pid))


def _owner(owner: bytes) -> tuple[str, str]:
    """Return host and process id of a lock's owner; unknown values as they are."""
    text = owner.decode(errors="backslashreplace")
    host, pid, *_ = [*text.rsplit(":", 2), "?", "?"]
    return host, pid
