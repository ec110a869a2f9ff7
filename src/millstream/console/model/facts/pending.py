"""Pending entries as facts. Pure."""

from millstream.console.model.facts.streams import Facts
from millstream.console.model.names import milliseconds
from millstream.console.model.pending import PendingEntry


def pending_facts(entry: PendingEntry, fields: object = None) -> Facts:
    """A pending entry."""
    return {
        "id": entry.id,
        "added_ms": milliseconds(entry.id),
        "consumer": entry.consumer,
        "idle_ms": entry.idle_ms,
        "due_in_ms": entry.due_in_ms,
        "deliveries": entry.deliveries,
        "unowned": entry.unowned,
        "fatal": entry.fatal,
        "gone": entry.gone,
        "fields": fields,
    }
