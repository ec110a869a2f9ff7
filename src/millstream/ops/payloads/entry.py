"""All decoded values of an entry, and the values to which a name leads. PURE.

A name is resolved as for a handler: in the entry's fields. If the entry is an envelope or has only the field ``data``
with JSON, the name is resolved in that content.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

from millstream.client.payloads import envelope
from millstream.ops.payloads.decode import Decoded, Form, decode

_INSIDE = "data"
_ENVELOPE = envelope.FIELD.decode()


class EntryPayload:
    """The fields of one entry, decoded when first read."""

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]], form: Form | None = None) -> None:
        self.pairs = tuple(pairs)
        self._form = form

    @cached_property
    def fields(self) -> tuple[tuple[str, Decoded], ...]:
        """Names and decoded values, in order; a name may come twice."""
        return tuple((name.decode("utf-8", "surrogateescape"), decode(value, self._form)) for name, value in self.pairs)

    @cached_property
    def record(self) -> dict[str, object]:
        """The entry as a handler gets it: the content of its envelope or of its field ``data``, otherwise its fields.

        The last value of a repeated name counts, as it does for a handler.
        """
        by_name = dict(self.fields)
        if _ENVELOPE in by_name and by_name[_ENVELOPE].form == "envelope":
            inside = by_name[_ENVELOPE].value
            body = inside["body"] if isinstance(inside, dict) else None
            return body if isinstance(body, dict) else {_INSIDE: body}
        if len(by_name) == 1 and _INSIDE in by_name and isinstance(by_name[_INSIDE].value, dict):
            inside = by_name[_INSIDE].value
            assert isinstance(inside, dict)
            return inside
        return {name: found.value for name, found in by_name.items()}

    @cached_property
    def headers(self) -> dict[str, object]:
        """Headers of the envelope; empty for other entries."""
        for _, found in self.fields:
            if found.form == "envelope" and isinstance(found.value, dict):
                headers = found.value["headers"]
                return headers if isinstance(headers, dict) else {}
        return {}

    def at(self, path: str) -> list[object]:
        """Return every value to which a path leads: none, one, or several if it leads through a list.

        A longer name goes before its parts: ``a.b`` is the field of that name if it exists, otherwise ``b`` in ``a``.
        ``headers.NAME`` is a header of the envelope, unless the entry has a field ``headers`` itself.
        """
        for place in (self.record, {name: found.value for name, found in self.fields}, {"headers": self.headers}):
            if found := _walk(place, path):
                return found
        return []

    def texts(self) -> Iterator[str]:
        """Yield every name and every value, at any depth, as text."""
        for name, found in self.fields:
            yield name
            yield from texts_in(found.value)


def texts_in(value: object) -> Iterator[str]:
    """Yield every name and plain value inside a value as text; bytes are decoded."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += reversed(one.values())
            yield from one
        elif isinstance(one, list):
            waiting += reversed(one)
        elif isinstance(one, bytes):
            yield one.decode("utf-8", "surrogateescape")
        else:
            yield plain_text(one)


def plain_text(value: object) -> str:
    """Return a scalar as JSON writes it, but text without quotes."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return str(value)
    except ValueError:  # a number with more digits than Python converts
        return ""


def _walk(place: object, path: str) -> list[object]:
    """Return the values to which a path leads from this value."""
    if isinstance(place, list):
        head, _, rest = path.partition(".")
        if head.isascii() and head.isdigit() and len(head) < 10:
            inside = place[int(head) : int(head) + 1]
            return [found for one in inside for found in (_walk(one, rest) if rest else [one])]
        return [found for one in place for found in _walk(one, path)]
    if not isinstance(place, dict):
        return []
    head, rest = path, ""
    while True:  # use the longest existing name, since names may contain dots
        if head in place:
            return _walk(place[head], rest) if rest else [place[head]]
        head, dot, _ = head.rpartition(".")
        if not dot:
            return []
        rest = path[len(head) + 1 :]
