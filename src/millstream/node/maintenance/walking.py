"""One look at all streams, in parts: extents to write anew, and the bytes of each pack to which streams refer.

A walk has places of its own, so other work that turns the ring of streams takes none from it. Streams move meanwhile,
and extents get to other packs. :meth:`Walk.observe` notes both, so at its end a walk has missed no reference.
"""

import heapq
from collections.abc import Iterator
from weakref import ReferenceType, WeakKeyDictionary, ref

from millstream.engine.cold import ROW_SIZE, index_of, last_of
from millstream.engine.keyspace import Keyspace, Transition, filled_places
from millstream.engine.streams.stream import Stream
from millstream.node.maintenance import renewing
from millstream.node.maintenance.renewing import Renewal, RenewalRule
from millstream.node.tiering.policy import Place, Ring

MOST = 4096
"""Largest number of extents that a walk remembers."""
# Effort of one turn, about 3 microseconds each, and number of extents that are looked at together
_EFFORT, _SLICE = 500, 256
# Effort for a stream without extents, one with extents, a slice, and an extent that is found
_STREAM, _COLD, _PART, _FOUND = 1, 4, 2, 5

Mark = tuple[int, int, int]
Settled = WeakKeyDictionary[Stream, Mark]
"""Streams with holes of which nothing was to be written anew, each with :func:`mark_of` as of then."""


def mark_of(stream: Stream) -> Mark:
    """Return figures of a stream's extents that differ once entries die or go to packs."""
    entries = stream.entries
    return entries.extent_count, entries.cold_live, entries.hole_bytes


class Walk:
    """One look at all streams."""

    def __init__(
        self,
        space: Keyspace,
        ring: Ring,
        rule: RenewalRule,
        newest: int,
        settled: Settled,
        skipped: set[tuple[int, int]],
    ) -> None:
        self._space, self._ring, self.rule = space, ring, rule
        self.newest = newest  # Packs with higher numbers are left out
        self._settled, self._skipped = settled, skipped  # Streams and extents to leave alone
        self.left = ring.places()  # Places to look at
        self._heap: list[tuple[tuple[int, int], int, Renewal]] = []  # the least one first
        self._chosen: set[ReferenceType[Stream]] = set()  # Streams in it, which may come again at another place
        self.counted = 0  # Extents to write anew
        self.needed: dict[int, int] = {}  # Bytes referred to, by number of the pack
        self.holes = 0  # Bytes of all holes
        self.is_void = False  # True if streams may have been missed
        self._parts = self._look()

    def observe(self, step: Transition) -> None:
        """Note a transition that was committed meanwhile."""
        op = step[0]
        if op in {"tcold", "tmove"}:
            self._need(step[3 if op == "tcold" else 4], 0)
        elif op == "swap":
            self.is_void = True
        else:
            self.left.update(dict.fromkeys(filled_places(step, ()), 0))

    def turn(self) -> bool:
        """Look at the next part; return True at the end."""
        effort = 0
        for each in self._parts:
            effort += each
            if effort >= _EFFORT:
                return False
        return True

    @property
    def found(self) -> list[Renewal]:
        """Extents to write anew, the next one last."""
        return [each for *_, each in sorted(self._heap, key=lambda item: item[:2])]

    def _need(self, pack: int, size: int) -> None:
        self.needed[pack] = self.needed.get(pack, 0) + size

    def _look(self) -> Iterator[int]:
        """Look at one part after the other; yield the effort for each."""
        while self.left:
            place, _ = self.left.popitem()
            stream = self._ring.look(self._space, place)
            yield _STREAM
            if stream is not None and stream.entries.extent_count:
                yield from self._look_at(place, stream)

    def _look_at(self, place: Place, stream: Stream) -> Iterator[int]:
        packs, mark = stream.entries.pack_sizes(), mark_of(stream)
        for number, size in packs:
            self._need(number, size)
        self.holes += mark[-1]
        yield _COLD
        is_sparse = any(number in self.rule.sparse for number, _ in packs)
        if not (mark[-1] or is_sparse) or ref(stream) in self._chosen:
            return
        if not (is_sparse or self.rule.every) and self._settled.get(stream) == mark:
            return
        before, index = self.counted, 0
        while (record := stream.entries.cold_record(index, _SLICE)) is not None:
            found = self.counted
            for each in renewing.wanted(place, stream, index, record, self.rule):
                self._find(each)
            count = len(record[1]) // ROW_SIZE
            last = last_of(record[1], count - 1)
            looked = count if record[0] in self.rule.sparse else len(record[2])
            yield _PART + looked + _FOUND * (self.counted - found)
            index = index_of(stream.entries, last + 1)  # the first ones may have gone
        if self.counted == before and mark_of(stream) == mark:
            self._settled[stream] = mark

    def _find(self, renewal: Renewal) -> None:
        if renewal.extent[:2] in self._skipped:
            return
        self.counted += 1
        self._chosen.add(renewal.stream)
        put = heapq.heappush if len(self._heap) < MOST else heapq.heappushpop
        put(self._heap, (renewal.weight, self.counted, renewal))
