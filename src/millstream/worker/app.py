"""The application: subscribers registered by decorator, publishing, and running them until the stop."""

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
        url: the server; None takes the environment variable ``MILLSTREAM_URL`` or ``REDIS_URL``, then a server on
            this machine.
        grace: seconds, or a text such as ``"2m"``, that running handlers get at a stop, before they are cancelled.
        clock: the source of time.
        middlewares: around every run and every publish, the first outermost; see
            :mod:`millstream.worker.handlers.middleware`.
        registry: report this worker to the server, and follow its control channel, see
            :mod:`millstream.worker.registry.protocol`.
        reap_after: seconds, or a text such as ``"1h"``, after which consumers of our groups that are idle and hold
            nothing are removed; None never.
        blocked_after: seconds (or a text) a handler may block the event loop before the log has the line, and the
            registry shows the worker as blocked; None switches that off (see
            :mod:`millstream.worker.registry.watchdog`).
        movers: add entries that were published for later to their streams when they are due, whichever app published
            them, while this app's subscribers run.

    Raises:
        ConfigError: a middleware is neither an instance of ``Middleware`` nor a function, or ``blocked_after`` is not a
            time.
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
        """Run the subscribers as long as the block lasts; for tests and for embedding in another program.

        Args:
            url: the server, for this block.
            grace: as for :meth:`stop`.
            clock: the source of time, for this block.
            watch: a middleware outside all others, for this block.
            patience: seconds, or ``"1m"``, for which a server that cannot be reached yet is tried again, with one line
                in the log; None tries without end, 0 once.

        Raises:
            Disconnected: the server could not be reached in that time.
            AccessDenied: the server refuses the login.
            UsageError: as for :meth:`start`, like the others.
        """
        given = None if patience is None else times.configured("App.running(patience=", patience, "s")
        limit = None if grace is None else times.configured("App.running(grace=", grace, "s")
        before = self._url, self._clock, self.middlewares  # the next run of this app may have another server
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

        Any number of apps and relays may do so; one at a time works.

        Args:
            engine: of ``sqlalchemy.create_engine``, for PostgreSQL, MariaDB, MySQL or SQLite.

        Raises:
            ConfigError: it is not such an engine, or SQLAlchemy is not installed.
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
        """Run in this process until SIGTERM or SIGINT; raises SystemExit with the exit code.

        Args:
            url: the server, if not the app's own.
            health: host and port for ``/healthz``, ``/readyz`` and ``/metrics``.
            health_allow: names for requests, in addition to addresses, loopback names and this machine's.

        Raises:
            SystemExit: always, with the exit code.
            UsageError: a handler calls it.
        """
        refuse_by_a_handler("app.run()")
        if url is not None:
            self.url = url
        raise SystemExit(run_in_process(self, health=health, health_allow=health_allow))
