"""The transitions of cold entries, and the form that other transitions have for these.

PURE. Each carries what its command found in the packs, so that a replay reads none; ``places`` is a plan of
:mod:`millstream.engine.cold`. The names are the log's own format: never change the meaning of one; add another.

Some transitions of :mod:`millstream.engine.streams.stream_ops` have one argument more if they touch cold entries.
:func:`cold_form` adds it.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any

from millstream.engine.cold import ColdDamage, Extent, cold_records, index_of, unpack_extents, want
from millstream.engine.ids import MIN_ID, PackedId, pack, pack_all, unpack, unpack_all
from millstream.engine.keyspace import Keyspace, Transition, transition
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.stream import Stream
from millstream.engine.streams.stream_ops import end_of, stream_in

TOUCHING = frozenset({"xdel", "xdrop", "xtrim", "xsetid", "gread"})
"""Transitions that may touch cold entries."""
SILENT = frozenset({"tpacks", "tcold", "tmove", "twarm"})
"""Transitions of cold entries; they change nothing that a client sees."""


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
        yield (op, db, key, ids, places) if cold else (op, db, key, ids)
        return
    if cold:
        _foresee_warm(entries, cold)
        yield (op, db, key, pack_all(cold), places)
    yield from _warmed(entries, db, key)
    yield (op, db, key, pack_all(hot))


def _cold_drop(
    stream: Stream, op: str, db: int, key: bytes, ids: bytes, floor: PackedId | None = None
) -> Iterator[Transition]:
    entries = stream.entries
    cold, hot = _parted(entries, ids)
    places = entries.plan_delete(cold, end_of(floor))
    if entries.length - entries.cold_live > len(hot):
        yield (op, db, key, ids, floor, places)
        return
    _foresee_warm(entries, cold, end_of(floor))
    yield (op, db, key, pack_all(cold), pack(MIN_ID), places)  # no hot node goes yet
    yield from _warmed(entries, db, key)
    yield op, db, key, pack_all(hot), floor


def foresee_delete(entries: EntryStore, there: Collection[int]) -> None:
    """Read what the deletion of existing entries will read besides them, so that damage there stops a command early.

    These are the ends of their extents, and the node that becomes hot if all hot entries go. XDEL needs no such look:
    its one transition reads before it changes anything.
    """
    if not entries.extent_count:
        return
    cold = [entry for entry in there if entry <= entries.cold_last]
    if entries.length - entries.cold_live <= len(there) - len(cold) > 0:
        _foresee_warm(entries, cold)
    elif cold:
        entries.plan_delete(cold)


def _foresee_warm(entries: EntryStore, cold: Collection[int], floor: int | None = None) -> None:
    """Read what the node needs that becomes hot once these cold entries are gone, so that damage stops them now.

    A store of the last extents tries it, from the one before the first that changes: a node of it may be the last one.
    """
    first = 0 if floor is not None else min(cold, default=entries.cold_last)
    at = max(index_of(entries, first) - 1, 0)
    trial = EntryStore()
    trial.reads = entries.reads
    for record in cold_records(entries, at=at):
        trial.add_cold(*record)
    try:
        trial.punch(trial.plan_delete(list(cold), floor))
        if trial.extent_count:
            trial.plan_warm()
    except ColdDamage as damage:  # its extent may have changed in the trial, and then no stream would have it
        own = chain.from_iterable(unpack_extents(*record) for record in cold_records(entries, at=at))
        damage.extent = next(each for each in own if each[:2] == damage.extent[:2])
        raise


def _parted(entries: EntryStore, ids: bytes) -> tuple[list[int], list[int]]:
    """Return the ids that are cold and those that are hot, after reading the cold ones."""
    gone, edge = unpack_all(ids), entries.cold_last
    want(entries, gone)
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
    yield (op, db, key, bound, False, True, stream.entries.plan_cut(end_of(bound)))


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
    yield (op, db, key, group, *rest, pack_all(stream.entries.ids(position + 1, unpack(upto))))


_FORMS: dict[str, Callable[..., Iterator[Transition]]] = {
    "xdel": _cold_delete,
    "xdrop": _cold_drop,
    "xtrim": _cold_trim,
    "xsetid": _cold_set_id,
    "gread": _cold_read,
}


def references(space: Keyspace) -> Iterator[tuple[int, bytes, list[Extent]]]:
    """Yield the cold part of each stream in pieces: database, key, and neighbouring extents of one pack."""
    for base in space.databases:
        for key, value in base.keys.items():
            if isinstance(value, Stream) and value.entries.extent_count:
                for record in cold_records(value.entries):
                    yield base.index, key, unpack_extents(*record)


def named_packs(space: Keyspace) -> list[list[Any]]:
    """Number, identity and bytes referred to of each pack that a stream needs, by number. It looks at every key."""
    sizes: dict[int, int] = {}
    for value in chain.from_iterable(base.keys.values() for base in space.databases):
        for number, size in value.entries.pack_sizes() if isinstance(value, Stream) else ():
            sizes[number] = sizes.get(number, 0) + size
    return [[number, space.packs.get(number, ""), size] for number, size in sorted(sizes.items())]
