"""The source of a replay's entries: a time range of an archive or a stream, filtered and in batches."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from millstream.errors import ConfigError
from millstream.paths import archive_place
from millstream.spark.archiving.directory import Folder
from millstream.spark.archiving.files import archived
from millstream.spark.archiving.replay_model import Replay, ReplayBatch, ReplayResult
from millstream.spark.arrow.page import Page, Want
from millstream.spark.model.offsets import MAX_PART, ZERO, Id, before_time, parse_id
from millstream.spark.options.read import parse as parse_options
from millstream.spark.read.planner import Planner
from millstream.spark.read.reader import pages_of

BATCH = 500
BATCH_BYTES = 4 << 20
BEAT_MS = 50
"""With a speed, entries within this many milliseconds are written together."""

_LAST = Id(MAX_PART, MAX_PART)


@dataclass
class ReplaySource:
    """Pages of entries, and the approximate number of entries."""

    pages: Callable[[], Iterator[Page]]
    total: int


def open_folder(source: str) -> Folder:
    """Return the archive that a source other than a server's URL names."""
    try:
        return Folder(archive_place(source))
    except ConfigError as problem:
        raise ConfigError(
            f"the source is neither a server's URL, such as redis://host:6379/0, nor an archive's place: {problem}"
        ) from None


def open_source(what: Replay, folder: Folder | None, after: Id) -> ReplaySource:
    """Return the entries that are left to replay; they are read as they are consumed."""
    low = max(after, ZERO if what.since_ms is None else before_time(what.since_ms))
    high = _LAST if what.until_ms is None else before_time(what.until_ms)
    return _from_stream(what, low, high) if folder is None else _from_archive(what, folder, low, high)


def _from_archive(what: Replay, folder: Folder, low: Id, high: Id) -> ReplaySource:
    manifest = folder.read()
    if what.stream not in manifest.places:
        there = ", ".join(sorted(manifest.places)) or "nothing"
        raise ConfigError(f"the archive {what.source} has no stream {what.stream!r}. Name one of its streams: {there}.")
    files = manifest.of(what.stream, low, high)
    paths = [file.path for file in files]
    high = min(high, manifest.place(what.stream).id)
    return ReplaySource(
        lambda: archived(folder, what.stream, low, high, paths, Want(listed=True)), sum(file.rows for file in files)
    )


def _from_stream(what: Replay, low: Id, high: Id) -> ReplaySource:
    start, end = (json.dumps({what.stream: str(ident)}) for ident in (low, high))
    given = {"url": what.source, "stream": what.stream, "startingOffsets": start, "endingOffsets": end}
    options = parse_options(given | {"minPartitions": "1"})
    with closing(Planner(options)) as planner:
        ranges = planner.bounded(options.starting or "earliest", options.ending)
    want = Want(listed=True)
    return ReplaySource(
        lambda: (page for _, page in pages_of(options, ranges, want)), sum(part.rows for part in ranges)
    )


def batches(what: Replay, pages: Iterator[Page], done: ReplayResult) -> Iterator[ReplayBatch]:
    """Yield the entries that pass the filter, in batches; the others are counted and skipped.

    A batch without entries is yielded too: its last id moves the cursor, so that an interrupted run does not read the
    same entries again. With a speed, a batch also holds the entries that are due at almost the same time.
    """
    batch = ReplayBatch()
    for page in pages:
        assert page.listed is not None
        for text, row in zip(page.ids.to_pylist(), page.listed.to_pylist(), strict=True):
            ident, fields = parse_id(text), [(pair["name"], pair["value"]) for pair in row]
            if batch.last != ZERO and _full(what, batch, ident):
                yield batch
                batch = ReplayBatch()
            done.read += 1
            batch.first = batch.first or ident
            batch.last = ident
            if all(pair in fields for pair in what.where):
                batch.entries.append((ident, fields))
                batch.bytes += sum(len(name) + len(value) for name, value in fields)
            else:
                done.skipped += 1
        if batch.last != ZERO and what.speed is None:
            yield batch
            batch = ReplayBatch()
    if batch.last != ZERO:
        yield batch


def _full(what: Replay, batch: ReplayBatch, following: Id) -> bool:
    """Return True if the next entry needs a new batch: this one is large, or began too early."""
    if len(batch.entries) >= BATCH or batch.bytes >= BATCH_BYTES:
        return True
    assert batch.first is not None
    return what.speed is not None and following.ms - batch.first.ms > BEAT_MS * what.speed
