"""Publishing: an app adds entries to streams, from coroutines and from programs without an event loop.

Each event loop has its own connection, made on first use (:mod:`millstream.worker.handlers.sender`). So has the thread
behind ``publish_sync`` (:mod:`millstream.worker.background`).
"""

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar

from redis.asyncio import Redis

from millstream import times
from millstream.client.connect import async_client
from millstream.client.jobs import record
from millstream.client.later import schedule
from millstream.client.line import Line
from millstream.client.partitions.changing import planned
from millstream.client.partitions.declared import declare
from millstream.client.url import check_shared, find_url
from millstream.errors import ConfigError, Disconnected, UsageError, require
from millstream.worker.background import Background
from millstream.worker.handlers.calling import add_publisher, check_handler, name_of
from millstream.worker.handlers.middleware import Middleware, Publication, Publish, chain, checked
from millstream.worker.handlers.publish import check_idempotent, checked_stream, fields_of, need_idmp, trimming
from millstream.worker.handlers.sender import How, Later, Sender, Trim, Unique, unanswered
from millstream.worker.jobs.job import Job, JobDoor, no_job
from millstream.worker.later.schedules import Schedules

#: Seconds for which the result of a request is kept after its timeout.
_REQUEST_KEPT = 60.0
_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_LATER = (
    "publish(result=) is invalid with at= or delay=: the entry has no id before its time. Publish it without, and wait "
    "for something that its handler writes."
)

_T = TypeVar("_T")
Handler = TypeVar("Handler", bound=Callable[..., Any])


class Publisher:
    """Adds entries to one stream; as a decorator, adds what the handler returns (unless that is None).

    It may be above or below ``@app.subscriber``.
    """

    def __init__(self, app: Any, stream: str, maxlen: int | None, headers: dict[str, str] | None) -> None:
        _check_publisher(stream, maxlen, headers)
        self._app = app
        self.stream = stream
        self.maxlen = maxlen
        self.headers = headers

    async def publish(self, content: Any) -> str:
        """Add one entry; see :meth:`millstream.App.publish`."""
        headers = None if self.headers is None else dict(self.headers)
        ident: str = await self._app.publish(self.stream, content, maxlen=self.maxlen, headers=headers)
        return ident

    def included(self, app: Any, prefix: str) -> "Publisher":
        """Return a copy for an app, or an outer router, that includes this publisher's router."""
        made: Publisher = app.publisher("?", maxlen=self.maxlen, headers=self.headers)
        made.stream = prefix + self.stream
        return made

    def __call__(self, handler: Handler) -> Handler:
        """Publish what ``handler`` returns.

        Raises:
            ConfigError: ``handler`` cannot be a handler.
        """
        check_handler(handler)
        add_publisher(handler, self._app, self)
        self._app._decorated(handler, self)  # noqa: SLF001 - not for users
        return handler


class Publishing:
    """The part of an app that has connections and publishes.

    Args:
        url: URL of the server; None takes it from the environment.
        middlewares: middlewares around every publish, the first outermost.

    Raises:
        ConfigError: a middleware is neither an instance of ``Middleware`` nor a function.
    """

    def __init__(self, url: str | None, middlewares: Iterable[Middleware | Callable[..., Awaitable[Any]]]) -> None:
        if not isinstance(url, str | None):
            raise ConfigError(f'App({url!r}) is invalid: it needs the URL of a server. Write App("redis://...").')
        self._url = url
        self.middlewares: Sequence[Middleware] = checked(middlewares)
        self._client: Redis | None = None
        self._senders: dict[asyncio.AbstractEventLoop, Sender] = {}
        self._kept: asyncio.AbstractEventLoop | None = None  # Event loop of running subscribers
        self._background = Background()

    @property
    def url(self) -> str:
        """The server's URL.

        Raises:
            ConfigError: it cannot be the URL of a server.
        """
        return check_shared(find_url(self._url))

    @url.setter
    def url(self, url: str) -> None:
        self._url = url

    @property
    def client(self) -> Redis:
        """A redis-py client of the app's server (bytes), shared by all handlers, made on first use, closed at the stop.

        A handler gets it by a parameter annotated ``redis.asyncio.Redis``. It has at most 100 connections, and each
        pub/sub object and blocking command keeps one; a command that waits 20 s for a free one is an error.
        """
        if self._client is None:
            self._client = async_client(self.url)
        return self._client

    @property
    def later(self) -> Schedules:
        """The scheduled entries: list, move and cancel them."""
        return Schedules(self._shared)

    def publisher(
        self, stream: str = "", *, maxlen: int | None = None, headers: dict[str, str] | None = None
    ) -> Publisher:
        """Return a publisher for one stream.

        Args:
            stream: key of the stream.
            maxlen: approximate maximum length of the stream; None keeps all entries.
            headers: headers of its entries; None writes plain fields, see :meth:`publish`.

        Raises:
            ConfigError: the stream has no name.
        """
        return Publisher(self, stream, maxlen, headers)

    async def publish(
        self,
        stream: str,
        content: Any,
        *,
        maxlen: int | None = None,
        minid: str | None = None,
        idempotent: str | None = None,
        headers: dict[str, str] | None = None,
        retry: float | str | None = None,
        at: datetime | str | int | None = None,
        delay: float | str | None = None,
        id: str | None = None,  # noqa: A002 - the word for it everywhere
        replace: bool = False,
        expires: float | str | None = None,
        unique: str | None = None,
        within: float | str | None = None,
        key: str | bytes | float | None = None,
        result: float | str | None = None,
    ) -> Job:
        """Add one entry and return its id, which is also the :class:`~millstream.Job` by which to wait for its result.

        A connection that was closed while idle is opened again first.

        Args:
            stream: key of the stream.
            content: a mapping of fields, a dataclass, a pydantic model, or a single value for the field ``data``; see
                the worker's reference for the form of each type.
            maxlen: trim the stream to about this many entries.
            minid: trim about the entries older than this id.
            idempotent: an id that the caller chooses. A second publish with it adds nothing and returns the first
                entry's id, while the server remembers it (``XCFGSET IDMP-DURATION``, 100 s by default). So a publish
                that ended in :class:`~millstream.Disconnected` can be repeated.
            headers: None writes fields alone; a mapping, even an empty one, writes FastStream's envelope. A
                ``content-type`` in it applies to bytes, and to the text of a JSON document; it is replaced if the
                content would be read as another type.
            retry: seconds, or a text such as ``"2m"``, for which it is sent again while no reply comes, or while the
                server cannot accept it. It is added only once, see :mod:`millstream.worker.handlers.sender`. None
                sends it once.
            at: time at which the entry is added: an aware datetime, an ISO text with a zone, or milliseconds since
                1970. It waits on the server until then, and any worker of any app of that server adds it. The call
                returns the schedule's id.
            delay: time after which it is added, in seconds or as a text such as ``"10m"``, by the server's clock.
            id: id of the schedule, 1 to 200 bytes; None for a random one. While it waits, a second publish with the
                same id changes nothing. In a partitioned stream the id is unique within a partition: with two different
                keys it makes two schedules.
            replace: True lets a second publish with the same ``id`` give the schedule the new content and time.
            expires: time by which it may be late, in seconds or as a text; if later, it is dropped.
            unique: a name. While a group has yet to handle an existing entry of this name, the publish adds nothing and
                returns that entry's id. The name is remembered for a day.
            within: time for which ``unique`` counts, whether its entry was handled or not, in seconds or as a text.
            key: partition key, for a partitioned stream (:meth:`partition`): entries of one key are in one partition.
                None takes the field by which the stream is partitioned.
            result: time for which the handler's return value is kept for
                :meth:`Job.result <millstream.worker.jobs.job.Job.result>`, in seconds or as a text such as ``"1h"``.
                None keeps nothing.

        Raises:
            ConfigError: options conflict, or a time is invalid.
            PayloadError: a handler could not read an equal content back; the text names the field, nothing was added.
            UsageError: ``idempotent`` on a server without XADD IDMP; ``retry`` on one that has neither that nor
                scripts, and so cannot recognise a repetition; nothing was added.
            ResponseError: the server refused.
            Disconnected: no reply came; unless its ``sent`` is False, the entry may or may not have been added.
        """
        checked_stream("publish", stream)
        later, single = _later(at, delay, id, replace, expires, unique), _unique(unique, within)
        how = _how(trimming(maxlen, minid), idempotent, retry, later, single, key=key, result=result)
        ident = await self._publish(self._sending(), Publication(stream, content, headers), how)
        return self._published(stream, ident, how)

    async def request(
        self,
        stream: str,
        content: Any,
        *,
        timeout: float | str = 30.0,  # noqa: ASYNC109 - a text such as "30s" too
        headers: dict[str, str] | None = None,
        group: str | None = None,
    ) -> Any:
        """Publish an entry, wait for its handler, and return the handler's result.

        Args:
            stream: key of the stream.
            content: as for :meth:`publish`.
            timeout: seconds, or a text such as ``"2s"``; the entry is handled even if the time is over.
            headers: as for :meth:`publish`.
            group: the group whose result is returned; None for the first result.

        Raises:
            TimeoutError: there was no result in that time.
            JobDeadError: the entry is in the dead-letter stream.
            JobCancelledError: the job was cancelled.
        """
        seconds = times.configured("request(timeout=", timeout, "s")
        require("request", "timeout", timeout, seconds <= record.KEEP_MS / 1000 - _REQUEST_KEPT, "at most 365 days")
        ident = await self.publish(stream, content, headers=headers, result=seconds + _REQUEST_KEPT)
        return await self.job(ident.stream, ident, group=group).result(seconds)

    def job(self, stream: str, id: str, *, group: str | None = None) -> Job:  # noqa: A002 - the word for it everywhere
        """Return the job of an entry that was published earlier, by any process.

        Args:
            stream: key of the stream; of a partitioned stream, its name, or the partition if two have such an id.
            id: id of the entry.
            group: one group; None for the first one with a result, and for all to cancel it.

        Raises:
            UsageError: the id is not that of an entry.
        """
        if not isinstance(id, str) or not _ENTRY_ID.fullmatch(id):
            raise UsageError(f"job({stream!r}, {id!r}) is invalid: it takes an entry's id, such as 1764385200000-0.")
        return Job.made(str.__str__(id), stream, self._door, group, placed=False)

    @property
    def _door(self) -> JobDoor:
        return JobDoor(
            lambda: self._sending().replies,
            lambda name, work: self._in_background("job", name, lambda sender: work(sender.replies)),
        )

    def publish_sync(
        self,
        stream: str,
        content: Any,
        *,
        maxlen: int | None = None,
        minid: str | None = None,
        idempotent: str | None = None,
        headers: dict[str, str] | None = None,
        retry: float | str | None = None,
        at: datetime | str | int | None = None,
        delay: float | str | None = None,
        id: str | None = None,  # noqa: A002 - the word for it everywhere
        replace: bool = False,
        expires: float | str | None = None,
        unique: str | None = None,
        within: float | str | None = None,
        key: str | bytes | float | None = None,
        result: float | str | None = None,
    ) -> Job:
        """:meth:`publish` for programs without an event loop, such as Flask's and Django's views, from any thread.

        The first call starts a thread with one connection for all calls; :meth:`close_sync`, or the end of the process,
        ends it. Middlewares' publish hooks run in that thread.

        Args:
            stream: as for :meth:`publish`, like the other arguments.
            content: content of the entry.
            maxlen: approximate length to which the stream is trimmed.
            minid: id before which the stream is trimmed.
            idempotent: id of the publish.
            headers: headers of the entry.
            retry: time for which it is sent again, in seconds or as a text.
            at: time at which the entry is added.
            delay: delay after which it is added.
            id: id of the schedule.
            replace: True replaces a schedule of that id.
            expires: time by which the schedule may be late.
            unique: name of the entry.
            within: time for which that name counts.
            key: key that chooses the partition.
            result: time for which its result is kept; see :meth:`Job.result_sync <millstream.Job.result_sync>`.

        Raises:
            UsageError: also if an event loop runs in this thread, which the call would block.
        """
        checked_stream("publish_sync", stream)
        later, single = _later(at, delay, id, replace, expires, unique), _unique(unique, within)
        how = _how(trimming(maxlen, minid), idempotent, retry, later, single, key=key, result=result)
        publication = Publication(stream, content, headers)
        ident = self._in_background("app", "publish_sync", lambda sender: self._publish(sender, publication, how))
        return self._published(stream, ident, how)

    def _in_background(self, of: str, name: str, work: Callable[[Sender], Awaitable[_T]]) -> _T:
        """Run a coroutine with the sender for programs without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._background.run(self._connecting(), work)
        raise UsageError(
            f"{name} would keep the event loop of this thread waiting: use `await {of}.{name.removesuffix('_sync')}"
            f"(...)` here, or call it in a thread (`await asyncio.to_thread({of}.{name}, ...)`)"
        )

    def _published(self, stream: str, ident: str, how: How) -> Job:
        """Return the job of a published entry."""
        if how.keep_ms is not None:
            why_none = None
        elif how.later is not None:
            why_none = f"{ident} is a schedule of {stream} and has no result. Use app.later to move or cancel it."
        else:
            why_none = no_job(stream, ident)
        return Job.made(ident, getattr(ident, "stream", stream), self._door, None, why_none)

    async def _publish(self, sender: Sender, publication: Publication, how: How) -> str:
        if how.idempotent is not None:
            need_idmp(await sender.server())

        async def send(publication: Publication) -> str:
            fields = fields_of(publication.content, publication.headers)
            try:
                return await sender.add(publication.stream, fields, how)
            except Disconnected as error:
                raise unanswered(publication.stream, sender.url, error) from error

        around: Publish = chain(self.middlewares, "publish", send)
        return await around(publication)

    def close_sync(self) -> None:
        """Close the connection of :meth:`publish_sync`; the next call connects again.

        Calls that wait for a reply in other threads raise ``Disconnected``.
        """
        self._background.close()

    async def publish_batch(
        self,
        stream: str,
        contents: Iterable[Any],
        *,
        maxlen: int | None = None,
        minid: str | None = None,
        idempotent: Callable[[Any], str] | None = None,
        headers: dict[str, str] | None = None,
        at: datetime | str | int | None = None,
        delay: float | str | None = None,
        id: Callable[[Any], str] | None = None,  # noqa: A002 - as for publish
        replace: bool = False,
        expires: float | str | None = None,
        key: Callable[[Any], str | bytes | float] | None = None,
        result: float | str | None = None,
    ) -> list[Job]:
        """Add many entries in one round trip and return their ids, in order, as :meth:`publish` does.

        Args:
            stream: as for :meth:`publish`, like the other arguments.
            contents: contents of the entries.
            maxlen: as for :meth:`publish`.
            minid: as for :meth:`publish`.
            idempotent: function that returns the id for a content.
            headers: headers of every entry.
            at: as for :meth:`publish`; the call returns the ids of schedules.
            delay: as for :meth:`publish`.
            id: function that returns the schedule's id for a content; None for random ones.
            replace: as for :meth:`publish`.
            expires: as for :meth:`publish`.
            key: function that returns the key for a content, as for :meth:`publish`.
            result: as for :meth:`publish`, for every entry.

        With a middleware that has a publish hook, each entry goes through it; hooks that wait may change the order.

        Raises:
            ConfigError: options conflict, or a time is invalid.
            PayloadError: a content cannot be written as an entry; nothing was added without such a middleware.
            UsageError: a text or a mapping was given instead of a list, or ``idempotent`` did not return text.
            ResponseError: the server refused an entry; the others were added.
            Disconnected: no reply came; some, all or none were added.
        """
        if isinstance(contents, str | bytes | Mapping):
            raise UsageError(
                f"publish_batch({stream!r}) is invalid: a {type(contents).__name__} is one content. It takes a "
                "list of them: write [...] around it, or publish()."
            )
        checked_stream("publish_batch", stream)
        for option, given in (("id", id), ("key", key), ("idempotent", idempotent)):
            fine = given is None or callable(given)
            require("publish_batch", option, given, fine, "a function of the content. Write lambda content: ...")
        trim, contents = trimming(maxlen, minid), list(contents)
        ids = [None if id is None else id(content) for content in contents]
        laters = [_later(at, delay, ident, replace, expires, None) for ident in ids]
        names = [None if idempotent is None else idempotent(content) for content in contents]
        keys = [None if key is None else key(content) for content in contents]
        hows = [
            _how(trim, name, None, later, None, key=chosen, result=result)
            for name, later, chosen in zip(names, laters, keys, strict=True)
        ]
        if idempotent is not None:
            need_idmp(await self._sending().server())
        if chain(self.middlewares, "publish", _plain) is not _plain:
            one = functools.partial(self.publish, stream, maxlen=maxlen, minid=minid, at=at, delay=delay)
            one = functools.partial(one, replace=replace, expires=expires, result=result)
            each = zip(contents, ids, names, keys, strict=True)
            return await asyncio.gather(
                *(
                    one(content, headers=None if headers is None else dict(headers), id=ident, idempotent=name, key=by)
                    for content, ident, name, by in each
                )
            )
        rows = [fields_of(content, headers) for content in contents]
        sender = self._sending()
        try:
            found = await sender.add_batch(stream, rows, hows) if rows else []
        except Disconnected as error:
            raise unanswered(stream, sender.url, error) from error
        return [self._published(stream, ident, how) for ident, how in zip(found, hows, strict=True)]

    async def partition(self, stream: str, number: int, *, by: str | None = None) -> None:
        """Divide one logical stream into ``number`` streams, so that many processes share its keys, each key in order.

        Publishes choose the partition by the entry's key, and subscribers of ``stream`` share the partitions. A second
        call with the same arguments does nothing. Call it before the app runs: a subscriber that already runs continues
        to read the plain stream.

        Args:
            stream: name of the stream, without braces; the key must not be in use.
            number: number of partitions, 1 to 1024; choose 4 times your largest number of workers, and at least 4 times
                the number of cluster nodes.
            by: name of the field with an entry's key; None lets each publish give a key.

        Raises:
            UsageError: the arguments are invalid, the key is in use, or the stream has other partitions.
            LayoutError: another program wrote its descriptor.
            ResponseError: the server refused a command, or scripts.
            Disconnected: no reply came; call it again.
        """
        await declare(self._shared(), stream, number, by)

    async def repartition(self, stream: str, number: int, *, by: str | None = None) -> None:
        """Change the number of partitions of a stream, or partition a plain stream, while it is in use.

        The old streams are sealed: their entries stay, and new entries go to new streams. A group gets a new partition
        once it has handled all earlier entries of the partition's keys. So entries of a key keep their order, and
        publishing does not pause. If a call was interrupted, the next call continues its work.

        Args:
            stream: name of the stream.
            number: number of partitions, 1 to 1024.
            by: name of the field with an entry's key, for a plain stream; a partitioned stream keeps its own.

        Raises:
            UsageError: the arguments are invalid, another change is under way, or Spark keeps rows for the stream.
            ResponseError: the server is full, or refused a command, or scripts.
            Disconnected: no reply came; call it again.
        """
        await (await planned(self._shared(), stream, number, by)).run(self._shared())

    async def close(self) -> None:
        """Disconnect a publisher. A running app keeps its connections until its stop."""
        loop = asyncio.get_running_loop()
        if loop is self._kept:
            return
        if sender := self._senders.pop(loop, None):
            await sender.close()
        if self._kept is not None:  # another thread has its own loop
            return
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        if self._background.begun:
            await asyncio.to_thread(self.close_sync)

    async def __aenter__(self) -> Self:
        """Return the app for publishing; the connection is made on first use."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect."""
        await self.close()

    def _sending(self) -> Sender:
        """Return the sender of the running event loop: frameworks may run each request on its own loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._senders:
            for ended in [one for one in list(self._senders) if one.is_closed()]:
                self._senders.pop(ended, None)  # its connections closed with the loop
            self._senders[loop] = Sender(self._connecting(), self._on_schedule)
        return self._senders[loop]

    def _connecting(self) -> str:
        """Return the server's URL, after passing it to the middlewares."""
        url = self.url
        for one in self.middlewares:
            one.connects(url)
        return url

    def _on_schedule(self, stream: str) -> None:
        """Note that a stream has schedules; :class:`AppRuntime` overrides it."""

    def _shared(self) -> Line:
        return self._sending().line


def _check_publisher(stream: Any, maxlen: Any, headers: Any) -> None:
    if callable(stream):
        name = name_of(stream)
        raise ConfigError(f'{name}: @app.publisher needs a stream. Write @app.publisher("stream") above it.')
    if not isinstance(stream, str) or not stream:
        raise ConfigError(
            f'publisher({stream!r}) is invalid: it must be the name of a stream. Write publisher("stream").'
        )
    if isinstance(maxlen, bool) or not isinstance(maxlen, int | None) or (maxlen or 0) < 0:
        raise ConfigError(f"publisher({stream!r}, maxlen={maxlen!r}) is invalid: it must be a whole number of entries.")
    texts = headers.items() if isinstance(headers, Mapping) else () if headers is None else ((headers, None),)
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in texts):
        raise ConfigError(
            f"publisher({stream!r}, headers={headers!r}) is invalid: it must be a mapping of texts. Write "
            '{"name": "value"}.'
        )


def _later(
    at: datetime | str | int | None,
    delay: float | str | None,
    id: str | None,  # noqa: A002 - the name of publish's option
    replace: bool,
    expires: float | str | None,
    unique: str | None,
) -> Later | None:
    """Return the options of a schedule; None for a publish that is not for later."""
    require("publish", "replace", replace, isinstance(replace, bool), "True or False")
    if at is None and delay is None:
        given = [name for name, value in (("id", id), ("replace", replace or None), ("expires", expires)) if value]
        if given:
            raise ConfigError(f"publish({given[0]}=) is invalid without at= or delay=: it belongs to a schedule.")
        return None
    if id is not None and unique is not None:
        raise ConfigError("publish(id=, unique=) is invalid: with at= or delay= both name the schedule. Write one.")
    ident = unique if id is None else id
    if replace and ident is None:
        raise ConfigError("publish(replace=True) is invalid without id=: the id names the schedule to replace.")
    when = schedule.when("publish", at, delay, expires)
    return Later(None if ident is None else schedule.checked_id("publish", ident), when, replace)


def _unique(name: str | None, within: float | str | None) -> Unique | None:
    if name is None:
        if within is not None:
            raise ConfigError('publish(within=) is invalid without unique=. Write unique="a-name" too.')
        return None
    schedule.checked_id("publish", name, "unique")
    return Unique(name, None if within is None else times.configured("publish(within=", within, "s"))


def _how(
    trim: Trim,
    idempotent: str | None,
    retry: float | str | None,
    later: Later | None,
    unique: Unique | None,
    *,
    key: str | bytes | float | None,
    result: float | str | None = None,
) -> How:
    check_idempotent(idempotent)
    # XADD handles idempotence, but a script adds scheduled and unique entries
    if idempotent is not None and (later is not None or unique is not None):
        raise ConfigError(
            "publish(idempotent=) is invalid with at=, delay= or unique=: the id of a schedule, or the unique name, "
            "does the same. Write id= or unique= alone."
        )
    if later is not None and unique is not None and unique.within is not None:
        raise ConfigError("publish(within=) is invalid with at= or delay=: the name counts while the schedule waits.")
    keep_ms = None if result is None else round(times.configured("publish(result=", result, "s") * 1000)
    if keep_ms is not None and later is not None:
        raise ConfigError(_LATER)
    if keep_ms is not None and not 0 < keep_ms <= record.KEEP_MS:
        raise ConfigError(f'publish(result={result!r}) is invalid: a result is kept 1 ms to 366 days. Write "1h".')
    return How(trim, idempotent, retry, later, None if later is not None else unique, key=key, keep_ms=keep_ms)


async def _plain(_: Publication) -> str:
    raise AssertionError("only compared with")
