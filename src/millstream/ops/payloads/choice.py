"""Selection of entries with the form of their values, and entries as rows for programs. PURE."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millstream.ops.payloads.conditions import Condition, has_text, parse
from millstream.ops.payloads.decode import Form
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.words import EntryView, milliseconds

COLUMNS = ("stream", "id", "time_ms", "fields", "repeated")
"""Columns of a row.

``fields`` has the values by name. Earlier values of a repeated name are in ``repeated``.
"""


@dataclass(frozen=True, slots=True)
class EntryChoice:
    """Conditions that select entries, and the form of their values."""

    form: Form | None = None  # Form of the values; None to detect it
    conditions: tuple[Condition, ...] = ()  # Conditions that must all hold

    def payload(self, entry: EntryView) -> EntryPayload:
        """Return the payload of an entry."""
        return EntryPayload(entry.fields, self.form)

    def fits(self, entry: EntryView) -> bool:
        """Return True if all conditions hold for the entry."""
        if not self.conditions:
            return True
        payload = self.payload(entry)
        return all(condition.holds(payload) for condition in self.conditions)


def choice_of(form: Form | None, where: Sequence[str] = (), grep: Sequence[str] = ()) -> EntryChoice:
    """Parse conditions as users typed them, and return them as one selection."""
    found = [has_text(text) for text in grep]
    for text in where:
        try:
            found.append(parse(text))
        except ValueError as reason:
            raise ValueError(f"{text!r}: {reason}") from None
    return EntryChoice(form, tuple(found))


def values_of(payload: EntryPayload, names: Sequence[str] = ()) -> Iterator[tuple[str, object]]:
    """Yield the names and decoded values of an entry, or only those of the given names."""
    if not names:
        yield from ((name, found.value) for name, found in payload.fields)
    for name in names:
        if found := payload.at(name):
            yield name, found[0] if len(found) == 1 else found


def row_of(entry: EntryView, payload: EntryPayload, names: Sequence[str] = ()) -> tuple[object, ...]:
    """Return an entry as a row with :data:`COLUMNS`."""
    fields: dict[str, object] = {}
    repeated = []
    for name, value in values_of(payload, names):
        if name in fields:
            repeated.append([name, fields[name]])
        fields[name] = value
    return entry.stream, entry.id, milliseconds(entry.id), fields, repeated
