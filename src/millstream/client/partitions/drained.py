"""The order of generations: a partition is read once the partitions with earlier entries of its keys are drained.

A partition is drained for a group when its last id shows that it is sealed, the group got all its entries, and
nothing is pending. The descriptor is not enough: it is written before the streams are sealed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from redis.exceptions import ResponseError

from millstream.client.line import Line, Reply
from millstream.client.partitions.layout import HIGHEST_ID, PartitionLayout
from millstream.client.ranges import order_of


@dataclass(frozen=True, slots=True)
class PartState:
    """The state of a stream at one time."""

    last_id: str = ""  # Last id of the stream; empty if the stream does not exist
    length: int = 0  # Number of its entries
    last_entry: bytes = b"0-0"  # Id of the newest existing entry
    highest_deleted: bytes = b"0-0"  # Highest id that was deleted
    # For each group: id of the last delivered entry, and number of pending entries
    groups: Mapping[str, tuple[bytes, int]] | None = None

    @property
    def sealed(self) -> bool:
        """True if no entry can be added."""
        return self.last_id == HIGHEST_ID

    def busy(self, group: str) -> bool:
        """Return True if the group may still get entries, or has entries left to handle."""
        delivered, pending = (self.groups or {}).get(group, (self.last_entry, 0))
        return bool(self.last_id) and (
            not self.sealed or pending > 0 or order_of(self.last_entry) > order_of(delivered)
        )


async def look_at(line: Line, keys: Iterable[str]) -> dict[str, PartState]:
    """Return the present state of streams."""
    keys = list(keys)
    # STREAM comes first: a sealed stream gets no entries, so the two replies agree
    replies = await line.calls([("XINFO", about, key) for key in keys for about in ("STREAM", "GROUPS")])
    return {key: _state(*replies[at * 2 : at * 2 + 2]) for at, key in enumerate(keys)}


def _state(stream: Reply, groups: Reply) -> PartState:
    for reply in (stream, groups):
        if isinstance(reply, ResponseError) and "no such key" in str(reply):
            return PartState()
        if isinstance(reply, Exception):
            raise reply
    facts = _facts(stream)
    last, found = facts[b"last-entry"], {}
    for row in map(_facts, groups):
        name = row[b"name"].decode(errors="surrogateescape")
        found[name] = (row[b"last-delivered-id"], row[b"pending"])
    last_entry = last[0] if last else b"0-0"
    deleted = facts.get(b"max-deleted-entry-id", b"0-0")
    return PartState(facts[b"last-generated-id"].decode(), facts[b"length"], last_entry, deleted, found)


def _facts(row: Reply) -> dict[bytes, Reply]:
    return dict(zip(row[::2], row[1::2], strict=True))


async def to_read(line: Line, layout: PartitionLayout, group: str) -> dict[int, str]:
    """Return the partitions that a group's owners are to read now, by their numbers."""
    numbered = layout.numbered
    done = {key: True for one in layout.generations if one.finished for key in one.keys}
    old = [key for one in layout.generations[:-1] for key in one.keys if key not in done]
    found = await look_at(line, old) if old else {}
    done |= {key: not state.busy(group) for key, state in found.items()}
    open_: set[str] = set()
    for at in range(len(layout.generations)):
        for key, parents in layout.parents(at):
            ready = all(done[one] for one in parents)
            if ready and not done.get(key, False):
                open_.add(key)
            # An empty sealed partition also waits for its parents
            done[key] = ready and done.get(key, False)
    return {number: key for number, key in numbered.items() if key in open_}
