"""Ports for test servers: outside the range for clients, and each used once across processes.

A client may be given a port of the kernel's own range, and hold it when a server is to start again there.
"""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

LOWEST = 10_000
"""Lowest port used; the ports below are those of well-known servers."""

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ENOUGH = 100


def room(path: Path = _RANGE) -> range:
    """Return the ports from :data:`LOWEST` on that no client is given, or all of them if clients use nearly all.

    Args:
        path: The kernel's file with the first and last port for clients; without it, IANA's range counts.
    """
    try:
        low, high = map(int, path.read_text().split())
    except (OSError, ValueError):
        low, high = 49_152, 65_535
    found = max(range(LOWEST, low), range(max(high + 1, LOWEST), 65_536), key=len)
    return found if len(found) >= _ENOUGH else range(LOWEST, 65_536)


def is_free(port: int) -> bool:
    """Return True if a server could listen on this TCP port of 127.0.0.1 now."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Ports:
    """Distributor of the ports of a range in turn, to every process that names the same file.

    A number comes back only when the whole range has been used. Until then no other test gets the port of a test that
    stops its server or has yet to start it.

    Args:
        file: File with the next number, created if missing and locked while one is taken.
        room: The numbers.
    """

    def __init__(self, file: Path, room: range) -> None:
        self._file = file
        self._room = room

    def take(self, count: int = 1) -> int:
        """Return the first of ``count`` consecutive ports of 127.0.0.1 that nothing listens on."""
        with self._file.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read().strip()
            at = int(text) if text.isdigit() else random.choice(self._room)
            for _ in self._room:
                if at not in self._room or at + count - 1 not in self._room:
                    at = self._room[0]
                if all(map(is_free, range(at, at + count))):
                    break
                at += 1
            else:
                raise AssertionError(f"of {self._room} no {count} consecutive ports are free")
            file.truncate(0)
            file.write(str(at + count))
        return at


_PORTS = Ports(Path(tempfile.gettempdir()) / f"millstream-test-ports-{os.getuid()}", room())


def free_port(count: int = 1) -> int:
    """Return a free TCP port of 127.0.0.1 that neither a client nor another test is given.

    Args:
        count: Number of consecutive ports; the first is returned.
    """
    return _PORTS.take(count)
