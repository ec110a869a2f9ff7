"""Parts of packs that parked clients wait for: read by threads, pinned for these clients, and let go afterwards."""

import errno
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from millstream.clock import Now
from millstream.commands.context.session import Session
from millstream.engine.cold import Range
from millstream.node.clients.parking import Ticket
from millstream.node.clients.sessions import Sessions
from millstream.node.outcome import Outcome
from millstream.node.tiering.fetching import LACKS, Fetch, FetchThreads, Going, joined
from millstream.node.tiering.packreader import PackSource

PINNED_MAX = 64 << 20
"""Bytes that are pinned for parked clients; beyond that the page cache has them."""
# Number of misses whose times INFO shows
_TIMES = 1024


class ColdShell(Protocol):
    """An event loop that has other work while a disk is read."""

    def post(self, work: Callable[[Now], None]) -> None:
        """Run something in the loop, and then do all work after commands; called in any thread."""
        ...

    def soon(self, work: Callable[[], None]) -> None:
        """Run something in the next turn of the loop; called in the loop."""
        ...


class Tickets:
    """Serves the parked clients of a node."""

    def __init__(
        self,
        source: PackSource,
        sessions: Sessions,
        shell: ColdShell,
        serve_woken: Callable[[Now], None],
        *,
        threads: Callable[[], int],
        rate: Callable[[], int],
        measured: Callable[[int, float], None],
    ) -> None:
        self._source, self._sessions, self._shell = source, sessions, shell
        self._serve_woken = serve_woken  # serves clients whose keys are ready
        self._going = Going()
        self.pinned = 0  # Bytes that are kept for parked clients
        self.threads = FetchThreads(source, threads, rate, self._post, measured)  # They start with the first miss
        self.times: deque[int] = deque(maxlen=_TIMES)  # Microseconds from a miss until its bytes were there
        self.parked = 0  # Number of times that a client was parked

    def park(self, session: Session, ranges: list[Range], tries: int, pins: list[Range]) -> None:
        """Park a client until these parts are there; ``pins`` are parts that its command has pinned itself."""
        ticket = Ticket(session, self._release, tries, began=time.perf_counter_ns())
        for wanted in joined(ranges):
            fetch = self.fetch_of(wanted, session.id)
            if ticket in fetch.users:
                continue  # one read has several of the parts
            fetch.users.add(ticket)
            ticket.parts.append(fetch)
            ticket.left += not fetch.is_there
        before = self._sessions.parking.by_session.get(session.id)
        ticket.pins += pins
        if before is not None:  # what it missed before is needed again
            ticket.pins += before.pins
            before.pins.clear()
            ticket.parts += before.parts
            for fetch in before.parts:
                fetch.users.add(ticket)
        self._sessions.parking.add(ticket)
        self.parked += 1
        if not ticket.left:  # another client's reads brought all of it, but may not be pinned: run again at once
            self._shell.post(partial(self._ready, ticket))

    def fetch_of(self, wanted: Range, client: int = 0, *, is_ahead: bool = False) -> Fetch:
        """Return the fetch of a part, begun now unless one is under way; a client reads on in its own turns too."""
        found = self._going.find(wanted)
        if found is None:
            found = Fetch(wanted)
            found.is_ahead = is_ahead
            self._going.add(found)
            self.threads.add(found, client, is_ahead=is_ahead)
        elif not (is_ahead or found.is_done):
            self.threads.add(found, client)
            found.is_ahead = False
        return found

    @property
    def ahead(self) -> int:
        """Bytes that are being read ahead."""
        return sum(fetch.wanted[2] for fetch in self._going if fetch.is_ahead)

    def _post(self, fetch: Fetch) -> None:
        """Tell the loop that a part was read; called in a thread."""
        self._shell.post(partial(self._take_in, fetch))

    def _take_in(self, fetch: Fetch, now: Now) -> None:
        fetch.is_there, fetch.is_ahead = True, False
        if fetch in self._going:  # else it is of a pack that was dropped
            if fetch.users:
                with suppress(MemoryError):  # the command runs again, and the page cache may have the part
                    self._pin(fetch)
            else:
                self._going.remove(fetch)
        fetch.parts.clear()
        for ticket in list(fetch.users):
            ticket.left -= 1
            if not ticket.left:
                self._ready(ticket, now)

    def _ready(self, ticket: Ticket, now: Now) -> None:
        """Let a client go on: the shell runs its command again, or its wait is tried again."""
        session, waiter = ticket.session, ticket.waiter
        if self._sessions.parking.by_session.get(session.id) is not ticket:
            return
        if not session.parked or (waiter is not None and waiter.over):  # the wait has ended meanwhile
            self._sessions.parking.drop(session)
            return
        session.parked = False
        self.times.append((time.perf_counter_ns() - ticket.began) // 1000)
        if waiter is None:
            session.blocked = False
            self._sessions.outbox.append((session, Outcome([], 0)))
        else:
            self._sessions.waits.ready.update(dict.fromkeys(waiter.places))
            self._serve_woken(now)
            self._forget_unread(ticket)

    def _forget_unread(self, ticket: Ticket) -> None:
        """Let bytes go that a waiting command does not read any more, since its key is gone or another has served it.

        In an outage or a pause it has not been tried yet.
        """
        session, is_tried = ticket.session, not self._sessions.waits.ready and self._sessions.pause.ends is None
        if is_tried and not session.parked and self._sessions.parking.by_session.get(session.id) is ticket:
            self._sessions.parking.drop(session)

    def drop(self, pack: int) -> None:
        """Drop all parts of a pack, since another one may get its number. Its clients run again."""
        for fetch in [each for each in self._going if each.wanted[0] == pack]:
            self._going.remove(fetch)
            self.pinned -= sum(length for _, _, length in fetch.pins)
            fetch.pins.clear()

    def _release(self, ticket: Ticket) -> None:
        for pin in ticket.pins:
            self._source.unpin(*pin)
        for fetch in reversed(ticket.parts):  # the source finds the newest pins first
            fetch.users.discard(ticket)
            if fetch.users or fetch.is_ahead or fetch not in self._going:
                continue
            self._going.remove(fetch)
            if not fetch.is_there:
                self.threads.drop(fetch)
            for pin in fetch.pins:
                self._source.unpin(*pin)
                self.pinned -= pin[2]
            fetch.pins.clear()

    def _pin(self, fetch: Fetch) -> None:
        """Keep what was read, in as long parts as there are without an error between them."""
        pack, offset, length = fetch.wanted
        if self.pinned + length > PINNED_MAX:
            return
        run: list[bytes] = []
        begin = offset
        for number, part in enumerate(fetch.parts):
            place = fetch.place(number)
            if isinstance(part, bytes):
                run.append(part)
                if len(part) == place[2]:
                    continue
            self._pin_run(fetch, pack, begin, run)
            run, begin = [], place[1] + place[2]
            if isinstance(part, OSError) and part.errno not in LACKS:
                self._source.pin(*place, part.errno or errno.EIO)
                fetch.pins.append(place)
                self.pinned += place[2]
        self._pin_run(fetch, pack, begin, run)

    def _pin_run(self, fetch: Fetch, pack: int, offset: int, run: list[bytes]) -> None:
        data = b"".join(run)
        if data:
            self._source.pin(pack, offset, len(data), data)
            fetch.pins.append((pack, offset, len(data)))
            self.pinned += len(data)

    @property
    def is_idle(self) -> bool:
        """True if nothing is read or kept for a client."""
        return not self._going and not self.pinned
