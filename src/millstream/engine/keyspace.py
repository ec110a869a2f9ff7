"""Databases, their keys and expiry times, and the only way to change them.

PURE: no clock, file, socket or random source; times are arguments in milliseconds of wall time.

Every change is a *transition*: a tuple ``(op, *arguments)`` of plain ints, bytes, strings, None and flat lists, with
ids, times and counters already resolved. A command reads and decides, then applies transitions. The log stores the same
tuples; recovery applies them again. Live and replayed state are equal because the code is the same.

To add a kind of change, add a function with ``@transition("name")`` in the module of its family. The name is part of
the log's format, also in old logs. Never change its meaning. If an argument must be added, give it a default with the
meaning of the old records, or add another name. Integers above 64 bits do not fit the log: pack ids.

An expired key stays here until a transition deletes it: expiry depends on a clock, and recovery does not have one.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, ClassVar, Protocol

from millstream.engine.cold import ColdReads
from millstream.engine.history import ReplicationState
from millstream.engine.scanning import ScanOrder

DATABASES = 16
# Bytes of a key, an expiry and a string, apart from their contents; measured on CPython 3.11
KEY_SIZE, EXPIRY_SIZE, STRING_SIZE = 100, 100, 90

Transition = tuple[Any, ...]


class Value(Protocol):
    """A value that a key holds."""

    kind: ClassVar[bytes]

    @property
    def footprint(self) -> int:
        """Approximate memory in bytes, stored as a number, since it is read before and after each change."""
        ...

    def copy(self) -> "Value":
        """An independent copy, for COPY."""
        ...


class StringValue:
    """A plain string.

    A change of one part costs in proportion to the part: the string is copied only when it is read whole again.
    Otherwise, each small APPEND to a string of megabytes would copy the megabytes.
    """

    kind: ClassVar[bytes] = b"string"
    __slots__ = ("_buffer", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._buffer: bytearray | None = None  # string while its parts are being changed

    @property
    def data(self) -> bytes:
        """The bytes."""
        if self._buffer is not None:
            self._data = bytes(self._buffer)
            self._buffer = None
        return self._data

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self._data) if self._buffer is None else len(self._buffer)

    @property
    def footprint(self) -> int:
        """Memory in bytes."""
        return STRING_SIZE + self.size

    def part(self, start: int, stop: int) -> bytes:
        """The bytes from one position to before another, neither position negative."""
        return self._data[start:stop] if self._buffer is None else bytes(self._buffer[start:stop])

    def _changing(self) -> bytearray:
        if self._buffer is None:
            self._buffer = bytearray(self._data)
            # Only one of the two may hold the string, or each large APPEND would store it twice
            self._data = b""
        return self._buffer

    def append(self, part: bytes) -> None:
        """Add to the end."""
        self._changing().extend(part)

    def overwrite(self, offset: int, part: bytes) -> None:
        """Write bytes from ``offset`` on; missing bytes before them become zero bytes."""
        buffer = self._changing()
        # An empty buffer is replaced, not extended: the zero bytes of a new large string then need no copy
        if not buffer:
            self._buffer = buffer = bytearray(offset)
        elif offset > len(buffer):
            buffer.extend(bytes(offset - len(buffer)))
        buffer[offset : offset + len(part)] = part

    def copy(self) -> "StringValue":
        """A copy that shares the bytes until a part of either string changes; the change then copies them."""
        return StringValue(self.data)


class Database:
    """One numbered database."""

    __slots__ = ("expires", "index", "keys", "scan_order", "used")

    def __init__(self, index: int) -> None:
        self.index = index
        self.keys: dict[bytes, Value] = {}  # Keys that were not deleted; some may have expired
        self.used = 0  # Bytes of keys and values
        self.expires: dict[bytes, int] = {}  # Wall milliseconds at which a key expires; no item means never
        self.scan_order = ScanOrder()  # Order in which SCAN walks; not a part of the state

    @property
    def footprint(self) -> int:
        """Memory of all keys and values in bytes, except stream contents (:mod:`millstream.engine.streams.memory`)."""
        return self.used + KEY_SIZE * len(self.keys) + EXPIRY_SIZE * len(self.expires)

    def size_of(self, key: bytes) -> int:
        """This key's part of ``used`` in bytes; 0 if it does not exist."""
        value = self.keys.get(key)
        return 0 if value is None else len(key) + value.footprint

    def replace(self, keys: dict[bytes, Value], expires: dict[bytes, int], used: int) -> None:
        """Replace all keys.

        Running SCAN walks continue with the new keys, since no cursor depends on an earlier order.
        """
        self.keys, self.expires, self.scan_order, self.used = keys, expires, ScanOrder(), used

    def is_expired(self, key: bytes, now: int) -> bool:
        """True if the key's expiry time has passed.

        Strictly past, as in Redis: at the exact millisecond the key still exists, and PTTL replies 0.
        """
        at = self.expires.get(key)
        return at is not None and now > at


Applier = Callable[..., Any]
# The decorator below fills it while the families' modules are imported, see engine/transitions.py
OPS: dict[str, Applier] = {}


def filled_places(step: Transition, known: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return the places, as database and key, where a transition may put a stream; ``known`` are earlier ones."""
    op = step[0]
    if op in {"xnew", "restore"}:
        return [(step[1], step[2])]
    if op in {"move", "copy"}:
        return [(step[3], step[4])]
    return [(db, key) for _, key in known for db in step[1:3]] if op == "swap" else []


def transition(op: str, *, counts: bool = False) -> Callable[[Applier], Applier]:
    """Register the function that applies transitions of this op; it gets the keyspace and the arguments.

    With ``counts`` the function may change the footprint of its key's value, or make or delete the key. The database
    then updates its count.
    """

    def register(applier: Applier) -> Applier:
        if not counts:
            OPS[op] = applier
            return applier

        @wraps(applier)
        def apply(space: Keyspace, db: int, key: bytes, *rest: Any) -> Any:
            base = space.databases[db]
            before = base.size_of(key)
            try:
                return applier(space, db, key, *rest)
            finally:
                base.used += base.size_of(key) - before

        OPS[op] = apply
        return applier

    return register


class Keyspace:
    """All databases of one server, the history of their data, and the primary that continues it."""

    __slots__ = ("databases", "hands_over", "history", "packs", "primary", "reads")

    def __init__(self) -> None:
        self.databases = [Database(index) for index in range(DATABASES)]  # Databases by number
        self.history = ReplicationState()  # State of replication
        # Host and port of the followed server, with an empty host for none; None if no role was ever set
        self.primary: tuple[str, int] | None = None
        self.hands_over = False  # The followed server must still be asked to become the primary, or has not answered

        self.reads = ColdReads()  # The way to cold entries, for all streams
        self.packs: dict[int, str] = {}  # Identities of packs by number, as the log has named them

    @property
    def followed(self) -> tuple[str, int] | None:
        """Host and port of the primary; None without one."""
        return self.primary if self.primary is not None and self.primary[0] else None

    def apply(self, step: Transition) -> Any:
        """Apply one transition and return the result of its applier (the command may reply from it).

        Nothing is checked here. A transition with a missing key or group is a bug of the command that made it, and
        raises an error before anything is logged.
        """
        return OPS[step[0]](self, *step[1:])


@transition("set", counts=True)
def _set(space: Keyspace, db: int, key: bytes, data: bytes, expires_at: int | None) -> None:
    """Replace the value by a string; without ``expires_at`` (wall milliseconds) it does not expire."""
    base = space.databases[db]
    base.keys[key] = StringValue(data)
    if expires_at is None:
        base.expires.pop(key, None)
    else:
        base.expires[key] = expires_at


def _string(space: Keyspace, db: int, key: bytes) -> StringValue:
    """Return the string at a key, an empty one if the key does not exist."""
    value = space.databases[db].keys.setdefault(key, StringValue(b""))
    assert isinstance(value, StringValue)
    return value


@transition("append", counts=True)
def _append(space: Keyspace, db: int, key: bytes, part: bytes) -> None:
    _string(space, db, key).append(part)


@transition("overwrite", counts=True)
def _overwrite(space: Keyspace, db: int, key: bytes, offset: int, part: bytes) -> None:
    _string(space, db, key).overwrite(offset, part)


@transition("unset", counts=True)
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
    """Move a key for RENAME (same database) or MOVE (same key), replacing the value at the target."""
    source, target = space.databases[db], space.databases[new_db]
    # Removed before it is added: RENAME of a key to itself must not lose it
    size = source.size_of(key)
    value = source.keys.pop(key)
    expires_at = source.expires.pop(key, None)
    source.used -= size
    target.used += size - len(key) + len(new_key) - target.size_of(new_key)
    target.keys[new_key] = value
    target.expires.pop(new_key, None)
    if expires_at is not None:
        target.expires[new_key] = expires_at


@transition("copy")
def _copy(space: Keyspace, db: int, key: bytes, new_db: int, new_key: bytes) -> None:
    source, target = space.databases[db], space.databases[new_db]
    # The target loses its expiry even if the source has none
    target.used -= target.size_of(new_key)
    target.keys[new_key] = source.keys[key].copy()
    target.used += target.size_of(new_key)
    target.expires.pop(new_key, None)
    if key in source.expires:
        target.expires[new_key] = source.expires[key]


@transition("flush")
def _flush(space: Keyspace, db: int) -> None:
    space.databases[db].replace({}, {}, 0)


@transition("swap")
def _swap(space: Keyspace, db: int, other: int) -> None:
    one, two = space.databases[db], space.databases[other]
    # Sessions and contexts refer to these objects, so the contents change places
    keys, expires, used = one.keys, one.expires, one.used
    one.replace(two.keys, two.expires, two.used)
    two.replace(keys, expires, used)


@transition("hist")
def _history(  # noqa: PLR0917 - arguments equal the log's record
    space: Keyspace, db: int, replid: str, offset: int, replid2: str, second: int, earlier: Sequence[Any] = ()
) -> None:
    """Start another history, or none if ``replid`` is empty; see :mod:`millstream.engine.history`."""
    space.history = ReplicationState(replid, offset, db, replid2, second, tuple(earlier))


@transition("role")
def _role(space: Keyspace, db: int, host: str, port: int, hands_over: bool = False) -> None:  # noqa: ARG001 - every op begins with one
    """Follow another server from here on, or none if ``host`` is empty; ``db`` has no effect."""
    space.primary, space.hands_over = (host, port), hands_over


@transition("off")
def _offset(space: Keyspace, db: int, size: int) -> None:
    """Count the history's bytes for this record and those sent before it; ``db`` is selected after them."""
    space.history.advance(db, size)
