"""Ports for servers that others know by number before they listen, or while they are down.

The kernel takes a client's own port from a range (``ip_local_port_range``). A server whose port is of that range may
find it taken when it starts again, and a client that tries again and again while nobody listens there can be given that
very port as its own: TCP then connects it to itself, and it reads its own requests as replies. So a port that is handed
to another process comes from outside the range.
"""

import random
import socket
from pathlib import Path

LOWEST = 10_000
"""Below it are the ports that well-known servers have by custom."""

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ENOUGH = 100
_ATTEMPTS = 1_000


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
    """Whether a server could listen on this TCP port of 127.0.0.1 now."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A TCP port of 127.0.0.1, by chance, that nothing listens on and no client is given.

    Raises:
        OSError: of so many that were tried, none was free.
    """
    for port in random.sample(room(), min(len(room()), _ATTEMPTS)):
        if is_free(port):
            return port
    raise OSError(f"no free port of 127.0.0.1 found from {room()[0]} to {room()[-1]}: end some of the servers there")
