"""A keyspace made again from its own log or from dumps of its values, to prove that the result is equal (DEBUG)."""

from collections.abc import Iterable

from millstream.engine.keyspace import Database, Keyspace, Value
from millstream.engine.serialization import dump
from millstream.engine.streams.stream import Stream
from millstream.node.log import replay


def from_log(payloads: Iterable[bytes]) -> Keyspace:
    """Return the keyspace that these records make."""
    space = Keyspace()
    for payload in payloads:
        replay.apply(space, payload)
    return space


def from_dumps(old: Keyspace) -> Keyspace:
    """Return a keyspace with every value dumped and loaded, or copied if it has cold entries.

    The log says which entries are cold, and a dump has only hot ones: later records would not fit what it makes.
    """
    space = Keyspace()
    space.reads, space.packs = old.reads, old.packs
    for mine, base in zip(space.databases, old.databases, strict=True):
        mine.keys = {key: _again(value) for key, value in base.keys.items()}
        mine.expires = dict(base.expires)
        mine.used = sum(map(mine.size_of, mine.keys))
    return space


def _again(value: Value) -> Value:
    if isinstance(value, Stream) and value.entries.extent_count:
        return value.copy()
    return dump.load(dump.dump(value))


def differing(one: Keyspace, other: Keyspace) -> list[bytes]:
    """Return the keys that differ between two keyspaces, sorted."""
    found: set[bytes] = set()
    for left, right in zip(one.databases, other.databases, strict=True):
        keys = left.keys.keys() | right.keys.keys()
        found |= {key for key in keys if _image(left, key) != _image(right, key)}
    return sorted(found)


def _image(db: Database, key: bytes) -> tuple[bytes | None, int | None]:
    value = db.keys.get(key)
    return None if value is None else dump.dump(value), db.expires.get(key)


def adopt(space: Keyspace, fresh: Keyspace) -> None:
    """Replace a keyspace's contents by another's; its databases stay the same objects."""
    for mine, theirs in zip(space.databases, fresh.databases, strict=True):
        mine.replace(theirs.keys, theirs.expires, theirs.used)
    fresh.reads.source = space.reads.source  # its streams have this way to their entries, and it leads nowhere yet
    space.reads, space.packs = fresh.reads, fresh.packs
