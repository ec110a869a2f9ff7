"""Tests of an app without a server and without waiting: the worker's own loop over the engine in this process.

::

    from millstream.worker import testing

    async def test_a_bill_is_retried() -> None:
        async with testing.run(app, raise_errors=False) as broker:
            await broker.publish("orders", {"id": 7})
            await broker.run_until_idle()          # delivered, failed, waiting for its retry
            await broker.advance(10)               # ten seconds, at once
            assert broker.client.xlen("bills") == 1

Nothing is simulated: entries, groups, claims, retries and dead letters are those of the engine and the loop. Only the
clock of the server and the worker is manual. If a handler itself waits (``asyncio.sleep``, a socket), that takes real
time, and its ``time.time()`` is the machine's. The pytest fixture ``millstream_worker`` of :mod:`millstream.testing`
does the same on ``millstream_url``.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from millstream import times
from millstream.client.connect import sync_client
from millstream.client.later import schedule
from millstream.client.manual import StoreClock, manual_store
from millstream.errors import UsageError
from millstream.worker.app import App
from millstream.worker.handlers.message import Message
from millstream.worker.handlers.middleware import Middleware, Run, RunBatch
from millstream.worker.model.answers import JobCancelledError, Nack, Reject, answer
from millstream.worker.partitions.loop import PartitionedLoop, Runner
from millstream.worker.partitions.ownership import Ownership
from millstream.worker.subscriber.loop import SubscriberLoop

if TYPE_CHECKING:
    import redis

_TURNS = 8
_PENDING_LIMIT = 100_000
_LOOK = 0.001
_SLOT_STEP = 10_000
"""Milliseconds between two renewals of a limit's slots."""


class StillBusyError(AssertionError):
    """The app did not become idle in time; the text names its remaining work."""


class _Watch(Middleware):
    """Collects the exceptions of handlers, except Nack and Reject, which are not errors."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    async def run(self, call_next: Run, msg: Message) -> Any:
        return await self._kept(call_next(msg))

    async def run_batch(self, call_next: RunBatch, msgs: Sequence[Message]) -> Any:
        return await self._kept(call_next(msgs))

    async def _kept(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except BaseException as error:
            if not isinstance(answer(error), Nack | Reject | JobCancelledError | asyncio.CancelledError):
                self.errors.append(error)
            raise


class Broker:
    """An app that runs under a test's control.

    Args:
        app: the app passed to :func:`run`, which makes brokers.
        url: URL of the app's store.
        clock: clock of app and store.
        client: client of the store, for the test.
        watch: collects the exceptions of handlers.

    Attributes:
        app: the app.
        url: URL of the app's store.
        clock: the time of store and worker; :meth:`advance` moves it.
        client: a blocking redis-py client of the store, with text for replies; bytes that are not UTF-8, as in
            FastStream's envelopes, are decoded by ``surrogateescape``.
        errors: exceptions that handlers have raised so far, except Nack and Reject.
    """

    def __init__(self, app: App, url: str, clock: StoreClock, client: "redis.Redis", watch: _Watch) -> None:
        self.app = app
        self.url = url
        self.clock = clock
        self.client = client
        self.errors = watch.errors
        self._raised = 0
        self.raise_errors = True

    async def publish(self, stream: str, content: Any, **options: Any) -> str:
        """Add one entry; see :meth:`App.publish`.

        Args:
            stream: key of the stream.
            content: content of the entry.
            options: as for :meth:`App.publish`.
        """
        return await self.app.publish(stream, content, **options)

    async def run_until_idle(self, patience: float = 10.0) -> None:
        """Wait until the app has nothing to do at the current time.

        Then all entries of the streams have been read, no handler runs, every outcome is stored, and no pending entry
        is due.

        Args:
            patience: real seconds until the test fails.

        Raises:
            StillBusyError: the app still works; the text names the work.
            Exception: the first exception of a handler since the last call, unless ``raise_errors`` is False.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        quiet = 0
        for one in self.app.loops:
            for part in one.parts:
                await part.common.cancels.round()
        while quiet < 2:  # two checks with turns in between, since a reply may be on its way to the reader
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            reasons = [reason for one in self.app.loops if (reason := self._undone(one))]
            quiet = 0 if reasons else quiet + 1
            if reasons:
                if loop.time() > deadline:
                    raise StillBusyError(f"not idle after {patience:g} s: {'; '.join(reasons)}")
                await asyncio.sleep(_LOOK)  # handlers and batches of acks take real time
        self._raise()

    async def advance(self, seconds: float | str) -> None:
        """Move the clock, as fast as possible, and do all work that becomes due; leases are renewed as in production.

        Args:
            seconds: time to move the clock by, in seconds or as a text such as ``"10m"``.

        Raises:
            StillBusyError: see :meth:`run_until_idle`.
            Exception: see :meth:`run_until_idle`.
        """
        left = round(times.configured("advance(", seconds, "s") * 1000)
        await self.run_until_idle()  # first finish the work of the current time
        await self.app.publish_due()  # a recurring schedule may not have placed its first firing
        while left > 0:
            part = min(self._step(left), left)
            for one in self.app.loops:
                if isinstance(one, PartitionedLoop):
                    await one.keep(part)
            self.clock.advance(part)
            left -= part
            await self.app.publish_due()
            for one in self.app.loops:
                await one.renew()
            if any(map(self._undone, self.app.loops)):
                await self.run_until_idle()
        await self.run_until_idle()

    async def crash_owner(self, partition: int) -> None:
        """Let the owner of a partition vanish as in a crash: no outcome of its runs is stored.

        The next owner, with a higher :attr:`Message.fence`, runs its entries again. The handler's code cannot vanish
        here, so it gets ``CancelledError``.

        Args:
            partition: number of the partition, in every partitioned stream that the app reads.
        """
        for ownership, number in self._owners(partition):
            await ownership.crash(number)

    async def freeze(self, partition: int) -> None:
        """Let the lease of a partition's owner end while its handlers run, as if the process was frozen for that long.

        Another owner took the partition with its entries meanwhile, and is gone. So a late outcome and a late
        :func:`millstream.once` are refused. When the clock has passed ``min_idle_time``, the entry runs again with a
        higher :attr:`Message.fence`.

        Args:
            partition: number of the partition, in every partitioned stream that the app reads.
        """
        for ownership, number in self._owners(partition):
            await ownership.outlive(number)

    def _owners(self, partition: int) -> list[tuple[Ownership, int]]:
        found = [
            (loop.ownership, number)
            for loop in self.app.loops
            if isinstance(loop, PartitionedLoop)
            for number, part in loop.ownership.parts.items()
            if part.lease.number == partition
        ]
        if not found:
            raise UsageError(f"no subscriber owns a partition {partition}. Call run_until_idle() first.")
        return found

    def _step(self, left: int) -> int:
        """Return the milliseconds in which nothing becomes due; ``left`` if nothing waits.

        While a handler holds an entry its lease is renewed, in the same steps as in production.
        """
        permits = [wait for one in self.app.loops for limiter in one.limiters if (wait := limiter.wait_ms())]
        quiet = (self._quiet_for(part, left) for one in self.app.loops for part in one.parts)
        return min([self._due_in(left), *permits, *quiet])

    def _due_in(self, left: int) -> int:
        """Return the milliseconds until the first schedule is due."""
        now, soonest = self.clock.now().wall, left
        for stream in self.client.smembers(schedule.INDEX):
            rows: Any = self.client.zrange(schedule.due_key(str(stream)), 0, 0, withscores=True)
            soonest = min([soonest, *(max(int(due) - now, 1) for _, due in rows)])
        return soonest

    def _quiet_for(self, loop: SubscriberLoop, left: int) -> int:
        min_idle = loop.subscription.min_idle
        if loop.member.held:
            return max(min(min_idle // 4, _SLOT_STEP if loop.limiter is not None else min_idle), 1)
        try:
            rows: Any = self.client.xpending_range(
                loop.subscription.sub.stream, loop.subscription.group, "-", "+", _PENDING_LIMIT
            )
        except ResponseError:
            return max(min_idle // 4, 1)  # the group is gone, and will be created again
        # One millisecond before the first claim, since a distant retry is held again before that
        return max(min((min_idle - row["time_since_delivered"] for row in rows), default=left + 1) - 1, 1)

    def _raise(self) -> None:
        fresh, self._raised = self.errors[self._raised :], len(self.errors)
        if fresh and self.raise_errors:
            if len(fresh) > 1:
                fresh[0].add_note(f"{len(fresh) - 1} more runs failed; see errors")
            raise fresh[0]

    def _undone(self, runner: Runner) -> str:
        """Return the remaining work of a subscriber or its partitions as text, which first takes its partitions."""
        if isinstance(runner, PartitionedLoop) and not runner.whole:
            return f"{runner.subscription.name}: partitions are being taken"
        return next((reason for part in runner.parts if (reason := self._busy(part))), "")

    def _busy(self, loop: SubscriberLoop) -> str:
        """Return the remaining work of one loop as text; empty if there is none."""
        name, subscription = loop.subscription.name, loop.subscription
        stream, group = subscription.sub.stream, subscription.group
        undone = loop.undone()
        if undone:
            return f"{name}: {undone}"
        try:
            groups: Any = self.client.xinfo_groups(stream)
            last = next((row["last-delivered-id"] for row in groups if row["name"] == group), None)
            if last is None:
                return f"{name}: the group {group} is gone and will be created again"
            limited = loop.limiter is not None and loop.limiter.wait_ms()
            reads = subscription.read != "claimed" and not limited
            if reads and self.client.xrange(stream, f"({last}", count=1):
                return f"{name}: entries of {stream} are not read yet"
            rows: Any = self.client.xpending_range(stream, group, "-", "+", _PENDING_LIMIT)
        except ResponseError as error:
            return f"{name}: {error}"
        left = loop.left() | loop.kept_back()
        for row in rows:
            # It was delivered, but the loop does not hold it yet
            if row["consumer"] == loop.member.consumer and row["message_id"] not in left:
                return f"{name}: {row['message_id']} is on its way"
            if subscription.claims and row["time_since_delivered"] >= subscription.min_idle:
                return f"{name}: {row['message_id']} is due"
        return ""


@contextlib.asynccontextmanager
async def run(
    app: App,
    *,
    raise_errors: bool = True,
    url: str | None = None,
    clock: StoreClock | None = None,
    partitions: Mapping[str, tuple[int, str | None]] | None = None,
) -> AsyncIterator[Broker]:
    """Run the app over an empty store in memory, with a manual clock.

    Args:
        app: the app under test; its URL, clock and middlewares are restored afterwards.
        raise_errors: False does not raise handlers' errors, so that a test can check retries and dead letters.
        url: URL of a store that uses ``clock``, instead of a new store.
        clock: clock of the store at ``url``.
        partitions: streams to partition first, each with the number of partitions and the field of the key.
    """
    watch = _Watch()
    with contextlib.ExitStack() as stack:
        time = clock or StoreClock()
        where = url or stack.enter_context(manual_store(time))
        client = stack.enter_context(sync_client(where, decode_responses=True, encoding_errors="surrogateescape"))
        if partitions:
            async with App(where) as before:
                for stream, (number, by) in partitions.items():
                    await before.partition(stream, number, by=by)
        async with app.running(where, grace=1.0, clock=time, watch=watch):
            broker = Broker(app, where, time, client, watch)
            broker.raise_errors = raise_errors
            yield broker
