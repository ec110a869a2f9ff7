"""Spilling: sealed nodes go to packs, in batches, while the loop serves clients.

1. The loop copies nodes that :mod:`millstream.node.tiering.policy` chooses, a slice a turn. They stay hot.
2. A thread writes the copies to a pack, syncs it, and reads it back (:mod:`millstream.node.tiering.writing`).
3. The loop compares the copies with the nodes as they are now, and commits ``tcold``. No reply waits for its record: if
   a crash loses it, the nodes are hot again, from the log.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

from millstream.clock import Now
from millstream.commands.context.config import Config
from millstream.engine.cold import EXTENTS_MOST, records_of
from millstream.engine.keyspace import Keyspace, Transition
from millstream.engine.streams import nodeform
from millstream.engine.streams.memory import stream_memory
from millstream.engine.streams.nodes import Block
from millstream.engine.streams.stream import Stream
from millstream.errors import StorageError
from millstream.logs import logger
from millstream.node.memory import Memory
from millstream.node.tiering import policy
from millstream.node.tiering.background import NoThreadError, TierThread
from millstream.node.tiering.gathering import BATCH, SLICE, Batch, Copies, settled
from millstream.node.tiering.policy import Aim, Leave, Place, Ring
from millstream.node.tiering.writing import SPARE, Filler, Written
from millstream.persistence.log import Log
from millstream.persistence.manifest import PackEntry

log = logger("millstream.tier")

# Seconds before the next look while nothing may go
_LATER = 1.0
# Milliseconds for which a stream is left alone after most of its copies were given up
_LEFT_ALONE = 10_000
# Growth of all streams that is worth another look: bytes, or this part of them
_GROWN, _GROWN_PART = 16 << 10, 64


class SpillOwner(Protocol):
    """The parts of a node that spilling needs; :class:`millstream.node.node.Node` is one."""

    config: Config
    keyspace: Keyspace
    memory: Memory
    spills: "Spiller | None"

    @property
    def may_look_after(self) -> bool:
        """True if the node may change data by itself now."""

    def commit_alone(self, steps: list[Transition], now: Now) -> None:
        """Commit transitions that no client sees, for which no reply waits."""


class Care(Protocol):
    """The care of packs; :class:`millstream.node.maintenance.vacuum.Vacuum` is one."""

    def observe(self, step: Transition) -> None:
        """Note a transition that was committed."""

    def scan(self) -> None:
        """Forget what was found, since the data came from elsewhere."""

    def begin_again(self) -> None:
        """Leave the pack that is being filled, since other packs took the place of all."""

    def turn(self, now: Now, *, is_calm: bool) -> float | None:
        """Do the next piece of work; return the seconds until the next one."""

    def end(self) -> None:
        """End the pack that is being filled."""


@dataclass(slots=True)
class _Classes:
    """The search for nodes that may go, over all streams, one class after the other."""

    number: int = 1  # Present class
    looked: int = 0  # Streams that were looked at since something was found


class Spiller:
    """Moves nodes of one node's streams to packs."""

    def __init__(
        self,
        node: SpillOwner,
        opened: Log,
        *,
        exclusively: Callable[[Callable[[], Any]], Any] = lambda job: job(),
        wake: Callable[[], None] = lambda: None,
        thread: type[threading.Thread] = threading.Thread,
        spare: int = SPARE,
    ) -> None:
        self._node = node
        self.config, self.keyspace = node.config, node.keyspace  # Configuration and data of the node
        self.filler = Filler(opened, exclusively)  # Writer of packs, with its counts
        node.memory.copies.append(lambda: self._batch.size + self.background.held)
        self.background = TierThread(wake, thread)  # ``wake`` is called in the thread; another turn is due then
        self.care: Care  # Takes turns while nothing is to be spilled
        self._spare = spare
        # Called in the loop before a pack's first entry is committed, so that it can be read; perhaps several times
        self.on_pack: Callable[[PackEntry], None]
        self.ring = Ring()  # The streams
        self._is_on = False
        self._queue: deque[tuple[Place, Stream]] = deque()  # Streams to look at next
        self._search = _Classes()
        self._batch = Batch()  # Copies that are not in the thread yet
        self._part: tuple[Copies, Leave] | None = None  # The last part of the batch, if more of it may follow
        self._in_thread: Batch | None = None  # Batch that is being written, or was
        self._alone: dict[Place, int] = {}  # Streams that are left alone, until these monotonic milliseconds
        self._huge: dict[Place, tuple[int, int, int]] = {}  # Facts of first nodes that are too large for a file
        self._not_before = self._rests_until = self._rests_at = 0
        self.spilled = 0  # Bytes of frames that took the place of nodes

    @property
    def disk_needed(self) -> int:
        """Bytes of the disk that spilling leaves free, for the next rewriting."""
        return self.plenty - self._spare + self.filler.spare(self.config.tier_hot, self._spare)

    @property
    def plenty(self) -> int:
        """Free bytes of the disk above which nobody has to look for room."""
        return self.config.disk_floor + 2 * self.ring.sealed + self._spare

    @property
    def is_busy(self) -> bool:
        """True while nodes are on their way."""
        return self._in_thread is not None or self._batch.size > 0

    def may_help(self, now: Now) -> bool:
        """True if nodes can go to packs now, or are on their way."""
        if self.background.is_stopped or not self.config.tier or now.mono < self._not_before:
            return False
        return (
            self.is_busy or not self._is_on or not (self._rests(now) or self.filler.is_full(self.config.tier_max_bytes))
        )

    def begin_again(self) -> None:
        """Forget all packs and what is on its way, since other packs and other data took their place."""
        self._in_thread = None
        self.background.forget()
        self.filler.drop()
        self.care.begin_again()

    def observe(self, step: Transition) -> None:
        """Note a transition that was committed."""
        self.ring.observe(step)
        self.care.observe(step)
        if step[0] == "xsetid":  # the same ids may be given again, of a stream that may have another key by now
            for part in (*self._batch.parts, *(self._in_thread.parts if self._in_thread is not None else ())):
                part.is_stale = True

    def scan(self) -> None:
        """Find all streams, since the data came from elsewhere."""
        self._queue.clear()
        self._batch, self._part = Batch(), None  # copies of streams that are gone
        self._alone, self._huge, self._search, self._rests_until = {}, {}, _Classes(), 0
        self.ring.scan(self.keyspace)
        self.care.scan()

    # ------------------------------------------------------------------ in the loop

    def turn(self, now: Now) -> float | None:
        """Do the next piece of work; return the seconds until the next one, None if only an event makes it due."""
        if self.background.is_stopped:
            return None
        if self.config.tier != self._is_on:
            self._switch()
        if self.background.is_busy and not self.background.is_done:
            return self._gather_ahead(now)
        if not self._node.may_look_after:
            return _LATER
        if self.background.is_done:
            self._take(now)
            return 0.0
        try:
            seconds = self._next(now) if self._is_on else None
        except NoThreadError:
            return _LATER
        return 0.0 if self.background.is_done else None if self.background.is_busy else seconds

    def _take(self, now: Now) -> None:
        """Take the result of the thread's job; a batch whose job failed stays hot."""
        try:
            self.background.take(now)
        finally:
            if self._in_thread is not None:
                self._commit(self.filler.fail("error", "an internal error, see below"), now)

    def _next(self, now: Now) -> float | None:
        """Spill, or care for the packs while nothing is to be spilled."""
        rest = self._not_before - now.mono
        seconds = rest / 1000 if rest > 0 else self._gather(now)
        if seconds == 0.0 or self.background.is_busy:
            return seconds
        is_calm = not self._batch.size and (rest <= 0 or self.filler.lacks_space)  # care may return space
        other = self.care.turn(now, is_calm=is_calm)
        return min((each for each in (seconds, other) if each is not None), default=None)

    def _switch(self) -> None:
        """Begin or end the work, as ``tier`` says."""
        self._is_on = self.config.tier
        self._batch, self._part, self._search = Batch(), None, _Classes()
        if self._is_on:
            self.scan()
            self._node.spills = self
        else:
            self.ring = Ring()
            self.care.scan()
            if self._in_thread is None:
                self._node.spills = None

    def aim(self, wall: int, sealed: int | None = None) -> Aim:
        """Return the amount to spill now, of all sealed nodes."""
        config, limit = self.config, self.config.max_memory
        memory = self._node.memory
        used = limit - memory.left(wall) + memory.excess if limit else 0
        found = policy.aim(self.ring.sealed if sealed is None else sealed, config.tier_hot, used, limit)
        going = 0 if self._in_thread is None else self._in_thread.size
        return found if not going else replace(found, size=max(found.size - going, 0))

    def _gather_ahead(self, now: Now) -> float | None:
        """Copy a slice of the next batch while the thread works, if memory is short."""
        may = self._is_on and self._node.may_look_after and now.mono >= self._not_before
        return self._gather(now) if may and self._is_urgent(now) else None

    def _is_urgent(self, now: Now) -> bool:
        """True if memory is so short that the next batch is gathered while one is written."""
        return self._batch.size < BATCH and self.aim(now.wall).classes == policy.CLASSES

    def _rests(self, now: Now) -> bool:
        """True if nothing was found a moment ago and little has changed, or if all nodes may stay."""
        if self._batch.size or self._queue:
            return False
        held = stream_memory()
        if now.mono < self._rests_until and held < self._rests_at + max(_GROWN, self._rests_at // _GROWN_PART):
            return True
        return not self.config.tier_after and not self.aim(now.wall, held).size

    def _gather(self, now: Now) -> float | None:
        """Copy a slice; give the batch to the thread once it is large enough, or nothing else may go."""
        if self._rests(now):
            return self._nap(now)
        if self.filler.is_full(self.config.tier_max_bytes):
            self._batch, self._part = Batch(), None  # it would be refused, and writers would wait for it
            return self._nap(now)
        if not self._queue:
            self._queue.extend(self.ring.turn(self.keyspace))
        aim = self.aim(now.wall)
        room = SLICE
        while room > 0 and self._batch.size < BATCH:
            if self._part is None and not self._begin_part(aim, now):
                break
            assert self._part is not None
            part, limit = self._part
            took = part.gather(limit, room)
            if took and self._batch.parts[-1:] != [part]:
                self._batch.parts.append(part)
            self._batch.size += took
            room -= max(took, 1)
            if not took or self._is_enough(aim):
                self._part = None
        is_over = self._search.number > aim.classes or not len(self.ring)
        if self.background.is_busy:
            self._search = _Classes() if is_over else self._search
            return None if is_over or self._is_enough(aim) else 0.0
        if self._batch.size >= BATCH or (self._batch.size and (self._is_enough(aim) or is_over)):
            self._hand_over()
            return None
        if is_over:
            self._search = _Classes()
            self._rests_until, self._rests_at = now.mono + int(_LATER * 1000), stream_memory()
            return self._nap(now)
        return 0.0

    def _nap(self, now: Now) -> float | None:
        """Seconds until another look, if it is due without any change of data."""
        return _LATER if self.config.tier_after or self.aim(now.wall).size else None

    def _is_enough(self, aim: Aim) -> bool:
        return not self.config.tier_after and self._batch.size >= aim.size

    def _begin_part(self, aim: Aim, now: Now) -> bool:
        """Find the next stream of which something may go."""
        if self._is_enough(aim):  # the ring must be up to date before this counts
            self._search.looked += len(self._queue)
            self._queue.clear()
            if self._search.looked >= len(self.ring):
                self._search = _Classes(aim.classes + 1)
            return False
        taken = {part.place for part in self._batch.parts}
        while self._queue:
            place, stream = self._queue.popleft()
            self._search.looked += 1
            limit = None if place in taken else self._bounds(place, stream, aim, now)
            if limit is not None:
                self._search.looked = 0
                self._part = Copies(place, stream, skipped=self._going(stream)), limit
                return True
            if self._search.looked >= len(self.ring):
                self._search = _Classes(self._search.number + 1)
                if self._search.number > aim.classes:
                    return False
        return False

    def _going(self, stream: Stream) -> int:
        """Number of a stream's nodes that are being written."""
        parts = () if self._in_thread is None else self._in_thread.parts
        return sum(part.nodes for part in parts if part.stream is stream)

    def _bounds(self, place: Place, stream: Stream, aim: Aim, now: Now) -> Leave | None:
        if self._alone and now.mono < self._alone.get(place, 0):
            return None
        if self.keyspace.databases[place[0]].keys.get(place[1]) is not stream:
            self._huge.pop(place, None)
            return None  # gone since the ring's turn
        after, going = self.config.tier_after, self._going(stream)
        limit = None
        if self._batch.size < aim.size:
            limit = policy.leave_of(stream, self._search.number, self.ring.share(stream, aim.hot), now.wall)
            if limit is not None and not self._has_some(place, policy.due(stream, limit, going)):
                limit = None
        if limit is None and after and self._search.number == 1:
            limit = policy.aged(stream, now.wall, after * 1000)
            if limit is not None and not self._has_some(place, policy.due(stream, limit, going)):
                limit = None
        return limit

    def _has_some(self, place: Place, due: Iterator[Block]) -> bool:
        """True if the first of these nodes may go. A huge one takes long to encode, so it is not asked again."""
        node = next(due, None)
        if node is None or self._huge.get(place) == (ends := (node.first, node.last, node.stored)):
            return False
        self._huge.pop(place, None)
        if nodeform.may_go(node):
            return True
        self._huge[place] = ends
        return False

    def _hand_over(self) -> None:
        batch, least, most = self._batch, self.disk_needed, self.config.tier_max_bytes
        self.background.run(lambda: self._write(batch, least, most), self._commit, batch.size)
        self._in_thread, self._batch, self._part = batch, Batch(), None
        self._search = _Classes()

    def _commit(self, written: Written, now: Now) -> None:
        """Let the extents of a batch take the place of the nodes that are still there."""
        batch, self._in_thread = self._in_thread, None
        assert batch is not None
        if written.pack is None:
            self._batch, self._part = Batch(), None  # copies of later nodes, which cannot go before these
            self._not_before = now.mono + max(int(self.filler.pause * 1000), int(_LATER * 1000))
        else:
            self._commit_to(written.pack, written, batch, now)
        self._settle(batch)

    def named(self, pack: PackEntry) -> list[Transition] | None:
        """Return what must come before the first reference to a pack; None if the pack cannot be read."""
        if pack.number in self.keyspace.packs:
            return []
        try:
            self.on_pack(pack)
        except StorageError as error:  # the bytes are waste
            self.filler.fail("error", str(error))
            return None
        return [("tpacks", -1, [[pack.number, pack.identity, 0]])]

    def commit(self, steps: list[Transition], now: Now) -> None:
        """Commit transitions for which no reply waits."""
        self._node.commit_alone(steps, now)

    def _commit_to(self, pack: PackEntry, written: Written, batch: Batch, now: Now) -> None:
        space, first = self.keyspace, self.named(pack)
        if first is None:  # the nodes stay hot
            self._not_before = now.mono + int(self.filler.pause * 1000)
            return
        places = iter(written.places)
        steps: list[Transition] = []
        for part in batch.parts:
            db, key = part.place
            there = space.databases[db].keys.get(key)
            mine = islice(places, len(part.extents))
            found = settled(part, pack.number, mine) if there is part.stream else []
            deque(mine, maxlen=0)  # skips its places if its stream is gone
            steps += [("tcold", db, key, *rows) for rows in records_of(found, EXTENTS_MOST)]
            if there is part.stream and len(found) * 2 < len(part.extents):
                self._alone[part.place] = now.mono + _LEFT_ALONE
            self.spilled += sum(extent.length for extent in found)
        if steps:
            self.commit(first + steps, now)
        self._alone = {place: until for place, until in self._alone.items() if until > now.mono}

    def _settle(self, batch: Batch) -> None:
        for part in (*self._batch.parts, *(self._part or ())[:1]):
            part.skipped = 0  # settled() refuses these copies if nodes of the ended batch stayed hot before them
        for part in batch.parts:
            self.ring.look(self.keyspace, part.place)
        if not self._is_on:
            self.ring = Ring()
            self._node.spills = None

    # ------------------------------------------------------------------ in the thread

    def _write(self, batch: Batch, least: int, most: int) -> Written:
        try:
            return self.filler.write(batch.payloads(), least, most)
        except Exception:
            log.exception("internal error while entries were written to a pack")
            return self.filler.broken()

    def stop(self) -> None:
        """Wait for the thread, which ends soon, and end the packs. The caller must still run exclusive jobs."""
        self.background.stop()
        self.filler.end()
        self.care.end()
