"""The limits of one handler: permits taken before each read and before each run.

Permits of a rate without a key are taken before entries are read, so no entry is delivered without one. A permit is
valid for a tenth of a second. It is exchanged if the read took longer, and taken again if the entry waited longer. So
a rate limits the times of the runs, not only those of the reads. Slots, and permits by key, are taken right before the
run. An entry waits in this process for the limits of the whole handler, and its lane then delays further reads. An
entry that a limit by key refuses goes back to the server with a due time, and its delivery is not counted.
"""

import asyncio
import inspect
import math
import random
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

from millstream.client.limits.rate import RATES, parse_rate
from millstream.client.line import Command, Line, Reply
from millstream.worker.handlers.calling import ends_process
from millstream.worker.handlers.fields import as_key, key_of
from millstream.worker.handlers.message import Message
from millstream.worker.handlers.subscription import Subscription
from millstream.worker.limits.asking import FleetLimit, Permits
from millstream.worker.model.answers import PayloadError
from millstream.worker.model.error_text import summarize, tame
from millstream.worker.model.lifecycle import Event, State
from millstream.worker.settlement.acks import PendingAcks
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.settlement import Settlement
from millstream.worker.tasks import set_within

#: Seconds for which a permit is valid.
_FRESH = 0.1
#: Seconds within which entries read ahead should start, estimated by the duration of earlier runs.
_AHEAD = 0.025
#: Shortest seconds over which the pace of runs is measured: two looks in quick succession may see none.
_PACE_OVER = 0.01
#: Seconds for which permits wait for their read, short enough for its entries to start while the permits are valid.
_SPEND = 0.06
#: Longest seconds between two requests, so that a changed rate is noticed.
_ASK_AGAIN = 1.0
#: Seconds between two renewals of slots.
_RENEW = 10.0
#: Longest milliseconds for which an entry is delayed, so that a raised rate reaches it.
_ASIDE_MS = 600_000
#: Milliseconds before its due time at which an entry may come back; see :mod:`millstream.client.delays.due`.
_EARLY_MS = 6
#: Number of keys with times above which past times are removed.
_MANY = 1000

_Key: TypeAlias = tuple[FleetLimit, bytes]
_Back: TypeAlias = tuple[int, int]  # Number of unused permits, and the server's time up to which they count


class KeyTimes(dict[_Key, float]):
    """A time for each key; past times are removed when there are many keys."""

    most = _MANY

    def note(self, key: _Key, at: float, now: float) -> None:
        """Store the time of a key."""
        self[key] = at
        if len(self) > self.most:
            for each in [each for each, time in self.items() if time <= now]:
                del self[each]
            self.most = max(2 * len(self), _MANY)


@dataclass(slots=True)
class Taken:
    """Permits that were taken before a read."""

    at: float = -math.inf
    number: int = 0
    counts: dict[FleetLimit, int] = field(default_factory=dict)


_NONE = Taken()


@dataclass(slots=True, eq=False)
class Granted:
    """Permits of one entry, given back if the entry does not run."""

    limit: FleetLimit
    key: bytes
    permits: Permits
    paced: bool


_COUNTED = ("in_use", "granted", "refused", "waiting")


class Limiter:
    """Takes permits for the runs of one handler."""

    def __init__(self, subscription: Subscription, member: Membership, acks: PendingAcks, line: Line) -> None:
        self.limits = [FleetLimit(one, one.name or subscription.name, line) for one in subscription.limits]
        #: Limits whose permits are taken before a read
        self.whole = [one for one in self.limits if one.limit.key is None]
        self._by_key = [one for one in self.limits if one.limit.key is not None]
        self._member = member
        self._acks = acks
        self._batch = subscription.batch
        #: Creates messages for key functions; :attr:`unfit` settles entries without a valid key. The loop sets both
        self.message: Callable[[Held], Message]
        self.unfit: Callable[[Held, PayloadError], None]
        #: True while no run may start: :attr:`give_back` then releases entries that wait here
        self.quiet: Callable[[], bool]
        self.give_back: Callable[[Held], None]
        self.moved: Callable[[], None]
        #: True while the reader waits for idle lanes
        self.short = True
        # If entries were read with fresh permits, they need no further request
        self._paced = bool(self.whole) and not self._by_key and not any(one.limit.running for one in self.whole)
        self._over = 0  # Number of runs that had ended when the pace was last measured
        self._looked_at = -math.inf
        self._pace = 0.0  # Number of runs that ended in each second
        self._taken = Taken()
        self._purse = Taken()  # Permits for the next reads, left over from a request or from entries that did not run
        self._marks: dict[Held, Taken] = {}  # Entry -> permits of its read
        self._ask_at = 0.0
        #: Time at which a waiting reader continues, in seconds of the member's clock
        self.due = 0.0
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()  # Wakes entries that wait for slots when the server has freed some
        self._aside = KeyTimes()  # Due time of the last delayed entry for each key
        self._refused = KeyTimes()  # Time before which the server has no permit, for each key

    # -- around a read ----------------------------------------------------------------------------------------------

    def soon(self, running: int) -> int:
        """Return the number of entries expected to start soon, at the pace of the last runs.

        It is 0 if each entry needs more than a permit of its read, such as a slot.
        """
        if not self._paced:
            return 0
        now, ended = self._now(), self.whole[0].granted - running
        passed = now - self._looked_at
        pace = (ended - self._over) / max(passed, 0.001)
        if passed >= _PACE_OVER:
            self._pace, self._over, self._looked_at = pace, ended, now
        return max(int(max(pace, self._pace) * _AHEAD), 0)

    async def before_read(self, room: int, soon: int = 0) -> tuple[int, float]:
        """Take permits for a read; return the number of entries to read, and the seconds to wait if it is 0.

        One call of the script also takes permits for the next reads, up to ``soon`` entries.
        """
        now = self._now()
        if now < self._ask_at:
            return 0, self._ask_at - now
        if not self.whole:
            return room, 0.0
        rest, self._purse = self._purse, Taken()
        if rest.number and now - rest.at <= _SPEND:
            return self._take_from(rest, room)
        number = min([max(room, soon), *(one.chunk for one in self.whole)])
        taken, wait_ms = await self._exchange(self.whole, number, rest)
        if not taken.number:
            self.due = self._now() + wait_ms / 1000
            self._ask_at = min(self.due, self._now() + _ASK_AGAIN)
            return 0, self._ask_at - self._now()
        return self._take_from(taken, room)

    async def _exchange(self, limits: Iterable[FleetLimit], number: int, old: Taken) -> tuple[Taken, float]:
        """Give back old permits and take new ones, of each limit as many; where none, the milliseconds to wait."""
        taken, wait_ms = Taken(self._now(), number), 0.0
        for one in limits:
            back = (old.number, old.counts[one]) if one in old.counts else (0, 0)
            if not taken.number:
                await one.give_back(*back)
                continue
            permits = await one.take(taken.number, back=back, slots=False)
            # Earlier limits have granted more
            surplus, taken.number = taken.number - permits.granted, permits.granted
            for earlier, counts in taken.counts.items():
                await earlier.give_back(surplus, counts)
            wait_ms = permits.wait_ms
            if one.limit.rate is not None:
                taken.counts[one] = permits.counts_us
        return taken, wait_ms

    def _take_from(self, purse: Taken, room: int) -> tuple[int, float]:
        """Take permits for one read from the purse, and leave the others for the next reads."""
        number = min(purse.number, room)
        if purse.number > number:
            self._purse = Taken(purse.at, purse.number - number, purse.counts)
        self._taken = Taken(purse.at, number, purse.counts)
        return number, 0.0

    async def after_read(self, found: Sequence[Held]) -> None:
        """Give back unused permits, and exchange those of a read that took long."""
        if not self.whole:
            return
        taken, self._taken = self._taken, Taken(self._taken.at)
        good, kept = min(len(found), taken.number), taken
        old = self._now() - taken.at > _FRESH
        rest = 0
        if (old or good < taken.number) and self._purse.counts:  # no read follows immediately
            rest, self._purse = self._purse.number, Taken()
        if old:
            # A read that blocked for long holds permits of a past period; take new ones, which count from now
            past = Taken(taken.at, taken.number + rest, taken.counts)
            kept, _ = await self._exchange(taken.counts, good, past)
            kept.at, good = self._now(), kept.number
        elif good < taken.number:
            for one, counts in taken.counts.items():
                await one.give_back(taken.number - good + rest, counts)
        kept.number = good
        if len(self._marks) > _MANY:
            self._marks = {held: one for held, one in self._marks.items() if held.state is State.BUFFERED}
        self._marks.update(dict.fromkeys(found[:good], kept))

    async def unread(self) -> None:
        """Give all permits back, since nothing was read."""
        await self.after_read(())

    # -- before a run -----------------------------------------------------------------------------------------------

    def _lacking(self, entries: Iterable[Held]) -> int:
        """Count the entries that need a permit, because their read took none or they waited too long."""
        now = self._now()
        return sum(now - self._marks.get(held, _NONE).at > _FRESH for held in entries)

    def starts(self, held: Held, others: Sequence[Held] = ()) -> bool:
        """Report whether an entry and its batch may run with the permits of their reads alone.

        If not, :meth:`may_start` decides.
        """
        if not self._paced or held.state is not State.BUFFERED or self.quiet():
            return False
        mark = self._marks.pop(held, None)
        if mark is None:
            return False
        if self._member.clock.mono_time() / 1000 - mark.at > _FRESH or (others and self._lacking(others)):
            self._marks[held] = mark
            return False
        for one in self.whole:
            one.granted += 1 + len(others)
        return True

    def ready(self, others: Iterable[Held]) -> list[Held]:
        """Return the entries that this worker surely still holds, after a wait."""
        return [one for one in others if one.state is State.BUFFERED and not self._member.stale(one)]

    async def may_start(self, held: Held, *, wait: bool = True, others: Sequence[Held] = ()) -> bool:
        """Take the permits of an entry and report whether it may run; if not, it was given back or lost.

        With ``wait=False`` nothing waits; the caller has already taken back the delivery of the entry. The ``others``
        are entries of the same batch.
        """
        granted: list[Granted] = []
        try:
            keys = [(one, limit_key(one.limit.key, held, self.message)) for one in self._by_key if one.limit.key]
        except PayloadError as error:
            self.unfit(held, error)
            return False
        lacking = self._lacking((held, *others))
        mark = self._marks.pop(held, _NONE)
        fresh = self._now() - mark.at <= _FRESH
        # Only the permits of a whole read can be returned exactly
        back = dict(mark.counts) if mark.number == 1 else {}
        for one in self.whole:
            paced = lacking > 0 and one.limit.rate is not None
            if not paced and not one.limit.running:
                one.granted += 1 + len(others)
                continue
            spared = (1, back.pop(one)) if paced and not fresh and one in back else (0, 0)
            many = lacking or 1
            one.granted += 1 + len(others) - many  # the permits of their reads cover these entries
            if not await self._waited(one, held, granted, spared, paced=paced, wait=wait, many=many):
                await self._spare(back)
                return False
        for one, key in keys:
            if key is None:
                continue
            permits = await self._sure(one, held, key, wait=wait)
            if permits.granted:
                granted.append(Granted(one, key, permits, paced=True))
                continue
            await self._undo(granted, spare=fresh and not back)
            await self._spare(back)
            if held.state is State.BUFFERED:
                self._put_aside(one, key, held, permits.wait_ms, charged=wait)
            return False
        # Stale after a freeze during the wait: the fence gives it back only if no other consumer owns it
        if held.state is not State.BUFFERED or (wait and (self.quiet() or self._member.stale(held))):
            await self._undo(granted, spare=False)
            await self._spare(back)
            self.give_back(held)
            return False
        for each in granted:
            each.limit.granted += each.permits.granted
            if each.permits.slots:
                held.then(lambda each=each: self._ended(each))  # type: ignore[misc] # a default that binds it
        return True

    async def _waited(
        self, one: FleetLimit, held: Held, granted: list[Granted], back: _Back, *, paced: bool, wait: bool, many: int
    ) -> bool:
        """Take permits of a limit of the whole handler, waiting if needed; return False if the entry may not run."""
        left = many
        one.waiting += 1
        try:
            while left > 0:
                permits = await one.take(left, paced=paced, back=back)
                # A request that did not arrive returned nothing, so the next one repeats it
                back = (0, 0) if permits.asked else back
                left -= permits.granted
                if permits.granted:
                    granted.append(Granted(one, b"", permits, paced=paced))
                    continue
                if not wait:
                    await self._undo(granted, spare=False)
                    self._put_aside(one, b"", held, permits.wait_ms, charged=False)
                    return False
                await set_within(self._freed, min(permits.wait_ms / 1000, _ASK_AGAIN) * random.uniform(1.0, 1.1))
                # During the wait, the entry may have been lost, or the worker ordered to drain
                if held.state is not State.BUFFERED or self.quiet():
                    await self._undo(granted, spare=False)
                    self.give_back(held)
                    return False
        finally:
            one.waiting -= 1
        return True

    async def _sure(self, one: FleetLimit, held: Held, key: bytes, *, wait: bool) -> Permits:
        """Request a permit for a key; while the server cannot be reached, the entry waits.

        A refusal contains the time of the next permit. Until then it also refuses the key's other entries, which saves
        calls of the script.
        """
        left = self._refused.get((one, key), 0.0) - self._now()
        if left > 0:
            one.refused += 1
            return Permits(wait_ms=left * 1000)
        while True:
            permits = await one.take(1, key)
            # An inexact time is only this process's estimate, and would delay the whole key wrongly
            if permits.asked and not permits.granted and permits.exact:
                now = self._now()
                self._refused.note((one, key), now + min(permits.wait_ms / 1000, _ASK_AGAIN), now)
            if permits.asked or not wait or held.state is not State.BUFFERED or self.quiet():
                return permits
            await asyncio.sleep(permits.wait_ms / 1000)

    def _put_aside(self, one: FleetLimit, key: bytes, held: Held, wait_ms: float, *, charged: bool) -> None:
        """Give an entry back to the server until a permit is expected, after earlier entries of its key.

        An entry that came back a moment before its due time keeps its place among them.
        """
        now = self._now() * 1000
        due = now + max(wait_ms, 1.0)
        if not (held.was_due and wait_ms <= _EARLY_MS):
            due = max(self._aside.get((one, key), 0.0) + one.spacing_ms, due)
            if due - now > _ASIDE_MS:
                due = now + random.uniform(0.5, 1.0) * _ASIDE_MS
            else:
                self._aside.note((one, key), due, now)
        one.put_aside(round(now), round(due))
        self._member.stats.limited += 1
        self._acks.settle(Settlement(held, Event.RETRY, charge=not charged, delay_ms=round(due - now)))

    async def _spare(self, back: dict[FleetLimit, int]) -> None:
        """Give back the permits of an entry's read, as far as no question did."""
        for one, counts in back.items():
            await one.give_back(1, counts)

    async def _undo(self, granted: Sequence[Granted], *, spare: bool) -> None:
        if spare and self.whole:
            if not self._purse.number:
                self._purse = Taken(self._taken.at)
            self._purse.number += 1
            self.moved()
        for each in granted:
            if each.permits.slots:
                self._ended(each)
            if each.paced:
                self._refused.pop((each.limit, each.key), None)
                await each.limit.give_back(each.permits.granted, each.permits.counts_us, each.key)

    def _ended(self, each: Granted) -> None:
        each.limit.free(each.permits.slots, each.key)
        self._wake.set()
        self.moved()

    def wait_ms(self) -> int:
        """Return the milliseconds until a waiting reader gets permits; 0 if it does not wait."""
        return max(math.ceil((self.due - self._now()) * 1000), 0)

    def _now(self) -> float:
        return self._member.clock.mono_time() / 1000

    # -- meanwhile --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the slots of running entries and return free slots, until the task is cancelled."""
        loop = asyncio.get_running_loop()
        renew_at = loop.time() + _RENEW
        while True:
            await set_within(self._wake, renew_at - loop.time())
            self._wake.clear()
            renew = loop.time() >= renew_at
            if renew:
                renew_at = loop.time() + _RENEW
            await self.send(renew=renew)

    async def send(self, *, renew: bool = False) -> None:
        """Return free slots to the server, and renew the others if requested."""
        for one in self.limits:
            await one.send(renew=renew)
        self._freed.set()
        self._freed.clear()

    def facts(self) -> list[dict[str, Any]]:
        """Return the state of each limit, for the registry."""
        return [
            {
                "name": one.name,
                "rate": one.limit.rate,
                "running": one.limit.running,
                "by_key": one.limit.key is not None,
                "in_use": one.in_use,
                "granted": one.granted,
                "refused": one.refused,
                "waiting": one.waits(round(self._now() * 1000)),
                # A reader that waits for this limit was refused, however long ago
                "refused_ms": 0 if one.refused and not one.limit.key and self.wait_ms() else one.refused_ms,
            }
            for one in self.limits
        ]


def facts_of(limiters: Iterable[Limiter]) -> list[dict[str, Any]]:
    """Return the state of each limit of a handler, summed over its partitions."""
    found: dict[str, dict[str, Any]] = {}
    for limiter in limiters:
        for one in limiter.facts():
            if (known := found.setdefault(one["name"], one)) is not one:
                ages = [each["refused_ms"] for each in (known, one) if each["refused_ms"] is not None]
                known.update({name: known[name] + one[name] for name in _COUNTED}, refused_ms=min(ages, default=None))
    return list(found.values())


class LimitedRuns:
    """Starts runs after their permits were taken.

    ``take`` removes the other entries of a batch from the buffer before the permits are taken, so that no entry joins a
    batch that waits. ``put_first`` puts an entry back there.
    """

    def __init__(
        self,
        limiter: Limiter,
        start: Callable[..., Coroutine[Any, Any, None]],
        take: Callable[[Held], list[Held]] | None,
        put_first: Callable[[Held], None],
    ) -> None:
        self._limiter = limiter
        self._start = start
        self._take = take
        self._put_first = put_first

    def start(self, held: Held) -> Coroutine[Any, Any, None]:
        """Return a coroutine that runs an entry if its limits allow it."""
        limiter = self._limiter
        if self._take is None:
            starts = limiter.starts(held)
            return self._start(held) if starts and not limiter.short else self._ask(held, [], starts=starts)
        others = self._take(held)
        starts = limiter.starts(held, others)
        return self._start(held, others) if starts and not limiter.short else self._ask(held, others, starts=starts)

    def _run(self, held: Held, others: list[Held]) -> Coroutine[Any, Any, None]:
        return self._start(held) if self._take is None else self._start(held, others)

    async def _ask(self, held: Held, others: list[Held], *, starts: bool) -> None:
        """Take the permits and run the entry, then wake the reader if it waits for idle lanes."""
        limiter = self._limiter
        ready: list[Held] = []
        try:
            try:
                starts = starts or await limiter.may_start(held, others=others)
                if starts:
                    ready = limiter.ready(others)
            finally:
                self._put_back(others, ready)
            if starts:
                await self._run(held, ready)
        finally:
            if limiter.short:
                limiter.moved()

    def _put_back(self, others: list[Held], ready: list[Held]) -> None:
        """Put the entries that do not run with their batch back into the buffer, or give them back."""
        kept, put = set(ready), self._limiter.give_back if self._limiter.quiet() else self._put_first
        for one in reversed(others):
            if one not in kept and one.state is State.BUFFERED:
                put(one)


def asked(limiters: Iterable[Limiter]) -> list[Command]:
    """Return the heartbeat's command that reads rates set at run time; empty without rates."""
    names = [one.name for one in _paced(limiters)]
    return [("HMGET", RATES, *names)] if names else []


def learn(limiters: Iterable[Limiter], reply: Reply) -> None:
    """Apply the rates in the reply; change nothing if the server refused the command."""
    if isinstance(reply, ResponseError):
        return
    for one, value in zip(_paced(limiters), reply, strict=True):
        one.override = None if value is None else parse_rate(value.decode(errors="replace"))


def _paced(limiters: Iterable[Limiter]) -> list[FleetLimit]:
    return [one for limiter in limiters for one in limiter.limits if one.limit.rate is not None]


def checked(key: Hashable) -> Hashable:
    """Return the value of a key function; raise TypeError for an awaitable."""
    if inspect.isawaitable(key):
        raise TypeError("the key function returned an awaitable: make it a plain function")
    return key


def limit_key(key: str | Callable[[Any], Hashable], held: Held, message: Callable[[Held], Message]) -> bytes | None:
    """Return the key of an entry as bytes; raise PayloadError if the key cannot be computed."""
    try:
        return key_of(held.fields, key) if isinstance(key, str) else as_key(checked(key(message(held))))
    except BaseException as error:
        if ends_process(error) or isinstance(error, asyncio.CancelledError):
            raise
        raise PayloadError(f"limit key: {summarize(error)}") from tame(error)
