"""An extent: neighbouring sealed nodes of one stream as one payload of a pack, with a table to read single nodes by.

PURE. Integers are little-endian, varints and differences of ids as in :mod:`millstream.engine.streams.nodeform`::

    1 byte   form: 1
    4 bytes  bytes of the table
    4 bytes  CRC-32 of the table
    table    varint nodes; 16 bytes (big-endian) first id; then for each node
             varint size of its bytes; 4 bytes CRC-32 of them; varint begin
             varint stored; varint dead; varint payload
             first id as a difference to the last of the node before; last id as a difference to the first
             only with tombstones and live entries: varint low; before_low, first_live and last_live as differences
             to the first id
    bytes    of the nodes, one after the other

The frame of a pack has a checksum of all of it, for readers of whole files. The two here are for a reader of the table,
and of one node.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from millstream.engine.ids import PACKED_SIZE, pack, unpack
from millstream.engine.streams import nodeform
from millstream.engine.streams.nodeform import NodeFigures, difference, read_difference, read_varint, varint
from millstream.engine.streams.nodes import Block

FORM = 1
_HEAD = struct.Struct("<BII")
_CRC = struct.Struct("<I")
_LEAST_ROW = 13  # smallest row of a table in bytes


class NewerExtentError(ValueError):
    """An extent of a form that only a newer program reads."""


class NodeRow(NamedTuple):
    """One node in the table of an extent."""

    facts: NodeFigures  # Figures of the node
    begin: int  # Position of the node in the payload
    size: int  # Size of the node in bytes
    crc: int  # CRC-32 of the node's bytes


def encode(nodes: Sequence[Block]) -> bytes:
    """Return the payload of neighbouring nodes, at least one, of either core."""
    return join([nodeform.encode(node) for node in nodes])


def join(found: Sequence[tuple[NodeFigures, bytes | memoryview]]) -> bytes:
    """Return the payload of neighbouring encoded nodes, at least one."""
    before = found[0][0].first
    table = bytearray(varint(len(found)) + pack(before))
    for facts, data in found:
        table += varint(len(data)) + _CRC.pack(crc32(data)) + varint(facts.begin)
        table += varint(facts.stored) + varint(facts.dead) + varint(facts.payload)
        table += difference(before, facts.first) + difference(facts.first, facts.last)
        if 0 < facts.dead < facts.stored:
            table += varint(facts.low)
            table += b"".join(difference(facts.first, each) for each in facts[-3:])
        before = facts.last
    return b"".join((_HEAD.pack(FORM, len(table), crc32(table)), table, *(data for _, data in found)))


def rows(payload: bytes) -> list[NodeRow]:
    """The table of an extent; its sizes fit the payload."""
    return table_rows(payload, len(payload))


def table_end(data: bytes, size: int) -> int:
    """Return the end of the table of an extent that begins with this data and has this size in bytes."""
    if len(data) < _HEAD.size:
        raise ValueError("an extent is damaged: it is cut short")
    form, length, _ = _HEAD.unpack_from(data)
    if form != FORM:
        raise NewerExtentError(f"an extent is of form {form}; this program reads form {FORM}")
    place: int = _HEAD.size + length
    if place > size:
        raise ValueError("an extent is damaged: its table has another length")
    return place


def table_rows(data: bytes, size: int) -> list[NodeRow]:
    """The table of an extent of this size in bytes that begins with this data."""
    place = table_end(data, size)
    _, length, crc = _HEAD.unpack_from(data)
    table = data[_HEAD.size : place]
    if len(table) != length or crc32(table) != crc:
        raise ValueError("an extent is damaged: the checksum of its table is wrong")
    count, at = read_varint(table, 0)
    last = unpack(table[at : at + PACKED_SIZE])
    at += PACKED_SIZE
    if not 0 < count <= (length - at) // _LEAST_ROW:
        raise ValueError("an extent is damaged: its table has another length")
    found = []
    for _ in range(count):
        length_of, crc, facts, at = _read_row(table, at, last)
        found.append(NodeRow(facts, place, length_of, crc))
        place, last = place + length_of, facts.last
    if at != length or place != size:
        raise ValueError("an extent is damaged: its nodes have another length")
    return found


def _read_row(table: bytes, at: int, before: int) -> tuple[int, int, NodeFigures, int]:
    size, at = read_varint(table, at)
    if len(table) - at < _CRC.size:
        raise ValueError("an extent is damaged: its table has another length")
    (crc,) = _CRC.unpack_from(table, at)
    begin, at = read_varint(table, at + _CRC.size)
    stored, at = read_varint(table, at)
    dead, at = read_varint(table, at)
    payload, at = read_varint(table, at)
    first, at = read_difference(table, at, before)
    last, at = read_difference(table, at, first)
    if not 0 < begin < size or not dead <= stored or not 0 < stored <= size:
        raise ValueError("an extent is damaged: a node has more entries than bytes")
    live = (begin, first, first, last) if not dead else (size, last, 0, 0)
    if 0 < dead < stored:
        low, at = read_varint(table, at)
        before_low, at = read_difference(table, at, first)
        first_live, at = read_difference(table, at, first)
        last_live, at = read_difference(table, at, first)
        live = (low, before_low, first_live, last_live)
        if not begin <= low < size or not before_low <= first_live <= last_live <= last:
            raise ValueError("an extent is damaged: the live entries of a node lie elsewhere")
    return size, crc, NodeFigures(begin, stored, dead, payload, first, last, *live), at


def checked(data: bytes, row: NodeRow) -> bytes:
    """Return the bytes of a node after comparing them with their checksum."""
    if crc32(data) != row.crc:
        raise ValueError("an extent is damaged: the checksum of a node is wrong")
    return data


def decode(data: bytes, row: NodeRow) -> list[Any]:
    """A node in the form that both cores unpack, from its bytes, which are compared with their checksum."""
    return nodeform.decode(row.facts, checked(data, row))


def nodes(payload: bytes) -> Iterator[list[Any]]:
    """All nodes of an extent, in order."""
    return (decode(payload[row.begin : row.begin + row.size], row) for row in rows(payload))
