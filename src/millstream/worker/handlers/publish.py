"""The command of a publish: XADD with trimming, an idempotent id, and plain fields or FastStream's envelope."""

import zlib
from collections.abc import Mapping
from typing import Any

from millstream.client.capabilities import Capabilities
from millstream.client.line import Command
from millstream.client.partitions.layout import PartitionLayout, key_bytes
from millstream.client.payloads import envelope
from millstream.errors import ConfigError, UsageError, require
from millstream.worker.handlers.fields import JSON, TEXT, encode, key_of, open_body, to_body
from millstream.worker.model.answers import PayloadError

#: Prefix of producer names in XADD IDMP: the server compares only ids of the same producer.
PRODUCER = "millstream"
#: Number of producers for ids that callers pass. A server remembers only the latest hundred ids of each, but an id must
#: expire only by its age (true below about 3,000 publishes per second).
_PRODUCERS = 4096


def trimming(maxlen: int | None, minid: str | None) -> tuple[str | int, ...]:
    """Return the arguments of XADD that trim the stream approximately."""
    if maxlen is not None and minid is not None:
        raise ConfigError("publish(maxlen=, minid=) is invalid: a stream is trimmed by length or by id. Write one.")
    if maxlen is not None:
        return ("MAXLEN", "~", maxlen)
    return () if minid is None else ("MINID", "~", minid)


def checked_stream(call: str, stream: object) -> None:
    """Refuse what is not the name of a stream."""
    require(call, "stream", stream, isinstance(stream, str) and stream, 'the name of a stream. Write stream="orders"')


def fields_of(content: Any, headers: dict[str, str] | None) -> list[bytes]:
    """Return field names and values in turn."""
    if headers is None:
        return encode(content)
    if not isinstance(headers, Mapping):
        raise PayloadError(
            f"headers={headers!r:.80} is invalid: it must be a mapping of texts. Write {{'name': 'value'}}."
        )
    kind, body = to_body(content)
    given = headers.get("content-type")
    if isinstance(given, str) and not _fits(given, kind, body):
        given = None  # the caller passes on the headers of another entry
    try:
        return [envelope.FIELD, envelope.build({**headers, "content-type": given or kind}, body)]
    except ValueError as error:
        raise PayloadError(str(error)) from error


def _fits(given: str, kind: str, body: bytes) -> bool:
    """Report whether the caller's content type is read back as what was published: bytes, or text with a document."""
    if kind == JSON or (kind == TEXT and JSON in given and body[:1] not in (b"{", b"[")):
        return given == kind
    try:
        open_body(given, body)
    except ValueError:
        return False
    return kind != TEXT or JSON in given or given.startswith("text/")


def producer_of(idempotent: str) -> str:
    """Return the producer name under which the server compares an id, the same in every process."""
    return f"{PRODUCER}:{zlib.crc32(idempotent.encode(errors='surrogatepass')) % _PRODUCERS}"


def xadd(
    stream: str, fields: list[bytes], trim: tuple[str | int, ...], idempotent: str | None, producer: str | None = None
) -> Command:
    """Return the XADD command."""
    words: tuple[str | int, ...] = ()
    if idempotent is not None:
        words = ("IDMP", producer or producer_of(idempotent), idempotent)
    return ("XADD", stream, *words, *trim, "*", *fields)


def key_in(layout: PartitionLayout, fields: list[bytes], key: str | bytes | float | None) -> bytes:
    """Return the key of an entry, which chooses its partition.

    Raises:
        UsageError: the entry has no key.
    """
    found = key_bytes(key) if key is not None else None if layout.by is None else key_of(fields, layout.by)
    if found is None:
        field = "" if layout.by is None else f", or the field {layout.by!r} by which it is partitioned"
        raise UsageError(
            f"publish({layout.stream!r}) is invalid: the stream is partitioned, and the entry has no key. Write "
            f"key=...{field}."
        )
    return found


def check_idempotent(given: Any) -> None:
    """Refuse an id that is not text; the server refuses an empty one."""
    if given is not None and not isinstance(given, str):
        raise UsageError(f"publish(idempotent={given!r:.80}) is invalid: it must be text. Write str(...).")


def need_idmp(found: Capabilities) -> None:
    """Raise UsageError if the server does not support XADD IDMP.

    A server that refuses to report it now also refuses the write, with its own reason.
    """
    if not found.idmp and "idmp" not in found.unknown:
        raise UsageError(
            "publish(idempotent=...) needs XADD IDMP, which this server does not support (Millstream and Redis 8.6 "
            "do): publish without it and let the handler tolerate repetitions, or use such a server"
        )
