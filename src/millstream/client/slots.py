"""Which keys are neighbours in a cluster. Pure.

A cluster puts a key into one of 16,384 slots by the part of its name between the first ``{`` and the ``}`` behind it
(its hash tag), or by the whole name where there is none. Keys that one command, script or transaction touches must be
in one slot.
"""

from redis.crc import key_slot


def slot_of(key: str | bytes) -> int:
    """The slot of a key."""
    return int(key_slot(key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")))


def tag_of(key: str) -> str:
    """What a key's slot is computed from: its hash tag, or all of it."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed and tag else key


def beside(stream: str, kind: str, name: str) -> str:
    """A key of ours about a stream, in the stream's slot.

    (A stream whose name has a ``}`` and no tag of its own cannot have a neighbour; then the slots differ.)

    Args:
        stream: key of the stream.
        kind: what we keep there.
        name: of the group, and whatever else tells it from others of its kind.
    """
    tag = tag_of(stream)
    whole = name if tag == stream else f"{stream}:{name}"
    return f"millstream:{{{tag}}}:{kind}:{whole}"
