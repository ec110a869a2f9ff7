"""Entries of one key run one after the other, in stream order; different keys run side by side.

This holds inside one process, among the entries it has in hand. A failed entry does not hold back the later ones of its
key: it waits for its retry on the server, where any worker may take it. Across processes nothing orders two entries of
one key; where that matters, run one worker, or a stream for each shard of the keys.
"""

import heapq
import inspect
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeAlias

from millstream.client.ranges import order_of
from millstream.worker.handlers.fields import key_of
from millstream.worker.handlers.message import Message
from millstream.worker.model.answers import PayloadError
from millstream.worker.model.error_text import summarize, tame
from millstream.worker.settlement.consumer import Held
from millstream.worker.subscriber.apart import Apart

_Queue: TypeAlias = list[tuple[tuple[int, int], int, Held]]


class KeyOrdering:
    """Lets each key's entries through one at a time."""

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
        #: entries that wait for one of their key
        self.waiting = 0

    async def run(self, held: Held) -> None:
        """Run the entry and what comes to its key meanwhile, or leave it to whoever runs its key now."""
        try:
            key = self._key_of(held)
        except PayloadError as error:
            self._unfit(held, error)
            return
        if key is None:
            await self._run(held)
            return
        if key in self._queues:
            # counted, since an entry that was lost and delivered again may wait here beside its former self
            self._pushed += 1
            heapq.heappush(self._queues[key], (order_of(held.id), self._pushed, held))
            self.waiting += 1
            return
        queue = self._queues[key] = []
        try:
            await self._run(held)
            await self._apart.calm()
            while queue:
                _, _, following = heapq.heappop(queue)
                self.waiting -= 1
                self._moved()
                await self._apart.run(self._run(following))
        finally:
            del self._queues[key]

    def take_all(self) -> list[Held]:
        """Everything that waits, taken out."""
        taken = [held for queue in self._queues.values() for _, _, held in queue]
        for queue in self._queues.values():
            queue.clear()
        self.waiting = 0
        return taken

    def _key_of(self, held: Held) -> Hashable:
        try:
            if not isinstance(self._key, str):
                key = _checked(self._key(self._message(held)))
                own = None if key is None else _OwnKey(key)
                own in self._queues  # noqa: B015 - its comparison raises here or not at all
                return own
            return key_of(held.fields, self._key)
        except BaseException as error:
            if self._apart.ends(error):
                raise
            raise PayloadError(f"key: {summarize(error)}") from tame(error)


class _OwnKey:
    """A key that a function made, with its hash of then: one that changes or raises later would end the lane."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Hashable) -> None:
        self._value, self._hash = value, hash(value)  # a list, for example, can be no key

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OwnKey) and bool(self._value == other._value)


def _checked(key: Hashable) -> Hashable:
    if inspect.isawaitable(key):
        raise TypeError("the key function returned an awaitable: make it a plain function")
    return key
