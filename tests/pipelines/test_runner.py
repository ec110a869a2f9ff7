"""Restarts and stops of a pipeline, with a query that the test controls."""

import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.runner import PipelineRunner


@dataclass
class Query:
    """A ``StreamingQuery`` that a test controls; ``script`` has its states, and the last one stays."""

    isActive: bool = True  # noqa: N815 - Spark's name
    died: Exception | None = None
    script: list[tuple[bool, int | None]] = field(default_factory=lambda: [(False, None)])
    stopped_at: int | None = None

    def exception(self) -> Exception | None:
        return self.died

    @property
    def status(self) -> dict[str, Any]:
        if len(self.script) > 1:
            self.script.pop(0)
        return {"isTriggerActive": self.script[0][0]}

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        batch = self.script[0][1]
        return None if batch is None else {"batchId": batch}

    def stop(self) -> None:
        self.isActive, self.stopped_at = False, self.script[0][1]

    def die(self, text: str) -> None:
        self.isActive, self.died = False, RuntimeError(text)


@dataclass
class Pipeline:
    """A pipeline that returns queries one after the other."""

    name: str = "late"
    queries: list[Query] = field(default_factory=list)
    refuses: Exception | None = None

    def start(self, _: object) -> Query:
        if self.refuses is not None:
            raise self.refuses
        self.queries.append(Query())
        return self.queries[-1]


def running() -> tuple[Pipeline, PipelineRunner]:
    pipeline = Pipeline()
    runner = PipelineRunner(pipeline, None)
    runner.look(100.0)
    return pipeline, runner


def test_a_query_that_dies_is_started_again_ever_more_slowly() -> None:
    """A failed query restarts after 1, 2, 4 and up to 60 seconds, and its error is kept in one line."""
    pipeline, runner = running()
    now, pauses = 100.0, []
    for _ in range(8):
        pipeline.queries[-1].die("ValueError: no such thing")
        runner.look(now)
        assert (runner.state, runner.error) == ("waiting", "ValueError: no such thing")
        died, count = now, len(pipeline.queries)
        while len(pipeline.queries) == count:
            now += 0.5
            runner.look(now)
        pauses.append(now - died)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (runner.state, runner.restarts) == ("running", 8)


def test_a_query_that_lived_long_begins_with_a_short_pause() -> None:
    """A query that ran long restarts after a short pause, despite earlier failures."""
    pipeline, runner = running()
    for now, wait in ((100.0, 1.0), (101.0, 2.0), (200.0, 1.0)):
        pipeline.queries[-1].die("OSError: away")
        runner.look(now)
        runner.look(now + wait - 0.1)
        assert runner.state == "waiting"
        runner.look(now + wait)
        assert runner.state == "running"


def test_the_end_of_a_query_and_what_cannot_be_started_are_final() -> None:
    """A query that ended by itself, or whose declaration is wrong, is not restarted."""
    pipeline, runner = running()
    pipeline.queries[-1].isActive = False
    runner.look(101.0)
    runner.look(200.0)
    assert (runner.state, len(pipeline.queries)) == ("done", 1)
    for refusal, told in ((ConfigError("no sink"), "no sink"), (KeyError("tyop"), "'tyop'")):
        runner = PipelineRunner(Pipeline(refuses=refusal), None)
        runner.look(100.0)
        runner.look(200.0)
        assert (runner.state, runner.error) == ("failed", told)


@pytest.mark.parametrize(
    ("script", "stopped_at"),
    [
        ([(False, 4)], 4),  # between two batches
        ([(True, 4), (True, 4), (True, 4), (False, 4)], 4),  # it found nothing new
        ([(True, 4), (True, 4), (True, 5)], 5),  # the batch is done and the next has begun
    ],
)
def test_a_stop_lets_the_running_batch_end(script: list[tuple[bool, int | None]], stopped_at: int) -> None:
    """A stop waits for the running batch, and not for the one after it."""
    pipeline, runner = running()
    pipeline.queries[-1].script = script
    runner.stop(time.monotonic() + 60)
    assert (runner.state, pipeline.queries[-1].stopped_at, len(script)) == ("done", stopped_at, 1)


def test_a_stop_does_not_wait_beyond_its_time() -> None:
    """A stop does not wait beyond its time limit, and an unfinished batch runs again from the checkpoint."""
    pipeline, runner = running()
    pipeline.queries[-1].script = [(True, 4)]
    runner.stop(time.monotonic())
    assert (runner.state, pipeline.queries[-1].isActive) == ("done", False)
