"""Entries of one key run one after the other, in stream order; different keys run concurrently.

This holds inside one process, among the entries that it holds. A failed entry does not delay later ones of its key: it
waits for its retry on the server, where any worker may claim it. Across processes only a partitioned stream orders two
entries of one key. There ``hold`` also keeps later entries back until the failed one is done or dead.
"""

import asyncio
import heapq
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable
from typing import Any, NamedTuple, TypeAlias

from millstream.client.ranges import order_of
from millstream.worker.handlers.fields import key_of
from millstream.worker.handlers.message import Message
from millstream.worker.limits.limiter import checked
from millstream.worker.model.answers import PayloadError
from millstream.worker.model.error_text import summarize, tame
from millstream.worker.model.lifecycle import FINAL, State
from millstream.worker.settlement.consumer import Held
from millstream.worker.subscriber.apart import Apart

_Queue: TypeAlias = list[tuple[tuple[int, int], int, Held]]


_SHOWN = 200  # characters of a key in reports


class HeldKey(NamedTuple):
    """A key whose entries wait for a failed entry."""

    key: str
    id: str  # Id of the failed entry
    waiting: int  # Number of held entries that wait
    since_ms: int | None  # Wall-clock milliseconds of its first failure here; None if it failed in another process
    error: str | None  # Last error in this process


class KeyOrdering:
    """Runs each key's entries one at a time."""

    def __init__(
        self,
        key: str | Callable[[Message], Hashable],
        *,
        message: Callable[[Held], Message],
        run: Callable[[Held], Coroutine[Any, Any, None]],
        unfit: Callable[[Held, PayloadError], None],
        moved: Callable[[], None],
        apart: Apart,
    ) -> None:
        self._key = key
        self._message = message
        self._run = run
        self._unfit = unfit
        self._moved = moved
        self._apart = apart
        self._queues: dict[Hashable, _Queue] = {}
        self._pushed = 0
        #: Number of entries that wait for an earlier one with their key
        self.waiting = 0

    def run(self, held: Held) -> Coroutine[Any, Any, None]:
        """Run the entry and those queued for its key meanwhile, or queue it if its key runs already."""
        try:
            key = self._key_of(held)
        except PayloadError as error:
            self._unfit(held, error)
            return asyncio.sleep(0)
        return self._run(held) if key is None else self._in_turn(key, held)

    async def _in_turn(self, key: Hashable, held: Held) -> None:
        queues = self._queues
        if key in queues:
            # A counter, since an entry that was lost and delivered again may wait here twice
            self._pushed += 1
            heapq.heappush(queues[key], (order_of(held.id), self._pushed, held))
            self.waiting += 1
            return
        queue = queues[key] = []
        try:
            await self._run(held)
            if queue:
                await self._apart.calm()
            while queue:
                _, _, following = heapq.heappop(queue)
                self.waiting -= 1
                self._moved()
                await self._apart.run(self._run(following))
        finally:
            del queues[key]

    def expect(self, held: Held) -> None:
        """Note a held entry that runs outside this order."""

    def take_all(self) -> list[Held]:
        """Remove and return all waiting entries."""
        queues = list(self._all_queues())
        taken = [held for queue in queues for _, _, held in queue]
        for queue in queues:
            queue.clear()
        self.waiting = 0
        return taken

    def _all_queues(self) -> Iterable[_Queue]:
        return self._queues.values()

    def _key_of(self, held: Held) -> Hashable:
        try:
            if not isinstance(self._key, str):
                key = checked(self._key(self._message(held)))
                own = None if key is None else _OwnKey(key)
                own in self._queues  # noqa: B015 - the comparison must raise here, not later
                return own
            return key_of(held.fields, self._key)
        except BaseException as error:
            if self._apart.ends(error):
                raise
            raise PayloadError(f"key: {summarize(error)}") from tame(error)


class _KeyState:
    """The known entries of one key that are neither done nor dead."""

    def __init__(self) -> None:
        self.known: set[bytes] = set()
        self.order: list[tuple[tuple[int, int], bytes]] = []  # heap of known entries, and some that are settled
        self.queue: _Queue = []  # held entries that wait
        self.running = False
        self.failed: tuple[bytes, int, str] | None = None  # Last failed entry, wall ms of its first failure, last error

    def add(self, entry: bytes) -> None:
        """Add an entry."""
        if entry not in self.known:
            self.known.add(entry)
            heapq.heappush(self.order, (order_of(entry), entry))

    def first(self) -> bytes | None:
        """Return the earliest entry."""
        while self.order and self.order[0][1] not in self.known:
            heapq.heappop(self.order)
        return self.order[0][1] if self.order else None


class HoldingOrder(KeyOrdering):
    """Lets an entry begin only when every earlier entry of its key is done or dead; for the only owner of a stream."""

    def __init__(
        self, key: str | Callable[[Message], Hashable], *, again: Callable[[Held], None], **parts: Any
    ) -> None:
        super().__init__(key, **parts)
        self._again = again  # puts an entry into the buffer when its turn has come
        self._keys: dict[Hashable, _KeyState] = {}

    async def _in_turn(self, key: Hashable, held: Held) -> None:
        state = self._keys.setdefault(key, _KeyState())
        state.add(held.id)
        if state.running or state.first() != held.id:
            self._pushed += 1
            heapq.heappush(state.queue, (order_of(held.id), self._pushed, held))
            self.waiting += 1
            return
        state.running = True
        try:
            await self._run(held)
            await self._apart.calm()
            while self._is_over(key, held) and (following := self._next(state)) is not None:
                held = following
                self._moved()
                await self._apart.run(self._run(held))
        finally:
            state.running = False
            if held.state in FINAL:  # settled before this run ended
                self._settled(key, held)
            if not state.known and self._keys.get(key) is state:
                del self._keys[key]

    def _is_over(self, key: Hashable, held: Held) -> bool:
        """Report whether the run succeeded; otherwise decide once the outcome is stored."""
        if held.state is State.ACKING:
            self._done(key, held.id)
            return True
        if held.state not in FINAL:
            held.then(lambda: self._settled(key, held))
            return False
        if held.state in (State.ACKED, State.DEAD):
            self._done(key, held.id)
        return held.state in (State.ACKED, State.DEAD)

    def _settled(self, key: Hashable, held: Held) -> None:
        if held.state in (State.ACKED, State.DEAD):
            self._done(key, held.id)
            self._go_on(key)

    def _done(self, key: Hashable, entry: bytes) -> None:
        state = self._keys.get(key)
        if state is not None:
            state.known.discard(entry)
            if not state.known and not state.running:
                del self._keys[key]

    def _go_on(self, key: Hashable) -> None:
        """Have a lane run the key's next entry, if none of the key runs."""
        state = self._keys.get(key)
        if state is not None and not state.running and (following := self._next(state)) is not None:
            self._again(following)

    def _next(self, state: _KeyState) -> Held | None:
        """Return the next entry of the key, if it is held."""
        while state.queue:
            _, _, held = state.queue[0]
            if held.state is State.BUFFERED and held.id != state.first():
                return None
            heapq.heappop(state.queue)
            self.waiting -= 1
            if held.state is State.BUFFERED:
                return held
        return None

    # -- entries that arrive in other ways --------------------------------------------------------------------------

    def expect(self, held: Held) -> None:
        """Note a held entry that runs outside this order: later entries of its key wait for it."""
        key = self.seed(held)
        if key is not None:
            held.then(lambda: self._settled(key, held))

    def seed(self, held: Held) -> Hashable:
        """Note an entry that is pending, here or elsewhere, so that later entries of its key wait; return its key."""
        try:
            key = self._key_of(held)
        except PayloadError:
            return None
        if key is not None:
            self._keys.setdefault(key, _KeyState()).add(held.id)
        return key

    def blockers(self) -> list[bytes]:
        """Return entries that do not run and for which others wait."""
        return [
            first
            for state in self._keys.values()
            if not state.running and state.queue and (first := state.first()) is not None
        ]

    def forget(self, entries: Collection[bytes]) -> None:
        """Drop entries that are no longer pending, though no handler settled them."""
        for key in [key for key, state in self._keys.items() if not state.known.isdisjoint(entries)]:
            self._keys[key].known.difference_update(entries)
            self._go_on(key)

    def kept(self) -> set[bytes]:
        """Return the ids of held entries that wait for an entry that does not run."""
        return {held.id for state in self._keys.values() if not state.running for _, _, held in state.queue}

    def failed(self, held: Held, at_ms: int, error: str) -> None:
        """Note the failure of a run."""
        try:
            state = self._keys.get(self._key_of(held))
        except PayloadError:
            return
        if state is not None:
            same = state.failed if state.failed is not None and state.failed[0] == held.id else None
            state.failed = (held.id, at_ms if same is None else same[1], error)

    def held_up(self) -> list[HeldKey]:
        """Return the keys whose entries wait for a failed entry."""
        found = []
        for key, state in list(self._keys.items()):
            # Another thread may call this, so nothing is changed: first() removes items from the heap
            first = min(tuple(state.known), key=order_of, default=None)
            if state.running or not state.queue or first is None:
                continue
            known = state.failed is not None and state.failed[0] == first
            _, since, error = state.failed if known and state.failed is not None else (first, None, None)
            found.append(HeldKey(_key_text(key), first.decode(), len(state.queue), since, error))
        return found

    def _all_queues(self) -> Iterable[_Queue]:
        return (state.queue for state in self._keys.values())


def _key_text(key: Hashable) -> str:
    """Return a key as text for people."""
    value = key._value if isinstance(key, _OwnKey) else key  # noqa: SLF001 - a class of this module
    if isinstance(value, bytes):
        return value[:_SHOWN].decode(errors="replace")
    try:
        return str(value)[:_SHOWN]
    except Exception as error:  # noqa: BLE001 - raised by a user's __str__
        return f"<{type(value).__name__}: {summarize(error)}>"[:_SHOWN]


class _OwnKey:
    """A key made by a function, with its first hash: a key that changes or raises later would end the lane."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Hashable) -> None:
        self._value, self._hash = value, hash(value)  # raises for a value that cannot be a key, such as a list

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OwnKey) and bool(self._value == other._value)
