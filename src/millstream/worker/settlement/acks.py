"""Pending acks: settlements that the server has yet to confirm. Acks are gathered, the rest goes with the next flush.

A settlement stays here until the server has confirmed it. A broken connection only means that it is sent again: the
fence refuses it if it had arrived, and the entry then is as that settlement left it.
"""

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable, Iterable

from redis.exceptions import ResponseError

from millstream import failpoints
from millstream.client import emulate
from millstream.client.delays.due import LONGEST_MS
from millstream.client.emulate import Move
from millstream.client.jobs import record
from millstream.client.line import Disconnected, Reply
from millstream.worker.model.lifecycle import FINAL, Event, State
from millstream.worker.settlement.consumer import Held, Membership, Trailed, job_of
from millstream.worker.settlement.dead_letter import DeadLetterWriter
from millstream.worker.settlement.delays import EntryDelays
from millstream.worker.settlement.failure_log import FailureLog
from millstream.worker.settlement.fence import Answer, Fence, FenceStep, by_count
from millstream.worker.settlement.settlement import DeadSettlement, Settlement

log = logging.getLogger("millstream.worker")

#: Acks of one command at most; a full one does not wait for more.
ACK_BATCH = 100

#: Seconds an ack waits for others to go with.
ACK_DELAY = 0.005


class PendingAcks:
    """Stores the settlements of one consumer's entries."""

    def __init__(
        self, member: Membership, fence: Fence, failures: FailureLog, delays: EntryDelays, *, single: bool
    ) -> None:
        self._member = member
        self._fence = fence
        self._failures = failures
        self._delays = delays
        self._single = single  # Each ack goes at once
        self._acks: list[Held] = []  # apart, and as they are: nearly every settlement is one
        self._others: list[Settlement] = []  # releases and retries
        self._on_their_way: list[Settlement] = []  # releases and retries of the last flush
        self._notes: list[Held] = []  # Entries whose handler returned without an outcome
        self._ack_move: Move | None = None  # The ack command of the last flush, to recognize its answers
        self._unsure: set[Held] = set()  # their settlement was sent, and no reply came
        self._dead = DeadLetterWriter(member, fence, failures)
        self._due = asyncio.Event()  # There is something to send
        self._timer: asyncio.TimerHandle | None = None  # Runs while acks wait for others to go with
        self._lock = asyncio.Lock()  # Held during a flush
        self._unkept = False  # The last result was not written
        #: (monotonic ms, id) of retries this process will ask for itself when they are due
        self.retries_due: list[tuple[int, bytes]] = []
        #: called with the monotonic ms of each of them; None where this process claims nothing, so that none are kept
        self.on_due: Callable[[int], None] | None = None
        #: called when an entry goes back to the server, other than by a failure
        self.on_return: Callable[[], None] = lambda: None

    # -- settlements; none of these waits ---------------------------------------------------------------------------

    def ack(self, held: Held, *, urgent: bool = False) -> None:
        """The entry is done."""
        # Lost while its handler ran: the fence would refuse the ack, so spare the request
        if held.step(Event.ACK) is State.LOST:
            return
        self._acks.append(held)
        if urgent or self._single or len(self._acks) >= ACK_BATCH:
            self._due.set()  # A full batch or an urgent ack goes at once
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACK_DELAY, self._ripe)

    def settle(self, settlement: Settlement) -> None:
        """Anything but an ack: released, to be tried again, or dead.

        It is sent at once, unlike an ack: another process may be waiting for the entry.
        """
        held = settlement.held
        if held.step(settlement.event) is State.LOST:
            return
        if settlement.event is Event.RELEASE and not settlement.failed:
            self.on_return()
        if settlement.failed and not held.noted:  # else it is counted already
            self._failures.failed(held)
        if isinstance(settlement, DeadSettlement):
            self._dead.add(settlement)
        else:
            self._others.append(settlement)
        self._due.set()

    def release(self, held: Held, *, charge: bool) -> None:
        """Anybody may have the entry at once; charged if its handler ran, and its word was that it failed."""
        self.settle(Settlement(held, Event.RELEASE, failed=charge, charge=charge))

    def give_back(self, held: Held) -> None:
        """Anybody may have the entry at once; its present delivery is not counted already."""
        self.settle(Settlement(held, Event.RELEASE))  # charged, so that the count stays what it is

    def note_left(self, held: Held) -> None:
        """The handler returned long ago without an outcome: if this process dies, that is not a crash of the entry."""
        if not held.noted:
            held.noted = True
            self._failures.failed(held)
            self._notes.append(held)
            self._due.set()

    def stored(self, held: Held) -> "asyncio.Future[None]":
        """A future that is done when the server has confirmed the outcome, or the entry is lost."""
        if held.waiter is None:
            held.waiter = asyncio.get_running_loop().create_future()
            # It may have ended before anybody asked, and `step` resolves only a waiter that exists
            if held.state in FINAL:
                held.waiter.set_result(None)
        return held.waiter

    # -- sending ----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True when every outcome is stored."""
        return not (self._acks or self._others or self._notes or self._dead or self._lock.locked())

    async def run(self) -> None:
        """Flush whenever something is due, for ever.

        Settlements that a flush leaves are due again after a growing pause. Otherwise all waiting parts would ask an
        absent or refusing server a thousand times a second.
        """
        failures = 0
        while True:
            await self._due.wait()
            # Before the flush: what is settled during it sets the event again
            self._due.clear()
            failures = await self._try(failures)
            # The kept settlements have nobody else to set the event
            if failures:
                self._due.set()

    async def drain(self, seconds: float) -> bool:
        """Store everything there is, trying for at most ``seconds``; True when nothing is left.

        Settlements that are left stay pending on the server, and their entries are delivered to others: late, and
        perhaps again, but not lost.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                failures = 0
                while not self.idle:
                    failures = await self._try(failures)
        return self.idle

    async def _try(self, failures: int) -> int:
        """Flush, and pause where that failed; how often in a row it did."""
        try:
            clean = await self.flush()
        except Disconnected:
            clean = False
        if clean:
            return 0
        await asyncio.sleep(self._member.pause(failures + 1))
        return failures + 1

    async def flush(self) -> bool:
        """Send all outcomes once; False when the server refused some, which are kept for another time."""
        async with self._lock:  # else a flush of drain() and one of run() send the same twice
            self._ripe_off()
            clean = await self._flush_outcomes()
            # Letters are written even if an outcome was refused: they go to another key
            done = await self._dead.flush()
            await self.tell(self._dead.take_ended())
            return done and clean

    async def _flush_outcomes(self) -> bool:
        # taken off first: what handlers settle while we wait for the server goes with the next flush
        acks, self._acks = self._acks, []
        others, self._others = self._others, []
        self._on_their_way = others
        notes, self._notes = self._notes, []
        if not acks and not others and not notes:
            return True
        try:
            # First: the process may be killed right after, and the notes say that this is not a crash
            if notes:
                steps = [FenceStep(None, part, self._failures.rows(part)) for part in by_count(notes)]
                self._failures.heard(await self._fence.take(steps))
            clean = await self._send(acks, others)
        except (Disconnected, asyncio.CancelledError):
            self._notes[:0] = notes
            self._unsure = {*acks, *(one.held for one in others)}  # with all that was unsure before, as that was kept
            self._keep(acks, others)
            raise
        if not clean:
            self._keep(acks, others)
        return clean

    def _keep(self, acks: list[Held], others: list[Settlement]) -> None:
        """Put back what is not confirmed, to be sent again."""
        # In front, so that the order of settlements stays; those confirmed by a part of the answers are left out
        self._acks[:0] = [held for held in acks if held.state is State.ACKING]
        self._others[:0] = [one for one in others if one.unsettled]

    async def _send(self, acks: list[Held], others: list[Settlement]) -> bool:
        steps = self._steps(acks, others)
        if not steps:
            return True
        answers = await self._fence.take(steps)
        self._failures.heard(answers)
        self._delays.heard(answers)
        # every answer is looked at, also behind one that was refused: their entries are confirmed
        refused = [answer for answer in answers if not self._settled(answer)]
        if acks and any(held.state is State.ACKED for held in acks):
            failpoints.reach("after_ack")
        self._expect(others)
        _reach("after", others)
        await self.tell([answer.step.entries[0] for answer in answers if answer.step.result and self._kept(answer)])
        return not refused

    def _kept(self, answer: Answer) -> bool:
        """True if a result was written; a result that cannot be written must not hold up its entry."""
        if answer.unkept is not None and not self._unkept:
            log.warning("%s: a result was not written: %s", self._member.stream, answer.unkept)
        self._unkept = answer.unkept is not None
        return not self._unkept and bool(answer.entries) and not isinstance(answer.reply, ResponseError)

    async def tell(self, ended: Iterable[Held]) -> None:
        """Wake the processes that wait for these results."""
        hints = [part for held in ended if (job := job_of(held)) for part in record.hint(job, held.id.decode())]
        if hints:
            with contextlib.suppress(Disconnected):  # they look by themselves, a little later
                await self._member.anywhere.calls(hints)

    async def report(self, held: Held, text: str) -> None:
        """Store the progress of a run whose publisher wants its result."""
        row = self._member.result_row(held, text)
        if row is None:
            return
        replies = await self._member.line.calls(row._replace(field=f"progress:{row.field}").commands)
        if isinstance(replies[0], ResponseError):
            raise replies[0]

    def _now(self) -> int:
        return self._member.clock.now().wall

    def unsent(self) -> list[FenceStep]:
        """The steps of acks, releases and retries without an answer, for a thread that sends them in our stead.

        A settlement on its way may have arrived: the fence then refuses it.
        """
        acks = [held for held in list(self._member.held.values()) if held.state is State.ACKING]
        return self._steps(acks, [one for one in (*self._on_their_way, *self._others) if one.unsettled])

    def _steps(self, acks: list[Held], others: list[Settlement]) -> list[FenceStep]:
        """The requests of one flush to the server; with them the failure log's rows are written or forgotten."""
        member, failures = self._member, self._failures
        steps: list[FenceStep] = []
        if acks:
            failpoints.reach("before_ack")
            self._ack_move = move = _ack_move(member)
            plain, jobs = _parted(acks)
            steps += [
                FenceStep(move, part, failures.farewell(part), self._delays.farewell(part)) for part in by_count(plain)
            ]
            for held in jobs:
                result = member.result_row(held, held.result or record.record("done", self._now(), value=None))
                alone: list[Held] = [held]
                steps.append(
                    FenceStep(move, alone, failures.farewell(alone), self._delays.farewell(alone), result=result)
                )
        _reach("before", others)
        # One command has one count for all its entries, charged or not
        for charge in (True, False):
            released = (one.held for one in others if one.event is Event.RELEASE and one.charge is charge)
            for part in by_count(released):
                move = emulate.release(member.capabilities, member.group, part[0].deliveries, charge=charge)
                steps.append(FenceStep(move, part, failures.rows(part)))
        for one in others:
            if one.event is Event.RETRY:
                move = emulate.delay(
                    member.group, deliveries=_left_count(one), delay_ms=one.delay_ms, min_idle_ms=member.min_idle
                )
                steps.append(FenceStep(move, [one.held], failures.rows([one.held]), min(one.delay_ms, LONGEST_MS)))
        return steps

    def _settled(self, answer: Answer) -> bool:
        """Take note of one answer; False when the server refused for now.

        An entry that the fence refused is another's; unless its settlement was sent before and the reply lost, and it
        is now as that would have left it.
        """
        member, reply = self._member, answer.reply
        if isinstance(reply, ResponseError):
            if not str(reply).startswith("NOGROUP"):
                log.warning("%s: an outcome was refused and is kept: %s", member.stream, reply)
                return False
            for held in answer.entries:
                member.lose(held)  # the group is gone, and its pending list with it
            return True
        for held, owner, count in answer.refused:
            # Our own settlement arrived and only its reply was lost
            if held in self._unsure and _is_done(held, owner, count):
                member.stats.acked += held.state is State.ACKING
                self._confirm([held])
            elif held.state is not State.LOST:
                member.stats.fenced += 1
                member.lose(held)
        # By identity: a release or a retry has a command of its own
        if answer.step.move is self._ack_move:
            count = _acked(reply) if answer.entries else 0
            member.stats.acked += count
            member.stats.lost += len(answer.entries) - count  # without the script: acked elsewhere
        self._confirm(answer.entries)
        # An answer came, so there is nothing unsure about these any more
        if self._unsure:
            self._unsure.difference_update(answer.step.entries)
        return True

    def _confirm(self, entries: Iterable[Held]) -> None:
        ours = self._member.held
        for held in entries:
            if held.state is not State.LOST and held.state is not State.ACKED:
                held.step(Event.CONFIRM)
            if ours.get(held.id) is held:  # else it was released and is here again, as another delivery
                del ours[held.id]

    def _expect(self, others: Iterable[Settlement]) -> None:
        """Be there when what was given back is due: at once, or after its delay."""
        for one in others:
            held = one.held
            if held.state is State.RELEASED and one.charge:
                self.remind(held.id, 0)
            elif held.state is State.WAITING:
                self.remind(held.id, one.delay_ms)

    def remind(self, entry: bytes, delay_ms: int) -> None:
        """Have the loop look when it is due: a server without blocking claims tells nobody of retries."""
        if self.on_due is None:
            return
        # a few milliseconds late, so that the server agrees that it is time
        due = self._member.clock.now().mono + delay_ms + 3
        heapq.heappush(self.retries_due, (due, entry))
        self.on_due(due)

    def _ripe(self) -> None:
        self._timer = None
        self._due.set()

    def _ripe_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _reach(when: str, others: Iterable[Settlement]) -> None:
    """The failpoints of what is about to be sent, or was."""
    events = {one.event for one in others}
    for event, name in ((Event.RELEASE, "release"), (Event.RETRY, "retry")):
        if event in events:
            failpoints.reach(f"{when}_{name}")


def _parted(acks: list[Held]) -> tuple[list[Held], list[Trailed]]:
    """Entries without and with a result that somebody waits for."""
    jobs = [held for held in acks if isinstance(held, Trailed) and held.job is not None]
    return ([held for held in acks if job_of(held) is None] if jobs else acks), jobs


def _is_done(held: Held, owner: bytes, count: int) -> bool:
    """True if an entry that is not ours any more is as its outcome, sent before, would have left it."""
    if held.state is State.ACKING:
        return count < 0
    # A delay hands the entry to a consumer for waiting entries, with its count unchanged
    if held.state is State.RETRYING:
        return owner == emulate.WAITING and held.deliveries - 1 <= count <= held.deliveries
    return held.state is State.RELEASING and owner == emulate.NOBODY and held.deliveries - 1 <= count <= held.deliveries


def _left_count(settlement: Settlement) -> int:
    """The delivery count that a delayed entry keeps."""
    return settlement.deliveries if settlement.charge else max(settlement.deliveries - 1, 0)


def _ack_move(member: Membership) -> Move:
    """The command that acks entries, and with ``on_ack="delete"`` removes what no group needs any more.

    XACKDEL ... ACKED where the server has it; elsewhere the fence's script does the same in one step.
    """
    if not member.delete_acked:
        return Move("XACK", member.group)
    if member.capabilities.xackdel:
        return Move("XACKDEL", member.group, "ACKED", "IDS")
    return Move("ACK+DELETE", member.group)


def _acked(reply: Reply) -> int:
    """The number of them that the server acked, from its reply to :func:`_ack_move`."""
    return sum(one > 0 for one in reply) if isinstance(reply, list) else int(reply)
