"""Payloads for pages: short in a list, in full on an entry's own page; and payloads as data. PURE."""

from dataclasses import dataclass, replace

from millstream.ops.payloads.decode import Decoded
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.words import EntryView, Facts
from millstream.printable import printable
from millstream.texts import json_text

SHORT, LONG = 200, 20_000
"""Limits of a value's characters, in a table and on the entry's own page."""

LIGHT = 16_384
"""Limit of a value's bytes in a list of entries; the entry's own page has the whole value."""

CUT = b"... (cut: the entry's own page has all of it)"
"""The end of a value that was cut."""


def light(entry: EntryView) -> EntryView:
    """Return an entry with its long values cut, so that a reading of many entries does not hold all of them."""
    if all(len(value) <= LIGHT and len(name) <= LIGHT for name, value in entry.fields):
        return entry
    return replace(entry, fields=tuple((light_value(name), light_value(value)) for name, value in entry.fields))


def light_value(value: bytes) -> bytes:
    """Return a value; a long one is cut and ends in a note."""
    return value if len(value) <= LIGHT else value[:LIGHT] + CUT


@dataclass(frozen=True, slots=True)
class Shown:
    """One field as a page shows it."""

    name: str  # Name of the field
    form: str  # Form in which the value was decoded
    size: int  # Size of the value in bytes
    text: str  # Value as text, without terminal control characters
    cut: int = 0  # Number of omitted characters
    note: str = ""  # Remark on an unusual value


def in_brief(payload: EntryPayload) -> list[Shown]:
    """Return the fields of an entry for a row of a table.

    An envelope shows only its content: its headers are on the entry's own page.
    """
    if any(found.form == "envelope" for _, found in payload.fields):
        return [_brief(name, value) for name, value in payload.record.items()]
    return [_shown(name, found, SHORT, indent=None) for name, found in payload.fields]


def in_full(payload: EntryPayload) -> list[Shown]:
    """Return the fields of an entry in full, with indented JSON."""
    return [_shown(name, found, LONG, indent=2) for name, found in payload.fields]


def _brief(name: str, value: object) -> Shown:
    text = value if isinstance(value, str) else json_text(value)
    return Shown(name, "envelope", len(text), printable(text[:SHORT]), max(len(text) - SHORT, 0))


def _shown(name: str, found: Decoded, most: int, indent: int | None) -> Shown:
    """Return a field as a page shows it."""
    if found.form == "hex":
        assert isinstance(found.value, bytes)
        raw = found.value[: most // 3]
        return Shown(name, "hex", found.size, raw.hex(" "), max(found.size - len(raw), 0), found.note)
    text = found.value if isinstance(found.value, str) else json_text(found.value, indent)
    return Shown(name, found.form, found.size, printable(text[:most]), max(len(text) - most, 0), found.note)


def payload_facts(payload: EntryPayload) -> list[Facts]:
    """Return the decoded fields of an entry as data, in order; a name may occur twice."""
    return [
        {"name": name, "form": found.form, "size": found.size, "value": found.value} for name, found in payload.fields
    ]
