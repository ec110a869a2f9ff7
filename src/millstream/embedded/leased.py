"""Common part of the blocking and asyncio connections and pools: they hold the lease of a store instead of a host.

These classes come before redis-py's own among the bases, since redis-py's constructors expect a host and a port.
"""

import weakref
from typing import Any

from millstream.embedded.stores import Lease, finalizer

CLOSED = "Connection closed by server."
"""redis-py's text for a connection that the server closed. Applications check for it."""


class LeasedConnection:
    """A connection to a store of this process.

    Args:
        lease: lease of the store.
        options: options of redis-py's connections.
    """

    host = "embedded"  # with the port, it is the name in redis-py's metrics
    port = 0
    db: Any

    def __init__(self, *, lease: Lease, **options: Any) -> None:
        self._lease = lease
        super().__init__(**options)

    def repr_pieces(self) -> list[tuple[str, Any]]:
        """Return the pieces of redis-py's ``repr``."""
        return [("url", self._lease.place.url), ("db", self.db)]

    def get_resolved_ip(self) -> None:
        """Return no address. Otherwise redis-py would resolve the host name by DNS for each connection."""
        return

    def _host_error(self) -> str:
        return self._lease.place.url


_NO_LIMIT = 2**31


class LeasedPool:
    """A pool of connections to one store. It keeps the store open until it is closed.

    Args:
        lease: lease of the store, which the pool releases.
        options: options of redis-py's pools and connections, including ``connection_class``.
    """

    def __init__(self, lease: Lease, **options: Any) -> None:
        self._lease = lease
        self._finish = weakref.finalize(self, finalizer(lease))
        self._finish.atexit = False  # the stores handle the end of the process
        # A connection within this process costs no socket, so only the user sets a limit
        super().__init__(**{"max_connections": _NO_LIMIT, **options, "lease": lease})
