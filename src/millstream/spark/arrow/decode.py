"""From the bytes of an XRANGE reply to Arrow arrays, in two ways that give the same result.

:func:`general` has hiredis parse the reply and walks over the objects; it is right for every reply. :func:`fast` looks
at the whole reply as one array of bytes, finds all its lines at once and picks the values out in bulk. It needs about
half the processor time (1.4 to 1.9 microseconds an entry where :func:`general` needs 2.7 to 3.6, docs/benchmarks.md),
and it *proves* that its reading is the only one, or declines. ``regular`` is faster still, but one entry that lacks a
field puts its whole page out of that reach, and optional fields are common:

A reply is a chain of headers (``*2``, ``$13``) each of which says what follows. ``fast`` takes every line break for the
end of an element and then checks, for every bulk string, that the number in its header is the length of the line after
it, and for every entry, that its count says how many lines it has. If all of them agree, a parser that follows the
headers from the first byte on comes to the same elements, by induction. A value that holds a line break makes its
header disagree, and the reply goes to ``general``.

Strings keep the bytes that were stored, valid UTF-8 or not, as Spark's own cast from binary to string does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hiredis
import numpy as np
import pyarrow as pa

from millstream.errors import UsageError
from millstream.spark.arrow.arrays import every_second, integers, strings_in
from millstream.spark.model.offsets import Id, parse_id

_CR, _LF, _STAR, _DOLLAR, _DASH, _ZERO = 13, 10, 42, 36, 45, 48
_MS_DIGITS = 13
"""Digits of the milliseconds in an id from 2001 to 2286; other ids are read one by one."""

_MIX = tuple(np.uint64(prime) for prime in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_WORD_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(8)] + [2**64 - 1], dtype=np.uint64)

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Want:
    """What of the entries is needed.

    Attributes:
        fields: names of fields that become arrays of their own.
        pairs: whether all fields are wanted as a map.
        listed: whether all fields are wanted as a list of name and value, which keeps their order and a name's repeats.
    """

    fields: tuple[bytes, ...] = ()
    pairs: bool = False
    listed: bool = False

    @property
    def by_name(self) -> bool:
        """Whether a field that an entry names twice has to be told from its repeats."""
        return self.pairs or bool(self.fields)


LISTED = pa.list_(pa.field("element", pa.struct([("name", pa.binary()), ("value", pa.binary())])))
"""Fields as a list: the bytes as stored, nothing lost."""


@dataclass
class Page:
    """The entries of one reply in columns.

    Attributes:
        ids: ``pa.string``.
        times: milliseconds since 1970, from the ids.
        fields: by name, ``pa.string`` of the bytes as stored, null where an entry has no such field.
        pairs: ``pa.map_(pa.string(), pa.string())`` if wanted.
        listed: :data:`LISTED` if wanted.
        last: id of the last entry.
        first: id of the first entry.
    """

    ids: pa.Array
    times: "np.ndarray[Any, np.dtype[np.uint64]]"
    fields: dict[bytes, pa.Array]
    pairs: pa.Array | None
    first: Id
    last: Id
    listed: pa.Array | None = None


def parse_replies(raw: bytes) -> list[Any]:
    """All replies in ``raw`` as objects.

    Raises:
        UsageError: one of them is an error.
    """
    reader = hiredis.Reader()
    reader.feed(raw)
    found = []
    while (reply := reader.gets()) is not False:
        if isinstance(reply, hiredis.ReplyError):
            raise UsageError(f"the server refused a read: {reply}")
        found.append(reply)
    return found


# --- the way that is always right ------------------------------------------------------------------------------------


def general(entries: Sequence[Any], want: Want) -> Page | None:
    """The page of a parsed XRANGE reply; None when it has no entries. Of fields named twice the last value counts."""
    if not entries:
        return None
    ids = [entry[0] for entry in entries]
    rows = [_pairs(entry[1]) for entry in entries]
    return Page(
        ids=strings(ids),
        times=np.array([int(ident.partition(b"-")[0]) for ident in ids], dtype=np.uint64),
        fields={name: strings([row.get(name) for row in rows]) for name in want.fields},
        pairs=mapped(rows) if want.pairs else None,
        first=parse_id(ids[0].decode()),
        last=parse_id(ids[-1].decode()),
        listed=_listed([entry[1] for entry in entries]) if want.listed else None,
    )


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def strings(values: Sequence[bytes | None]) -> pa.Array:
    """``pa.string`` of the bytes as they are, UTF-8 or not."""
    return pa.array(values, pa.binary()).view(pa.string())


def mapped(rows: Sequence[dict[bytes, bytes]]) -> pa.Array:
    """Fields as a map, one row an entry."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    names = strings([name for row in rows for name in row])
    values = strings([value for row in rows for value in row.values()])
    return pa.MapArray.from_arrays(integers(offsets), names, values)


def _listed(rows: Sequence[Sequence[bytes]]) -> pa.Array:
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) // 2 for row in rows], out=offsets[1:])
    names = strings([name for row in rows for name in row[::2]])
    values = strings([value for row in rows for value in row[1::2]])
    return listed(integers(offsets), names, values)


def listed(offsets: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    """A :data:`LISTED` array from its parts: where each entry's fields begin, all names, all values."""
    parts = [names.view(pa.binary()), values.view(pa.binary())]
    pairs = pa.StructArray.from_arrays(parts, fields=list(LISTED.value_type))
    return pa.ListArray.from_arrays(offsets, pairs, type=LISTED)


# --- the fast way ----------------------------------------------------------------------------------------------------


def fast(raw: bytes, want: Want) -> tuple[Page, int] | None:
    """The page of the XRANGE reply at the beginning of ``raw``, and that reply's length in bytes.

    None if :func:`general` must do it.
    """
    lines = _Lines(raw)
    rows = lines.rows()
    if rows is None:
        return None
    begins, counts, total = rows
    names, values = lines.pairs(begins, counts)
    if not lines.proven(begins, counts, names):
        return None
    row_of = np.repeat(np.arange(len(begins)), counts)
    if want.by_name and _repeats(lines.codes(names), row_of, counts):
        return None
    id_lines = begins + 2
    ids = lines.pick(id_lines)
    page = Page(
        ids=ids,
        times=lines.times(id_lines, ids),
        fields={name: lines.column(name, names, values, row_of, len(begins)) for name in want.fields},
        pairs=lines.map(names, values, counts) if want.pairs else None,
        first=parse_id(lines.text(int(id_lines[0]))),
        last=parse_id(lines.text(int(id_lines[-1]))),
        listed=lines.listed(names, values, counts) if want.listed else None,
    )
    return page, total


class _Lines:
    """A reply as lines: everything between two line breaks, known by number.

    Args:
        raw: one or more whole replies.
    """

    def __init__(self, raw: bytes) -> None:
        padded = raw + b"\0" * 8  # so that eight bytes can be looked at from any place
        self._raw = raw
        self._data = pa.py_buffer(padded)
        self._bytes = np.frombuffer(padded, np.uint8)
        self._words: np.ndarray[Any, np.dtype[np.uint64]] = np.ndarray(
            (len(raw) + 1,), dtype="<u8", buffer=padded, strides=(1,)
        )
        ends = np.flatnonzero(self._bytes == _CR)
        self.ends: Ints = ends[self._bytes[ends + 1] == _LF]
        self.starts: Ints = np.concatenate((np.zeros(1, np.int64), self.ends[:-1] + 2))
        self.sizes: Ints = self.ends - self.starts

    def text(self, line: int) -> str:
        """A line as text."""
        return self._raw[self.starts[line] : self.ends[line]].decode("ascii", "replace")

    def rows(self) -> tuple[Ints, Ints, int] | None:
        """First line of each entry, its number of fields, and the reply's length; None if that is not to be seen."""
        head = self.text(0) if len(self.ends) else ""
        if not head.startswith("*") or not head[1:].isdigit() or head == "*0":
            return None
        wanted = int(head[1:])
        stars = np.flatnonzero(self._bytes[self.starts] == _STAR)[1 : 2 * wanted + 1]
        if len(stars) < 2 * wanted:
            return None
        begins, heads = stars[::2], stars[1::2]
        counts = self._numbers(heads)
        # Values that begin with a star put the pairing out of step, and the next line tells.
        after = heads + 1 + 2 * counts
        if not (heads == begins + 3).all() or not (after[:-1] == begins[1:]).all() or begins[0] != 1:
            return None
        if (counts < 2).any() or (counts % 2).any() or after[-1] > len(self.ends):
            return None
        twos = (self.sizes[begins] == 2) & (self._bytes[self.starts[begins] + 1] == _ZERO + 2)
        if not twos.all():
            return None
        return begins, counts // 2, int(self.ends[after[-1] - 1]) + 2

    def _numbers(self, lines: Ints) -> Ints:
        """The numbers after the first byte of some lines; -1 where there is none, or an absurd one."""
        digits = self.sizes[lines] - 1
        found = np.zeros(len(lines), np.int64)
        good = (digits >= 1) & (digits <= 7)
        for place in range(int(min(7, digits.max(initial=0)))):
            inside = place < digits
            digit = self._bytes[np.where(inside, self.starts[lines] + 1 + place, 0)].astype(np.int64) - _ZERO
            good &= ~inside | ((digit >= 0) & (digit <= 9))
            found = np.where(inside, found * 10 + digit, found)
        return np.where(good, found, -1)

    def pairs(self, begins: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """The lines of all field names and of all values, in order."""
        each = np.repeat(begins + 5, counts)
        place = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
        names = each + 4 * place
        return names, names + 2

    def proven(self, begins: Ints, counts: Ints, names: Ints) -> bool:
        """Whether every bulk string's header says the length of the line after it."""
        assert len(counts) == len(begins)
        for data in (begins + 2, names, names + 2):
            headers, sizes = data - 1, self.sizes[data]
            ends, digits = self.ends[headers], np.ones(len(data), np.int64)
            if not (self._bytes[self.starts[headers]] == _DOLLAR).all():
                return False
            rest = sizes
            for place in range(20):
                inside = rest > 0 if place else np.ones(len(data), bool)
                if not inside.any():
                    break
                if place:
                    digits += inside
                expected = _ZERO + rest % 10
                if not ((self._bytes[ends - 1 - place] == expected) | ~inside).all():
                    return False
                rest = rest // 10
            if not (self.sizes[headers] == digits + 1).all():
                return False
        return True

    def codes(self, lines: Ints) -> "np.ndarray[Any, np.dtype[np.uint64]]":
        """A number for the content of each line: equal lines have equal numbers."""
        starts, sizes = self.starts[lines], self.sizes[lines]
        heads = self._words[starts] & _WORD_MASKS[np.minimum(sizes, 8)]
        tails = np.where(sizes > 8, self._words[np.maximum(starts + sizes - 8, 0)], np.uint64(0))
        found: np.ndarray[Any, np.dtype[np.uint64]] = (
            heads * _MIX[0] ^ tails * _MIX[1] ^ sizes.astype(np.uint64) * _MIX[2]
        )
        return found

    def pick(self, lines: Ints, absent: "np.ndarray[Any, np.dtype[np.bool_]] | None" = None) -> pa.Array:
        """Some lines, in order, as strings.

        The reply itself is seen as an array of strings, wanted ones and what lies between them by turns, from which
        Arrow takes every second one.
        """
        bounds = np.empty(2 * len(lines), np.int32)
        bounds[::2], bounds[1::2] = self.starts[lines], self.ends[lines]
        every = (
            every_second(len(lines))
            if absent is None
            else pa.array(np.arange(0, len(bounds), 2, dtype=np.int32), mask=absent)
        )
        return strings_in(self._data, bounds).take(every)

    def times(self, lines: Ints, ids: pa.Array) -> "np.ndarray[Any, np.dtype[np.uint64]]":
        """The milliseconds of the ids."""
        starts = self.starts[lines]
        if int(self.sizes[lines].min()) > _MS_DIGITS and (self._bytes[starts + _MS_DIGITS] == _DASH).all():
            found = np.zeros(len(lines), np.uint64)
            for place in range(_MS_DIGITS):
                found = found * np.uint64(10) + (self._bytes[starts + place] - np.uint8(_ZERO))
            return found
        return np.array([int(ident.partition("-")[0]) for ident in ids.to_pylist()], dtype=np.uint64)

    def column(self, name: bytes, names: Ints, values: Ints, row_of: Ints, rows: int) -> pa.Array:
        """The values of one field, null in the entries that have none."""
        hits = self._equal(name, names)
        if not len(hits):
            return pa.nulls(rows, pa.string())
        if len(hits) == rows:
            return self.pick(values[hits])
        absent = np.ones(rows, bool)
        absent[row_of[hits]] = False
        lines = np.zeros(rows, np.int64)
        lines[row_of[hits]] = values[hits]
        return self.pick(np.maximum.accumulate(lines), absent)

    def _equal(self, content: bytes, lines: Ints) -> Ints:
        """Which of the lines have this content, compared eight bytes at a time."""
        size = len(content)
        hits = np.flatnonzero(self.sizes[lines] == size)
        for place in range(0, size, 8):
            at = max(0, min(place, size - 8))  # the last eight bytes overlap those before
            word = np.uint64(int.from_bytes(content[at : at + 8], "little"))
            seen = self._words[self.starts[lines[hits]] + at] & _WORD_MASKS[min(size, 8)]
            hits = hits[seen == word]
        return hits

    def map(self, names: Ints, values: Ints, counts: Ints) -> pa.Array:
        """All fields of the entries."""
        return pa.MapArray.from_arrays(_begins(counts), self.pick(names), self.pick(values))

    def listed(self, names: Ints, values: Ints, counts: Ints) -> pa.Array:
        """All fields of the entries as lists."""
        return listed(_begins(counts), self.pick(names), self.pick(values))


def _begins(counts: Ints) -> pa.Array:
    """Where the fields of each entry begin among all, and where the last ones end."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return integers(offsets)


def _repeats(codes: "np.ndarray[Any, np.dtype[np.uint64]]", row_of: Ints, counts: Ints) -> bool:
    """Whether an entry may name a field twice (it does when this is False for sure not)."""
    width = int(counts[0])
    if (counts == width).all():
        table = codes.reshape(-1, width)
        if (table == table[0]).all():  # the usual case: all entries have the same fields
            return len(np.unique(table[0])) < width
    marked = np.sort(codes ^ (row_of.astype(np.uint64) * _MIX[1]))
    return bool((marked[1:] == marked[:-1]).any())
