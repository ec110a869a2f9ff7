"""Plain commands of a script, one call each, as :mod:`millstream.node.batch` runs those of a client many at a time.

A script's call comes as the bytes that a client would send for it. What the calls have changed gathers until somebody
asks for it, so that it is one record, and their replies are values of the script's at once. A call of anything that is
not plain, and of what is plain while somebody is to be woken, is left to the ordinary way; see
:mod:`millstream.node.scripting.scripts`.
"""

import time
from typing import TYPE_CHECKING, Any

import hiredis

from millstream.node.plain import NOTHING, SLOW_MAX, PlainRun
from millstream.protocol.split import Splitter

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.commands.context.config import Config
    from millstream.engine.keyspace import Database, Transition

# Bytes of changes after which no more are gathered, and what they are at most with the command that passes that
CHANGES_MAX = 1 << 20
GATHERED_MAX = 16 << 20
# Bytes of an array's reply; of more its leaves may be too many to be given at once
FLAT_MAX = 16 << 10


class ScriptCalls:
    """The calls of a runner in Python, a part of :class:`~millstream.node.batch.PyPlainRunner`."""

    slow: list[tuple[bytes, int]]
    _config: "Config"
    _handlers: "dict[bytes, tuple[int, Callable[[list[bytes]], bytes | None]]]"
    _calls: list[int]
    _nanoseconds: list[int]
    _steps: "list[Transition]"
    _splitter: Splitter
    _db: "Database"
    _wall: int
    _resp: int
    _before: tuple[int, int]
    _woken: bytes | None
    _is_changing: bool
    _ended: "Callable[[list[bytes] | None, int, bytes, int], PlainRun]"

    def __init__(self) -> None:
        self._table: Callable[..., Any] | None = None
        self._faults: list[BaseException] = []
        self._ends: int | None = None
        self._commands = self._size = 0
        self._last = -1

    def obey(self, db: "Database", data: bytes, at: int, wall: int, is_open: bool) -> PlainRun:  # noqa: ARG002 - its double's
        """See :class:`~millstream.node.plain.PlainRunner`; here nothing that a primary says is plain.

        Args:
            db: the database that the primary has selected.
            data: bytes from the primary.
            at: where to begin.
            wall: wall milliseconds.
            is_open: that is amid a transaction.
        """
        return NOTHING._replace(at=at, whole=at)

    def begin(
        self, db: "Database", wall: int, left: int, table: "Callable[..., Any]", faults: list[BaseException]
    ) -> None:
        """See :class:`~millstream.node.plain.PlainRunner`.

        Args:
            db: the script's database.
            wall: wall milliseconds, for all commands.
            left: nanoseconds after which no more commands are run; below zero for no such time.
            table: makes a table of the script's, of a list.
            faults: gets what comes up and must end the script.
        """
        self._db, self._wall, self._resp, self._table, self._faults = db, wall, 2, table, faults
        self._ends = None if left < 0 else time.perf_counter_ns() + left
        self._before = 0, 0
        self._commands = self._size = 0
        self._last = -1

    def call(self, data: bytes) -> object:
        """See :class:`~millstream.node.plain.PlainRunner`."""
        before = time.perf_counter_ns()
        try:
            if self._table is None or self._woken is not None or self._size + len(data) > CHANGES_MAX:
                return None
            if (self._ends is not None and before >= self._ends) or len(self.slow) >= SLOW_MAX:
                return None
            reply = self._reply(data, before)
            return None if reply is None else _value(reply, self._table)
        except BaseException as error:  # noqa: BLE001 - the script knows nothing of it
            self._faults.append(error)
            return None

    def _reply(self, data: bytes, before: int) -> bytes | None:
        """The reply to the command, if it is plain."""
        splitter = self._splitter = Splitter(data)
        words = splitter.next()
        found = None if words is None or splitter.has_more else self._handlers.get(words[0].lower())
        if words is None or found is None:
            return None
        noted, (command, handler) = len(self._steps), found
        try:
            reply = handler(words)
        except Exception:  # as in a run
            if self._is_changing:
                raise
            del self._steps[noted:]
            return None
        if reply is not None:
            # A claim may change far more than its words say; what it gave is in its reply
            self._size += (len(data) + len(reply)) * (len(self._steps) > noted)
            self._calls[command] += 1
            took = time.perf_counter_ns() - before
            self._nanoseconds[command] += took
            if took >= self._config.slow_from:
                self.slow.append((data, took))
            self._commands += 1
            self._last = command
        return reply

    def end(self) -> PlainRun:
        """See :class:`~millstream.node.plain.PlainRunner`."""
        self._table = None
        return self._ended(None, self._commands, b"", self._last)._replace(at=0, whole=0)


def _value(reply: bytes, table: "Callable[..., Any]") -> object:
    """A whole reply as a value of the script's."""
    kind = reply[:1]
    if kind == b"$" and reply[:2] != b"$-":
        return reply[reply.index(b"\n") + 1 : -2]
    if kind == b":":
        return int(reply[1:-2])
    if kind == b"+":
        return True, reply[1:-2]
    reader = hiredis.Reader()
    reader.feed(reply)
    value = reader.gets()
    if not isinstance(value, list):
        return False
    if len(reply) > FLAT_MAX:
        return _table_of(value, table)
    shape = bytearray()
    leaves: list[Any] = []
    _flatten(value, shape, leaves)
    return True, False, bytes(shape), *leaves


def _table_of(value: object, table: "Callable[..., Any]") -> object:
    if isinstance(value, list):
        return table([_table_of(item, table) for item in value])
    return False if value is None else value


def _flatten(value: list[Any], shape: bytearray, leaves: list[Any]) -> None:
    """Two bytes for an array: its size, and 0x8000 if there are arrays in it; then two for each other item."""
    is_deep = any(isinstance(item, list) for item in value)
    shape += (len(value) | is_deep << 15).to_bytes(2, "big")
    for item in value:
        if isinstance(item, list):
            _flatten(item, shape, leaves)
            continue
        leaves.append(False if item is None else item)
        if is_deep:
            shape += b"\xff\xff"
