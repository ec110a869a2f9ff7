"""Entries that were read and have not begun: the bounded queue between the reader and the lanes that run handlers.

The reader puts entries in and waits while there is no room; lanes take them out and wait while there are none. Since
nothing in here has begun, all of it can be handed back to the server at any moment, uncharged.
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

    Its size adapts between two bounds: quick handlers get large reads, slow ones hold back little that another worker
    could run.
    """

    def __init__(self, common: Common, places: LanePlaces, *, lowest: int, highest: int) -> None:
        super().__init__(common)
        self._loop = asyncio.get_running_loop()
        self.places = places
        places.freed = self._look_again
        self._lowest = lowest  # Bounds of its size, in entries
        self._highest = highest
        self._target = lowest  # Its present size
        self._loops = 1  # Loops that share the lanes' time
        self._fed_at = 0  # monotonic ms
        self._idle: deque[asyncio.Future[None]] = deque()  # Lanes that wait for an entry, the longest first
        self.entries: deque[Held] = deque()  # In the order in which they were read
        # Holds further entries, which wait for an earlier one of their key; None where order is of no matter
        self.by_key: KeyOrdering | None = None
        # Set when a place was freed, or when whoever waits for one is to look at something else
        self.room = asyncio.Event()
        self.closed = asyncio.Event()  # Set when nothing more is to begin
        # False while the reader waits for a place, as with limits; True once it may read for one; else None
        self.called: bool | None = None

    @property
    def ahead(self) -> int:
        """Entries in hand that have not begun."""
        return len(self.entries) + (self.by_key.waiting if self.by_key is not None else 0)

    # -- the reader's side ------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Places for a read; none before half of the buffer is free, since a read for each place would cost more."""
        ahead = self.ahead
        if self._subscription.hold:  # Entries that wait for a failed one must not fill more than is their bound
            return max(self._target - ahead, 0)
        return self._target - ahead if ahead * 2 <= self._target else 0

    def put(self, found: Sequence[Held]) -> None:
        """Take in what was read, and wake a lane, which wakes others."""
        now = self._member.clock.now().mono
        # Only a buffer that ran empty shows how quickly its entries were begun
        if not self.entries and self._fed_at:
            waited = (now - self._fed_at) / self._loops
            self._target = resize(self._target, self._lowest, self._highest, waited_ms=waited)
        self._fed_at = now
        self.entries.extend(found)
        self._wake(1)

    def put_first(self, held: Held) -> None:
        """Take in an entry whose turn it is by now."""
        self.entries.appendleft(held)
        self._wake(1)

    # -- the lanes' side --------------------------------------------------------------------------------------------

    async def arrival(self) -> None:
        """Wait until something is put in, there is a place for it, or the buffer is closed.

        A woken lane has two more woken if entries are left once it waits, and so do they: after a few turns of the loop
        all lanes are awake. If handlers never wait, and one lane empties the buffer, the others sleep on.
        """
        if not self.entries:
            self.places.decline()
            self.room.set()  # The reader of a handler with limits may wait for an idle lane
        turn = self._loop.create_future()
        self._idle.append(turn)
        await turn
        self._loop.call_soon(self._wake_more)

    def take(self) -> Held:
        """The first entry; there must be one."""
        held = self.entries.popleft()
        # As in `free`: the reader would be woken for nothing before half of it is free
        if len(self.entries) * 2 <= self._target:
            self.room.set()
        return held

    def take_fresh(self, limit: int) -> list[Held]:
        """The first entries, as far as they were never delivered before and surely are ours.

        Others must not get into a batch: what was delivered before runs alone, and what is stale is renewed first.
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
        """Let anybody have an entry that has not begun, uncharged."""
        if held.state is not State.BUFFERED:
            return
        if self._member.no_ack:
            self._member.lose(held)  # read without a trace on the server: that is what no_ack means
        else:
            if self.by_key is not None:
                # The reader may bring later ones of its key before it: those wait until it comes again
                self.by_key.expect(held)
            self._acks.release(held, charge=False)
            self._member.stats.released += 1

    def hand_back(self) -> None:
        """Release all entries in the buffer."""
        while self.entries:
            self.give_back(self.entries.popleft())
        # These wait for an earlier entry of their key, which may be running
        if self.by_key is not None:
            for held in self.by_key.take_all():
                self.give_back(held)

    def bound(self, lowest: int, highest: int, loops: int) -> None:
        """Read ahead within these bounds from now on, next to so many loops; what is in here stays."""
        self._lowest, self._highest, self._loops = lowest, highest, loops
        self._target = max(lowest, min(self._target, highest)) if self._fed_at else lowest
        self.room.set()

    def close(self) -> None:
        """Let nothing more begin. Lanes that wait are woken by :meth:`release_lanes`, once the last read has ended."""
        self.closed.set()
        self.room.set()

    def release_lanes(self) -> None:
        """Wake every lane that waits for an entry, so that it sees that the buffer is closed."""
        self._wake(len(self._idle))

    def _look_again(self) -> bool:
        """There is a place: wake a lane, which wakes others, for what has waited for one; False if no lane needs it.

        A reader that has waited for a place, with nothing in hand, reads for it.
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
        """Wake lanes; the number that were not there."""
        while count > 0 and self._idle:
            turn = self._idle.popleft()
            # Done: the lane was cancelled while it waited, and would swallow the wake-up
            if not turn.done():
                turn.set_result(None)
                count -= 1
        return count
