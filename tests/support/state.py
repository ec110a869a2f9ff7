"""Everything a node holds, as plain values that can be compared; and the rules its parts must keep among themselves."""

from typing import Any

from hiredis import Reader

from millstream.clock import Now
from millstream.engine.collections import Collection
from millstream.engine.ids import text
from millstream.engine.keyspace import StringValue, Value
from millstream.engine.streams.entries import Block, EntryStore
from millstream.engine.streams.group import Group
from millstream.engine.streams.idempotence import Idempotence
from millstream.engine.streams.stream import Stream
from millstream.node.node import Node


def snapshot(node: Node) -> dict[int, dict[bytes, Any]]:
    """Every key of every database with its death, down to nodes, orders and times."""
    return {
        db.index: {key: [db.expires.get(key), _value(value)] for key, value in sorted(db.keys.items())}
        for db in node.keyspace.databases
    }


def shown(node: Node, now: Now, keys: list[bytes]) -> list[bytes]:
    """What clients can find out about these keys of database 0, as it goes over the wire."""
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
        "blocks": [_block(block) for block in value.entries.blocks],
        "last": value.last_id,
        "deleted": value.max_deleted,
        "added": value.entries_added,
        "groups": {name: _group(group) for name, group in sorted(value.groups.items())},
        "messages": _messages(value.idempotence),
    }


def _block(block: Block) -> list[Any]:
    return [list(block.ids), sorted(block.dead), bytes(block.wire), block.payload, list(block.fields)]


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
    """Every rule that must hold between commands, for every stream; ``wire``: read all entries' bytes too."""
    for db in node.keyspace.databases:
        assert set(db.expires) <= set(db.keys), "a death without a key"
        for value in db.keys.values():
            if isinstance(value, Stream):
                check_stream(value, wire=wire)


def check_stream(stream: Stream, *, wire: bool = True) -> None:
    """The rules of one stream."""
    check_entries(stream.entries, wire=wire)
    assert all(stream.last_id >= block.ids[-1] for block in stream.entries.blocks)
    assert 0 <= stream.length <= stream.entries_added
    for group in stream.groups.values():
        check_group(group)
        lag = stream.lag(group)
        assert lag is None or isinstance(lag, int)


def check_entries(store: EntryStore, *, wire: bool = True) -> None:
    """Blocks: ids ascend over all, counts and ends are right, the bytes are those ids' entries."""
    everything = [entry for block in store.blocks for entry in block.ids]
    assert everything == sorted(everything)
    assert store._firsts == [block.ids[0] for block in store.blocks]
    assert store.length == sum(block.live for block in store.blocks)
    for block in store.blocks:
        live = [at for at in range(len(block.ids)) if at not in block.dead]
        assert block.live == len(live)
        assert (block.low, block.high) == ((live[0], live[-1] + 1) if live else (len(block.ids), 0))
        assert block.dead <= set(range(len(block.ids)))
        assert isinstance(block.wire, bytearray) == (block is store.blocks[-1]), "the last block is open, no other"
        if wire:
            check_wire(block)
    alive = [entry for block in store.blocks for at, entry in enumerate(block.ids) if at not in block.dead]
    assert len(set(alive)) == len(alive)
    assert all(map(store.__contains__, alive)), "an entry that is there but cannot be found"
    assert list(store.ids()) == alive
    assert store.first_id == (alive[0] if alive else 0)
    assert store.last_live_id == (alive[-1] if alive else 0)


def check_wire(block: Block) -> None:
    """A block's bytes are exactly its entries, one after another."""
    assert len(block.offsets) == len(block.ids)
    for at, entry in enumerate(block.ids):
        reader = Reader()
        reader.feed(bytes(block.slice(at, at + 1)))
        found = reader.gets()
        assert found[0] == text(entry) or at in block.dead
        assert len(found[1]) % 2 == 0
        assert reader.gets() is False, "bytes behind the entry"


def check_group(group: Group) -> None:
    """The group's records are its consumers' and the released; time order is the zone, then ascending times."""
    by_id = list(group.pending.walk())
    assert [record.id for record in by_id] == sorted(group.pending.by_id)
    assert len(group.pending) == len(by_id)
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
        assert [record.id for record in mine] == sorted(consumer.pending.by_id)
        assert all(record is group.pending.get(record.id) and record.consumer is consumer for record in mine)
        owned |= {record.id for record in mine}
    assert owned | {record.id for record in released} == set(group.pending.by_id)
    assert len(owned) + len(released) == len(by_id)
    backwards = []
    at = order[-1] if order else None
    while at is not None:
        backwards.append(at)
        at = at.before
    assert backwards == order[::-1]
