"""Data files that no manifest names: what killed jobs had begun is removed, what nobody else has is kept.

A batch that was begun is in the stream too, which is trimmed of nothing that no manifest names. Where the stream has it
no longer, either others trimmed it before it was archived, or the manifest is older than the files: one of a backup was
put in its place. Such files may hold the only copy of their entries, so they are moved out of readers' sight.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from millstream.errors import StorageError
from millstream.spark.archiving.directory import ASIDE, Folder
from millstream.spark.archiving.files import read_pages
from millstream.spark.archiving.manifest import ArchiveManifest
from millstream.spark.arrow.page import Want
from millstream.spark.model.offsets import MAX_PART, Id, StreamState

_LAST = Id(MAX_PART, MAX_PART)

States = Callable[[Iterable[str]], Mapping[str, StreamState | None]]
"""Asks the server for the states of streams."""


@dataclass(frozen=True)
class Swept:
    """What a sweep came to.

    Attributes:
        manifest: that is true then.
        news: by stream, a sentence about files that were kept.
    """

    manifest: ArchiveManifest
    news: Mapping[str, str]


def sweep(folder: Folder, manifest: ArchiveManifest, streams: Iterable[str], states: States) -> Swept:
    """Clear the folders of tables of files that the manifest does not name.

    Only under the lock. Where locks do not reach they may be what another job is at, so the generation changes first:
    that job stops before it names files that are gone.

    Args:
        folder: the archive.
        manifest: of it.
        streams: whose tables are looked at.
        states: asked where a file holds entries that are not archived.

    Raises:
        FilesChangedError: files that the manifest names are gone, or plain ones lie among files of others.
    """
    begun = folder.unnamed(manifest, streams)
    if not begun:
        return Swept(manifest, {})
    news: dict[str, list[str]] = {}
    ahead = dict(_ahead(folder, manifest, begun))
    there = states({stream for stream, _ in ahead.values()}) if ahead else {}
    for path, (stream, first) in ahead.items():
        state = there[stream]
        if state is None or state.first is None or state.first > first:
            news.setdefault(stream, []).append(path)
    fresh = replace(manifest, generation=manifest.generation + 1)
    folder.switch(manifest, fresh)
    kept = {path for paths in news.values() for path in paths}
    for path in sorted(kept):
        folder.set_aside(path)
    folder.remove(path for paths in begun.values() for path in paths if path not in kept)
    return Swept(fresh, {stream: _sentence(paths) for stream, paths in news.items()})


def _ahead(
    folder: Folder, manifest: ArchiveManifest, begun: Mapping[str, list[str]]
) -> Iterator[tuple[str, tuple[str, Id]]]:
    """Files that hold entries past what is archived of their stream, with that and the first such entry."""
    for stream, paths in begun.items():
        for path in paths:
            if not path.endswith(".parquet"):
                continue  # never whole
            try:
                with folder.storage.open(path) as file:
                    page = next(read_pages(file, manifest.place(stream).id, _LAST, Want()), None)
            except FileNotFoundError:  # a list that lags
                continue
            except StorageError:  # damaged: nothing is to be had from it
                continue
            if page is not None:
                yield path, (stream, page.first)


def _sentence(paths: list[str]) -> str:
    return (
        f"{len(paths)} files that the manifest does not name, such as {paths[0]}, hold entries that the stream no "
        f"longer has: they were moved to {ASIDE}. A manifest restored from a backup is older than they are: put the "
        "newer one and these files in their places"
    )
