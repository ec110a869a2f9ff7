"""A RESP reader for tests, independent of the package's reader.

Bulk strings are ``bytes``, any null is None, simple strings and errors are the package's ``Simple`` and ``Error``. A
RESP3 map is ``Pairs``, a list of ``[key, value]`` in wire order, with repeated keys. A double is a float.
"""

from millstream.replies import Error, Simple


class Pairs(list[list[object]]):
    """A RESP3 map."""

    def __repr__(self) -> str:
        return f"Pairs({super().__repr__()})"


class Incomplete(Exception):  # noqa: N818 - asks for more bytes
    """Error for bytes that end inside a reply."""


def decode(data: bytes) -> object:
    """Decode the one reply in ``data``."""
    value, end = read(data, 0)
    assert end == len(data), f"{len(data) - end} bytes behind the reply: {data[end : end + 60]!r}"
    return value


def read(data: bytes, at: int) -> tuple[object, int]:
    """Return the reply that begins at ``at``, and the position after it."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, rest = data[at : at + 1], data[at + 1 : end]
    at = end + 2
    if kind in b"$=":  # a verbatim string keeps its format before the colon
        size = int(rest)
        if size < 0:
            return None, at
        end = at + size
        if len(data) < end + 2:
            raise Incomplete
        assert data[end : end + 2] == b"\r\n"
        return data[at:end], end + 2
    if kind == b":":
        return int(rest), at
    if kind in b"*~":
        if rest == b"-1":
            return None, at
        items: list[object] = []
        for _ in range(int(rest)):
            item, at = read(data, at)
            items.append(item)
        return items, at
    if kind == b"%":
        pairs = Pairs()
        for _ in range(int(rest)):
            key, at = read(data, at)
            value, at = read(data, at)
            pairs.append([key, value])
        return pairs, at
    return _scalar(kind, rest), at


def _scalar(kind: bytes, rest: bytes) -> object:
    if kind == b"+":
        return Simple(rest)
    if kind == b"-":
        return Error(rest.decode("utf-8", "surrogateescape"))
    if kind == b",":
        return float(rest)
    if kind == b"(":
        return int(rest)
    if kind == b"#":
        return {b"t": True, b"f": False}[rest]
    assert (kind, rest) == (b"_", b""), f"not RESP: {(kind + rest)[:60]!r}"
    return None


def pairs_of(value: object) -> list[list[object]]:
    """Return a map's pairs from a RESP3 map or from RESP2's flat array."""
    if isinstance(value, Pairs):
        return list(value)
    assert isinstance(value, list)
    assert len(value) % 2 == 0
    return [[value[at], value[at + 1]] for at in range(0, len(value), 2)]


def fields(value: object) -> dict[object, object]:
    """Return a map as a dictionary."""
    return {key: item for key, item in pairs_of(value)}  # noqa: C416 - the pairs are lists
