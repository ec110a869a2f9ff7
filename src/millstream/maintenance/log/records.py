"""Log records for people and programs: each transition with named arguments, readable ids and times.

The names are those of the functions that apply the transitions, so a new op is readable as soon as it exists.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgpack

from millstream.engine import collection_ops, ids, keyspace, transitions
from millstream.errors import StorageError
from millstream.node.log import codec
from millstream.texts import plural

_OPS = keyspace.OPS
_LOADED = transitions.MODULES  # importing them registers their ops, including those that only a snapshot contains
_ID = frozenset({"entry_id", "bound", "last", "upto", "after", "max_deleted"})
# Values that are shown only by their size
_SHORT = frozenset({"payload", "extents", "extent", "holes", "places", "node"})
_HEAD = 32  # bytes of a record that contain its version and its time


@dataclass(frozen=True, slots=True)
class Change:
    """One transition."""

    op: str  # Name of the op in the log
    db: int | None  # Number of the database; None for an unknown op
    key: bytes | None  # Changed key; None for a whole database
    arguments: Mapping[str, object]  # Arguments by name; ids in text form

    @property
    def of_stream(self) -> bool:
        """True if the transition changes a stream, its groups or its consumers."""
        return self.op[:1] in {"x", "g", "c"} and self.op != "copy"

    def sentence(self) -> str:
        """Return one line: op, database and key, then the arguments."""
        parts = [self.op] if self.db is None else [self.op, f"db{self.db}"]
        parts += [] if self.key is None else [_word(self.key)]
        parts += [f"{name}={_word(value)}" for name, value in self.arguments.items() if value is not None]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One log record: the changes of one command or one transaction."""

    position: int  # Position in the log, starting at 1
    wall: int  # Wall milliseconds of the record
    changes: tuple[Change, ...]  # Transitions of the record
    size: int  # Size of the payload in bytes


def read_record(position: int, payload: bytes) -> LogRecord:
    """Return a record in readable form."""
    wall, steps = _unpack(position, payload)
    return LogRecord(position, wall, tuple(_change(step) for step in steps), len(payload))


class NewerRecordError(StorageError):
    """A newer version of Millstream wrote this record.

    The record is not damaged, so this version must not cut it. A plain :class:`StorageError` means that no version
    wrote these bytes.

    What to do: use the version of Millstream that wrote the directory, or a later one.
    """


def expect_record(position: int, payload: bytes) -> None:
    """Raise an error if a record's own bytes show that it cannot be applied. Cheaper than :func:`read_record`."""
    for op, *arguments in _unpack(position, payload)[1]:
        if op not in _OPS:
            raise NewerRecordError(f"its op {op!r} is unknown")
        least, most = _takes(op)
        if not least <= len(arguments) <= most:
            raise StorageError(f"its op {op!r} has {len(arguments)} arguments")


def wall_of(position: int, payload: bytes) -> int:
    """Return a record's wall time in milliseconds. Cheaper than :func:`read_record`, which reads the changes too."""
    head = msgpack.Unpacker()
    head.feed(payload[:_HEAD])
    try:
        head.read_array_header()
        version, wall = head.unpack(), head.unpack()
    except (ValueError, msgpack.UnpackException) as error:
        raise StorageError(f"record {position} is not a record of Millstream ({error})") from error
    if version != codec.VERSION or not isinstance(wall, int):
        return _unpack(position, payload)[0]  # raises the reason
    return wall


def _unpack(position: int, payload: bytes) -> tuple[int, list[list[Any]]]:
    try:
        wall, steps = codec.unpack(payload)
    except StorageError as error:
        raise NewerRecordError(str(error)) from error
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StorageError(
            f"record {position} is not a record of Millstream ({str(error) or type(error).__name__})"
        ) from error
    if type(wall) is not int or type(steps) is not list or not all(map(_is_step, steps)):
        raise StorageError(f"record {position} is not a record of Millstream (its transitions are invalid)")
    return wall, steps


def _is_step(step: object) -> bool:
    # msgpack produces lists, never tuples; anything else comes from another program
    return type(step) is list and bool(step) and type(step[0]) is str


def _change(step: list[Any]) -> Change:
    # The arguments of an unknown op are shown by number, since a partial display is better than none
    op, arguments = str(step[0]), step[1:]
    names = _names(op)
    if op not in _OPS or not _takes(op)[0] <= len(arguments) <= len(names):
        return Change(op, None, None, {f"argument{n}": value for n, value in enumerate(arguments, 1)})
    named = dict(zip(names, arguments, strict=False))  # an older record lacks the later arguments
    key = named.pop("key", None)
    db = named.pop("db")
    return Change(op, db, key, {name: _readable(name, value) for name, value in named.items()})


@cache
def _takes(op: str) -> tuple[int, int]:
    """Return the smallest and the largest number of arguments of an op."""
    given = list(inspect.signature(_OPS[op]).parameters.values())[1:]
    return sum(one.default is one.empty for one in given), len(given)


@cache
def _names(op: str) -> tuple[str, ...]:
    return tuple(inspect.signature(_OPS[op]).parameters)[1:] if op in _OPS else ()


def _readable(name: str, value: Any) -> object:
    if name in _ID and isinstance(value, bytes):
        return ids.text(ids.unpack(value)).decode()
    if name == "ids" and isinstance(value, bytes):
        return [ids.text(each).decode() for each in ids.unpack_all(value)]
    if name == "scores" and isinstance(value, bytes):
        return list(collection_ops.unpack_scores(value))
    if name in _SHORT and isinstance(value, bytes):
        return f"({plural(len(value), 'byte')})"
    if name in _SHORT and isinstance(value, list):
        return f"({plural(len(value), 'part')})"
    return value


def _word(value: object) -> str:
    """Return a value as one line. Bytes are quoted and escaped."""
    if isinstance(value, bytes):
        return repr(value)[1:]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_word(each) for each in value) + "]"
    return str(value)


def added_ids(change: Change) -> Iterator[str]:
    """Yield the ids of the entries that a change adds to a stream."""
    if change.op == "xadd":
        yield str(change.arguments["entry_id"])
