"""Writing extents anew: which ones, their new bytes, and the transitions by which these take the old ones' place.

PURE. An extent shrinks by holes, but its frame does not. Its *live share* counts from its last writing: entries that
live, of those that lived then. So a new frame begins at one again, and an extent is written anew at most once for each
halving. Meanwhile its stream changes: entries that died are holes of the new extent, as those of a spilled one are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

from millstream.engine.cold import ROW_SIZE, Extent, Holes, count_bits, figures_of, index_of, unpack_extents
from millstream.engine.keyspace import Keyspace, Transition
from millstream.engine.streams import extents, nodeform
from millstream.engine.streams.stream import Stream
from millstream.node.tiering.policy import Place

_Record = tuple[int, bytes, list[list[Any]]]


@dataclass(slots=True, eq=False)
class Renewal:
    """One extent of one stream that is to be written anew."""

    place: Place  # Database and key of the stream
    stream: ReferenceType[Stream]  # The stream that was there; a deleted one would keep its packs
    index: int  # Index of the extent in it
    extent: Extent  # The extent as of then
    # Number, first ordinal and stored entries of each node that was written
    spans: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def weight(self) -> tuple[int, int]:
        """Order in which extents are written, the largest first: most holes, then most bytes."""
        return self.extent.holes.footprint, self.extent.length


def _is_being_trimmed(index: int, extent: Extent) -> bool:
    """True if only the beginning of a stream's first extent is missing, so that trimming takes the rest soon."""
    gone = extent.holes.gone
    return not index and not gone & (gone + 1) and extent.holes.dead.bit_length() + extent.live <= extent.stored


@dataclass(frozen=True, slots=True)
class RenewalRule:
    """The extents to write anew."""

    every: bool = False  # All with a hole
    sparse: frozenset[int] = frozenset()  # Packs of which too little is needed: all extents in them
    share: int = 2  # Others once fewer than this part of their entries live, as its denominator


def wanted(place: Place, stream: Stream, start: int, record: _Record, rule: RenewalRule) -> Iterator[Renewal]:
    """Yield the extents of a record that a rule names; ``start``: the index of its first extent in the stream."""
    pack, rows, holes = record
    marks = {at: marks for at, *marks in holes}
    is_sparse = pack in rule.sparse
    for at in range(len(rows) // ROW_SIZE) if is_sparse else marks:
        lost, live = _died(rows, at, marks.get(at))
        is_named = is_sparse or (rule.every and lost > 0)
        if not is_named and live * rule.share >= live + lost:
            continue
        extent = _extent(pack, rows, at, marks.get(at))
        if is_named or not _is_being_trimmed(start + at, extent):
            yield Renewal(place, ref(stream), start + at, extent)


def _died(rows: bytes, at: int, marks: Sequence[bytes] | None) -> tuple[int, int]:
    """Return entries that died since the frame was written, as far as known without reading, and live entries.

    Nothing is unpacked, since a walk asks this for each extent with a hole.
    """
    nodes, stored, live = figures_of(rows, at)
    dead, gone = map(count_bits, marks) if marks else (0, 0)
    return min(max(dead, stored * gone // nodes), stored - live), live


def _extent(pack: int, rows: bytes, at: int, marks: Sequence[bytes] | None) -> Extent:
    return unpack_extents(pack, rows[at * ROW_SIZE : (at + 1) * ROW_SIZE], [[0, *marks]] if marks else [])[0]


def renewed(renewal: Renewal, payload: bytes) -> bytes:
    """Return the new payload of an extent: without nodes that are gone, and without values of dead entries.

    Raises:
        ValueError: the payload is damaged, or that of another extent.
    """
    extent, found, ordinal = renewal.extent, [], 0
    rows = extents.rows(payload)
    if (len(rows), sum(row.facts.stored for row in rows)) != (extent.nodes, extent.stored):
        raise ValueError("an extent is damaged: it is another one")
    renewal.spans = []
    for number, row in enumerate(rows):
        stored = row.facts.stored
        if not extent.holes.gone >> number & 1:
            data = extents.checked(payload[row.begin : row.begin + row.size], row)
            found.append(nodeform.lean(row.facts, data, extent.holes.dead >> ordinal & (1 << stored) - 1))
            renewal.spans.append((number, ordinal, stored))
        ordinal += stored
    return extents.join(found)


def moves(
    space: Keyspace, written: Iterable[tuple[Renewal, tuple[int, int]]], pack: int
) -> Iterator[tuple[Renewal, Transition]]:
    """Yield the transitions that let new extents, each with its offset and length, take the place of the old ones.

    An extent that is not there any more is left out, and one of which more than a quarter has died meanwhile.
    """
    for renewal, place in written:
        db, key = renewal.place
        stream = renewal.stream()
        if stream is None or space.databases[db].keys.get(key) is not stream:
            continue
        found = _present(renewal, stream)
        if found is None or 4 * (renewal.extent.live - found[1].live) > renewal.extent.live:
            continue
        index, present = found
        fresh = _moved(renewal, present)._replace(pack=pack, offset=place[0], length=place[1])
        holes = [[0, *fresh.holes.pack()]] if fresh.holes != Holes() else []
        yield renewal, ("tmove", db, key, index, pack, fresh.row(), holes)


def _present(renewal: Renewal, stream: Stream) -> tuple[int, Extent] | None:
    """Return index and present form of an extent; None if it has gone. Others before it may have gone."""
    entries, old = stream.entries, renewal.extent
    index = index_of(entries, old.first)
    record = entries.cold_record(index, 1)
    if record is None:
        return None
    (found,) = unpack_extents(*record)
    return (index, found) if found[:2] == old[:2] else None


def _moved(renewal: Renewal, present: Extent) -> Extent:
    """The present form of an extent with the holes that it has in its new frame."""
    before = renewal.extent.holes
    died_since, gone_since = present.holes.dead & ~before.dead, present.holes.gone & ~before.gone
    dead = gone = ordinal = 0
    for number, (old, begin, stored) in enumerate(renewal.spans):
        dead |= (died_since >> begin & (1 << stored) - 1) << ordinal
        gone |= (gone_since >> old & 1) << number
        ordinal += stored
    return present._replace(nodes=len(renewal.spans), stored=ordinal, holes=Holes(dead, gone))
