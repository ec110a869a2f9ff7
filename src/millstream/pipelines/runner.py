"""One running pipeline: its query is started, restarted after a failure, and stopped in order.

Some failures end by themselves (the server is down, a stream does not exist yet), and others need a person (data that
the function cannot process). Both look the same from outside, so the query is always restarted, with growing delays. A
failure before the query runs is a mistake in the declaration and is not retried.
"""

import time
from typing import Any, Literal

from pyspark.errors import PySparkException

from millstream.errors import MillstreamError
from millstream.logs import logger
from millstream.spark.monitoring.error_text import last_words
from millstream.worker.pipelines import Pipeline

log = logger("millstream.pipelines")

State = Literal["running", "waiting", "done", "failed"]

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
_GOOD_AFTER = 60.0
"""Seconds of running after which the next failure counts as the first."""

_POLL = 0.05


class PipelineRunner:
    """Keeps one pipeline running."""

    def __init__(self, pipeline: Pipeline, spark: Any) -> None:
        self.pipeline, self._spark = pipeline, spark
        # ``waiting`` for the next start, ``running``, ``done`` (the query ended by itself), or ``failed`` (it could not
        # be started)
        self.state: State = "waiting"
        self.restarts = 0  # Number of restarts
        self.error: str | None = None  # Cause of the last failure
        self._query: Any = None
        self._due = self._started = 0.0
        self._pause = FIRST_PAUSE

    def look(self, now: float) -> None:
        """Start the query if it is due, and check if it has ended."""
        if self.state == "waiting" and now >= self._due:
            self._start(now)
        elif self.state == "running" and not self._query.isActive:
            self._ended(now)

    def _start(self, now: float) -> None:
        name = self.pipeline.name
        try:
            self._query = self.pipeline.start(self._spark)
        except (MillstreamError, PySparkException) as error:
            self.error, self.state = last_words(error), "failed"
            log.error("pipeline %s cannot be started: %s", name, self.error)  # noqa: TRY400 - Java's frames don't help
        except Exception as error:
            self.error, self.state = last_words(error), "failed"
            log.exception("pipeline %s cannot be started", name)
        else:
            self.restarts += self._started > 0
            self._started, self.state = now, "running"
            log.info("pipeline %s runs", name)

    def _ended(self, now: float) -> None:
        died = self._query.exception()
        if died is None:
            self.state = "done"
            log.info("pipeline %s ended", self.pipeline.name)
            return
        self.error, self.state = last_words(died), "waiting"
        if now - self._started >= _GOOD_AFTER:
            self._pause = FIRST_PAUSE
        self._due = now + self._pause
        log.error("pipeline %s failed and restarts in %.0f s: %s", self.pipeline.name, self._pause, self.error)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def stop(self, deadline: float) -> None:
        """Stop after the running batch, or in the middle of it at the deadline.

        Spark has no such call, so the query is stopped between two batches or just after one. A batch that has begun
        meanwhile is aborted and run again from the checkpoint at the next start, as after a crash.
        """
        if self.state != "running":
            return
        before = _batch(self._query)
        while (
            self._query.isActive
            and self._query.status["isTriggerActive"]
            and _batch(self._query) == before
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL)  # Spark reports the end of a batch only if asked
        self._query.stop()
        self.state = "done"


def _batch(query: Any) -> int | None:
    """Return the number of the last finished batch of this run."""
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])
