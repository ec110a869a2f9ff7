"""A keyspace as the payloads of a snapshot: records like the log's own, so that one way leads back from both."""

from collections.abc import Iterator
from typing import Any

from millstream.engine.keyspace import Keyspace, Transition
from millstream.engine.serialization.snapshot import transitions
from millstream.node.log import codec

# Bytes after which a payload is full; one transition may make it larger
PAYLOAD_BYTES = 1 << 19


def payloads(space: Keyspace, wall: int) -> Iterator[bytes]:
    """Records that make this keyspace out of an empty one."""
    steps: list[Transition] = []
    size = 0
    for step in transitions(space):
        steps.append(step)
        size += _size(step[3:])
        if size >= PAYLOAD_BYTES:
            yield codec.pack(wall, steps)
            steps, size = [], 0
    if steps:
        yield codec.pack(wall, steps)


def _size(words: Any) -> int:
    """Bytes of a transition's words, roughly."""
    size = 0
    for word in words:
        if type(word) is list:
            size += _size(word)
        else:
            size += len(word) + 3 if type(word) is bytes else 5
    return size
