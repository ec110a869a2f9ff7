"""A store of this process without redis-py: ``open_store(url)``, for programs that never move to a server.

The commands pass through the node like all others: arguments in, a reply in bytes out as soon as it may be sent. Only
redis-py's overhead is saved. Each call uses a connection (a *line*) of its own while it runs. So threads may share a
store, and a blocking read does not stop other calls. A line is kept for later calls.
"""

import os
import queue
import reprlib
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, AnyStr, Generic, Literal, TypeAlias, overload

from hiredis import Reader, ReplyError

from millstream.embedded.place import SCHEMES, Place, parse_place
from millstream.embedded.store import FORKED
from millstream.embedded.stores import Lease, finalizer
from millstream.embedded.words import pack_words
from millstream.errors import CommandError, ConfigError, Disconnected, UsageError

Word: TypeAlias = str | bytes | int | float
"""An argument of a command. Text is sent as UTF-8."""
Entry: TypeAlias = tuple[AnyStr, dict[AnyStr, AnyStr]]
"""An entry's id and its fields."""

_CLOSED = "this store was closed: open it again with open_store()"
_ENDED = (
    "the connection of this call was ended, by SHUTDOWN or CLIENT KILL, so the command may have run or not; the store "
    "is open"
)
# Commands that change their connection, or do not reply exactly once; other commands use any free connection
_OF_A_CONNECTION = frozenset(
    b"multi exec discard watch unwatch select hello auth reset quit monitor subscribe psubscribe ssubscribe "
    b"unsubscribe punsubscribe sunsubscribe".split()
)


@overload
def open_store(url: str = "memory://", *, text: Literal[False] = False, **options: str | int) -> "OpenStore[bytes]": ...
@overload
def open_store(url: str = "memory://", *, text: Literal[True], **options: str | int) -> "OpenStore[str]": ...
def open_store(url: str = "memory://", *, text: bool = False, **options: str | int) -> "OpenStore[Any]":
    """Open a store of this process, without a redis-py client around it.

    For example::

        with millstream.open_store("file:///var/lib/orders", text=True) as store:
            store.xadd("orders", {"item": "tea"})

    Clients of :func:`millstream.connect` use the same store, and both may be used at once.

    Args:
        url: ``memory://`` for a private store, ``memory://NAME`` for one that the whole process shares,
            ``file:///DIR`` for a data directory (``?fsync=everysec`` or ``no`` to wait less for the disk).
        text: return replies as text instead of bytes. Bytes that are not UTF-8 become surrogates; a command turns
            these into the same bytes again.
        options: ``maxmemory``, ``stream_retention`` and ``stream_retention_groups``, and for a directory ``fsync``,
            ``tier``, ``tier_hot``, ``tier_after``, ``tier_max_bytes``, ``tier_cache``, ``tier_stall_ms``,
            ``tier_vacuum_rate`` and ``tier_scrub``, as CONFIG SET takes them. A URL may have them too:
            ``file:///DIR?maxmemory=512mb&tier=yes``.

    Raises:
        ConfigError: the URL or an option is invalid, or the URL is that of a server.
        StorageError: the data directory is locked by another process, damaged or not usable.
    """
    if not url.startswith(SCHEMES):
        raise ConfigError(
            "open_store() cannot use this URL: a store of this process is at memory:// or file:///dir. For a "
            "server use millstream.connect()."
        )
    place = parse_place(url, options)
    if options:
        raise TypeError(f"open_store() got an unexpected keyword argument {next(iter(options))!r}")
    return OpenStore(place, text=text)


class _Line:
    """One connection to the store: it sends a command and reads its reply."""

    __slots__ = ("__weakref__", "channel", "feed", "gets", "inbox", "run")

    def __init__(self, lease: Lease, encoding: str | None) -> None:
        self.inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        reader = Reader(encoding=encoding, errors="surrogateescape")
        self.feed, self.gets = reader.feed, reader.gets
        store = lease.store()
        self.run = store.run
        self.channel = store.connect(self.inbox.put)
        self.channel.session.db = lease.place.db
        self.channel.session.resp = 3

    def __del__(self) -> None:
        if hasattr(self, "channel"):
            self.channel.close()


class OpenStore(Generic[AnyStr]):
    """A store of this process, opened by :func:`open_store`. Close it with ``with`` or :meth:`close`.

    Threads may share it. Their commands run one at a time, in the calling thread, and each sees the effects of all
    earlier replies. Over ``file://`` a call returns when its effects are as safe as ``fsync`` requires. An error reply
    raises :class:`~millstream.errors.CommandError`. Any call may also raise

    * ``Disconnected``: the store was closed meanwhile, its disk has failed, or the call's connection was ended
      (SHUTDOWN, CLIENT KILL), so that the command may have run or not;
    * ``UsageError``: the store is closed, or this is a child that was forked from the process that opened it;
    * ``StorageError``: the disk has failed before.

    Args:
        place: the store to open.
        text: return replies as text.
    """

    def __init__(self, place: Place, *, text: bool) -> None:
        self._url = place.url
        self._process = os.getpid()
        self._encoding = "utf-8" if text else None
        self._lease: Lease | None = Lease(place)
        weakref.finalize(self, finalizer(self._lease)).atexit = False  # the stores handle the end of the process
        self._opening = threading.Lock()
        self._lines: weakref.WeakSet[_Line] = weakref.WeakSet()
        self._idle: list[_Line] = []

    def __enter__(self) -> "OpenStore[AnyStr]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all waits and release the store. The last release writes everything to disk.

        Raises:
            StorageError: the disk failed at the last write.
        """
        if os.getpid() != self._process:
            return
        with self._opening:
            lease, self._lease = self._lease, None
            lines = list(self._lines)
        self._idle.clear()
        for line in lines:
            line.channel.close()
        if lease is not None:
            lease.give_up()

    # ------------------------------------------------------------------ any command

    def execute(self, *words: Word) -> Any:
        """Run a command and return its reply as Python types, maps as ``dict``.

        Args:
            words: ``"XTRIM", "orders", "MAXLEN", 1000``, and so on. Commands that change their connection (``MULTI``,
                ``SELECT``, ``SUBSCRIBE``) are refused: use :func:`millstream.connect` for these.

        Raises:
            CommandError: the command was refused; the text is Redis's.
            UsageError: the command changes its connection, has no argument, or has one of an unsupported type.
        """
        if not words:
            raise UsageError("a command needs at least one word")
        if _is_of_a_connection(words):
            raise UsageError(f"{words[0]!r} is about a connection; a store has none, millstream.connect() gives one")
        return self._run(words)

    def _run(self, words: tuple[Word, ...]) -> Any:
        try:
            data = pack_words(words)
        except (TypeError, UnicodeEncodeError):
            data = pack_words(tuple(map(_as_sent, words)))
        try:
            line = self._idle.pop()
        except IndexError:
            line = self._open_line()
        channel = line.channel
        if channel.closed:  # it was closed while it was idle
            return self._run(words)
        answer = line.run(channel, data, None)
        if not answer:
            try:
                answer = line.inbox.get()
            except BaseException:  # Ctrl-C: the reply to this read would be lost
                channel.close()
                raise
            if not answer:
                raise Disconnected(channel.reason or (_CLOSED if self._lease is None else _ENDED))
            channel.taken()
        line.feed(answer)
        reply = line.gets()
        self._idle.append(line)
        if type(reply) is ReplyError:
            raise CommandError(str(reply))
        return reply

    def _open_line(self) -> _Line:
        if os.getpid() != self._process:  # before the lock, which another thread of the parent may have held
            raise UsageError(FORKED.format(url=self._url))
        with self._opening:
            if self._lease is None:
                raise UsageError(_CLOSED)
            line = _Line(self._lease, self._encoding)
            self._lines.add(line)
        return line

    # ------------------------------------------------------------------ streams

    def xadd(
        self,
        key: Word,
        fields: Mapping[Any, Word],
        id: Word = "*",  # noqa: A002 - same name as in Redis's documentation and redis-py
        *,
        maxlen: int | None = None,
        approximate: bool = True,
    ) -> AnyStr:
        """Add an entry and return its id.

        Args:
            key: key of the stream, which is created if it does not exist.
            fields: names and values, at least one pair.
            id: ``*`` for an id made from the time.
            maxlen: trim the stream to this many entries.
            approximate: keep a few more entries, which is faster; False for exactly as many.

        Raises:
            CommandError: the key has another type, or the id is not above the last one.
        """
        words: list[Word] = ["XADD", key, id]
        if maxlen is not None:
            words[2:2] = ("MAXLEN", "~" if approximate else "=", maxlen)
        for field in fields.items():
            words += field
        reply: AnyStr = self._run(tuple(words))
        return reply

    def xlen(self, key: Word) -> int:
        """Return the number of entries in a stream; 0 if the key does not exist.

        Raises:
            CommandError: the key has another type.
        """
        length: int = self._run(("XLEN", key))
        return length

    def xrange(self, key: Word, start: Word = "-", end: Word = "+", count: int | None = None) -> list[Entry[AnyStr]]:
        """Return entries in order.

        Args:
            key: key of the stream.
            start: first id; ``(5-1`` for the ids above it.
            end: last id.
            count: largest number of entries.

        Raises:
            CommandError: the key has another type, or an id is invalid.
        """
        words: tuple[Word, ...] = ("XRANGE", key, start, end)
        return _entries(self._run(words if count is None else (*words, "COUNT", count)) or ())  # null for a COUNT of 0

    def xread(
        self, streams: Mapping[Any, Word], count: int | None = None, block: int | None = None
    ) -> dict[AnyStr, list[Entry[AnyStr]]]:
        """Return the entries above an id, by stream; streams without such entries are left out.

        Args:
            streams: keys, each with the id above which to read; ``$`` for entries added from now on.
            count: largest number of entries of each stream.
            block: milliseconds to wait for a first entry, 0 for no limit; other threads are not blocked.

        Raises:
            CommandError: a key has another type, or an id is invalid.
        """
        return self._read(["XREAD"], streams, count, block)

    def xreadgroup(
        self,
        group: Word,
        consumer: Word,
        streams: Mapping[Any, Word],
        count: int | None = None,
        block: int | None = None,
        *,
        noack: bool = False,
    ) -> dict[AnyStr, list[Entry[AnyStr]]]:
        """Return entries for a consumer of a group, by stream; streams without entries are left out.

        Args:
            group: group of each of the streams.
            consumer: name of the consumer.
            streams: keys, each with ``>`` for entries that the group has not read, or with an id for the consumer's
                pending entries above it. A pending entry that was deleted has no fields.
            count: largest number of entries of each stream.
            block: milliseconds to wait for a first entry, 0 for no limit; other threads are not blocked.
            noack: do not add the entries to the pending list.

        Raises:
            CommandError: a stream or the group does not exist.
        """
        words: list[Word] = ["XREADGROUP", "GROUP", group, consumer]
        if noack:
            words.append("NOACK")
        return self._read(words, streams, count, block)

    def _read(
        self, words: list[Word], streams: Mapping[Any, Word], count: int | None, block: int | None
    ) -> dict[AnyStr, list[Entry[AnyStr]]]:
        if count is not None:
            words += ("COUNT", count)
        if block is not None:
            words += ("BLOCK", block)
        words.append("STREAMS")
        words += streams
        words += streams.values()
        found: dict[AnyStr, Any] = self._run(tuple(words)) or {}
        for key, rows in found.items():
            found[key] = _entries(rows)
        return found

    def xack(self, key: Word, group: Word, *ids: Word) -> int:
        """Acknowledge entries and return the number of those that were pending.

        Args:
            key: key of the stream.
            group: group that has read the entries.
            ids: ids of the entries.

        Raises:
            CommandError: an id is invalid, or none is given.
        """
        acknowledged: int = self._run(("XACK", key, group, *ids))
        return acknowledged


def _entries(rows: Sequence[Any]) -> list[Any]:
    entries = []
    for entry, words in rows:
        fields = {}
        left = iter(words or ())
        for name in left:
            fields[name] = next(left)  # for a few items, zip() takes twice as long
        entries.append((entry, fields))
    return entries


def _as_sent(word: Word) -> Word:
    """Return one argument as hiredis can pack it. Surrogates in a reply's text become the original bytes again."""
    try:
        sent = word.encode("utf-8", "surrogateescape") if isinstance(word, str) else word
        pack_words((sent,))
    except TypeError:
        found = f"{type(word).__name__}: {reprlib.repr(word)}"
        raise UsageError(f"a command is a list of words, each text, bytes or a number, not {found}") from None
    except UnicodeEncodeError:
        raise UsageError(f"{reprlib.repr(word)} is text that UTF-8 has no bytes for, and no reply's either") from None
    return sent


def _is_of_a_connection(words: Sequence[Word]) -> bool:
    name, *rest = [word.encode(errors="replace") if isinstance(word, str) else word for word in words[:2]]
    if not isinstance(name, bytes):
        return False
    if name.lower() == b"client":  # after CLIENT REPLY there may be no reply
        return rest != [] and isinstance(rest[0], bytes) and rest[0].lower() == b"reply"
    return name.lower() in _OF_A_CONNECTION
