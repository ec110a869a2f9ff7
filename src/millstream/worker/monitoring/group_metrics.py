"""The server's facts about the streams and groups of this process, as Prometheus metrics.

An id is reported as its milliseconds. A figure that the server does not report is absent, never 0. Examples are an
unknown lag, the first entry of an empty stream, or a figure that an older server lacks.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.client.line import Disconnected, Line
from millstream.client.url import db_label
from millstream.worker.handlers.subscription import Subscription
from millstream.worker.monitoring.group_info import GroupFacts, Record, StreamFacts, ask, milliseconds
from millstream.worker.monitoring.metrics import STREAMS, family

if TYPE_CHECKING:
    from prometheus_client import Metric

_IN_STREAM = ("groups", "radix-tree-keys", "radix-tree-nodes", "entries-added")
_IDS_IN_STREAM = ("last-generated-id", "max-deleted-entry-id")
_ENTRIES_IN_STREAM = ("first-entry", "last-entry")


async def collect(
    subscriptions: Iterable[tuple[Subscription, Subscription]], line: Line | None, url: str, *, consumers: bool
) -> "list[Metric]":
    """Return the metrics of every stream and group of the subscriptions; empty if the server does not reply.

    Each subscription comes with that of its whole stream, which differs for a partition.
    """
    if line is None:
        return []
    logical: dict[str, str] = {}  # Partition and its dead-letter stream -> those of the whole stream
    streams: dict[str, list[Subscription]] = {}
    for one, whole in subscriptions:
        streams.setdefault(one.sub.stream, []).append(one)
        logical |= {one.sub.stream: whole.sub.stream, one.dead: whole.dead}
    samples = _Samples(db_label(url), logical)
    asked: set[str] = set()  # a dead-letter stream may be shared, and a second sample would make the scrape invalid
    try:
        for stream, readers in streams.items():
            groups = list(dict.fromkeys(one.group for one in readers))
            dead = list(dict.fromkeys(one.dead for one in readers if one.dead not in asked))
            asked.update(dead)
            _tell_stream(samples, stream, await ask(line, stream, groups, dead, consumers=consumers))
    except Disconnected:
        return []
    return samples.families()


class _Samples:
    """The metric families, filled one sample at a time."""

    def __init__(self, db: str, logical: Mapping[str, str]) -> None:
        self._db = db
        self._logical = logical
        self._families: dict[str, Any] = {name: family(name) for name in STREAMS}

    def add(self, name: str, labels: Sequence[str], value: float | None) -> None:
        """Add one sample, unless its value is None; the first label is the stream."""
        if value is not None:
            self._families[name].add_metric([self._db, self._logical.get(labels[0], labels[0]), *labels], value)

    def families(self) -> "list[Metric]":
        """Return the families that have samples."""
        return [family for family in self._families.values() if family.samples]


def _tell_stream(samples: _Samples, stream: str, facts: StreamFacts) -> None:
    samples.add("redis_stream_length", [stream], facts.length)
    info = facts.info or {}
    for field in _IN_STREAM:
        samples.add(_named(field), [stream], info.get(field))
    for field in _IDS_IN_STREAM:
        samples.add(_named(field), [stream], milliseconds(info[field]) if field in info else None)
    for field in _ENTRIES_IN_STREAM:
        entry = info.get(field)
        samples.add(_named(field) + "_id", [stream], milliseconds(entry[0]) if entry else None)
    for key, waiting in facts.dead.items():
        samples.add("millstream_dead_letters_waiting", [key], waiting)
    for group, found in facts.groups.items():
        _tell_group(samples, [stream, group], found)


def _named(field: str) -> str:
    return f"redis_stream_{field.replace('-', '_')}"


def _tell_group(samples: _Samples, labels: Sequence[str], facts: GroupFacts) -> None:
    info = facts.info
    if info is not None:
        samples.add("redis_stream_group_lag", labels, info.get("lag"))
        samples.add("millstream_stream_group_lag_known", labels, int(info.get("lag") is not None))
        samples.add("redis_stream_group_messages_pending", labels, info["pending"])
        samples.add("redis_stream_group_consumers", labels, info["consumers"])
        samples.add("redis_stream_group_entries_read", labels, info.get("entries-read"))
        samples.add("redis_stream_group_last_delivered_id", labels, milliseconds(info["last-delivered-id"]))
    samples.add("millstream_stream_group_unowned_messages", labels, facts.unowned)
    samples.add("millstream_stream_group_delayed_messages", labels, facts.delayed)
    samples.add("millstream_stream_group_oldest_pending_age_seconds", labels, facts.pending_age)
    samples.add("millstream_stream_group_oldest_undelivered_age_seconds", labels, facts.undelivered_age)
    for row in facts.consumers:
        _tell_consumer(samples, labels, row)


def _tell_consumer(samples: _Samples, labels: Sequence[str], row: Record) -> None:
    name = row["name"].decode("utf-8", "backslashreplace")  # consumers of other programs may have any bytes
    samples.add("redis_stream_group_consumer_idle_seconds", [*labels, name], row["idle"] / 1000)
    samples.add("redis_stream_group_consumer_messages_pending", [*labels, name], row["pending"])
