"""A listener that reports the progress of a session's queries to the server, under the keys of ``store``.

Spark calls a listener from one thread for all queries, so it only queues a note; a separate thread writes. A server
that is away loses entries of the history, but delays no batch: the last state is reported when it is back.
"""

import contextlib
import functools
import logging
import os
import queue
import socket
import threading
import time
import uuid
from typing import Any

import redis
from pyspark.sql import SparkSession
from pyspark.sql.streaming import listener

from millstream.client.connect import connect
from millstream.client.url import check_remote
from millstream.spark.monitoring import progress, store
from millstream.spark.monitoring.error_text import last_words

log = logging.getLogger("millstream.spark")

_EVERY = 1.0
"""Seconds between two entries of a query's progress in the history."""

_PATIENCE = 5.0
_NOTES = 1000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Watch(listener.StreamingQueryListener):
    """Reports every query of a session until it is closed."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._session = spark
        self._client = connect(check_remote(url), socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE)
        self._driver = uuid.uuid4().hex[:12]
        self._notes: queue.Queue[tuple[str | None, dict[str, Any]] | None] = queue.Queue(_NOTES)
        self._facts: dict[str, dict[str, Any]] = {}
        self._news = threading.Condition()
        self._written: dict[str, float] = {}
        self._unwritten: dict[str, dict[str, Any]] = {}
        self._away = False
        self._thread = threading.Thread(target=self._write, name="millstream-watch", daemon=True)
        self._thread.start()
        spark.streams.addListener(self)

    def close(self) -> None:
        """Send the remaining reports, and mark this driver as gone.

        Spark reports the end of a query a moment after it; this method waits for that report.
        """
        # Spark briefly lists an ended query before it reports the end.
        active = {query.id for query in self._session.streams.active if query.isActive}
        with self._news:
            self._news.wait_for(lambda: self._unended() <= active, _PATIENCE)
        self._session.streams.removeListener(self)
        with contextlib.suppress(queue.Full):
            self._notes.put(None, timeout=_PATIENCE)
        self._thread.join(2 * _PATIENCE)
        with contextlib.suppress(redis.RedisError):
            self._client.delete(store.driver_key(self._driver))
        self._client.close()

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """The last report of each query of this session, by its name, or by its id if it has none."""
        return {facts["name"] or ident: dict(facts) for ident, facts in list(self._facts.items())}

    def _unended(self) -> set[str]:
        """Return the queries whose end was not reported yet."""
        return {ident for ident, facts in self._facts.items() if facts["state"] == "running"}

    # -- called by Spark ----------------------------------------------------------------------------------------------

    def onQueryStarted(self, event: listener.QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Note that a query begins, or begins again."""
        started = {"name": event.name, "run": str(event.runId), "started_ms": _now_ms(), "driver": self._driver}
        self._note(str(event.id), "started", {**started, "host": socket.gethostname(), "pid": os.getpid()}, new=True)

    def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Note that a batch has ended."""
        ident, at_ms, news = str(event.progress.id), _now_ms(), progress.figures(event.progress)
        before = self._facts.get(ident, {})
        news["total_rows"] = before.get("total_rows", 0) + event.progress.numInputRows
        news["recent"] = progress.recent(before.get("recent") or (), at_ms, news)
        self._note(ident, "progress", news)

    def onQueryIdle(self, event: listener.QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Note that a query had nothing new for ten seconds."""
        self._note(str(event.id), None, {})

    def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Note that a query was stopped, ended or failed."""
        error = None if event.exception is None else last_words(event.exception)
        self._note(str(event.id), "terminated", {"state": "failed" if error else "stopped", "error": error})

    def _note(self, ident: str, event: str | None, news: dict[str, Any], *, new: bool = False) -> None:
        before = self._facts.get(ident, {})
        if new:  # the last error stays visible while the query is retried
            before = {"error": before.get("error")}
        facts = store.NEW | before | {"id": ident, "at_ms": _now_ms()} | news
        with self._news:
            self._facts[ident] = facts
            self._news.notify_all()
        with contextlib.suppress(queue.Full):  # the server is unreachable; the next report replaces this one
            self._notes.put_nowait((event, facts))

    # -- the writing thread -------------------------------------------------------------------------------------------

    def _write(self) -> None:
        heartbeat_due, tidied = 0.0, False
        while True:
            with contextlib.suppress(queue.Empty):
                note = self._notes.get(timeout=max(heartbeat_due - time.monotonic(), 0.01))
                if note is None:
                    break
                self._take(*note)
            if time.monotonic() >= heartbeat_due:
                self._write_unwritten()
                self._try(lambda: self._client.set(store.driver_key(self._driver), _now_ms(), px=store.TTL_MS))
                tidied = tidied or self._try(lambda: store.forget(self._client, _now_ms()))
                heartbeat_due = time.monotonic() + store.HEARTBEAT_SECONDS
        self._write_unwritten()

    def _take(self, event: str | None, facts: dict[str, Any]) -> None:
        """Write a note, or keep it until the next heartbeat if the history got one a moment ago."""
        ident = facts["id"]
        if event not in {"started", "terminated"}:
            self._unwritten[ident] = facts
            if event is None or time.monotonic() - self._written.get(ident, 0.0) < _EVERY:
                return
        self._written[ident] = time.monotonic()
        if self._try(lambda: store.write(self._client, facts, event)):
            self._unwritten.pop(ident, None)
        else:
            self._unwritten[ident] = facts

    def _write_unwritten(self) -> None:
        for ident, facts in list(self._unwritten.items()):
            if self._try(functools.partial(store.write, self._client, facts, None)):
                self._unwritten.pop(ident, None)

    def _try(self, call: Any) -> bool:
        """Return True if the server accepted the write; the first of several failures is logged."""
        try:
            call()
        except redis.RedisError as error:
            if not self._away:
                log.warning("the progress of queries cannot be reported to the server: %s", error)
            self._away = True
            return False
        self._away = False
        return True


def watch(spark: SparkSession, url: str) -> Watch:
    """Report every query of this session to the server at ``url``, for ``millstream spark ls``.

    Args:
        spark: the session.
        url: ``redis://``, ``rediss://`` or ``unix://``.

    Returns:
        The listener; close it before the session is stopped.

    Raises:
        ConfigError: the URL is not that of a server.
    """
    return Watch(spark, url)
