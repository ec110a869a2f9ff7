"""A sealed node as bytes of a file, in the form that the native core has in memory (``_core/node.h``).

PURE. The field names of the first entry (varint of their number; varint of the size and the bytes of each), then the
entries, one after the other::

    varint  (bytes after the id) << 2 | has the first entry's names << 1 | is a tombstone
    varint  milliseconds since the entry before (the first entry: since the node's first id)
    varint  with the same milliseconds the difference of the sequences, else the sequence
    [varint number of fields]            only with names of its own; then names and values in turn, else values only
    varint size, bytes                   and so on

A varint has seven bits a byte, the lowest first. A node's facts (:class:`NodeFigures`) are not in its bytes. A reader
of one entry needs them, so a file stores them elsewhere (:mod:`millstream.engine.streams.extents`).

The bytes of a file are not trusted: each size is compared with the number of bytes left before it is used.
"""

import struct
from itertools import accumulate
from typing import Any, NamedTuple

from millstream.engine.ids import MAX64, MAX_ID, pack_all
from millstream.engine.streams import listpack
from millstream.engine.streams.nodes import Block, encode_entry

_VARINT_BITS = 64
NODE_MOST = 1 << 28  # Largest size in bytes of a node in a file
_SHORT = 3  # number of empty values that take no more bytes than one empty field
_GROWTH_MAX = 1 << 28  # bytes by which a node's entries may be larger in replies than in this form


class NodeFigures(NamedTuple):
    """The facts about a node that the native core stores next to its bytes."""

    begin: int  # Position of the first entry, behind the names
    stored: int  # Number of entries, including tombstones
    dead: int  # Number of tombstones
    payload: int  # Size of Redis's listpack in bytes, without the two counters at its head; see :func:`lean`
    first: int  # First stored id
    last: int  # Last stored id
    low: int  # Position of the first live entry; if there is none, the size
    before_low: int  # Id before that entry; if there is none, the last stored id
    first_live: int  # First live id; 0 if there is none
    last_live: int  # Last live id; 0 if there is none


def varint(number: int) -> bytes:
    """Return a number as a varint, in as few bytes as possible."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    number = shift = 0
    while at < len(data) and shift < _VARINT_BITS:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number > MAX64:
                break
            return number, at
        shift += 7
    raise ValueError("a node is damaged: a number does not end")


def difference(before: int, entry_id: int) -> bytes:
    """Return an id as its distance from a lower one: milliseconds, then the sequence or its difference."""
    ms = (entry_id >> 64) - (before >> 64)
    return varint(ms) + varint(entry_id & MAX64 if ms else entry_id - before)


def read_difference(data: bytes, at: int, before: int) -> tuple[int, int]:
    """Return the id at the stored distance from ``before``, and the position after it."""
    ms, at = read_varint(data, at)
    seq, at = read_varint(data, at)
    found = (before >> 64) + ms << 64 | seq if ms else before + seq
    if found > MAX_ID or found >> 64 != (before >> 64) + ms:
        raise ValueError("a node is damaged: an id is too large")
    return found, at


def encode(node: Block) -> tuple[NodeFigures, bytes]:
    """Return the facts and the bytes of a node, of either core."""
    native = getattr(node, "form", None)  # only the native core's nodes have it
    if native is not None:
        facts, data = native()
        return NodeFigures(*facts), data
    entries = list(node.entries())
    first, _, fields = entries[0]
    names = fields[::2]
    out = bytearray(varint(len(names)) + _words(names))
    begin, before, dead = len(out), first, 0
    low = before_low = first_live = last_live = 0
    for entry_id, is_dead, fields in entries:
        if is_dead:
            dead += 1
        else:
            if not low:
                low, before_low, first_live = len(out), before, entry_id
            last_live = entry_id
        same = fields[::2] == names
        body = _words(fields[1::2]) if same else varint(len(fields) // 2) + _words(fields)
        out += varint(len(body) << 2 | same << 1 | is_dead) + difference(before, entry_id) + body
        before = entry_id
    if not low:
        low, before_low = len(out), before
    payload = node.size - listpack.integer(len(entries) - dead) - listpack.integer(dead)
    facts = NodeFigures(begin, len(entries), dead, payload, first, before, low, before_low, first_live, last_live)
    return facts, bytes(out)


def lean(facts: NodeFigures, data: bytes, died: int = 0) -> tuple[NodeFigures, bytes]:
    """Return a node whose dead entries have no values, since nobody reads them; ``died`` has positions of more of them.

    Such an entry keeps its id and its place. One empty field takes the place of its fields, which every reader of nodes
    accepts. Shared names stay where that is as short, and for the first entry, which names them.

    The size of the listpack stays that of before. So a node that gets hot again is as full as one that was never cold,
    and clients see no difference in the nodes that follow.
    """
    names, at = _read_counted(data, 0, 1)
    out, before = bytearray(data[:at]), facts.first
    dead = low = before_low = first_live = last_live = 0
    for position in range(facts.stored):
        begin = at
        head, at = read_varint(data, begin)
        place = at
        entry_id, at = read_difference(data, place, before)
        end = at + (head >> 2)
        if head & 1 or died >> position & 1:
            dead += 1
            same = not position or names == [b""] or bool(head & 2 and len(names) <= _SHORT)
            body = _words([b""] * len(names)) if same else varint(1) + _words([b"", b""])
            out += varint(len(body) << 2 | same << 1 | 1) + data[place:at] + body
        else:
            if not low:
                low, before_low, first_live = len(out), before, entry_id
            last_live = entry_id
            out += data[begin:end]
        before, at = entry_id, end
    if not low:
        low, before_low = len(out), before
    fresh = facts._replace(dead=dead, low=low, before_low=before_low)
    return fresh._replace(first_live=first_live, last_live=last_live), bytes(out)


def may_go(node: Block) -> bool:
    """Return True if a node, of either core, may go to a file: a larger one would not be read back, and so stays."""
    size, stored = node.size, node.stored
    # Each entry repeats the names at most, and each word has at most five bytes more in replies
    if size <= NODE_MOST and stored * (64 + 6 * size) <= _GROWTH_MAX:
        return True
    facts, data = encode(node)
    if len(data) > NODE_MOST:
        return False
    words = stored * (64 + 6 * facts.begin) + 6 * len(data)
    return words <= _GROWTH_MAX or len(node.pack()[-1]) - len(data) <= _GROWTH_MAX


def _words(words: list[bytes]) -> bytes:
    return b"".join([varint(len(word)) + word for word in words])


def decode(facts: NodeFigures, data: bytes) -> list[Any]:
    """Return the node in the form that both cores unpack, see :meth:`~millstream.engine.streams.nodes.Block.pack`.

    The node is decoded and encoded again: only facts and bytes that :func:`encode` would make are accepted.
    """
    names, at = _read_counted(data, 0, 1)
    ids: list[int] = []
    dead: list[int] = []
    wire: list[bytes] = []
    before, total = facts.first, 0
    while at < len(data):
        head, at = read_varint(data, at)
        entry_id, at = read_difference(data, at, before)
        if head >> 2 > len(data) - at:
            raise ValueError("a node is damaged: an entry is cut off")
        if head & 2:
            values, at = _read_words(data, at, len(names))
            fields = [word for pair in zip(names, values, strict=True) for word in pair]
        else:
            fields, at = _read_counted(data, at, 2)
        if head & 1:
            dead.append(len(ids))
        elif ids and entry_id == before:  # a tombstone may repeat the previous id, a live entry must not
            raise ValueError("a node is damaged: an id is another one")
        ids.append(before := entry_id)
        wire.append(encode_entry(entry_id, fields))
        total += len(wire[-1])
        if total > len(data) + _GROWTH_MAX:  # a few bytes may expand to many, since entries share names
            raise ValueError("a node is damaged: its entries are too large")
    live = sorted({*range(len(ids))}.difference(dead))
    counters = [live[0], live[-1] + 1, facts.payload] if live else [len(ids), 0, facts.payload]
    offsets = list(accumulate(map(len, wire[:-1]), initial=0))
    packed = [pack_all(ids), struct.pack(f"<{len(ids)}I", *offsets[: len(ids)]), dead, counters, names, b"".join(wire)]
    if encode(Block.unpack(packed, None)) != (facts, data):
        raise ValueError("a node is damaged: its bytes and its facts are not of one node")
    return packed


def _read_counted(data: bytes, at: int, each: int) -> tuple[list[bytes], int]:
    """Read strings with a count in front; the count is of strings, or of pairs."""
    count, at = read_varint(data, at)
    if not count:
        raise ValueError("a node is damaged: an entry has no fields")
    return _read_words(data, at, count * each)


def _read_words(data: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    if count > len(data) - at:  # each one takes at least one byte
        raise ValueError("a node is damaged: a word is missing")
    words = []
    for _ in range(count):
        size, at = read_varint(data, at)
        if size > len(data) - at:
            raise ValueError("a node is damaged: a word is cut off")
        words.append(data[at : at + size])
        at += size
    return words, at
