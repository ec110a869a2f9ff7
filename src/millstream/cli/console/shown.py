"""Display of groups and their lag, the same in all subcommands."""

import dataclasses
from collections.abc import Mapping, Sequence

from millstream.cli.shared.output import Column, Table
from millstream.ops.groups.owners import PartitionOwner
from millstream.ops.groups.status import GroupRate, consumer_facts, group_facts
from millstream.ops.streams.balance import PartitionLoad, StreamBalance
from millstream.ops.streams.status import ConsumerStatus, GroupStatus, Lag

GROUPS = (
    Column("stream"),
    Column("group"),
    Column("lag", "count"),
    Column("lag_at_least", "count", people="never"),
    Column("lag_at_most", "count", people="never"),
    Column("lag_unknown", people="never"),
    Column("lag_change", "count", "change", rank=3),
    Column("undelivered_age_ms", "span", "behind by", rank=1),
    Column("drain_ms", "span", "done in", rank=4),
    Column("pending", "count"),
    Column("pending_age_ms", "span", "oldest pending", rank=2),
    Column("delayed", "count", people="never"),
    Column("unowned", "count", rank=5),
    Column("consumers", "count", rank=6),
    Column("last_delivered_id", rank=7),
    Column("entries_read", "count", people="never"),
    Column("added_per_second", "count", "added/s", rank=8),
    Column("delivered_per_second", "count", "delivered/s", rank=9),
)

CONSUMERS = (
    Column("consumer"),
    Column("pending", "count"),
    Column("idle_ms", "span", "idle for"),
    Column("inactive_ms", "span", "nothing new for"),
)

OWNERS = (
    Column("partition", "count"),
    Column("owner"),
    Column("fence", "count"),
    Column("lease_ms", "span", "lease ends in", rank=2),
    Column("entries", "count", rank=3),
    Column("lag", "count"),
    Column("pending", "count"),
    Column("key", rank=4),
)

RATES = ("lag_change", "drain_ms", "added_per_second", "delivered_per_second")
"""Columns that are shown only with ``--watch``."""
LOADS = (
    Column("entries", "count"),
    Column("share", title="share %"),
    Column("added", "count", "ever added", rank=2),
    Column("lag", "count", "worst lag"),
    Column("bytes", "bytes"),
)
PARTITIONS = (Column("partition"), Column("node"), Column("state"), *LOADS)


def lag_text(lag: Lag, form: str) -> object:
    """Return a lag as a number. An unknown lag is null for programs, and its bounds for people."""
    if form != "table" or (lag.known and lag.reason is None):
        return lag.entries
    if lag.known:
        return f"{lag.entries} (counted)"
    return f"unknown ({lag.at_least} or more)" if lag.at_most is None else f"unknown ({lag.at_least}-{lag.at_most})"


def group_row(group: GroupStatus, now_ms: int, rate: GroupRate | None, form: str) -> Mapping[str, object]:
    """Return a group as a row of :data:`GROUPS`."""
    return {**group_facts(group, now_ms, rate), "lag": lag_text(group.lag, form)}


def consumer_table(found: Sequence[ConsumerStatus], form: str) -> Table:
    """Return consumers as a table. For people, the consumer without a name has an explanation."""
    nobody = "(nobody)" if form == "table" else ""
    rows = [consumer_facts(one) | {"consumer": one.name or nobody} for one in found]
    return Table("consumers", CONSUMERS, rows, empty="No consumers.")


def owner_table(name: str, found: Sequence[PartitionOwner]) -> Table:
    """Return partitions with their owners as a table."""
    return Table(name, OWNERS, [{**dataclasses.asdict(one), "partition": one.number} for one in found])


def partition_table(seen: StreamBalance) -> Table:
    """Return the partitions of a stream with their shares as a table."""
    total = sum(one.entries for one in seen.partitions)
    rows = [[one.key, one.node, "sealed" if one.sealed else "open", *load([one], total)] for one in seen.partitions]
    return Table("partitions", PARTITIONS, rows, empty="No partitions.")


def load(held: Sequence[PartitionLoad], total: int) -> list[object]:
    """Return the row of a partition: entries, share, entries ever added, largest lag, bytes."""
    entries = sum(one.entries for one in held)
    sizes = [one.bytes for one in held]
    size = None if None in sizes else sum(one or 0 for one in sizes)
    share = round(100 * entries / total, 1) if total else 0.0
    return [entries, share, sum(one.added for one in held), max((one.lag for one in held), default=0), size]
