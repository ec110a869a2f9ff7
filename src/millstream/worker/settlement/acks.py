"""From outcomes to commands: acks are gathered and sent together, everything else goes with the next flush.

An outcome stays here until the server has confirmed it. A broken connection only means that it is sent again: the fence
refuses it if it had arrived, and the entry then is as that outcome left it.
"""

import asyncio
import contextlib
import heapq
import logging
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from millstream import failpoints
from millstream.client import emulate
from millstream.client.deadletter import DeadLetter
from millstream.client.line import Disconnected
from millstream.worker.model.lifecycle import Event, State
from millstream.worker.settlement import ack_command
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.dead_letter import Burials
from millstream.worker.settlement.failure_log import Records
from millstream.worker.settlement.fence import Answer, Fence, Step, by_count
from millstream.worker.settlement.leases import Leases

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.client.emulate import Move

log = logging.getLogger("millstream.worker")

ACK_BATCH = 100
ACK_DELAY = 0.005


class Ledger:
    """Stores the outcomes of one consumer's entries.

    Args:
        member: whose entries.
        fence: through which they go.
        leases: keep distant retries waiting.
        records: of the failures.
        single: send each ack at once instead of gathering.
    """

    def __init__(self, member: Membership, fence: Fence, leases: Leases, records: Records, *, single: bool) -> None:
        self._member = member
        self._fence = fence
        self._leases = leases
        self._records = records
        self._single = single
        self._acks: list[Held] = []
        self._releases: list[tuple[Held, bool]] = []
        self._retries: list[tuple[Held, int]] = []
        self._notes: list[Held] = []
        self._ack_move: Move | None = None
        self._unsure: set[Held] = set()  # their outcome was sent, and no reply came
        self._burials = Burials(member, fence, records)
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._lock = asyncio.Lock()
        #: (monotonic ms, id) of retries this process will ask for itself when they are due
        self.retries_due: list[tuple[int, bytes]] = []
        #: told the monotonic ms of each of them; None where this process claims nothing, so that none are kept
        self.on_due: Callable[[int], None] | None = None

    # -- outcomes; none of these waits ------------------------------------------------------------------------------

    def ack(self, held: Held, *, urgent: bool = False) -> None:
        """The entry is done."""
        if held.step(Event.ACK) is State.LOST:
            return
        self._acks.append(held)
        if urgent or self._single or len(self._acks) >= ACK_BATCH:
            self._due.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACK_DELAY, self._ripe)

    def release(self, held: Held, *, charge: bool) -> None:
        """Anybody may have the entry at once."""
        if held.step(Event.RELEASE) is not State.LOST:
            if charge:
                self._failed(held)
            self._releases.append((held, charge))
            self._due.set()

    def give_back(self, held: Held) -> None:
        """Anybody may have the entry at once; its present delivery is not counted already."""
        if held.step(Event.RELEASE) is not State.LOST:
            self._releases.append((held, True))  # the count stays what it is
            self._due.set()

    def retry(self, held: Held, delay: float) -> None:
        """The entry is due again in ``delay`` seconds."""
        if delay <= 0:
            self.release(held, charge=True)
        elif held.step(Event.RETRY) is not State.LOST:
            self._failed(held)
            self._retries.append((held, round(delay * 1000)))
            self._due.set()

    def bury(self, held: Held, letter: DeadLetter) -> None:
        """The entry goes to the dead-letter stream."""
        if held.step(Event.BURY) is not State.LOST:
            self._burials.add(held, letter)
            self._due.set()

    def note_left(self, held: Held) -> None:
        """The handler returned long ago and said nothing: should this process die, that was no crash of the entry."""
        if not held.noted:
            held.noted = True
            self._records.failed(held)
            self._notes.append(held)
            self._due.set()

    def _failed(self, held: Held) -> None:
        if not held.noted:  # else it is counted already
            self._records.failed(held)

    def stored(self, held: Held) -> "asyncio.Future[None]":
        """A future that is done when the server has confirmed the outcome, or the entry is lost."""
        if held.waiter is None:
            held.waiter = asyncio.get_running_loop().create_future()
            if held.state in (State.ACKED, State.RELEASED, State.WAITING, State.DEAD, State.LOST):
                held.waiter.set_result(None)
        return held.waiter

    # -- sending ----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True when every outcome is stored."""
        return (
            not (self._acks or self._releases or self._retries or self._notes or self._burials)
            and not self._lock.locked()
        )

    async def run(self) -> None:
        """Flush whenever something is due, for ever."""
        failures = 0
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                clean = await self.flush()
            except Disconnected:
                clean = False
            failures = 0 if clean else failures + 1
            if failures:
                await asyncio.sleep(self._member.pause(failures))
                self._due.set()

    async def drain(self, seconds: float) -> bool:
        """Store everything there is, trying for at most ``seconds``; True when nothing is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                failures = 0
                while not self.idle:
                    try:
                        clean = await self.flush()
                    except Disconnected:
                        clean = False
                    failures = 0 if clean else failures + 1
                    if failures:
                        await asyncio.sleep(self._member.pause(failures))
        return self.idle

    async def flush(self) -> bool:
        """Send all outcomes once; False when the server refused some, which are kept for another time.

        Raises:
            Disconnected: nothing is known; everything is kept.
        """
        async with self._lock:
            self._ripe_off()
            clean = await self._flush_outcomes()
            return await self._burials.flush() and clean

    async def _flush_outcomes(self) -> bool:
        acks, self._acks = self._acks, []
        releases, self._releases = self._releases, []
        retries, self._retries = self._retries, []
        everything = [*acks, *(held for held, _ in releases), *(held for held, _ in retries)]
        notes, self._notes = self._notes, []
        if not everything and not notes:
            return True
        try:
            if notes:
                steps = [Step(None, part, self._records.rows(part)) for part in by_count(notes)]
                self._records.heard(await self._fence.take(steps))
            clean = await self._send(acks, releases, retries)
        except (Disconnected, asyncio.CancelledError):
            self._notes[:0] = notes
            self._unsure = set(everything)  # with all that was unsure before, as that was kept
            self._keep(acks, releases, retries)
            raise
        if not clean:
            self._keep(acks, releases, retries)
        return clean

    def _keep(self, acks: list[Held], releases: list[tuple[Held, bool]], retries: list[tuple[Held, int]]) -> None:
        """Put back what is not confirmed, to be sent again."""
        self._acks[:0] = [held for held in acks if held.state is State.ACKING]
        self._releases[:0] = [item for item in releases if item[0].state is State.RELEASING]
        self._retries[:0] = [item for item in retries if item[0].state is State.RETRYING]

    async def _send(self, acks: list[Held], releases: list[tuple[Held, bool]], retries: list[tuple[Held, int]]) -> bool:
        steps = self._steps(acks, releases, retries)
        if not steps:
            return True
        answers = await self._fence.take(steps)
        self._records.heard(answers)
        refused = [answer for answer in answers if not self._settled(answer)]
        if acks and any(held.state is State.ACKED for held in acks):
            failpoints.reach("after_ack")
        if releases:
            for held, charge in releases:
                if charge and held.state is State.RELEASED:
                    self._remind(held, 0)
            failpoints.reach("after_release")
        if retries:
            self._wait_for(retries)
            failpoints.reach("after_retry")
        return not refused

    def _steps(
        self, acks: list[Held], releases: list[tuple[Held, bool]], retries: list[tuple[Held, int]]
    ) -> list[Step]:
        """What one flush asks of the server; with it a record is written or forgotten."""
        member, records = self._member, self._records
        steps: list[Step] = []
        if acks:
            failpoints.reach("before_ack")
            self._ack_move = move = ack_command.move(member)
            steps += [Step(move, part, records.farewell(part)) for part in by_count(acks)]
        if releases:
            failpoints.reach("before_release")
        for charge in (True, False):
            for part in by_count(held for held, charged in releases if charged is charge):
                move = emulate.release(member.capabilities, member.group, part[0].deliveries, charge=charge)
                steps.append(Step(move, part, records.rows(part)))
        if retries:
            failpoints.reach("before_retry")
        for held, delay_ms in retries:
            move = emulate.delay(
                member.group, deliveries=held.deliveries, delay_ms=delay_ms, min_idle_ms=member.min_idle
            )
            steps.append(Step(move, [held], records.rows([held])))
        return steps

    def _settled(self, answer: Answer) -> bool:
        """Take note of one answer; False when the server refused for now."""
        member, reply = self._member, answer.reply
        if isinstance(reply, ResponseError):
            if not str(reply).startswith("NOGROUP"):
                log.warning("%s: an outcome was refused and is kept: %s", member.stream, reply)
                return False
            for held in answer.entries:
                member.lose(held)
            return True
        for held, owner, count in answer.refused:
            if held in self._unsure and _is_done(held, owner, count):
                member.stats.acked += held.state is State.ACKING
                self._confirm(held)
            elif held.state is not State.LOST:
                member.stats.fenced += 1
                member.lose(held)
        if answer.step.move is self._ack_move:
            count = ack_command.acked(reply) if answer.entries else 0
            member.stats.acked += count
            member.stats.lost += len(answer.entries) - count  # without the script: acked elsewhere
        for held in answer.entries:
            self._confirm(held)
        if self._unsure:
            self._unsure.difference_update(answer.step.entries)
        return True

    def _confirm(self, held: Held) -> None:
        if held.state is not State.LOST and held.state is not State.ACKED:
            held.step(Event.CONFIRM)
        ours = self._member.held
        if ours.get(held.id) is held:
            del ours[held.id]

    def _wait_for(self, retries: list[tuple[Held, int]]) -> None:
        for held, delay_ms in retries:
            if held.state is State.WAITING:
                if delay_ms > self._member.min_idle:
                    held.leased = self._member.clock.now().mono
                    self._leases.park(held, held.leased + delay_ms)
                self._remind(held, delay_ms)

    def _remind(self, held: Held, delay_ms: int) -> None:
        if self.on_due is None:
            return
        # a few milliseconds late, so that the server agrees that it is time
        due = self._member.clock.now().mono + delay_ms + 3
        heapq.heappush(self.retries_due, (due, held.id))
        self.on_due(due)

    def _ripe(self) -> None:
        self._timer = None
        self._due.set()

    def _ripe_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_done(held: Held, owner: bytes, count: int) -> bool:
    """Whether an entry that is not ours any more is as its outcome, sent before, would have left it."""
    if held.state is State.ACKING:
        return count < 0
    if held.state is State.RETRYING:
        return (owner, count) == (emulate.WAITING, held.deliveries)
    return held.state is State.RELEASING and owner == emulate.NOBODY and held.deliveries - 1 <= count <= held.deliveries
