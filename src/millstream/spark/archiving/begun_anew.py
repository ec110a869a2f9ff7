"""True if a stream is still the one that was archived, by its entries.

One that was deleted and begun again may have outgrown the old one in ids and in entries added. Its entries under ids
that count as archived would then be trimmed, though no file has them.
"""

from collections.abc import Callable, Sequence

from millstream.spark.archiving.directory import Folder
from millstream.spark.archiving.files import archived
from millstream.spark.archiving.manifest import ArchiveManifest
from millstream.spark.arrow.page import Page, Want
from millstream.spark.model.offsets import Id, parse_id

Entries = Callable[[str, str, str, int], Sequence[tuple[bytes, Sequence[bytes]]]]
"""Asks for the entries of a stream from one id to another, up to a number: the id of each, and names and values."""

_AT_ONCE = 256
"""Entries that are asked for in one round trip."""


def has(page: Page, stream: str, entries: Entries) -> bool:
    """True if a stream has all entries of a page, as they are there."""
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
    """An entry of a stream that counts as archived and is not in the archive as it is; None when none is seen.

    Looked at are the first one that the stream has, and the last one of the archive where the stream still has it.
    """
    until = str(manifest.place(stream).id)
    last = max((str(file.last) for file in manifest.files if file.stream == stream), key=parse_id, default=until)
    found = [*entries(stream, "-", until, 1), *entries(stream, last, last, 1)]
    ids = (parse_id(ident.decode()) for ident, _ in found)
    return next((ident for ident in ids if not _archived_as_is(folder, manifest, stream, ident, entries)), None)


def _archived_as_is(folder: Folder, manifest: ArchiveManifest, stream: str, ident: Id, entries: Entries) -> bool:
    paths = [file.path for file in manifest.of(stream, ident.before, ident)]
    try:
        pages = list(archived(folder, stream, ident.before, ident, paths, Want(listed=True)))
    except FileNotFoundError:  # the job says so, which looks for all files
        return True
    return bool(pages) and all(has(page, stream, entries) for page in pages)
