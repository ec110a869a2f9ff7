"""The contents of a whole RDB file, key by key, in its order. PURE.

It reads files of Redis from 2.6 (version 6) to 8.8 (14), and of Valkey (80 and 81, with a head of their own). It skips
and names values of types that Millstream does not have. It refuses bytes that are damaged, missing or of an unknown
type, and names their offset.

Items are valid only once the end is reached, which compares the checksum. (Without the native core the checksum takes
most of the time: 1.6 MB a second.)
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from millstream.engine.keyspace import Value
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb.payload import NEWEST, VALKEY
from millstream.engine.serialization.rdb.pieces import PiecedSource, string
from millstream.engine.serialization.rdb.streams import ACTIVE_TIMES
from millstream.engine.serialization.rdb.unheld import pass_key_metadata, pass_module_aux, passing
from millstream.engine.serialization.rdb.values import EmptyError, is_read, read_value

OLDEST_VERSION = 6  # Version of Redis 2.6; earlier ones are from 2011 or before

_KEY_META, _SLOT_INFO, _FUNCTION, _MODULE_AUX = 243, 244, 245, 247
_IDLE, _FREQ, _AUX, _RESIZE, _EXPIRE_MS, _EXPIRE, _SELECT, _END = range(248, 256)


class RdbError(MalformedError):
    """A file that is damaged, cut short or of an unsupported form; the text names the offset."""


@dataclass(frozen=True, slots=True)
class RdbKey:
    """A key with its value."""

    db: int  # Number of the database
    key: bytes  # Name of the key
    value: Value  # Value of the key
    expires_at: int | None  # Wall milliseconds of the expiry, perhaps in the past; None for never


@dataclass(frozen=True, slots=True)
class AuxField:
    """A note of the server that wrote the file, such as ``redis-ver`` or ``repl-offset``."""

    name: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class NotHeld:
    """Something in the file that Millstream does not have, and that was skipped."""

    what: str  # Kind of the item, in words
    db: int  # Number of the database
    key: bytes | None = None  # Name of the key; None for an item without a key


RdbItem = RdbKey | AuxField | NotHeld
# Bytes of a name that an error shows
_SHOWN = 200


def named(name: bytes) -> str:
    """Return a name for a message; a long one is shortened to its beginning."""
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}... ({len(name)} bytes)"


def read_file(pieces: Iterable[bytes], idmp_duration: int = 100, idmp_maxsize: int = 100) -> Iterator[RdbItem]:
    """Yield the contents of a file.

    A key that is in the file twice, which Redis refuses, is returned twice.
    """
    file = _File(PiecedSource(pieces), idmp_duration, idmp_maxsize)
    try:
        yield from file.items()
    except MalformedError as error:
        raise RdbError(f"{error}, before byte {file.source.offset}{file.place()}") from None


class _File:
    """A file that is being read: the position, and the attributes of the next key."""

    def __init__(self, source: PiecedSource, idmp_duration: int, idmp_maxsize: int) -> None:
        self.source = source
        self._limits = (idmp_duration, idmp_maxsize)
        self._is_valkey = False
        self.db = 0
        self._key: bytes | None = None
        self.expires_at: int | None = None
        self._has_metadata = False

    def place(self) -> str:
        """The key that is being read, for messages."""
        return "" if self._key is None else f" (key {named(self._key)} of database {self.db})"

    def items(self) -> Iterator[RdbItem]:
        """All items, up to the end."""
        self._head()
        source = self.source
        while (kind := source.byte()) != _END:
            # Expiry, access time and frequency precede their key and apply to it alone
            if kind in _NOTES:
                _NOTES[kind](self)
            # The number has another meaning in Valkey
            elif kind == _KEY_META and not self._is_valkey:
                pass_key_metadata(source)
                self._has_metadata = True
            elif kind == _AUX:
                yield AuxField(string(source), string(source))
            # Skipped and reported: without a report, callers of a lost library would break later
            elif kind == _FUNCTION:
                string(source)
                yield NotHeld("function library", self.db)
            elif kind == _MODULE_AUX:
                yield NotHeld(f"data of module type {pass_module_aux(source)}", self.db)
            else:
                yield from self._value(kind)
        self._end()

    def _head(self) -> None:
        magic = self.source.take(9)
        self._is_valkey = magic.startswith(b"VALKEY")
        # Valkey's name is one letter longer, and its version one digit shorter
        digits = magic[6:] if self._is_valkey else magic[5:]
        if not (self._is_valkey or magic.startswith(b"REDIS")) or not digits.isdigit():
            raise MalformedError("not an RDB file: it begins neither with REDIS nor with VALKEY")
        version = int(digits)
        fits = version in VALKEY if self._is_valkey else OLDEST_VERSION <= version <= NEWEST
        if not fits:
            raise MalformedError(f"{magic.decode()} is a version that is not read")

    def _end(self) -> None:
        """Check the checksum; 0 means none."""
        made = self.source.checksum()
        said = self.source.little(8)
        if said not in {0, made}:
            raise MalformedError("the checksum is another than that of the bytes")
        if not self.source.is_over():
            raise MalformedError("more follows the end: the first part of an append-only file is not read")

    def _value(self, kind: int) -> Iterator[RdbItem]:
        source = self.source
        # Redis and Valkey numbered types above this one independently
        is_valkeys = self._is_valkey and kind > ACTIVE_TIMES
        is_held = is_read(kind) and not is_valkeys
        # Only a known form reveals the length of a value; after an unknown one, the file cannot be read further
        pass_over = None if is_held else passing(kind, is_valkey=is_valkeys)
        key = self._key = string(source)
        if self._has_metadata:
            yield NotHeld("metadata of modules", self.db, key)
        if pass_over is not None:
            yield NotHeld(pass_over(source), self.db, key)
        else:
            try:
                yield RdbKey(self.db, key, read_value(source, kind, *self._limits), self.expires_at)
            # Old versions of Redis could leave one behind; it counts as a missing key
            except EmptyError:
                yield NotHeld("empty collection", self.db, key)
        self._key, self.expires_at, self._has_metadata = None, None, False


# ---------------------------------------------------------------------- items before a key


def _select(file: _File) -> None:
    file.db = file.source.size()


def _resize(file: _File) -> None:
    file.source.size()
    file.source.size()


def _slot_info(file: _File) -> None:
    for _ in range(3):
        file.source.size()


def _idle(file: _File) -> None:
    file.source.size()


def _frequency(file: _File) -> None:
    file.source.byte()


def _expire(file: _File) -> None:
    file.expires_at = file.source.little(4, signed=True) * 1000


def _expire_ms(file: _File) -> None:
    found = file.source.little(8, signed=True)
    file.expires_at = None if found == -1 else found  # Redis's value for no expiry


_NOTES: dict[int, Callable[[_File], None]] = {
    _SLOT_INFO: _slot_info,
    _IDLE: _idle,
    _FREQ: _frequency,
    _RESIZE: _resize,
    _EXPIRE_MS: _expire_ms,
    _EXPIRE: _expire,
    _SELECT: _select,
}
