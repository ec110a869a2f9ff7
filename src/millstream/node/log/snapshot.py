"""A keyspace as the payloads of a snapshot: records of the log's own form, so that one reader reads both."""

from collections.abc import Iterator
from typing import Any

from millstream.engine.keyspace import Keyspace, Transition
from millstream.engine.serialization.snapshot import transitions
from millstream.node.log import codec

# Size in bytes from which a payload is full; a single transition may make it larger
PAYLOAD_BYTES = 1 << 19


def payloads(space: Keyspace, wall: int, *, is_thawed: bool = False) -> Iterator[bytes]:
    """Yield records that make this keyspace from an empty one, with ``is_thawed`` one without cold entries."""
    steps: list[Transition] = []
    size = 0
    for step in transitions(space, is_thawed=is_thawed):
        steps.append(step)
        size += _size(step[3:])
        if size >= PAYLOAD_BYTES:
            yield codec.pack(wall, steps)
            steps, size = [], 0
    if steps:
        yield codec.pack(wall, steps)


def _size(words: Any) -> int:
    """Approximate size of a transition's arguments in a record, in bytes."""
    size = 0
    for word in words:
        if type(word) is list:
            size += _size(word)
        else:
            size += len(word) + 3 if type(word) is bytes else 5
    return size
