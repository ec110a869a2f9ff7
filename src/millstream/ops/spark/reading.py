"""Reading Spark queries from the server, and archives from their directories."""

import asyncio
from dataclasses import replace
from pathlib import Path

from millstream.client.jsontext import parse_record
from millstream.client.line import Line, Reply
from millstream.clock import SystemClock
from millstream.errors import Disconnected, MillstreamError
from millstream.ops.asking import calls, checked
from millstream.ops.spark import status
from millstream.ops.streams import reading as streams
from millstream.spark.archiving.directory import MANIFEST, Folder
from millstream.spark.archiving.manifest import ArchiveManifest
from millstream.spark.model.keys import record as commit_key
from millstream.spark.monitoring import store
from millstream.spark.monitoring.record import is_figure


async def read_queries(line: Line) -> status.QueriesSeen:
    """Read every Spark query that reported to the server, the latest report first."""
    at_ms = line.wall_time()
    try:
        (reply,) = await calls(line, [("HGETALL", store.QUERIES)])
        flat = checked(reply, store.QUERIES)
        recorded = store.recorded(dict(zip(flat[::2], flat[1::2], strict=True)))
        keys = store.driver_keys(recorded)
        replies = await calls(line, [("EXISTS", key) for key in keys.values()])
        alive = {driver for driver, reply in zip(keys, replies, strict=True) if checked(reply, store.QUERIES)}
        found = [status.query_status(facts) for facts in store.settled(recorded, alive)]
        found = await _with_sinks(line, found)
    except Disconnected:
        raise
    except MillstreamError as error:
        return status.QueriesSeen(at_ms, why=str(error))
    return status.QueriesSeen(at_ms, tuple(found))


async def _with_sinks(line: Line, queries: list[status.QueryStatus]) -> list[status.QueryStatus]:
    """Return the queries with the last batch of their sinks, from their commit records."""
    asked = [("GET", commit_key(query.id)) for query in queries]
    records = await calls(line, asked)
    return [replace(query, sink=_sink(record)) for query, record in zip(queries, records, strict=True)]


def _sink(record: Reply) -> status.SinkBatch | None:
    """Parse a commit record; None if there is none or another client wrote it."""
    if not isinstance(record, bytes):
        return None
    try:
        kept = parse_record(record)
        streams = tuple(dict.fromkeys(part[0] for part in kept["parts"] or ()))
        # A key must be a non-empty text that can be sent
        sendable = all(isinstance(each, str) and each and each.encode(errors="surrogateescape") for each in streams)
        return status.SinkBatch(kept["version"], streams) if sendable and is_figure(kept["version"]) else None
    except (ValueError, TypeError, KeyError, IndexError):
        return None


async def archive(line: Line, path: Path | str) -> status.ArchiveSeen:
    """Read an archive and the number of entries in its streams that it lacks."""
    seen = status.ArchiveSeen(SystemClock().wall_time(), str(path))
    try:
        manifest, changed_ms = await asyncio.to_thread(_manifest, path)
    except (MillstreamError, OSError) as error:
        return replace(seen, why=str(error))
    live = await streams.read(line, sorted(manifest.places))
    return replace(
        seen,
        changed_ms=changed_ms,
        generation=manifest.generation,
        streams=status.archived_streams(manifest, {one.key: one for one in live.streams}, live.refused),
        runs=status.archive_runs(manifest.files),
        newest=status.newest(manifest.files),
    )


def _manifest(path: Path | str) -> tuple[ArchiveManifest, int]:
    """Return the manifest and the time of its last write, in wall milliseconds."""
    folder = Folder(path)
    manifest = folder.read()
    return manifest, folder.storage.modified_ms(MANIFEST)
