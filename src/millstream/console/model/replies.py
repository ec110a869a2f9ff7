"""A server's replies as facts: RESP2 values of XINFO, XPENDING and XRANGE in, dataclasses out. Pure.

A refusal is an exception in the place of a reply. Unknown fields of newer versions are skipped, and fields that a
version does not have are left out.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from millstream.console.model.entries import EntryView
from millstream.console.model.lag import GroupPosition, lag_of
from millstream.console.model.names import text_of
from millstream.console.model.pending import PendingEntry, PendingSummary
from millstream.console.model.streams import ConsumerStatus, GroupStatus, StreamStatus
from millstream.texts import said

Reply: TypeAlias = Any
Record: TypeAlias = dict[str, Any]


def record(row: Sequence[Any]) -> Record:
    """One of XINFO's maps, which RESP2 sends as names and values in turn."""
    return {name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)}


def refusal(reply: Reply) -> str | None:
    """The server's words where it refused; None where it answered."""
    return said(reply) if isinstance(reply, Exception) else None


def stream_status(key: str, info: Reply, groups: Reply) -> StreamStatus:
    """One stream with its groups."""
    facts = record(info)
    missing: dict[str, str] = {}
    for name in ("entries-added", "max-deleted-entry-id"):
        if name not in facts:
            missing[name] = "this server does not count it (Redis does since 7.0)"
    bare = StreamStatus(
        key=key,
        length=facts["length"],
        last_id=text_of(facts["last-generated-id"]),
        first_entry_id=_id_of(facts.get("first-entry")),
        last_entry_id=_id_of(facts.get("last-entry")),
        entries_added=facts.get("entries-added"),
        max_deleted_id=_maybe_text(facts.get("max-deleted-entry-id")),
        missing=missing,
    )
    if (refused := refusal(groups)) is not None:
        return replace(bare, missing=missing | {"groups": refused})
    return replace(bare, groups=tuple(_group_status(bare, record(row)) for row in groups))


def _group_status(stream: StreamStatus, row: Record) -> GroupStatus:
    delivered = text_of(row["last-delivered-id"])
    position = GroupPosition(
        stream.length,
        stream.first_entry_id,
        stream.last_entry_id,
        stream.entries_added,
        stream.max_deleted_id,
        delivered,
        row.get("entries-read"),
        row.get("lag"),
        counts="lag" in row,
    )
    return GroupStatus(
        stream=stream.key,
        name=text_of(row["name"]),
        consumers=row["consumers"],
        pending=row["pending"],
        last_delivered_id=delivered,
        entries_read=row.get("entries-read"),
        lag=lag_of(position),
    )


def consumer_status(stream: str, group: str, row: Sequence[Any]) -> ConsumerStatus:
    """One consumer."""
    facts = record(row)
    inactive = facts.get("inactive")
    return ConsumerStatus(
        stream=stream,
        group=group,
        name=text_of(facts["name"]),
        pending=facts["pending"],
        idle_ms=facts["idle"],
        inactive_ms=inactive if inactive is not None and inactive >= 0 else None,
        inactive_known=inactive is not None,
    )


def pending_summary(reply: Reply) -> PendingSummary:
    """The short form of XPENDING; an entry that was given back is in the total and under no consumer."""
    total, first, last, holders = reply
    held = {text_of(row[0]): int(row[1]) for row in holders or ()}
    held.pop("", None)  # the consumer of entries without a holder on servers without XNACK
    return PendingSummary(total, _maybe_text(first), _maybe_text(last), held, total - sum(held.values()))


def pending_entry(stream: str, group: str, row: Sequence[Any]) -> PendingEntry:
    """One row of the long form of XPENDING."""
    entry, consumer, idle, deliveries = row
    owner = text_of(consumer) or None
    return PendingEntry(stream, group, text_of(entry), owner, idle if owner is not None else None, deliveries)


def entry_view(stream: str, row: Sequence[Any]) -> EntryView:
    """One entry of XRANGE."""
    flat = row[1]
    return EntryView(stream, text_of(row[0]), tuple(zip(flat[::2], flat[1::2], strict=True)))


def _id_of(entry: Sequence[Any] | None) -> str | None:
    return None if not entry else text_of(entry[0])


def _maybe_text(raw: bytes | None) -> str | None:
    return None if raw is None else text_of(raw)
