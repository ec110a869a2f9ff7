"""Decoding of one value of an entry, in a detected or a given form. PURE.

The form is detected in this order:

- The workers' envelope, by its magic bytes.
- A JSON object or list.
- Text in UTF-8.
- A MessagePack map or list.
- Text with few bytes that are not text.
- Hex for any other value.

A number that was written as text stays text, as its writer sent it.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from millstream.client.jsontext import parse_record
from millstream.client.payloads import envelope
from millstream.ops.payloads import messagepack
from millstream.texts import is_utf8

Form = Literal["json", "msgpack", "envelope", "text", "hex"]
"""The form of a decoded value."""

FORMS: tuple[Form, ...] = get_args(Form)

LARGEST = 1 << 20
"""Size limit in bytes of a value that is parsed as JSON or MessagePack; a larger one is text or hex."""

_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\r\x1b") + b"\x7f"
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_SAMPLE = 4096


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded value with its form."""

    form: Form  # Form of the value
    # Value in JSON's types and bytes: text for ``text`` (other bytes as ``surrogateescape``), bytes for ``hex``, and an
    # object of ``headers`` and ``body`` for ``envelope``
    value: object
    size: int  # Size of the stored value in bytes
    note: str = ""  # Reason why the value does not have the requested form; may be empty


def decode(data: bytes, form: Form | None = None) -> Decoded:
    """Decode a value; never raises, whatever the bytes."""
    if form is None:
        return _envelope(data) or _content(data)
    if form == "hex":
        return Decoded("hex", data, len(data))
    if form == "text":
        return Decoded("text", data.decode("utf-8", "surrogateescape"), len(data))
    made = _envelope(data) if form == "envelope" else _json(data, "") if form == "json" else _messagepack(data)
    if made is not None:
        return made
    plain = _text(data)
    return Decoded(plain.form, plain.value, plain.size, f"not {_TITLES[form]}")


_TITLES = {"json": "JSON", "msgpack": "MessagePack", "envelope": "envelope"}


def _content(data: bytes) -> Decoded:
    """Decode a value in its detected form, except an envelope."""
    found = _json(data, "{[")
    if found is None and messagepack.is_container(data) and not is_utf8(data):
        found = _messagepack(data)
    return found or _text(data)


def _json(data: bytes, begins: str) -> Decoded | None:
    """Decode JSON; None if it is not JSON or does not begin with one of the given characters."""
    if len(data) > LARGEST or (begins and data[:64].lstrip()[:1].decode("latin-1") not in tuple(begins)):
        return None
    try:
        return Decoded("json", parse_record(data.decode()), len(data))
    except ValueError:
        return None


def _messagepack(data: bytes) -> Decoded | None:
    if len(data) > LARGEST:
        return None
    try:
        return Decoded("msgpack", messagepack.unpack(data), len(data))
    except ValueError:
        return None


def _envelope(data: bytes) -> Decoded | None:
    if not data.startswith(envelope.MAGIC):
        return None
    try:
        found = envelope.parse(data)
    except ValueError:  # the value is damaged
        return None
    return Decoded("envelope", {"headers": found.headers, "body": _content(found.body).value}, len(data))


def _text(data: bytes) -> Decoded:
    """Return the value as text if most of it is text, otherwise as hex."""
    sample = data[:_SAMPLE]
    strange = len(sample) - len(sample.translate(None, _CONTROLS))
    text = data.decode("utf-8", "surrogateescape")
    if not data.isascii():
        strange += len(_ESCAPED_BYTE.findall(text[:_SAMPLE]))
    if b"\0" in sample or strange * 10 > len(sample):
        return Decoded("hex", data, len(data))
    return Decoded("text", text, len(data))
