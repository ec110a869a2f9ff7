"""Ports for the servers of tests: outside the range that clients are given, and none twice, whoever asks.

A client may be given a port of the kernel's own range, and hold it when a server is to start again there.
"""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

LOWEST = 10_000
"""Below it are the ports that well-known servers have by custom."""

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ENOUGH = 100


def room(path: Path = _RANGE) -> range:
    """The ports from :data:`LOWEST` on that no client is given, or all of them where clients are given nearly all.

    Args:
        path: the kernel's file with the first and the last port of clients; where there is none, those of IANA count.
    """
    try:
        low, high = map(int, path.read_text().split())
    except (OSError, ValueError):
        low, high = 49_152, 65_535
    found = max(range(LOWEST, low), range(max(high + 1, LOWEST), 65_536), key=len)
    return found if len(found) >= _ENOUGH else range(LOWEST, 65_536)


def is_free(port: int) -> bool:
    """True if a server could listen on this TCP port of 127.0.0.1 now."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Ports:
    """Hands out the ports of a range in turn, to every process that names the same file.

    A number comes back only when the whole range has been handed out. Until then a test that stops its server, or has
    yet to start it, need not fear that another test gets its port.

    Args:
        file: has the next number; it is made if need be, and locked while one is taken.
        room: the numbers.
    """

    def __init__(self, file: Path, room: range) -> None:
        self._file = file
        self._room = room

    def take(self, count: int = 1) -> int:
        """The first of ``count`` consecutive ports of 127.0.0.1 that nothing listens on."""
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
    """A TCP port of 127.0.0.1 that nothing listens on, that no client is given and that no other test has.

    Args:
        count: so many consecutive ones; the first is returned.
    """
    return _PORTS.take(count)
