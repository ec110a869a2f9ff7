"""Databases, their keys and expiry times, and the one door through which they change.

PURE: no clock, file, socket or random source; times are arguments in milliseconds of wall time.

Every change is a *transition*: a tuple ``(op, *arguments)`` of plain ints, bytes, strings, None and flat lists, with
ids, times and counters already resolved. A command decides what to do by reading, then applies transitions; the log
stores the same tuples; recovery applies them again. Live and replayed state are equal because the code is the same.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from millstream.engine.scanning import WalkedKeys

DATABASES = 16

Transition = tuple[Any, ...]


class Value(Protocol):
    """What a key holds."""

    kind: ClassVar[bytes]

    def copy(self) -> "Value":
        """An independent copy, for COPY."""
        ...


class StringValue:
    """A plain string."""

    kind: ClassVar[bytes] = b"string"
    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def copy(self) -> "StringValue":
        """Strings are immutable, so the same bytes serve."""
        return StringValue(self.data)


class Database:
    """One numbered database.

    Attributes:
        keys: live and not yet purged keys.
        expires: wall milliseconds at which a key dies; absent means never.
    """

    __slots__ = ("expires", "index", "keys")

    def __init__(self, index: int) -> None:
        self.index = index
        self.keys: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}

    def walk(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """One step of SCAN: see :meth:`millstream.engine.scanning.WalkedKeys.step`."""
        if not isinstance(self.keys, WalkedKeys):
            self.keys = WalkedKeys(self.keys)
        return self.keys.step(cursor, count)

    def is_expired(self, key: bytes, now: int) -> bool:
        """Whether the key's time has come (Redis: strictly past)."""
        at = self.expires.get(key)
        return at is not None and now > at


Applier = Callable[..., Any]
OPS: dict[str, Applier] = {}


def transition(op: str) -> Callable[[Applier], Applier]:
    """Register the function that applies transitions of this op: called with the keyspace and the arguments."""

    def register(applier: Applier) -> Applier:
        OPS[op] = applier
        return applier

    return register


class Keyspace:
    """All databases of one server."""

    __slots__ = ("databases",)

    def __init__(self) -> None:
        self.databases = [Database(index) for index in range(DATABASES)]

    def apply(self, step: Transition) -> Any:
        """Carry out one transition and return what its applier returns (the command may reply from it)."""
        return OPS[step[0]](self, *step[1:])


@transition("set")
def _set(space: Keyspace, db: int, key: bytes, data: bytes, expires_at: int | None) -> None:
    base = space.databases[db]
    base.keys[key] = StringValue(data)
    if expires_at is None:
        base.expires.pop(key, None)
    else:
        base.expires[key] = expires_at


@transition("unset")
def _unset(space: Keyspace, db: int, key: bytes) -> None:
    base = space.databases[db]
    del base.keys[key]
    base.expires.pop(key, None)


@transition("expire")
def _expire(space: Keyspace, db: int, key: bytes, expires_at: int | None) -> None:
    base = space.databases[db]
    if expires_at is None:
        base.expires.pop(key, None)
    else:
        base.expires[key] = expires_at


@transition("move")
def _move(space: Keyspace, db: int, key: bytes, new_db: int, new_key: bytes) -> None:
    """RENAME (same database) and MOVE (same key); replaces what stood at the target."""
    source, target = space.databases[db], space.databases[new_db]
    value = source.keys.pop(key)
    expires_at = source.expires.pop(key, None)
    target.keys[new_key] = value
    target.expires.pop(new_key, None)
    if expires_at is not None:
        target.expires[new_key] = expires_at


@transition("copy")
def _copy(space: Keyspace, db: int, key: bytes, new_db: int, new_key: bytes) -> None:
    source, target = space.databases[db], space.databases[new_db]
    target.keys[new_key] = source.keys[key].copy()
    target.expires.pop(new_key, None)
    if key in source.expires:
        target.expires[new_key] = source.expires[key]


@transition("flush")
def _flush(space: Keyspace, db: int) -> None:
    base = space.databases[db]
    base.keys = {}
    base.expires = {}


@transition("swap")
def _swap(space: Keyspace, db: int, other: int) -> None:
    one, two = space.databases[db], space.databases[other]
    one.keys, two.keys = two.keys, one.keys
    one.expires, two.expires = two.expires, one.expires
