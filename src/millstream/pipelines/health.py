"""Health and metrics of the process that runs pipelines: each query's progress, and the figures of its batches.

:mod:`millstream.worker.monitoring.health` reads it in place of an app.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millstream.worker.model.progress import PartProgress
from millstream.worker.monitoring.metrics import PIPELINES, family
from millstream.worker.monitoring.prometheus import expose, need

if TYPE_CHECKING:
    from prometheus_client import Metric

    from millstream.pipelines.runner import PipelineRunner

_GAUGES = {
    "millstream_pipeline_lag": ("lag", 1),
    "millstream_pipeline_last_batch_rows": ("rows", 1),
    "millstream_pipeline_last_batch_seconds": ("batch_ms", 1000),
    "millstream_pipeline_rows_per_second": ("rows_per_second", 1),
}
"""Gauge -> the field of a query's record (``millstream.spark.monitoring.store``), and the divisor for its unit."""


class PipelineProgress(PartProgress):
    """The progress of one pipeline: its state, and ``idle_ms`` since Spark last reported progress.

    The state is ``running``, ``waiting`` (for a restart after a failure), ``done``, or ``failed`` (it could not be
    started).
    """

    __slots__ = ()
    lost_in = ("failed",)
    ready_in = ("running", "done")


@dataclass
class PipelineHealth:
    """The health of a process's pipelines."""

    _runners: "Sequence[PipelineRunner]"
    _facts: Callable[[], Mapping[str, Mapping[str, Any]]]
    _stopping: Callable[[], bool]
    _begun_ms: float = field(default_factory=lambda: time.time() * 1000)

    parts = "pipelines"
    #: never blocked: the queries run in the JVM, and the loop has nothing else to do
    blocked = None

    @property
    def state(self) -> str:
        """State of the process: ``running`` or ``stopping``."""
        return "stopping" if self._stopping() else "running"

    def progress(self) -> list[PipelineProgress]:
        """Return the progress of each pipeline."""
        facts, now = self._facts(), time.time() * 1000
        return [
            PipelineProgress(
                runner.pipeline.name,
                runner.state,
                round(now - facts.get(runner.pipeline.name, {}).get("at_ms", self._begun_ms)),
            )
            for runner in self._runners
        ]

    async def metrics(self, accept: str = "", *, consumers: bool = True) -> tuple[bytes, str]:  # noqa: ARG002 - no groups
        """Return the reply to a Prometheus scrape, and its content type. Pipelines have no consumers."""
        need()
        return expose(self._families(), accept)

    def _families(self) -> "list[Metric]":
        facts = self._facts()
        made = {name: family(name) for name in PIPELINES}
        for runner in self._runners:
            name = [runner.pipeline.name]
            known = facts.get(runner.pipeline.name, {})
            made["millstream_pipeline_up"].add_metric(name, float(runner.state == "running"))
            made["millstream_pipeline_restarts"].add_metric(name, runner.restarts)
            made["millstream_pipeline_rows"].add_metric(name, known.get("total_rows", 0))
            for gauge, (fact, unit) in _GAUGES.items():
                if known.get(fact) is not None:  # an unknown lag is absent, never 0
                    made[gauge].add_metric(name, known[fact] / unit)
        return list(made.values())
