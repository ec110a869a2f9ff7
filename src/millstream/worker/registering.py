"""Registering: decorators declare an app's subscribers, pipelines and hooks when its module is imported.

This code only checks, so that a mistake in a declaration is an error at the import and not at the first entry. It makes
no connections, and loads nothing of Spark.
"""

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Never, TypeAlias, TypeVar

from millstream import times
from millstream.client.later.recurring import Recurring, prefixed
from millstream.client.line import Line
from millstream.client.slots import slot_of, tag_of
from millstream.errors import ConfigError, UsageError
from millstream.logs import logger
from millstream.worker.handlers.calling import add_publisher, check_handler, finished, is_generator, name_of, takes
from millstream.worker.handlers.dependencies import dependencies_of, new_provider
from millstream.worker.handlers.message import Message
from millstream.worker.handlers.middleware import Middleware, checked
from millstream.worker.handlers.subscription import AckMode, OnAck, ReadMode, StreamSub, Subscription
from millstream.worker.model.limit import Limit
from millstream.worker.model.retry import Retry
from millstream.worker.pipelines import OutputMode, Pipeline, Sink, Source, as_source
from millstream.worker.settlement import failure_log

if TYPE_CHECKING:
    from fast_depends.dependencies import Provider

log = logger("millstream.worker")

Handler = TypeVar("Handler", bound=Callable[..., Any])
_SECOND = 1_000  # milliseconds
Hook: TypeAlias = Callable[[], Awaitable[None] | None]


class Registering:
    """The part of an app that registers its subscribers, pipelines and hooks.

    Args:
        context: types in handlers' annotations that do not come from the entry, each with a function that makes the
            value.
        server: function that returns the app's URL when a pipeline starts; None for a router, which has no server.
    """

    def __init__(self, context: dict[type, Callable[[], Any]], server: Callable[[], str] | None) -> None:
        self._context = context
        self._server = server
        self._provider: Provider | None = None
        self._prefix = ""  # Prefix of all stream keys
        self._around: tuple[Middleware, ...] = ()  # Middlewares around the runs of all handlers
        self._closed = False  # True after the router was included
        self._routers: list[Registering] = []
        self._private: Line | None = None  # Set while the app runs
        self._subscriptions: list[Subscription] = []
        self._pipelines: dict[str, Pipeline] = {}
        self._recurring: dict[str, Recurring] = {}
        self._hooks: defaultdict[str, list[Hook]] = defaultdict(list)  # Hooks by the decorator that registered them
        self._decorations: list[tuple[str, object]] = []  # Names of functions, and the publishers that decorate them

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """The registered subscriptions, in order."""
        return tuple(self._subscriptions)

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The registered pipelines, in order."""
        return tuple(self._pipelines.values())

    @property
    def dependencies(self) -> "Provider":
        """The fast-depends provider of this app; its ``override`` and ``scope`` replace dependencies in tests.

        Raises:
            ConfigError: fast-depends is not installed.
        """
        if self._provider is None:
            self._provider = new_provider()
        return self._provider

    def subscriber(
        self,
        sub: StreamSub | str = "",
        *more: Never,
        retry: Retry | None = None,
        concurrency: int = 10,
        ack: AckMode = "auto",
        read: ReadMode = "both",
        dead: str | None = None,
        middlewares: Iterable[Middleware | Callable[..., Awaitable[Any]]] = (),
        batch: bool = False,
        max_records: int | None = None,
        key: str | Callable[[Message], Hashable] | None = None,
        hold: bool = False,
        on_ack: OnAck = "keep",
        limit: Limit | Iterable[Limit] | None = None,
        hard_limit: float | str | None = None,
        **unknown: Never,
    ) -> Callable[[Handler], Handler]:
        """Run a function, async or not, for each entry of a stream.

        Args:
            sub: the stream, or only its name; required.
            more: refused; another stream needs another ``@app.subscriber``.
            retry: the policy after a failure; None allows five deliveries with growing delays.
            concurrency: limit of simultaneous runs in each process.
            ack: ``"auto"`` sends acks in batches, ``"each"`` sends every ack at once, ``"manual"`` leaves acks to the
                handler.
            read: ``"both"`` reads new entries, and stale ones for at most half of each read (seven eighths while the
                last read brought nothing new). With XREADGROUP CLAIM on the server, reads filled with new entries look
                for stale ones every 20 ms. ``"new"`` and ``"claimed"`` are for deployments with a dedicated claimer.
            dead: key of the dead-letter stream; None takes ``<stream>:dead``.
            middlewares: middlewares around the runs of this handler, inside the app's.
            batch: True passes lists of entries to the handler, at most 100 unless ``max_records`` is given.
            max_records: the same as ``StreamSub(max_records=)``, and takes precedence.
            key: a field's name, or a function of the message: entries of one key run one after the other.
            hold: True, for a partitioned stream, lets an entry begin only when all earlier entries of its key are done
                or dead. At most ``max_records`` entries wait for that, 1,000 by default; then the partition is not read
                further.
            on_ack: ``"delete"`` removes an acked entry from the stream once no group needs it.
            limit: a limit of all workers together, or a list of them:
                :class:`~millstream.worker.model.limit.Limit`.
            hard_limit: time after which ``millstream run`` ends the process because a plain function still runs, in
                seconds or as ``"10m"``. It counts as a crash of that entry alone. Other programs report it in the log.
                For an async function use ``Timeout``.
            unknown: refused; the error names the place of such an option.

        Returns:
            A decorator that registers the function and returns it unchanged.

        Raises:
            ConfigError: an option or an annotation of the function cannot be used.
        """
        if more or not isinstance(sub, str | StreamSub):
            raise ConfigError(_without_stream((sub, *more) if more else sub))
        if not sub:
            return _refuse_without_stream
        where = StreamSub(sub) if isinstance(sub, str) else sub
        where = dataclasses.replace(where, stream=prefixed(where.stream, self._prefix))
        if max_records is not None:
            where = dataclasses.replace(where, max_records=max_records)
        around = (*self._around, *checked(middlewares))
        if limit is not None and not isinstance(limit, list | tuple):
            limit = (limit,)  # type: ignore[assignment] # its check names the handler

        def register(handler: Handler) -> Handler:
            if unknown:
                raise ConfigError(f"{name_of(handler)}: {_unknown(where.stream, unknown)}")
            if self._private is not None:
                raise UsageError(
                    f"{name_of(handler)}: the app runs already, and would not read {where.stream!r} for it. Register "
                    "it before the app starts, at the import of its module."
                )
            self._check_open(f"the subscriber {name_of(handler)}")
            limited = None
            if hard_limit is not None:
                limited = times.configured(f"{name_of(handler)}: subscriber(hard_limit=", hard_limit, "s")
            # A handler's Logger argument is its module's logger
            own_logger = logging.getLogger(getattr(handler, "__module__", None) or "millstream.handlers")
            check_handler(handler)
            if dependencies_of(handler) and self._provider is None:
                self._provider = new_provider()
            made = Subscription(
                where,
                handler,
                retry=Retry() if retry is None else retry,
                concurrency=concurrency,
                ack=ack,
                read=read,
                dead=prefixed(dead, self._prefix) if isinstance(dead, str) and dead else dead or "",
                middlewares=around,
                batch=batch,
                key=key,
                hold=hold,
                on_ack=on_ack,
                limits=tuple(limit or ()),  # type: ignore[arg-type] # as above
                hard_limit=limited,
                context={**self._context, logging.Logger: lambda: own_logger},
                provider=self._provider,
                app=self,
            )
            self._check_shared(made)
            self._warn(made)
            self._subscriptions.append(made)
            return handler

        return register

    def include(self, router: "Registering", prefix: str = "") -> None:
        """Include the subscribers, publishers, schedules and hooks of a router.

        Args:
            router: a :class:`millstream.Router`. It is closed by this: later declarations are refused.
            prefix: prefix of the keys of its streams and the names of its schedules, before the router's own prefix.
                The names of groups do not change.

        Raises:
            ConfigError: ``router`` is not a router, or it is included already.
            UsageError: the app runs already.
        """
        if not isinstance(router, Registering) or router._server is not None:  # noqa: SLF001 - of this class
            raise ConfigError(f"include({router!r}) is invalid: it takes a Router. Write Router(prefix=...).")
        if not isinstance(prefix, str):
            raise ConfigError(f'include(prefix={prefix!r}) is invalid: it must be a text. Write prefix="shop.".')
        if router in (self, *self._routers):
            raise ConfigError("include(router) is invalid: this router is included already. Include it once.")
        if self._private is not None:
            raise UsageError("include(router) is invalid: the app runs already. Include it before the app starts.")
        self._check_open("the router")
        self._routers.append(router)
        subscriptions, (recurring, hooks, idle) = router.subscriptions, router._given_up()  # noqa: SLF001 - of this class
        self._decorations += idle
        full = self._prefix + prefix
        for schedule in recurring:
            self._add_recurring(schedule.prefixed(full))
        # A function may have many subscriptions, but its result is published once
        for handler, publishers in {id(one.handler): (one.handler, one.publishers) for one in subscriptions}.values():
            for publisher in publishers:
                add_publisher(handler, self, publisher.included(self, full))
        for one in subscriptions:
            self._adopt(one, full)
        for moment, more in hooks.items():
            self._hooks[moment] += more

    def _given_up(self) -> tuple[list[Recurring], dict[str, list[Hook]], list[tuple[str, object]]]:
        """Return schedules, hooks and idle publishers for an app that includes this router, and close the router."""
        self._closed = True
        return list(self._recurring.values()), self._hooks, self._idle

    def _adopt(self, one: Subscription, prefix: str) -> None:
        """Register a router's subscription as one of this app's."""
        if one.depends and self._provider is None:
            self._provider = new_provider()
        made = dataclasses.replace(
            one,
            sub=dataclasses.replace(one.sub, stream=prefixed(one.sub.stream, prefix)),
            dead=prefixed(one.dead, prefix),
            middlewares=(*self._around, *one.middlewares),
            context={**one.context, **self._context},
            provider=self._provider,
            app=self,
        )
        self._check_shared(made)
        self._warn(made)
        self._subscriptions.append(made)

    def _add_recurring(self, made: Recurring) -> None:
        self._check_open(f"schedule {made.name!r}")
        if made.name in self._recurring:
            raise ConfigError(f"schedule {made.name!r} is declared twice. Give one of them another name=.")
        self._recurring[made.name] = made

    def _decorated(self, handler: Callable[..., Any], publisher: object) -> None:
        """Note that a publisher decorates a function, which needs a subscriber by the start."""
        self._decorations.append((name_of(handler), publisher))

    @property
    def _idle(self) -> list[tuple[str, object]]:
        """Functions with a publisher but without a subscriber, so that nothing runs them."""
        used = {id(publisher) for one in self._subscriptions for publisher in one.publishers}
        return [one for one in self._decorations if id(one[1]) not in used]

    def _check_publishers(self) -> None:
        for name, publisher in self._idle:
            stream = getattr(publisher, "stream", "")
            raise ConfigError(
                f'{name}: @app.publisher("{stream}") is invalid: the function has no subscriber, so nothing runs '
                'it and nothing is published. Write @app.subscriber("stream") above it too, or call '
                f'app.publish("{stream}", ...).'
            )

    def _check_open(self, new: str) -> None:
        if self._closed:
            raise UsageError(
                f"{new} comes too late: its router is included already. Register it before include(router)."
            )

    def _check_shared(self, made: Subscription) -> None:
        """Refuse the same name for two different limits."""
        known = {one.name or each.name: (one, each.name) for each in self._subscriptions for one in each.limits}
        for one in made.limits:
            other, handler = known.get(one.name or made.name, (one, ""))
            if (one.rate, one.burst, one.running) != (other.rate, other.burst, other.running):
                raise ConfigError(
                    f"{made.name}: subscriber(limit=) is invalid: {handler} declares the limit "
                    f"{one.name or made.name!r} otherwise. Write the same rate, burst and running in both, or another "
                    "name."
                )

    def _warn(self, made: Subscription) -> None:
        """Log declarations that work but are probably a mistake."""
        for other in self._subscriptions:
            if made.shares(other):
                log.warning(
                    "%s and %s both read stream %s as group %s: each entry goes to only one of them. Give each its own "
                    "StreamSub(group=); if they share the work on purpose, give each its own StreamSub(consumer=).",
                    other.name,
                    made.name,
                    made.sub.stream,
                    made.group,
                )
        # Other time options are in seconds, so a small number is probably in the wrong unit
        if made.min_idle < _SECOND:
            log.warning(
                "%s: StreamSub(min_idle_time=) is in milliseconds: %d ms on stream %s is below one second, and code "
                'that blocks the event loop for so long loses its entries. If you mean seconds, write "%ds".',
                made.name,
                made.min_idle,
                made.sub.stream,
                made.min_idle,
            )

    def pipeline(
        self,
        *sources: Source | str,
        sink: Sink | None = None,
        checkpoint: str | None = None,
        trigger: str | None = None,
        output_mode: OutputMode = "append",
        name: str | None = None,
    ) -> Callable[[Callable[..., Any]], Pipeline]:
        """Register a function over streaming DataFrames; ``millstream run`` runs it on Spark, in a separate process.

        Args:
            sources: a stream's key, or a :class:`~millstream.worker.pipelines.Source`, for each DataFrame.
            sink: the target of the rows; without one the function starts its query itself.
            checkpoint: folder in which Spark keeps the progress of the query.
            trigger: an interval, ``"availableNow"``, or None.
            output_mode: ``append``, ``complete`` or ``update``.
            name: name of the query; the function's name by default.

        Returns:
            A decorator that registers the function and returns a :class:`~millstream.worker.pipelines.Pipeline`. Its
            ``start(spark)`` runs it from your own program.

        Raises:
            ConfigError: the declaration is invalid, or another pipeline has the name or the checkpoint.
        """
        if self._server is None:
            raise ConfigError("pipeline() of a router is invalid: a pipeline belongs to an app. Write @app.pipeline.")
        server = self._server
        for source in sources:
            if callable(source):
                raise ConfigError(
                    f'{name_of(source)}: @app.pipeline needs a stream. Write @app.pipeline("stream") above it.'
                )

        def register(function: Callable[..., Any]) -> Pipeline:
            every = tuple(map(as_source, sources))
            made = Pipeline(function, every, server, sink, checkpoint, trigger, output_mode, name or "")
            if made.name in self._pipelines:
                raise ConfigError(f"two pipelines are named {made.name!r}. Give one of them another name=.")
            for other in self._pipelines.values():
                if made.folder is not None and made.folder == other.folder:
                    raise ConfigError(
                        f"pipelines {other.name!r} and {made.name!r} have the same checkpoint {made.checkpoint!r}, and "
                        "Spark would stop the one to start the other. Give each its own."
                    )
            self._pipelines[made.name] = made
            return made

        return register

    def on_startup(self, hook: Hook) -> Hook:
        """Run a function, async or not, before the first entry is read."""
        return self._hook("on_startup", hook)

    def after_startup(self, hook: Hook) -> Hook:
        """Run a function, async or not, once the subscribers read."""
        return self._hook("after_startup", hook)

    def after_shutdown(self, hook: Hook) -> Hook:
        """Run a function, async or not, after the app has disconnected."""
        return self._hook("after_shutdown", hook)

    def on_shutdown(self, hook: Hook) -> Hook:
        """Run a function, async or not, after the last outcome was stored."""
        return self._hook("on_shutdown", hook)

    def _hook(self, moment: str, hook: Hook) -> Hook:
        if not callable(hook) or not takes(hook, 0):
            raise ConfigError(f"{moment}({name_of(hook)}) is invalid: a hook is a function without arguments.")
        if is_generator(hook):
            raise ConfigError(
                f"{moment}({name_of(hook)}) is invalid: a call of a generator function runs nothing. Write what is "
                "before its `yield` as on_startup, and the rest as on_shutdown."
            )
        self._check_open(f"{moment}({name_of(hook)})")
        self._hooks[moment].append(hook)
        return hook

    def check_slots(self, partitioned: Collection[str] = ()) -> None:
        """Check that each stream, its dead-letter stream and its record are in one cluster slot, for transactions.

        Args:
            partitioned: streams whose partitions have keys of their own; their dead-letter stream must be the default.

        Raises:
            ConfigError: a key is in another slot; the text has a valid name.
        """
        for one in self._subscriptions:
            stream = one.sub.stream
            if stream in partitioned and one.dead == f"{stream}:dead":
                continue
            for key in (one.dead, failure_log.key(stream, one.group)):
                if slot_of(key) != slot_of(stream):  # one step changes both keys
                    raise ConfigError(
                        f"{one.name}: on a cluster {key!r} must be in the slot of {stream!r}: subscriber(dead="
                        f"{'{' + tag_of(stream) + '}:dead'!r}), or put a hash tag into the stream's name, as in "
                        f"{'{orders}'!r}"
                    )


def _refuse_without_stream(handler: Any) -> Never:
    """Refuse the decorator ``@app.subscriber()`` without a stream, now that the handler's name is known."""
    raise ConfigError(_without_stream(handler))


def _without_stream(sub: Any) -> str:
    if callable(sub):
        return f'{name_of(sub)}: @app.subscriber needs a stream. Write @app.subscriber("stream") above it.'
    return (
        f"subscriber({sub!r}) is invalid: it takes the name of one stream, or a StreamSub. Write one @app.subscriber "
        "for each stream, above the same function."
    )


def _unknown(stream: str, options: Iterable[str]) -> str:
    """Return the error text for options that subscriber() does not have."""
    names = {one.name for one in dataclasses.fields(StreamSub)}
    of_stream = [name for name in options if name in names]
    if of_stream:
        given = ", ".join(f"{name}=..." for name in of_stream)
        return (
            f"subscriber({given}) is invalid: this belongs to the stream. Write "
            f'@app.subscriber(StreamSub("{stream}", {given})).'
        )
    return (
        f"subscriber() has no option {', '.join(map(repr, options))}. Remove it, or look for its name in the reference."
    )


async def run_all_hooks(hooks: list[Hook]) -> None:
    """Run all hooks, even if one fails, since each cleans up its own resources; then raise the first error."""
    failures = []
    for hook in hooks:
        try:
            await run_hooks([hook])
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
    for further in failures[1:]:
        log.error("one more shutdown hook failed", exc_info=further)
    if failures:
        raise failures[0]


async def run_hooks(hooks: list[Hook]) -> None:
    """Run the hooks in order; stop at the first one that fails."""
    for hook in hooks:
        await finished(hook())
