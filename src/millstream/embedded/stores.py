"""The open stores of this process, and their leases.

The first *lease* opens a store, and the last release closes it. A pool of redis-py's connections has one lease. At the
end of the process all stores are closed in order; a forked child has no lease on its parent's stores.
"""

import atexit
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.clock import Clock
from millstream.embedded.guard import Guard, catch_up, forget_guards, outside
from millstream.embedded.store import Store
from millstream.errors import ConfigError, StorageError, UsageError
from millstream.logs import logger
from millstream.persistence.disk import Disk

if TYPE_CHECKING:
    from millstream.embedded.place import Place

log = logger("millstream.embedded")


class _Process:
    """The open stores of this process."""

    def __init__(self) -> None:
        self.guard = Guard()  # Protects all stores; opening and closing happen inside it
        # Stores that other clients can name, by the key of their place, with the number of their leases
        self.shared: dict[tuple[str, str], tuple[Store, int]] = {}
        # Every store, to close at the end or to abandon in a child
        self.open: weakref.WeakSet[Store] = weakref.WeakSet()


_process = _Process()


class Lease:
    """The right to use the store of a place, until :meth:`give_up`."""

    def __init__(self, place: "Place", *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.place = place
        self._clock = clock
        self._disk = disk
        self._store: Store | None = None
        self._held = False
        self._take(is_first=True)

    def store(self) -> Store:
        """Return the store.

        If the lease was released, take it again, since a closed redis-py client may be used again.
        """
        if not self._held:
            self._take(is_first=False)
        assert self._store is not None
        return self._store

    def _take(self, *, is_first: bool) -> None:
        with _process.guard:
            if self._held:
                return
            self._store = self._private(is_first) if self.place.is_private else self._join(is_first)
            self._held = True
            _process.open.add(self._store)

    def _private(self, is_first: bool) -> Store:
        if not is_first:
            assert self._store is not None
            return self._store
        return Store(self.place, clock=self._clock)

    def _join(self, is_first: bool) -> Store:
        place = self.place
        store, leases = _process.shared.get(place.key, (None, 0))
        if store is None:
            if self._store is not None and self._store.forked:
                return self._store  # the store reports the error when it is used
            if place.directory is None and not is_first:
                raise UsageError(f"{place.url} was closed by its last client, and its data is lost: connect again")
            store = Store(place, clock=self._clock, disk=self._disk)
        else:
            _expect_same(store, place)
        _process.shared[place.key] = (store, leases + 1)
        return store

    def give_up(self) -> None:
        """Release the lease; a second call does nothing. The last release closes the store."""
        outside(self._give_up)

    def _give_up(self) -> None:
        with _process.guard:
            if not self._held:
                return
            self._held = False
            store = self._store
            assert store is not None
            if self.place.is_private:
                store.close()
                return
            found, leases = _process.shared.get(self.place.key, (None, 0))
            if found is not store:
                return  # a forked child's copy
            if leases > 1:
                _process.shared[self.place.key] = (store, leases - 1)
                return
            del _process.shared[self.place.key]
            store.close()


def _expect_same(store: Store, place: "Place") -> None:
    """Raise if another URL of an open store gives an option another value than the store has."""
    config = store.node.config
    others: dict[str, str] = {} if place.fsync in {None, store.fsync} else {"fsync": store.fsync}
    others |= {name: str(config.values[name]) for name, text in place.parameters if not config.has(name, text)}
    for name, value in others.items():
        raise ConfigError(f"{place.url} is open in this process with {name}={value}. Leave {name} out to share it.")


def _close_all() -> None:
    """Close all stores at the end of the process."""
    catch_up()
    with _process.guard:
        _process.shared.clear()
        for store in list(_process.open):
            try:
                store.close()
            except StorageError as error:
                log.critical("%s: %s", store.place.url, error)


def _after_fork() -> None:
    """Abandon the parent's stores in a forked child, since another thread may have held their locks at the fork."""
    global _process
    forget_guards()
    stores, _process = list(_process.open), _Process()
    for store in stores:
        store.abandon()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def finalizer(lease: Lease) -> Callable[[], None]:
    """Return a cleanup for a pool that was never closed.

    It is not a method of the pool, since the reference would keep the pool alive.
    """

    def finish() -> None:
        try:
            lease.give_up()
        except StorageError as error:  # there is no caller that could get it
            log.critical("%s: %s", lease.place.url, error)

    return finish
