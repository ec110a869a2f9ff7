"""Streams, groups and consumers as facts: one function for each, for every door that shows them. Pure."""

from collections.abc import Mapping

from millstream.console.model.names import milliseconds
from millstream.console.model.rates import GroupRate
from millstream.console.model.streams import ConsumerStatus, GroupStatus, StreamStatus
from millstream.console.words import brief, name, plural

Facts = dict[str, object]
"""Field name -> value; times and durations are milliseconds, unknown values are None."""


_NAMED = 5  # streams of one reason


def refused_lines(refused: Mapping[str, str]) -> list[str]:
    """The streams that could not be looked at, and the reasons: a line for each reason, for any number of streams."""
    reasons: dict[str, list[str]] = {}
    for key, why in refused.items():
        reasons.setdefault(why.removeprefix(f"{key}: "), []).append(key)
    return [f"{_listed(keys)}: {why}" for why, keys in reasons.items()]


def _listed(keys: list[str]) -> str:
    named = ", ".join(brief(name(key)) for key in keys[:_NAMED])
    more = f" and {len(keys) - _NAMED:,} more" if len(keys) > _NAMED else ""
    return named if len(keys) == 1 else f"{plural(len(keys), 'stream')} ({named}{more})"


def stream_facts(stream: StreamStatus, now_ms: int, added: float | None) -> Facts:
    """A stream without its groups."""
    lag = stream.worst_lag
    known = "groups" not in stream.missing
    unowned = [group.unowned for group in stream.groups]
    return {
        "key": stream.key,
        "length": stream.length,
        "groups": len(stream.groups) if known else None,
        "lag": None if lag is None else lag.entries,
        "lag_at_least": None if lag is None else lag.at_least,
        "lag_at_most": None if lag is None else lag.at_most,
        "undelivered_age_ms": stream.oldest_undelivered.age(now_ms) if stream.groups else None,
        "pending": stream.pending if known else None,
        "pending_age_ms": stream.oldest_pending.age(now_ms) if stream.pending else None,
        "unowned": sum(number or 0 for number in unowned) if known and None not in unowned else None,
        "first_entry": stream.first_entry_id,
        "last_entry": stream.last_entry_id,
        "last_entry_ms": None if stream.last_entry_id is None else milliseconds(stream.last_entry_id),
        "entries_added": stream.entries_added,
        "max_deleted_id": stream.max_deleted_id,
        "added_per_second": rounded(added),
        "missing": dict(stream.missing),
    }


def group_facts(group: GroupStatus, now_ms: int, rate: GroupRate | None) -> Facts:
    """A group."""
    return {
        "stream": group.stream,
        "group": group.name,
        "lag": group.lag.entries,
        "lag_at_least": group.lag.at_least,
        "lag_at_most": group.lag.at_most,
        "lag_unknown": group.lag.reason,
        "lag_change": None if rate is None else rate.lag_change,
        "undelivered_age_ms": group.oldest_undelivered.age(now_ms),
        "drain_ms": None if rate is None else rate.drain_ms,
        "pending": group.pending,
        "pending_age_ms": group.oldest_pending.age(now_ms) if group.pending else None,
        "delayed": group.delayed,
        "unowned": group.unowned,
        "consumers": group.consumers,
        "last_delivered_id": group.last_delivered_id,
        "entries_read": group.entries_read,
        "added_per_second": rounded(None if rate is None else rate.added),
        "delivered_per_second": rounded(None if rate is None else rate.delivered),
    }


def consumer_facts(consumer: ConsumerStatus) -> Facts:
    """A consumer."""
    return {
        "consumer": consumer.name,
        "pending": consumer.pending,
        "idle_ms": consumer.idle_ms,
        "inactive_ms": consumer.inactive_ms,
    }


def lag_facts(group: GroupStatus) -> Facts:
    """The reason why a lag is not known, and the remedy; all null where it is."""
    lag = group.lag
    return {
        "why": lag.why or None,
        "repair": None if lag.repair is None else list(lag.repair),
        "repair_note": lag.repair_note or None,
    }


def rounded(rate: float | None) -> float | None:
    """A rate per second, no more exact than two readings allow."""
    return None if rate is None else round(rate, 1)
