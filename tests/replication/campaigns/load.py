"""Threads of writers that change a server's data until they are stopped."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

from replication.replicated import Changes, Words, state
from replication.test_following_redis import is_level
from replication.test_redis_follows import info
from support.waiting import eventually
from support.wire import Wire

WRITERS = 8


class Load(Changes):
    """Random changes with keys that expire soon and blocked clients, without counts that are set by hand.

    A group with more entries read than its stream counts cannot be copied, see docs/replication.md.

    Args:
        seed: The same seed makes the same commands.
        since: Wall milliseconds of given times.
        of_redis: Leave out changes that Redis makes without informing its replicas: pending entries read
            again, and dropped references of entries that are gone.
        spares: Leave out changes to the keys of others.
    """

    def __init__(self, seed: int, since: int, *, of_redis: bool = False, spares: bool = False) -> None:
        super().__init__(seed, since)
        self._of_redis, self._spares = of_redis, spares
        self._makers.append((8, self._short))

    def some(self, count: int) -> Iterator[Words]:
        """Yield the next commands, some of them in transactions."""
        return filter(self._is_told, super().some(count))

    def _is_told(self, words: Words) -> bool:
        if words[0] == b"XSETID" or b"ENTRIESREAD" in words or (self._spares and words[0] in {b"FLUSHDB", b"SWAPDB"}):
            return False
        if not self._of_redis:
            return True
        is_again = words[0] == b"XREADGROUP" and words[-1] != b">"
        return not is_again and not (words[0] == b"XDELEX" and words[2] == b"DELREF")

    def _short(self) -> Words:
        key, soon = self._pick(b"k", b"s", b"t", b"hash", b"list"), b"%d" % self.random.randint(1, 60)
        return self._pick(
            [b"SET", b"l", b"v", b"PX", soon],
            [b"PEXPIRE", key, soon],
            [b"GETEX", b"m", b"PX", soon],
            [b"PEXPIRE", key, soon, b"GT"],
            [b"PEXPIREAT", b"twin", b"%d" % self._since],
            [b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"2", b"BLOCK", b"3", b"STREAMS", b"s", b">"],
        )


class Writers:
    """Change data while the ``with`` block runs; a server that is down is tried again.

    Args:
        url: of the server.
        seed: of the first writer; each has one of its own.
        count: the number of writers.
        options: of :class:`Load`.

    Attributes:
        written: the number of commands with a reply.
    """

    def __init__(self, url: str, seed: int, *, count: int = WRITERS, **options: bool) -> None:
        self.url = url
        self.written = 0
        self._options = options
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        seeds = (seed * 1000 + number for number in range(count))
        self._threads = [threading.Thread(target=self._run, args=(one,), daemon=True) for one in seeds]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the writers, and raise the first error of any of them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        if self._failures:
            raise self._failures[0]

    def more(self, count: int) -> None:
        """Wait until ``count`` more commands have a reply."""
        wanted = self.written + count
        eventually(lambda: self.written >= wanted or self._failures, what=f"{count} commands more are answered")

    def _run(self, seed: int) -> None:
        load = None
        while not self._stop.is_set():
            try:
                with Wire(self.url) as wire:
                    if load is None:
                        load = Load(seed, 1000 * int(wire.ask("TIME")[0]), **self._options)
                    self._write(wire, load)
            except (OSError, EOFError):
                self._stop.wait(0.05)  # it is killed, and will be started
            except BaseException as error:  # noqa: BLE001 - told by stop(), in the thread that asks
                self._failures.append(error)
                return

    def _write(self, wire: Wire, load: Load) -> None:
        while not self._stop.is_set():
            self.written += len(wire.ask_together(load.some(load.random.choice([1, 7, 50]))))


Look = Callable[[Wire], dict[tuple[int, bytes], Any]]


def all_of(wire: Wire) -> dict[tuple[int, bytes], Any]:
    """Return everything that a replica must have."""
    return state(wire.ask)


def assert_same(replica: Wire, primary: Wire, look: Look = all_of, *, seconds: float = 180) -> None:
    """Wait until both servers are at rest, and check that they have the same data.

    Keys that expire soon are gone first, and only then are the two compared, so a difference is lasting.

    Args:
        replica: the replica.
        primary: its primary, which has no more writers.
        look: returns the data to compare.
        seconds: the time limit for the replica to catch up.
    """
    eventually(lambda: not _ends_soon(primary), what="keys that end soon are gone")
    eventually(lambda: _is_level(replica, primary), seconds, what="the replica is where its primary is")
    mine, its = look(replica), look(primary)
    different = sorted(place for place in mine.keys() | its.keys() if mine.get(place) != its.get(place))
    assert not different, f"{different}: {mine.get(different[0])!r} != {its.get(different[0])!r}"


def _is_level(replica: Wire, primary: Wire) -> bool:
    assert is_level(replica, primary), (info(replica), info(primary))  # shown when time is up
    return True


def _ends_soon(wire: Wire) -> bool:
    now = wire.ask("TIME")
    soon = 1000 * int(now[0]) + int(now[1]) // 1000 + 60_000
    ends = []
    for db in (0, 1):
        wire.ask("SELECT", db)
        ends += wire.ask_together(["PEXPIRETIME", key] for key in wire.ask("KEYS", "*"))
    wire.ask("SELECT", 0)
    return any(0 <= each < soon for each in ends)
