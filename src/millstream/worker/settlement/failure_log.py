"""The record of a group's failures: a hash beside the stream that tells crashes from failures.

::

    millstream:{orders}:tries:billing      hash, one for each stream and group: entry id -> "failures:uncharged:alone"

After these three numbers, a row may have a colon and the last failed tries with their errors
(:mod:`millstream.client.dead_letter.tries`). An earlier worker takes such a row for a lost one.

The braces contain the stream's own hash tag, so that the record is in the stream's slot. An entry has a row from its
first failure, or from its first claim after a crash, until its final outcome. An entry that is handled the first time
costs nothing. The hash expires a week after the last row was written.

A lost row, or a hash that cannot be written, never loses an entry. Then one more crash is not charged to the entry, or
its crashes count as failures do. :func:`millstream.worker.model.retry.run_mode` describes the use of a row.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from redis.exceptions import ResponseError

from millstream import failpoints
from millstream.client import emulate
from millstream.client.dead_letter.tries import FailedTry, added, parse_tries, tries_text
from millstream.client.line import Command, Line
from millstream.client.slots import beside
from millstream.worker.model.lifecycle import State
from millstream.worker.model.retry import NO_RECORD, FailureRecord, Retry, RunMode, run_mode
from millstream.worker.settlement import spare
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.fence import Answer, Fence, FenceStep, by_count
from millstream.worker.settlement.fence_scripts import FORGET

log = logging.getLogger("millstream.worker")


#: Record after a first crash, and its row. Most entries that a crashed worker leaves have never failed.
_FIRST = FailureRecord(uncharged=True)
_FIRST_ROW = "0:1:0"


def key(stream: str, group: str) -> str:
    """Return the key of the hash for one group of one stream, in the stream's slot."""
    return beside(stream, "tries", group)


class FailureLog:
    """Reads and writes the rows of one group's record, for one consumer."""

    def __init__(self, member: Membership, fence: Fence, retry: Retry, hand_over: spare.HandOver | None = None) -> None:
        self._member = member
        self._fence = fence
        self._retry = retry
        self._hand_over = hand_over  # None if suspects stay in this process
        #: Key of the hash
        self.key = key(member.stream, member.group)
        #: Entries of the last look-up that must run alone; until then their deliveries are not counted
        self.alone: list[Held] = []
        #: In the spare process: True while each entry runs alone from its first crash on
        self.each_alone = False
        self._kept = True  # True if the last write succeeded

    def run_mode(self, held: Held) -> RunMode:
        """Return the way to run an entry; ALONE if its first crash could not be stored as not charged."""
        found = self._mode(held)
        return RunMode.ALONE if found is RunMode.TOGETHER else found

    def _mode(self, held: Held) -> RunMode:
        found = run_mode(self._retry, held.deliveries, held.record, kept=self._kept, ended_spare=spare.ended_by_itself)
        if found is RunMode.DEAD and self._hand_over is not None and held.record and spare.may_run(held.record.alone):
            return RunMode.ALONE  # given back: that spare process may be stopped, or too slow to renew its lease
        return found

    def died_alone(self, held: Held) -> bool:
        """Report whether an entry must become a dead letter and has certainly ended a process."""
        return held.record is not None and bool(held.record.alone) and self.run_mode(held) is RunMode.DEAD

    # -- at a claim -------------------------------------------------------------------------------------------------

    def question(self, ids: Iterable[bytes]) -> Command:
        """Return the command that reads the rows of these entries."""
        return ("HMGET", self.key, *ids)

    async def look_up(self, claimed: list[Held], rows: dict[bytes, bytes | None], line: Line) -> None:
        """Read the rows of claimed entries, and decide how each is run.

        The first crash of an entry is stored as not charged. The delivery of an entry that must run alone is taken
        back. The server has confirmed both when this returns.
        """
        self.alone = []
        unknown = [held.id for held in claimed if held.id not in rows]
        if unknown:
            (reply,) = await line.calls((self.question(unknown),))
            if isinstance(reply, ResponseError):
                self._refused(reply)
                return
            rows.update(zip(unknown, reply, strict=True))
        first_crash, alone, once = [], [], []
        for held in claimed:
            row = rows[held.id]
            record = held.record = None if row is None else parse(row)
            found = self._mode(held)
            if found is RunMode.TOGETHER and self.each_alone:
                held.record = replace(record or NO_RECORD, uncharged=True)  # stored with the charge, before its run
                alone.append(held)
            elif found is RunMode.TOGETHER:
                first_crash.append((held, _FIRST if record is None else replace(record, uncharged=True)))
            elif found is RunMode.ALONE:
                alone.append(held)
            elif found is RunMode.NORMAL and record is not None and (record.uncharged or record.alone):
                once.append(held)  # it was released since its crash, or has failed
        if self._hand_over is not None and (first_crash or alone or once):
            await self._hand_over.give([*(held for held, _ in first_crash), *alone, *once], line)
            first_crash = [row for row in first_crash if row[0].state is State.BUFFERED]
            alone = [held for held in alone if held.state is State.BUFFERED]
        if not first_crash and not alone:
            return
        failpoints.reach("before_uncharge")
        await self._store(first_crash, alone, line)
        failpoints.reach("after_uncharge")

    async def _store(self, first_crash: list[tuple[Held, FailureRecord]], alone: list[Held], line: Line) -> None:
        """Store that first crashes are not charged, and take back the deliveries of entries that must run alone."""
        records = dict(first_crash)
        # Stored before any of them starts, so that the first crash after it is not charged
        notes = [FenceStep(None, part, [_pack(records[held]) for held in part]) for part in by_count(records)]
        answers = await self._fence.take([*notes, *self._uncharging(alone)], line)
        self._drop_refused(answers)
        if self.heard(answers):
            for held, record in first_crash:
                held.record = record
        for held in alone:
            # The server now counts one delivery less, and the fence compares with this number
            held.deliveries -= 1
        self.alone = alone

    async def uncharge(self, held: Held) -> None:
        """Take back the delivery of one entry that must run alone; it is lost if this consumer no longer owns it."""
        self._drop_refused(await self._fence.take(self._uncharging([held])))
        held.deliveries -= 1

    def _uncharging(self, entries: Sequence[Held]) -> list[FenceStep]:
        group, consumer = self._member.group, self._member.consumer
        return [FenceStep(emulate.recount(group, consumer, part[0].deliveries - 1), part) for part in by_count(entries)]

    def _drop_refused(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            for held, _, _ in answer.refused:
                self._member.lose(held)

    async def charge(self, held: Held, *, alone: bool) -> bool:
        """Count the delivery of an entry before its run starts; return False if this consumer no longer owns it."""
        # Written with the count in one step: a crash in between would be charged without the mark
        record = replace(held.record or NO_RECORD, alone=spare.mark())
        move = emulate.recount(self._member.group, self._member.consumer, held.deliveries + 1)
        (answer,) = await self._fence.take([FenceStep(move, [held], [_pack(record)] if alone else None)])
        # The entry is lost, refused or not pending, so it must not run
        if not answer.entries or isinstance(answer.reply, ResponseError) or not answer.reply:
            return False
        held.deliveries += 1
        if self.heard([answer]) and alone:
            held.record = record
        return True

    @staticmethod
    def row(held: Held) -> str:
        """Return the row of an entry with its current facts."""
        return _pack(held.record or NO_RECORD)

    @staticmethod
    def alone_row(held: Held) -> str:
        """Return the row of an entry whose process is about to be killed for it.

        The crash is certainly its own, whatever else ran.
        """
        return _pack(replace(held.record or NO_RECORD, alone=spare.mark()))

    # -- with an outcome --------------------------------------------------------------------------------------------

    def failed(self, held: Held, error: str) -> None:
        """Note that this delivery ended as a failure; it is stored with the outcome, see :meth:`rows`.

        Only the error of a noted entry is replaced, since its failure is counted.
        """
        self.survived(held)
        record = held.record or NO_RECORD
        one = FailedTry(self._member.clock.now().wall, self._member.consumer, error)
        held.record = replace(record, failures=record.failures + (not held.noted), tries=added(held.tries, one))

    @staticmethod
    def survived(held: Held) -> None:
        """Note that a run ended and its process did not, so that having run alone proves nothing now."""
        if held.record is not None and held.record.alone:
            held.record = replace(held.record, alone=int(not held.record.uncharged))

    @staticmethod
    def rows(entries: Sequence[Held]) -> list[str] | None:
        """Return the rows to write with a step after which entries are delivered again; None without any."""
        if not any(held.record is not None for held in entries):
            return None
        return [_pack(held.record) if held.record is not None else "" for held in entries]

    @staticmethod
    def farewell(entries: Sequence[Held]) -> list[str] | None:
        """Return the rows to delete with a step after which entries are never delivered again; None without any."""
        if not any(held.record is not None for held in entries):
            return None
        return [FORGET if held.record is not None else "" for held in entries]

    def forget(self, ids: Sequence[bytes]) -> list[Command]:
        """Return commands that delete the rows of entries that are gone."""
        return [("HDEL", self.key, *ids)] if ids else []

    def heard(self, answers: Iterable[Answer]) -> bool:
        """Note whether rows were written; return False if some were refused."""
        written = [answer for answer in answers if answer.step.rows]
        for answer in written:
            # A step without a command only reports about its rows
            whole = answer.reply if answer.step.move is None else None
            trouble = whole if isinstance(whole, ResponseError) else answer.trouble
            if trouble is not None:
                self._refused(trouble)
                return False
        if written:
            self._kept = True
        return True

    def _refused(self, error: ResponseError) -> None:
        # Logged only once until a write succeeds again, since each flush would repeat it
        if self._kept:
            log.warning(
                "%s: the record of failures cannot be kept, so failures and crashes count alike: %s (key %s; a user of "
                "the server needs the rights to it)",
                self._member.stream,
                error,
                self.key,
            )
        self._kept = False


def _pack(record: FailureRecord) -> str:
    if record is _FIRST:
        return _FIRST_ROW
    tries = f":{tries_text(record.tries)}" if record.tries else ""
    return f"{record.failures}:{record.uncharged:d}:{record.alone}{tries}"


def parse(row: bytes) -> FailureRecord | None:
    """Return the record in a row; None if it cannot be parsed."""
    numbers, tries = (parts := row.split(b":", 3))[:3], parts[3:]
    # Any client may write this hash, and `int` raises for some digit strings, such as very long ones
    if len(numbers) != 3 or not all(part.isdigit() and len(part) < 20 for part in numbers):
        return None
    failures, uncharged, alone = map(int, numbers)
    return FailureRecord(failures, bool(uncharged), alone, parse_tries(tries[0]) if tries else ())
