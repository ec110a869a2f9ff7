"""Applying log records in order, the one way from records to a keyspace: at a start, in a rewrite and in a proof.

The native core, if present, applies records that only add entries to streams directly from their bytes. Nearly all
records do only that. All other records are unpacked, and the engine applies their transitions. Both ways give the same
keyspace.
"""

import gc
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from millstream import core
from millstream.engine.history import ReplicationState
from millstream.engine.keyspace import Database, Keyspace
from millstream.engine.streams.stream import Stream
from millstream.errors import MillstreamError, StorageError
from millstream.node.log import codec


def py_apply_plain(databases: list[Database], stream: type[Stream], payload: bytes, history: ReplicationState) -> int:  # noqa: ARG001 - its double's
    """Apply a record that only adds entries to existing streams, without producers' messages.

    Its last transition may count bytes of the replication stream.

    Returns:
        The record's wall milliseconds; -1 for any other record, which changes nothing. This function returns -1 for
        every record: only its double in C has the short cut.
    """
    return -1


def apply(space: Keyspace, payload: bytes, look: Callable[[list[Any]], None] | None = None) -> int:
    """Apply one record; return its wall milliseconds."""
    wall = apply_plain(space.databases, Stream, payload, space.history)
    if wall < 0:
        wall, steps = codec.unpack(payload)
        for step in steps:
            if look is not None:
                look(step)
            space.apply(tuple(step))
    return wall


def read_back(space: Keyspace, payloads: Iterable[bytes]) -> tuple[int, int]:
    """Apply logged records, in order, to an empty keyspace, in any thread.

    Returns:
        The number of records, and the wall milliseconds of the last one.
    """
    records = wall = 0
    collects = gc.isenabled()
    gc.disable()  # all new objects stay, so the collector would visit them repeatedly for nothing
    try:
        for payload in payloads:
            wall = apply(space, payload)
            records += 1
    except MillstreamError:
        raise
    except MemoryError as error:
        raise StorageError(
            f"there is no memory for record {records + 1} of those read; nothing was changed: give it more memory, "
            "and start again"
        ) from error
    except Exception as error:
        raise StorageError(
            f"record {records + 1} of those read is as it was written, but cannot be applied ({error!r}): if "
            "a newer Millstream has written it, start that one; `millstream log dump` shows it"
        ) from error
    finally:
        if collects:
            gc.enable()
    return records, wall


if TYPE_CHECKING:
    apply_plain = py_apply_plain
else:
    apply_plain = core.choose(py_apply_plain)
