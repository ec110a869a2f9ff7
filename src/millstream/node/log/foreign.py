"""Checks of records from another server: their checksums are right, but their content may be invalid.

A server trusts its own log: commands of this program made each record, so appliers check nothing. A primary may be
another program. Without checks, a key that is not bytes, or a time that is text, would be applied and stored. Each
command on it would then fail, after every start. So each argument of a transition must have the type that its applier
declares. The resulting keyspace must hold only values that this program can compute with and write.

Everything accepted must survive a snapshot: the next rewrite makes one, and after that it alone holds the data.
Appliers refuse arguments that no command can give. The rules here are additional ones that old logs need not obey.

The origin of a record is not checked: a primary may give its replica any data.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import isnan
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from millstream import core
from millstream.engine import cold_ops
from millstream.engine.cold import cold_records, unpack_extents
from millstream.engine.collection_ops import unpack_scores
from millstream.engine.collections import Collection
from millstream.engine.history import EARLIER_MAX, NO_DATABASE, ReplicationState
from millstream.engine.ids import PACKED_SIZE
from millstream.engine.keyspace import DATABASES, OPS, Database, Keyspace, StringValue, Value
from millstream.engine.streams.entries import NODE_BYTES_CAP, EntryStore
from millstream.engine.streams.group import UNKNOWN
from millstream.engine.streams.nodes import expect_packed
from millstream.engine.streams.pending import MAX_DELIVERIES
from millstream.engine.streams.stream import LLONG_MAX, Stream
from millstream.node.log import replay
from millstream.persistence.frame import HEADER_SIZE
from millstream.persistence.manifest import PackEntry
from millstream.protocol.limits import BULK_MAX

Check = Callable[[Any], bool]

# More than the bytes of a node with the largest possible entry
_NODE_MAX = 3 * NODE_BYTES_CAP
_NAME = re.compile("[0-9a-zA-Z]{40}")
# Largest number of a pack in an extent
_PACK_MAX = 2**32 - 1


PackList = Callable[[], Sequence[PackEntry] | None]
"""Returns the packs that came with records, once the first of these is there; None if they cannot have packs."""


def from_copy(payloads: Iterable[bytes], packs: PackList = lambda: None) -> Keyspace:
    """Return the keyspace that these records make, after checking it. This reads no pack."""
    space, kinds, known = Keyspace(), Kinds(), None
    for number, payload in enumerate(payloads):
        if not number:
            known = packs()
            kinds.has_packs = known is not None
        if not 0 <= replay.apply(space, payload, kinds.look) <= LLONG_MAX:
            raise ValueError("a time beyond 64 bits")
    kinds.look_at_end()
    _look_at_history(space.history)
    for base in space.databases:
        _look_at_keys(base)
    _look_at_extents(space, known or ())
    return space


class Kinds:
    """Finds and runs the checks of a transition by its argument types; caches the checks of each combination."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], list[tuple[int, Check]]] = {}
        self._unsorted: Sequence[Any] | None = None  # database, key and group of records that are not sorted yet
        self.has_packs = False  # Packs came along

    def look(self, step: Sequence[Any]) -> None:
        """Check one transition; raise if it is invalid."""
        if step[0] in cold_ops.SILENT and not self.has_packs:
            raise ValueError(f"{step[0]} of entries in packs, which did not come along")
        kinds = (step[0], *map(type, step))
        checks = self._found.get(kinds)
        if checks is None:
            checks = self._found[kinds] = _checks(step[0], kinds[2:])
        for at, check in checks:
            if not check(step[at]):
                shown = step[at] if type(step[at]) is int else "damaged"
                raise ValueError(f"argument {at} of {step[0]} is {shown}")
        if self._unsorted is not None and step[0] != "xadd":  # the native core applies "xadd" without a check here
            if step[0] not in {"gpending", "gsort"} or step[1:4] != self._unsorted:
                raise ValueError(f"{step[0]} among the records of a group")
            self._unsorted = None
        if step[0] == "gpending":
            self._unsorted = step[1:4]

    def look_at_end(self) -> None:
        """Check that no group's records are left unsorted after the last transition."""
        if self._unsorted is not None:
            raise ValueError("records of a group without an order")


def _checks(op: str, kinds: Sequence[type]) -> list[tuple[int, Check]]:
    """Return the checks for arguments of these types, each with the position of its argument."""
    signature = inspect.signature(OPS[op], eval_str=True)
    given = list(signature.bind(None, *kinds).arguments.items())
    found = []
    for at, (name, kind) in enumerate(given[1:], 1):
        check = _check(kind, signature.parameters[name].annotation)
        rule = _RULES.get(f"{op}.{name}") or _RULES.get(name) or (_is_signed if kind is int else None)
        found += [(at, each) for each in (check, None if kind is type(None) else rule) if each is not None]
    return found


def _check(kind: type, hint: Any) -> Check | None:
    """Return the check of an argument by its type and its applier's annotation; None if the types are equal."""
    for each in get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,):
        origin = get_origin(each)
        if each is kind:
            return None
        if origin is Annotated and kind is bytes:
            return _is_packed_id
        if origin in {list, Sequence} and kind is list:
            (element,) = get_args(each)
            if element is int:
                return _are_signed
            return None if element is Any else partial(_are_all, {get_origin(element) or element})
    raise TypeError(f"{kind.__name__} in place of {hint}")


def _is_packed_id(value: bytes) -> bool:
    return len(value) == PACKED_SIZE


def _are_all(kinds: set[type], values: list[Any]) -> bool:
    return kinds.issuperset(map(type, values))


def _is_signed(number: int) -> bool:
    return -LLONG_MAX <= number <= LLONG_MAX


def _are_signed(numbers: list[Any]) -> bool:
    return _are_all({int}, numbers) and all(map(_is_signed, numbers))


def _is_database(number: int) -> bool:
    return 0 <= number <= LLONG_MAX  # the applier reports a number of a database that does not exist


def _are_scores(packed: bytes) -> bool:
    return not any(map(isnan, unpack_scores(packed)))  # NaN cannot be sorted


def _are_consumers(words: list[Any]) -> bool:
    """Check a flat list of consumers: name, seen time and active time of each."""
    return len(words) % 3 == 0 and _are_all({bytes}, words[::3]) and _are_signed(words[1::3] + words[2::3])


def _are_nodes(nodes: list[Any]) -> bool:
    """Check each packed node, unless the native core does it while unpacking."""
    if core.native is None:
        for each in nodes:
            expect_packed(each)
    return True


def _are_rows(kinds: list[type], rows: list[Any]) -> bool:
    """Check a list of lists with elements of these types."""
    return all(type(row) is list and list(map(type, row)) == kinds for row in rows)


def _are_packs(packs: list[Any]) -> bool:
    return _are_rows([int, str, int], packs) and all(0 <= number <= _PACK_MAX for number, *_ in packs)


# Checks of arguments beyond their types, by name, with the op if only that op needs them
_RULES: dict[str, Check] = {
    **dict.fromkeys(("db", "new_db", "other"), _is_database),
    **dict.fromkeys(
        ("hist.db", "role.db", "off.db", "tpacks.db"), _is_signed
    ),  # the final check covers the last of them
    **dict.fromkeys(("gnew.entries_read", "gset.entries_read"), lambda count: count >= UNKNOWN),  # higher in old logs
    "off.size": lambda size: 0 <= size <= LLONG_MAX,
    "overwrite.offset": lambda offset: 0 <= offset <= BULK_MAX,  # the applier fills a gap with zero bytes
    "ids": lambda packed: len(packed) % PACKED_SIZE == 0,
    "counts": lambda counts: all(0 <= count <= MAX_DELIVERIES for count in counts),
    "scores": _are_scores,
    "consumers": _are_consumers,
    "blocks": _are_nodes,
    "packs": _are_packs,
    "pack": lambda number: 0 <= number <= _PACK_MAX,
    "holes": partial(_are_rows, [int, bytes, bytes]),
    "places": partial(_are_rows, [int, int, bytes, bytes, bytes]),
}


# ---------------------------------------------------------------------- final checks


def _look_at_history(past: ReplicationState) -> None:
    if not (past.replid or past.is_given_up) and past != ReplicationState():  # a snapshot does not write such a state
        raise ValueError("an offset, a database or earlier names of no history")
    names, seconds = past.earlier[::2], past.earlier[1::2]
    if not NO_DATABASE <= past.db < DATABASES:
        raise ValueError(f"database {past.db} is selected")
    if past.replid2 and not _NAME.fullmatch(past.replid2):
        raise ValueError(f"a history is called {past.replid2!r:.60}")
    if len(names) != len(seconds) or len(names) > EARLIER_MAX:
        raise ValueError(f"{len(past.earlier)} words about earlier histories")
    if not all(type(name) is str and _NAME.fullmatch(name) for name in names):
        raise ValueError("an earlier history has no name")
    if not (_are_all({int}, [*seconds, past.offset]) and all(map(_is_signed, (past.second, past.offset, *seconds)))):
        raise ValueError("an offset of a history is invalid")


def _look_at_keys(base: Database) -> None:
    if not base.expires.keys() <= base.keys.keys():
        raise ValueError("a time of a key that is not there")
    if not all(map(_is_signed, base.expires.values())):
        raise ValueError("a time beyond 64 bits")
    for key, value in base.keys.items():
        if not _is_sound(value):
            raise ValueError(f"the {value.kind.decode()} at {key!r:.60}")


def _is_sound(value: Value) -> bool:
    """True if a command could have made the value, and a snapshot can be read back with it."""
    if isinstance(value, Stream):
        memory = value.idempotence
        counters = (value.entries_added, memory.duration, memory.maxsize, memory.added, memory.duplicates)
        return (
            all(0 <= number <= LLONG_MAX for number in counters)
            and value.entries.last_live_id <= value.last_id
            and _ascend(value.entries)
        )
    if isinstance(value, StringValue):
        return value.size <= BULK_MAX
    return not isinstance(value, Collection) or len(value) > 0


def _look_at_extents(space: Keyspace, packs: Sequence[PackEntry]) -> None:
    """Check that all extents lie in packs that came along."""
    known = {each.number: each for each in packs}
    for _, key, extents in cold_ops.references(space):
        pack = known.get(extents[0].pack)
        if pack is None or space.packs.get(pack.number, "") not in {"", pack.identity}:
            raise ValueError(f"entries of {key!r:.60} in pack {extents[0].pack}, which did not come along")
        if not all(HEADER_SIZE <= each.offset <= (pack.bytes or 0) - each.length for each in extents):
            raise ValueError(f"entries of {key!r:.60} beyond the end of pack {pack.number}")


def _ascend(entries: EntryStore) -> bool:
    """True if no live entry has the id 0-0 or another entry's id, and each node can be written.

    Only the extents of cold entries are looked at: a reader of the pack finds what is wrong inside.
    """
    last, before = 0, [0]
    for record in cold_records(entries):
        for extent in unpack_extents(*record):
            if not extent.is_sound or extent.first < last or [extent.first_live] == before:
                return False
            last, before = extent.last, [extent.last_live] if extent.live else before
    if entries.extent_count:
        first = next(iter(entries.hot_nodes()), None)
        if first is None or first.first < last:
            return False
    for node in entries.hot_nodes():
        if node.size > _NODE_MAX or (node.first <= last and before and node.live_ids()[:1] == before):
            return False
        last, before = node.last, [node.last]
    return True
