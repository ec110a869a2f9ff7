"""FastStream's binary message format, read and written, so that both projects can share a stream. Pure.

One field ``__data__``, all big-endian: eight magic bytes, version (16 bit), offset of the headers and of the body (32
bit each). Then the headers (16 bit count, each name and value with a 16 bit length), then the body. FastStream 0.7,
``faststream/redis/parser/binary.py``.
"""

import struct
from typing import NamedTuple

FIELD = b"__data__"
MAGIC = b"\x89BIN\r\n\x1a\n"
_HEAD = struct.Struct(">HII")


class Envelope(NamedTuple):
    """The contents of an envelope."""

    headers: dict[str, str]  # Header names and values, including ``content-type`` and ``correlation_id``
    body: bytes  # Body of the message


def parse(data: bytes) -> Envelope:
    """Parse an envelope; bytes of any other kind are a body without headers."""
    if not data.startswith(MAGIC):
        return Envelope({}, data)
    try:
        version, headers_at, body_at = _HEAD.unpack_from(data, len(MAGIC))
        if version != 1:
            raise ValueError(f"FastStream envelope of version {version}; only version 1 is known")
        (count,) = struct.unpack_from(">H", data, headers_at)
        at = headers_at + 2
        texts: list[str] = []
        for _ in range(2 * count):
            (length,) = struct.unpack_from(">H", data, at)
            texts.append(data[at + 2 : at + 2 + length].decode())
            at += 2 + length
    except struct.error:
        raise ValueError("damaged FastStream envelope: it ends too early") from None
    return Envelope(dict(zip(texts[::2], texts[1::2], strict=True)), data[body_at:])


def build(headers: dict[str, str], body: bytes) -> bytes:
    """Return an envelope as bytes."""
    parts: list[bytes] = []
    for name, value in headers.items():
        try:
            parts += (name.encode(), value.encode())
        except (AttributeError, UnicodeEncodeError):  # a caller's value of another type, despite the annotation
            raise ValueError(f"the header {name!r:.80} is invalid: its name and its value must be text") from None
    if len(headers) > 0xFFFF or any(len(part) > 0xFFFF for part in parts):
        raise ValueError("a header of FastStream's envelope holds at most 65,535 bytes")
    head = struct.pack(">H", len(headers)) + b"".join(struct.pack(">H", len(part)) + part for part in parts)
    headers_at = len(MAGIC) + _HEAD.size
    return MAGIC + _HEAD.pack(1, headers_at, headers_at + len(head)) + head + body
