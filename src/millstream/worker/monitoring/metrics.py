"""Declarations of all metrics at ``/metrics``: name, type, labels and help, also for docs/reference/metrics.md.

Names are those of redis_exporter where it has the metric, so that its dashboards fit.
"""

from dataclasses import dataclass
from typing import Any, Literal

_HANDLER = ("handler", "stream", "group")
_STREAM = ("db", "logical", "stream")  # ``logical``: the partitioned stream of a partition, or the stream itself
_GROUP = (*_STREAM, "group")
_CONSUMER = (*_GROUP, "consumer")
_PIPELINE = ("pipeline",)


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric.

    Attributes:
        kind: type of the metric, as Prometheus names it.
        text: help text.
        labels: names of its labels.
    """

    kind: Literal["counter", "gauge", "histogram", "info"]
    text: str
    labels: tuple[str, ...] = ()

    def exposed(self, name: str) -> str:
        """Return the name as it is scraped: a counter and an info have a suffix."""
        return name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


# Counters and gauges of a worker process.
WORKER: dict[str, Declared] = {
    "millstream_build": Declared("info", "Version of Millstream.", ("version",)),
    "millstream_entries_received": Declared(
        "counter",
        "Entries received: the kind is new, or claimed if an entry was delivered before.",
        (*_HANDLER, "kind"),
    ),
    "millstream_deliveries": Declared(
        "counter", "Deliveries by outcome: acked, retried, dead, released or lost.", (*_HANDLER, "outcome")
    ),
    "millstream_handler_runs": Declared(
        "counter", "Runs of the handler by result: ok or failed.", (*_HANDLER, "result")
    ),
    "millstream_dead_letters": Declared("counter", "Dead letters written.", (*_HANDLER, "reason")),
    "millstream_suspect_runs": Declared("counter", "Runs of entries that had been delivered before.", _HANDLER),
    "millstream_outcomes_fenced": Declared(
        "counter", "Outcomes refused because another consumer had the entry by then.", _HANDLER
    ),
    "millstream_groups_created": Declared(
        "counter", "Number of times that the worker created a missing group.", _HANDLER
    ),
    "millstream_reader_reconnects": Declared(
        "counter", "Number of times that the reader lost its connection.", _HANDLER
    ),
    "millstream_entries_cancelled": Declared("counter", "Entries cancelled before or during their run.", _HANDLER),
    "millstream_consumers_reaped": Declared("counter", "Dead consumers removed.", _HANDLER),
    "millstream_handler_duration_seconds": Declared(
        "histogram",
        "Durations of the handler's runs since the first heartbeat or scrape, with publishing; a batch is one run.",
        _HANDLER,
    ),
    "millstream_worker_slots": Declared("gauge", "Limit of simultaneous runs.", _HANDLER),
    "millstream_worker_in_hand": Declared("gauge", "Delivered entries without a stored outcome.", _HANDLER),
    "millstream_worker_buffered": Declared("gauge", "Entries that were read and have not begun.", _HANDLER),
    "millstream_worker_paused": Declared("gauge", "1 while the handler is paused.", _HANDLER),
    "millstream_worker_longest_run_seconds": Declared(
        "gauge",
        "Seconds since a scrape first saw the longest current run; 0 when nothing runs. A value that only grows shows "
        "a stuck run.",
        _HANDLER,
    ),
    "millstream_reader_idle_seconds": Declared("gauge", "Seconds since the reader last got an answer.", _HANDLER),
    "millstream_limit_granted": Declared("counter", "Permits of the limit that runs have used.", (*_HANDLER, "limit")),
    "millstream_limit_refused": Declared(
        "counter", "Number of times that the limit gave no permit.", (*_HANDLER, "limit")
    ),
    "millstream_limit_waiting": Declared("gauge", "Entries that wait for a permit.", (*_HANDLER, "limit")),
    "millstream_limit_in_use": Declared(
        "gauge", "Slots of the limit that running entries occupy.", (*_HANDLER, "limit")
    ),
    "millstream_partitions_owned": Declared("gauge", "Partitions that this worker owns.", _HANDLER),
    "millstream_partitions_taken": Declared("counter", "Partitions that this worker took.", _HANDLER),
    "millstream_partitions_lost": Declared(
        "counter", "Partitions lost, because the lease ended or another worker took the partition.", _HANDLER
    ),
    "millstream_partition_unowned_seconds": Declared(
        "gauge", "Longest time for which a partition has had no owner; 0 if all have one.", _HANDLER
    ),
    "millstream_partition_held_keys": Declared(
        "gauge", "Keys whose entries wait for a failed one, with hold=True.", _HANDLER
    ),
    "millstream_partition_held_seconds": Declared(
        "gauge", "Time since the first failure of the entry that holds up a key the longest, with hold=True.", _HANDLER
    ),
    "millstream_later_waiting": Declared("gauge", "Entries that wait for their time.", ("stream",)),
    "millstream_later_overdue_seconds": Declared(
        "gauge", "Seconds for which the earliest waiting entry has been due; 0 if none is due.", ("stream",)
    ),
    "millstream_later_moved": Declared("counter", "Entries added at their time by this worker.", ("stream",)),
    "millstream_later_dropped": Declared("counter", "Entries that expired before they could be added.", ("stream",)),
    "millstream_later_skipped": Declared(
        "counter", "Firings dropped because an earlier one was not handled yet (overlap=skip).", ("stream",)
    ),
    "millstream_later_refused": Declared(
        "counter", "Number of times that the server refused to add an entry.", ("stream",)
    ),
    "millstream_schedule_missed": Declared(
        "counter", "Missed firings of a recurring schedule that catch_up left out.", ("schedule",)
    ),
}

# Figures of the server about the streams and groups that a worker reads.
STREAMS: dict[str, Declared] = {
    "redis_stream_length": Declared("gauge", "Entries in the stream.", _STREAM),
    "redis_stream_groups": Declared("gauge", "Groups of the stream.", _STREAM),
    "redis_stream_entries_added": Declared("counter", "Entries ever added to the stream.", _STREAM),
    "redis_stream_first_entry_id": Declared("gauge", "Milliseconds of the first entry's id.", _STREAM),
    "redis_stream_last_entry_id": Declared("gauge", "Milliseconds of the last entry's id.", _STREAM),
    "redis_stream_last_generated_id": Declared("gauge", "Milliseconds of the last id given to an entry.", _STREAM),
    "redis_stream_max_deleted_entry_id": Declared("gauge", "Milliseconds of the highest id that was deleted.", _STREAM),
    "redis_stream_radix_tree_keys": Declared("gauge", "Keys of the tree that holds the stream.", _STREAM),
    "redis_stream_radix_tree_nodes": Declared("gauge", "Nodes of the tree that holds the stream.", _STREAM),
    "redis_stream_group_lag": Declared("gauge", "Entries not delivered to the group yet.", _GROUP),
    "redis_stream_group_messages_pending": Declared("gauge", "Entries delivered and not acked.", _GROUP),
    "redis_stream_group_consumers": Declared("gauge", "Consumers of the group.", _GROUP),
    "redis_stream_group_entries_read": Declared("gauge", "Entries ever delivered to the group.", _GROUP),
    "redis_stream_group_last_delivered_id": Declared("gauge", "Milliseconds of the last delivered entry's id.", _GROUP),
    "redis_stream_group_consumer_idle_seconds": Declared(
        "gauge", "Seconds since the consumer last sent a command.", _CONSUMER
    ),
    "redis_stream_group_consumer_messages_pending": Declared("gauge", "Pending entries of the consumer.", _CONSUMER),
    "millstream_stream_group_lag_known": Declared("gauge", "1 if the server knows the lag, else 0.", _GROUP),
    "millstream_stream_group_oldest_pending_age_seconds": Declared(
        "gauge",
        "Age in seconds of the oldest pending entry that is not delayed, by its id; 0 when there is none, absent if "
        "its id is not a time.",
        _GROUP,
    ),
    "millstream_stream_group_delayed_messages": Declared(
        "gauge", "Pending entries that wait for the end of a delay of Nack(delay=) or Retry.", _GROUP
    ),
    "millstream_stream_group_oldest_undelivered_age_seconds": Declared(
        "gauge",
        "Age in seconds of the oldest undelivered entry, known even if the lag is not; 0 when all are delivered, "
        "absent if its id is not a time.",
        _GROUP,
    ),
    "millstream_stream_group_unowned_messages": Declared(
        "gauge", "Pending entries without a consumer (XNACK); 0 on servers without it.", _GROUP
    ),
    "millstream_dead_letters_waiting": Declared("gauge", "Entries in the dead-letter stream.", _STREAM),
}

# Figures of the pipelines of a process.
PIPELINES: dict[str, Declared] = {
    "millstream_pipeline_up": Declared("gauge", "1 while the pipeline's query runs.", _PIPELINE),
    "millstream_pipeline_restarts": Declared("counter", "Restarts of the pipeline's query.", _PIPELINE),
    "millstream_pipeline_rows": Declared("counter", "Rows read since the query's last start.", _PIPELINE),
    "millstream_pipeline_lag": Declared("gauge", "Entries of the streams that are not in a finished batch.", _PIPELINE),
    "millstream_pipeline_last_batch_rows": Declared("gauge", "Rows of the last batch.", _PIPELINE),
    "millstream_pipeline_last_batch_seconds": Declared("gauge", "Duration of the last batch.", _PIPELINE),
    "millstream_pipeline_rows_per_second": Declared("gauge", "Rows per second of the last batch.", _PIPELINE),
}


def family(name: str) -> Any:
    """Return the family of a declared metric, without samples; needs prometheus-client.

    Raises:
        KeyError: no metric of that name is declared.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily  # noqa: PLC0415 - optional

    kinds = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
        "info": InfoMetricFamily,
    }
    declared = {**WORKER, **STREAMS, **PIPELINES}[name]
    return kinds[declared.kind](name, declared.text, labels=declared.labels)
