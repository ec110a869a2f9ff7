"""The worker's dead letters: dead entries wait here, and the shared transaction moves them to the dead-letter stream.

:mod:`millstream.client.dead_letter.transaction` describes the step and why it happens once. This module chooses between
its two ways, updates the worker's state, and tries again.
"""

import logging
from functools import partial

from redis.exceptions import NoScriptError

from millstream import failpoints
from millstream.client.dead_letter import transaction
from millstream.client.dead_letter.drive import drive
from millstream.client.delays import due
from millstream.client.line import Command
from millstream.worker.model.lifecycle import Event
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.failure_log import FailureLog
from millstream.worker.settlement.fence import Fence, no_script
from millstream.worker.settlement.settlement import DeadSettlement

log = logging.getLogger("millstream.worker")

#: Largest number of reads of the dead-letter stream in one flush, while other clients keep writing to it.
_TRIES = 20


class DeadLetterWriter:
    """Writes the dead letters of one consumer."""

    def __init__(self, member: Membership, fence: Fence, failures: FailureLog) -> None:
        self._member = member
        self._fence = fence
        self._failures = failures
        self._queue: list[DeadSettlement] = []
        self._ended: list[Held] = []  # dead entries whose publishers wait for a result
        self._asked_at = 0  # monotonic milliseconds at which the last commands were sent
        self._unsure: transaction.Unsure = {}  # entries whose step got no reply and may have been written

    def __bool__(self) -> bool:
        return bool(self._queue)

    def take_ended(self) -> list[Held]:
        """Return the entries that became dead letters since the last call and whose publishers requested a result."""
        ended, self._ended = self._ended, []
        return ended

    def add(self, settlement: DeadSettlement) -> None:
        """Write this entry's dead letter at the next flush."""
        self._queue.append(settlement)

    async def flush(self) -> bool:
        """Write all dead letters; return False if some are left.

        Some are left if the server refused, or if other clients kept writing to the dead-letter stream.
        """
        while self._queue:
            batch = [one for one in self._queue[: transaction.BATCH] if one.unsettled]
            failpoints.reach("before_dead")
            done = await self._write(batch)
            self._queue = [one for one in self._queue if one.unsettled]
            if not done:
                return False
            failpoints.reach("after_dead")
        return True

    async def _write(self, batch: list[DeadSettlement]) -> bool:
        """Write these dead letters; return False if some are left, and log the reason.

        A refused step is tried without end. An entry without a stored outcome stays pending for this consumer, until an
        operator frees the key, grants the right, or makes room.
        """
        # After an EXEC without a reply, the letter may exist, which only the transaction checks
        since_exec = [ident for ident, after in self._unsure.items() if after is not None]
        large = [one for one in batch if len(one.letter.fields) > transaction.FIELDS_LIMIT or one.id in since_exec]
        if self._member.no_ack or self._fence.refusal is not None:
            large = batch
        try:
            done = len(large) == len(batch) or await self._by_script([one for one in batch if one not in large])
            # The transactions run even if the script left some letters, since those are other entries
            return (not large or await self._by_transaction(large)) and done
        except transaction.LettersRefusedError as refused:
            if str(refused).startswith("NOGROUP"):
                # The group is gone with its pending list, so there is nothing to write
                for one in batch:
                    self._member.lose(one.held)
                return True
            log.error(  # noqa: TRY400 - the server's words say all, a traceback of ours nothing
                "%s: cannot write to the dead-letter stream, entries are kept: %s", self._member.dead, refused
            )
        return False

    def _transaction(self, batch: list[DeadSettlement]) -> transaction.DeadLetterTransaction[DeadSettlement]:
        member = self._member
        failures = self._failures.key if any(one.held.record is not None for one in batch) else ""
        route = transaction.DeadLetterRoute(
            member.stream,
            member.group,
            member.consumer,
            member.dead,
            failures=failures,
            due=due.key(member.stream, member.group) if any(one.held.was_due for one in batch) else "",
            maxlen=member.dead_maxlen,
            no_ack=member.no_ack,
        )
        return transaction.DeadLetterTransaction(route, self._unsure, self._report)

    async def _by_script(self, batch: list[DeadSettlement]) -> bool:
        member = self._member
        try:
            await drive(self._transaction(batch).by_script(batch), member.line, sending=self._sending)
        except transaction.LettersRefusedError as refused:
            if not no_script(refused.reply):
                raise
            await self._fence.prepare(member.line)
            if isinstance(refused.reply, NoScriptError) or self._fence.refusal is not None:
                return False  # the next attempt has the script, or uses a transaction
            raise
        return True

    async def _by_transaction(self, batch: list[DeadSettlement]) -> bool:
        member = self._member
        exchange = self._transaction(batch).by_transaction(batch, _TRIES)
        async with member.guard:  # a WATCH belongs to the connection, which all subscribers of an app share
            # A process that was suspended after the check must check again: it may have lost the entries
            return await drive(exchange, member.private, only_if=partial(self._fresh, batch), sending=self._sending)

    def _sending(self, commands: list[Command]) -> None:
        """Note the time before commands are sent."""
        self._asked_at = self._member.clock.now().mono
        if commands[0][0] in ("EVALSHA", "MULTI"):
            failpoints.reach("in_dead")

    def _fresh(self, batch: list[DeadSettlement]) -> bool:
        return not self._member.stale_among([one.held for one in batch if one.unsettled])

    def _report(self, one: DeadSettlement, fate: transaction.Fate) -> None:
        """Update the worker's state with the fate of one entry; called once for each fate, and never waits."""
        member, held, letter = self._member, one.held, one.letter
        if fate is transaction.Fate.OURS:
            held.leased = self._asked_at  # the time of the request, since the reply may be late
            return
        if fate is transaction.Fate.LOST:
            member.stats.fenced += 1
            member.lose(held)
            return
        # The entry counts as dead even if it is lost meanwhile, since its letter is written
        if one.unsettled:
            held.step(Event.CONFIRM)
        member.drop(held)
        member.stats.dead += 1
        if one.result is not None:
            self._ended.append(held)
        member.reasons[letter.reason] += 1
        log.error(
            "dead letter: %s %s group=%s deliveries=%d reason=%s %s",
            letter.stream,
            letter.id,
            letter.group,
            letter.deliveries,
            letter.reason,
            letter.error.splitlines()[0][:300] if letter.error else "",
            extra=member.about(held),
        )
