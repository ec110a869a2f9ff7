"""A batch of nodes on their way to a pack: encoded copies, and later the extents that take the nodes' place.

PURE. The nodes stay hot while a thread writes their copies, and change meanwhile. :func:`settled` compares: nodes that
are gone become gone nodes of an extent, and entries that died become its holes. A copy of which more than a quarter
has died is given up, with all behind it: its bytes are waste, and the nodes stay hot.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from millstream.engine.cold import Extent, Holes, bits_of, extent_of
from millstream.engine.streams import extents, nodeform
from millstream.engine.streams.nodeform import NodeFigures
from millstream.engine.streams.nodes import Block
from millstream.engine.streams.stream import Stream
from millstream.node.tiering.policy import Leave, Place, leaving

SLICE = 1 << 20
"""Bytes that one turn of the loop copies at most."""
BATCH = 8 << 20
"""Bytes that are written and synced together."""
EXTENT = 256 << 10
"""Bytes of an extent of more than one node."""


class Joined:
    """The copies of neighbouring nodes, which become one extent. Its payload takes their bytes' place."""

    __slots__ = ("_held", "facts", "size", "sizes")

    def __init__(self) -> None:
        self.facts: list[NodeFigures] = []  # Figures of each node
        self.sizes: list[int] = []  # Bytes of each node
        self.size = 0  # Sum of these
        self._held: bytearray | memoryview = bytearray()

    def add(self, facts: NodeFigures, data: bytes) -> None:
        """Add a copy."""
        assert isinstance(self._held, bytearray), "nothing is added behind a payload"
        self.facts.append(facts)
        self.sizes.append(len(data))
        self.size += len(data)
        self._held += data

    def __iter__(self) -> Iterator[tuple[NodeFigures, memoryview]]:
        held, end = memoryview(self._held), 0
        for facts, size in zip(self.facts, self.sizes, strict=True):
            end += size
            yield facts, held[end - size : end]

    def payload(self) -> bytes:
        """Return the extent's payload, once for all copies."""
        made = extents.join(list(self))
        self._held = memoryview(made)[len(made) - self.size :]
        return made


@dataclass(slots=True, eq=False)
class Copies:
    """The copies of one stream's nodes, in order."""

    place: Place  # Database and key of the stream
    stream: Stream  # The stream that was there
    extents: list[Joined] = field(default_factory=list)  # Copies by extent
    nodes: int = 0  # Number of copies
    skipped: int = 0  # Nodes before them, which are being written
    is_stale: bool = False  # The stream's ids went back, so other nodes may have the same ids

    def gather(self, limit: Leave, room: int) -> int:
        """Copy the next nodes, up to about ``room`` bytes; return the number of bytes, 0 if nothing may go."""
        if self.nodes and not self._is_where_it_was():
            return 0
        size = 0
        for node in leaving(self.stream, limit, self.skipped + self.nodes):
            facts, data = nodeform.encode(node)
            if not self.extents or self.extents[-1].size + len(data) > EXTENT:
                self.extents.append(Joined())
            self.extents[-1].add(facts, data)
            self.nodes += 1
            size += len(data)
            if size >= room:
                break
        return size

    def _is_where_it_was(self) -> bool:
        """True if the node that was copied last still follows as many others."""
        for at, node in enumerate(self.stream.entries.hot_nodes(), 1):
            if at == self.skipped + self.nodes:
                return _is_of(node, self.extents[-1].facts[-1])
        return False


@dataclass(slots=True)
class Batch:
    """Parts that are written together."""

    parts: list[Copies] = field(default_factory=list)
    size: int = 0  # Bytes of all copies

    def payloads(self) -> list[bytes]:
        """Return the extents' payloads, in order."""
        return [joined.payload() for part in self.parts for joined in part.extents]


def _is_of(node: Block, facts: NodeFigures) -> bool:
    """True if a node is the one that was copied. Its ends prove that unless the ids of its stream went back."""
    same = (node.first, node.last, node.stored) == (facts.first, facts.last, facts.stored)
    return same and node.live <= facts.stored - facts.dead


def settled(part: Copies, pack: int, places: Iterator[tuple[int, int]]) -> list[Extent]:
    """Return the extents that may take the place of the stream's first nodes; ``places``: offset and size of each."""
    hot = part.stream.entries.hot_nodes()
    found: list[Extent] = []
    node = next(hot, None)
    is_over = part.is_stale
    for joined, place in zip(part.extents, places, strict=False):
        if is_over:
            continue  # the places of all extents must be taken
        left: list[Block] = []
        dead = gone = ordinal = 0
        for number, (facts, data) in enumerate(joined):
            if node is not None and _is_of(node, facts):
                dead |= _died(node, facts, data) << ordinal
                left.append(node)
                node = next(hot, None)
            else:
                gone |= 1 << number
            ordinal += facts.stored
        if not left:
            continue
        extent = extent_of(left, pack, *place)._replace(
            nodes=len(joined.facts), stored=ordinal, holes=Holes(dead, gone)
        )
        is_over = node is None or _is_waste(extent, joined.facts)
        if not is_over:
            found.append(extent)
    return found


def _died(node: Block, facts: NodeFigures, data: memoryview) -> int:
    """The positions of a node's entries that died since it was copied."""
    if node.live == facts.stored - facts.dead:
        return 0
    before = nodeform.decode(facts, bytes(data))[2]
    return bits_of(set(node.pack()[2]).difference(before))


def _is_waste(extent: Extent, copied_nodes: list[NodeFigures]) -> bool:
    copied = sum(facts.stored - facts.dead for facts in copied_nodes)
    return 4 * (copied - extent.live) > copied
