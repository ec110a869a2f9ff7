"""Applying log records, in order: the one way from records to a keyspace, for a start, a rewriting and a proof.

A record that only adds entries to streams, as nearly all do, is applied by the native core from its bytes where there
is one; any other is unpacked, and its transitions are applied by the engine. Both give the same keyspace.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream import core
from millstream.engine.history import ReplicationState
from millstream.engine.keyspace import Database, Keyspace
from millstream.engine.streams.stream import Stream
from millstream.node.log import codec


def py_apply_plain(databases: list[Database], stream: type[Stream], payload: bytes, history: ReplicationState) -> int:  # noqa: ARG001 - its double's
    """Apply a record that does nothing but add entries to streams that are there, and says nothing of idempotence.

    At its end it may say how far the stream for replicas is.

    Args:
        databases: of the keyspace.
        stream: the class of streams.
        payload: the record.
        history: of the keyspace.

    Returns:
        Its wall milliseconds; -1 if it is none of these, so nothing was changed. Here that is so of every record: the
        ordinary way is what the double in C takes a short cut of.
    """
    return -1


def apply(space: Keyspace, payload: bytes, look: Callable[[list[Any]], None] | None = None) -> int:
    """Apply one record; its wall milliseconds.

    Args:
        space: to which.
        payload: the record.
        look: raises if a transition is not to be applied; the native core makes sure itself of what it applies.

    Raises:
        StorageError: it is of a later version than this program knows.
    """
    wall = apply_plain(space.databases, Stream, payload, space.history)
    if wall < 0:
        wall, steps = codec.unpack(payload)
        for step in steps:
            if look is not None:
                look(step)
            space.apply(tuple(step))
    return wall


if TYPE_CHECKING:
    apply_plain = py_apply_plain
else:
    apply_plain = core.choose(py_apply_plain)
