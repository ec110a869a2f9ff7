"""The spare process of ``millstream run``: it runs entries that may have ended a process, so that no worker ends.

A worker that claims such an entry passes it to the spare's consumer, uncharged, and reports that to the supervisor. The
supervisor starts the spare, a process of the app that runs only the entries passed to it, by the rules of any worker.
It ends after some time without work. Meanwhile the workers and all other groups continue.

Nothing depends on the spare: an entry that it does not take is claimed again after ``min_idle_time``. If a worker has
passed on an entry in vain for half a minute, it runs the entry itself. So a spare that cannot start only delays
entries.
"""

import asyncio
import os
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millstream.client import emulate
from millstream.client.line import Line
from millstream.worker.model.lifecycle import Event, State
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.fence import Fence, FenceStep, by_count

PATIENCE_MS = 30_000  # milliseconds for which an entry is passed to the spare without a run in between

EACH_ALONE_MS = 15_000  # milliseconds for which the spare runs its entries one by one after their first crash

_KNOWN = 10_000  # number of entries for which that time is stored; the oldest is dropped first

STARTS = 2**20  # number of spares of one supervisor that have distinct numbers

# The supervisor's notes on a spare: it ended itself; it runs, and is killed if it is blocked or stopped.
OWN_END, RUNS = b"!", b"+"

IDLE = 10.0  # seconds without work after which the spare ends

# Removes the spare's consumer in one step, since a worker may give it an entry at any moment.
LEAVE = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
"""


class Spare(NamedTuple):
    """The spare process, as seen by a process of the app."""

    consumer: str  # Name of the consumer in every group
    call: Callable[[], None] | None  # Reports that there is work; None in the spare itself
    ends: int = -1  # File in which the supervisor notes the spares that ended themselves, one byte for each
    start: int = 0  # In the spare itself: number of spares that the supervisor had started before


#: None without a supervisor, or if it has no spare.
spare: Spare | None = None


def is_here() -> bool:
    """Report whether this is the spare process."""
    return spare is not None and spare.call is None


def _number(consumer: str, start: int) -> int:
    return (zlib.crc32(consumer.encode()) + 1) * STARTS + start % STARTS


def mark() -> int:
    """Return the mark of an entry that runs alone in this process: the spare's number, or 1 in any other process."""
    return _number(spare.consumer, spare.start) if spare is not None and is_here() else 1


def ended_by_itself(number: int) -> bool:
    """Report whether the spare of this number belonged to this supervisor and was not killed from outside."""
    return _note(number) == OWN_END


def may_run(number: int) -> bool:
    """Report whether the spare of this number is this supervisor's and may still run; it is killed if it hangs."""
    return _note(number) == RUNS


def _note(number: int) -> bytes:
    if spare is None or number - number % STARTS != _number(spare.consumer, 0):
        return b""  # that supervisor may also have ended, for example with the machine
    return os.pread(spare.ends, 1, number % STARTS)


async def unneeded(dismissed: asyncio.Event, busy: Callable[[], bool]) -> None:
    """Wait until the spare has had no work for a while, or was ordered to end."""
    quiet = 0.0
    while quiet < IDLE and not dismissed.is_set():
        await asyncio.sleep(0.5)
        quiet = 0.0 if busy() else quiet + 0.5


class HandOver:
    """Passes the suspect entries of one group to the spare."""

    def __init__(self, member: Membership, fence: Fence, row: Callable[[Held], str]) -> None:
        self._row = row
        self._member = member
        self._fence = fence
        self._given: dict[bytes, tuple[int, int]] = {}  # By id: its deliveries, when it was first given with so many

    async def give(self, suspects: Sequence[Held], line: Line) -> None:
        """Pass on the suspects that the spare may still take; this consumer no longer owns them.

        The same step writes their rows: without a row, a claim that a kill cuts off counts as a crash.
        """
        if spare is None or spare.call is None:
            return
        given = [held for held in suspects if self._may_give(held)]
        if not given:
            return
        group = self._member.group
        steps = [
            # This worker's claim counted as a delivery, though no handler began; the spare's own claim counts it again
            FenceStep(emulate.recount(group, spare.consumer, part[0].deliveries - 1), part, [*map(self._row, part)])
            for part in by_count(given)
        ]
        # An error is raised here before the entries are dropped, so this consumer still owns them
        await self._fence.take(steps, line)
        for held in given:
            held.step(Event.LOSE)
            self._member.drop(held)
        self._member.stats.claimed -= len(given)
        spare.call()

    def _may_give(self, held: Held) -> bool:
        if held.state is not State.BUFFERED:
            return False
        now = self._member.clock.now().mono
        deliveries, since = self._given.pop(held.id, (0, now))
        # An entry that was stopped there is given back until the supervisor ends the spare: it would stop this process
        # too
        if deliveries != held.deliveries or (held.record is not None and may_run(held.record.alone)):
            since = now
        elif now - since > PATIENCE_MS:
            return False
        self._given[held.id] = held.deliveries, since
        if len(self._given) > _KNOWN:
            del self._given[next(iter(self._given))]
        return True
