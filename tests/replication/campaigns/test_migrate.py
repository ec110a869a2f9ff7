"""A live move from a Redis to ours, and back to another Redis, under a worker and producers at one address."""

import asyncio
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from millstream import App, StreamSub
from replication.test_following_redis import WITH_DEBUG, follow, wait_level
from replication.test_redis_follows import info
from support import needs
from support.between import Between
from support.campaign import LIMIT, run
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually, eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver

PRODUCERS = 4


class Producer:
    """Adds numbers of its own to ``s`` from a thread until stopped; after a lost reply it continues with the next.

    Args:
        url: of the server.
        number: the remainder of all its numbers modulo :data:`PRODUCERS`.
        is_ahead: whether the worker has enough to do for now.

    Attributes:
        confirmed: the numbers with a reply.
        refused: the errors, with the count of each.
    """

    def __init__(self, url: str, number: int, is_ahead: Callable[[], bool]) -> None:
        self._url, self._next, self._is_ahead = url, number, is_ahead
        self.confirmed: list[int] = []
        self.refused: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with Wire(self._url) as wire:
                    while not self._stop.is_set():
                        if self._is_ahead():
                            self._stop.wait(0.02)
                        else:
                            self._add(wire)
            except (OSError, EOFError):
                self._stop.wait(0.02)

    def _add(self, wire: Wire) -> None:
        number, self._next = self._next, self._next + PRODUCERS
        reply = wire.ask("XADD", "s", "*", "x", number)
        if isinstance(reply, bytes):
            self.confirmed.append(number)
        else:
            self.refused[str(reply)] += 1

    def stop(self) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join(60)


def switch(door: Between, old: ServerProcess, new: ServerProcess) -> None:
    """Follow docs/replication.md: pause writers, check that all arrived, promote the new server, move clients."""
    with Wire(old.url) as one, Wire(new.url) as other:
        follow(other, old.port)
        eventually(lambda: info(other)["master_link_status"] == "up", what="it follows")
        assert one.ask("CLIENT", "PAUSE", 60_000, "WRITE") == b"OK"
        # Not by WAIT, which on a Redis tells of the writes of its own connection alone: it once lost six entries
        wait_level(other, one)
        assert other.ask("REPLICAOF", "NO", "ONE") == b"OK"
    door.target = new.port
    door.cut()
    old.kill()


async def moves(seed: int, folder: Path) -> int:
    """Move from a Redis to ours and to a Redis again; return the number of confirmed entries, all of them handled."""
    chance = random.Random(seed)
    path = (needs.found("redis8") if seed % 2 else None) or ""
    with ExitStack() as stack:
        first = stack.enter_context(redis_server(folder / "first", *WITH_DEBUG, path=path))
        ours = stack.enter_context(millstream_server(folder / "ours", "--fsync", chance.choice(("always", "everysec"))))
        last = stack.enter_context(redis_server(folder / "last", *WITH_DEBUG, path=path))
        door = stack.enter_context(Between(first.port, seed))
        url = f"redis://127.0.0.1:{door.port}/0"
        app, seen = App(url), Counter[int]()

        @app.subscriber(StreamSub("s", group="g", min_idle_time=1_000), concurrency=4)
        async def handle(x: int) -> None:
            seen[x] += 1

        async with app.running():
            producers: list[Producer] = []

            def is_ahead() -> bool:
                return sum(len(each.confirmed) for each in producers) > len(seen) + 300

            producers += [Producer(url, number, is_ahead) for number in range(PRODUCERS)]
            try:
                for old, new in ((first, ours), (ours, last)):
                    await more(producers, chance.randint(50, 400))
                    await asyncio.to_thread(switch, door, old, new)
                await more(producers, 100)
            finally:
                for producer in producers:
                    await asyncio.to_thread(producer.stop)
            confirmed = {number for producer in producers for number in producer.confirmed}
            await aeventually(lambda: confirmed <= set(seen), 60, what="all that was confirmed is handled")
            with Wire(last.url) as wire:
                await aeventually(lambda: wire.ask("XPENDING", "s", "g")[0] == 0, 60, what="nothing is pending")
                there = [int(fields[1]) for _, fields in wire.ask("XRANGE", "s", "-", "+")]
        assert len(there) == len(set(there)), "an entry is there twice"
        assert confirmed <= set(there)
        assert set(seen) == set(there)
        assert not any(producer.refused for producer in producers), "who writes waits, and is refused nothing"
        return len(confirmed)


async def more(producers: list[Producer], count: int) -> None:
    """Wait until ``count`` more numbers are confirmed."""
    wanted = sum(len(each.confirmed) for each in producers) + count
    await aeventually(lambda: sum(len(each.confirmed) for each in producers) >= wanted, what="entries are added")


def piece(seed: int) -> int:
    """Run one move there and back."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(moves(seed, Path(folder)))


def test_a_move_there_and_back_under_a_worker() -> None:
    """A move from a Redis to Millstream and back loses no confirmed entry and duplicates none.

    The worker handles all of them through both moves.
    """
    assert piece(0) > 100


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_many_moves_there_and_back() -> None:
    """Many moves from and to Redis 7.0 and a newer one, at any moment, lose no confirmed entry."""
    run("repl-migrate", piece, range(30), unit="confirmed entries")
