"""Prometheus metrics of one worker process, made when they are asked for, so that they cost the work nothing.

The process's own counters come first; then what the server says about the groups that are read here
(:mod:`millstream.worker.monitoring.group_metrics`). What the program itself registered with
prometheus-client is there too.
"""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from millstream._version import __version__
from millstream.client.line import Line
from millstream.errors import MillstreamError
from millstream.worker.monitoring.group_metrics import collect
from millstream.worker.subscriber.loop import SubscriberLoop

if TYPE_CHECKING:
    from prometheus_client import Metric

_HANDLER = ("handler", "stream", "group")

#: Counter -> what it counts, and the field of ``SubscriberStats`` behind each value of its last label.
_COUNTERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "millstream_entries_received": (
        "Entries received, new or delivered before.",
        "kind",
        {"new": "read", "claimed": "claimed"},
    ),
    "millstream_deliveries": (
        "Deliveries by what became of them.",
        "outcome",
        {"acked": "acked", "retried": "retried", "dead": "dead", "released": "released", "lost": "lost"},
    ),
    "millstream_handler_runs": (
        "Runs of the handler by how they ended.",
        "result",
        {"ok": "handled", "failed": "failed"},
    ),
}
_PLAIN: dict[str, tuple[str, str]] = {
    "millstream_suspect_runs": ("Runs of entries that had been delivered before.", "suspects"),
    "millstream_outcomes_fenced": ("Outcomes refused because another had the entry by then.", "fenced"),
    "millstream_groups_created": ("Times a missing group was made.", "groups_created"),
    "millstream_reader_reconnects": ("Times the connection for reading was lost.", "reconnects"),
    "millstream_consumers_reaped": ("Dead consumers removed.", "reaped"),
}


class MetricsError(MillstreamError):
    """prometheus-client is not installed; the text says how to get it."""


async def scrape(
    loops: Sequence[SubscriberLoop], line: Line | None, url: str, accept: str, *, consumers: bool
) -> tuple[bytes, str]:
    """One scrape and its content type.

    Args:
        loops: the subscribers of this process.
        line: the way to the server; None before the first connection, then nothing is said of groups.
        url: the server, for the label ``db``.
        accept: the scraper's ``Accept`` header.
        consumers: also series for each consumer of the groups.

    Raises:
        MetricsError: prometheus-client is not installed.
    """
    need()
    groups = await collect([loop.subscription for loop in loops], line, url, consumers=consumers)
    return expose([*_own(loops), *groups], accept)


def need() -> None:
    """Raise where the metrics cannot be made.

    Raises:
        MetricsError: prometheus-client is not installed.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        raise MetricsError("metrics need prometheus-client: pip install 'millstream[metrics]'")


def expose(ours: "Sequence[Metric]", accept: str) -> tuple[bytes, str]:
    """The answer to a scrape, and its content type: what the program itself registered, then ours."""
    from prometheus_client import REGISTRY  # noqa: PLC0415 - optional
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - optional

    class Both:
        """The program's metrics, then ours."""

        def collect(self) -> "Iterator[Metric]":
            yield from REGISTRY.collect()
            yield from ours

    encoder, kind = choose_encoder(accept)
    body: bytes = encoder(Both())
    return body, kind


def _own(loops: Sequence[SubscriberLoop]) -> "Iterable[Metric]":
    """What this process counted and holds."""
    from prometheus_client.core import (  # noqa: PLC0415 - optional
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )

    yield InfoMetricFamily("millstream_build", "The version.", value={"version": __version__})
    for name, (text, label, fields) in _COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=(*_HANDLER, label))
        for loop in loops:
            for value, attribute in fields.items():
                family.add_metric([*_labels(loop), value], getattr(loop.stats, attribute))
        yield family
    for name, (text, attribute) in _PLAIN.items():
        family = CounterMetricFamily(name, text, labels=_HANDLER)
        for loop in loops:
            family.add_metric(_labels(loop), getattr(loop.stats, attribute))
        yield family
    reasons = CounterMetricFamily("millstream_dead_letters", "Dead letters written.", labels=(*_HANDLER, "reason"))
    for loop in loops:
        for reason, count in loop.member.reasons.items():
            reasons.add_metric([*_labels(loop), reason], count)
    yield reasons
    runs = HistogramMetricFamily(
        "millstream_handler_duration_seconds", "Runs of the handler since the first scrape.", labels=_HANDLER
    )
    for loop in loops:
        durations = loop.durations()
        runs.add_metric(_labels(loop), buckets=durations.buckets(), sum_value=durations.total)
    yield runs
    gauges: dict[str, tuple[str, Callable[[SubscriberLoop], float]]] = {
        "millstream_worker_slots": ("Most runs at the same time.", lambda loop: loop.subscription.concurrency),
        "millstream_worker_in_hand": ("Entries delivered and without a stored outcome.", lambda loop: loop.in_hand),
        "millstream_worker_buffered": ("Entries read and not begun.", lambda loop: loop.buffered),
        "millstream_worker_paused": ("1 while somebody has paused it.", lambda loop: loop.paused is not None),
        "millstream_reader_idle_seconds": ("Since the reader last got an answer.", lambda loop: loop.idle_ms / 1000),
    }
    for name, (text, value_of) in gauges.items():
        gauge = GaugeMetricFamily(name, text, labels=_HANDLER)
        for loop in loops:
            gauge.add_metric(_labels(loop), float(value_of(loop)))
        yield gauge


def _labels(loop: SubscriberLoop) -> list[str]:
    return [loop.subscription.name, loop.subscription.sub.stream, loop.subscription.group]
