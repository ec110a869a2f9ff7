"""The whole state of a node as comparable values, and the invariants of its parts."""

from typing import Any

from millstream.clock import Now
from millstream.engine.collections import Collection
from millstream.engine.keyspace import StringValue, Value
from millstream.engine.streams.entries import EntryStore, PyEntryStore
from millstream.engine.streams.group import Group, PyGroup
from millstream.engine.streams.idempotence import Idempotence
from millstream.engine.streams.nodes import Block, encode_entry
from millstream.engine.streams.pending import Pending
from millstream.engine.streams.stream import Stream
from millstream.node.node import Node


def snapshot(node: Node) -> dict[int, dict[bytes, Any]]:
    """Return every key of every database with its expiry, down to nodes, orders and times."""
    return {
        db.index: {key: [db.expires.get(key), _value(value)] for key, value in sorted(db.keys.items())}
        for db in node.keyspace.databases
    }


def shown(node: Node, now: Now, keys: list[bytes]) -> list[bytes]:
    """Return all that clients can see of these keys of database 0, as raw replies."""
    session = node.sessions.open(now)
    session.resp = 3
    replies = []
    for key in keys:
        for words in (
            [b"TYPE", key],
            [b"PTTL", key],
            [b"XRANGE", key, b"-", b"+"],
            [b"XINFO", b"STREAM", key],
            [b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"],
            [b"XINFO", b"GROUPS", key],
        ):
            outcome = node.execute(session, words, now)
            assert outcome is not None
            replies.append(b"".join(outcome.buffers))
    node.sessions.close(session)
    return replies


def _value(value: Value) -> Any:
    if isinstance(value, StringValue):
        return value.data
    if isinstance(value, Collection):
        return value.content()
    assert isinstance(value, Stream)
    return {
        "blocks": [node.pack() for node in value.entries.nodes()],
        "last": value.last_id,
        "deleted": value.max_deleted,
        "added": value.entries_added,
        "groups": {name: _group(group) for name, group in sorted(value.groups.items())},
        "messages": _messages(value.idempotence),
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "last": group.last_id,
        "read": group.entries_read,
        "order": [
            [one.id, None if one.consumer is None else one.consumer.name, one.time, one.count] for one in group.order
        ],
        "consumers": {name: [who.seen, who.active] for name, who in sorted(group.consumers.items())},
    }


def _messages(memory: Idempotence) -> list[Any]:
    producers = {producer: list(found.items()) for producer, found in sorted(memory.producers.items())}
    return [memory.duration, memory.maxsize, producers, memory.added, memory.duplicates]


def check(node: Node, *, wire: bool = True) -> None:
    """Check every invariant between commands for every stream; ``wire``: read all entries' bytes too."""
    for db in node.keyspace.databases:
        assert set(db.expires) <= set(db.keys), "a death without a key"
        for value in db.keys.values():
            if isinstance(value, Stream):
                check_stream(value, wire=wire)


def check_stream(stream: Stream, *, wire: bool = True) -> None:
    """Check the invariants of one stream."""
    check_entries(stream.entries, wire=wire)
    assert all(stream.last_id >= node.last for node in stream.entries.nodes())
    assert 0 <= stream.length <= stream.entries_added
    for group in stream.groups.values():
        check_group(group)
        lag = stream.lag(group)
        assert lag is None or isinstance(lag, int)


def check_entries(store: EntryStore, *, wire: bool = True) -> None:
    """Check the nodes: ids ascend over all, counts and ends are right, the bytes are those of the ids' entries."""
    nodes = list(store.nodes())
    assert len(nodes) == store.node_count
    everything = [list(node.entries()) for node in nodes]
    stored = [entry for entries in everything for entry, _, _ in entries]
    assert stored == sorted(stored)
    assert store.length == sum(node.live for node in nodes)
    for node, entries in zip(nodes, everything, strict=True):
        assert (node.first, node.last, node.stored) == (entries[0][0], entries[-1][0], len(entries))
        assert node.live_ids() == [entry for entry, dead, _ in entries if not dead]
        assert node.live == len(node.live_ids())
    alive = {entry: fields for entries in everything for entry, dead, fields in entries if not dead}
    assert len(alive) == store.length, "an id is there twice"
    assert all(map(store.__contains__, alive)), "an entry that is there but cannot be found"
    assert store.ids() == list(alive)
    assert store.first_id == next(iter(alive), 0)
    assert store.last_live_id == next(reversed(alive), 0)
    if wire:
        assert [store.wire(entry) for entry in alive] == [encode_entry(*each) for each in alive.items()]
    if isinstance(store, PyEntryStore):
        _check_blocks(store._blocks)  # noqa: SLF001 - the insides of the Python core are checked after every step
        assert store._firsts == [node.first for node in store.hot_nodes()]  # noqa: SLF001 - the insides of the Python core are checked after every step


def _check_blocks(blocks: list[Block]) -> None:
    """Check the Python core's blocks: the outermost live entries, the open block, the beginnings of entries."""
    for block in blocks:
        live = [at for at in range(len(block.ids)) if at not in block.dead]
        assert (block.low, block.high) == ((live[0], live[-1] + 1) if live else (len(block.ids), 0))
        assert block.dead <= set(range(len(block.ids)))
        assert isinstance(block.wire, list) == (block is blocks[-1]), "the last block is open, no other"
        assert len(block.offsets) == (0 if block is blocks[-1] else len(block.ids))
        assert len(block.pieces()) == len(block.ids)
        assert [bytes(block.slice(at, at + 1)) for at in range(len(block.ids)) if at not in block.dead] == [
            encode_entry(entry, fields) for entry, dead, fields in block.entries() if not dead
        ]


def check_group(group: Group) -> None:
    """Check that the group's records are those of its consumers and the released ones, in time order."""
    by_id = list(group.pending.walk())
    ids = [record.id for record in by_id]
    assert ids == sorted(set(ids))
    assert len(group.pending) == len(by_id)
    assert all(group.pending.get(record.id) == record for record in by_id)
    order = list(group.order)
    assert sorted(record.id for record in order) == [record.id for record in by_id]
    released = [record for record in order if record.consumer is None]
    assert order[: len(released)] == released, "the released come first"
    assert group.order.released == len(released)
    assert all(record.time == 0 for record in released)
    times = [record.time for record in order[len(released) :]]
    assert times == sorted(times)
    owned: set[int] = set()
    for name, consumer in group.consumers.items():
        assert consumer.name == name
        mine = list(consumer.pending.walk())
        assert [record.id for record in mine] == sorted({record.id for record in mine})
        assert len(consumer.pending) == len(mine)
        assert all(record == group.pending.get(record.id) and record.consumer is consumer for record in mine)
        owned |= {record.id for record in mine}
    assert owned | {record.id for record in released} == set(ids)
    assert len(owned) + len(released) == len(by_id)
    if isinstance(group, PyGroup):
        _check_links(order)


def _check_links(order: list[Pending]) -> None:
    """Check the Python core's links: the list of times is the same from its end."""
    backwards = []
    at = order[-1] if order else None
    while at is not None:
        backwards.append(at)
        at = at.before
    assert backwards == order[::-1]
