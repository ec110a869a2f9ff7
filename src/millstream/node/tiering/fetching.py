"""Threads that read parts of packs, so that the event loop does not wait for a disk.

Clients that wait for parts take turns, by pieces of 256 KiB: larger ones made the loop later and were slower. Parts for
one client are read in order of their requests. Parts that are read ahead come last. All who want a part share one
*fetch*.
"""

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from millstream.engine.cold import Range
from millstream.logs import logger
from millstream.node.clients.parking import Ticket
from millstream.node.tiering.packreader import PackSource
from millstream.persistence.disk import OUT_OF_FILES

log = logger("millstream.node")

PIECE = 256 << 10
"""Bytes of one read."""
JOINED_MAX = 1 << 20
"""Bytes of a joined range at most: its bytes are held until all of it is read."""
LACKS = frozenset({errno.EAGAIN, errno.ENOMEM, *OUT_OF_FILES})
"""Errors that say nothing about the disk: whoever needs the bytes reads them again."""


class Fetch:
    """One part that is read, was read, or is to be read."""

    __slots__ = ("_count", "_left", "_next", "is_ahead", "is_done", "is_there", "parts", "pins", "users", "wanted")

    def __init__(self, wanted: Range) -> None:
        self.wanted = wanted  # Pack, offset and length
        self._next = 0  # number of the piece that is read next
        self._count = self._left = -(-wanted[2] // PIECE)  # pieces, and those that are not read yet
        self.parts: list[bytes | OSError | None] = [None] * self._count  # Bytes of each piece, or its error
        self.users: set[Ticket] = set()  # Clients that wait for it, or have not read it yet
        self.pins: list[Range] = []  # Parts of it that are pinned
        self.is_ahead = False  # It is read ahead
        self.is_done = False  # Every piece was read, or failed; a thread sets it
        self.is_there = False  # The loop knows that

    def has(self, wanted: Range) -> bool:
        """True if it contains a part."""
        pack, offset, length = self.wanted
        return pack == wanted[0] and offset <= wanted[1] and wanted[1] + wanted[2] <= offset + length

    def take(self) -> int | None:
        """Return the number of the next piece to read; None if none is left."""
        if self._next == self._count:
            return None
        self._next += 1
        return self._next - 1

    def place(self, number: int) -> Range:
        """Place of a piece."""
        pack, offset, length = self.wanted
        return pack, offset + number * PIECE, min(PIECE, length - number * PIECE)

    def put(self, number: int, data: bytes | OSError) -> None:
        """Take in a piece."""
        self.parts[number] = data
        self._left -= 1
        self.is_done = not self._left

    def fail(self, error: OSError) -> None:
        """End it with an error of all its pieces, of which none is being read."""
        self.parts = [error] * self._count
        self._next, self._left, self.is_done = self._count, 0, True

    def give_up(self) -> None:
        """Read no further piece."""
        self._left -= self._count - self._next
        self._next = self._count


class Going:
    """Fetches that somebody waits for, or has not read yet, by the places that they cover."""

    def __init__(self) -> None:
        self._all: dict[Fetch, None] = {}
        self._at: dict[tuple[int, int], dict[Fetch, None]] = {}  # by pack and number of a piece of the file

    def __iter__(self) -> Iterator[Fetch]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, fetch: Fetch) -> bool:
        return fetch in self._all

    def find(self, wanted: Range) -> Fetch | None:
        """Return the fetch that was added first of those that contain a part."""
        near = self._at.get((wanted[0], wanted[1] // PIECE), ())
        return next((fetch for fetch in near if fetch.has(wanted)), None)

    def add(self, fetch: Fetch) -> None:
        """Add a fetch."""
        self._all[fetch] = None
        for place in _places(fetch.wanted):
            self._at.setdefault(place, {})[fetch] = None

    def remove(self, fetch: Fetch) -> None:
        """Remove a fetch."""
        del self._all[fetch]
        for place in _places(fetch.wanted):
            del self._at[place][fetch]
            if not self._at[place]:
                del self._at[place]


def _places(wanted: Range) -> Iterator[tuple[int, int]]:
    pack, offset, length = wanted
    return ((pack, at) for at in range(offset // PIECE, (offset + max(length, 1) - 1) // PIECE + 1))


def joined(ranges: list[Range]) -> list[Range]:
    """Return the ranges sorted, with neighbours and overlapping ones as one, up to a size."""
    found: list[Range] = []
    for pack, offset, length in sorted(ranges):
        before, at, size = found[-1] if found else (-1, 0, 0)
        grown = max(size, offset + length - at)
        if before == pack and offset <= at + size and grown <= max(size, JOINED_MAX):
            found[-1] = pack, at, grown
        else:
            found.append((pack, offset, length))
    return found


_Lines = dict[int, deque[Fetch]]
# Fetches by client, none empty; the client whose turn it is comes first


class FetchThreads:
    """A few threads that are started when there is something to read."""

    def __init__(
        self,
        source: PackSource,
        most: Callable[[], int],
        rate: Callable[[], int],
        done: Callable[[Fetch], None],
        measured: Callable[[int, float], None],
    ) -> None:
        self._source = source
        self._most = most  # number of threads
        self._rate = rate  # bytes a second; 0 for no bound
        self._done = done  # called in a thread with each fetch that is read
        self._measured = measured  # called in a thread with bytes and seconds of each read
        self._wake = threading.Condition()
        self._wanted: _Lines = {}
        self._ahead: _Lines = {}
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._ends = False
        self._free_at = 0.0  # monotonic seconds from which the rate permits another read

    def add(self, fetch: Fetch, client: int = 0, *, is_ahead: bool = False) -> None:
        """Read a part in a client's turns; a part that a client waits for comes before all that is read ahead."""
        with self._wake:
            lines = self._ahead if is_ahead else self._wanted
            line = lines.setdefault(client, deque())
            if line and line[-1] is fetch:
                return  # several of the client's parts lie in it
            line.append(fetch)
            if len(self._threads) < self._most() and self._idle < _count(self._wanted) + _count(self._ahead):
                self._start()
            can_read = bool(self._threads)
            if not can_read:
                lines.clear()  # it is alone: without a thread no other was added
                fetch.fail(OSError(errno.EAGAIN, "no thread can be started"))
            self._wake.notify_all()  # a part may have several pieces
        if not can_read:
            self._done(fetch)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"packs-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # the system's limit; other threads, if there are any, go on
            log.warning("a thread that reads packs was not started: %r", error)
            return
        self._threads.append(thread)

    def drop(self, fetch: Fetch) -> None:
        """Read no further piece of a part."""
        with self._wake:
            fetch.give_up()

    def close(self) -> None:
        """End the threads, after the reads that they have begun."""
        with self._wake:
            self._ends = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (found := self._next()) is not None:
            fetch, number = found
            began = time.perf_counter()
            try:
                place = fetch.place(number)
                if fetch.is_ahead and not number:
                    self._source.advise(*fetch.wanted, True)
                data: bytes | OSError = self._source.fetch(*place)
                if fetch.is_ahead:
                    data = b""  # the page cache has it
                self._measured(place[2], time.perf_counter() - began)
            except Exception as error:  # noqa: BLE001 - no error may leave a client waiting
                if not isinstance(error, OSError):
                    log.warning("a part of a pack was not read: %r", error)
                data = error if isinstance(error, OSError) else OSError(errno.ENOMEM, str(error))
            with self._wake:
                fetch.put(number, data)
                is_done = fetch.is_done
            if is_done:
                self._done(fetch)

    def _next(self) -> tuple[Fetch, int] | None:
        """Return the next piece to read, once there is one; None at the end."""
        with self._wake:
            while not self._ends:
                if len(self._threads) > self._most():
                    self._threads.remove(threading.current_thread())
                    return None
                held = self._free_at - time.monotonic()
                found = None if held > 0 else self._take(self._wanted) or self._take(self._ahead)
                if found is not None:
                    return found
                self._idle += 1
                self._wake.wait(held if held > 0 else None)
                self._idle -= 1
            return None

    def _take(self, lines: _Lines) -> tuple[Fetch, int] | None:
        """Take a piece of the first fetch of the client whose turn it is."""
        while lines:
            client, line = next(iter(lines.items()))
            number = line[0].take()
            if number is not None:
                if rate := self._rate():
                    size = line[0].place(number)[2]
                    self._free_at = max(self._free_at, time.monotonic()) + size / rate
                lines[client] = lines.pop(client)  # all others come before its next turn
                return line[0], number
            line.popleft()
            if not line:
                del lines[client]
        return None


def _count(lines: _Lines) -> int:
    return sum(map(len, lines.values()))
