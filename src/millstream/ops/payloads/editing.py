"""An entry as a document that a person can edit, and the way back: unchanged values keep their bytes. PURE.

The document is JSON: an object of the entry's fields, or a list of ``[name, value]`` if a name occurs twice or is not
text. JSON, MessagePack and the workers' envelope are decoded in it; other bytes are ``{"base64": "..."}``. A changed
value is written in its earlier form if that is still possible.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff

import msgpack

from millstream.client.jsontext import parse_record
from millstream.client.payloads import envelope
from millstream.ops.payloads.decode import Form, decode
from millstream.texts import json_text, plain

Pairs = Sequence[tuple[bytes, bytes]]


def difference(before: str, after: str) -> list[str]:
    """Return the differing lines of two documents with their context, in the form of ``diff -u``."""
    return [line.rstrip("\n") for line in unified_diff(before.splitlines(), after.splitlines(), "before", "after", n=2)]


@dataclass(frozen=True, slots=True)
class _Value:
    """One value of a document with its stored bytes."""

    form: Form  # Form in which the value is written back
    data: bytes  # Stored bytes
    shown: object  # Value in the document
    body: "_Value | None" = None  # Body of an envelope; None for anything else


def document_of(pairs: Pairs) -> str:
    """Return an entry's fields as JSON for editing; without edits it converts back to the same fields."""
    opened = _document([(plain(name), _value(value).shown) for name, value in pairs])
    try:
        if fields_from(opened, pairs) == list(pairs):
            return opened
    except ValueError:
        pass
    # The value is nested too deeply, or a number is too large: keep all values as stored
    return _document([(plain(name), plain(value)) for name, value in pairs])


def _document(shown: Sequence[tuple[object, object]]) -> str:
    by_name = {name: value for name, value in shown if isinstance(name, str)}
    whole = by_name if len(by_name) == len(shown) else [list(pair) for pair in shown]
    return json_text(whole, indent=2) + "\n"


def fields_from(text: str | bytes, before: Pairs) -> list[tuple[bytes, bytes]]:
    """Return the fields of an edited document."""
    found = parse_record(text)
    if isinstance(found, dict):
        wanted: list[tuple[object, object]] = list(found.items())
    elif isinstance(found, list) and all(isinstance(one, list) and len(one) == 2 for one in found):
        wanted = [(one[0], one[1]) for one in found]
    else:
        raise ValueError("it must be an object of fields, or a list of [name, value]")
    if not wanted:
        raise ValueError("an entry needs at least one field")
    left: dict[bytes, list[_Value]] = {}
    for name, data in before:
        left.setdefault(name, []).append(_value(data))
    fields = []
    for shown, value in wanted:
        field = _bytes_of(shown)
        if field is None:
            raise ValueError(f"{json_text(shown)[:40]} is not a name of a field")
        same = left.get(field)
        fields.append((field, _changed(value, same.pop(0) if same else None, str(shown))))
    return fields


def _value(data: bytes) -> _Value:
    """Return a stored value for a document, decoded only if it can be encoded to the same bytes."""
    found = decode(data)
    if found.form == "envelope":
        opened = envelope.parse(data)
        if envelope.build(opened.headers, opened.body) == data:
            body = _value(opened.body)
            return _Value("envelope", data, {"headers": opened.headers, "body": body.shown}, body)
    if found.form == "json" or (found.form == "msgpack" and _packed(plain(found.value)) == data):
        return _Value(found.form, data, plain(found.value))
    return _Value("text", data, plain(data))


def _changed(value: object, before: _Value | None, name: str) -> bytes:
    """Return the bytes of a value in an edited document."""
    if before is not None and json.dumps(value) == json.dumps(before.shown):
        return before.data
    if value is None:
        raise ValueError(f"{name}: null is not a value: leave the field out, or give it an empty text")
    form = "text" if before is None else before.form
    if form == "envelope" and isinstance(value, Mapping) and set(value) == {"headers", "body"}:
        assert before is not None
        return _enveloped(value["headers"], value["body"], before, name)
    if (data := _bytes_of(value)) is not None:
        return data
    if form == "msgpack":
        if (packed := _packed(value)) is None:
            raise ValueError(f"{name}: it has no form in MessagePack")
        return packed
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def _enveloped(headers: object, body: object, before: _Value, name: str) -> bytes:
    if not isinstance(headers, Mapping) or not all(isinstance(each, str) for each in headers.values()):
        raise ValueError(f"{name}: headers must be an object of texts")
    try:
        return envelope.build(dict(headers), _changed(body, before.body, f"{name}.body"))
    except UnicodeEncodeError:
        raise ValueError(f"{name}: half of a surrogate pair is not text") from None


def _bytes_of(value: object) -> bytes | None:
    """Return the bytes of a text or of ``{"base64": ...}``; None for any other value."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair is not text") from None
    if isinstance(value, Mapping) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as reason:
            raise ValueError(f"it has base64 that cannot be decoded ({reason})") from None
    return None


def _packed(value: object) -> bytes | None:
    """Encode a value as MessagePack; None if MessagePack cannot hold it."""
    try:
        packed: bytes = msgpack.packb(_opened(value))
    except (ValueError, TypeError, OverflowError):
        return None
    return packed


def _opened(value: object) -> object:
    """Return the value with bytes in place of each ``{"base64": ...}``."""
    if isinstance(value, list):
        return [_opened(each) for each in value]
    if isinstance(value, Mapping):
        if list(value) == ["base64"]:
            return _bytes_of(value)
        return {name: _opened(each) for name, each in value.items()}
    return value
