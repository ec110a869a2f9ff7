"""Encoding of reply values in RESP2 or RESP3; the table of types is in :mod:`millstream.replies`.

A reply becomes few buffers. Passing a small buffer to the kernel costs more than copying it, so small ones are joined.
A large one is never copied, since thousands of clients may wait for the same string. RESP2 lacks most types of RESP3;
they are encoded as in Redis (source: https://redis.io/docs/latest/develop/reference/protocol-spec/).
"""

from collections.abc import Callable, Sequence
from typing import Any

from millstream.protocol import doubles
from millstream.replies import (
    Buffer,
    Error,
    Fixed,
    Many,
    Map,
    MapNames,
    MapRow,
    NilArray,
    Push,
    Raw,
    Reply,
    Set,
    Simple,
    Verbatim,
)

# Replies up to this size are joined into one buffer; in larger ones, large buffers are passed on without a copy.
_JOIN_MAX = 64 * 1024
# Smaller buffers are joined with their neighbours: a copy costs less than passing one more buffer to the kernel.
_SMALL = 4 * 1024

_NULL2, _NULL_ARRAY2, _NULL3 = b"$-1\r\n", b"*-1\r\n", b"_\r\n"
_LINE_BREAKS = str.maketrans("\r\n", "  ")

Write = Callable[[list[Buffer], Any, int], None]


def encode(value: Reply, resp: int) -> list[Buffer]:
    """Encode one reply as few buffers.

    Returns:
        Buffers to send in order. Large ones are the reply's own objects, not copies, so that a client that does not
        read its replies costs little.
    """
    kind = type(value)
    if kind is bytes and len(value) <= _JOIN_MAX:  # type: ignore[arg-type] # exact type is known
        return [b"$%d\r\n%b\r\n" % (len(value), value)]  # type: ignore[arg-type, str-format] # the same
    if kind is int:
        return [b":%d\r\n" % value]  # type: ignore[str-format] # exact type is known
    if kind is Raw:
        return _join(value.buffers)  # type: ignore[union-attr] # exact type is known
    out: list[Buffer] = []
    _WRITERS[kind](out, value, resp)
    return _join(out)


def _join(buffers: list[Buffer]) -> list[Buffer]:
    """Join small buffers to fewer ones with the same bytes; large buffers stay as they are."""
    if len(buffers) < 2:
        return buffers
    if sum(map(len, buffers)) <= _JOIN_MAX:
        return [b"".join(buffers)]
    joined: list[Buffer] = []
    run: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < _SMALL:
            run.append(buffer)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        joined.append(buffer)
    if run:
        joined.append(b"".join(run))
    return joined


def weight(value: Reply) -> int:
    """Return the size of a reply in bytes, without the overhead of each string."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, list):
        return _weight_of(value)
    if isinstance(value, Raw):
        return sum(map(len, value.buffers))
    if isinstance(value, Set | Push):
        return _weight_of(value.items)
    if isinstance(value, Many):
        return _weight_of(value.values)
    if isinstance(value, Map | MapRow):
        return sum([_weight_of(pair) for pair in value.pairs])
    if isinstance(value, Fixed):
        return max(map(len, value.written.values()), default=0)
    return len(value.text) if isinstance(value, Verbatim) else 0


def _weight_of(items: Sequence[Reply]) -> int:
    """Return the sum of :func:`weight` without a call for each string and number, since there may be a million."""
    total = 0
    for item in items:
        if type(item) is bytes:
            total += len(item)
        elif type(item) is not int:
            total += weight(item)
    return total


def error_line(text: str) -> bytes:
    """Return an error reply; line breaks in the text become blanks, so that it stays one line."""
    return b"-%b\r\n" % text.translate(_LINE_BREAKS).encode("utf-8", "surrogateescape")


def _bytes(out: list[Buffer], value: bytes, resp: int) -> None:  # noqa: ARG001 - all writers share one signature
    # A large string is appended unchanged, because formatting would copy it for each client
    if len(value) <= _JOIN_MAX:
        out.append(b"$%d\r\n%b\r\n" % (len(value), value))
    else:
        out += (b"$%d\r\n" % len(value), value, b"\r\n")


def _none(out: list[Buffer], value: None, resp: int) -> None:  # noqa: ARG001 - all writers share one signature
    out.append(_NULL2 if resp == 2 else _NULL3)


# RESP2 has two nulls, for strings and for lists, which clients distinguish; RESP3 has one
def _nil_array(out: list[Buffer], value: NilArray, resp: int) -> None:  # noqa: ARG001 - all writers share one signature
    out.append(_NULL_ARRAY2 if resp == 2 else _NULL3)


# RESP2 has neither booleans nor doubles; like Redis, send a number or a string instead
def _bool(out: list[Buffer], value: bool, resp: int) -> None:
    if resp == 2:
        out.append(b":%d\r\n" % value)
    else:
        out.append(b"#t\r\n" if value else b"#f\r\n")


def _float(out: list[Buffer], value: float, resp: int) -> None:
    text = doubles.text(value)
    out.append(b"$%d\r\n%b\r\n" % (len(text), text) if resp == 2 else b",%b\r\n" % text)


def _simple(out: list[Buffer], value: Simple, resp: int) -> None:  # noqa: ARG001 - all writers share one signature
    out.append(b"+%b\r\n" % value.text)


def _error(out: list[Buffer], value: Error, resp: int) -> None:  # noqa: ARG001 - all writers share one signature
    out.append(error_line(value.line))


def _raw(out: list[Buffer], value: Raw, resp: int) -> None:  # noqa: ARG001 - all writers share one signature
    out.extend(value.buffers)


def _items(out: list[Buffer], items: Sequence[Reply], resp: int) -> None:
    """Append the members of a list, set, push or pair, without the header.

    Strings and integers are encoded here, since a call for each would cost more than the encoding.
    """
    for item in items:
        kind = type(item)
        if kind is bytes and len(item) <= _JOIN_MAX:  # type: ignore[arg-type] # exact type is known
            out.append(b"$%d\r\n%b\r\n" % (len(item), item))  # type: ignore[arg-type, str-format] # the same
        elif kind is int:
            out.append(b":%d\r\n" % item)  # type: ignore[str-format] # exact type is known
        else:
            _WRITERS[kind](out, item, resp)


def _list(out: list[Buffer], value: list[Reply], resp: int) -> None:
    out.append(b"*%d\r\n" % len(value))
    _items(out, value, resp)


# In RESP2 a map is a list of alternating keys and values, and sets and pushes are lists
def _map(out: list[Buffer], value: Map | MapRow, resp: int) -> None:
    out.append(b"*%d\r\n" % (2 * len(value.pairs)) if resp == 2 else b"%%%d\r\n" % len(value.pairs))
    for pair in value.pairs:
        _items(out, pair, resp)


# One formatting of a whole row costs half as much as one of each value
def _row(out: list[Buffer], value: MapRow, resp: int) -> None:
    kinds = tuple(map(type, value.values))
    form, plain = value.names.forms.get((resp, kinds)) or _form(value.names, resp, kinds)
    given: list[object] = []
    for item in value.values[:plain]:
        if type(item) is bytes:
            if len(item) > _JOIN_MAX:
                return _map(out, value, resp)
            given.append(len(item))
        if item is not None:
            given.append(item)
    out.append(form % tuple(given))
    if plain < len(kinds):
        for pair in value.pairs[plain:]:
            _items(out, pair, resp)
    return None


def _form(names: MapNames, resp: int, kinds: tuple[type, ...]) -> tuple[bytes, int]:
    """Return the format of rows with values of these kinds, up to the first that has none, and the number of those."""
    forms = {bytes: b"$%d\r\n%b\r\n", int: b":%d\r\n", type(None): _NULL2 if resp == 2 else _NULL3}
    parts = [b"*%d\r\n" % (2 * len(kinds)) if resp == 2 else b"%%%%%d\r\n" % len(kinds)]
    plain = next((at for at, kind in enumerate(kinds) if kind not in forms), len(kinds))
    for name, kind in zip(names.names[:plain], kinds, strict=False):
        parts += (b"$%d\r\n%b\r\n" % (len(name), name), forms[kind])
    names.forms[resp, kinds] = found = (b"".join(parts), plain)
    return found


# Several replies to one command (SUBSCRIBE to several channels) follow each other without a header
def _many(out: list[Buffer], value: Many, resp: int) -> None:
    _items(out, value.values, resp)


def _set(out: list[Buffer], value: Set, resp: int) -> None:
    out.append(b"%b%d\r\n" % (b"*" if resp == 2 else b"~", len(value.items)))
    _items(out, value.items, resp)


def _push(out: list[Buffer], value: Push, resp: int) -> None:
    out.append(b"%b%d\r\n" % (b"*" if resp == 2 else b">", len(value.items)))
    _items(out, value.items, resp)


# A constant reply (COMMAND DOCS) is encoded once for each protocol version
def _fixed(out: list[Buffer], value: Fixed, resp: int) -> None:
    written = value.written.get(resp)
    if written is None:
        written = value.written[resp] = b"".join(encode(value.value, resp))
    out.append(written)


def _verbatim(out: list[Buffer], value: Verbatim, resp: int) -> None:
    if resp == 2:
        _bytes(out, value.text, resp)
    else:
        out.append(b"=%d\r\n%b:%b\r\n" % (len(value.text) + 4, value.format, value.text))


# The most frequent types, bytes and int, are usually encoded without this table.
_WRITERS: dict[type, Write] = {
    bytes: _bytes,
    type(None): _none,
    NilArray: _nil_array,
    bool: _bool,
    float: _float,
    Simple: _simple,
    Error: _error,
    Raw: _raw,
    list: _list,
    Map: _map,
    MapRow: _row,
    Set: _set,
    Push: _push,
    Many: _many,
    Verbatim: _verbatim,
    Fixed: _fixed,
}
