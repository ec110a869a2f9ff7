"""A copy of a million entries with many pending ones, made and taken under load: bounded memory and equal ends.

The times of replies meanwhile are printed and not limited: they depend on the machine.
"""

import hashlib
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from replication.campaigns.load import Writers, all_of, assert_same
from replication.test_following_redis import WITH_DEBUG, follow, is_level, seen
from replication.test_redis_follows import info
from support import needs
from support.between import Between
from support.campaign import LIMIT, run, show
from support.resident import forget_most, memory, most_memory
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver

WAYS = ("mm", "mr", "rm")
STORES = (("--fsync", "always"), ("--memory",), ("--fsync", "everysec"))
MB = 1 << 20
BACKLOG, BUFFER = 16 * MB, 128 * MB
# Memory of the process besides those: buffers of sockets and log, additions meanwhile, the allocator's rest
BESIDE = 64 * MB
PAGE = 10_000
# The large stream's database; those of the writers are others
DATABASE = 2


class Prober:
    """Adds to the large stream and acknowledges entries, one command after the other, and measures the time.

    Attributes:
        seconds: the time of each command.
    """

    def __init__(self, url: str) -> None:
        self.seconds: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url,), daemon=True)
        self._thread.start()

    def _run(self, url: str) -> None:
        with opened(url) as wire:
            while not self._stop.is_set():
                began = time.perf_counter()
                wire.ask("XADD", "big", "*", "f", "probe")
                self.seconds.append(time.perf_counter() - began)
                wire.ask("XACK", "big", "g", f"{len(self.seconds)}-1")

    def stop(self) -> str:
        """Stop, and return the reply times as text."""
        self._stop.set()
        self._thread.join(60)
        times = sorted(self.seconds)
        return f"{len(times)} writes, p99 {1000 * times[len(times) * 99 // 100]:.1f} ms, {1000 * times[-1]:.0f} at most"


def opened(url: str) -> Wire:
    """Open a connection to the large stream's database, with a long timeout."""
    wire = Wire(url)
    wire.socket.settimeout(180)
    wire.ask("SELECT", DATABASE)
    return wire


def server(kind: str, folder: Path, seed: int) -> ServerProcess:
    """Return a server of ours, or a Redis."""
    if kind == "m":
        sizes = f"repl-backlog-size={BACKLOG}", f"client-output-buffer-limit=replica {BUFFER} 0 0"
        return millstream_server(folder, *STORES[seed % len(STORES)], "--set", sizes[0], "--set", sizes[1])
    path = needs.found("redis8") if seed % 2 else None
    limit = "--client-output-buffer-limit", "replica 1gb 0 0"
    return redis_server(folder, *WITH_DEBUG, *limit, path=path or "")


def fill(url: str, entries: int, pending: int) -> None:
    """Write the large stream."""
    with opened(url) as wire:
        for first in range(1, entries + 1, PAGE):
            last = min(first + PAGE, entries + 1)
            wire.ask_together(("XADD", "big", f"{at}-1", "order", at, "text", "x" * 40) for at in range(first, last))
        wire.ask("XGROUP", "CREATE", "big", "g", "0")
        for _ in range(0, pending, 1000):
            wire.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", min(1000, pending), "STREAMS", "big", ">")


def digest(url: str) -> tuple[str, str, int]:
    """Return the content of the large stream, its pending entries by consumer, and the number of entries."""
    held, taken = hashlib.sha256(), hashlib.sha256()
    with opened(url) as wire:
        last = b"-"
        while page := wire.ask("XRANGE", "big", last, "+", "COUNT", PAGE):
            held.update(repr(page).encode())
            last = b"(" + page[-1][0]
        last = b"-"
        while page := wire.ask("XPENDING", "big", "g", last, "+", PAGE):
            taken.update(repr([(entry, name, count) for entry, name, _, count in page]).encode())
            last = b"(" + page[-1][0]
        return held.hexdigest(), taken.hexdigest(), wire.ask("XLEN", "big")


def big(way: str, seed: int, entries: int = 1_000_000, pending: int = 100_000) -> int:
    """Make one copy under load; return the number of entries."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        primary, replica = (
            stack.enter_context(server(kind, folder / str(at), seed + at)) for at, kind in enumerate(way)
        )
        fill(primary.url, entries, pending)
        mine, its = stack.enter_context(Wire(primary.url)), stack.enter_context(Wire(replica.url))
        link = stack.enter_context(Between(primary.port, seed))
        assert primary.process is not None
        pid = primary.process.pid
        with Writers(primary.url, seed, count=2, of_redis=way[0] == "r", spares=True) as writers:
            prober = Prober(primary.url)
            eventually(lambda: len(prober.seconds) > 50, what="it writes")
            base = memory(pid)
            forget_most(pid)
            began = time.monotonic()
            follow(its, link.port)
            eventually(lambda: info(its)["master_link_status"] == "up", 300, what="the copy is there")
            took = time.monotonic() - began
            writers.more(100)
            grown = most_memory(pid) - base
            text = prober.stop()
        eventually(lambda: is_level(its, mine), 180, what="the replica is where its primary is")
        assert digest(replica.url) == digest(primary.url)
        assert_same(its, mine, seen if way[0] == "r" else all_of)
        assert info(mine, "stats")["sync_full"] == "1"
        if way[0] == "m":
            assert grown < BACKLOG + BUFFER + BESIDE
        show(f"repl-big-{way}", f"{' '.join(primary.command[-6:])}: {took:.1f} s, +{grown // MB} MB; {text}")
        return digest(primary.url)[2]


def test_a_copy_under_load() -> None:
    """A replica that takes a copy under load needs only one, uses bounded memory and ends with equal data.

    The campaigns do it with a million entries.
    """
    assert big("mm", 1, 5_000, 500) >= 5_000


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("way", WAYS)
def test_copies_of_a_million_entries(way: str) -> None:
    """A copy of a million entries takes memory within backlog and limit, and both servers end with equal data.

    With a data directory and in memory, of ours and of Redis.
    """
    run(f"repl-big-{way}", partial(big, way), range(6), unit="entries")
