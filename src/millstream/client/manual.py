"""A store in this process on a clock turned by hand, for tests."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.clock import ManualClock
from millstream.embedded.place import parse_place
from millstream.embedded.store import Store
from millstream.embedded.stores import Lease

_serial = itertools.count(1)


class StoreClock(ManualClock):
    """A clock turned by hand that its stores follow at once: reads time out, idle times grow, keys expire."""

    def __init__(self, wall: int = 1_700_000_000_000) -> None:
        super().__init__(wall)
        self._stores: list[Store] = []

    def drive(self, store: Store) -> None:
        """Have a store look at the time whenever the clock is changed."""
        self._stores.append(store)

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass, wall and monotonic."""
        super().advance(ms)
        self._tick()

    def jump(self, ms: int) -> None:
        """Move only the wall clock, as a time correction does; ``ms`` may be negative."""
        super().jump(ms)
        self._tick()

    def _tick(self) -> None:
        for store in self._stores:
            store.tick()


def fresh_memory() -> str:
    """Return the URL of a new store in memory."""
    return f"memory://test-{os.getpid()}-{next(_serial)}"


@contextmanager
def manual_store(clock: StoreClock) -> Iterator[str]:
    """Yield the URL of an empty store that follows ``clock``; it is closed at the end of the block."""
    place = parse_place(fresh_memory())
    lease = Lease(place, clock=clock)
    clock.drive(lease.store())
    try:
        yield place.url
    finally:
        lease.give_up()
