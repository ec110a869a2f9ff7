"""Calls of a user's function, and everything that they may return or raise.

A handler's outermost callable decides how it is called: a coroutine function in the event loop, all others in a thread.
If the result is an awaitable, it is awaited before the entry counts as handled.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextvars import copy_context
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, get_type_hints

from millstream.errors import ConfigError, MillstreamError, UsageError

_Outcome = tuple[Any, BaseException | None]

#: Largest number of awaitables in a row, each the result of the previous one.
_MOST_AWAITS = 100
_CONTEXTS = (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager)  # noqa: SLF001 - no other name
_NOT_BEGUN = (GeneratorType, AsyncGeneratorType, map, filter, *_CONTEXTS)
_KINDS = {map: "map", filter: "filter", **dict.fromkeys(_CONTEXTS, "context manager")}
_HOLDERS = (list, tuple, set, frozenset, dict)
_UNFINISHED = (CoroutineType, asyncio.Future, concurrent.futures.Future)


def name_of(function: object) -> str:
    """Return the name of a callable for people: for a partial, of the function inside; for an object, of its class."""
    while isinstance(function, functools.partial | functools.partialmethod):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def annotated(function: Any) -> Any:
    """Return the function that decides how a callable is called: that in a partial, or an object's ``__call__``.

    ``__wrapped__`` is ignored: a wrapper may be another kind of function than the one that it wraps.
    """
    while isinstance(function, functools.partial | staticmethod):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return function if inspect.isroutine(function) else type(function).__call__


def hints_of(function: Any) -> dict[str, Any]:
    """Return the annotations of a callable's parameters, each from the outermost function that has one.

    A wrapper around a partial or an object has none: :func:`functools.wraps` finds none there to copy.
    """
    names = inspect.signature(function).parameters
    found: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for layer in reversed([*_layers(function)]):
        own = {name: one for name, one in getattr(layer, "__annotations__", {}).items() if name in names}
        fresh = {name: one for name, one in own.items() if name not in texts or texts[name] != one}
        if fresh:  # text annotations copied by a wrapper are evaluated in their original module
            hints = get_type_hints(layer, getattr(layer, "__globals__", None), include_extras=True)
            found |= {name: hints[name] for name in fresh}
            texts |= fresh
    return found


def _layers(function: Any) -> Iterator[Any]:
    """Yield the functions whose parameters :func:`inspect.signature` shows, outermost first."""
    while function is not None:
        while isinstance(function, functools.partial):
            function = function.func
        yield annotated(function)
        function = None if hasattr(function, "__signature__") else getattr(function, "__wrapped__", None)


def bound_by_name(function: Any) -> frozenset[str]:
    """Return the parameters that a partial has already bound by name."""
    found: set[str] = set()
    while isinstance(function, functools.partial):
        found |= set(function.keywords)
        function = function.func
    return frozenset(found)


def is_async(function: Callable[..., Any]) -> bool:
    """Report whether a call of the outermost function returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(annotated(function))


def is_generator(function: Any) -> bool:
    """Report whether a call of the outermost function returns a generator, without running its body."""
    called = annotated(function)
    awaited = getattr(getattr(called, "__code__", None), "co_flags", 0) & inspect.CO_ITERABLE_COROUTINE
    return (inspect.isgeneratorfunction(called) and not awaited) or inspect.isasyncgenfunction(called)


def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function for calls with keyword arguments only.

    :func:`functools.singledispatch` needs its first argument by position.
    """
    if not hasattr(function, "dispatch") or not hasattr(function, "registry"):
        return function
    first = next(iter(inspect.signature(function).parameters))
    return lambda **arguments: function(arguments.pop(first), **arguments)


def takes(function: Any, count: int) -> bool:
    """Report whether a call with that many positional arguments fits; True if Python cannot find out."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def check_handler(function: Any) -> None:
    """Raise ConfigError for an object that cannot be a handler."""
    name, base = name_of(function), _called(function)
    if isinstance(base, type):
        raise ConfigError(f"{name} is a class: a call would only make an object. Register a function, or {name}(...).")
    if not callable(function):
        raise ConfigError(f"{name} cannot be called: a handler is a function. Register a function, or a bound method.")
    first = _first_parameter(function)
    if first in ("self", "cls") and _in_a_class(base):
        raise ConfigError(
            f"{name} is a method without its object: an entry has no {first!r}. Register the "
            f"method of an object: app.subscriber(...)({getattr(base, '__qualname__', name).split('.')[-2]}(...)"
            f".{name})."
        )
    if is_generator(function):
        raise ConfigError(
            f"{name_of(function)} is a generator function: a call would not run its body. Remove the `yield`, or move "
            "it into a dependency (Depends)."
        )


def _called(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _first_parameter(function: Any) -> str:
    try:
        return next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError) as error:  # a callable of C, or a __signature__ that is not one
        raise ConfigError(
            f"{name_of(function)} has parameters that cannot be read: {error}. Write a function around it."
        ) from None


def _in_a_class(function: Any) -> bool:
    """Report whether a function was defined in a class body."""
    owner = ["<locals>", *str(getattr(function, "__qualname__", "")).split(".")][-2]
    return inspect.isfunction(function) and owner != "<locals>"


async def finished(result: Any) -> Any:
    """Await the result of a call as long as it is an awaitable; refuse it if a part of it has not run."""
    for _ in range(_MOST_AWAITS):
        if isinstance(result, concurrent.futures.Future):
            result = asyncio.wrap_future(result)
        if not inspect.isawaitable(result):
            break
        given, result = result, await result
        if result is given:  # a redis-py client or pipeline returns itself when awaited, endlessly
            break
    else:
        raise UsageError(f"the handler returned an awaitable that gave {_MOST_AWAITS} more in turn: return its result")
    if isinstance(result, _NOT_BEGUN):
        raise UsageError(
            f"the handler returned a {_KINDS.get(type(result), 'generator')}, whose body has not run: return a list, "
            "or remove `yield`"
        )
    kind = result if isinstance(result, type) else type(result)
    if issubclass(kind, MillstreamError):  # Nack, Reject or BatchError, as class or object
        raise UsageError(f"the handler returned {kind.__name__} as its result: raise it")
    parts = result.values() if isinstance(result, dict) else result
    if isinstance(result, _HOLDERS) and (left := [one for one in parts if isinstance(one, _UNFINISHED)]):
        for one in left:
            if isinstance(one, CoroutineType):
                one.close()
        raise UsageError(
            f"the handler returned a {type(result).__name__} with awaitables that nothing awaits. Write "
            "return await asyncio.gather(...)."
        )
    return result


def _carried(error: BaseException) -> BaseException:
    """Return an exception that an asyncio future accepts; it refuses StopIteration."""
    if isinstance(error, StopIteration):
        stopped = RuntimeError("a function in a thread raised StopIteration")
        stopped.__cause__ = error
        return stopped
    return _CONVERT(error)


_CONVERT: Callable[[BaseException], BaseException] = getattr(
    asyncio.futures, "_convert_future_exc", lambda error: error
)


def mend_futures() -> None:
    """Let a wait for a thread that raised StopIteration end in RuntimeError, as in Python 3.12; 3.11 waits for ever.

    All of asyncio's conversions of a thread's future call this function, also those for a user's own threads.
    """
    if sys.version_info < (3, 12):
        asyncio.futures._convert_future_exc = _carried  # type: ignore[attr-defined] # noqa: SLF001 - no other place


async def in_thread(
    threads: concurrent.futures.Executor, function: Callable[..., Any], arguments: dict[str, Any]
) -> Any:
    """Call a plain function in a thread, in a copy of the context, so that its changes there end with the call."""
    call = functools.partial(copy_context().run, _contained, function, arguments)
    result, error = await asyncio.get_running_loop().run_in_executor(threads, call)
    if issubclass(type(error), StopIteration | StopAsyncIteration):  # as for a coroutine, which cannot raise these
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error  # noqa: TRY004 - as Python does
    if error is not None:
        raise error
    return result


def bounded(function: Callable[..., Any], seconds: float, late: Callable[[], None]) -> Callable[..., Any]:
    """Wrap a function for another thread; ``late`` is called in the event loop once it has run this long."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def run(**arguments: Any) -> Any:
        # Started here, since the call may first wait for a thread
        loop.call_soon_threadsafe(lambda: timers.append(loop.call_later(seconds, late)))
        try:
            return function(**arguments)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: timers.pop().cancel())

    return run


def _contained(function: Callable[..., Any], arguments: dict[str, Any]) -> _Outcome:
    """Return the outcome as a value: a Future refuses StopIteration, and its waiters would wait for ever."""
    process = os.getpid()
    try:
        outcome: _Outcome = function(**arguments), None
    except BaseException as error:  # noqa: BLE001 - raised again when the result is awaited
        outcome = None, error
    end_if_forked(process, outcome[1])
    return outcome


def end_if_forked(process: int, error: BaseException | None = None) -> None:
    """End a process that a handler forked and that returned from it: as a second worker it would do harm."""
    if os.getpid() == process:
        return
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def ends_process(error: BaseException) -> bool:
    """Report whether an exception does not come from the user's code: Ctrl-C without a handler, or a closed event loop.

    The check uses the type: ``__class__`` of an exception is the user's code too, and may raise.
    """
    if issubclass(type(error), KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return issubclass(type(error), GeneratorExit) and not _in_a_task()


def _in_a_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no running loop: the coroutine is being closed
        return False


_PUBLISH = "__millstream_publish__"
_by_method: "weakref.WeakKeyDictionary[object, dict[Any, tuple[Any, ...]]]" = weakref.WeakKeyDictionary()


def publishers_of(handler: Any, app: object) -> tuple[Any, ...]:
    """Return the publishers that an app has for a handler's result."""
    kept = _by_method.get(app, {}) if _shares_attributes(handler) else getattr(handler, _PUBLISH, {})
    return tuple(kept.get(handler if _shares_attributes(handler) else app, ()))


def add_publisher(handler: Any, app: object, publisher: object) -> None:
    """Add an app's publisher of a handler's result; a wrapper made by :func:`functools.wraps` inherits it."""
    both = (*publishers_of(handler, app), publisher)
    if _shares_attributes(handler):
        _by_method.setdefault(app, {})[handler] = both
    else:  # a new mapping, since a wrapper created earlier shares the old one
        kept = weakref.WeakKeyDictionary(getattr(handler, _PUBLISH, {}))
        kept[app] = both
        setattr(handler, _PUBLISH, kept)


def _shares_attributes(handler: Any) -> bool:
    """Report whether an object has no attributes of its own: a method has its function's, others may have none."""
    return inspect.ismethod(handler) or not hasattr(handler, "__dict__")
