"""Streaming queries on Spark, as their drivers tell of them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


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
        batch_ms: how long the last batch took.
        lag: entries that no finished batch has.
        error: its last.
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
    batch_ms: int | None
    lag: int | None
    error: str | None


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


def query_status(facts: Mapping[str, Any]) -> QueryStatus:
    """A query by the record it keeps."""
    known: dict[str, Any] = {field.name: facts.get(field.name) for field in fields(QueryStatus)}
    return QueryStatus(**known)
