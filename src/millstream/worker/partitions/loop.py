"""One handler on a partitioned stream; the other parts of the process use it like any other subscriber.

It has a loop for each partition that it owns. These share the handler's ``concurrency``, the bound of the read-ahead,
the threads and the counters; the registry has one row for all of them.
"""

import asyncio
import copy
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

from millstream.client.line import Line, passes
from millstream.client.partitions import lease as leases
from millstream.client.partitions.layout import PartitionLayout
from millstream.client.partitions.lease import PartitionLease
from millstream.errors import ConfigError
from millstream.worker.handlers.subscription import Subscription
from millstream.worker.limits.limiter import Limiter
from millstream.worker.model.errors import FatalError
from millstream.worker.model.histogram import Durations
from millstream.worker.model.pause import HandlerPause
from millstream.worker.model.stats import SubscriberStats
from millstream.worker.partitions.ownership import Ownership
from millstream.worker.settlement import spare
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.read_fence import ReadFence
from millstream.worker.settlement.running import Work
from millstream.worker.subscriber.loop import Shared, SubscriberLoop, SubscriberProgress, membership, threads_for
from millstream.worker.subscriber.places import CommonPlaces, Owned, SharedPlaces

_WORST_FIRST = ("failed", "stuck", "unreachable", "starting", "paused", "full", "reading")


class PartitionedLoop:
    """Runs one subscription to a partitioned stream in this process."""

    def __init__(self, subscription: Subscription, layout: PartitionLayout, shared: Shared) -> None:
        _check(subscription, layout)
        # A copy, since the key set below is for this run only, and the app may be started again
        self.subscription = copy.copy(subscription)
        if subscription.key is None and not subscription.batch:
            self.subscription.key = layout.by
        self._shared = shared
        self.member = membership(
            Membership, subscription, subscription.consumer()[0], shared, shared.line, shared.private
        )
        self._threads = threads_for(subscription)
        self._places = CommonPlaces(subscription.concurrency, shared.gate)
        self._durations: Durations | None = None
        self._last_error: dict[str, Any] | None = None
        self._stopping = False
        self._quiet = False
        self.paused: HandlerPause | None = None
        self.overrun: Callable[[Subscription, Work], None] = lambda *_: None
        self.ownership = Ownership(layout, self.member, shared.line, self._loop_of, self._make_groups)

    def _loop_of(
        self, lease: PartitionLease, lost: Callable[[], None], renew: Callable[[], Awaitable[None]]
    ) -> SubscriberLoop:
        """Return the loop of one partition."""
        whole = self.subscription
        own = copy.copy(whole)
        own.sub = dataclasses.replace(whole.sub, stream=lease.stream, group=whole.group)
        # Each partition has a dead-letter stream in its own slot, unless the code sets a single one for all
        own.dead = f"{lease.stream}:dead" if whole.dead == f"{whole.sub.stream}:dead" else whole.dead

        def reads(line: Line) -> ReadFence:
            return ReadFence(line, lease, lost)

        owned = Owned(lease, self.member, SharedPlaces(self._places), self._threads, reads, renew)
        loop = SubscriberLoop(own, self._shared, owned=owned)
        if self._durations is not None:
            loop.measure(self._durations)
        loop.pause(self.paused)
        loop.overrun = self.overrun
        return loop

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> Sequence[SubscriberLoop]:
        """The loops of the owned partitions."""
        return [part.loop for part in list(self.ownership.parts.values())]

    @property
    def limiters(self) -> list[Limiter]:
        """The limiters of the owned partitions."""
        return [limiter for part in self.parts for limiter in part.limiters]

    @property
    def partitions(self) -> list[int]:
        """Numbers of the owned partitions."""
        numbers = (part.lease.number for part in self.ownership.parts.values())
        return sorted({number for number in numbers if number is not None})

    @property
    def held_up(self) -> list[dict[str, Any]]:
        """Keys whose entries wait for a failed entry, each with its partition; the longest wait first."""
        found = [
            {"stream": part.member.stream, **one._asdict()}
            for part in self.parts
            if part.holding is not None
            for one in part.holding.held_up()
        ]
        return sorted(found, key=lambda one: one["since_ms"] or 0)

    @property
    def held_seconds(self) -> float:
        """Seconds since the first failure of the entry that delays its key the longest; 0 without any."""
        times = [since for one in self.held_up if (since := one["since_ms"]) is not None]
        return max((self.member.clock.now().wall - min(times)) / 1000, 0.0) if times else 0.0

    @property
    def whole(self) -> bool:
        """True if this process owns, and reads, every partition."""
        return self.ownership.whole and all(part.progress().doing != "starting" for part in self.parts)

    @property
    def stats(self) -> SubscriberStats:
        """The counters."""
        return self.member.stats

    @property
    def idle_ms(self) -> int:
        """Milliseconds since the last reply to the reader that waits the longest."""
        return max((part.idle_ms for part in self.parts), default=0)

    @property
    def buffered(self) -> int:
        """Number of entries that were read and have not begun."""
        return sum(part.buffered for part in self.parts)

    @property
    def busy(self) -> bool:
        """True while any entry is held."""
        return any(part.busy for part in self.parts)

    @property
    def in_hand(self) -> int:
        """Number of held entries."""
        return sum(part.in_hand for part in self.parts)

    @property
    def last_error(self) -> dict[str, Any] | None:
        """The last failure of a run in a partition owned now or before."""
        errors = [error for part in self.parts if (error := part.last_error) is not None]
        known = [self._last_error] if self._last_error is not None else []
        self._last_error = max([*known, *errors], key=lambda error: error["at_ms"], default=None)
        return self._last_error

    def entries(self) -> list[Held]:
        """Return the held entries."""
        return [held for part in self.parts for held in part.entries()]

    def durations(self) -> Durations:
        """Return the durations of the runs since the first call."""
        if self._durations is None:
            self._durations = Durations()
            for part in self.parts:
                part.measure(self._durations)
        return self._durations

    def longest_ms(self) -> int:
        """Return the milliseconds since the longest current run was first seen."""
        return max((part.longest_ms() for part in self.parts), default=0)

    def progress(self) -> SubscriberProgress:
        """Return the progress of this subscriber: that of its partition with the worst state."""
        doing = [part.progress().doing for part in self.parts]
        if self._stopping:
            found = "stopping"
        elif self.ownership.failed.done():
            found = "failed"
        elif not self.ownership.looked:
            found = "starting"
        else:
            found = next((one for one in _WORST_FIRST if one in doing), "paused" if self._quiet else "reading")
        return SubscriberProgress(self.subscription.name, found, self.idle_ms)

    def undone(self) -> str:
        """Return the unsettled entries as text for people; empty without any."""
        if not self.ownership.looked:
            return "partitions are being taken"
        return "; ".join(f"{part.member.stream}: {undone}" for part in self.parts if (undone := part.undone()))

    # -- start, pause, stop -----------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Check that the server can fence partitions, and create the group in each of them."""
        member = self.member
        key = leases.owner_key(self.ownership.layout.keys[0], member.group)
        async with self._shared.guard:
            watched, _ = await self._shared.private.near(key).calls((("WATCH", key), ("UNWATCH",)))
        replies = await self._shared.line.calls((leases.SCRIPT.command((key,), ("probe",), whole=True),))
        for reply, needs in ((watched, "WATCH"), (replies[0], "EVAL")):
            if isinstance(reply, ResponseError) and not passes(reply):
                raise ConfigError(
                    f"{self.subscription.name}: the partitions of {member.stream!r} need {needs}, which the server "
                    f"refuses: {reply}. Allow it with EVALSHA, MULTI, EXEC and the keys millstream:*."
                )
        await self._make_groups(self.ownership.layout)

    async def _make_groups(self, layout: PartitionLayout) -> None:
        """Create the group in each partition of a layout, the oldest generation first."""
        start, group = self.subscription.sub.start, self.member.group
        for one in layout.generations:
            keys = () if one.finished else one.keys
            made = await self._shared.line.calls([("XGROUP", "CREATE", key, group, start, "MKSTREAM") for key in keys])
            for key, reply in zip(keys, made, strict=True):
                if str(reply).startswith("BUSYGROUP"):
                    start = "0"  # the group is older than the next generation, so it needs all of its entries
                elif isinstance(reply, ResponseError) and not passes(reply):
                    raise FatalError(f"cannot make group {group} of {key}: {reply}")

    def start(self) -> None:
        """Start taking partitions; the spare process takes none."""
        if not spare.is_here():
            self.ownership.start()

    def quieten(self, quiet: bool) -> None:
        """Give up all partitions once the current runs have ended; with False, take partitions again."""
        self._quiet = quiet
        self.ownership.wanted = not quiet

    def pause(self, pause: HandlerPause | None) -> None:
        """Stop reading in all partitions, for a pause stored on the server; with None, continue."""
        self.paused = pause
        for part in self.parts:
            part.pause(pause)

    async def renew(self) -> None:
        """Renew the leases that are due now, for tests with a manual clock."""
        await self.ownership.renew_due()
        for part in self.parts:
            await part.renew()

    async def keep(self, milliseconds: int) -> None:
        """Extend the leases by this time, for tests with a manual clock."""
        await self.ownership.keep(milliseconds)

    async def done(self) -> None:
        """Wait until a partition's loop fails, and raise its error."""
        await asyncio.wait([self.ownership.failed])  # unlike an await, a cancellation does not cancel the future
        self.ownership.failed.result()

    async def stop(self, grace: float) -> bool:
        """Give up every partition, as a loop stops; return False if an outcome could not be stored."""
        self._stopping = True
        try:
            return await self.ownership.stop(grace)
        finally:
            failed = self.ownership.failed
            if not failed.done():
                failed.set_result(None)
            failed.exception()  # marks it as retrieved, so that asyncio does not log it
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)


#: A running subscriber.
Runner: TypeAlias = SubscriberLoop | PartitionedLoop


def _check(subscription: Subscription, layout: PartitionLayout) -> None:
    """Refuse options that are impossible on a partitioned stream."""
    if subscription.hold and subscription.key is None and layout.by is None:
        raise ConfigError(
            f"{subscription.name}: subscriber(hold=True) is invalid without a key. Write key= too, or partition "
            f"{layout.stream!r} by a field."
        )
    sub, name = subscription.sub, subscription.name
    for given, option in (
        (sub.no_ack, "StreamSub(no_ack=True)"),
        (sub.consumer is not None, "StreamSub(consumer=)"),
        (sub.start not in ("0", "$"), f"StreamSub(start={sub.start!r})"),
        (not subscription.hold and any(one.key for one in subscription.limits), "subscriber(limit=Limit(key=))"),
        (subscription.read != "both", f"subscriber(read={subscription.read!r})"),
    ):
        if given:
            raise ConfigError(
                f"{name}: {option} is invalid, since {sub.stream!r} is partitioned and each partition has one owner. "
                "Omit the option."
            )


def totals(loops: Iterable[Runner]) -> dict[str, dict[str, int]]:
    """Return the counters of several subscribers by name."""
    return {loop.subscription.name: loop.stats.as_dict() for loop in loops}
