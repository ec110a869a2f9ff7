"""Prometheus metrics of one worker process, computed at each scrape, so that runs have no overhead.

The process's own counters come first. The server's facts about the groups of this process follow
(:mod:`millstream.worker.monitoring.group_metrics`). Names and helps are in :mod:`millstream.worker.monitoring.metrics`.
Metrics that the program itself registered with prometheus-client are included.
"""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from millstream._version import __version__
from millstream.client.line import Line
from millstream.errors import MillstreamError
from millstream.worker.later.mover import Mover
from millstream.worker.later.scheduler import Scheduler
from millstream.worker.limits.limiter import facts_of
from millstream.worker.monitoring.group_metrics import collect
from millstream.worker.monitoring.later_metrics import later_metrics
from millstream.worker.monitoring.metrics import family
from millstream.worker.partitions.loop import PartitionedLoop, Runner

if TYPE_CHECKING:
    from prometheus_client import Metric

#: For each counter, the field of ``SubscriberStats`` for each value of its last label.
_COUNTERS: dict[str, dict[str, str]] = {
    "millstream_entries_received": {"new": "read", "claimed": "claimed"},
    "millstream_deliveries": {name: name for name in ("acked", "retried", "dead", "released", "lost")},
    "millstream_handler_runs": {"ok": "handled", "failed": "failed"},
}
#: For each metric, its value for one subscriber.
_VALUES: dict[str, Callable[[Runner], float]] = {
    "millstream_suspect_runs": lambda loop: loop.stats.suspects,
    "millstream_outcomes_fenced": lambda loop: loop.stats.fenced,
    "millstream_groups_created": lambda loop: loop.stats.groups_created,
    "millstream_reader_reconnects": lambda loop: loop.stats.reconnects,
    "millstream_entries_cancelled": lambda loop: loop.stats.cancelled,
    "millstream_consumers_reaped": lambda loop: loop.stats.reaped,
    "millstream_worker_slots": lambda loop: loop.subscription.concurrency,
    "millstream_worker_in_hand": lambda loop: loop.in_hand,
    "millstream_worker_buffered": lambda loop: loop.buffered,
    "millstream_worker_paused": lambda loop: loop.paused is not None,
    "millstream_worker_longest_run_seconds": lambda loop: loop.longest_ms() / 1000,
    "millstream_reader_idle_seconds": lambda loop: loop.idle_ms / 1000,
}

_LIMITS = ("granted", "refused", "waiting", "in_use")


class MetricsError(MillstreamError):
    """prometheus-client is not installed.

    What to do: pip install 'millstream[metrics]'.
    """


_PARTITIONED: dict[str, Callable[[PartitionedLoop], float]] = {
    "millstream_partitions_owned": lambda loop: len(loop.partitions),
    "millstream_partitions_taken": lambda loop: loop.ownership.counts.taken,
    "millstream_partitions_lost": lambda loop: loop.ownership.counts.lost,
    "millstream_partition_unowned_seconds": lambda loop: loop.ownership.unowned_seconds,
    "millstream_partition_held_keys": lambda loop: len(loop.held_up),
    "millstream_partition_held_seconds": lambda loop: loop.held_seconds,
}


async def scrape(
    loops: Sequence[Runner],
    line: Line | None,
    url: str,
    accept: str,
    later: tuple[Mover | None, Scheduler | None],
    *,
    consumers: bool,
) -> tuple[bytes, str]:
    """Return the body of one scrape and its content type."""
    need()
    parts = [(part.subscription, loop.subscription) for loop in loops for part in loop.parts]
    groups = await collect(parts, line, url, consumers=consumers)
    return expose([*_own(loops), *groups, *await later_metrics(*later)], accept)


def need() -> None:
    """Raise MetricsError if prometheus-client is not installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise MetricsError("metrics need prometheus-client: pip install 'millstream[metrics]'")


def expose(ours: "Sequence[Metric]", accept: str) -> tuple[bytes, str]:
    """Return the reply to a scrape and its content type: the program's own metrics, then Millstream's."""
    from prometheus_client import REGISTRY, exposition  # noqa: PLC0415 - optional

    class Both:
        """The program's own metrics, then Millstream's."""

        def collect(self) -> "Iterator[Metric]":
            yield from REGISTRY.collect()
            yield from ours

    encoder, kind = exposition.choose_encoder(accept)
    body: bytes = encoder(Both())
    return body, kind


def _own(loops: Sequence[Runner]) -> "Iterable[Metric]":
    """Yield the counters of this process and the numbers of entries in it."""
    yield _made("millstream_build", [([__version__], {})])
    for name, fields in _COUNTERS.items():
        counts = [([*_labels(one), value], getattr(one.stats, of)) for one in loops for value, of in fields.items()]
        yield _made(name, counts)
    reasons = [([*_labels(loop), reason], count) for loop in loops for reason, count in loop.member.reasons.items()]
    yield _made("millstream_dead_letters", reasons)
    runs = family("millstream_handler_duration_seconds")
    for loop in loops:
        durations = loop.durations()
        runs.add_metric(_labels(loop), buckets=durations.buckets(), sum_value=durations.total)
    yield runs
    for name, value_of in _VALUES.items():
        yield _made(name, ((_labels(loop), float(value_of(loop))) for loop in loops))
    limits = [(_labels(loop), facts) for loop in loops for facts in facts_of(loop.limiters)]
    for name in _LIMITS:
        yield _made(f"millstream_limit_{name}", (([*of, str(one["name"])], one[name]) for of, one in limits))
    partitioned = [loop for loop in loops if isinstance(loop, PartitionedLoop)]
    for name, count_of in _PARTITIONED.items() if partitioned else ():
        yield _made(name, ((_labels(loop), count_of(loop)) for loop in partitioned))


def _made(name: str, samples: "Iterable[tuple[list[str], Any]]") -> "Metric":
    """Return a family with its samples, each a pair of labels and value."""
    made = family(name)
    for labels, value in samples:
        made.add_metric(labels, value)
    return made  # type: ignore[no-any-return] # of an optional library


def _labels(loop: Runner) -> list[str]:
    return [loop.subscription.name, loop.subscription.sub.stream, loop.subscription.group]
