"""Check, by its entries, that a stream is still the one that was archived.

A stream that was deleted and created again may have more and higher ids than the old one. Its entries with ids that
count as archived would then be trimmed, though no file has them.
"""

from collections.abc import Callable, Sequence

from millstream.spark.archiving.directory import Folder
from millstream.spark.archiving.files import archived
from millstream.spark.archiving.manifest import ArchiveManifest
from millstream.spark.arrow.page import Page, Want
from millstream.spark.model.offsets import Id, parse_id

Entries = Callable[[str, str, str, int], Sequence[tuple[bytes, Sequence[bytes]]]]
"""Reads the entries of a stream from one id to another, up to a number: the id of each, with names and values."""

_AT_ONCE = 256
"""Most entries read in one round trip."""

_SPREAD = 8
"""Entries compared after those of the first round trip, spread evenly over the stream's time."""


def has(page: Page, stream: str, entries: Entries) -> bool:
    """Return True if a stream has all entries of a page, with the same fields."""
    assert page.listed is not None
    for begin in range(0, len(page.ids), _AT_ONCE):
        ids = page.ids.slice(begin, _AT_ONCE).to_pylist()
        rows = page.listed.slice(begin, _AT_ONCE).to_pylist()
        mine = {ident: [part for pair in row for part in pair.values()] for ident, row in zip(ids, rows, strict=True)}
        theirs = {ident.decode(): list(fields) for ident, fields in entries(stream, ids[0], ids[-1], len(ids))}
        if any(theirs.get(ident) != fields for ident, fields in mine.items()):
            return False
    return True


def other_entry(folder: Folder, manifest: ArchiveManifest, stream: str, entries: Entries) -> Id | None:
    """Return an entry of a stream that counts as archived but differs from the archive; None if none is found.

    It compares the first entries of the stream, some later ones, and the last one of the archive if the stream still
    has it.
    """
    until = str(manifest.place(stream).id)
    last = max((str(file.last) for file in manifest.files if file.stream == stream), key=parse_id, default=until)
    found = [entries(stream, "-", until, _AT_ONCE), entries(stream, last, last, 1)]
    if len(found[0]) == _AT_ONCE:
        low, high = parse_id(found[0][-1][0].decode()).ms, parse_id(until).ms
        spread = (low + (high - low) * at // (_SPREAD + 1) for at in range(1, _SPREAD + 1))
        found += [entries(stream, f"{ms}-0", until, 1) for ms in spread]
    return next((other for rows in found if (other := _not_there(folder, manifest, stream, rows)) is not None), None)


def _not_there(
    folder: Folder, manifest: ArchiveManifest, stream: str, rows: Sequence[tuple[bytes, Sequence[bytes]]]
) -> Id | None:
    """Return the first of these entries, in order, that the archive lacks or has with other fields."""
    if not rows:
        return None
    missing = {ident.decode(): list(fields) for ident, fields in rows}
    first, last = parse_id(rows[0][0].decode()).before, parse_id(rows[-1][0].decode())
    paths = [file.path for file in manifest.of(stream, first, last)]
    try:
        for page in archived(folder, stream, first, last, paths, Want(listed=True)):
            assert page.listed is not None
            for ident, row in zip(page.ids.to_pylist(), page.listed.to_pylist(), strict=True):
                if missing.get(ident) == [part for pair in row for part in pair.values()]:
                    del missing[ident]
    except FileNotFoundError:  # the job itself checks for missing files
        return None
    return parse_id(next(iter(missing))) if missing else None
