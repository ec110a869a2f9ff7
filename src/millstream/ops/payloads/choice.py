"""The choice of entries and the form to decode their values as; and an entry as a row for programs. PURE."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millstream.ops.payloads.conditions import Condition, has_text, parse
from millstream.ops.payloads.decode import Form
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.words import EntryView, milliseconds

COLUMNS = ("stream", "id", "time_ms", "fields", "repeated")
"""Columns of a row: time is in milliseconds, fields are by name, and earlier values of the same name are in
``repeated``.
"""


@dataclass(frozen=True, slots=True)
class EntryChoice:
    """The form to decode entries as, and the conditions that choose them."""

    form: Form | None = None  # Form of the values; None to detect it
    conditions: tuple[Condition, ...] = ()  # All of them hold for those wanted

    def payload(self, entry: EntryView) -> EntryPayload:
        """The content of an entry."""
        return EntryPayload(entry.fields, self.form)

    def fits(self, entry: EntryView) -> bool:
        """True if it is wanted."""
        if not self.conditions:
            return True
        payload = self.payload(entry)
        return all(condition.holds(payload) for condition in self.conditions)


def choice_of(form: Form | None, where: Sequence[str] = (), grep: Sequence[str] = ()) -> EntryChoice:
    """Conditions as they were typed, as one choice."""
    found = [has_text(text) for text in grep]
    for text in where:
        try:
            found.append(parse(text))
        except ValueError as reason:
            raise ValueError(f"{text!r}: {reason}") from None
    return EntryChoice(form, tuple(found))


def values_of(payload: EntryPayload, names: Sequence[str] = ()) -> Iterator[tuple[str, object]]:
    """Names and decoded values of an entry."""
    if not names:
        yield from ((name, found.value) for name, found in payload.fields)
    for name in names:
        if found := payload.at(name):
            yield name, found[0] if len(found) == 1 else found


def row_of(entry: EntryView, payload: EntryPayload, names: Sequence[str] = ()) -> tuple[object, ...]:
    """An entry as a row of :data:`COLUMNS`."""
    fields: dict[str, object] = {}
    repeated = []
    for name, value in values_of(payload, names):
        if name in fields:
            repeated.append([name, fields[name]])
        fields[name] = value
    return entry.stream, entry.id, milliseconds(entry.id), fields, repeated
