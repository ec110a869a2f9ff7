"""The layout of a partitioned stream: its partitions, and the choice of one by a key. Pure.

::

    millstream:{orders}:partitions     string: {"stream": "orders", "hash": "crc32", "by": "customer", "generations":
                                       [{"g": 1, "n": 16, "keys": ["orders{0}", ...], "from": [], "sealed": false}]}
    orders{0} ... orders{15}           the streams; partitions of one number share a slot of a cluster
    orders~2{0} ... orders~2{31}       the streams after a change of their number, and so on
    orders                             sealed by the highest last id: an XADD there is an error. It is empty, or the one
                                       stream of generation 0: a plain stream that was partitioned

Any program finds the partition of a key: ``keys[crc32(utf8(key)) % n]`` of the last generation. While the number
changes, the generation before it is not marked as sealed: the key's partition there takes the entry if it can. Any
client may write the descriptor. One that differs from the form of :func:`described` is refused, and none of its keys is
used.
"""

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.client.jsontext import parse_record
from millstream.client.slots import tag_of
from millstream.errors import MillstreamError, UsageError

HIGHEST_ID = "18446744073709551615-18446744073709551615"
"""The last id of a sealed stream: no entry can follow it."""

MOST = 1_024
"""Most partitions of one generation."""

_SEALED = "exhausted the last possible ID"
_PART = re.compile(r"(.+?)(?:~[1-9]\d{0,8})?\{\d{1,4}\}", re.DOTALL)


class LayoutError(MillstreamError):
    """The key that describes a partitioned stream is invalid.

    What to do: read the key that the message names. Remove it if no version of Millstream wrote it.
    """


@dataclass(frozen=True, slots=True)
class Generation:
    """The partitions of a stream between two changes of their number."""

    number: int  # Number from 1; 0 is the plain stream that was partitioned
    keys: tuple[str, ...]  # Keys of the partitions, in order
    parents: tuple[str, ...] = ()  # Keys of the previous generation's partitions
    sealed: bool = False  # All partitions are sealed, and the next generation gets new entries
    finished: bool = False  # All groups have handled it; only readers without a group may need it


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """The partitions of a stream, in all generations."""

    stream: str  # Name of the stream
    by: str | None  # Field with an entry's partition key, unless the publisher passes a key
    generations: tuple[Generation, ...]  # Generations, oldest first

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the partitions that receive new entries."""
        return self.generations[-1].keys

    @property
    def every_key(self) -> tuple[str, ...]:
        """Keys of the partitions of all generations, the oldest first."""
        return tuple(key for one in self.generations for key in one.keys)

    def has(self, key: str) -> bool:
        """Return True if the stream ``key`` is one of its partitions."""
        return key in self.every_key

    def place(self, key: bytes) -> str:
        """Return the partition of a key in the last generation."""
        return self.keys[zlib.crc32(key) % len(self.keys)]

    def places(self, key: bytes, *, known: bool) -> tuple[str, ...]:
        """Return the partitions that an entry is offered to, in turn: the first that is not sealed takes it.

        If its publisher may have added the entry before (``known``), earlier partitions, which could hold it, come
        first.
        """
        number = zlib.crc32(key)
        offered = [one for one in self.generations if not one.sealed or (known and not one.finished)]
        return tuple(one.keys[number % len(one.keys)] for one in offered)

    def parents(self, at: int) -> list[tuple[str, list[str]]]:
        """Return each partition of a generation, with the earlier partitions that may hold entries of its keys."""
        keys, before = self.generations[at].keys, self.generations[at - 1].keys if at else ()
        found = []
        for number, key in enumerate(keys):
            if before and len(keys) % len(before) == 0:
                found.append((key, [before[number % len(before)]]))
            else:
                step = len(keys) if len(before) % len(keys) == 0 else 1
                found.append((key, list(before[number % step :: step])))
        return found

    @property
    def numbered(self) -> dict[int, str]:
        """All partitions, by a number that stays the same."""
        return {one.number * MOST + at: key for one in self.generations for at, key in enumerate(one.keys)}


def descriptor_key(stream: str) -> str:
    """Return the key of the descriptor, in the slot of the stream's name."""
    return f"millstream:{{{tag_of(stream)}}}:partitions"


def part_key(stream: str, generation: int, number: int) -> str:
    """Return the key of one partition."""
    if not generation:
        return stream
    return f"{stream}{'' if generation == 1 else f'~{generation}'}{{{number}}}"


def logical(key: str) -> str | None:
    """Return the name of the partitioned stream to which a key belongs by its form; None for another form."""
    found = _PART.fullmatch(key)
    return None if found is None else found[1]


def first_layout(stream: str, number: int, by: str | None) -> PartitionLayout:
    """Return the layout of a new partitioned stream.

    Raises:
        UsageError: it cannot have this name, number of partitions or field.
    """
    if not isinstance(stream, str) or not stream or "{" in stream or "}" in stream:
        raise UsageError(
            f"the stream name {stream!r} is invalid: partitions have keys such as 'orders{{0}}'. Write a text without "
            "braces."
        )
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST:
        raise UsageError(
            f"the number of partitions {number!r} of {stream!r} is invalid: it must be 1 to {MOST}. Write 4 times the "
            "most workers that you will have."
        )
    if by is not None and (not isinstance(by, str) or not by):
        raise UsageError(
            f"the key field {by!r} of {stream!r} is invalid: it must be the name of a field. Write one such as "
            "'customer', or omit it."
        )
    keys = tuple(part_key(stream, 1, at) for at in range(number))
    return PartitionLayout(stream, by, (Generation(1, keys),))


def described(layout: PartitionLayout) -> str:
    """Return the descriptor of a layout, as JSON."""
    generations = [
        {"g": one.number, "n": len(one.keys), "keys": one.keys, "from": one.parents, "sealed": one.sealed}
        | ({"finished": True} if one.finished else {})
        for one in layout.generations
    ]
    record = {"stream": layout.stream, "hash": "crc32", "by": layout.by, "generations": generations}
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def parse_layout(stream: str, descriptor: bytes | None) -> PartitionLayout | None:
    """Parse the layout in a descriptor; None without a descriptor.

    Raises:
        LayoutError: Millstream did not write the descriptor.
    """
    if descriptor is None:
        return None
    try:
        return _layout(stream, parse_record(descriptor))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise damaged(stream, str(error)) from None


def damaged(stream: str, why: str) -> LayoutError:
    """Return the error about a descriptor that Millstream did not write."""
    return LayoutError(
        f"{descriptor_key(stream)} does not describe a partitioned stream: {why}. Read that key, and remove it if no "
        "version of Millstream wrote it."
    )


def _layout(stream: str, record: Any) -> PartitionLayout:
    _require(isinstance(record, Mapping), "it is not a record")
    _require(isinstance(record.get("stream"), str), "it names no stream")
    _require(record["stream"] == stream, f"it is about the stream {record['stream'][:40]!r}")
    _require(record.get("hash") == "crc32", "its hash is not crc32")
    by, rows = record.get("by"), record.get("generations")
    _require(by is None or (isinstance(by, str) and by), "its field is not a text")
    _require(isinstance(rows, list) and rows, "it has no generations")
    generations = tuple(_generation(stream, row) for row in rows)
    numbers = [one.number for one in generations]
    _require(numbers == sorted(set(numbers)), "its generations are not in order")
    _require(not generations[-1].sealed, "its last generation is sealed")
    return PartitionLayout(stream, by, generations)


def _generation(stream: str, row: Any) -> Generation:
    _require(isinstance(row, Mapping), "a generation is not a record")
    number, keys, parents = row.get("g"), row.get("keys"), row.get("from", [])
    _require(type(number) is int and 0 <= number <= MOST, "a generation's number is invalid")
    _require(isinstance(keys, list) and 1 <= len(keys) <= (MOST if number else 1), "a generation has no keys")
    _require(keys == [part_key(stream, number, at) for at in range(len(keys))], "its keys are not those of partitions")
    _require(isinstance(parents, list) and all(isinstance(one, str) for one in parents), "its parents are not keys")
    return Generation(number, tuple(keys), tuple(parents), row.get("sealed") is True, row.get("finished") is True)


def _require(holds: object, fault: str) -> None:
    if not holds:
        raise ValueError(fault)


def is_sealed(error: Exception | bytes) -> bool:
    """Return True if an XADD was refused because its stream is sealed."""
    return _SEALED in str(error)


def key_bytes(key: object) -> bytes:
    """Return a publisher's key as bytes.

    Raises:
        UsageError: it is neither text, bytes nor a number.
    """
    if isinstance(key, bytes):
        return key
    try:
        if isinstance(key, str):
            return key.encode("utf-8", "surrogateescape")
        if isinstance(key, int) and not isinstance(key, bool):
            return int.__repr__(key).encode()  # members of an IntEnum and NumPy floats have other reprs
        if isinstance(key, float) and not math.isnan(key):  # equal to no other key, not even to itself
            return float.__repr__(key).encode()
    except ValueError as error:  # a lone surrogate, or a number with thousands of digits
        raise UsageError(
            f"publish(key=) is invalid: {error}. Write a shorter number, or text that UTF-8 has."
        ) from None
    raise UsageError(f"publish(key={key!r}) is invalid: a key is text, bytes or a number. Write key=str(...).")
