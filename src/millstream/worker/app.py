"""The application registers subscribers by decorator, publishes entries, and runs the subscribers until it stops."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from millstream import times
from millstream.clock import Clock
from millstream.errors import ConfigError
from millstream.worker.handlers.middleware import Middleware
from millstream.worker.later.declaring import RecurringSchedules
from millstream.worker.process.run import run_in_process
from millstream.worker.process.start import start_patiently
from millstream.worker.runtime import AppRuntime
from millstream.worker.settlement.running import refuse_by_a_handler


class App(AppRuntime):
    """Subscribers of streams, and the way to publish to them.

    Args:
        url: URL of the server. None takes the environment variable ``MILLSTREAM_URL`` or ``REDIS_URL``, then a server
            on this machine.
        grace: time that running handlers get at a stop before they are cancelled, in seconds or as ``"2m"``.
        clock: the source of time.
        middlewares: middlewares around every run and every publish, outermost first; see
            :mod:`millstream.worker.handlers.middleware`.
        registry: True reports this worker to the server and follows the control channel; see
            :mod:`millstream.worker.registry.protocol`.
        reap_after: idle time, in seconds or as ``"1h"``, after which a consumer of the app's groups without pending
            entries is removed; None never removes one.
        blocked_after: time for which a handler may block the event loop, in seconds or as a text. After it, the log
            names the line, and the registry shows the worker as blocked. None switches this off (see
            :mod:`millstream.worker.registry.watchdog`).
        movers: True adds scheduled entries, of any app, to their streams when they are due, while this app's
            subscribers run.
        version: version of the application, such as a tag or a commit. ``millstream worker ls`` and the console show
            it, and the charts mark its first worker as a deploy. None takes the version of Millstream.

    Raises:
        ConfigError: a middleware is neither an instance of ``Middleware`` nor a function, ``blocked_after`` is not a
            time, or ``version`` is not a short text.
    """

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
        """Run the subscribers while the block runs, for tests and for embedding in another program.

        Args:
            url: URL of the server, for this block.
            grace: as for :meth:`stop`.
            clock: the source of time, for this block.
            watch: a middleware outside all others, for this block.
            patience: time for which the app tries to reach the server, in seconds or as ``"1m"``, with one line in the
                log. None tries without end, 0 tries once.

        Raises:
            Disconnected: the server could not be reached in that time.
            AccessDenied: the server refuses the login.
            UsageError: as for :meth:`start`, like its other errors.
        """
        given = None if patience is None else times.configured("App.running(patience=", patience, "s")
        limit = None if grace is None else times.configured("App.running(grace=", grace, "s")
        before = self._url, self._clock, self.middlewares  # the next run of this app may use another server
        self._url, self._clock = url or self._url, clock or self._clock
        if watch is not None:
            self.middlewares = (watch, *self.middlewares)
        try:
            await start_patiently(self.start, self.url, given)
            try:
                yield self
            finally:
                await self.stop(limit)
        finally:
            self._url, self._clock, self.middlewares = before

    def outbox(self, engine: Any) -> None:
        """Move the rows of a database's outbox to their streams while this app runs; see :mod:`millstream.outbox`.

        Any number of apps and relays may serve the same outbox; one at a time works.

        Args:
            engine: engine made by ``sqlalchemy.create_engine``, for PostgreSQL, MariaDB, MySQL or SQLite.

        Raises:
            ConfigError: ``engine`` is not such an engine, or SQLAlchemy is not installed.
        """
        try:
            from millstream.worker.outbox.relay import OutboxRelay  # noqa: PLC0415 - SQLAlchemy is optional
        except ModuleNotFoundError as missing:
            raise ConfigError("app.outbox() needs sqlalchemy. Run pip install 'millstream[outbox]'.") from missing
        relay = OutboxRelay(engine, self._sending)
        self.after_startup(relay.start)
        self.on_shutdown(relay.stop)

    @property
    def schedules(self) -> RecurringSchedules:
        """The recurring schedules of the server: put, remove, pause, resume and list them."""
        return RecurringSchedules(self._shared)

    def run(
        self, url: str | None = None, *, health: tuple[str, int] | None = None, health_allow: Iterable[str] = ()
    ) -> None:
        """Run in this process until SIGTERM or SIGINT, then raise SystemExit with the exit code.

        Args:
            url: URL of the server, if not the app's own.
            health: host and port for ``/healthz``, ``/readyz`` and ``/metrics``.
            health_allow: host names allowed in requests, besides addresses, loopback names and this machine's names.

        Raises:
            SystemExit: always, with the exit code.
            UsageError: a handler calls it.
        """
        refuse_by_a_handler("app.run()")
        if url is not None:
            self.url = url
        raise SystemExit(run_in_process(self, health=health, health_allow=health_allow))
