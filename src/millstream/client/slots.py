"""The slot of a key in a cluster, the keys that a command names, and the owners of slots. Pure.

A cluster puts a key into one of 16,384 slots by its hash tag: the part of its name between the first ``{`` and the next
``}``. A name without one counts whole. Keys that one command, script or transaction touches must be in one slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.crc import key_slot

Address = tuple[str, int]
"""Host and port of a node."""

#: Position of a command's first key, if it is not 1.
_KEY_AT = {"EVAL": 3, "EVALSHA": 3, "XINFO": 2, "XGROUP": 2, "OBJECT": 2, "MEMORY": 2, "TIER": 2}
_KEYLESS = frozenset(
    "MULTI EXEC UNWATCH SCAN CLIENT COMMAND INFO CONFIG DISCARD TIME ROLE PING ECHO".split()  # noqa: SIM905 - shorter than quoted words
)


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key."""
    return int(key_slot(key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")))


def tag_of(key: str) -> str:
    """Return the part of a key that decides its slot: its hash tag, or all of it."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed and tag else key


def beside(stream: str, kind: str, name: str) -> str:
    """Return a key of Millstream's for data about a stream, in the stream's slot.

    (A stream with a ``}`` in its name and no hash tag cannot have such a key; then the slots differ.)
    """
    tag = tag_of(stream)
    whole = name if tag == stream else f"{stream}:{name}"
    return f"millstream:{{{tag}}}:{kind}:{whole}"


def key_of(command: Sequence[bytes | str | int | float]) -> str | bytes | None:
    """Return the (first) key of a command; None if it does not name one."""
    name = str(command[0]).upper()
    at = _KEY_AT.get(name, 1)
    if name == "XREADGROUP":
        at = command.index("STREAMS") + 1
    if name in _KEYLESS or len(command) <= at:
        return None
    key = command[at]
    return key if isinstance(key, bytes) else str(key)


@dataclass(frozen=True, slots=True)
class Slots:
    """The owners of slots, as a node reported them."""

    # First slot, last slot, and the addresses of their nodes: the primary, then its replicas
    ranges: tuple[tuple[int, int, tuple[Address, ...]], ...] = ()

    @classmethod
    def of_reply(cls, rows: Any, asked: Address) -> "Slots":
        """Parse a reply to CLUSTER SLOTS; an empty host in it means the node that sent it."""
        return cls(
            tuple(
                (row[0], row[1], tuple(((node[0] or b"").decode() or asked[0], node[1]) for node in row[2:]))
                for row in rows
            )
        )

    @property
    def primaries(self) -> list[Address]:
        """Every node that has slots, replicas excluded."""
        return sorted({nodes[0] for _, _, nodes in self.ranges})

    def nodes(self, key: str | bytes) -> tuple[Address, ...]:
        """Return the primary that has a key, then its replicas; empty if its slot has no owner."""
        slot = slot_of(key)
        return next((nodes for first, last, nodes in self.ranges if first <= slot <= last), ())


def shown_key(key: str | bytes) -> str:
    """Return a key as text for messages; bytes that are not UTF-8 become question marks."""
    return key.decode(errors="replace") if isinstance(key, bytes) else key
