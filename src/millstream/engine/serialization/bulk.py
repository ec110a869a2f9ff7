"""The largest parts of a stream's dump: entries and pending records, to the plain form and back.

PURE. The functions here are the specification, and run if the native core was not built. Their doubles
(``_core/plain.c``) make the same bytes, and accept and refuse the same input. The form is that of
:mod:`~millstream.engine.serialization.dump`; it is not trusted.
"""

from typing import TYPE_CHECKING, Any

from millstream import core
from millstream.engine.ids import MAX_ID
from millstream.engine.serialization import plain
from millstream.engine.serialization.plain import MalformedError, number, part
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.group import Group
from millstream.engine.streams.pending import MAX_DELIVERIES, Consumer

_LLONG_MAX = 2**63 - 1
# Levels of nested lists: a node with its flat entries, and a record, whose time may have any type if it is released
_NODE_DEPTH, _RECORD_DEPTH = 2, 4


def py_pack_entries(store: EntryStore) -> list[bytes]:
    """Return the packed list of a store's nodes, in any number of pieces.

    Entries keep their nodes and their tombstones, since trimming shows both.
    """
    nodes = ([[entry_id, is_dead, *fields] for entry_id, is_dead, fields in node.entries()] for node in store.nodes())
    return [plain.pack_list(store.node_count), *map(plain.pack, nodes)]


def py_read_entries(data: bytes, at: int) -> tuple[EntryStore, int]:
    """Return a store of the entries that :func:`pack_entries` packed, and the position after them."""
    store, last = EntryStore(), 0
    count, at = plain.take_list(data, at)
    for _ in range(count):
        entries, at = plain.take(data, at, _NODE_DEPTH)
        last = _add_node(store, entries, last)
    return store, at


def _add_node(store: EntryStore, entries: object, last: int) -> int:
    """Add a node of entries, each as XADD adds it, so that sizes are computed and not trusted.

    Returns:
        The last stored id.
    """
    if type(entries) is not list or not entries:
        raise MalformedError("a block without entries")
    for at, entry in enumerate(entries):
        if type(entry) is not list or len(entry) < 4 or len(entry) % 2:
            raise MalformedError("an entry without its fields")
        entry_id, is_dead, *fields = entry
        if type(is_dead) is not bool or not all(type(each) is bytes for each in fields):
            raise MalformedError("not a mark of a tombstone, or not bytes")
        # A tombstone may have the same id as the entry before it in its node, see PyEntryStore.reach_back
        last = number(entry_id, MAX_ID, lowest=last if is_dead and at else last + 1)
        store.append(last, fields, fresh=at == 0, dead=is_dead)
    return last


def py_pack_records(group: Group, places: dict[bytes, int]) -> bytes:
    """Return the packed list of a group's records in time order.

    So reading them needs no sorting, and records of one millisecond keep their order.
    """
    return plain.pack(
        [
            [one.id, None if one.consumer is None else places[one.consumer.name], one.time, one.count]
            for one in group.order
        ]
    )


def py_read_records(data: bytes, at: int, group: Group, holders: list[Consumer]) -> int:
    """Add the records that :func:`pack_records` packed; return the position after them."""
    latest = plain.OLDEST
    count, at = plain.take_list(data, at)
    for _ in range(count):
        record, at = plain.take(data, at, _RECORD_DEPTH)
        latest = _add_record(group, holders, part(record, 4), latest)
    return at


def _add_record(group: Group, holders: list[Consumer], record: list[Any], latest: int) -> int:
    """Add the next record in time order; return the earliest time of the one after it."""
    entry_id, at, time, count = record
    if number(entry_id, MAX_ID) in group.pending:
        raise MalformedError("one entry pending twice")
    number(count, MAX_DELIVERIES)
    if at is not None:
        # Without consumers the upper bound is -1, so any index is refused
        holder = holders[number(at, len(holders) - 1)]
        # Times must not descend: the list is not sorted again
        latest = number(time, _LLONG_MAX, lowest=latest)
        group.assign(entry_id, holder, latest, count)
        return latest
    # Released records come first, so until the last of them the group contains only released records
    if group.order.released != len(group.pending):
        raise MalformedError("a released entry behind an owned one")
    group.release(entry_id, count)
    return latest


if TYPE_CHECKING:
    pack_entries, read_entries = py_pack_entries, py_read_entries
    pack_records, read_records = py_pack_records, py_read_records
else:
    pack_entries, read_entries = core.choose(py_pack_entries), core.choose(py_read_entries)
    pack_records, read_records = core.choose(py_pack_records), core.choose(py_read_records)
