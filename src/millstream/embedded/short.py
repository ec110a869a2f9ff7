"""redis-py's blocking client, with the short way to a store in the same process.

redis-py does much around a command that serves a network: it counts connections lent and given back, asks a socket
whether it is still good, makes closures for a second try, offers numbers to a collector of metrics. Where none of that
is asked for, a command goes from the client's method to the store and back without it. Whatever a user has set up
takes redis-py's own way: retries, a cache, credentials that are renewed, listeners, metrics, a client with one
connection, and every connection that is new, closed or has something to read.
"""

from typing import Any, cast

import redis

from millstream.embedded.place import Place
from millstream.embedded.stores import Lease
from millstream.embedded.sync import StoreConnection, StorePool

try:
    from redis.observability.providers import get_observability_instance
except ImportError:  # a redis-py that has no metrics

    def _is_observed() -> bool:
        return False
else:

    def _is_observed() -> bool:
        return get_observability_instance().get_provider_manager() is not None


# What redis-py sends together with commands of its own, and so not by the connection's own way
_OTHERS = frozenset({"HIMPORT"})


class StoreClient(redis.Redis):
    """A client of a store of this process; see the module's text."""

    def _execute_command(self, *args: Any, **options: Any) -> Any:
        pool, name = self.connection_pool, args[0]
        if (
            self.connection is None
            and type(name) is str
            and name.isalpha()
            and name.upper() not in _OTHERS
            and not _is_observed()
            and isinstance(pool, StorePool)
            and (connection := pool.lend()) is not None
        ):
            try:
                connection.send_command(*args)
                return self.parse_response(connection, name, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
            finally:
                pool.take_back(connection)
        return super()._execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's gap


def sync_store(place: Place, **options: Any) -> StoreClient:
    """A client.

    Raises:
        MillstreamError: the store cannot be opened; see :class:`Lease`.
    """
    pool = StorePool(Lease(place), connection_class=StoreConnection, **{"db": place.db, **options})
    return cast("StoreClient", StoreClient.from_pool(pool))
