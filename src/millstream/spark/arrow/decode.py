"""From the bytes of an XRANGE reply to columns, in two ways with the same result.

:func:`decode_parsed` has hiredis parse the reply and walks over the objects; it is right for every reply.
``decode_uniform`` never makes the objects and is six times as fast. It handles pages with the same fields in the same
order in all entries, which is usual for one producer, and declines any other page. :func:`decode` tries it first,
except for a few entries.

(A third way for entries with different fields was a third faster than :func:`decode_parsed`, and 200 lines long. The
gain is a fourteenth of the cost of a row in Spark.)
"""

import gc
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import UsageError
from millstream.spark.arrow.arrays import integers, optional_strings, strings
from millstream.spark.arrow.decode_uniform import decode_uniform
from millstream.spark.arrow.page import Page, Want, listed_array
from millstream.spark.connection.connection import ErrorReply
from millstream.spark.connection.raw_connection import parsed
from millstream.spark.model.offsets import parse_id

Fields = dict[bytes, bytes]
Entry = Sequence[Any]
"""An id, then a list of names and values in turn."""


def decode(raw: bytes, want: Want, *, more: int = 0) -> tuple[Page | None, list[Any]]:
    """Return the page of XRANGE replies, and the replies after them.

    Returns:
        The page, None when it has no entries, and the ``more`` replies as objects.
    """
    found = None if _is_short(raw) else decode_uniform(raw, want)
    if found is not None and (more or found[1] == len(raw)):
        rest = parse_replies(raw[found[1] :])
        if len(rest) == more:
            return found[0], rest
    collecting = gc.isenabled()
    gc.disable()  # a page consists of hundreds of thousands of objects without cycles
    try:
        replies = parse_replies(raw)
        entries = list(chain.from_iterable(replies[: len(replies) - more]))
        return decode_parsed(entries, want), replies[len(replies) - more :]
    finally:
        if collecting:
            gc.enable()


def _is_short(raw: bytes) -> bool:
    """Return True if a reply has fewer than a hundred entries: ``decode_uniform`` has a fixed cost of 0.25 ms."""
    return raw.find(b"\r", 0, len("*99\r")) > 0


def parse_replies(raw: bytes) -> list[Any]:
    """Parse all replies in ``raw`` as objects; raise for an error reply."""
    found = parsed(raw)
    for reply in found:
        if isinstance(reply, ErrorReply):
            raise UsageError(f"the server refused a read: {reply}")
    return found


def decode_parsed(entries: Sequence[Entry], want: Want) -> Page | None:
    """Return the page of parsed entries; None without any. The last value of a repeated field counts."""
    if not entries:
        return None
    ids = [entry[0] for entry in entries]
    rows = [_by_name(entry[1]) for entry in entries] if want.by_name else []
    return Page(
        ids=strings(ids),
        times=np.array([int(ident.partition(b"-")[0]) for ident in ids], dtype=np.uint64),
        fields={name: optional_strings([row.get(name) for row in rows]) for name in want.fields},
        pairs=mapped(rows) if want.pairs else None,
        first=parse_id(ids[0].decode()),
        last=parse_id(ids[-1].decode()),
        listed=_listed([entry[1] for entry in entries]) if want.listed else None,
    )


def _by_name(flat: Sequence[bytes]) -> Fields:
    words = iter(flat)
    # Names and values alternate; slices or a check would cost half as much again
    return dict(zip(words, words, strict=False))


def mapped(rows: Sequence[Fields]) -> pa.Array:
    """Return fields as a map array, one row an entry."""
    names = strings(list(chain.from_iterable(rows)))
    values = strings(list(chain.from_iterable(map(dict.values, rows))))
    return pa.MapArray.from_arrays(_offsets(map(len, rows)), names, values)


def _listed(rows: Sequence[Sequence[bytes]]) -> pa.Array:
    words = list(chain.from_iterable(rows))
    return listed_array(_offsets(len(row) // 2 for row in rows), strings(words[::2]), strings(words[1::2]))


def _offsets(counts: Iterable[int]) -> pa.Array:
    """Return the index of each entry's first field among all fields, and the end of the last entry's."""
    return integers(np.cumsum([0, *counts], dtype=np.int32))
