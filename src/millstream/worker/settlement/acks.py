"""Pending acks: settlements that the server has not confirmed. Acks are batched; others go with the next flush.

A settlement stays here until the server has confirmed it. After a broken connection it is sent again. If the first one
had arrived, the fence refuses the second, and the entry already has its outcome.
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

#: Largest number of acks in one command; a full batch is sent at once.
ACK_BATCH = 100

_LEFT = "the handler returned without an outcome"

#: Seconds for which an ack waits for others in its batch.
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
        self._single = single  # each ack is sent at once
        self._acks: list[Held] = []  # separate from other settlements, since nearly all are acks
        self._others: list[Settlement] = []  # releases and retries
        self._on_their_way: list[Settlement] = []  # releases and retries of the last flush
        self._notes: list[Held] = []  # entries whose handler returned without an outcome
        self._ack_move: Move | None = None  # ack command of the last flush, to recognize its replies
        self._unsure: set[Held] = set()  # entries whose settlement was sent, but got no reply
        self._dead = DeadLetterWriter(member, fence, failures)
        self._due = asyncio.Event()  # set when there are outcomes to send
        self._timer: asyncio.TimerHandle | None = None  # runs while acks wait for their batch
        self._lock = asyncio.Lock()  # held during a flush
        self._unkept = False  # the last result was not written
        #: Monotonic milliseconds and id of retries that this process claims when they are due
        self.retries_due: list[tuple[int, bytes]] = []
        #: Called with the monotonic milliseconds of each; None if this process does not claim, so that no times are
        #: stored
        self.on_due: Callable[[int], None] | None = None
        #: Called when an entry returns to the server without a failure
        self.on_return: Callable[[], None] = lambda: None

    # -- settlements; none of these waits ---------------------------------------------------------------------------

    def ack(self, held: Held, *, urgent: bool = False) -> None:
        """Acknowledge an entry with the next batch, or soon if urgent."""
        # The entry was lost while its handler ran. The fence would refuse the ack, so omit the request
        if held.step(Event.ACK) is State.LOST:
            return
        self._acks.append(held)
        if urgent or self._single or len(self._acks) >= ACK_BATCH:
            self._due.set()  # a full batch or an urgent ack is sent at once
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACK_DELAY, self._ripe)

    def settle(self, settlement: Settlement) -> None:
        """Store any outcome but an ack: released, retried or dead.

        It is sent at once, unlike an ack, since another process may be waiting for the entry.
        """
        held = settlement.held
        if held.step(settlement.event) is State.LOST:
            return
        if settlement.event is Event.RELEASE and not settlement.failed:
            self.on_return()
        if settlement.failed:
            self._failures.failed(held, settlement.error or _LEFT)
        if isinstance(settlement, DeadSettlement):
            self._dead.add(settlement)
        else:
            self._others.append(settlement)
        self._due.set()

    def release(self, held: Held, *, charge: bool) -> None:
        """Release an entry for any worker at once; ``charge`` if its handler ran and reported a failure."""
        self.settle(Settlement(held, Event.RELEASE, failed=charge, charge=charge))

    def give_back(self, held: Held) -> None:
        """Release an entry whose current delivery has already been taken back, so that its count does not change."""
        self.settle(Settlement(held, Event.RELEASE))  # charged, so that the count stays the same

    def note_left(self, held: Held) -> None:
        """Record that the handler returned long ago without an outcome, so a later crash is not charged to it."""
        if not held.noted:
            self._failures.failed(held, _LEFT)
            held.noted = True
            self._notes.append(held)
            self._due.set()

    def stored(self, held: Held) -> "asyncio.Future[None]":
        """Return a future that is done when the server has confirmed the outcome, or the entry is lost."""
        if held.waiter is None:
            held.waiter = asyncio.get_running_loop().create_future()
            # The entry may have ended before this call, and `step` resolves only an existing waiter
            if held.state in FINAL:
                held.waiter.set_result(None)
        return held.waiter

    # -- sending ----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True when every outcome is stored."""
        return not (self._acks or self._others or self._notes or self._dead or self._lock.locked())

    async def run(self) -> None:
        """Flush whenever something is due, until the task is cancelled.

        After a failed flush, the next one follows a growing pause. Otherwise pending settlements would cause a thousand
        requests a second to an absent or refusing server.
        """
        failures = 0
        while True:
            await self._due.wait()
            # Before the flush: settlements made during it set the event again
            self._due.clear()
            failures = await self._try(failures)
            # No other code sets the event for the settlements that remain
            if failures:
                self._due.set()

    async def drain(self, seconds: float) -> bool:
        """Store all outcomes within at most ``seconds``; return True when none is left.

        Entries of the settlements left stay pending on the server. They are delivered to other consumers late, and
        perhaps again, but are not lost.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                failures = 0
                while not self.idle:
                    failures = await self._try(failures)
        return self.idle

    async def _try(self, failures: int) -> int:
        """Flush, and pause after a failure; return the number of failures in a row."""
        try:
            clean = await self.flush()
        except Disconnected:
            clean = False
        if clean:
            return 0
        await asyncio.sleep(self._member.pause(failures + 1))
        return failures + 1

    async def flush(self) -> bool:
        """Send all outcomes once; return False if the server refused some, which are kept for the next flush."""
        async with self._lock:  # drain() and run() must not send the same settlement twice
            self._ripe_off()
            clean = await self._flush_outcomes()
            # Letters are written even if an outcome was refused, since they use another key
            done = await self._dead.flush()
            await self.tell(self._dead.take_ended())
            return done and clean

    async def _flush_outcomes(self) -> bool:
        # Removed first: outcomes that arrive during the request are sent with the next flush
        acks, self._acks = self._acks, []
        others, self._others = self._others, []
        self._on_their_way = others
        notes, self._notes = self._notes, []
        if not acks and not others and not notes:
            return True
        try:
            # First: the process may be killed right afterwards, and the notes show that this is not a crash
            if notes:
                steps = [FenceStep(None, part, self._failures.rows(part)) for part in by_count(notes)]
                self._failures.heard(await self._fence.take(steps))
            clean = await self._send(acks, others)
        except (Disconnected, asyncio.CancelledError):
            self._notes[:0] = notes
            self._unsure = {*acks, *(one.held for one in others)}  # includes the earlier unsure ones, which were kept
            self._keep(acks, others)
            raise
        if not clean:
            self._keep(acks, others)
        return clean

    def _keep(self, acks: list[Held], others: list[Settlement]) -> None:
        """Put back the unconfirmed settlements, to send them again."""
        # In front, so that settlements stay in order; without those that a part of the replies has confirmed
        self._acks[:0] = [held for held in acks if held.state is State.ACKING]
        self._others[:0] = [one for one in others if one.unsettled]

    async def _send(self, acks: list[Held], others: list[Settlement]) -> bool:
        steps = self._steps(acks, others)
        if not steps:
            return True
        answers = await self._fence.take(steps)
        self._failures.heard(answers)
        self._delays.heard(answers)
        # Read every reply, also after a refused one, since their entries are confirmed
        refused = [answer for answer in answers if not self._settled(answer)]
        if acks and any(held.state is State.ACKED for held in acks):
            failpoints.reach("after_ack")
        self._expect(others)
        _reach("after", others)
        await self.tell([answer.step.entries[0] for answer in answers if answer.step.result and self._kept(answer)])
        return not refused

    def _kept(self, answer: Answer) -> bool:
        """Report whether a result was written; a result that cannot be written must not delay its entry."""
        if answer.unkept is not None and not self._unkept:
            log.warning("%s: a result was not written: %s", self._member.stream, answer.unkept)
        self._unkept = answer.unkept is not None
        return not self._unkept and bool(answer.entries) and not isinstance(answer.reply, ResponseError)

    async def tell(self, ended: Iterable[Held]) -> None:
        """Wake the processes that wait for these results."""
        hints = [part for held in ended if (job := job_of(held)) for part in record.hint(job, held.id.decode())]
        if hints:
            with contextlib.suppress(Disconnected):  # callers also poll for results
                await self._member.anywhere.calls(hints)

    async def report(self, held: Held, text: str) -> None:
        """Store the progress of a run whose publisher requested a result."""
        row = self._member.result_row(held, text)
        if row is None:
            return
        replies = await self._member.line.calls(row._replace(field=f"progress:{row.field}").commands)
        if isinstance(replies[0], ResponseError):
            raise replies[0]

    def _now(self) -> int:
        return self._member.clock.now().wall

    def unsent(self) -> list[FenceStep]:
        """Return the steps of unconfirmed acks, releases and retries, for a thread that sends them for this loop.

        A settlement that was sent may have arrived already; the fence then refuses it.
        """
        acks = [held for held in list(self._member.held.values()) if held.state is State.ACKING]
        return self._steps(acks, [one for one in (*self._on_their_way, *self._others) if one.unsettled])

    def _steps(self, acks: list[Held], others: list[Settlement]) -> list[FenceStep]:
        """Return the steps of one flush, with the failure log's rows to write or delete."""
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
                text = held.result or record.record("done", self._now(), value=None)
                result = member.result_row(held, record.with_tries(text, held.tries))
                alone: list[Held] = [held]
                steps.append(
                    FenceStep(move, alone, failures.farewell(alone), self._delays.farewell(alone), result=result)
                )
        _reach("before", others)
        # One command sets a single delivery count for all its entries
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
        """Process one answer; return False if the server refused the step for now.

        An entry that the fence refused belongs to another consumer, with one exception. The settlement may have arrived
        before, and only its reply was lost; then the entry is as that settlement left it.
        """
        member, reply = self._member, answer.reply
        if isinstance(reply, ResponseError):
            if not str(reply).startswith("NOGROUP"):
                log.warning("%s: an outcome was refused and is kept: %s", member.stream, reply)
                return False
            for held in answer.entries:
                member.lose(held)  # the group is gone, with its pending list
            return True
        for held, owner, count in answer.refused:
            # This process's own settlement arrived, and only its reply was lost
            if held in self._unsure and _is_done(held, owner, count):
                member.stats.acked += held.state is State.ACKING
                self._confirm([held])
            elif held.state is not State.LOST:
                member.stats.fenced += 1
                member.lose(held)
        # By identity, since a release or a retry has its own command
        if answer.step.move is self._ack_move:
            count = _acked(reply) if answer.entries else 0
            member.stats.acked += count
            member.stats.lost += len(answer.entries) - count  # without the script: others have acknowledged it
        self._confirm(answer.entries)
        # A reply arrived, so the state of these entries is known
        if self._unsure:
            self._unsure.difference_update(answer.step.entries)
        return True

    def _confirm(self, entries: Iterable[Held]) -> None:
        ours = self._member.held
        for held in entries:
            if held.state is not State.LOST and held.state is not State.ACKED:
                held.step(Event.CONFIRM)
            if ours.get(held.id) is held:  # otherwise it was released and delivered again
                del ours[held.id]

    def _expect(self, others: Iterable[Settlement]) -> None:
        """Schedule claims of the entries given back, at once or after their delay."""
        for one in others:
            held = one.held
            if held.state is State.RELEASED and one.charge:
                self.remind(held.id, 0)
            elif held.state is State.WAITING:
                self.remind(held.id, one.delay_ms)

    def remind(self, entry: bytes, delay_ms: int) -> None:
        """Have the loop claim an entry when it is due; a server without blocking claims does not announce retries."""
        if self.on_due is None:
            return
        # A few milliseconds late, so that the server agrees that the time has come
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
    """Reach the failpoints before or after the given settlements are sent."""
    events = {one.event for one in others}
    for event, name in ((Event.RELEASE, "release"), (Event.RETRY, "retry")):
        if event in events:
            failpoints.reach(f"{when}_{name}")


def _parted(acks: list[Held]) -> tuple[list[Held], list[Trailed]]:
    """Split entries into those without and those with a requested result."""
    jobs = [held for held in acks if isinstance(held, Trailed) and held.job is not None]
    return ([held for held in acks if job_of(held) is None] if jobs else acks), jobs


def _is_done(held: Held, owner: bytes, count: int) -> bool:
    """Report whether an entry that is no longer pending here is as its earlier outcome would have left it."""
    if held.state is State.ACKING:
        return count < 0
    # A delay moves the entry to a consumer for waiting entries, with an unchanged count
    if held.state is State.RETRYING:
        return owner == emulate.WAITING and held.deliveries - 1 <= count <= held.deliveries
    return held.state is State.RELEASING and owner == emulate.NOBODY and held.deliveries - 1 <= count <= held.deliveries


def _left_count(settlement: Settlement) -> int:
    """Return the delivery count that a delayed entry keeps."""
    return settlement.deliveries if settlement.charge else max(settlement.deliveries - 1, 0)


def _ack_move(member: Membership) -> Move:
    """Return the command that acks entries; with ``on_ack="delete"`` it also deletes entries that no group needs.

    It is XACKDEL ... ACKED if the server supports it. Otherwise the fence's script does both in one step.
    """
    if not member.delete_acked:
        return Move("XACK", member.group)
    if member.capabilities.xackdel:
        return Move("XACKDEL", member.group, "ACKED", "IDS")
    return Move("ACK+DELETE", member.group)


def _acked(reply: Reply) -> int:
    """Return the number of acked entries in a reply to :func:`_ack_move`."""
    return sum(one > 0 for one in reply) if isinstance(reply, list) else int(reply)
