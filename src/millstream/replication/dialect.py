"""The commands of newer Redis versions for each transition, and annotations for what no command expresses. PURE.

``repl-dialect`` is the oldest Redis version that may follow. :mod:`millstream.replication.words` has the commands for
7.0; this module has commands of newer versions that express more. An annotation carries to Millstream replicas what the
commands lose, see :mod:`millstream.replication.annotations`. ``repl-annotate`` selects the transitions that get one:
those with losses (``lossy``), also those that set times of consumers (``always``), or none (``never``).
"""

from collections.abc import Callable, Iterable
from itertools import groupby

from millstream.engine import ids
from millstream.engine.history import NO_DATABASE
from millstream.engine.keyspace import Keyspace, Transition
from millstream.replication.annotations import annotation
from millstream.replication.units import Command
from millstream.replication.words import Maker, Words, restored, stream_at, words

DIALECTS = ("7.0", "8.2", "8.6", "8.8")
"""Dialects in the order of their versions, which is also the order of the texts."""
COPIES = {"7.0": 10, "8.2": 11, "8.6": 13, "8.8": 14}
"""Version of the RDB file that replicas of a dialect get as their copy."""
NEVER, LOSSY, ALWAYS = "never", "lossy", "always"

# Redis's defaults: seconds for which a stream remembers messages, and their number
_BOUNDS = (100, 100)
# Name of a group that is created and deleted immediately, to create a stream without entries
_GUARD = b"millstream"
_TIMES = frozenset({"cseen", "gread", "gagain", "gclaim"})
"""Transitions that set the time at which a consumer was last seen or active, which no command does."""

# Number of items of a transition for a replica, which knows nothing of cold entries: not what was found in packs
_SHORTER = {"gread": 9, "xdrop": 5}

_NEWER: dict[str, tuple[str, Maker]] = {}
"""Version from which on a transition has other commands, with their maker."""


def commands_of(space: Keyspace, step: Transition, *, soft: bool, dialect: str, annotate: str) -> list[Command]:
    """Return the commands for a transition that was just applied, including annotations."""
    logged, step = step, step[: _SHORTER.get(step[0])]
    op, db = step[:2]
    if soft:
        return [(NO_DATABASE, annotation(0, step))] if annotate == ALWAYS and op in _TIMES else []
    since, newer = _NEWER.get(op, ("", None))
    if newer is not None and since > dialect:
        newer = None
    said = words(space, logged) if newer is None else list(newer(space, *step[1:]))
    commands: list[Command] = [(db, each) for each in said]
    if annotate == NEVER:
        return commands
    if op == "xadd":
        if step[6] is not None and newer is None:  # a short annotation, since the commands express everything else
            commands.append((NO_DATABASE, annotation(0, ("xidmp", db, step[2], *step[6], step[3]))))
    elif (annotate == ALWAYS and op in _TIMES) or _is_lossy(space, step, said, is_newer=newer is not None):
        commands.insert(0, (NO_DATABASE, annotation(len(said), step)))
    return commands


def _is_lossy(space: Keyspace, step: Transition, said: list[Words], *, is_newer: bool) -> bool:
    """Return True if a transition changes more than its commands express, in the oldest dialect or a newer one."""
    op = step[0]
    if op == "restore":  # Redis's payload loses the order of pending entries with equal times
        return stream_at(space, step[1], step[2]) is not None
    if is_newer:
        return op == "xidmpdup" and not said
    if op == "xnew":
        return step[3:] != _BOUNDS
    if op == "xdrop":
        return len(said) != 1  # a single command is a trim, which expresses the whole transition
    return op in {"xcfg", "xidmp", "xidmpdup", "xidmpexp", "gnack"}


def _since(version: str, op: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        _NEWER[op] = version, maker
        return maker

    return register


def _bounds(key: bytes, duration: int, maxsize: int) -> Words:
    return [b"XCFGSET", key, b"IDMP-DURATION", b"%d" % duration, b"IDMP-MAXSIZE", b"%d" % maxsize]


@_since("8.6", "xnew")
def _xnew(_space: Keyspace, _db: int, key: bytes, duration: int, maxsize: int) -> Iterable[Words]:
    if (duration, maxsize) != _BOUNDS:
        yield [b"XGROUP", b"CREATE", key, _GUARD, b"0", b"MKSTREAM"]
        yield _bounds(key, duration, maxsize)
        yield [b"XGROUP", b"DESTROY", key, _GUARD]


@_since("8.6", "xcfg")
def _xcfg(_space: Keyspace, _db: int, key: bytes, duration: int, maxsize: int) -> Iterable[Words]:
    yield _bounds(key, duration, maxsize)


@_since("8.6", "xadd")
def _xadd(
    _space: Keyspace, _db: int, key: bytes, entry_id: bytes, fields: Words, _fresh: bool, idmp: Words | None
) -> Iterable[Words]:
    """Record the message separately: a replica may still remember an earlier one and skip the XADD as a duplicate."""
    entry = ids.text(ids.unpack(entry_id))
    yield [b"XADD", key, entry, *fields]
    if idmp is not None:
        yield [b"XIDMPRECORD", key, *idmp, entry]


@_since("8.6", "xidmp")
def _xidmp(_space: Keyspace, _db: int, key: bytes, producer: bytes, message: bytes, entry_id: bytes) -> Iterable[Words]:
    yield [b"XIDMPRECORD", key, producer, message, ids.text(ids.unpack(entry_id))]


@_since("8.8", "xidmpdup")
def _xidmpdup(
    space: Keyspace, db: int, key: bytes, producer: bytes | None = None, message: bytes | None = None
) -> Iterable[Words]:
    """Add the message with its existing id: a replica without the message refuses the id, and adds nothing."""
    stream = stream_at(space, db, key)
    if stream is None or producer is None or message is None:
        return
    first = stream.idempotence.find(producer, message)
    if first is not None and first <= stream.last_id:  # otherwise the replica would add it as a new entry
        yield [b"XADD", key, b"NOMKSTREAM", b"IDMP", producer, message, ids.text(first), b"f", b"v"]


@_since("8.2", "xdrop")
def _xdrop(_space: Keyspace, _db: int, key: bytes, packed: bytes, _floor: bytes | None = None) -> Iterable[Words]:
    """Trim all acknowledged entries up to the last removed one, which are exactly the removed entries."""
    gone = ids.unpack_all(packed)
    if gone:
        last = max(gone)
        bound = [b"MAXLEN", b"=", b"0"] if last == ids.MAX_ID else [b"MINID", b"=", ids.text(last + 1)]
        yield [b"XTRIM", key, *bound, b"ACKED"]


@_since("8.8", "gnack")
def _gnack(_space: Keyspace, _db: int, key: bytes, group: bytes, packed: bytes, counts: list[int]) -> Iterable[Words]:
    """Yield one command for consecutive entries with the same count, so that the order of the pending list is kept."""
    for count, some in groupby(zip(ids.unpack_all(packed), counts, strict=True), key=lambda each: each[1]):
        names = [ids.text(entry) for entry, _ in some]
        head = [b"XNACK", key, group, b"FAIL", b"IDS", b"%d" % len(names)]
        yield [*head, *names, b"RETRYCOUNT", b"%d" % count, b"FORCE"]


@_since("8.8", "restore")
def _restore(space: Keyspace, db: int, key: bytes, _payload: bytes, expires_at: int | None) -> Iterable[Words]:
    return restored(space, db, key, expires_at, COPIES["8.8"])
