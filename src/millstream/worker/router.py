"""Routers: subscribers, publishers and schedules of one topic, declared without an app and included in one or more.

A router has no server. ``include`` copies the declarations, so that the same router can be in two apps.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Never

from redis.asyncio import Redis

from millstream.errors import ConfigError, UsageError
from millstream.worker.app import App
from millstream.worker.handlers.middleware import Middleware, checked
from millstream.worker.later.declaring import Declaring
from millstream.worker.publishing import Publisher

if TYPE_CHECKING:
    from fast_depends.dependencies import Provider


class Router(Declaring):
    """Subscribers, publishers, schedules and hooks that an app includes; see :meth:`App.include`.

    Args:
        prefix: prefix of the keys of its streams and dead-letter streams, and of the names of its schedules.
        middlewares: middlewares around the runs of its handlers, outside the handlers' own and inside the app's.

    Raises:
        ConfigError: the prefix is not a text, or a middleware is neither an instance of ``Middleware`` nor a function.
    """

    def __init__(
        self, prefix: str = "", middlewares: Iterable[Middleware | Callable[..., Awaitable[Any]]] = ()
    ) -> None:
        if not isinstance(prefix, str):
            raise ConfigError(f'Router(prefix={prefix!r}) is invalid: it must be a text. Write Router(prefix="shop.").')
        super().__init__({App: _without_app, Redis: _without_app}, None)
        self._prefix = prefix
        self._around = tuple(checked(middlewares))

    @property
    def dependencies(self) -> "Provider":
        """Not available: the app that includes the router resolves its dependencies.

        Raises:
            UsageError: always.
        """
        raise UsageError("a router has no dependencies of its own. Write app.dependencies.")

    def publisher(
        self, stream: str = "", *, maxlen: int | None = None, headers: dict[str, str] | None = None
    ) -> Publisher:
        """Publish what a handler of this router returns, through each app that includes it.

        Args:
            stream: key of the stream, without the prefix.
            maxlen: as for :meth:`App.publisher`.
            headers: as for :meth:`App.publisher`.

        Raises:
            ConfigError: an option is invalid.
        """
        self._check_open("the publisher")
        made = RouterPublisher(self, stream, maxlen, headers)
        made.stream = self._prefix + stream
        return made


class RouterPublisher(Publisher):
    """A publisher of handlers' results, for apps that include the router later."""

    async def publish(self, content: Any) -> str:  # noqa: ARG002 - as an app's
        """Not available: a router has no server.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"publish() to {self.stream!r} by a router is invalid: a router has no server. Write app.publish(...); a "
            "handler gets the app by a parameter annotated App."
        )


def _without_app() -> Never:
    raise UsageError("a router runs no handlers. Include it in an app.")
