"""The workers of a server's streams, and the fate of entries: workers, Spark queries, dead letters.

Each is read from the place that its writer keeps: ``worker/registry``, ``spark/monitoring/store``, dead-letter streams.
If a server refuses one of them, that one is reported with its reason, and the others are read.
"""

from dataclasses import replace

from millstream.client.dead_letter.admin import dead_letter_streams
from millstream.client.jsontext import parse_record
from millstream.client.line import Line, Reply
from millstream.console.model.letters import LettersSeen, LettersStatus
from millstream.console.model.names import milliseconds, text_of
from millstream.console.model.spark.queries import QueriesSeen, QueryStatus, SinkBatch, query_status
from millstream.console.model.workers import VanishedWorker, WorkersSeen, worker_status
from millstream.console.reading.asking import calls, checked
from millstream.errors import Disconnected, MillstreamError
from millstream.spark.model.keys import record as commit_key
from millstream.spark.monitoring import store
from millstream.spark.monitoring.record import is_figure
from millstream.worker.registry import protocol


async def workers(line: Line) -> WorkersSeen:
    """All workers, those that vanished lately, and the pauses."""
    at_ms = line.wall_time()
    try:
        found, strange = await protocol.read_workers(line)
        pauses = await protocol.pauses(line)
        ordered = await protocol.orders(line)
        beats = await calls(line, [("ZREVRANGE", protocol.INDEX, 0, -1, "WITHSCORES")])
        flat = checked(beats[0], protocol.INDEX)
    except Disconnected:
        raise
    except MillstreamError as error:
        return WorkersSeen(at_ms, why=str(error))
    known = {facts["id"] for facts in found}
    index = [(text_of(name), int(float(score))) for name, score in zip(flat[::2], flat[1::2], strict=True)]
    gone = [VanishedWorker(*row) for row in index if row[0] not in known and at_ms - row[1] > protocol.TTL_MS]
    alive = tuple(worker_status(facts, ordered.get(facts["id"])) for facts in found)
    return WorkersSeen(at_ms, alive, tuple(gone), tuple(pauses), tuple(strange))


async def queries(line: Line) -> QueriesSeen:
    """Every Spark query that reported to the server, those that reported last first."""
    at_ms = line.wall_time()
    try:
        (reply,) = await calls(line, [("HGETALL", store.QUERIES)])
        flat = checked(reply, store.QUERIES)
        recorded = store.recorded(dict(zip(flat[::2], flat[1::2], strict=True)))
        keys = store.driver_keys(recorded)
        replies = await calls(line, [("EXISTS", key) for key in keys.values()])
        alive = {driver for driver, reply in zip(keys, replies, strict=True) if checked(reply, store.QUERIES)}
        found = [query_status(facts) for facts in store.settled(recorded, alive)]
        found = await _with_sinks(line, found)
    except Disconnected:
        raise
    except MillstreamError as error:
        return QueriesSeen(at_ms, why=str(error))
    return QueriesSeen(at_ms, tuple(found))


async def _with_sinks(line: Line, queries: list[QueryStatus]) -> list[QueryStatus]:
    """The queries, with what the commit record of each says of its last batch that went into streams."""
    asked = [("GET", commit_key(query.id)) for query in queries]
    records = await calls(line, asked)
    return [replace(query, sink=_sink(record)) for query, record in zip(queries, records, strict=True)]


def _sink(record: Reply) -> SinkBatch | None:
    """A commit record; None for none, and for what no sink has written."""
    if not isinstance(record, bytes):
        return None
    try:
        kept = parse_record(record)
        streams = tuple(dict.fromkeys(part[0] for part in kept["parts"] or ()))
        # a key is some text, and none that could not be sent
        sendable = all(isinstance(each, str) and each and each.encode(errors="surrogateescape") for each in streams)
        return SinkBatch(kept["version"], streams) if sendable and is_figure(kept["version"]) else None
    except (ValueError, TypeError, KeyError, IndexError):
        return None


async def letters(line: Line) -> LettersSeen:
    """Every dead-letter stream."""
    at_ms = line.wall_time()
    try:
        found = await dead_letter_streams(line)
    except Disconnected:
        raise
    except MillstreamError as error:
        return LettersSeen(at_ms, why=str(error))
    rows = [
        LettersStatus(one.key, one.letters, milliseconds(one.first), milliseconds(one.last), one.streams)
        for one in found
    ]
    return LettersSeen(at_ms, tuple(rows))
