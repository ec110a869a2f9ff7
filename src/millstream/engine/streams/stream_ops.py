"""The transitions of streams: every way a stream can change, with all ids, times and counts resolved.

PURE. Ids are 16 bytes each (:func:`millstream.engine.ids.pack`), so that they fit any log. The names are the log's own
format: never change the meaning of one; add another. An argument with a default was added later: earlier records are
without it, and must keep their meaning. The last argument of some is what a command found in packs: ``places``, a plan
of :mod:`millstream.engine.cold`, or ids. Only changes of streams with cold entries have it.

A name ``x...`` is for a change of the stream, ``g...`` of a group, ``c...`` of a consumer. An applier trusts its
arguments, see :meth:`millstream.engine.keyspace.Keyspace.apply`.
"""

from typing import Any

from millstream.engine.cold import Places
from millstream.engine.ids import MAX_ID, PackedId, pack_all, unpack, unpack_all
from millstream.engine.keyspace import Keyspace, transition
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.group import Group, next_count
from millstream.engine.streams.stream import LLONG_MAX, Stream


def stream_in(space: Keyspace, db: int, key: bytes) -> Stream:
    """Return the stream at a key; a transition requires it to exist."""
    value = space.databases[db].keys[key]
    assert isinstance(value, Stream)
    return value


def group_in(space: Keyspace, db: int, key: bytes, group: bytes) -> Group:
    """Return a group of a stream; a transition requires it to exist."""
    return stream_in(space, db, key).groups[group]


@transition("xnew", counts=True)
def _new(space: Keyspace, db: int, key: bytes, idmp_duration: int, idmp_maxsize: int) -> Stream:
    """Make an empty stream at a new key."""
    stream = space.databases[db].keys[key] = Stream(idmp_duration, idmp_maxsize)
    return stream


@transition("xadd")
def _add(
    space: Keyspace, db: int, key: bytes, entry_id: PackedId, fields: list[bytes], fresh: bool, idmp: list[bytes] | None
) -> None:
    """Add an entry; ``fresh`` opens a new node, ``idmp`` is [producer, message] to record."""
    stream = stream_in(space, db, key)
    number = unpack(entry_id)
    # Checked although appliers trust their arguments: a damaged log must cause an error, not entries out of order
    if number <= stream.last_id:
        raise ValueError("an id that is not above the last")
    if not fields or len(fields) % 2:
        raise ValueError("fields without values")
    stream.add(number, fields, fresh=fresh)
    if idmp is not None:
        space.databases[db].used += stream.idempotence.remember(idmp[0], idmp[1], number)


@transition("xtrim")
def _trim(
    space: Keyspace,
    db: int,
    key: bytes,
    bound: PackedId | None,
    unref: bool,
    keep: bool = False,
    places: list[Any] | None = None,
) -> int:
    """Remove all entries below ``bound`` (None: all), with their records in every group if ``unref``.

    With ``keep``, the node that contains the bound stays even without a live entry. The oldest logs do not have
    ``keep``.
    """
    stream = stream_in(space, db, key)
    end = end_of(bound)
    # The ids are read before the entries are removed; without groups, no walk over the stream is needed
    if unref and stream.groups:
        gone = pack_all(stream.entries.ids(0, end - 1))
        for group in stream.groups.values():
            group.forget_all(gone)
    return stream.entries.remove_below(end, keep=keep) if places is None else stream.entries.cut(end, places)


@transition("xdrop")
def _drop(
    space: Keyspace, db: int, key: bytes, ids: bytes, floor: PackedId | None = None, places: list[Any] | None = None
) -> int:
    """Trim these entries one by one (ACKED); leave ``max_deleted`` alone, as trimming does.

    Also drop nodes without a live entry that end below ``floor`` (None: all of them).
    """
    entries = stream_in(space, db, key).entries
    removed = _remove(entries, unpack_all(ids), places, keep=True)
    entries.drop_emptied(end_of(floor))
    return removed


def _remove(entries: EntryStore, ids: list[int], places: Places | None, *, keep: bool) -> int:
    edge = -1 if places is None else entries.cold_last  # ids up to it are those at the places
    removed = sum(entries.remove(entry_id, keep=keep) for entry_id in ids if entry_id > edge)
    return removed + entries.punch(places) if places else removed


def end_of(bound: PackedId | None) -> int:
    """Return the bound of a transition as a number, above all ids for None."""
    return MAX_ID + 1 if bound is None else unpack(bound)


@transition("xdel")
def _delete(space: Keyspace, db: int, key: bytes, ids: bytes, places: list[Any] | None = None) -> int:
    """Delete these entries."""
    stream, gone = stream_in(space, db, key), unpack_all(ids)
    if places is None:
        return sum(map(stream.delete, gone))
    removed = _remove(stream.entries, gone, places, keep=False)
    stream.max_deleted = max([stream.max_deleted, *gone])
    return removed


@transition("xunref")
def _unreference(space: Keyspace, db: int, key: bytes, ids: bytes) -> int:
    """Drop these entries' records from every group."""
    stream = stream_in(space, db, key)
    return sum(stream.forget_everywhere(entry_id) for entry_id in unpack_all(ids))


@transition("xsetid")
def _set_id(
    space: Keyspace, db: int, key: bytes, last: PackedId, entries_added: int | None, max_deleted: PackedId | None
) -> None:
    """Set the values of XSETID; None leaves a counter as it is."""
    stream = stream_in(space, db, key)
    if unpack(last) < stream.entries.last_live_id:
        raise ValueError("a last id below a live entry")
    # The last id may be lowered below tombstones, which must then move
    stream.last_id = unpack(last)
    stream.entries.reach_back(stream.last_id)
    if entries_added is not None:
        stream.entries_added = entries_added
    if max_deleted is not None:
        stream.max_deleted = unpack(max_deleted)


@transition("xcfg", counts=True)
def _configure(space: Keyspace, db: int, key: bytes, idmp_duration: int, idmp_maxsize: int) -> None:
    """Set the limits of idempotent adding; a change drops all messages."""
    stream_in(space, db, key).idempotence.configure(idmp_duration, idmp_maxsize)


@transition("xidmp", counts=True)
def _remember(space: Keyspace, db: int, key: bytes, producer: bytes, message: bytes, entry_id: PackedId) -> None:
    """Record a message with an existing entry (XIDMPRECORD, a snapshot)."""
    stream_in(space, db, key).idempotence.remember(producer, message, unpack(entry_id))


@transition("xidmpdup")
def _duplicate(
    space: Keyspace,
    db: int,
    key: bytes,
    producer: bytes | None = None,  # noqa: ARG001 - for replicas, which get the message's name from it
    message: bytes | None = None,  # noqa: ARG001 - the same
) -> None:
    """Count a message that was sent again; nothing else changes."""
    stream_in(space, db, key).idempotence.duplicates += 1


@transition("xidmppid", counts=True)
def _producer(space: Keyspace, db: int, key: bytes, producer: bytes) -> None:
    """Add a producer without messages; in a snapshot its messages follow."""
    stream_in(space, db, key).idempotence.fill(producer, {})


@transition("xidmpexp", counts=True)
def _expire_messages(space: Keyspace, db: int, key: bytes, now: int) -> None:
    """Drop messages that were too old at ``now``, the time of the expiry job in wall milliseconds."""
    stream_in(space, db, key).idempotence.expire(now)


@transition("gnew", counts=True)
def _group_new(space: Keyspace, db: int, key: bytes, group: bytes, last: PackedId, entries_read: int) -> None:
    """Make a group at a position; ``entries_read`` is -1 if unknown. Old snapshots may have it beyond 64 bits."""
    stream_in(space, db, key).add_group(group, Group(unpack(last), min(entries_read, LLONG_MAX)))


@transition("gset")
def _group_set(space: Keyspace, db: int, key: bytes, group: bytes, last: PackedId, entries_read: int) -> None:
    """Move a group, for XGROUP SETID or for XCLAIM's LASTID, which leaves the count as it is."""
    found = group_in(space, db, key, group)
    found.last_id = unpack(last)
    found.entries_read = min(entries_read, LLONG_MAX)


@transition("gdel", counts=True)
def _group_delete(space: Keyspace, db: int, key: bytes, group: bytes) -> None:
    """Delete a group with its consumers and records."""
    stream_in(space, db, key).drop_group(group)


@transition("cseen")
def _consumer_seen(space: Keyspace, db: int, key: bytes, group: bytes, consumer: bytes, now: int) -> None:
    """Record that a consumer tried to read or claim; create it if it is new."""
    group_in(space, db, key, group).consumer(consumer, now).seen = now


@transition("cdel")
def _consumer_delete(space: Keyspace, db: int, key: bytes, group: bytes, consumer: bytes) -> int:
    """Delete a consumer and its records; return the number of records."""
    return group_in(space, db, key, group).drop_consumer(consumer)


@transition("gread")
def _read(
    space: Keyspace,
    db: int,
    key: bytes,
    group: bytes,
    consumer: bytes,
    now: int,
    upto: PackedId,
    noack: bool,
    after: PackedId | None = None,  # noqa: ARG001 - for replicas, which get the entries from it
    ids: bytes | None = None,
) -> None:
    """Deliver all new entries up to an id to a consumer; ``after`` is the group's previous position."""
    stream = stream_in(space, db, key)
    found, given = stream.groups[group], None if ids is None else unpack_all(ids)
    stream.deliver(found, found.consumer(consumer, now), unpack(upto), now, noack=noack, ids=given)


@transition("gagain")
def _read_again(space: Keyspace, db: int, key: bytes, group: bytes, consumer: bytes, now: int, ids: bytes) -> None:
    """Count one delivery more for each pending entry that its consumer read again."""
    found = group_in(space, db, key, group)
    holder = found.consumers[consumer]
    for entry_id in unpack_all(ids):
        # assign() also moves the record in the time order: a repeated read is a new delivery, so its idle time restarts
        record = found.pending.get(entry_id)
        assert record is not None
        found.assign(entry_id, holder, now, next_count(record.count))
    holder.seen = now


@transition("gclaim")
def _claim(
    space: Keyspace,
    db: int,
    key: bytes,
    group: bytes,
    consumer: bytes,
    now: int,
    time: int,
    ids: bytes,
    counts: list[int],
) -> None:
    """Move entries to a consumer, with the given delivery time and counts; create missing records (FORCE)."""
    found = group_in(space, db, key, group)
    holder = found.consumer(consumer, now)
    # ``time`` is the delivery time, which IDLE and TIME set; ``now`` is the time of the command
    found.assign_all(ids, holder, time, counts)
    holder.seen = holder.active = now


@transition("gack")
def _acknowledge(space: Keyspace, db: int, key: bytes, group: bytes, ids: bytes) -> int:
    """Drop one group's records of entries that were acknowledged or are gone."""
    return group_in(space, db, key, group).forget_all(ids)


@transition("gnack")
def _release(space: Keyspace, db: int, key: bytes, group: bytes, ids: bytes, counts: list[int]) -> None:
    """Release entries to all consumers, in this order, with these counts."""
    found = group_in(space, db, key, group)
    for entry_id, count in zip(unpack_all(ids), counts, strict=True):
        found.release(entry_id, count)
