"""The transitions of cold entries, and how other transitions become them.

PURE. Each carries what its command found in the packs, so that a replay reads none; ``places`` is a plan of
:mod:`millstream.engine.cold`. The names are the log's own format: never change the meaning of one; add another.

The transitions of :mod:`millstream.engine.streams.stream_ops` remain for streams whose entries are all hot.
:func:`cold_form` returns what takes the place of one that would touch cold entries, and :func:`hot_form` the reverse,
by which replicas are told.
"""

from collections.abc import Callable, Iterator
from typing import Any

from millstream.engine.cold import EXTENTS_MOST, Extent, unpack_extents
from millstream.engine.ids import MAX_ID, MIN_ID, PackedId, pack, pack_all, unpack, unpack_all
from millstream.engine.keyspace import Keyspace, Transition, transition
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.stream import Stream
from millstream.engine.streams.stream_ops import stream_in

TOUCHING = frozenset({"xdel", "xdrop", "xtrim", "xsetid", "gread"})
"""Transitions that may touch cold entries."""
SILENT = frozenset({"tpacks", "tcold", "tmove", "twarm"})
"""Transitions of cold entries that change nothing that a client sees."""
OPS = SILENT | {"tdel", "tdrop", "tcut", "tread"}
"""All transitions of cold entries."""


@transition("tpacks")
def _packs(space: Keyspace, db: int, packs: list[Any]) -> None:  # noqa: ARG001 - every op begins with one
    """Name packs that later transitions refer to: number, identity, and bytes referred to (in a snapshot)."""
    for number, identity, _ in packs:
        space.packs[number] = identity


@transition("tcold")
def _cold(space: Keyspace, db: int, key: bytes, pack: int, extents: bytes, holes: list[Any]) -> None:
    """Add extents to a stream's cold part; they take the place of its first hot nodes, if it has any."""
    stream = stream_in(space, db, key)
    stream.entries.reads = space.reads
    stream.entries.add_cold(pack, extents, holes)
    space.reads.streams.add(stream)


@transition("tmove")
def _move(space: Keyspace, db: int, key: bytes, index: int, pack: int, extent: bytes, holes: list[Any]) -> None:
    """Replace an extent by one elsewhere that has the same entries, and may have fewer holes."""
    stream_in(space, db, key).entries.move_cold(index, pack, extent, holes)


@transition("twarm")
def _warm(space: Keyspace, db: int, key: bytes, node: list[Any], places: list[Any]) -> None:
    """Make the last cold node hot, for entries to come."""
    stream_in(space, db, key).entries.warm(node, places)


@transition("tdel")
def _delete(space: Keyspace, db: int, key: bytes, places: list[Any], ids: bytes) -> int:
    """Delete these entries; those that are cold lie at these places."""
    stream = stream_in(space, db, key)
    removed = _remove(stream.entries, places, ids, keep=False)
    stream.max_deleted = max(stream.max_deleted, *unpack_all(ids))
    return removed


@transition("tdrop")
def _drop(space: Keyspace, db: int, key: bytes, places: list[Any], ids: bytes, floor: PackedId | None) -> int:
    """Trim these entries one by one (ACKED), and drop nodes without a live entry that end below ``floor``."""
    entries = stream_in(space, db, key).entries
    removed = _remove(entries, places, ids, keep=True)
    entries.drop_emptied(_end(floor), hot=True)
    return removed


def _remove(entries: EntryStore, places: list[Any], ids: bytes, *, keep: bool) -> int:
    edge = entries.cold_last
    removed = sum(entries.remove(entry_id, keep=keep) for entry_id in unpack_all(ids) if entry_id > edge)
    return removed + entries.punch(places)


@transition("tcut")
def _cut(space: Keyspace, db: int, key: bytes, bound: PackedId | None, places: list[Any]) -> int:
    """Remove all entries below ``bound`` (None: all); the extent that holds the bound changes as ``places`` says."""
    return stream_in(space, db, key).entries.cut(_end(bound), places)


@transition("tread")
def _read(
    space: Keyspace,
    db: int,
    key: bytes,
    group: bytes,
    consumer: bytes,
    now: int,
    upto: PackedId,
    noack: bool,
    after: PackedId | None,  # noqa: ARG001 - for replicas, as in "gread"
    ids: bytes,
) -> None:
    """Deliver these new entries to a consumer, as "gread" delivers those that it finds."""
    stream = stream_in(space, db, key)
    found = stream.groups[group]
    stream.deliver(found, found.consumer(consumer, now), unpack(upto), now, noack=noack, ids=unpack_all(ids))


def _end(bound: PackedId | None) -> int:
    return MAX_ID + 1 if bound is None else unpack(bound)


# ---------------------------------------------------------------------- other forms


def cold_form(space: Keyspace, step: Transition) -> Iterator[Transition]:
    """Yield the transitions that do what a transition of :data:`TOUCHING` says; apply each before the next.

    Their results are to be added. All reading comes before the first of them, but for nodes that must become hot.
    If the last hot node may go, the cold entries go first, so that one node becomes hot and not each that goes.
    """
    value = space.databases[step[1]].keys.get(step[2])
    if not isinstance(value, Stream) or not value.entries.extent_count:
        yield step
        return
    yield from _FORMS[step[0]](value, *step)


def _cold_delete(stream: Stream, op: str, db: int, key: bytes, ids: bytes) -> Iterator[Transition]:
    entries = stream.entries
    cold, hot = _parted(entries, ids)
    places = entries.plan_delete(cold) if cold else []
    if not hot or entries.length - entries.cold_live > len(hot):
        yield ("tdel", db, key, places, ids) if cold else (op, db, key, ids)
        return
    if cold:
        yield ("tdel", db, key, places, pack_all(cold))
    yield from _warmed(entries, db, key)
    yield (op, db, key, pack_all(hot))


def _cold_drop(
    stream: Stream, op: str, db: int, key: bytes, ids: bytes, floor: PackedId | None = None
) -> Iterator[Transition]:
    entries = stream.entries
    cold, hot = _parted(entries, ids)
    places = entries.plan_drop(cold, _end(floor))
    if entries.length - entries.cold_live > len(hot):
        yield ("tdrop", db, key, places, ids, floor)
        return
    yield ("tdrop", db, key, places, pack_all(cold), pack(MIN_ID))  # no hot node goes yet
    yield from _warmed(entries, db, key)
    yield ("tdrop", db, key, [], pack_all(hot), floor) if entries.extent_count else (op, db, key, pack_all(hot), floor)


def _parted(entries: EntryStore, ids: bytes) -> tuple[list[int], list[int]]:
    """Return the ids that are cold and those that are hot, after reading the cold ones."""
    gone, edge = unpack_all(ids), entries.cold_last
    entries.want(gone)
    return [each for each in gone if each <= edge], [each for each in gone if each > edge]


def _warmed(entries: EntryStore, db: int, key: bytes) -> Iterator[Transition]:
    """Make the last cold node hot, since all hot nodes may go."""
    if entries.extent_count:
        yield ("twarm", db, key, *entries.plan_warm())


def _cold_trim(
    stream: Stream, op: str, db: int, key: bytes, bound: PackedId | None, unref: bool = False, keep: bool = True
) -> Iterator[Transition]:
    if unref or not keep:
        raise ValueError(f"an {op} of an old log for cold entries")
    yield ("tcut", db, key, bound, stream.entries.plan_cut(_end(bound)))


def _cold_set_id(
    stream: Stream, op: str, db: int, key: bytes, last: PackedId, added: int | None, deleted: PackedId | None
) -> Iterator[Transition]:
    entries, bound = stream.entries, unpack(last)
    while entries.extent_count and next(iter(entries.hot_nodes())).first > bound:
        yield ("twarm", db, key, *entries.plan_warm())
    yield (op, db, key, last, added, deleted)


def _cold_read(stream: Stream, op: str, db: int, key: bytes, group: bytes, *rest: Any) -> Iterator[Transition]:
    position = stream.groups[group].last_id
    if position >= stream.entries.cold_last:
        yield (op, db, key, group, *rest)
        return
    upto = rest[2]
    yield ("tread", db, key, group, *rest, pack_all(stream.entries.ids(position + 1, unpack(upto))))


_FORMS: dict[str, Callable[..., Iterator[Transition]]] = {
    "xdel": _cold_delete,
    "xdrop": _cold_drop,
    "xtrim": _cold_trim,
    "xsetid": _cold_set_id,
    "gread": _cold_read,
}


def hot_form(step: Transition) -> Transition:
    """Return the transition that does the same where all entries are hot; another transition is returned as it is."""
    op = step[0]
    if op == "tdel":
        return ("xdel", *step[1:3], step[4])
    if op == "tdrop":
        return ("xdrop", *step[1:3], *step[4:])
    if op == "tcut":
        return ("xtrim", *step[1:4], False, True)
    return ("gread", *step[1:-1]) if op == "tread" else step


def references(space: Keyspace) -> Iterator[tuple[int, bytes, list[Extent]]]:
    """Yield the cold part of each stream in pieces: database, key, and neighbouring extents of one pack."""
    for base in space.databases:
        for key, value in base.keys.items():
            if isinstance(value, Stream) and value.entries.extent_count:
                for record in value.entries.cold_records(EXTENTS_MOST):
                    yield base.index, key, unpack_extents(*record)


def named_packs(space: Keyspace) -> list[list[Any]]:
    """Number, identity and bytes referred to of each pack that a stream needs, by number. It looks at every key."""
    sizes: dict[int, int] = {}
    for _, _, extents in references(space):
        pack = extents[0].pack
        sizes[pack] = sizes.get(pack, 0) + sum(each.length for each in extents)
    return [[pack, space.packs.get(pack, ""), size] for pack, size in sorted(sizes.items())]
