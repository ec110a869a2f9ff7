"""The entries of a page as a file, JSON lines or CSV, with the same fields and formats as the command line's."""

import csv
import io

from starlette.responses import PlainTextResponse, Response

from millstream.ops.entries.reading import last_ids, size_of
from millstream.ops.payloads.choice import COLUMNS, row_of
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.words import EntryView
from millstream.texts import csv_cell, json_text
from millstream.web.entries import ENTRIES, MOST, filters, read_entries, window
from millstream.web.page import Asked

LARGEST = 32 << 20
"""Largest size of the entries in a file, in bytes."""

_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}


async def entries_file(asked: Asked, kind: str) -> Response:
    """Return the entries that the page of a stream shows, with whole values."""
    key, sought = asked.word("key"), filters(asked.words)
    wanted = window(asked.words, asked.watch.line.wall_time(), asked.count("count", ENTRIES, MOST))
    await last_ids(asked.watch.line, [key])  # for XRANGE, a missing stream would be empty
    found = await read_entries(asked.watch.line, key, wanted, sought)
    if sum(map(size_of, found.entries)) > LARGEST:
        words = "These entries are too large for one file; `millstream stream tail` writes any number of them.\n"
        return PlainTextResponse(words, 413)
    text = _csv(found.entries) if kind == "csv" else _lines(found.entries)
    headers = {"content-disposition": f'attachment; filename="entries.{kind}"'}
    return Response(text.encode(errors="backslashreplace"), 200, headers, _TYPES[kind])


def _rows(entries: tuple[EntryView, ...]) -> list[tuple[object, ...]]:
    return [row_of(each, EntryPayload(each.fields)) for each in entries]


def _lines(entries: tuple[EntryView, ...]) -> str:
    return "".join(json_text(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in _rows(entries))


def _csv(entries: tuple[EntryView, ...]) -> str:
    """Return the entries in the command line's CSV, without the column of repeated values."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS[:-1])
    for row in _rows(entries):
        writer.writerow([csv_cell(value) for value in row[:-1]])
    return out.getvalue()
