"""The distribution of a partitioned stream over partitions and cluster nodes, with slot moves that would balance it.

Moves are only suggestions. A slot moves as a whole, with all partitions that share the number, so a suggestion counts
the partitions of all generations. Other streams' partitions in the slot move too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.client.line import Line
from millstream.client.partitions.declared import find_layout
from millstream.client.partitions.layout import HIGHEST_ID
from millstream.client.slots import Slots, slot_of
from millstream.ops.asking import NotReadableError, calls, refusal
from millstream.ops.streams.reading import read

MOST_MOVES = 16


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """One partition with its figures."""

    key: str  # Key of the partition
    slot: int  # Its slot in a cluster
    node: str | None  # host:port; None without a cluster
    current: bool  # True if it accepts new entries
    sealed: bool = False  # True if no entry can follow its last id
    entries: int = 0  # Number of present entries
    added: int = 0  # Entries ever added; the present entries if the server does not count them
    lag: int = 0  # Upper bound of the largest lag of a group
    bytes: int | None = 0  # Memory in bytes; None if the server does not report it


@dataclass(frozen=True, slots=True)
class SlotMove:
    """A suggested move of a slot to another node."""

    slot: int  # The slot to move
    keys: tuple[str, ...]  # Partitions of this stream in it
    source: str  # The node of the slot now
    target: str  # The node to which it would move


@dataclass(frozen=True, slots=True)
class StreamBalance:
    """The load of a partitioned stream at one moment."""

    stream: str  # Its name
    partitions: tuple[PartitionLoad, ...]  # All current and existing earlier partitions
    nodes: Mapping[str, tuple[PartitionLoad, ...]]  # By host:port; empty without a cluster
    refused: Mapping[str, str]  # Key -> reason why it could not be read, in words

    @property
    def skew(self) -> float | None:
        """Entries ever added to the busiest current partition, divided by the mean; sealed ones do not count."""
        return skew(one.added for one in self.partitions if one.current)

    @property
    def node_skew(self) -> float | None:
        """Weight of the heaviest node divided by the mean weight."""
        return skew(sum(map(self.weight, there)) for there in self.nodes.values())

    def weight(self, one: PartitionLoad) -> int:
        """Return the load of a partition for a node: its memory, or its entries if any memory is unknown."""
        known = all(each.bytes is not None for each in self.partitions)
        return (one.bytes or 0) if known else one.entries

    def moves(self) -> list[SlotMove]:
        """Return moves from the heaviest node to the lightest, while a move reduces the larger load."""
        there = {node: _by_slot(held) for node, held in self.nodes.items()}
        weights = {slot: sum(map(self.weight, held)) for slots in there.values() for slot, held in slots.items()}
        found: list[SlotMove] = []
        while len(there) > 1 and len(found) < MOST_MOVES:
            loads = {node: sum(weights[slot] for slot in slots) for node, slots in there.items()}
            source, target = max(loads, key=lambda node: loads[node]), min(loads, key=lambda node: loads[node])
            gap = loads[source] - loads[target]
            fitting = [slot for slot in there[source] if 0 < weights[slot] < gap]
            if not fitting:
                break
            # The slot nearest to half of the gap evens the two best.
            slot = min(fitting, key=lambda one: (abs(gap - 2 * weights[one]), one))
            there[target][slot] = there[source].pop(slot)
            found.append(SlotMove(slot, tuple(one.key for one in there[target][slot]), source, target))
        return found


def skew(loads: Iterable[int]) -> float | None:
    """Return the largest load divided by the mean; None if all are 0."""
    known = list(loads)
    total = sum(known)
    return round(max(known) * len(known) / total, 2) if total else None


def _by_slot(partitions: Sequence[PartitionLoad]) -> dict[int, list[PartitionLoad]]:
    found: dict[int, list[PartitionLoad]] = {}
    for one in partitions:
        found.setdefault(one.slot, []).append(one)
    return found


async def read_balance(line: Line, stream: str) -> StreamBalance:
    """Read the load of a stream's partitions, in few round trips."""
    layout = await find_layout(line, stream)
    if layout is None:
        raise NotReadableError(
            f"{stream!r} is not partitioned, or this user may not read its layout: `millstream stream show` shows a "
            "plain stream"
        )
    nodes = await line.nodes()
    (rows,) = await calls(nodes[0], [("CLUSTER", "SLOTS")])
    slots = Slots() if refusal(rows) is not None else Slots.of_reply(rows, ("", 0))
    keys = layout.every_key
    seen = await read(line, keys, ages=False)
    sizes = dict(zip(keys, await calls(line, [("MEMORY", "USAGE", key) for key in keys]), strict=True))
    known = {one.key: one for one in seen.streams}
    found = []
    for key in keys:
        where = slots.nodes(key)
        load = PartitionLoad(key, slot_of(key), _name(where[0]) if where else None, key in layout.keys)
        if (one := known.get(key)) is not None:
            lag, size = one.worst_lag, sizes[key]
            added = one.length if one.entries_added is None else one.entries_added
            load = replace(load, sealed=one.last_id == HIGHEST_ID, entries=one.length, added=added)
            load = replace(load, lag=0 if lag is None else lag.worst, bytes=size if isinstance(size, int) else None)
        elif not load.current and key in seen.refused:
            continue
        found.append(load)
    by_node = {_name(node): tuple(one for one in found if one.node == _name(node)) for node in slots.primaries}
    refused = {key: why for key, why in seen.refused.items() if not why.startswith("there is no stream")}
    return StreamBalance(stream, tuple(found), by_node, refused)


def _name(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
