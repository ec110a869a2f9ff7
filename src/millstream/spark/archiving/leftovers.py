"""Data files that no manifest names: files of killed jobs are removed, files with the only copy of entries are kept.

The stream still has the entries of an unfinished batch, since it is trimmed only of entries in a manifest. If the
stream does not have them, other clients trimmed it first, or the manifest is older than the files. The latter happens
when a manifest is restored from a backup. Such files may hold the only copy of their entries, so they are moved where
readers do not look.

The sweep compares the entries themselves with the stream's. A stream that was deleted and created again may have ids
below and above theirs, or even the same ids. The files that the manifest names must hold every id that counts as
archived, as they do after a killed merge. The check is needed because a manifest may have been edited.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import SEEK_END
from itertools import chain
from typing import BinaryIO

import pyarrow.parquet as pq

from millstream.spark.archiving.begun_anew import Entries, has
from millstream.spark.archiving.directory import ASIDE, Folder, is_ours
from millstream.spark.archiving.files import read_pages
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile, ManifestError
from millstream.spark.archiving.tables.folders import stream_folder
from millstream.spark.archiving.tables.rows import DamagedFileError, columns_of
from millstream.spark.archiving.tables.table import TablePlan
from millstream.spark.arrow.page import Page, Want
from millstream.spark.model.offsets import MAX_PART, ZERO, Id, parse_id
from millstream.texts import plural

_LAST = Id(MAX_PART, MAX_PART)


@dataclass(frozen=True)
class Swept:
    """The result of a sweep."""

    manifest: ArchiveManifest  # The manifest after the sweep
    news: Mapping[str, str]  # Message about files that were kept, by stream
    doubtful: frozenset[str] = frozenset()  # Streams with archived entries that are in none of the files


def sweep(folder: Folder, manifest: ArchiveManifest, streams: Iterable[str], entries: Entries) -> Swept:
    """Clear the folders of tables of files that the manifest does not name.

    Only under the lock. Another job may use them if locks do not reach it. So the generation changes first: that job
    then stops before it names files that are gone.
    """
    begun = folder.unnamed(manifest, streams)
    if not begun:
        return Swept(manifest, {})
    news: dict[str, list[str]] = {}
    doubtful = set[str]()
    for stream, paths in begun.items():
        after = manifest.place(stream).id
        alone = [path for path in paths if _holds_archived(folder, path, manifest, stream)]
        if alone:
            doubtful.add(stream)
        alone += [path for path in paths if path not in alone and _holds_more(folder, path, after, stream, entries)]
        if alone:
            news[stream] = alone
    fresh = replace(manifest, generation=manifest.generation + 1)
    folder.switch(manifest, fresh)
    kept = {path for paths in news.values() for path in paths}
    for path in sorted(kept):
        folder.set_aside(path)
    folder.remove(path for paths in begun.values() for path in paths if path not in kept)
    sentences = {stream: _sentence(paths, trimmed=stream not in doubtful) for stream, paths in news.items()}
    return Swept(fresh, sentences, frozenset(doubtful))


def as_its_table(
    folder: Folder, manifest: ArchiveManifest, stream: str, plan: TablePlan, listed: Mapping[str, int], now_ms: int
) -> ArchiveManifest | None:
    """Return the manifest with a stream's files in its table, if it is older than the table, as after a restore.

    Returns:
        None if the table shows entries that no job of this archive wrote, or does not show archived entries.
    """
    at, own = manifest.place(stream), f"{stream_folder(manifest.shape, stream)}/"
    there = {path: rows for path, rows in listed.items() if f"{plan.folder}/{path}".startswith(own)}
    fresh = sorted(there.keys() - plan.files.keys() - plan.retired)
    if not fresh or not all(is_ours(path) for path in fresh):
        return None
    paths = {f"{plan.folder}/{path}": rows for path, rows in there.items()}
    mine = [file for file in manifest.files if file.stream == stream]
    kept, gone = [file for file in mine if file.path in paths], [file for file in mine if file.path not in paths]
    try:
        found = [_described(folder, f"{plan.folder}/{path}", stream, at.id) for path in fresh]
        if sum(old for _, old in found) != sum(file.rows for file in gone):
            return None
        files = [file for file, _ in found]
        if any(file.rows != paths[file.path] for file in files):
            return None
        added = sum(file.rows - old for file, old in found)
        place = ArchivePosition(max(at.id, *(file.last for file in files)), at.n + added, at.holes)
        columns = max([plan.columns, *(file.columns for file in files)], key=len)
        retired = [(file.path, now_ms) for file in gone]
        return manifest.with_table(stream, place, [*kept, *files], columns, retired)
    except (DamagedFileError, FileNotFoundError, ManifestError):
        return None


def _described(folder: Folder, path: str, stream: str, upto: Id) -> tuple[DataFile, int]:
    """Return a file in the form of a manifest, and the number of its entries with ids up to ``upto``."""
    with folder.storage.open(path) as file:
        ids = [parse_id(ident) for ident in _ids(read_pages(file, ZERO, _LAST, Want()))]
        if not ids:
            raise DamagedFileError(f"{path} holds no entries")
        schema = pq.read_schema(file)
        columns = () if "fields" in schema.names else columns_of(schema)
        size = file.seek(0, SEEK_END)
    described = DataFile(path, stream, ids[0], ids[-1], len(ids), size, columns)
    return described, sum(ident <= upto for ident in ids)


def _holds_archived(folder: Folder, path: str, manifest: ArchiveManifest, stream: str) -> bool:
    """Return True if a file holds an entry that counts as archived but is in no file of the manifest."""
    until = manifest.place(stream).id

    def look(file: BinaryIO) -> bool:
        return not _named_have(folder, manifest, stream, _ids(read_pages(file, ZERO, until, Want())))

    return _holds(folder, path, look)


def _holds_more(folder: Folder, path: str, after: Id, stream: str, entries: Entries) -> bool:
    """Return True if a file holds an entry past the archived ones that its stream lacks or has with other fields."""

    def look(file: BinaryIO) -> bool:
        return not all(has(page, stream, entries) for page in read_pages(file, after, _LAST, Want(listed=True)))

    return _holds(folder, path, look)


def _holds(folder: Folder, path: str, look: Callable[[BinaryIO], bool]) -> bool:
    """Return the result of ``look`` for a file that no manifest names; False for a file that cannot be read."""
    if not path.endswith(".parquet"):
        return False  # the file can never become complete
    try:
        with folder.storage.open(path) as file:
            return look(file)
    except (FileNotFoundError, DamagedFileError):  # an outdated listing, or a damaged file
        return False


def _named_have(folder: Folder, manifest: ArchiveManifest, stream: str, ids: Iterator[str]) -> bool:
    """Return True if the files of a manifest have all of these ids, which are in order."""
    first = next(ids, None)
    if first is None:
        return True
    begin = parse_id(first).before
    named = _named(folder, manifest.of(stream, begin, manifest.place(stream).id), begin)
    return all(ident in named for ident in chain([first], ids))  # each search continues where the last one ended


def _named(folder: Folder, files: Iterable[DataFile], after: Id) -> Iterator[str]:
    """Yield the ids of files in order; damaged and missing files are skipped."""
    for each in files:
        try:
            with folder.storage.open(each.path) as file:
                yield from _ids(read_pages(file, after, _LAST, Want()))
        except (DamagedFileError, FileNotFoundError):
            continue


def _ids(pages: Iterable[Page]) -> Iterator[str]:
    return (ident for page in pages for ident in page.ids.to_pylist())


def _sentence(paths: list[str], *, trimmed: bool) -> str:
    untrimmed = "" if trimmed else ", and nothing of it is trimmed by this run"
    return (
        f"{plural(len(paths), 'file')} that the manifest does not name, such as {paths[0]}, "
        f"{'holds' if len(paths) == 1 else 'hold'} entries that neither the stream "
        f"nor another file has: they were moved to {ASIDE}{untrimmed}. A manifest restored from a backup is older than "
        "they are: put the newer one and these files in their places"
    )
