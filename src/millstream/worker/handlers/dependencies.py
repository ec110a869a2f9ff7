"""Dependencies of handlers, by fast-depends: resolved for each delivery, closed before its outcome is stored.

::

    async def session() -> AsyncIterator[Session]:
        async with factory() as one:
            yield one
            await one.commit()

    @app.subscriber("orders")
    async def bill(order: Order, db: Annotated[Session, Depends(session)]) -> None: ...

Generators are closed after the handler has ended and before the entry is acked, so a failing commit fails the
delivery. An exception of the handler is thrown into them. Parameters of a dependency are filled as a handler's are.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from millstream.errors import ConfigError
from millstream.worker.handlers.binding import Binder
from millstream.worker.handlers.calling import hints_of, name_of
from millstream.worker.handlers.message import Message

if TYPE_CHECKING:
    from fast_depends.core import CallModel
    from fast_depends.dependencies import Provider

_PACKAGE = "fast_depends"


def dependencies_of(handler: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters that are dependencies, without loading fast-depends."""
    try:
        hints = hints_of(handler)
    except (NameError, SyntaxError, TypeError):
        return frozenset()  # the binder reports the error
    found = set()
    for parameter in inspect.signature(handler).parameters.values():
        annotation = hints.get(parameter.name)
        marks = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
        if any(type(mark).__module__.startswith(_PACKAGE) for mark in (*marks, parameter.default)):
            found.add(parameter.name)
    return frozenset(found)


def new_provider() -> "Provider":
    """Return an empty provider of dependencies."""
    try:
        from fast_depends.dependencies import Provider  # noqa: PLC0415 - only users of dependencies pay for it
    except ImportError:
        raise ConfigError("Depends needs fast-depends. Run pip install 'millstream[worker]'.") from None
    return Provider()


def Depends(dependency: Callable[..., Any], *, use_cache: bool = True) -> Any:  # noqa: N802 - the established name
    """Mark a parameter that gets this function's value, as its default or in ``Annotated``.

    Args:
        dependency: function, async or not, with ``yield`` or without.
        use_cache: True calls it once in a delivery for all parameters that use it.

    Raises:
        ConfigError: fast-depends is not installed.
    """
    new_provider()  # raises if the package is missing
    from fast_depends import Depends as depend  # noqa: N813, PLC0415 - only users of dependencies pay for it

    return depend(dependency, use_cache=use_cache)


class Injector:
    """Resolves the dependencies of one handler."""

    def __init__(self, handler: Callable[..., Any], provider: "Provider", context: Collection[type]) -> None:
        from fast_depends.core import build_call_model  # noqa: PLC0415 - only handlers with dependencies pay for it

        name = name_of(handler)
        try:
            self._model = build_call_model(handler, dependency_provider=provider, is_sync=False)
        except AssertionError as error:
            raise ConfigError(f"{name}: {error}") from None
        if self._model.custom_fields:
            raise ConfigError(
                f"{name}: {sorted(self._model.custom_fields)} is invalid: only Depends is supported. Use it."
            )
        self._provider = provider
        self._binders = self._collect(self._model, context)
        self.context: dict[str, type] = {}  # Types of ``context`` objects by parameter name of the dependencies
        seen: dict[str, Any] = {}
        for binder in self._binders:
            self.context.update(binder.context)
            for parameter, annotation in binder.annotations.items():
                if seen.setdefault(parameter, annotation) != annotation:
                    raise ConfigError(
                        f"{name}: two dependencies have a parameter {parameter!r} of different types. Rename one."
                    )
        self.wants_entry = bool(seen)  # True if a dependency takes the message or fields
        # True if a dependency takes the message
        self.wants_message = any(binder.wants_message for binder in self._binders)

    async def resolve(
        self, stack: AsyncExitStack, fields: Sequence[bytes], message: Message | None, context: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the dependencies' values for one delivery, each made once."""
        given = dict(context)
        for binder in self._binders:
            given.update(binder.bind(fields, message))
        cache: dict[Callable[..., Any], Any] = {}
        return {
            parameter: await self._provider.get_dependant(key).asolve(
                stack=stack, cache_dependencies=cache, nested=True, **given
            )
            for parameter, key in self._model.dependencies.items()
        }

    def _collect(self, model: "CallModel", context: Collection[type]) -> list[Binder]:
        found = []
        for key in model.dependencies.values():
            dependency = self._provider.get_dependant(key)
            found.append(Binder(dependency.call, skip=dependency.dependencies, context=context))
            found += self._collect(dependency, context)
        return found
