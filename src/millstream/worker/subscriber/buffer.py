"""Entries that were read and have not begun: the bounded queue between the reader and the lanes that run handlers.

The reader adds entries, and waits while there is no room. Lanes take entries, and wait while there are none. No entry
in here has begun, so all of them can be released at any moment, uncharged.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from millstream.worker.model.lifecycle import State
from millstream.worker.model.retry import resize
from millstream.worker.settlement.consumer import Held
from millstream.worker.subscriber.key_ordering import KeyOrdering
from millstream.worker.subscriber.parts import Common, SubscriberPart
from millstream.worker.subscriber.places import LanePlaces


class Buffer(SubscriberPart):
    """The read-ahead of one subscriber.

    Its size adapts between two bounds: fast handlers get large reads; slow handlers keep few entries from other
    workers.
    """

    def __init__(self, common: Common, places: LanePlaces, *, lowest: int, highest: int) -> None:
        super().__init__(common)
        self._loop = asyncio.get_running_loop()
        self.places = places
        places.freed = self._look_again
        self._lowest = lowest  # bounds of its size, in entries
        self._highest = highest
        self._target = lowest  # current size in entries
        self._loops = 1  # number of loops that share the lanes' time
        self._fed_at = 0  # monotonic milliseconds of the last refill
        self._idle: deque[asyncio.Future[None]] = deque()  # lanes that wait for an entry, the longest wait first
        self.entries: deque[Held] = deque()  # Entries in the order in which they were read
        # Holds entries that wait for an earlier one with their key; None without ordering
        self.by_key: KeyOrdering | None = None
        # Set when a place was freed, or when the waiting reader must check something else
        self.room = asyncio.Event()
        self.closed = asyncio.Event()  # Set when no more entries may begin
        # False while the reader waits for a place (with limits); True when it may read for one; otherwise None
        self.called: bool | None = None

    @property
    def ahead(self) -> int:
        """Number of held entries that have not begun."""
        return len(self.entries) + (self.by_key.waiting if self.by_key is not None else 0)

    # -- the reader's side ------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Number of entries to read; 0 until half of the buffer is free, since a read for each would cost more."""
        ahead = self.ahead
        if self._subscription.hold:  # the number of entries that wait for a failed one is limited
            return max(self._target - ahead, 0)
        return self._target - ahead if ahead * 2 <= self._target else 0

    def put(self, found: Sequence[Held]) -> None:
        """Add the entries of a read, and wake a lane, which wakes others."""
        now = self._member.clock.now().mono
        # Only an empty buffer shows how quickly its entries were started
        if not self.entries and self._fed_at:
            waited = (now - self._fed_at) / self._loops
            self._target = resize(self._target, self._lowest, self._highest, waited_ms=waited)
        self._fed_at = now
        self.entries.extend(found)
        self._wake(1)

    def put_first(self, held: Held) -> None:
        """Add an entry whose turn has come, in front."""
        self.entries.appendleft(held)
        self._wake(1)

    # -- the lanes' side --------------------------------------------------------------------------------------------

    async def arrival(self) -> None:
        """Wait until an entry is added, there is a place for one, or the buffer is closed.

        A woken lane wakes two more lanes if entries are left, and each of them does the same. So all lanes are awake
        after a few turns of the event loop. If handlers never wait, and one lane empties the buffer, the other lanes
        stay asleep.
        """
        if not self.entries:
            self.places.decline()
            self.room.set()  # the reader of a handler with limits may wait for an idle lane
        turn = self._loop.create_future()
        self._idle.append(turn)
        await turn
        self._loop.call_soon(self._wake_more)

    def take(self) -> Held:
        """Remove and return the first entry; there must be one."""
        held = self.entries.popleft()
        # As in `free`, waking the reader is useless before half of it is free
        if len(self.entries) * 2 <= self._target:
            self.room.set()
        return held

    def take_fresh(self, limit: int) -> list[Held]:
        """Remove and return the first entries, up to one that was delivered before or has a stale lease.

        Such an entry must not get into a batch: it runs alone, or its lease is renewed first.
        """
        taken: list[Held] = []
        entries = self.entries
        while entries and len(taken) < limit and entries[0].deliveries == 1 and not self._member.stale(entries[0]):
            held = entries.popleft()
            if held.state is State.BUFFERED:
                taken.append(held)
        self.room.set()
        return taken

    # -- handing back -----------------------------------------------------------------------------------------------

    def give_back(self, held: Held) -> None:
        """Release an entry that has not begun, uncharged."""
        if held.state is not State.BUFFERED:
            return
        if self._member.no_ack:
            self._member.lose(held)  # with no_ack, the server has no record of it
        else:
            if self.by_key is not None:
                # The reader may read later entries with this key first: these wait until it is delivered again
                self.by_key.expect(held)
            self._acks.release(held, charge=False)
            self._member.stats.released += 1

    def hand_back(self) -> None:
        """Release all entries that have not begun."""
        while self.entries:
            self.give_back(self.entries.popleft())
        # Entries that wait for an earlier one with their key, which may be running
        if self.by_key is not None:
            for held in self.by_key.take_all():
                self.give_back(held)

    def bound(self, lowest: int, highest: int, loops: int) -> None:
        """Set the bounds of the read-ahead, for one of ``loops`` loops; entries in the buffer stay."""
        self._lowest, self._highest, self._loops = lowest, highest, loops
        self._target = max(lowest, min(self._target, highest)) if self._fed_at else lowest
        self.room.set()

    def close(self) -> None:
        """Let no more entries begin. :meth:`release_lanes` wakes waiting lanes, once the last read has ended."""
        self.closed.set()
        self.room.set()

    def release_lanes(self) -> None:
        """Wake every waiting lane, so that it sees that the buffer is closed."""
        self._wake(len(self._idle))

    def _look_again(self) -> bool:
        """Wake a lane for a free place; return False if no lane needs it.

        If the reader has waited for a place, with an empty buffer, it reads for it.
        """
        if self.called is False and not self.entries:
            self.called = True
            self.room.set()
        return len(self.entries) > self.places.offered and not self._wake(1)

    def _wake_more(self) -> None:
        free = self.places.free
        if self.entries and free < 1:
            self.places.wait()
        self._wake(min(len(self.entries), free, 2))

    def _wake(self, count: int) -> int:
        """Wake lanes; return the number of lanes that were missing."""
        while count > 0 and self._idle:
            turn = self._idle.popleft()
            # If it is done, the lane was cancelled while it waited, and would lose the wake-up
            if not turn.done():
                turn.set_result(None)
                count -= 1
        return count
