"""The content of an entry as facts; a module of its own, since decoding loads more than most commands need. Pure."""

from millstream.console.model.facts.streams import Facts
from millstream.console.payloads.entry import EntryPayload


def payload_facts(payload: EntryPayload) -> list[Facts]:
    """The fields of an entry, decoded, in their order: a name may come twice."""
    return [
        {"name": name, "form": found.form, "size": found.size, "value": found.value} for name, found in payload.fields
    ]
