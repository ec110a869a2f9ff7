"""A store of this process without redis-py: ``open_store(url)``, for programs that never move to a server.

The commands take the same way through the node as all others: words in, a reply in bytes out once it may be shown. Only
redis-py's work around them is saved. A call has a connection (a *line*) to itself while it runs. So threads may share a
store, and a read that blocks does not stop the others. A line is kept for later calls.
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
"""A word of a command; text is sent as UTF-8."""
Entry: TypeAlias = tuple[AnyStr, dict[AnyStr, AnyStr]]
"""An entry's id and its fields."""

_CLOSED = "this store was closed: open it again with open_store()"
_ENDED = (
    "the connection of this call was ended, by SHUTDOWN or CLIENT KILL, so the command may have run or not; the store "
    "is open"
)
# Commands that change their connection, or answer other than once; a call here has whichever line is free
_OF_A_CONNECTION = frozenset(
    b"multi exec discard watch unwatch select hello auth reset quit monitor subscribe psubscribe ssubscribe "
    b"unsubscribe punsubscribe sunsubscribe".split()
)


@overload
def open_store(url: str = "memory://", *, text: Literal[False] = False) -> "OpenStore[bytes]": ...
@overload
def open_store(url: str = "memory://", *, text: Literal[True]) -> "OpenStore[str]": ...
def open_store(url: str = "memory://", *, text: bool = False) -> "OpenStore[Any]":
    """A store of this process, without a redis-py client around it.

    For example::

        with millstream.open_store("file:///var/lib/orders", text=True) as store:
            store.xadd("orders", {"item": "tea"})

    It is the same store that :func:`millstream.connect` gives clients of, and both may be used at once.

    Args:
        url: ``memory://`` for a store of its own, ``memory://NAME`` for one that all of this process share,
            ``file:///DIR`` for a data directory (``?fsync=everysec`` or ``no`` to wait less for the disk).
        text: return replies as text instead of bytes. Bytes that are not UTF-8 become surrogates; a command turns
            these into the same bytes again.

    Raises:
        ConfigError: the URL is invalid, or that of a server.
        StorageError: the data directory is locked by another process, damaged or not usable.
    """
    if not url.startswith(SCHEMES):
        raise ConfigError(
            "open_store() cannot use this URL: a store of this process is at memory:// or file:///dir. For a "
            "server use millstream.connect()."
        )
    return OpenStore(parse_place(url), text=text)


class _Line:
    """One connection: a command out, its reply in."""

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
    """A store of this process; :func:`open_store` makes it. Close it, with ``with`` or :meth:`close`.

    Threads may share it: their commands run one at a time, in the thread that calls, and each sees all that was
    answered before. Over ``file://`` a call returns when its effects are as safe as ``fsync`` asks. An error of a
    command is a :class:`~millstream.errors.CommandError`; any call may also raise

    * ``Disconnected``: the store was closed meanwhile, its disk has failed, or the call's connection was ended
      (SHUTDOWN, CLIENT KILL), so that the command may have run or not;
    * ``UsageError``: the store is closed, or this is a child that was forked from the process that opened it;
    * ``StorageError``: the disk has failed before.

    Args:
        place: the store to open.
        text: replies are text.
    """

    def __init__(self, place: Place, *, text: bool) -> None:
        self._url = place.url
        self._process = os.getpid()
        self._encoding = "utf-8" if text else None
        self._lease: Lease | None = Lease(place)
        weakref.finalize(self, finalizer(self._lease)).atexit = False  # the stores see to the end of the process
        self._opening = threading.Lock()
        self._lines: weakref.WeakSet[_Line] = weakref.WeakSet()
        self._idle: list[_Line] = []

    def __enter__(self) -> "OpenStore[AnyStr]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all waits, and let the store go; the last to do so brings everything to the disk.

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
        """Run a command; its reply as Python's own types, maps as ``dict``.

        Args:
            words: ``"XTRIM", "orders", "MAXLEN", 1000``, and so on. Not those that are about a connection (``MULTI``,
                ``SELECT``, ``SUBSCRIBE``): :func:`millstream.connect` gives one.

        Raises:
            CommandError: it was refused; the text is Redis's.
            UsageError: it is about a connection; or no word, or one that is neither text nor bytes nor a number.
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
        if channel.closed:  # closed while it was not in use
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
        if os.getpid() != self._process:  # before the lock, which another thread of the parent may have had
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
        id: Word = "*",  # noqa: A002 - the word that Redis's documents and redis-py have
        *,
        maxlen: int | None = None,
        approximate: bool = True,
    ) -> AnyStr:
        """Add an entry; its id.

        Args:
            key: of the stream, which is made if it is not there.
            fields: names and values, at least one.
            id: ``*`` for one made of the time.
            maxlen: trim the stream to this many entries.
            approximate: leave some more, which is faster; False for exactly as many.

        Raises:
            CommandError: there is something else at the key, or the id is not above the last one.
        """
        words: list[Word] = ["XADD", key, id]
        if maxlen is not None:
            words[2:2] = ("MAXLEN", "~" if approximate else "=", maxlen)
        for field in fields.items():
            words += field
        reply: AnyStr = self._run(tuple(words))
        return reply

    def xlen(self, key: Word) -> int:
        """The number of a stream's entries; 0 where there is none.

        Raises:
            CommandError: there is something else at the key.
        """
        length: int = self._run(("XLEN", key))
        return length

    def xrange(self, key: Word, start: Word = "-", end: Word = "+", count: int | None = None) -> list[Entry[AnyStr]]:
        """Entries in their order.

        Args:
            key: of the stream.
            start: from this id on; ``(5-1`` for ids above it.
            end: up to this id.
            count: the most entries.

        Raises:
            CommandError: there is something else at the key, or an id is not one.
        """
        words: tuple[Word, ...] = ("XRANGE", key, start, end)
        return _entries(self._run(words if count is None else (*words, "COUNT", count)) or ())  # null for a COUNT of 0

    def xread(
        self, streams: Mapping[Any, Word], count: int | None = None, block: int | None = None
    ) -> dict[AnyStr, list[Entry[AnyStr]]]:
        """Entries above an id, of each stream that has some.

        Args:
            streams: keys, and the id above which to read; ``$`` for what is added from now on.
            count: the most entries of each.
            block: milliseconds to wait for a first one, 0 for ever; other threads go on.

        Raises:
            CommandError: there is something else at a key, or an id is not one.
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
        """Entries for a consumer of a group, of each stream that has some.

        Args:
            group: of each of the streams.
            consumer: its name.
            streams: keys, each with ``>`` for entries that the group has not read, or with an id for the consumer's
                pending entries above it. A pending entry that was deleted has no fields.
            count: the most entries of each.
            block: milliseconds to wait for a first one, 0 for ever; other threads go on.
            noack: do not keep them as pending.

        Raises:
            CommandError: there is no such stream or group.
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
        """Acknowledge entries; the number of them that were pending.

        Args:
            key: of the stream.
            group: which has read them.
            ids: theirs.

        Raises:
            CommandError: an id is not one, or none is given.
        """
        acknowledged: int = self._run(("XACK", key, group, *ids))
        return acknowledged


def _entries(rows: Sequence[Any]) -> list[Any]:
    entries = []
    for entry, words in rows:
        fields = {}
        left = iter(words or ())
        for name in left:
            fields[name] = next(left)  # by zip() it takes twice as long for a few
        entries.append((entry, fields))
    return entries


def _as_sent(word: Word) -> Word:
    """One word of a command that hiredis does not pack: of a reply's text the surrogates are bytes again."""
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
    if name.lower() == b"client":  # after CLIENT REPLY no answer may come
        return rest != [] and isinstance(rest[0], bytes) and rest[0].lower() == b"reply"
    return name.lower() in _OF_A_CONNECTION
