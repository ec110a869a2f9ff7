"""The reply to a command, before it is encoded to bytes.

Commands build these values; ``millstream.protocol.encoder`` turns them into RESP2 or RESP3. The two sides share only
this module, so neither imports the other.

========================  =======================  ==========================
Python value              RESP2                    RESP3
========================  =======================  ==========================
``int``                   ``:n``                   ``:n``
``bytes``                 bulk string              bulk string
``None``                  ``$-1``                  ``_``
``NIL_ARRAY``             ``*-1``                  ``_``
``list``                  array                    array
``bool``                  ``:1`` / ``:0``          ``#t`` / ``#f``
``float``                 bulk string              ``,``
``Simple``                ``+``                    ``+``
``Error``                 ``-``                    ``-``
``Map``, ``MapRow``       flat array               ``%``
``Set``                   array                    ``~``
``Push``                  array                    ``>``
``Verbatim``              bulk string              ``=``
``Raw``                   the same bytes in both   the same bytes in both
``Many``                  each value in turn       each value in turn
========================  =======================  ==========================
"""

from collections.abc import Sequence
from typing import TypeAlias, Union

Buffer: TypeAlias = bytes | bytearray | memoryview


class NilArray:
    """The null array; use the one instance ``NIL_ARRAY``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NIL_ARRAY"


NIL_ARRAY = NilArray()


class Simple:
    """A simple string (``+OK``): short, no line break."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Simple({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Simple) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class Error:
    """An error reply; ``line`` starts with its code (``ERR``, ``WRONGTYPE``, ...)."""

    __slots__ = ("line",)

    def __init__(self, line: str) -> None:
        self.line = line

    def __repr__(self) -> str:
        return f"Error({self.line!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Error) and other.line == self.line

    def __hash__(self) -> int:
        return hash(self.line)


class Map:
    """Key and value pairs in order; keys may repeat."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Sequence[tuple["Reply", "Reply"]]) -> None:
        self.pairs = pairs

    def __repr__(self) -> str:
        return f"Map({self.pairs!r})"


class MapNames:
    """Names that many :class:`MapRow` share, without a per cent sign. They are encoded once."""

    __slots__ = ("forms", "names")

    def __init__(self, *names: bytes) -> None:
        self.names = names
        # Formats by protocol version and types of the values, filled in by the encoder
        self.forms: dict[tuple[int, tuple[type, ...]], tuple[bytes, int]] = {}

    def __repr__(self) -> str:
        return f"MapNames{self.names!r}"


class MapRow:
    """A map with fixed names, for replies with many of them."""

    __slots__ = ("names", "values")

    def __init__(self, names: MapNames, *values: "Reply") -> None:
        self.names = names
        self.values = values

    @property
    def pairs(self) -> "Sequence[tuple[Reply, Reply]]":
        """The pairs of the map."""
        return list(zip(self.names.names, self.values, strict=True))

    def __repr__(self) -> str:
        return f"MapRow({self.pairs!r})"


class Set:
    """An unordered collection."""

    __slots__ = ("items",)

    def __init__(self, items: "Sequence[Reply]") -> None:
        self.items = items


class Push:
    """An out-of-band message (pub/sub, invalidation)."""

    __slots__ = ("items",)

    def __init__(self, items: "Sequence[Reply]") -> None:
        self.items = items


class Verbatim:
    """Text with a three-letter format (``txt``), such as the reply to INFO."""

    __slots__ = ("format", "text")

    def __init__(self, text: bytes, fmt: bytes = b"txt") -> None:
        self.text = text
        self.format = fmt


class Many:
    """Several values one after the other, for commands that reply more than once (SUBSCRIBE)."""

    __slots__ = ("values",)

    def __init__(self, values: "Sequence[Reply]") -> None:
        self.values = values


class Raw:
    """Bytes already encoded as exactly one RESP value, identical in RESP2 and RESP3.

    The stream engine keeps entries in wire form, so ranges are sent as slices rather than encoded again.
    """

    __slots__ = ("buffers",)

    def __init__(self, buffers: list[Buffer]) -> None:
        self.buffers = buffers

    def __repr__(self) -> str:
        return f"Raw({b''.join(self.buffers)!r})"


class Fixed:
    """A value that never changes and is sent often. It is encoded once for each protocol version."""

    __slots__ = ("value", "written")

    def __init__(self, value: "Reply") -> None:
        self.value = value  # Reply to send
        self.written: dict[int, bytes] = {}  # Encoded bytes by protocol version, filled in by the encoder

    def __repr__(self) -> str:
        return f"Fixed({self.value!r})"


Reply: TypeAlias = Union[
    bool,
    int,
    float,
    bytes,
    "list[Reply]",
    NilArray,
    Simple,
    Error,
    Map,
    MapRow,
    Set,
    Push,
    Verbatim,
    Raw,
    Many,
    Fixed,
    None,
]

OK = Simple(b"OK")
QUEUED = Simple(b"QUEUED")
PONG = Simple(b"PONG")
