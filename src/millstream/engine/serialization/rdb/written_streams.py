"""A stream in the form of an RDB file, in one of three types. PURE.

Older types have less. Those below 21 do not have consumers' active times, those below 26 no producers. Those below 27
do not have released records. Such records then belong to a consumer with an empty name, delivered at 0, so that any
claim takes them.

Two adjustments are made, since newer servers refuse the file otherwise. A group's count of read entries is at most the
number added; nodes without a live entry are left out.
"""

from collections.abc import Iterable, Iterator

from millstream.engine.ids import MAX64
from millstream.engine.serialization.rdb.streams import ACTIVE_TIMES, COUNTERS, PRODUCERS, RELEASED
from millstream.engine.streams.group import UNKNOWN, Group
from millstream.engine.streams.idempotence import Idempotence
from millstream.engine.streams.pending import Pending
from millstream.engine.streams.stream import Stream

# Type in which streams are written, by the version of the file.
STREAM_TYPE = {10: COUNTERS, 11: ACTIVE_TIMES, 12: ACTIVE_TIMES, 13: PRODUCERS, 14: RELEASED}


def pack_size(number: int) -> bytes:
    """Return an unsigned 64-bit number in 1, 2, 5 or 9 bytes."""
    if number < 1 << 6:
        return bytes([number])
    if number < 1 << 14:
        return (1 << 14 | number).to_bytes(2, "big")
    if number < 1 << 32:
        return b"\x80" + number.to_bytes(4, "big")
    return b"\x81" + number.to_bytes(8, "big")


def pack_string(data: bytes) -> bytes:
    """Return bytes with their size before them."""
    return pack_size(len(data)) + data


def _pack_id(entry_id: int) -> bytes:
    return pack_size(entry_id >> 64) + pack_size(entry_id & MAX64)


def _time(wall: int) -> bytes:
    return wall.to_bytes(8, "little", signed=True)


def stream_pieces(stream: Stream, kind: int) -> Iterator[bytes]:
    """Yield the bytes of a stream, which follow its key."""
    # Redis has no nodes without live entries: deleting the last one deletes the node
    nodes = [node for node in stream.entries.nodes() if node.live]
    yield pack_size(len(nodes))
    for node in nodes:
        yield pack_string(node.first.to_bytes(16, "big")) + pack_string(node.listpack())
    yield pack_size(stream.length)
    for each in (stream.last_id, stream.first_id, stream.max_deleted):
        yield _pack_id(each)
    yield pack_size(stream.entries_added)
    yield pack_size(len(stream.groups))
    # Sorted like Redis's radix tree: equal streams have equal bytes
    for name in sorted(stream.groups):
        yield from _group(name, stream.groups[name], stream.entries_added, kind)
    if kind >= PRODUCERS:
        yield from _producers(stream.idempotence)


def _group(name: bytes, group: Group, added: int, kind: int) -> Iterator[bytes]:
    # As a signed number this is -1, which means unknown in Redis
    read = MAX64 if group.entries_read == UNKNOWN else min(group.entries_read, added)
    yield pack_string(name) + _pack_id(group.last_id) + pack_size(read)
    yield pack_size(len(group.pending))
    for record in group.pending.walk():
        yield _packed(record) + _time(record.time) + pack_size(record.count)
    # In older formats, each record needs an owner
    zone = _released(group)
    if kind < RELEASED:
        yield from _consumers(group, kind, zone)
    else:
        yield from _consumers(group, kind, [])
        yield pack_size(len(zone)) + b"".join(zone)


def _released(group: Group) -> list[bytes]:
    """Ids of the released records, in the order of the zone."""
    found = []
    for record in group.order:
        # Released records come first in time order
        if record.consumer is not None:
            break
        found.append(_packed(record))
    return found


def _consumers(group: Group, kind: int, homeless: list[bytes]) -> Iterator[bytes]:
    """Yield the consumers with the ids of their records; released ones go to the consumer with an empty name."""
    times = {name: (each.seen, each.active) for name, each in group.consumers.items()}
    if homeless:
        # A consumer with an empty name may exist and keeps its times
        times.setdefault(b"", (0, -1))
    yield pack_size(len(times))
    for name in sorted(times):
        consumer = group.consumers.get(name)
        count = 0 if consumer is None else len(consumer.pending)
        held: Iterable[bytes] = [] if consumer is None else map(_packed, consumer.pending.walk())
        if not name:
            count, held = count + len(homeless), sorted([*held, *homeless])  # a consumer's records are sorted by id
        seen, active = times[name]
        yield pack_string(name) + _time(seen) + (_time(active) if kind >= ACTIVE_TIMES else b"")
        yield pack_size(count)
        yield from held


def _packed(record: Pending) -> bytes:
    return record.id.to_bytes(16, "big")


def _producers(memory: Idempotence) -> Iterator[bytes]:
    yield pack_size(memory.duration) + pack_size(memory.maxsize) + pack_size(len(memory.producers))
    for name in sorted(memory.producers):
        messages = memory.producers[name]
        yield pack_string(name) + pack_size(len(messages))
        for message, entry_id in messages.items():
            yield pack_string(message) + _pack_id(entry_id)
    yield pack_size(memory.added) + pack_size(memory.duplicates)
