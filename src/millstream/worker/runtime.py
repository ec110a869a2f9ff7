"""A running application: its subscribers from start to stop, and their state."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from redis.asyncio import Redis

from millstream import times
from millstream.client.line import Line
from millstream.client.open import open_line
from millstream.client.partitions.declared import find_layout
from millstream.client.partitions.layout import PartitionLayout, logical
from millstream.client.url import CLUSTERS
from millstream.clock import Clock, SystemClock
from millstream.errors import ConfigError, UsageError
from millstream.logs import logger
from millstream.worker.handlers.calling import mend_futures
from millstream.worker.handlers.middleware import Middleware
from millstream.worker.later.declaring import SERVER_TIME, Declaring
from millstream.worker.later.mover import Mover
from millstream.worker.later.scheduler import Scheduler
from millstream.worker.model.stats import in_words
from millstream.worker.partitions.loop import PartitionedLoop, Runner, totals
from millstream.worker.publishing import Publishing
from millstream.worker.registering import run_all_hooks, run_hooks
from millstream.worker.registry import watchdog
from millstream.worker.registry.eviction import warn_of_eviction
from millstream.worker.registry.heartbeat import Heartbeat
from millstream.worker.registry.overrun import Overrun
from millstream.worker.registry.reaper import DEFAULT_AFTER
from millstream.worker.settlement import spare
from millstream.worker.settlement.running import AT_WORK, Work, refuse_by_a_handler
from millstream.worker.subscriber.isolation import IsolationGate
from millstream.worker.subscriber.loop import Shared, SubscriberLoop, SubscriberProgress
from millstream.worker.subscriber.standstill import Standstill

log = logger("millstream.worker")

_VERSION = 60  # largest number of characters of an app's version


class AppRuntime(Declaring, Publishing):
    """An application that starts, runs and stops; :class:`millstream.App` has the arguments."""

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
        movers: bool = True,
        version: str | None = None,
    ) -> None:
        Publishing.__init__(self, url, middlewares)
        own = {kind: lambda: self for kind in type(self).__mro__ if issubclass(kind, AppRuntime)}
        Declaring.__init__(self, {**own, Redis: lambda: self.client}, lambda: self.url)
        self.grace = times.configured("App(grace=", grace, "s")
        self.registry = registry
        self.reap_after = None if reap_after is None else times.configured("App(reap_after=", reap_after, "s")
        if blocked_after is not None:
            blocked_after = times.configured("App(blocked_after=", blocked_after, "s")
            if blocked_after <= 0:
                raise ConfigError(f"App(blocked_after={blocked_after!r}) is invalid. Write seconds above 0, or None.")
        self.blocked_after = blocked_after
        self.movers = movers
        if version is not None and (not isinstance(version, str) or not 0 < len(version) <= _VERSION):
            raise ConfigError(f"App(version={version!r:.99}) is invalid. Write a text of 1 to {_VERSION} characters.")
        self.version = version
        self._mover: Mover | None = None
        self._scheduler: Scheduler | None = None
        self._heartbeat: Heartbeat | None = None
        self._overrun: Overrun | None = None
        self._ending: Heartbeat | None = None  # Heartbeat during a stop
        self._clock = clock or SystemClock()
        self._starter: Work | None = None  # entry of another app whose handler started this one
        self._hooked = False  # True after the startup hooks have begun
        self._reading = False
        self._loops: list[Runner] = []  # kept after a stop, for their counters

    @property
    def loops(self) -> tuple[Runner, ...]:
        """The subscribers that run in this process, or ran until the last stop."""
        return tuple(self._loops)

    async def start(self) -> None:
        """Connect, create the groups, run the startup hooks and begin to read; unlike :meth:`running`, try once.

        Raises:
            UsageError: it runs already.
            ConfigError: on a cluster, a stream and its dead-letter stream are not in one slot. Or a function with a
                publisher has no subscriber, or the server does not have the URL's database.
            Disconnected: the server cannot be reached.
            FatalError: a group cannot be created.
        """
        if self._private is not None:
            raise UsageError("this app is running already")
        self._check_publishers()
        mend_futures()
        self._starter = AT_WORK.get()
        SERVER_TIME.set(self._server_time)
        line, private, guard = self._shared(), open_line(self.url), asyncio.Lock()
        self._private, self._loops, self._kept = private, [], asyncio.get_running_loop()
        try:
            layouts = await self._layouts(line)
            if self.url.startswith(CLUSTERS):
                self.check_slots(partitioned=layouts)
            for subscription in self._subscriptions:
                for own in subscription.middlewares:
                    own.connects(self.url)
            shared = Shared(self.url, line, private, guard, IsolationGate(), self._clock, self.middlewares)
            self._loops = [
                PartitionedLoop(subscription, layout, shared)
                if (layout := layouts.get(subscription.sub.stream)) is not None
                else SubscriberLoop(
                    subscription,
                    shared,
                    siblings=[one.group for one in self._subscriptions if one.sub.stream == subscription.sub.stream],
                )
                for subscription in self._subscriptions
            ]
            # All groups first: if one cannot be created, the start fails before any entry is read
            for loop in self._loops:
                await loop.prepare()
            await warn_of_eviction(line)
            self._hooked = True
            await run_hooks(self._hooks["on_startup"])
            self._heartbeat = heartbeat = Heartbeat(
                line,
                self._loops,
                self._clock,
                listed=self.registry,
                reap_after=self.reap_after,
                url=self.url,
                version=self.version,
                blocked_after=self.blocked_after,
                standstill=(standstill := Standstill(self.url, self._loops)),
            )
            self._overrun = Overrun(standstill, self._loops, self.grace)
            await self._heartbeat.begin()
            for loop in self._loops:
                loop.start()
            self._heartbeat.start()
            if self.movers:
                self._mover = mover = Mover(lambda: line, lambda: heartbeat.scheduled, self._sending().hand_over)
                self._mover.start()
                self._scheduler = Scheduler(
                    lambda: line, self._recurring.values(), self._on_schedule, lambda: bool(mover.counts), self._clock
                )
                self._scheduler.start()
            self._reading = True
            await run_hooks(self._hooks["after_startup"])
        except BaseException:  # a cancelled start must also leave no connection and no task
            await self.stop(0)
            raise

    async def _layouts(self, line: Line) -> dict[str, PartitionLayout]:
        """Return the layouts of the streams that are partitioned."""
        found: dict[str, PartitionLayout] = {}
        for stream in dict.fromkeys(one.sub.stream for one in self._subscriptions):
            layout = await find_layout(line, stream)
            if layout is not None:
                found[stream] = layout
                continue
            for one in self._subscriptions:
                if one.sub.stream == stream and one.hold:
                    raise ConfigError(
                        f"{one.name}: subscriber(hold=True) is invalid, since {stream!r} is not partitioned and others "
                        f"may read it. Write `millstream stream partition {stream} 16`, or omit hold=."
                    )
            # The name looks like a partition's, but only the layout of the whole stream can confirm it
            if (whole := logical(stream)) and (above := await find_layout(line, whole)) and above.has(stream):
                log.warning(
                    "%s is a partition of %r, and this subscriber reads it outside of the division: another group's "
                    "owner is not asked. Write StreamSub(%r) to share all partitions.",
                    stream,
                    whole,
                    whole,
                )
        return found

    async def stop(self, grace: float | str | None = None) -> bool:
        """Finish or release all entries, then disconnect; return False if an entry could not be finished in time.

        Raises:
            UsageError: a handler calls it, which would wait for itself.
        """
        if AT_WORK.get() is not self._starter:
            refuse_by_a_handler("app.stop()")
        seconds = self.grace if grace is None else times.configured("App.stop(grace=", grace, "s")
        private, self._private = self._private, None  # at once, so that a second stop does nothing
        running = self._loops if private is not None else []
        heartbeat, self._heartbeat = self._heartbeat, None
        later, self._mover, self._scheduler = (self._scheduler, self._mover), None, None
        # These add entries to streams, but no new entries may arrive during the stop
        for part in later:
            if part is not None:
                await part.stop()
        self._ending = heartbeat
        if self._overrun is not None:
            await self._overrun.stop()
            self._overrun = None
        if heartbeat is not None:
            await heartbeat.stopping()
        # A failing subscriber must not prevent the others from releasing their entries
        results = await asyncio.gather(*(loop.stop(seconds) for loop in running), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                log.error("a subscriber did not stop cleanly", exc_info=result)
        if self._reading:
            log.info("stopped: %s", "; ".join(f"{name}: {in_words(done)}" for name, done in self.stats().items()))
        hooked = self._hooked
        try:
            if hooked:
                await run_all_hooks(self._hooks["on_shutdown"])
        finally:
            self._reading = self._hooked = False
            if heartbeat is not None:
                await heartbeat.end()
                self._ending = None
            if private is not None:
                await private.close()
            self._kept = None
            await self.close()
            if hooked:
                await run_all_hooks(self._hooks["after_shutdown"])
        return all(result is True for result in results)

    async def publish_due(self) -> None:
        """Add the scheduled entries that are due, which also happens by itself; for tests that control the clock."""
        if self._scheduler is not None and self._mover is not None:
            await self._mover.search()
            await self._scheduler.turn()
            await self._mover.turn()

    def _server_time(self) -> int:
        return self._clock.wall_time() + (0 if self._scheduler is None else self._scheduler.ahead_ms)

    def _on_schedule(self, stream: str) -> None:
        if self._mover is not None:
            self._mover.watch_soon(stream)

    def leave(self) -> None:
        """Release the entries of a process that ends with a blocked event loop; called in another thread."""
        heartbeat = self._heartbeat or self._ending
        if heartbeat is not None:
            heartbeat.leave()

    async def wait(self) -> None:
        """Wait until a subscriber fails.

        Raises:
            FatalError: the reason of the failure.
        """
        await asyncio.gather(*(loop.done() for loop in self._loops))

    async def dismissed(self) -> None:
        """Wait until ``millstream worker drain`` or ``stop`` has ordered this process to end.

        :meth:`run` and ``millstream run`` end then. A program that runs the app in :meth:`running` must call this
        method to notice the order; by then the app has stopped reading.
        """
        assert self._heartbeat is not None, "the app is not running"
        if spare.is_here():
            await spare.unneeded(self._heartbeat.dismissed, lambda: any(one.busy for one in self._loops))
        else:
            await self._heartbeat.dismissed.wait()

    def stats(self) -> dict[str, dict[str, int]]:
        """Return the counters of each subscriber in this process, by the handler's name."""
        return totals(self._loops)

    def health(self) -> dict[str, int]:
        """Return the milliseconds since the last reply to each subscriber's reader, by the handler's name."""
        return {loop.subscription.name: loop.idle_ms for loop in self._loops}

    def progress(self) -> list[SubscriberProgress]:
        """Return the progress of each subscriber."""
        return [loop.progress() for loop in self._loops]

    @property
    def parts(self) -> str:
        """Key of the list of parts in a report of ``/healthz``."""
        return "subscribers"

    @property
    def blocked(self) -> watchdog.StoppedLoop | None:
        """The line at which a handler blocks the event loop, as another thread sees it; None while the loop runs."""
        return None if self._heartbeat is None else self._heartbeat.blocked

    @property
    def state(self) -> str:
        """The state of this process: starting, running, quiet, draining or stopping."""
        if self._heartbeat is None:
            return "stopping" if self._reading else "starting"
        return self._heartbeat.state

    async def metrics(self, accept: str = "", *, consumers: bool = True) -> tuple[bytes, str]:
        """Return the reply to a Prometheus scrape, and its content type.

        Args:
            accept: the scraper's ``Accept`` header, which may request OpenMetrics.
            consumers: True includes series for each consumer of the groups.

        Raises:
            MetricsError: prometheus-client is not installed.
        """
        from millstream.worker.monitoring.prometheus import scrape  # noqa: PLC0415 - prometheus-client is optional

        sender = self._senders.get(asyncio.get_running_loop())
        line = None if sender is None else sender.line
        return await scrape(self._loops, line, self.url, accept, (self._mover, self._scheduler), consumers=consumers)
