"""The application: subscribers registered by decorator, publishing, and running them until told to stop."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from millstream import times
from millstream.client.line import Line, open_line
from millstream.client.slots import slot_of, tag_of
from millstream.client.url import CLUSTERS, async_client, check_shared, find_url
from millstream.clock import Clock, SystemClock
from millstream.errors import ConfigError, UsageError
from millstream.logs import logger
from millstream.worker.background import Background
from millstream.worker.handlers.dependencies import dependencies_of, new_provider
from millstream.worker.handlers.message import Message
from millstream.worker.handlers.middleware import Middleware, Publication, Publish, chain, checked
from millstream.worker.handlers.publish import fields_of, need_idmp, trimming, xadd
from millstream.worker.handlers.sender import How, Sender
from millstream.worker.handlers.subscription import AckMode, OnAck, ReadMode, StreamSub, Subscription
from millstream.worker.model.retry import Retry
from millstream.worker.pipelines import OutputMode, Pipeline, Sink, Source, as_source
from millstream.worker.process.run import run_in_process
from millstream.worker.process.start import start_patiently
from millstream.worker.registry import watchdog
from millstream.worker.registry.heartbeat import Heartbeat
from millstream.worker.registry.reaper import DEFAULT_AFTER
from millstream.worker.settlement import failure_log
from millstream.worker.subscriber.isolation import IsolationGate
from millstream.worker.subscriber.loop import Shared, SubscriberLoop, SubscriberProgress, totals

if TYPE_CHECKING:
    from fast_depends.dependencies import Provider

log = logger("millstream.worker")

Handler = TypeVar("Handler", bound=Callable[..., Any])
Hook = Callable[[], Awaitable[None] | None]


class Publisher:
    """Adds entries to one stream; as a decorator, adds what the handler returns (unless that is None).

    It may stand above or below ``@app.subscriber``.
    """

    def __init__(self, app: "App", stream: str, maxlen: int | None, headers: dict[str, str] | None) -> None:
        self._app = app
        self.stream = stream
        self.maxlen = maxlen
        self.headers = headers

    async def publish(self, content: Any) -> str:
        """Add one entry; see :meth:`App.publish`."""
        headers = None if self.headers is None else dict(self.headers)
        return await self._app.publish(self.stream, content, maxlen=self.maxlen, headers=headers)

    def __call__(self, handler: Handler) -> Handler:
        """Publish what ``handler`` returns."""
        handler.__dict__.setdefault("__millstream_publish__", []).append(self)
        return handler


class App:
    """Subscribers of streams, and the way to publish to them.

    Args:
        url: the server; when None, what the environment variable ``MILLSTREAM_URL`` or ``REDIS_URL`` says, then a
            server on this machine.
        grace: seconds, or a text such as ``"2m"``, that running handlers get at a stop, before they are cancelled.
        clock: where time comes from.
        middlewares: around every run and every publish, the first outermost; see
            :mod:`millstream.worker.handlers.middleware`.
        registry: tell the server who works here, and obey its control channel, see
            :mod:`millstream.worker.registry.protocol`.
        reap_after: seconds, or a text such as ``"1h"``, after which consumers of our groups that are idle and hold
            nothing are removed; None never.
        blocked_after: seconds (or a text) a handler may keep the event loop from going on before the log says where,
            and the registry shows the worker as blocked; None switches that off (see
            :mod:`millstream.worker.registry.watchdog`).

    Raises:
        ConfigError: a middleware is none, or ``blocked_after`` is no time.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        grace: float | str = 30.0,
        clock: Clock | None = None,
        middlewares: Iterable[Middleware | Callable[..., Awaitable[Any]]] = (),
        registry: bool = True,
        reap_after: float | str | None = DEFAULT_AFTER,
        blocked_after: float | str | None = watchdog.DEFAULT_AFTER,
    ) -> None:
        self._url = url
        self.grace = times.configured("App(grace=", grace, "s")
        self.registry = registry
        self.reap_after = None if reap_after is None else times.configured("App(reap_after=", reap_after, "s")
        if blocked_after is not None:
            blocked_after = times.configured("App(blocked_after=", blocked_after, "s")
            if blocked_after <= 0:
                raise ConfigError(f"App(blocked_after={blocked_after!r}): seconds, more than 0, or None")
        self.blocked_after = blocked_after
        self._heartbeat: Heartbeat | None = None
        self._clock = clock or SystemClock()
        self.middlewares: Sequence[Middleware] = checked(middlewares)
        self._client: Redis | None = None
        self._provider: Provider | None = None
        self._subscriptions: list[Subscription] = []
        self._pipelines: dict[str, Pipeline] = {}
        self._on_startup: list[Hook] = []
        self._after_startup: list[Hook] = []
        self._after_shutdown: list[Hook] = []
        self._on_shutdown: list[Hook] = []
        self._senders: dict[asyncio.AbstractEventLoop, Sender] = {}
        self._background = Background()
        self._private: Line | None = None
        self._hooked = False  # the startup hooks were begun
        self._reading = False
        self._loops: list[SubscriberLoop] = []  # kept after a stop, for their counters

    @property
    def url(self) -> str:
        """The server's URL.

        Raises:
            ConfigError: it cannot be a server's.
        """
        return check_shared(find_url(self._url))

    @url.setter
    def url(self, url: str) -> None:
        self._url = url

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """What was registered, in order."""
        return tuple(self._subscriptions)

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """What was registered for Spark, in order."""
        return tuple(self._pipelines.values())

    @property
    def client(self) -> "Redis":
        """A redis-py client of the app's server (bytes), shared by all handlers, made on first use, closed at the stop.

        A handler gets it by a parameter annotated ``redis.asyncio.Redis``.
        """
        if self._client is None:
            self._client = async_client(self.url)
        return self._client

    @property
    def dependencies(self) -> "Provider":
        """Fast-depends' provider of this app; its ``override`` and ``scope`` exchange dependencies in tests.

        Raises:
            ConfigError: fast-depends is not installed.
        """
        if self._provider is None:
            self._provider = new_provider()
        return self._provider

    @property
    def loops(self) -> tuple[SubscriberLoop, ...]:
        """The subscribers at work in this process, or that were until the last stop."""
        return tuple(self._loops)

    # -- registering ------------------------------------------------------------------------------------------------

    def subscriber(
        self,
        sub: StreamSub | str,
        *,
        retry: Retry | None = None,
        concurrency: int = 10,
        ack: AckMode = "auto",
        read: ReadMode = "both",
        dead: str | None = None,
        middlewares: Iterable[Middleware | Callable[..., Awaitable[Any]]] = (),
        batch: bool = False,
        max_records: int | None = None,
        key: str | Callable[[Message], Hashable] | None = None,
        on_ack: OnAck = "keep",
    ) -> Callable[[Handler], Handler]:
        """Run a function, async or not, for each entry of a stream.

        Args:
            sub: the stream, or only its name.
            retry: what failure means; five deliveries with growing delays when None.
            concurrency: most runs at the same time in each process.
            ack: who acks, and how; see :class:`~millstream.worker.handlers.subscription.Subscription`.
            read: new entries, stale ones, or both.
            dead: the dead-letter stream; ``<stream>:dead`` when None.
            middlewares: around the runs of this handler, inside the app's.
            batch: the handler takes lists; see :mod:`millstream.worker.subscriber.batching`.
            max_records: the same as ``StreamSub(max_records=)``, and goes before it.
            key: entries of one key run one after the other; see :mod:`millstream.worker.subscriber.key_ordering`.
            on_ack: ``"delete"`` removes an acked entry from the stream once no group needs it any more.

        Returns:
            A decorator that registers the function and returns it unchanged.

        Raises:
            ConfigError: an option or an annotation of the function cannot be used.
        """
        where = StreamSub(sub) if isinstance(sub, str) else sub
        if max_records is not None:
            where = dataclasses.replace(where, max_records=max_records)
        around = checked(middlewares)

        def register(handler: Handler) -> Handler:
            own_logger = logging.getLogger(getattr(handler, "__module__", None) or "millstream.handlers")
            context: dict[type, Callable[[], Any]] = {
                App: lambda: self,
                Redis: lambda: self.client,
                logging.Logger: lambda: own_logger,
            }
            if dependencies_of(handler) and self._provider is None:
                self._provider = new_provider()
            self._subscriptions.append(
                Subscription(
                    where,
                    handler,
                    retry=retry or Retry(),
                    concurrency=concurrency,
                    ack=ack,
                    read=read,
                    dead=dead or "",
                    middlewares=around,
                    batch=batch,
                    key=key,
                    on_ack=on_ack,
                    context=context,
                    provider=self._provider,
                )
            )
            return handler

        return register

    def pipeline(
        self,
        *sources: Source | str,
        sink: Sink | None = None,
        checkpoint: str | None = None,
        trigger: str | None = None,
        output_mode: OutputMode = "append",
        name: str | None = None,
    ) -> Callable[[Callable[..., Any]], Pipeline]:
        """Run a function over streaming DataFrames on Spark; ``millstream run`` does, in a process of its own.

        Args:
            sources: a stream's key, or a :class:`~millstream.worker.pipelines.Source`, for each DataFrame.
            sink: where the rows go; without one the function starts its query itself.
            checkpoint: folder in which Spark keeps how far the query is.
            trigger: an interval, ``"availableNow"``, or None.
            output_mode: ``append``, ``complete`` or ``update``.
            name: of the query; the function's unless given.

        Returns:
            A decorator that registers the function and returns a :class:`~millstream.worker.pipelines.Pipeline`, whose
            ``start(spark)`` runs it from a program of one's own.

        Raises:
            ConfigError: the declaration cannot be meant, or another pipeline has the name or the checkpoint.
        """

        def register(function: Callable[..., Any]) -> Pipeline:
            made = Pipeline(
                function,
                tuple(map(as_source, sources)),
                url=lambda: self.url,
                sink=sink,
                checkpoint=checkpoint,
                trigger=trigger,
                output_mode=output_mode,
                name=name,
            )
            if made.name in self._pipelines:
                raise ConfigError(f"two pipelines are named {made.name!r}: give one of them another name=")
            for other in self._pipelines.values():
                if made.folder is not None and made.folder == other.folder:
                    raise ConfigError(
                        f"pipelines {other.name!r} and {made.name!r} have the same checkpoint {made.checkpoint!r}, and "
                        "Spark would stop the one to start the other: give each its own"
                    )
            self._pipelines[made.name] = made
            return made

        return register

    def publisher(self, stream: str, *, maxlen: int | None = None, headers: dict[str, str] | None = None) -> Publisher:
        """A publisher for one stream; ``maxlen`` trims it approximately, ``headers`` are those of its entries."""
        return Publisher(self, stream, maxlen, headers)

    def on_startup(self, hook: Hook) -> Hook:
        """Run a function, async or not, before the first entry is read."""
        self._on_startup.append(hook)
        return hook

    def after_startup(self, hook: Hook) -> Hook:
        """Run a function, async or not, once the subscribers read."""
        self._after_startup.append(hook)
        return hook

    def after_shutdown(self, hook: Hook) -> Hook:
        """Run a function, async or not, after the app has disconnected."""
        self._after_shutdown.append(hook)
        return hook

    def on_shutdown(self, hook: Hook) -> Hook:
        """Run a function, async or not, after the last outcome was stored."""
        self._on_shutdown.append(hook)
        return hook

    # -- publishing -------------------------------------------------------------------------------------------------

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
    ) -> str:
        """Add one entry and return its id.

        A connection that was closed while it was idle is made anew first.

        Args:
            stream: key of the stream.
            content: a mapping of fields, a dataclass, a pydantic model, or a single value for the field ``data``.
            maxlen: trim the stream to about this many entries.
            minid: trim about what is older than this id.
            idempotent: an id of the caller's: a second publish with it adds nothing and returns the first one's entry
                id, for as long as the server remembers it (``XCFGSET IDMP-DURATION``, 100 s unless set). So a publish
                that ended in :class:`~millstream.Disconnected` can be repeated.
            headers: None writes plain fields; a mapping, also an empty one, writes FastStream's envelope.
            retry: seconds, or a text such as ``"2m"``, for which it is sent again while no answer comes, or the server
                cannot take it for now; it is added once all the same, see
                :mod:`millstream.worker.handlers.sender`. None sends it once.

        Raises:
            PayloadError: the content has no form as an entry.
            UsageError: ``idempotent`` on a server without XADD IDMP; ``retry`` on one that has neither that nor
                scripts, so that it could not tell a repetition; nothing was added.
            ResponseError: the server refused.
            Disconnected: no answer came; unless its ``sent`` is False, the entry may or may not have been added.
        """
        how = How(trimming(maxlen, minid), idempotent, retry)
        return await self._publish(self._sending(), Publication(stream, content, headers), how)

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
    ) -> str:
        """:meth:`publish` for programs without an event loop, such as Flask's and Django's views, from any thread.

        The first call starts a thread with a connection for all of them; :meth:`close_sync`, or the end of the
        process, ends it. Middlewares' publish hooks run in that thread.

        Raises:
            UsageError: also when an event loop runs in this thread, which would stand still meanwhile.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise UsageError(
                "publish_sync would keep the event loop of this thread waiting: use `await app.publish(...)` here, or "
                "call it in a thread (`await asyncio.to_thread(app.publish_sync, ...)`)"
            )
        publication, how = Publication(stream, content, headers), How(trimming(maxlen, minid), idempotent, retry)
        return self._background.run(self.url, lambda sender: self._publish(sender, publication, how))

    async def _publish(self, sender: Sender, publication: Publication, how: How) -> str:
        if how.idempotent is not None:
            need_idmp(await sender.server())

        async def send(publication: Publication) -> str:
            return await sender.add(publication.stream, fields_of(publication.content, publication.headers), how)

        around: Publish = chain(self.middlewares, "publish", send)
        return await around(publication)

    def close_sync(self) -> None:
        """Disconnect what :meth:`publish_sync` uses; the next call connects again.

        Calls that wait for their answer in other threads raise ``Disconnected``.
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
    ) -> list[str]:
        """Add many entries in one round trip and return their ids, in order.

        Args:
            stream: as for :meth:`publish`, like the others.
            contents: of the entries.
            maxlen: as for :meth:`publish`.
            minid: as for :meth:`publish`.
            idempotent: gives the id of each content.
            headers: of every entry.

        With a middleware that has a publish hook, each entry goes through it; hooks that wait may change the order.

        Raises:
            ResponseError: the server refused one; the others were added.
            Disconnected: no answer came; some, all or none were added.
        """
        trim = trimming(maxlen, minid)
        if idempotent is not None:
            need_idmp(await self._sending().server())
        if chain(self.middlewares, "publish", _plain) is not _plain:
            one = functools.partial(self.publish, stream, maxlen=maxlen, minid=minid)
            ids: list[str] = await asyncio.gather(
                *(
                    one(
                        content,
                        idempotent=idempotent and idempotent(content),
                        headers=None if headers is None else dict(headers),
                    )
                    for content in contents
                )
            )
            return ids
        replies = await self._shared().calls(
            [
                xadd(stream, fields_of(content, headers), trim, idempotent and idempotent(content))
                for content in contents
            ]
        )
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return [str(reply, "ascii") for reply in replies]

    # -- running ----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(
        self,
        url: str | None = None,
        *,
        grace: float | str | None = None,
        clock: Clock | None = None,
        watch: Middleware | None = None,
        patience: float | str | None = 30.0,
    ) -> "AsyncIterator[App]":
        """The subscribers at work, for as long as the block lasts; for tests and for embedding in another program.

        Args:
            url: the server, for this block.
            grace: as for :meth:`stop`.
            clock: where time comes from, for this block.
            watch: a middleware outside all others, for this block.
            patience: seconds, or ``"1m"``, for which a server that cannot be reached yet is tried again, with one line
                in the log; None has no end, 0 tries once.

        Raises:
            Disconnected: the server could not be reached in that time.
            AccessDenied: it does not let us in.
            UsageError: as for :meth:`start`, like the others.
        """
        given = None if patience is None else times.configured("App.running(patience=", patience, "s")
        limit = None if grace is None else times.configured("App.running(grace=", grace, "s")
        before = self._url, self._clock, self.middlewares
        self._url, self._clock = url or self._url, clock or self._clock
        if watch is not None:
            self.middlewares = (watch, *self.middlewares)
        try:
            await start_patiently(self, given)
            try:
                yield self
            finally:
                await self.stop(limit)
        finally:
            self._url, self._clock, self.middlewares = before

    async def start(self) -> None:
        """Connect, make the groups, run the startup hooks, begin to read; tried once, unlike :meth:`running`.

        Raises:
            UsageError: it runs already.
            ConfigError: on a cluster, a stream and its dead-letter stream are not in one slot.
            Disconnected: the server cannot be reached.
            FatalError: a group cannot be made.
        """
        if self._private is not None:
            raise UsageError("this app is running already")
        if self.url.startswith(CLUSTERS):
            self._check_slots()
        line, private, guard = self._shared(), open_line(self.url), asyncio.Lock()
        self._private = private
        shared = Shared(self.url, line, private, guard, IsolationGate(), self._clock, self.middlewares)
        self._loops = [
            SubscriberLoop(
                subscription,
                shared,
                siblings=[one.group for one in self._subscriptions if one.sub.stream == subscription.sub.stream],
            )
            for subscription in self._subscriptions
        ]
        try:
            for loop in self._loops:
                await loop.prepare()
            self._hooked = True
            await _run_hooks(self._on_startup)
            self._heartbeat = Heartbeat(
                line,
                self._loops,
                self._clock,
                listed=self.registry,
                reap_after=self.reap_after,
                url=self.url,
                blocked_after=self.blocked_after,
            )
            await self._heartbeat.begin()
        except BaseException:
            await self.stop(0)
            raise
        for loop in self._loops:
            loop.start()
        self._heartbeat.start()
        self._reading = True
        try:
            await _run_hooks(self._after_startup)
        except BaseException:
            await self.stop(0)
            raise

    def _check_slots(self) -> None:
        """On a cluster, a stream and what is kept beside it are in one slot, or there could be no transaction.

        Raises:
            ConfigError: which is not, and what to call it.
        """
        for one in self._subscriptions:
            stream = one.sub.stream
            for key in (one.dead, failure_log.key(stream, one.group)):
                if slot_of(key) != slot_of(stream):
                    raise ConfigError(
                        f"{one.name}: on a cluster {key!r} must be in the slot of {stream!r}: subscriber(dead="
                        f"{'{' + tag_of(stream) + '}:dead'!r}), or put a hash tag into the stream's name, as in "
                        f"{'{orders}'!r}"
                    )

    async def stop(self, grace: float | str | None = None) -> bool:
        """Finish or hand back everything, then disconnect; False when something could not be finished in time."""
        seconds = self.grace if grace is None else times.configured("App.stop(grace=", grace, "s")
        private, self._private = self._private, None
        running = self._loops if private is not None else []
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            await heartbeat.stopping()
        results = await asyncio.gather(*(loop.stop(seconds) for loop in running), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                log.error("a subscriber did not stop cleanly", exc_info=result)
        if self._reading:
            log.info("stopped: %s", self.stats())
        hooked = self._hooked
        try:
            if hooked:
                await _run_all_hooks(self._on_shutdown)
        finally:
            self._reading = self._hooked = False
            if heartbeat is not None:
                await heartbeat.end()
            if private is not None:
                await private.close()
            await self.close()
            if hooked:
                await _run_all_hooks(self._after_shutdown)
        return all(result is True for result in results)

    async def wait(self) -> None:
        """Wait until a subscriber cannot go on.

        Raises:
            FatalError: why.
        """
        await asyncio.gather(*(loop.done() for loop in self._loops))

    async def dismissed(self) -> None:
        """Wait until ``millstream worker drain`` or ``stop`` has told this process to end.

        :meth:`run` and ``millstream run`` end then. A program that holds the app in :meth:`running` is only told here;
        the app reads nothing more by then.
        """
        assert self._heartbeat is not None, "the app does not run"
        await self._heartbeat.dismissed.wait()

    async def close(self) -> None:
        """Disconnect a publisher that runs no subscribers."""
        sender = self._senders.pop(asyncio.get_running_loop(), None)
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        if sender is not None:
            await sender.close()
        if self._background.begun:
            await asyncio.to_thread(self.close_sync)

    def run(
        self, url: str | None = None, *, health: tuple[str, int] | None = None, health_allow: Iterable[str] = ()
    ) -> None:
        """Run in this process until SIGTERM or SIGINT; raises SystemExit with the exit code.

        Args:
            url: the server, if not the app's own.
            health: host and port for ``/healthz``, ``/readyz`` and ``/metrics``.
            health_allow: names by which they may be asked, beside addresses, loopback names and this machine's.
        """
        if url is not None:
            self.url = url
        raise SystemExit(run_in_process(self, health=health, health_allow=health_allow))

    def stats(self) -> dict[str, dict[str, int]]:
        """Counters of each subscriber in this process, by the handler's name."""
        return totals(self._loops)

    def health(self) -> dict[str, int]:
        """Milliseconds since each subscriber's reader last heard from the server: its progress, not a PING's."""
        return {loop.subscription.name: loop.idle_ms for loop in self._loops}

    def progress(self) -> list[SubscriberProgress]:
        """Whether each subscriber moves on, and why not."""
        return [loop.progress() for loop in self._loops]

    @property
    def parts(self) -> str:
        """What ``/healthz`` calls those of :meth:`progress`."""
        return "subscribers"

    @property
    def state(self) -> str:
        """What this process does: starting, running, quiet, draining or stopping."""
        if self._heartbeat is None:
            return "stopping" if self._reading else "starting"
        return self._heartbeat.state

    async def metrics(self, accept: str = "", *, consumers: bool = True) -> tuple[bytes, str]:
        """What a Prometheus scrape is answered with, and its content type.

        Args:
            accept: the scraper's ``Accept`` header; OpenMetrics is given to those who want it.
            consumers: also series for each consumer of the groups.

        Raises:
            MetricsError: prometheus-client is not installed.
        """
        from millstream.worker.monitoring.prometheus import scrape  # noqa: PLC0415 - prometheus-client is optional

        sender = self._senders.get(asyncio.get_running_loop())
        line = None if sender is None else sender.line
        return await scrape(self._loops, line, self.url, accept, consumers=consumers)

    async def __aenter__(self) -> "App":
        """For publishing: nothing to open, the connection is made on first use."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect."""
        await self.close()

    def _sending(self) -> Sender:
        """The publishing connection of the event loop that runs: frameworks may run each request on one of its own."""
        loop = asyncio.get_running_loop()
        if loop not in self._senders:
            for ended in [one for one in list(self._senders) if one.is_closed()]:
                self._senders.pop(ended, None)  # it hung up with its loop
            self._senders[loop] = Sender(self.url)
        return self._senders[loop]

    def _shared(self) -> Line:
        return self._sending().line


async def _plain(_: Publication) -> str:
    raise AssertionError("only compared with")


async def _run_all_hooks(hooks: list[Hook]) -> None:
    """Run all, also when one fails, since each tidies up something of its own; then raise what the first raised."""
    failures = []
    for hook in hooks:
        try:
            await _run_hooks([hook])
        except Exception as error:  # noqa: BLE001 - it is raised below
            failures.append(error)
    for further in failures[1:]:
        log.error("one more shutdown hook failed", exc_info=further)
    if failures:
        raise failures[0]


async def _run_hooks(hooks: list[Hook]) -> None:
    for hook in hooks:
        result = hook()
        if result is not None:
            await result
