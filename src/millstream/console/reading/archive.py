"""An archive's manifest, and the streams it was made of. It is only read."""

import asyncio
from dataclasses import replace
from pathlib import Path

from millstream.client.line import Line
from millstream.clock import SystemClock
from millstream.console.model.spark.archive import ArchiveSeen, archive_runs, archived_streams, newest
from millstream.console.reading import streams
from millstream.errors import MillstreamError
from millstream.spark.archiving.directory import MANIFEST, Folder
from millstream.spark.archiving.manifest import ArchiveManifest


async def archive(line: Line, path: Path | str) -> ArchiveSeen:
    """The content of an archive, and the number of entries that its streams are ahead of it."""
    seen = ArchiveSeen(SystemClock().wall_time(), str(path))
    try:
        manifest, changed_ms = await asyncio.to_thread(_manifest, path)
    except (MillstreamError, OSError) as error:
        return replace(seen, why=str(error))
    live = await streams.read(line, sorted(manifest.places))
    return replace(
        seen,
        changed_ms=changed_ms,
        generation=manifest.generation,
        streams=archived_streams(manifest, {one.key: one for one in live.streams}, live.refused),
        runs=archive_runs(manifest.files),
        newest=newest(manifest.files),
    )


def _manifest(path: Path | str) -> tuple[ArchiveManifest, int]:
    """The manifest, and when it was written."""
    folder = Folder(path)
    manifest = folder.read()
    return manifest, folder.storage.modified_ms(MANIFEST)
