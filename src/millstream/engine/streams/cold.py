"""The cold part of a stream's entries in Python: all that reads extents, and all that changes them.

PURE. :mod:`millstream.engine.cold` has the values and the interface. A node that is read has the bytes that the hot one
had, but for the tombstones. Holes become tombstones when a node is read, so nobody else knows of holes.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from millstream.engine.cold import (
    AHEAD_COUNT,
    AHEAD_MAX,
    ASKED_MAX,
    FRAME_HEAD,
    ColdDamage,
    ColdMiss,
    ColdReads,
    Extent,
    Holes,
    Places,
    Range,
    bits_of,
    numbers_of,
    pack_bits,
    unpack_bits,
)
from millstream.engine.ids import MAX_ID, pack_all, unpack_all
from millstream.engine.streams import extents as forms
from millstream.engine.streams import listpack
from millstream.engine.streams.extents import NodeRow
from millstream.engine.streams.nodes import Block

# Bytes that the first read of a table takes: nearly all tables fit
_TABLE_READ = 4096


class ColdNode:
    """One cold node as the table of its extent and the holes say; its bytes are read when they are needed."""

    __slots__ = ("_block", "_cold", "_holes", "extent", "live", "number", "ordinal", "row")

    def __init__(self, cold: "PyCold", extent: Extent, number: int, ordinal: int, row: NodeRow) -> None:
        self._cold = cold
        self.extent, self.number, self.row = extent, number, row
        self.ordinal = ordinal  # Ordinal of the node's first entry
        stored = row.facts.stored
        self._holes = extent.holes.dead >> ordinal & ((1 << stored) - 1)
        self.live = stored - row.facts.dead - self._holes.bit_count()  # Number of live entries
        self._block: Block | None = None

    @property
    def first(self) -> int:
        """The lowest id ever stored in the node."""
        return self.row.facts.first

    @property
    def last(self) -> int:
        """The highest id ever stored in the node."""
        return self.row.facts.last

    @property
    def stored(self) -> int:
        """The number of stored entries, tombstones included."""
        return self.row.facts.stored

    @property
    def size(self) -> int:
        """Size that the node's listpack would have, in bytes."""
        return self.row.facts.payload + listpack.integer(self.live) + listpack.integer(self.stored - self.live)

    @property
    def footprint(self) -> int:
        """Size of the node in its pack, in bytes."""
        return self.row.size

    @property
    def first_live(self) -> int:
        """The lowest live id; 0 if there is none."""
        return self._live_ends()[0]

    @property
    def last_live(self) -> int:
        """The highest live id; 0 if there is none."""
        return self._live_ends()[1]

    def _live_ends(self) -> tuple[int, int]:
        if not self.live:
            return 0, 0
        if not self._holes:
            return self.row.facts.first_live, self.row.facts.last_live
        block = self.block()
        return block.ids[block.low], block.ids[block.high - 1]

    def may_have(self, start: int, end: int) -> bool:
        """True if a live entry may lie between two ids, as far as is known without the node's bytes."""
        facts = self.row.facts
        return self.live > 0 and facts.first_live <= end and facts.last_live >= start

    def block(self) -> Block:
        """The node, with the holes as tombstones."""
        if self._block is None:
            packed = self._cold.decoded(self.extent, self.row)
            self._block = Block.unpack(packed, None)
            for position in numbers_of(self._holes):
                self._block.remove(position)
        return self._block

    def live_ids(self) -> list[int]:
        """Ids of the live entries, ascending."""
        return self.block().live_ids()

    def entries(self) -> Iterator[tuple[int, bool, list[bytes]]]:
        """Every stored entry: its id, a flag for a tombstone, its fields and values in turn."""
        return self.block().entries()

    def pack(self) -> list[Any]:
        """The node as plain values for a snapshot."""
        return self.block().pack()

    def listpack(self) -> bytes:
        """The listpack that Redis would have for this node."""
        return self.block().listpack()


class PyCold:
    """The cold part of one store: its extents, and all that reads them."""

    __slots__ = ("_rows", "_rows_of", "extents", "live", "nodes", "reads", "taken")

    def __init__(self, reads: ColdReads) -> None:
        self.reads = reads
        self.extents: list[Extent] = []  # oldest first
        self.live = 0  # Live entries of all extents
        self.nodes = 0  # Nodes of all extents
        self.taken = 0  # Memory in bytes, as counted with each change
        # The table that was read last, since commands stay within an extent, and its place
        self._rows: list[tuple[int, NodeRow]] = []
        self._rows_of = (-1, -1)

    def copy(self) -> "PyCold":
        """An independent copy; it reads the same packs."""
        twin = PyCold(self.reads)
        twin.extents, twin.live, twin.nodes = self.extents.copy(), self.live, self.nodes
        twin.taken = self.taken
        return twin

    @property
    def footprint(self) -> int:
        """Memory in bytes, computed from scratch."""
        return sum(extent.footprint for extent in self.extents)

    @property
    def last(self) -> int:
        """The last stored id; -1 without an extent."""
        return self.extents[-1].last if self.extents else -1

    @property
    def first_live(self) -> int:
        """The first live id; 0 if there is none."""
        return next((extent.first_live for extent in self.extents if extent.live), 0)

    @property
    def last_live(self) -> int:
        """The last live id; 0 if there is none."""
        return next((extent.last_live for extent in reversed(self.extents) if extent.live), 0)

    # ------------------------------------------------------------------ reading

    def _read(self, extent: Extent, at: int, length: int, *ends: int) -> bytes:
        """Return a part of an extent's payload; ``ends`` are the first and last id that damage of it concerns."""
        try:
            data = self.reads.read(extent.pack, extent.offset + FRAME_HEAD + at, length)
        except OSError as error:
            raise ColdDamage(extent, f"the disk reports: {error.strerror or error}", self.reads, *ends) from error
        if len(data) != length:
            raise ColdDamage(extent, "the file ends there", self.reads, *ends)
        return data

    def _table(self, extent: Extent) -> list[tuple[int, NodeRow]]:
        """Return each node's first ordinal and row, of the whole frame."""
        if self._rows_of == extent[:2]:
            return self._rows
        size = extent.length - FRAME_HEAD
        data = self._read(extent, 0, min(size, _TABLE_READ))
        try:
            needed = forms.table_end(data, size)
            if needed > len(data):
                data += self._read(extent, len(data), needed - len(data))
            rows = forms.table_rows(data[:needed], size)
        except ValueError as error:
            raise ColdDamage(extent, str(error), self.reads) from error
        found, ordinal = [], 0
        for row in rows:
            found.append((ordinal, row))
            ordinal += row.facts.stored
        if (len(found), ordinal) != (extent.nodes, extent.stored):
            raise ColdDamage(extent, "an extent is damaged: it is another one", self.reads)
        self._rows, self._rows_of = found, extent[:2]
        return found

    def nodes_of(self, extent: Extent) -> list[ColdNode]:
        """The nodes that are left of an extent."""
        gone = extent.holes.gone
        return [
            ColdNode(self, extent, number, ordinal, row)
            for number, (ordinal, row) in enumerate(self._table(extent))
            if not gone >> number & 1
        ]

    def decoded(self, extent: Extent, row: NodeRow) -> list[Any]:
        """A node in the form that both cores unpack."""
        ends = row.facts.first, row.facts.last
        data = self._read(extent, row.begin, row.size, *ends)
        try:
            return forms.decode(data, row)
        except ValueError as error:
            raise ColdDamage(extent, str(error), self.reads, *ends) from error

    def every(self, skipped: int = 0) -> Iterator[ColdNode]:
        """All nodes but those of the first ``skipped`` extents."""
        for extent in self.extents[skipped:]:
            yield from self.nodes_of(extent)

    def between(self, start: int, end: int, *, backwards: bool = False) -> Iterator[ColdNode]:
        """Nodes with live entries that may lie between two ids."""
        for extent in self._extents_between(start, end, backwards=backwards):
            nodes = self.nodes_of(extent)
            for node in reversed(nodes) if backwards else nodes:
                if node.may_have(start, end):
                    yield node

    def _extents_between(self, start: int, end: int, *, backwards: bool = False) -> Iterator[Extent]:
        low = max(self._index(start), 0)
        high = self._index(end) + 1
        run = range(high - 1, low - 1, -1) if backwards else range(low, high)
        found = (self.extents[at] for at in run)
        return (extent for extent in found if extent.live and extent.first_live <= end and extent.last_live >= start)

    def _index(self, entry_id: int) -> int:
        """The index of the last extent that begins at or before an id; -1 if there is none."""
        return bisect_right(self.extents, entry_id, key=lambda extent: extent.first) - 1

    def find(self, entry_id: int) -> tuple[ColdNode, int] | None:
        """Return the node of a live entry, and the position there."""
        node = self._node_with(entry_id)
        if node is None:
            return None
        block = node.block()
        position = block.left(entry_id)
        if position == len(block.ids) or block.ids[position] != entry_id or position in block.dead:
            return None
        return node, position

    def _node_with(self, entry_id: int) -> ColdNode | None:
        """The node that may have a live entry."""
        at = self._index(entry_id)
        if at < 0:
            return None
        extent = self.extents[at]
        if not extent.live or not extent.first_live <= entry_id <= extent.last_live:
            return None
        nodes = self.nodes_of(extent)
        place = bisect_right(nodes, entry_id, key=lambda node: node.first) - 1
        return nodes[place] if place >= 0 and nodes[place].may_have(entry_id, entry_id) else None

    def want_range(self, start: int, end: int, count: int = -1, *, backwards: bool = False) -> None:
        """Raise one miss for what reading a range needs, up to a size."""
        if self.reads.may_wait:
            return
        missed: list[Range] = []
        ahead: list[Range] = []
        left = self.live if count < 0 else count
        between = self._extents_between(start, end, backwards=backwards)
        for extent in between:
            try:
                left -= self._want_part(extent, start, end, left, missed, backwards=backwards)
            except ColdDamage:  # for the reader, once it has all before it
                left = 0
            if missed:
                ahead.append(extent[:3])
            if left <= 0 or sum(length for _, _, length in missed) >= ASKED_MAX:
                break
        if not missed:
            return
        for extent in between:
            if len(ahead) >= AHEAD_COUNT or sum(length for _, _, length in ahead) >= AHEAD_MAX:
                break
            ahead.append(extent[:3])
        raise ColdMiss(missed, ahead)

    def weight(self, start: int, end: int) -> int:
        """Return the least size in bytes of the live entries of the extents that lie whole between two ids."""
        low = max(self._index(start), 0)
        return sum(
            extent.length * extent.live // max(extent.stored, 1)  # a forged record may say 0
            for extent in self.extents[low : self._index(end) + 1]
            if extent.first >= start and extent.last <= end
        )

    def _want_part(
        self, extent: Extent, start: int, end: int, left: int, missed: list[Range], *, backwards: bool
    ) -> int:
        """Add what a range needs of one extent; return the number of live entries there, as far as it is known."""
        inside = start <= extent.first_live and extent.last_live <= end
        if inside and extent.live <= left:
            try:
                self._read(extent, 0, extent.length - FRAME_HEAD)
            except ColdMiss as miss:
                missed += miss.ranges
            return extent.live
        found = 0
        try:
            nodes = self.nodes_of(extent)
        except ColdMiss as miss:
            missed += miss.ranges
            return left
        for node in reversed(nodes) if backwards else nodes:
            if found < left and node.may_have(start, end):
                found += node.live if start <= node.first and node.last <= end else 0
                try:
                    self._read(extent, node.row.begin, node.row.size)
                except ColdMiss as miss:
                    missed += miss.ranges
        return found

    # ------------------------------------------------------------------ plans

    def plan_delete(self, ids: list[int], floor: int | None = None) -> Places:
        """Plan the deletion of existing entries; with ``floor`` emptied nodes stay, except those below it."""
        dead: dict[int, int] = {}  # by index of the extent
        touched: dict[int, set[int]] = {}
        for entry_id in ids:
            found = self.find(entry_id)
            if found is None:
                raise ValueError("an entry to delete that is not there")
            node, position = found
            at = self._index(entry_id)
            dead[at] = dead.get(at, 0) | 1 << node.ordinal + position
            touched.setdefault(at, set()).add(node.number)
        if floor is not None:
            below = {at for at, extent in enumerate(self.extents) if extent.first < floor}
            plans = [self._plan(at, dead.get(at, 0), None, floor) for at in sorted(below | dead.keys())]
        else:
            plans = [self._plan(at, bits, touched[at], MAX_ID + 1) for at, bits in sorted(dead.items())]
        return [plan for plan in plans if plan is not None]

    def _plan(self, at: int, dead: int, numbers: set[int] | None, floor: int) -> list[Any] | None:
        """Plan deaths in an extent, and that emptied nodes (of these numbers) that end below ``floor`` go."""
        extent = self.extents[at]
        punched = extent._replace(holes=Holes(extent.holes.dead | dead, extent.holes.gone))
        gone = bits_of(
            node.number
            for node in self.nodes_of(punched)
            if not node.live and node.last < floor and (numbers is None or node.number in numbers)
        )
        return self._place(at, dead, gone)

    def _place(self, at: int, dead: int, gone: int) -> list[Any] | None:
        """Return the item of a plan for one extent; None if nothing changes there."""
        if not dead and not gone:
            return None
        extent = self.extents[at]
        holes = Holes(extent.holes.dead | dead, extent.holes.gone | gone)
        nodes = self.nodes_of(extent._replace(holes=holes))
        with_live = [node for node in nodes if node.live]
        ends = [nodes[0].first, nodes[-1].last] if nodes else [0, 0]
        ends += [with_live[0].first_live, with_live[-1].last_live] if with_live else [0, 0]
        for number, (ordinal, row) in enumerate(self._table(extent)):
            if gone >> number & 1:  # it takes its entries along, so they need not be named
                dead &= ~((1 << row.facts.stored) - 1 << ordinal)
        live = sum(node.live for node in nodes)
        return [at, live, pack_bits(dead), pack_bits(gone), pack_all(ends)]

    def plan_cut(self, bound: int) -> Places:
        """Plan the trimming of the extent that holds a bound."""
        at = next((at for at, extent in enumerate(self.extents) if extent.last >= bound), None)
        if at is None or self.extents[at].first >= bound:
            return []
        nodes = self.nodes_of(self.extents[at])
        gone = bits_of(node.number for node in nodes if node.last < bound)
        node = next(node for node in nodes if node.last >= bound)
        dead = 0
        if node.may_have(0, bound - 1):
            block = node.block()
            positions = range(block.low, block.left(bound))
            dead = bits_of(node.ordinal + each for each in positions if each not in block.dead)
        place = self._place(at, dead, gone)
        return [] if place is None else [place]

    def plan_loss(self, at: int, gone: int) -> list[Any]:
        """Plan that nodes of an extent go, at least one of which is left, and at least one goes."""
        place = self._place(at, 0, gone)
        assert place is not None, "a node goes"
        return place

    def plan_warm(self) -> tuple[list[Any], Places]:
        """Plan to make the last node hot."""
        at = len(self.extents) - 1
        node = self.nodes_of(self.extents[at])[-1]
        packed = node.pack()
        place = self._place(at, 0, 1 << node.number)
        assert place is not None
        return packed, [place]

    # ------------------------------------------------------------------ changes, which read nothing

    def add(self, extents: list[Extent]) -> None:
        """Add extents behind the others."""
        before = self.last
        for extent in extents:
            if extent.first < before or not extent.is_sound:
                raise ValueError("extents out of order")
            before = extent.last
        self.extents += extents
        self.taken += sum(extent.footprint for extent in extents)
        self.live += sum(extent.live for extent in extents)
        self.nodes += sum(extent.left for extent in extents)

    def punch(self, places: Places) -> int:
        """Apply a plan; return the number of entries that died."""
        removed = 0
        for at, live, dead, gone, ends in reversed(places):  # so that the remaining indexes stay valid
            old = self.extents[at]
            more = Holes(old.holes.dead | unpack_bits(dead), old.holes.gone | unpack_bits(gone))
            first, last, first_live, last_live = unpack_all(ends)
            new = old._replace(
                live=live, first=first, last=last, first_live=first_live, last_live=last_live, holes=more
            )
            if not 0 <= live <= old.live or new.left < 0:
                raise ValueError("an extent with fewer entries than die")
            removed += old.live - live
            self.nodes -= old.left - new.left
            self.taken += (new.footprint if new.left else 0) - old.footprint
            self.extents[at : at + 1] = [new] if new.left else []
        self.live -= removed
        return removed

    def forget_below(self, bound: int) -> int:
        """Drop the extents that end below a bound; return the number of live entries in them."""
        whole = next((at for at, extent in enumerate(self.extents) if extent.last >= bound), len(self.extents))
        gone = self.extents[:whole]
        del self.extents[:whole]
        removed = sum(extent.live for extent in gone)
        self.live -= removed
        self.nodes -= sum(extent.left for extent in gone)
        self.taken -= sum(extent.footprint for extent in gone)
        return removed

    def replace(self, index: int, extent: Extent) -> None:
        """Put an extent at another place of the packs."""
        if not extent.is_sound:
            raise ValueError("extents out of order")
        extent.expect_same_entries(self.extents[index])
        self.taken += extent.footprint - self.extents[index].footprint
        self.extents[index] = extent
