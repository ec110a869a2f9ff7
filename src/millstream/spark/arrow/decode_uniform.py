"""The fastest way from an XRANGE reply to Arrow arrays: for pages with the same fields in one order in all entries.

Most streams have entries of one producer. Such a reply repeats one text; only the ids, the values and the lengths
before them differ. The equal parts (the *template*, from the first entry) are compared as a block. The other parts are
followed for all entries of the page at once. The length before each entry's first value gives the beginning of its
second one, and so on to the end of the entry. That end must be the beginning of the next entry. So every header is
followed as a parser would, from the first byte on. The result is right whatever bytes the values hold, line breaks
included. :func:`decode_uniform` declines a page where anything differs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.spark.arrow.arrays import MOST_BYTES, again, every_second, integers, strings_in
from millstream.spark.arrow.page import Page, Times, Want, listed_array
from millstream.spark.model.offsets import Id, parse_id

_CR, _LF, _STAR, _DASH, _ZERO = 13, 10, 42, 45, 48
_PAIR = b"*2\r\n"
"""Header of each entry: an array of an id and a list of fields."""
_MS_DIGITS = 13
"""Digits of the milliseconds in an id from 2001 to 2286; pages with other ids are declined."""
_MOST_DIGITS = 9
_LEAST_DIGITS = 4
"""Digits that the length of a value may always have; more if the first entry's length has as many."""

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ends = tuple[Ints, Ints]
"""The beginning and the end of one value of each entry."""


@dataclass(frozen=True)
class _Template:
    """The parts that all entries of a page have in common."""

    names: tuple[bytes, ...]  # Names of the fields
    before: tuple[bytes, ...]  # Bytes before the length of the id, and before that of each value
    digits: tuple[int, ...]  # Possible numbers of digits of each of these lengths


def decode_uniform(raw: bytes, want: Want) -> tuple[Page, int] | None:
    """Return the page of the XRANGE reply at the beginning of ``raw``, and the length of that reply in bytes.

    None if its entries are not alike, or the reply is incomplete.
    """
    head = raw.find(b"\r\n")
    if not 0 < head < _MOST_DIGITS or len(raw) > MOST_BYTES or raw[:1] != b"*" or not raw[1:head].isdigit():
        return None
    rows = int(raw[1:head])
    template = _template(raw, head + 2) if rows else None
    if template is None or (want.by_name and len(set(template.names)) < len(template.names)):
        return None
    reply = _Reply(raw)
    try:
        walked = reply.walk(template, rows, head + 2)
    except IndexError:  # a length points beyond the end
        return None
    if walked is None:
        return None
    ids, values, total = walked
    times = reply.times(ids)
    return None if times is None else (_page(reply, template, want, (ids, values), times), total)


def _template(raw: bytes, at: int) -> _Template | None:
    """Return the template from the entry at ``at``; None if there is no complete entry."""
    names, before, digits = [], [_PAIR + b"$"], [2]
    try:
        place, _ = _bulk(raw, _expect(raw, at, _PAIR))
        at, count = _number_after(raw, place, b"*")
        for _ in range(count // 2):
            at, name = _bulk(raw, at)
            names.append(name)
            before.append(b"\r\n" + raw[place : at + 1])  # from the end of the last value to the dollar sign
            at, value = _bulk(raw, at)
            digits.append(max(_LEAST_DIGITS, len(str(len(value))) + 1))
            place = at
    except ValueError:
        return None
    return _Template(tuple(names), tuple(before), tuple(digits)) if names and count % 2 == 0 else None


def _expect(raw: bytes, at: int, words: bytes) -> int:
    """Return the index after these bytes; raise ValueError if they are not there."""
    if not raw.startswith(words, at):
        raise ValueError
    return at + len(words)


def _number_after(raw: bytes, at: int, sign: bytes) -> tuple[int, int]:
    """Return the index after the header at ``at``, and its number; raise ValueError without one."""
    begin = _expect(raw, at, sign)
    end = raw.index(b"\r\n", begin)
    if not raw[begin:end].isdigit():
        raise ValueError
    return end + 2, int(raw[begin:end])


def _bulk(raw: bytes, at: int) -> tuple[int, bytes]:
    """Return the index after the bulk string at ``at``, and the string; raise ValueError without one."""
    begin, size = _number_after(raw, at, b"$")
    return _expect(raw, begin + size, b"\r\n"), raw[begin : begin + size]


class _Reply:
    """The bytes of a reply, with methods that follow all its entries in parallel."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._bytes = np.frombuffer(raw, np.uint8)
        self._data = pa.py_buffer(raw)

    def walk(self, template: _Template, rows: int, begin: int) -> tuple[Ends, list[Ends], int] | None:
        """Return the bounds of the ids and of each field's values, and the end of the reply.

        None if an entry differs.
        """
        begins = self._begins(template, rows)
        if begins is None or begins[0] != begin:
            return None
        at, found = begins, []
        for before, digits in zip(template.before, template.digits, strict=True):
            if not self._all(at, before):
                return None
            part = self._sized(at + len(before), digits)
            if part is None:
                return None
            found.append(part)
            at = part[1]
        if not self._all(at, b"\r\n") or not np.array_equal(at[:-1] + 2, begins[1:]):
            return None
        return found[0], found[1:], int(at[-1]) + 2

    def _begins(self, template: _Template, rows: int) -> Ints | None:
        """Return the likely beginnings of the entries, which the walk then proves.

        Usually every other line that begins with a star is an entry's. A value may contain such a line too. Then the
        method looks for lines with the number of fields and the first one's name; an entry begins at the star before
        each.
        """
        stars = np.flatnonzero(self._bytes == _STAR)[1:]
        stars = stars[self._bytes[stars - 1] == _LF]
        begins: Ints = stars[: 2 * rows : 2]
        if len(stars) >= 2 * rows and self._all(begins, template.before[0]):
            return begins
        fields = np.frombuffer(template.before[1][2:], np.uint8)
        stars = stars[stars + len(fields) <= len(self._raw)]
        heads = np.flatnonzero((self._at(stars, len(fields)) == fields).all(axis=1))
        begins = stars[heads[:rows] - 1]
        return begins if len(begins) == rows else None

    def _all(self, places: Ints, words: bytes) -> bool:
        """Return True if these bytes are at all of the places."""
        return self._at(places, len(words)).tobytes() == words * len(places)

    def _at(self, places: Ints, size: int) -> Bytes:
        """Return ``size`` bytes from each place on, one row each."""
        span = len(self._raw) - size + 1
        windows: np.ndarray[Any, Any] = np.ndarray((max(span, 0),), f"V{size}", buffer=self._raw, strides=(1,))
        return windows[places].view(np.uint8).reshape(len(places), size)

    def _sized(self, places: Ints, most: int) -> Ends | None:
        """Return the bounds of the bulk strings with lengths, of at most ``most`` digits, at these places."""
        text = self._at(places, most + 2)
        digits = text - np.uint8(_ZERO)
        size = digits[:, 0].astype(np.int64)
        good = digits[:, 0] <= 9
        for place in range(1, most + 1):
            ends = text[:, place] == _CR
            if ends.all():
                good &= text[:, place + 1] == _LF
                begins = places + (place + 2)
                break
            if ends.any():
                return self._mixed(places, text, digits)
            good &= digits[:, place] <= 9
            size = size * 10 + digits[:, place]
        else:
            return None
        return (begins, begins + size) if good.all() else None

    def _mixed(self, places: Ints, text: Bytes, digits: Bytes) -> Ends | None:
        """Return the bounds as :meth:`_sized` does, for lengths of different numbers of digits."""
        size = digits[:, 0].astype(np.int64)
        good = digits[:, 0] <= 9
        more = np.ones(len(places), bool)
        count = np.ones(len(places), np.int64)
        for place in range(1, text.shape[1] - 1):
            more &= text[:, place] != _CR
            if not more.any():
                break
            good &= ~more | (digits[:, place] <= 9)
            size = np.where(more, size * 10 + digits[:, place], size)
            count += more
        begins = places + count + 2
        good &= (self._bytes[begins - 2] == _CR) & (self._bytes[begins - 1] == _LF)
        return (begins, begins + size) if good.all() else None

    def times(self, ids: Ends) -> Times | None:
        """Return the milliseconds of the ids; None if they do not have the usual number of digits."""
        begins, ends = ids
        if int((ends - begins).min()) <= _MS_DIGITS:
            return None
        text = self._at(begins, _MS_DIGITS + 1)
        if not (text[:, _MS_DIGITS] == _DASH).all():
            return None
        digits = text - np.uint8(_ZERO)
        high, low = _number(digits[:, :4]), _number(digits[:, 4:_MS_DIGITS])  # each fits in 32 bits, half the work
        found: Times = high.astype(np.uint64) * np.uint64(10**9) + low
        return found

    def ident(self, ids: Ends, row: int) -> Id:
        """Return the id of an entry."""
        return parse_id(self._raw[ids[0][row] : ids[1][row]].decode())

    def pick(self, *parts: Ends) -> pa.Array:
        """Return the values of one or more fields as strings, entry by entry.

        The reply itself is viewed as an array of strings: wanted ones and the text between them, in turn. Arrow takes
        every second one. Strings of one size, such as ids, need no such array.
        """
        begins, ends = parts[0]
        rows, size = len(begins), int(ends[0] - begins[0])
        if len(parts) == 1 and size and (ends - begins == size).all():
            offsets = np.arange(0, rows * size + 1, size, dtype=np.int32)
            return strings_in(pa.py_buffer(self._at(begins, size)), offsets)
        bounds = np.empty((rows, 2 * len(parts)), np.int32)
        for place, bound in enumerate(bound for part in parts for bound in part):
            bounds[:, place] = bound
        return strings_in(self._data, bounds.reshape(-1)).take(every_second(bounds.size // 2))


def _number(digits: Bytes) -> "np.ndarray[Any, np.dtype[np.uint32]]":
    """Return up to nine digits a row as a number."""
    found = digits[:, 0].astype(np.uint32)
    for place in range(1, digits.shape[1]):
        found *= np.uint32(10)
        found += digits[:, place]
    return found


# --- columns ---------------------------------------------------------------------------------------------------------


def _page(reply: _Reply, template: _Template, want: Want, parts: tuple[Ends, list[Ends]], times: Times) -> Page:
    ids, values = parts
    rows, width = len(times), len(values)
    if want.pairs or want.listed:
        every, names = reply.pick(*values), again(template.names, rows)
        offsets = integers(np.arange(0, rows * width + 1, width, dtype=np.int32))
    by_name = dict(zip(template.names, values, strict=True))
    absent = pa.nulls(rows, pa.string())
    return Page(
        ids=reply.pick(ids),
        times=times,
        fields={name: reply.pick(by_name[name]) if name in by_name else absent for name in want.fields},
        pairs=pa.MapArray.from_arrays(offsets, names, every) if want.pairs else None,
        first=reply.ident(ids, 0),
        last=reply.ident(ids, -1),
        listed=listed_array(offsets, names, every) if want.listed else None,
    )
