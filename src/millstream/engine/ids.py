"""Entry ids: 128-bit numbers, ``ms << 64 | seq``, and every form in which Redis accepts one from a client.

Inside the engine an id is a plain ``int``, so comparing and incrementing ids is integer arithmetic. A pair or a class
would cost an allocation for each comparison of a bisection. Transitions and the log write an id as 16 bytes,
big-endian, which sort the same way. Clients see it as ``ms-seq``.

The valid forms depend on the argument: ``*`` and ``ms-*`` in XADD, ``-``, ``+`` and ``(id`` in ranges, ``$`` and ``>``
in reads. This module has the forms; commands choose among them.

Redis tries its own strict reader on each half, then C's ``strtoull`` if that fails. So odd forms are ids (``05-07``,
``+9-1``, `` 13-1``, ``11--0``), and a client that pads numbers with blanks still works.
"""

import re
import struct
from typing import Annotated

MAX64 = 2**64 - 1
MIN_ID = 0
MAX_ID = 2**128 - 1

PACKED_SIZE = 16
# An argument of a transition that contains one id; :mod:`millstream.node.log.foreign` reads such annotations.
PackedId = Annotated[bytes, PACKED_SIZE]

INVALID = "ERR Invalid stream ID specified as stream command argument"

# Accepts what strtoull accepts: blanks, a sign and digits, but nothing after them
_STRTOULL = re.compile(rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)\Z")
_CANONICAL_NEGATIVE = re.compile(rb"-[1-9][0-9]{0,18}\Z")

# Ids with a time before 2000, or this far in the future, are a user's own numbers (milliseconds)
_FIRST_TIME, _AHEAD = 946_684_800_000, 86_400_000


def make(ms: int, seq: int) -> int:
    """The id with these two halves, each 0..2^64-1."""
    return ms << 64 | seq


def is_timed(entry_id: int, wall: int) -> bool:
    """True if an id is a time, with the clock at ``wall``; else the ids of its stream have no age."""
    return _FIRST_TIME <= entry_id >> 64 <= wall + _AHEAD


def text(entry_id: int) -> bytes:
    """The id as clients see it: ``ms-seq``."""
    return b"%d-%d" % (entry_id >> 64, entry_id & MAX64)


def pack(entry_id: int) -> bytes:
    """The id as 16 bytes, big-endian."""
    return entry_id.to_bytes(16, "big")


def unpack(packed: bytes) -> int:
    """The id that 16 bytes represent."""
    return int.from_bytes(packed, "big")


def pack_all(ids: list[int]) -> bytes:
    """Several ids, 16 bytes each."""
    return b"".join([entry_id.to_bytes(16, "big") for entry_id in ids])


def unpack_all(packed: bytes) -> list[int]:
    """The ids in a run of 16-byte pieces."""
    return [ms << 64 | seq for ms, seq in struct.iter_unpack(">QQ", packed)]


def _unsigned(digits: bytes) -> int | None:
    """A number that fits 64 bits, with any number of leading zeros."""
    digits = digits.lstrip(b"0")
    if len(digits) > 20:  # int() itself rejects thousands of digits
        return None
    value = int(digits or b"0")
    return value if value <= MAX64 else None


def half(word: bytes) -> int | None:
    """One half of an id, or a cursor, as C's ``strtoull`` reads it after Redis's own strict reader refused it.

    The strict reader reads a canonical negative 64-bit number, and refuses it for its sign. ``strtoull`` reads any
    other negative number (``-0``, ``-00``); it takes signs and wraps around.
    """
    if word.isdigit():
        return _unsigned(word)
    # The strict reader fails beyond 64 bits, so strtoull reads such a number
    if len(word) <= 20 and _CANONICAL_NEGATIVE.match(word) and int(word) >= -(2**63):
        return None
    found = _STRTOULL.match(word)
    value = None if found is None else _unsigned(found[2])
    if found is None or value is None:
        return None
    return -value & MAX64 if found[1] == b"-" else value


def _halves(word: bytes) -> tuple[bytes, bytes | None] | None:
    """Both halves as text; None if the text cannot be an id.

    A C string ends at its first NUL. Redis copies the text to a buffer of 128 bytes, NUL included: longer texts are not
    ids.
    """
    if len(word) > 127:
        return None
    head, dash, tail = word.partition(b"\0")[0].partition(b"-")
    return head, (tail if dash else None)


def parse(word: bytes, missing_seq: int = 0) -> int | None:
    """An explicit id; None if it is not one."""
    head, _, tail = word.partition(b"-")
    # A shortcut with the same result as the code below; most ids take it
    if tail.isdigit() and head.isdigit() and len(head) < 20 > len(tail):
        return int(head) << 64 | int(tail)  # any 19 digits fit 64 bits
    halves = _halves(word)
    if halves is None:
        return None
    ms = half(halves[0])
    seq = missing_seq if halves[1] is None else half(halves[1])
    if ms is None or seq is None:
        return None
    return ms << 64 | seq


def parse_auto_seq(word: bytes) -> int | None:
    """The milliseconds of ``ms-*``; None if the text is not of that form."""
    halves = _halves(word)
    if halves is None or halves[1] != b"*":
        return None
    return half(halves[0])


def parse_special(word: bytes, missing_seq: int = 0) -> int | None:
    """An id, or ``-`` (the smallest) or ``+`` (the largest)."""
    plain = word.partition(b"\0")[0] if len(word) <= 127 else word
    if plain == b"-":
        return MIN_ID
    if plain == b"+":
        return MAX_ID
    return parse(word, missing_seq)


def parse_bound(word: bytes, missing_seq: int) -> tuple[int, bool] | None:
    """One end of a range, and True if it is exclusive (``(id``); ``-`` and ``+`` cannot be exclusive."""
    if len(word) > 1 and word[:1] == b"(":
        found = parse(word[1:], missing_seq)
        return None if found is None else (found, True)
    found = parse_special(word, missing_seq)
    return None if found is None else (found, False)
