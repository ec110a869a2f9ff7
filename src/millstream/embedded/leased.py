"""The common part of redis-py's two kinds of connection and of pool here: the lease of a store in place of a host.

Mixed in before redis-py's own class, since its constructors ask for a host and a port where these have a lease.
"""

import weakref
from typing import Any

from millstream.embedded.stores import Lease, finalizer

CLOSED = "Connection closed by server."
"""redis-py's text when a server hangs up; applications look for it."""


class LeasedConnection:
    """A connection to a store of this process.

    Args:
        lease: of the store.
        options: those of redis-py's connections.
    """

    host = "embedded"  # with the port, the name in redis-py's metrics
    port = 0
    db: Any

    def __init__(self, *, lease: Lease, **options: Any) -> None:
        self._lease = lease
        super().__init__(**options)

    def repr_pieces(self) -> list[tuple[str, Any]]:
        """The pieces of redis-py's ``repr``."""
        return [("url", self._lease.place.url), ("db", self.db)]

    def get_resolved_ip(self) -> None:
        """Return no address: redis-py would look up the name of the host by DNS for each connection."""
        return

    def _host_error(self) -> str:
        return self._lease.place.url


_NO_LIMIT = 2**31


class LeasedPool:
    """A pool of connections to one store; it holds the store open until it is closed.

    Args:
        lease: of the store; the pool gives it up.
        options: those of redis-py's pools and connections, ``connection_class`` among them.
    """

    def __init__(self, lease: Lease, **options: Any) -> None:
        self._lease = lease
        self._finish = weakref.finalize(self, finalizer(lease))
        self._finish.atexit = False  # the stores see to that
        # A connection within this process costs no socket: only the user sets a limit
        super().__init__(**{"max_connections": _NO_LIMIT, **options, "lease": lease})
