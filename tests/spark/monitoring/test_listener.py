"""A driver's report of its queries at their end. Tests with Spark are in ``tests/pipelines/test_run.py``."""

import threading
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from pyspark.sql.streaming.listener import QueryStartedEvent, QueryTerminatedEvent

from millstream.spark.monitoring import store
from millstream.spark.monitoring.listener import Watch
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

QUERY, RUN = uuid.uuid4(), uuid.uuid4()


class Ending:
    """A session whose query has ended, but which Spark lists briefly before it notifies listeners."""

    def __init__(self) -> None:
        self.streams = self
        self._heard: Any = None
        self._removed = threading.Event()
        self._telling = threading.Thread(target=self._tell)

    @property
    def active(self) -> list[Any]:
        self._telling.start()
        return [SimpleNamespace(id=str(QUERY), isActive=False)]

    def addListener(self, listener: Any) -> None:  # noqa: N802 - Spark's name
        self._heard = listener
        listener.onQueryStarted(QueryStartedEvent(QUERY, RUN, "q", "2026-01-01T00:00:00.000Z", set()))

    def removeListener(self, _: Any) -> None:  # noqa: N802 - Spark's name
        self._removed.set()
        self._telling.join()

    def _tell(self) -> None:
        if not self._removed.wait(0.3):
            self._heard.onQueryTerminated(QueryTerminatedEvent(QUERY, RUN, None, None))


def test_an_end_that_spark_tells_of_late_is_told(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A query that ended is shown as stopped, even if Spark notifies of it late."""
    session: Any = Ending()
    Watch(session, real_redis.url).close()
    (found,) = store.found(client)
    assert found["state"] == "stopped"
