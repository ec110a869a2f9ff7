"""From an entry to a call of its handler, with everything that a call needs prepared when the subscriber starts.

A handler without middlewares and dependencies has the shortest path; others pay only for what they use.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

from millstream.errors import UsageError
from millstream.logs import logger
from millstream.worker.handlers.calling import bounded, by_name, ends_process, finished, in_thread
from millstream.worker.handlers.dependencies import Injector
from millstream.worker.handlers.message import Message
from millstream.worker.handlers.middleware import Middleware, Run, RunBatch, chain, receivers
from millstream.worker.handlers.outcomes import Outcomes
from millstream.worker.handlers.subscription import Subscription
from millstream.worker.settlement.consumer import Held
from millstream.worker.settlement.running import AT_WORK, Work

log = logger("millstream.worker")

Call: TypeAlias = Callable[[Held], Awaitable[Any]]


class HandlerCalls:
    """Makes the calls of one subscriber's handler."""

    def __init__(
        self,
        subscription: Subscription,
        outcomes: Outcomes,
        threads: Executor | None,
        middlewares: Sequence[Middleware],
    ) -> None:
        self._subscription = subscription
        self._outcomes = outcomes
        self._threads = threads  # Threads for handlers that are not async; None for async ones
        self._handler = by_name(subscription.handler)
        self._binder = subscription.binder
        self._context = _values(self._binder.context, subscription.context)
        self._injector: Injector | None = None
        self._injected: dict[str, Any] = {}  # Objects of the app that dependencies take
        if subscription.depends:
            assert subscription.provider is not None
            self._injector = Injector(subscription.handler, subscription.provider, tuple(subscription.context))
            self._injected = _values(self._injector.context, subscription.context)
        self._wants_message = self._binder.wants_message or bool(self._injector and self._injector.wants_message)
        # Two chains: the result is published between them, outside of the handler's own middlewares
        self._own: Run = chain(subscription.middlewares, "run", self._innermost)
        self._own_batch: RunBatch = chain(subscription.middlewares, "run_batch", self._innermost_batch)
        self._around: Run = chain(middlewares, "run", self._published)
        self._around_batch: RunBatch = chain(middlewares, "run_batch", self._published_batch)
        self.late: Callable[[Work], None] = lambda _: None  # Called for a run beyond the subscription's hard limit
        self._receivers = receivers(middlewares)
        # `chain` returns its last argument if there is nothing to wrap around it
        self._wrapped = self._own != self._innermost or self._around != self._published

    @property
    def one(self) -> Call:
        """The function that calls the handler for one entry, with the least overhead."""
        if self._wrapped or self._injector is not None or self._context:
            return self._call_around
        if self._threads is None and not self._subscription.publishers:
            return self._call_bare
        return self._call_plain

    def _call_bare(self, held: Held) -> Awaitable[Any]:
        """Return the handler's own coroutine; the caller also awaits what that returns."""
        binder = self._binder
        message = Message(held, self._outcomes) if binder.wants_message else None
        result: Awaitable[Any] = self._handler(**binder.bind(held.fields, message))
        return result

    async def _call_plain(self, held: Held) -> Any:
        binder = self._binder
        arguments = binder.bind(held.fields, Message(held, self._outcomes) if binder.wants_message else None)
        result = await self._invoke(arguments)
        if result is not None:
            await self._publish(result)
        return result

    async def _call_around(self, held: Held) -> Any:
        if self._wrapped:
            return await self._around(Message(held, self._outcomes))
        result = await self._run(held.fields, Message(held, self._outcomes) if self._wants_message else None)
        if result is not None:
            await self._publish(result)
        return result

    @property
    def received(self) -> Callable[[Sequence[Held], int], None] | None:
        """The function that passes a read's entries and start time to the app's middlewares; None without a hook."""
        return self._tell_received if self._receivers else None

    def _tell_received(self, entries: Sequence[Held], began_ns: int) -> None:
        messages = [self.message(held) for held in entries]
        for call in self._receivers:
            try:
                call(messages, began_ns)
            except BaseException as error:  # the entries are held, and run whatever a hook does
                if ends_process(error) or isinstance(error, asyncio.CancelledError):
                    raise
                log.exception("%s: a middleware's `received` failed", self._subscription.name)

    def message(self, held: Held) -> Message:
        """Return the message of an entry."""
        return Message(held, self._outcomes)

    def bind(self, message: Message) -> dict[str, Any]:
        """Return the arguments made from one entry of a batch."""
        return self._binder.bind(message.raw, message)

    async def batch(self, entries: "BatchMessages") -> Any:
        """Call the handler for a batch; each item of the list that it returns is published."""
        return await finished(await self._around_batch(entries))

    async def _published(self, message: Message) -> Any:
        """Run the handler inside the app's middlewares, and publish its result."""
        result = await finished(await self._own(message))
        if result is not None:
            await self._publish(result)
        return result

    async def _published_batch(self, messages: Sequence[Message]) -> Any:
        result = await finished(await self._own_batch(messages))
        if not self._subscription.publishers or result is None:
            return result  # no publisher uses the result
        if not isinstance(result, Iterable) or isinstance(result, str | bytes | Mapping):
            raise UsageError(
                f"{self._subscription.name}: with @app.publisher a batch handler returns the list of items to "
                f"publish, not a {type(result).__name__}"
            )
        for one in result:
            await self._publish(one)
        return result

    async def _innermost(self, message: Message) -> Any:
        return await self._run(message.raw, message)

    async def _innermost_batch(self, messages: Sequence[Message]) -> Any:
        # A middleware may have passed its own list
        each = messages.arguments if isinstance(messages, BatchMessages) else [self.bind(one) for one in messages]
        # All have the same names, since a single binder created them
        arguments = {name: [one[name] for one in each] for name in each[0]}
        return await self._injected_call((), None, arguments)

    async def _run(self, fields: Sequence[bytes], message: Message | None) -> Any:
        return await self._injected_call(fields, message, self._binder.bind(fields, message))

    async def _injected_call(self, fields: Sequence[bytes], message: Message | None, arguments: dict[str, Any]) -> Any:
        arguments.update(self._context)
        if self._injector is None:
            return await self._invoke(arguments)
        # At its end, the stack closes generators and passes them the exception
        async with AsyncExitStack() as stack:
            arguments.update(await self._injector.resolve(stack, fields, message, self._injected))
            return await self._invoke(arguments)
        # A generator can suppress the handler's exception, and an ack would then hide a failure
        raise UsageError("a dependency caught the handler's exception and did not raise it again")

    async def _invoke(self, arguments: dict[str, Any]) -> Any:
        handler, threads, limit = self._handler, self._threads, self._subscription.hard_limit
        if limit is not None and (work := AT_WORK.get()) is not None:
            handler = bounded(handler, limit, lambda: self.late(work))
        return await finished(
            await (handler(**arguments) if threads is None else in_thread(threads, handler, arguments))
        )

    async def _publish(self, result: Any) -> None:
        for publisher in self._subscription.publishers:
            await publisher.publish(result)


class BatchMessages(list[Message]):
    """The messages of a batch, with the arguments made from each of them."""

    def __init__(self, messages: Iterable[Message], arguments: list[dict[str, Any]]) -> None:
        super().__init__(messages)
        self.arguments = arguments  # In the order of the messages


def _values(wanted: Mapping[str, type], context: Mapping[type, Callable[[], Any]]) -> dict[str, Any]:
    return {name: context[kind]() for name, kind in wanted.items()}
