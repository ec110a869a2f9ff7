"""Middlewares: code that an application adds around every run and every publish, set at registration.

A middleware has named hooks. Those that it overrides are called, the first middleware outermost. The others cost
nothing, since the chain is built once. The app's middlewares are outside those of a subscriber. An exception from a
hook counts as the handler's, so the entry is retried or dead. An exception that a hook swallows counts as a success.
"""

import asyncio
import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeAlias

from millstream import times
from millstream.errors import ConfigError, MillstreamError, UsageError
from millstream.worker.handlers.calling import finished, is_async, is_generator, name_of, takes
from millstream.worker.handlers.message import Message

Run: TypeAlias = Callable[[Message], Awaitable[Any]]
RunBatch: TypeAlias = Callable[[Sequence[Message]], Awaitable[Any]]


@dataclasses.dataclass(slots=True)
class Publication:
    """One entry to be published; hooks may change it."""

    stream: str  # Key of the stream
    content: Any  # See :func:`millstream.worker.handlers.binding.encode`
    # Headers of FastStream's envelope; None for an entry with plain fields
    headers: dict[str, str] | None = None


Publish: TypeAlias = Callable[[Publication], Awaitable[str]]


class Middleware:
    """Base class of middlewares: override the hooks that you need.

    A function ``async def around(call_next, msg)`` is a middleware with :meth:`run` only.
    """

    def connects(self, url: str) -> None:
        """Receive the URL of the app's server, before any other hook is called."""

    async def run(self, call_next: Run, msg: Message) -> Any:
        """Wrap one run of a handler, including its arguments and dependencies.

        Args:
            call_next: the inner part of the chain; returns what the handler returned.
            msg: the delivery.
        """
        return await call_next(msg)

    async def run_batch(self, call_next: RunBatch, msgs: Sequence[Message]) -> Any:
        """Wrap one run of a batch handler."""
        return await call_next(msgs)

    def received(self, msgs: Sequence[Message], began_ns: int) -> None:
        """Receive the entries of a read, new or claimed; called for the app's middlewares only.

        It is called before any of them runs. Some may never run here: they are released at a stop or a pause.

        Args:
            msgs: messages, at least one.
            began_ns: wall-clock nanoseconds at which the read was sent.
        """

    async def publish(self, call_next: Publish, publication: Publication) -> str:
        """Wrap one publish; called for the app's middlewares only.

        Args:
            call_next: the inner part of the chain; returns the entry's id.
            publication: the entry to add.
        """
        return await call_next(publication)


class _Function(Middleware):
    def __init__(self, function: Callable[[Run, Message], Awaitable[Any]]) -> None:
        self.function = function

    def run(self, call_next: Run, msg: Message) -> Any:
        return self.function(call_next, msg)


def checked(middlewares: "Iterable[Middleware | Callable[..., Awaitable[Any]]]") -> tuple[Middleware, ...]:
    """Return the middlewares, with functions wrapped; raise ConfigError for any other object."""
    made: list[Middleware] = []
    if not isinstance(middlewares, Iterable):
        raise ConfigError(f"middlewares={middlewares!r} is invalid: it must be a list. Write middlewares=[...].")
    for one in middlewares:
        if isinstance(one, type) or not (isinstance(one, Middleware) or callable(one)):
            raise ConfigError(f"middleware {one!r} is invalid. Give a Middleware() or a function (call_next, msg).")
        made.append(_with_usable_hooks(one) if isinstance(one, Middleware) else _Function(_usable(one, name_of(one))))
    return tuple(made)


def _with_usable_hooks(middleware: Middleware) -> Middleware:
    """Return the middleware; refuse it if one of its hooks cannot be called as the worker does."""
    kind = type(middleware)
    for hook in ("run", "run_batch", "publish"):
        if getattr(kind, hook) is not getattr(Middleware, hook):
            _usable(getattr(middleware, hook), f"{kind.__name__}.{hook}")
    for hook, count in (("received", 2), ("connects", 1)):
        own = getattr(middleware, hook)
        if is_async(own) or not takes(own, count):
            parameters = ", ".join(inspect.signature(getattr(Middleware, hook)).parameters)
            raise ConfigError(f"{kind.__name__}.{hook} is invalid: nothing awaits it. Write def {hook}({parameters}).")
    return middleware


def _usable(hook: Any, name: str) -> Any:
    """Return a hook around a run or a publish; refuse it if a call would run nothing."""
    if is_generator(hook):
        raise ConfigError(f"middleware {name} is a generator function: a call would not run it. Remove the `yield`.")
    if not takes(hook, 2):
        raise ConfigError(f"middleware {name} is invalid: it takes two arguments. Write (call_next, msg).")
    return hook


def receivers(middlewares: Sequence[Middleware]) -> list[Callable[[Sequence[Message], int], None]]:
    """Return the ``received`` hooks of the middlewares that override it."""
    return [one.received for one in middlewares if type(one).received is not Middleware.received]


def chain(middlewares: Sequence[Middleware], hook: str, innermost: Callable[[Any], Awaitable[Any]]) -> Any:
    """Return ``innermost`` wrapped in the overridden hooks of that name; ``innermost`` itself without any."""
    call: Any = innermost
    for one in reversed(middlewares):
        if getattr(type(one), hook) is not getattr(Middleware, hook):
            call = _linked(getattr(one, hook), call)
    return call


def _linked(hook: Callable[[Any, Any], Any], inner: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Wrap a call in a hook; raise if the hook ended before the call, since the entry would be acked unhandled."""

    async def link(subject: Any) -> Any:
        made: list[Coroutine[Any, Any, Any]] = []  # requested calls, to check later that they also ran

        def call_next(given: Any) -> Coroutine[Any, Any, Any]:
            made.append(inner(given))
            return made[-1]

        waited = hook(call_next, subject)
        if not inspect.isawaitable(waited):
            _close(made)
            raise UsageError(
                f"{_title(hook)} returned {type(waited).__name__}: write async def, and return await call_next(...)."
            )
        result = await finished(waited)
        if any(inspect.getcoroutinestate(one) != inspect.CORO_CLOSED for one in made):
            _close(made)
            raise UsageError(f"{_title(hook)} has not awaited call_next(...): write return await call_next(...).")
        return result

    return link


def _close(made: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Close calls that never began, without Python's warning."""
    for one in made:
        if inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
            one.close()


def _title(hook: Any) -> str:
    owner = getattr(hook, "__self__", None)
    name = name_of(owner.function) if isinstance(owner, _Function) else f"{type(owner).__name__}.{name_of(hook)}"
    return f"middleware {name}"


class HandlerTimeoutError(MillstreamError):
    """A handler took longer than its `Timeout` allows.

    What to do: raise the limit, or find the call that the handler waits for. The worker tries the entry again.
    """


class Timeout(Middleware):
    """Cancel a run that takes longer; the delivery fails as if the handler had raised.

    A handler in a thread cannot be cancelled: the delivery fails in time, but the thread goes on to its end.

    Args:
        seconds: longest time for one run, also of a batch, in seconds or as a text such as ``"2m"``.
    """

    def __init__(self, seconds: float | str) -> None:
        self.seconds = times.configured("Timeout(", seconds, "s")
        if self.seconds <= 0:
            raise ConfigError(f"Timeout({seconds!r}) is invalid. Give more than 0 seconds.")

    async def run(self, call_next: Run, msg: Message) -> Any:
        """Run the handler with the time limit.

        Raises:
            HandlerTimeoutError: the run took longer.
        """
        return await self._bounded(call_next(msg))

    async def run_batch(self, call_next: RunBatch, msgs: Sequence[Message]) -> Any:
        """Run the handler of a batch with the time limit."""
        return await self._bounded(call_next(msgs))

    async def _bounded(self, work: Awaitable[Any]) -> Any:
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise  # an error of the handler itself
            raise HandlerTimeoutError(f"the handler took longer than {self.seconds:g} s") from None
