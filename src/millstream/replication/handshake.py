"""A replica's side of the handshake with its primary: bytes in, bytes and events out. PURE: no socket, no clock.

The replica sends ``PING``, then ``AUTH`` and its properties (REPLCONF). Then it sends ``PSYNC`` with the history that
it holds and the number of the next byte. The primary continues there (``+CONTINUE``), or sends a copy of all data in a
frame (``+FULLRESYNC``, then ``$<bytes>``, or ``$EOF:<mark>`` if the size is unknown). Then the stream follows.

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/replication/
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from millstream.engine.history import NO_OFFSET, names_of
from millstream.replication.units import packed

# Largest line from the primary, in bytes
_LINE_MAX = 64 * 1024
# Bytes of the primary's message that an error shows
_SHOWN = 200
_MARK = 40
_CONTINUES = re.compile(rb"\+CONTINUE(?: +([0-9a-zA-Z]{40}))? *")
_COPIES = re.compile(rb"\+FULLRESYNC +([0-9a-zA-Z]{40}) +([0-9]{1,19}) *")
_SIZE = re.compile(rb"\$([0-9]{1,19})")
_NO_TEXT = b"$-1"
_OFFSET_MAX = 2**63 - 1
_PAST = re.compile(rb"^master_replid2:([0-9a-zA-Z]{40})\r?$", re.MULTILINE)
_SECOND = re.compile(rb"^second_repl_offset:(-?[0-9]{1,18})\r?$", re.MULTILINE)
_EARLIER = re.compile(rb"^millstream_earlier_histories:(.*)$", re.MULTILINE)
OURS = b"millstream"
"""The capability by which a Millstream primary recognizes a Millstream replica; other primaries ignore it."""
READS_LOG = b"millstream-log-1"
"""The capability to load the files of a primary's log, which are sent only if it equals the primary's own.

Every change of these files (a transition, a form of a record, a frame, a manifest) must change its number.
"""
READS_PACKS = b"millstream-log-2"
"""The capability to load a log that has packs; those that the replica has already do not come along."""
HAVE_PACKS = b"have-packs"
"""The option of REPLCONF with the identities of these packs."""
FAILOVER = b"FAILOVER"
"""The argument of PSYNC that requests a replica to become the primary."""
# Errors in reply to PING after which the handshake continues: the primary requires authentication first
_NOT_YET = (b"-NOAUTH", b"-NOPERM", b"-ERR operation not permitted")
# Errors of a primary that cannot serve now
_LATER = (b"-NOMASTERLINK", b"-LOADING", b"-TRYAGAIN", b"-MASTERDOWN")


@dataclass(frozen=True, slots=True)
class Introduction:
    """A replica's properties that the handshake sends."""

    port: int  # Port of this replica
    replid: str = ""  # Id of the history of its data; empty if none
    offset: int = NO_OFFSET  # Offset of its data in that history
    user: str = ""  # User for AUTH; empty for the default user
    password: str = ""  # Password; empty if none
    ip: str = ""  # Address under which others can reach it; empty for that of the connection
    hands_over: bool = False  # True if it was the primary, and requests the other server to take its place
    asks_past: bool = False  # True to query first the histories that the primary's history continues
    packs: Sequence[str] | None = None  # Identities of its packs; None if it reads no log with packs


@dataclass(frozen=True, slots=True)
class Send:
    """Bytes for the primary."""

    data: bytes


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """The handshake cannot continue."""

    reason: str  # Error of the primary, or another reason
    is_passing: bool = False  # True if the primary cannot serve now but may be able to later


@dataclass(frozen=True, slots=True)
class CopyAwaited:
    """The primary is making a copy: it sent an empty line, as it does only then."""


@dataclass(frozen=True, slots=True)
class CopyBegins:
    """A copy of all data follows, taken at an offset of a history."""

    replid: str
    offset: int


@dataclass(frozen=True, slots=True)
class PrimaryPast:
    """The earlier histories that the primary's own continues."""

    # Name (zeros for none) of each history and the offset up to which both are equal, latest first. Earlier ones are
    # included only if the primary sends them
    ends: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CopySize:
    """The size of the copy in bytes; None if the primary does not report it."""

    size: int | None


@dataclass(frozen=True, slots=True)
class CopyBytes:
    """The next bytes of the copy."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CopyEnds:
    """The copy is complete."""


@dataclass(frozen=True, slots=True)
class Continues:
    """The stream continues after the replica's offset; ``replid`` is the history's name from here on."""

    replid: str


@dataclass(frozen=True, slots=True)
class StreamBytes:
    """The next bytes of the stream."""

    data: bytes


CopyEvent = CopyAwaited | CopyBegins | CopySize | CopyBytes | CopyEnds
Event = Send | LinkRefused | PrimaryPast | CopyEvent | Continues | StreamBytes


class Handshake:
    """A replica's side of the handshake, as a state machine over received bytes."""

    def __init__(self, me: Introduction) -> None:
        self._me = me
        self._data = bytearray()
        # Messages to send, each with the handler of its reply
        self._steps: deque[tuple[list[bytes], Callable[[bytes], Iterator[Event]]]] = deque(self._words())
        self._left: int | None = 0  # number of missing bytes of the copy; None if a mark ends it
        self._mark = b""
        self._is_awaited = False  # True after the primary has announced a copy
        self._read: Callable[[], Iterator[Event]] = self._answer

    def begin(self) -> bytes:
        """Return the first bytes to send to the primary."""
        return packed(self._steps[0][0])

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield events from received bytes; the caller must exhaust the iterator."""
        self._data += data
        before = -1
        while self._data and len(self._data) != before:
            before = len(self._data)
            yield from self._read()
        if len(self._data) > _LINE_MAX and self._read in {self._answer, self._frame}:
            self._read = self._nothing
            yield LinkRefused("it sent a line without an end: it may not be a Redis server")

    # ------------------------------------------------------------------ messages to the primary

    def _words(self) -> Iterator[tuple[list[bytes], Callable[[bytes], Iterator[Event]]]]:
        me = self._me
        yield [b"PING"], self._greeted
        if me.password:
            user = [_bytes(me.user)] if me.user else []
            yield [b"AUTH", *user, _bytes(me.password)], self._logged_in
        yield [b"REPLCONF", b"listening-port", b"%d" % me.port], self._heard
        if me.ip:
            yield [b"REPLCONF", b"ip-address", _bytes(me.ip)], self._heard
        reads = [b"capa", READS_LOG, *([] if me.packs is None else [b"capa", READS_PACKS])]
        yield [b"REPLCONF", b"capa", b"eof", b"capa", b"psync2", b"capa", OURS, *reads], self._heard
        if me.packs:
            yield [b"REPLCONF", HAVE_PACKS, *map(str.encode, me.packs)], self._heard
        if me.asks_past:
            yield [b"INFO", b"replication"], self._framed
        known = [me.replid.encode(), b"%d" % (me.offset + 1)] if me.replid else [b"?", b"-1"]
        yield [b"PSYNC", *known, *([FAILOVER] if me.hands_over else [])], self._asked

    def _greeted(self, line: bytes) -> Iterator[Event]:
        if line[:1] == b"-" and not line.startswith(_NOT_YET):
            yield _refused(line)

    def _logged_in(self, line: bytes) -> Iterator[Event]:
        if line[:1] == b"-":
            yield _refused(line)

    def _heard(self, line: bytes) -> Iterator[Event]:  # noqa: ARG002 - an old primary need not know these
        return iter(())

    def _framed(self, line: bytes) -> Iterator[Event]:
        """Handle INFO's header; if INFO is refused or missing, the handshake continues without it."""
        found = _SIZE.fullmatch(line)
        if found and int(found[1]) <= _LINE_MAX:
            self._left, self._read = int(found[1]) + 2, self._info
        elif line[:1] != b"-" and line != _NO_TEXT:
            yield _refused(line)

    def _info(self) -> Iterator[Event]:
        size = self._left or 0
        if len(self._data) < size:
            return
        text = bytes(self._data[:size])
        del self._data[:size]
        replid, second = _PAST.search(text), _SECOND.search(text)
        if replid and second:
            earlier = _EARLIER.search(text)
            names = (replid[1].decode(), int(second[1]), *(names_of(earlier[1]) if earlier else ()))
            yield PrimaryPast(tuple((name, end - 1) for name, end in zip(names[::2], names[1::2], strict=True)))
        self._read = self._answer
        yield Send(packed(self._steps[0][0]))

    def _asked(self, line: bytes) -> Iterator[Event]:
        known = self._me.replid
        if known and (found := _CONTINUES.fullmatch(line)):
            self._read = self._stream
            yield Continues((found[1] or b"").decode() or known)
        elif (found := _COPIES.fullmatch(line)) and int(found[2]) <= _OFFSET_MAX:
            self._read = self._frame
            yield CopyBegins(found[1].decode(), int(found[2]))
        else:  # without a known history, +CONTINUE would be wrong
            yield _refused(line)

    # ------------------------------------------------------------------ bytes from the primary

    def _line(self) -> bytes | None:
        """Return the next line that is not empty; None until it is complete. Empty lines keep the connection alive."""
        data = self._data
        del data[: len(data) - len(data.lstrip(b"\r\n"))]
        end = data.find(b"\n")
        if end < 0:
            return None
        line = bytes(data[:end]).removesuffix(b"\r")
        del data[: end + 1]
        return line

    def _answer(self) -> Iterator[Event]:
        if self._steps[0][1] == self._asked and not self._is_awaited and self._data.startswith((b"\n", b"\r")):
            self._is_awaited = True
            yield CopyAwaited()
        line = self._line()
        if line is None:
            return
        _, take = self._steps.popleft()
        for event in take(line):
            if isinstance(event, LinkRefused):
                self._read = self._nothing
            yield event
        if self._steps and self._read == self._answer:
            yield Send(packed(self._steps[0][0]))

    def _nothing(self) -> Iterator[Event]:
        self._data.clear()
        return iter(())

    def _frame(self) -> Iterator[Event]:
        line = self._line()
        if line is None:
            return
        if line.startswith(b"$EOF:") and len(line) == len(b"$EOF:") + _MARK:
            self._left, self._mark = None, line[5:]
        elif found := _SIZE.fullmatch(line):
            self._left = int(found[1])
        else:
            self._read = self._nothing
            yield _refused(line)
            return
        self._read = self._copy
        yield CopySize(self._left)

    def _copy(self) -> Iterator[Event]:
        data = self._data
        if self._left is None:
            found = data.find(self._mark)
            size = found if found >= 0 else max(len(data) - _MARK + 1, 0)
            ends = found >= 0
        else:
            size = min(self._left, len(data))
            self._left -= size
            ends = not self._left
        if size:
            yield CopyBytes(bytes(data[:size]))
        del data[: size + (_MARK if ends and self._mark else 0)]
        if ends:
            self._read = self._stream
            yield CopyEnds()

    def _stream(self) -> Iterator[Event]:
        data = bytes(self._data)
        self._data.clear()
        yield StreamBytes(data)


def _bytes(text: str) -> bytes:
    """Return the bytes of a parameter's value, which may be any bytes."""
    return text.encode("utf-8", "surrogateescape")


def _refused(line: bytes) -> LinkRefused:
    if line[:1] == b"-":
        return LinkRefused(line[1:][:_SHOWN].decode("utf-8", "replace"), is_passing=line.startswith(_LATER))
    return LinkRefused(f"it has answered {line[:_SHOWN].decode('utf-8', 'replace')!r}: it may not be a Redis server")
