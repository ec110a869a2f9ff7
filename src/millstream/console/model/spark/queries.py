"""Streaming queries on Spark, as their drivers tell of them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from millstream.console.model.names import milliseconds

STILL_MS = 300_000
"""A query that told nothing for so long, and for three times as long as it ever did, makes no progress."""


@dataclass(frozen=True, slots=True)
class QueryPlace:
    """Where a query stands in one stream.

    Attributes:
        stream: its key.
        id: of the last entry in a finished batch.
        n: entries that had been added to the stream up to there.
        latest_n: entries that had been added in all when the batch ended; None where that is not known.
    """

    stream: str
    id: str
    n: int
    latest_n: int | None

    @property
    def at_ms(self) -> int:
        """When that entry was added, wall milliseconds."""
        return milliseconds(self.id)

    @property
    def behind(self) -> int | None:
        """Entries behind it when the batch ended; None where that is not known."""
        return None if self.latest_n is None else max(self.latest_n - self.n, 0)


@dataclass(frozen=True, slots=True)
class QuerySample:
    """One of the last micro-batches; what is not known of it is None.

    Attributes:
        at_ms: when it ended, wall milliseconds.
        input_rows_per_second: that came in.
        rows_per_second: that were processed.
        batch_ms: how long it took.
        rows: of it.
        lag: entries that no finished batch had.
    """

    at_ms: float
    input_rows_per_second: float | None
    rows_per_second: float | None
    batch_ms: float | None
    rows: float | None
    lag: float | None


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """The last batch that a query wrote into streams, by its commit record.

    Attributes:
        version: its number.
        streams: those in which some of it is not published yet; empty when all of it is.
    """

    version: int
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The last that is known of a query (``spark/monitoring/store.py``).

    Attributes:
        id: of the query.
        name: that its author gave it.
        run: of this start.
        driver: the process that drives it.
        host: where that runs.
        pid: the process there.
        state: ``running``, ``stopped``, ``failed``, or ``gone`` where its driver says nothing more.
        started_ms: when it was started, wall milliseconds.
        at_ms: when it told this.
        batch: the last micro-batch.
        rows: of that batch.
        total_rows: of this run.
        rows_per_second: that it processes.
        input_rows_per_second: that come in.
        batch_ms: how long the last batch took.
        phases: milliseconds of that by phase, in Spark's words, the longest first.
        lag: entries that no finished batch has.
        places: where it stands in each stream it reads by itself.
        watermark_ms: its watermark, wall milliseconds.
        state_rows: rows that it keeps as state.
        recent: the last batches.
        error: its last.
        sink: its last batch that went into streams; None for none.
    """

    id: str
    name: str | None
    run: str | None
    driver: str
    host: str | None
    pid: int | None
    state: str
    started_ms: int | None
    at_ms: int | None
    batch: int | None
    rows: int | None
    total_rows: int | None
    rows_per_second: float | None
    input_rows_per_second: float | None
    batch_ms: int | None
    phases: Mapping[str, int]
    lag: int | None
    places: tuple[QueryPlace, ...]
    watermark_ms: int | None
    state_rows: int | None
    recent: tuple[QuerySample, ...]
    error: str | None
    sink: SinkBatch | None = None

    @property
    def title(self) -> str:
        """What people call it: its name, or the beginning of its id."""
        return self.name or self.id[:8]

    def still_ms(self, now_ms: int) -> int | None:
        """How long it has told nothing, where that is longer than is usual for it; None where it is not.

        Args:
            now_ms: wall milliseconds.
        """
        if self.state != "running" or self.at_ms is None:
            return None
        ends = [sample.at_ms for sample in self.recent]
        pause = max((later - earlier for earlier, later in pairwise(ends)), default=0.0)
        age = now_ms - self.at_ms
        return age if age >= max(STILL_MS, 3 * pause) else None

    @property
    def is_lost(self) -> bool:
        """Whether it should run and does not."""
        return self.state in {"failed", "gone"}


@dataclass(frozen=True, slots=True)
class QueriesSeen:
    """All queries that reported to a server, read at one moment.

    Attributes:
        at_ms: wall milliseconds when they were asked for.
        queries: those that reported last first.
        why: why nothing is known of them; None when it is.
    """

    at_ms: int
    queries: tuple[QueryStatus, ...] = ()
    why: str | None = None

    @property
    def lost(self) -> tuple[QueryStatus, ...]:
        """The queries that should run and do not; a query that runs again under its name is not lost."""
        running = {query.name for query in self.queries if query.name and not query.is_lost}
        return tuple(query for query in self.queries if query.is_lost and query.name not in running)

    def readers(self, stream: str) -> list[tuple[QueryStatus, QueryPlace]]:
        """The queries that read a stream by themselves, or should, with their place in it."""
        wanted = [query for query in self.queries if query.state != "stopped"]
        return [(query, place) for query in wanted for place in query.places if place.stream == stream]


def query_status(facts: Mapping[str, Any]) -> QueryStatus:
    """A query by the record it keeps, which was checked."""
    known: dict[str, Any] = {each.name: facts.get(each.name) for each in fields(QueryStatus)}
    known["id"] = facts["id"].encode(errors="backslashreplace").decode()  # half a pair could not be in an address
    known["phases"] = facts["phases"] or {}
    known["places"] = tuple(QueryPlace(**place) for place in facts["places"] or ())
    known["recent"] = tuple(QuerySample(*row) for row in facts["recent"] or ())
    known["sink"] = None
    return QueryStatus(**known)
