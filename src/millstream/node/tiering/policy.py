"""The choice of nodes that go to packs: how many bytes, from which streams, and which of their nodes.

PURE. Only the first nodes of a stream go, and never its last two sealed ones, so readers at its end do not notice.
The streams are in a ring. A turn looks at :data:`LOOKED` of them, from the one after the last turn's.

Three classes say how many nodes of a stream may go. A class counts only if the one before it does not suffice:

1. All before its share of ``tier-hot``; or up to the position of the hindmost group within that share. A group that is
   further behind reads its backlog from packs, in order. Entries younger than a second stay.
2. All but its last MiB.
3. Only above 0.95 of ``maxmemory``: all but the last two sealed nodes.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from millstream.engine.ids import is_timed
from millstream.engine.keyspace import Keyspace, Transition, filled_places
from millstream.engine.streams import nodeform
from millstream.engine.streams.nodes import Block
from millstream.engine.streams.stream import Stream

Place = tuple[int, bytes]

CLASSES = 3
"""Number of classes."""
LOOKED = 64
"""Number of streams that one turn looks at."""
SLACK = 8 << 20
"""Bytes above ``tier-hot`` at which spilling begins, or a quarter of it if that is less."""
# Parts of maxmemory: pressure begins, its aim, and class 3 begins
_PRESSED, _RELIEVED, _URGENT = 0.90, 0.85, 0.95
# Number of nodes that stay: the open one and the two before it
_STAY = 3
# Bytes that class 2 leaves to a stream
_TAIL = 1 << 20
# A stream with less to go is left to class 3, in bytes
_LEAST = 16 << 10
# Milliseconds for which class 1 leaves a new entry alone
_FRESH = 1000


@dataclass(frozen=True, slots=True)
class Aim:
    """The amount to spill."""

    size: int = 0  # Bytes of sealed nodes that should go; 0 for none
    hot: int = 0  # Bytes of sealed nodes that should stay
    classes: int = 2  # Last class that counts


def aim(sealed: int, tier_hot: int, used: int, limit: int) -> Aim:
    """Return the amount to spill of ``sealed`` bytes, with ``used`` bytes of ``maxmemory`` (``limit``, 0 for none)."""
    pressed = limit > 0 and used > limit * _PRESSED
    hot = min(tier_hot, max(sealed - (used - int(limit * _RELIEVED)), 0)) if pressed else tier_hot
    slack = 0 if pressed else min(SLACK, tier_hot // 4)
    size = sealed - hot if sealed > hot + slack else 0
    return Aim(size, hot, CLASSES if limit and used > limit * _URGENT else 2)


@dataclass(frozen=True, slots=True)
class Leave:
    """The nodes of one stream that may go."""

    keep: int = 0  # Bytes of sealed nodes that stay
    upto: int | None = None  # Last id that may go; None for any


def leave_of(stream: Stream, number: int, share: int, wall: int) -> Leave | None:
    """Return a stream's nodes that a class leaves; None if it leaves none. ``share``: its part of ``tier-hot``."""
    entries = stream.entries
    sealed = entries.sealed_bytes
    if number == 3:
        return Leave()
    if number == 2:
        return Leave(_TAIL) if sealed >= _TAIL + _LEAST else None
    fresh = (wall - _FRESH << 64) - 1 if is_timed(entries.last_live_id, wall) else None
    near = [group.last_id for group in stream.groups.values() if group.last_id >= entries.cold_last]
    if near and (edge := _share_begins(stream, share)) is not None and (found := [at for at in near if at >= edge]):
        upto = min(found)
        return Leave(0, upto if fresh is None else min(upto, fresh))
    return Leave(share, fresh) if sealed >= share + _LEAST else None


def aged(stream: Stream, wall: int, after: int) -> Leave | None:
    """Return the nodes that are older than ``after`` milliseconds; None if there are none."""
    if not is_timed(stream.entries.last_live_id, wall):
        return None
    upto = (wall - after << 64) - 1
    first = next(iter(stream.entries.hot_nodes()), None)
    return Leave(0, upto) if first is not None and first.last <= upto else None


def _share_begins(stream: Stream, share: int) -> int | None:
    """The id at which the last ``share`` bytes of a stream's sealed nodes begin."""
    left = stream.entries.sealed_bytes
    for node in stream.entries.hot_nodes():
        if left <= share:
            return node.first
        left -= node.footprint
    return None


def leaving(stream: Stream, limit: Leave, skipped: int = 0) -> Iterator[Block]:
    """Return the nodes that may go, oldest first, from the one after ``skipped`` nodes that were chosen before."""
    return takewhile(nodeform.may_go, due(stream, limit, skipped))


def due(stream: Stream, limit: Leave, skipped: int = 0) -> Iterator[Block]:
    """Yield the same nodes and all behind them within the limit, whatever their sizes."""
    left, ahead = stream.entries.sealed_bytes, deque[Block]()
    for at, node in enumerate(stream.entries.hot_nodes()):
        ahead.append(node)
        if at < _STAY:
            continue
        first = ahead.popleft()
        left -= first.footprint
        is_late = limit.upto is not None and first.last > limit.upto
        if left < limit.keep or is_late:
            return
        if at >= skipped + _STAY:
            yield first


class Ring:
    """The streams in the order of their last turn, each with the bytes of its sealed nodes as of then."""

    def __init__(self) -> None:
        self._sizes: dict[Place, int] = {}
        self.sealed = 0  # Bytes of the sealed nodes of all streams

    def __len__(self) -> int:
        return len(self._sizes)

    def scan(self, space: Keyspace) -> None:
        """Begin with the streams of a keyspace."""
        self._sizes = {
            (db.index, key): value.entries.sealed_bytes
            for db in space.databases
            for key, value in db.keys.items()
            if isinstance(value, Stream)
        }
        self.sealed = sum(self._sizes.values())

    def observe(self, step: Transition) -> None:
        """Note a transition that may have made a stream."""
        for place in filled_places(step, self._sizes):
            self._sizes.setdefault(place, 0)

    def places(self) -> dict[Place, int]:
        """Return the places of all streams, which the caller may change."""
        return self._sizes.copy()

    def look(self, space: Keyspace, place: Place) -> Stream | None:
        """Return the stream of a place, None without one; its size is brought up to date, its turn stays."""
        stream = space.databases[place[0]].keys.get(place[1])
        if not isinstance(stream, Stream):
            self.sealed -= self._sizes.pop(place, 0)
            return None
        if place in self._sizes:
            size = stream.entries.sealed_bytes
            self.sealed += size - self._sizes[place]
            self._sizes[place] = size
        return stream

    def turn(self, space: Keyspace, most: int = LOOKED) -> list[tuple[Place, Stream]]:
        """Return the streams that are next, with their sizes brought up to date."""
        found = []
        for place in list(islice(self._sizes, most)):
            stream = self.look(space, place)
            if stream is not None:
                self._sizes[place] = self._sizes.pop(place)  # at the end of the ring
                found.append((place, stream))
        return found

    def share(self, stream: Stream, hot: int) -> int:
        """Return a stream's part of the bytes that should stay, in proportion to its sealed nodes."""
        return hot * stream.entries.sealed_bytes // max(self.sealed, 1)
