"""Annotations: transitions inside the stream for Millstream replicas, sent as ``PING`` with a payload. PURE.

A payload is :data:`MARK` and a list in the plain form: a number of commands, and the transition. A replica that applies
the transition skips that many commands after it. For every other replica it is a PING, which changes nothing; Redis
accepts one from its primary without a reply, in a transaction too.

An annotation is checked like a command. Only the transitions in :data:`_SHAPES` are accepted, and only those that the
engine can apply to the present data.

Source: https://redis.io/docs/latest/commands/ping/
"""

from collections.abc import Callable
from typing import Any

from millstream.engine import ids
from millstream.engine.keyspace import DATABASES, Keyspace, Transition
from millstream.engine.serialization import dump, plain
from millstream.engine.streams.group import Group
from millstream.engine.streams.stream import Stream

MARK = b"\xffMS1"
_MOST = 2**63 - 1
_ID = 16


class AnnotationError(Exception):
    """A transition that cannot be applied here."""


def annotation(covers: int, step: Transition) -> list[bytes]:
    """Return a PING that carries a transition."""
    op, *arguments = step[: 3 + len(_SHAPES[step[0]])]
    return [b"PING", MARK + plain.pack([covers, op.encode(), *arguments])]


def is_annotation(words: list[bytes]) -> bool:
    """Return True if a command is an annotation."""
    return len(words) == 2 and words[1].startswith(MARK) and words[0].upper() == b"PING"


def read(payload: bytes) -> tuple[int, Transition]:
    """Parse an annotation: return the number of commands that it replaces, and its transition, checked by shape."""
    try:
        parts = plain.unpack(payload[len(MARK) :])
    except plain.MalformedError as error:
        raise AnnotationError(f"an annotation is damaged: {error}") from None
    if not isinstance(parts, list) or len(parts) < 4:
        raise AnnotationError("an annotation is too short")
    covers, name, db, key, *arguments = parts
    op = name.decode("ascii", "replace") if isinstance(name, bytes) else ""
    shapes = _SHAPES.get(op)
    if shapes is None:
        raise AnnotationError(f"an annotation has a transition that none may have: {op[:20]!r}")
    fits = _number(covers) and _number(db) and db < DATABASES and isinstance(key, bytes)
    if not fits or len(arguments) != len(shapes):
        raise AnnotationError(f"the annotation {op} has other arguments")
    if not all(shape(argument) for shape, argument in zip(shapes, arguments, strict=True)):
        raise AnnotationError(f"the annotation {op} has an argument that it cannot have")
    return covers, (op, db, key, *arguments)


def check(space: Keyspace, step: Transition) -> None:
    """Check that a parsed transition can be applied to the data."""
    op, db, key, *arguments = step
    value = space.databases[db].keys.get(key)
    if op == "restore":
        if not dump.is_whole(arguments[0]):
            raise AnnotationError("an annotation restores a payload that is damaged")
        return
    if op == "xnew":
        if value is not None:
            raise AnnotationError("an annotation makes a stream where there is something")
        return
    if not isinstance(value, Stream):
        raise AnnotationError(f"the annotation {op} names a stream that does not exist")
    if op == "xdrop" and not all(entry in value.entries for entry in ids.unpack_all(arguments[0])):
        raise AnnotationError("an annotation trims entries that are not there")
    if op[0] in "gc":
        group = value.groups.get(arguments[0])
        if group is None:
            raise AnnotationError(f"the annotation {op} is of a group that is not there")
        _check_records(value, group, op, arguments)


def _check_records(stream: Stream, group: Group, op: str, arguments: list[Any]) -> None:
    """Check that the delivered or claimed entries exist or are pending, without duplicates unless for ``gnack``."""
    if op not in {"gagain", "gclaim", "gnack"}:
        return
    entries = ids.unpack_all(arguments[-1 if op == "gagain" else -2])
    if op == "gagain":
        holder = group.consumers.get(arguments[1])
        fits = holder is not None and all(entry in holder.pending for entry in entries)
    else:
        fits = len(arguments[-1]) == len(entries)
        fits = fits and all(entry in group.pending or entry in stream.entries for entry in entries)
    if not fits or (op != "gnack" and len(set(entries)) != len(entries)):
        raise AnnotationError(f"the annotation {op} is of entries that are not as it says")


# ---------------------------------------------------------------------- shapes of arguments

Shape = Callable[[Any], bool]


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _between(least: int, most: int) -> Shape:
    return lambda value: type(value) is int and least <= value <= most


def _optional(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def _bytes(value: Any) -> bool:
    return isinstance(value, bytes)


def _name(value: Any) -> bool:
    return isinstance(value, bytes) and bool(value)


def _id(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == _ID


def _ids(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) % _ID == 0


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_number, value))


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


_BOUNDS = (_between(1, 86_400), _between(1, 10_000))
_CONSUMER = (_bytes, _bytes, _number)
_SHAPES: dict[str, tuple[Shape, ...]] = {
    "xnew": _BOUNDS,
    "xcfg": _BOUNDS,
    "xidmp": (_name, _name, _id),
    "xidmpdup": (),
    "xidmpexp": (_number,),
    "xdrop": (_ids, _optional(_id)),
    "restore": (_bytes, _optional(_number)),
    "cseen": _CONSUMER,
    "gread": (*_CONSUMER, _id, _flag, _id),
    "gagain": (*_CONSUMER, _ids),
    "gclaim": (*_CONSUMER, _number, _ids, _counts),
    "gnack": (_bytes, _ids, _counts),
}
"""The transitions that annotations may carry, with the shapes of their arguments after the key."""
