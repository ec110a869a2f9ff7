"""Streams of Redis's five types, each of which extends the one before. PURE.

* 15 (Redis 5) does not have counters, so the number added is the number of entries.
* 19 (7.0) has the first id, the largest deleted one, the number added, and the groups' counts.
* 21 (7.2) has consumers' active times.
* 26 (8.6) has producers and their messages.
* 27 (8.8) has the released records of each group, in their order.

An attribute that a type does not have gets the value that Redis gives it in loading.
"""

from millstream.engine.ids import MAX64
from millstream.engine.serialization.dump import add_group, make_stream
from millstream.engine.serialization.plain import MalformedError, number
from millstream.engine.serialization.rdb.bulk import assign_pending, read_listpacks
from millstream.engine.serialization.rdb.pieces import ids, pending, string
from millstream.engine.serialization.rdb.sizes import Payload
from millstream.engine.streams.group import UNKNOWN
from millstream.engine.streams.pending import MAX_DELIVERIES
from millstream.engine.streams.stream import Stream

# Type numbers, named after the feature that each added.
_FIRST, COUNTERS, ACTIVE_TIMES, PRODUCERS, RELEASED = STREAM_TYPES = (15, 19, 21, 26, 27)

# Redis's limits for the two settings of a stream's idempotent producers
_MOST_SECONDS, _MOST_MESSAGES = 86400, 10000
# Bytes of a record: an id, a time, a count
_RECORD = 32


def read_stream(source: Payload, kind: int, idmp_duration: int, idmp_maxsize: int) -> Stream:
    """Read the stream that begins here."""
    entries = read_listpacks((string(source), string(source)) for _ in range(source.size()))
    length = source.size()
    last = source.entry_id()
    max_deleted, added = 0, length
    if kind >= COUNTERS:
        source.entry_id()  # id of the first entry, which the entries also contain
        max_deleted, added = source.entry_id(), source.size()
    # The length may be forged by a hostile client, so compare it with the counted entries
    if length != entries.length:
        raise MalformedError("not as many entries as it says")
    max_deleted = min(max_deleted, last)  # in Redis up to 7.0, XSETID can lower the last id below a deleted one
    stream = make_stream([last, max_deleted, added, [idmp_duration, idmp_maxsize, 0, 0, []]], entries)
    for _ in range(source.size()):
        _read_group(source, kind, stream)
    if kind >= PRODUCERS:
        _read_producers(source, stream)
    return stream


def _read_group(source: Payload, kind: int, stream: Stream) -> None:
    """Read the stream's next group.

    Records are stored twice: in the group with time and count, then in each consumer by id alone. Both must name the
    same ids, except released ones, which no consumer has.
    """
    name, last = string(source), source.entry_id()
    read = None if kind < COUNTERS else source.size()
    # The file stores -1 as an unsigned 64-bit number
    if read is not None and read == MAX64:
        read = UNKNOWN
    records = pending(source, source.size())
    consumers, owned = [], []
    for _ in range(source.size()):
        consumer, seen = string(source), source.little(8, signed=True)
        # Redis 7.0 has a single time per consumer; loading uses it for both
        active = source.little(8, signed=True) if kind >= ACTIVE_TIMES else seen
        consumers.append([consumer, seen, active])
        owned.append(ids(source, source.size()))
    group, holders = add_group(stream, [name, last, read, consumers])
    zone = ids(source, source.size()) if kind >= RELEASED else b""
    records, released = _apart(records, zone)
    assign_pending(group, records, list(zip(holders, owned, strict=True)))
    # In the zone's order, which release() preserves because it appends
    for entry_id, count in released.items():
        group.release(
            int.from_bytes(entry_id, "big"), number(count, MAX_DELIVERIES)
        )  # -1: the group lacks such a record


def _apart(records: bytes, zone: bytes) -> tuple[bytes, dict[bytes, int]]:
    """Return the records that consumers own, and the ids of the zone in its order, with their counts."""
    wanted = dict.fromkeys((zone[at : at + 16] for at in range(0, len(zone), 16)), -1)
    if not wanted:
        return records, {}
    kept = []
    for at in range(0, len(records), _RECORD):
        entry_id = records[at : at + 16]
        # -1 marks an id of the zone whose record was not found yet
        if wanted.get(entry_id) == -1:
            wanted[entry_id] = int.from_bytes(records[at + 24 : at + _RECORD], "little")
        else:
            kept.append(records[at : at + _RECORD])
    if len(wanted) != len(zone) // 16:
        raise MalformedError("one entry released twice")
    return b"".join(kept), wanted


def _read_producers(source: Payload, stream: Stream) -> None:
    """Read the stream's producers. A producer without messages is left out, as in Redis."""
    memory = stream.idempotence
    memory.duration = number(source.size(), _MOST_SECONDS, lowest=1)
    memory.maxsize = number(source.size(), _MOST_MESSAGES, lowest=1)
    for _ in range(source.size()):
        producer, messages = string(source), _messages(source)
        if not messages:
            continue
        if producer in memory.producers or len(messages) > memory.maxsize:
            raise MalformedError("one producer twice, or more messages than are remembered")
        memory.fill(producer, messages)
    memory.added, memory.duplicates = (number(source.size(), MAX_DELIVERIES) for _ in range(2))


def _messages(source: Payload) -> dict[bytes, int]:
    """Read messages and their entries' ids, oldest first; of a repeated message the first counts."""
    found: dict[bytes, int] = {}
    for _ in range(source.size()):
        message = string(source)
        found.setdefault(message, source.entry_id())
    return found
