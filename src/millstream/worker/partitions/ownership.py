"""The ownership of one member: it takes partitions, renews their leases, runs a loop for each, and gives them up.

Members have no leader and no barrier. At each beat every member reports its partitions to the others and reads theirs
(:mod:`millstream.worker.partitions.division`). If that fails, each keeps its partitions: only the division stops. If a
lease cannot be renewed, or another member has it, its loop ends at once and gives no entries back.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from redis.exceptions import RedisError, ResponseError

from millstream.client.leases import LeasePlan
from millstream.client.line import Disconnected, Line
from millstream.client.partitions import lease as leases
from millstream.client.partitions.drained import to_read
from millstream.client.partitions.layout import MOST, PartitionLayout
from millstream.client.partitions.lease import PartitionLease
from millstream.errors import MillstreamError
from millstream.worker.model.errors import LeaseLost
from millstream.worker.partitions.division import Division
from millstream.worker.settlement.consumer import Membership
from millstream.worker.subscriber.loop import SubscriberLoop
from millstream.worker.tasks import cancel_all

log = logging.getLogger("millstream.worker")

#: Longest and shortest seconds between two beats, and number of members for each second between them.
_BEAT, _SHORTEST, _MEMBERS_A_SECOND = 1.0, 0.02, 200
#: Seconds for a loop to end without urgency: its runs end by themselves.
_PATIENT = 365 * 86_400.0


@dataclass(slots=True, eq=False)
class OwnedPart:
    """A partition that this member owns."""

    lease: PartitionLease
    loop: SubscriberLoop
    ending: asyncio.Event = field(default_factory=asyncio.Event)  # Set when the partition must be given up, or is lost
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    grace: float = _PATIENT  # Seconds for its runs to end after it is given up
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class OwnershipCounts:
    """Counters of one member."""

    taken: int = 0  # Number of partitions taken
    given: int = 0  # Number of partitions given up
    lost: int = 0  # Number of partitions whose lease expired or passed to another member


class Ownership:
    """The partitions of one handler in this process."""

    def __init__(
        self,
        layout: PartitionLayout,
        member: Membership,
        line: Line,
        make: Callable[[PartitionLease, Callable[[], None], Callable[[], Awaitable[None]]], SubscriberLoop],
        changed: Callable[[PartitionLayout], Awaitable[None]],
    ) -> None:
        self.layout = layout
        self._changed = changed  # Creates the group in the new streams of a layout
        self._keys: dict[int, str] = {}  # Partitions to read now
        self._member = member
        self._line = line  # Connection to all nodes, for leases
        self._make = make
        self._lasts = member.min_idle
        self._plan = LeasePlan.known(member.min_idle)
        self._tasks: list[asyncio.Task[None]] = []
        self._division = Division((), member.consumer)
        self._members = 1
        self._warned = False
        self._free_since: dict[int, float] = {}  # Partition that no member owns -> time of the first look that saw it
        self.wanted = True  # False while it must not own any partition
        self.parts: dict[int, OwnedPart] = {}
        self.counts = OwnershipCounts()
        self.looked = False  # True after the first attempt to find the other members
        self.clean = True  # True if all outcomes of all partitions that were given up are stored
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # Fails when a loop fails

    @property
    def whole(self) -> bool:
        """True if this member owns all partitions that must be read."""
        return bool(self._keys) and self.parts.keys() == self._keys.keys()

    @property
    def unowned_seconds(self) -> float:
        """Longest time for which a partition has had no owner, as this member sees it."""
        free = [since for number, since in self._free_since.items() if number not in self.parts]
        return max((self._member.clock.mono_time() - since for since in free), default=0) / 1000

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start taking partitions."""
        self._tasks = [
            asyncio.create_task(self._repeat(self.renew_due, lambda: self._plan.period), name="millstream-leases"),
            asyncio.create_task(self._repeat(self.look, self._pause), name="millstream-division"),
        ]

    async def stop(self, grace: float) -> bool:
        """Give up all partitions; return False if an outcome could not be stored."""
        tasks, self._tasks = self._tasks, []
        renewing, dividing = tasks[:1], tasks[1:]
        await cancel_all(dividing)
        await self._leave()
        parts = list(self.parts.values())
        self._give_up(parts, grace)
        await asyncio.gather(*(part.task for part in parts if part.task is not None), return_exceptions=True)
        await cancel_all(renewing)
        return self.clean

    async def _repeat(self, work: Callable[[], Awaitable[None]], pause: Callable[[], float]) -> None:
        while True:
            try:
                await work()
            except (MillstreamError, RedisError) as error:
                if not self._warned and not isinstance(error, Disconnected):
                    self._warned = True
                    log.warning("%s: partitions are not divided by this process: %s", self._member.stream, error)
            await asyncio.sleep(pause())

    def _pause(self) -> float:
        beat = max(min(self._lasts / 6_000, _BEAT), _SHORTEST)
        return max(beat, self._members / _MEMBERS_A_SECOND) * (0.9 + 0.2 * self._member.chance.random())

    # -- dividing ---------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Run one beat: meet the other members, give up the surplus, and take free partitions."""
        member, keeps = self._member, [part for part in self.parts.values() if not part.ending.is_set()]
        if not self.wanted:
            self._give_up(keeps, _PATIENT)
            await self._leave()
            return
        owned = frozenset(number for number, part in self.parts.items() if part in keeps)
        try:
            members, layout = await leases.meet(
                self._line, member.stream, member.group, member.consumer, owned, self._lasts
            )
            if layout is not None and layout != self.layout:
                await self._changed(layout)
                self.layout = layout
            self._keys = self._division.all = await to_read(self._line, self.layout, member.group)
        finally:
            self.looked = True
        self._members = max(len(members), 1)
        # Give up sealed partitions that are read completely
        self._give_up([part for number, part in self.parts.items() if number not in self._keys], _PATIENT)
        keeps = [part for part in keeps if not part.ending.is_set()]
        owned = frozenset(number for number, part in self.parts.items() if part in keeps)
        surplus = self._division.surplus(members, owned)
        # Least busy first, since a partition that is being given up reads nothing more until its runs have ended
        self._give_up(sorted(keeps, key=lambda part: part.loop.in_hand)[:surplus], _PATIENT)
        wanted = [one for one in self._division.wanted(members, owned) if one not in self.parts]
        now = self._member.clock.mono_time()
        self._free_since = {one: self._free_since.get(one, now) for one in self._division.looks}
        for result in await asyncio.gather(*map(self._take, wanted), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _take(self, number: int) -> None:
        member, stream = self._member, self._keys[number]
        # A lease counts from the request, since the reply may be late
        asked = member.clock.mono_time()
        fence = await leases.take(self._line, stream, member.group, member.consumer, self._lasts)
        if fence is None:
            return
        shown = number % MOST if stream != self.layout.stream else None
        lease = PartitionLease(stream, shown, member.group, member.consumer, fence, self._lasts, asked)
        part: OwnedPart
        loop = self._make(lease, lambda: self._lose(part), lambda: self._renew(part))
        part = self.parts[number] = OwnedPart(lease, loop)
        self.counts.taken += 1
        self._bound()
        part.task = asyncio.create_task(self._own(number, part), name=f"millstream-owner-{stream}")

    def _give_up(self, parts: Iterable[OwnedPart], grace: float) -> None:
        for part in parts:
            part.grace = min(part.grace, grace)
            part.ending.set()

    async def _leave(self) -> None:
        member = self._member
        with contextlib.suppress(Disconnected, ResponseError, TimeoutError):
            async with asyncio.timeout(1.0):
                await leases.leave(self._line, member.stream, member.group, member.consumer)

    def _bound(self) -> None:
        for part in self.parts.values():
            part.loop.bound(len(self.parts))

    # -- one partition ----------------------------------------------------------------------------------------------

    async def _own(self, number: int, part: OwnedPart) -> None:
        """Run a partition's loop from the lease to its end."""
        try:
            await part.loop.prepare()
            await part.loop.take_over()
            part.loop.start()
            await self._until_end(part)
        except Disconnected as error:
            log.info("%s: not read yet: %s", part.lease.stream, error)
        except (LeaseLost, asyncio.CancelledError):
            pass
        except Exception as error:  # noqa: BLE001 - code that waits for the subscriber gets it
            if not self.failed.done():
                self.failed.set_exception(error)
        finally:
            await self._end(number, part)

    async def _until_end(self, part: OwnedPart) -> None:
        """Wait until the partition must be given up, and stop its loop; or until it is lost or fails."""
        waits = [asyncio.create_task(part.ending.wait()), asyncio.create_task(part.loop.done())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            # Raises the error of a failed loop, for the caller to report
            if waits[1].done():
                waits[1].result()
        finally:
            for one in waits:
                one.cancel()
        if part.lost.is_set():
            return
        stopping = asyncio.create_task(part.loop.stop(part.grace))
        # The partition may be lost during the grace time, and handlers must not continue under its new owner
        lost = asyncio.create_task(part.lost.wait())
        await asyncio.wait((stopping, lost), return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        if stopping.done():
            self.clean &= stopping.result()
        else:
            stopping.cancel()
            # The cancellation must be complete before the lease is given up
            await asyncio.gather(stopping, return_exceptions=True)

    async def _end(self, number: int, part: OwnedPart) -> None:
        lease = part.lease
        try:
            await part.loop.abandon()
            if not lease.lost:
                with contextlib.suppress(Disconnected, ResponseError):  # otherwise the lease expires by itself
                    await leases.give(self._line, lease)
                self.counts.given += 1
        finally:
            del self.parts[number]
            self._bound()

    def _lose(self, part: OwnedPart) -> None:
        """Note that another member has the partition, or may have it."""
        if part.lease.lost:
            return
        part.lease.lost = True
        part.lease.renewed = -(2**62)  # no lane begins another entry
        self.counts.lost += 1
        log.warning("%s: this process does not own the partition any more", part.lease.stream)
        part.lost.set()
        part.ending.set()

    # -- tests ------------------------------------------------------------------------------------------------------

    async def crash(self, number: int) -> None:
        """End a partition's loop as the end of its process would, let its lease end, and take it again; for tests."""
        part = self.parts[number]
        self._lose(part)
        if part.task is not None:
            await asyncio.wait([part.task])
        await leases.give(self._line, part.lease)
        await self.look()

    async def outlive(self, number: int) -> None:
        """End a partition's lease while its loop goes on; another member takes its entries, and is gone. For tests."""
        part = self.parts[number]
        await leases.give(self._line, part.lease)
        other = dataclasses.replace(part.lease, consumer=f"{part.lease.consumer}-other")
        other.fence = await leases.take(self._line, other.stream, other.group, other.consumer, self._lasts) or 0
        if ids := [held.id for held in part.loop.entries()]:
            await self._line.call("XCLAIM", other.stream, other.group, other.consumer, 0, *ids, "JUSTID")
        await leases.give(self._line, other)

    # -- renewal ----------------------------------------------------------------------------------------------------

    async def renew_due(self) -> None:
        """Renew the leases of which a third has passed."""
        now = self._member.clock.mono_time()
        due = [part for part in self.parts.values() if self._plan.is_due(now, part.lease.renewed)]
        await asyncio.gather(*map(self._renew, due))

    async def keep(self, milliseconds: int) -> None:
        """Extend the leases by this time, once."""
        for part in list(self.parts.values()):
            lease = dataclasses.replace(part.lease, lasts_ms=self._lasts + milliseconds)
            await leases.renew(self._line, lease)

    async def _renew(self, part: OwnedPart) -> None:
        """Renew one lease; the partition is lost if another member has it, or if the lease expired without a reply."""
        lease = part.lease
        if lease.lost:
            return
        # The lease counts from the request, since the reply may be much later than the renewal
        asked = self._member.clock.mono_time()
        try:
            async with asyncio.timeout(max(self._lasts / 3_000, _BEAT)):
                ours = await leases.renew(self._line, lease)
        except (Disconnected, ResponseError, TimeoutError):
            # Without a reply, the lease still holds for its remaining time
            if self._member.clock.mono_time() - lease.renewed > self._lasts:
                self._lose(part)
            return
        if ours:
            lease.renewed = max(lease.renewed, asked) if not lease.lost else lease.renewed
        else:
            self._lose(part)
