"""Dead letters: into the dead-letter stream and out of the pending list in one step, once.

The step is a script: it looks whether the entry is still ours, adds the letter, and acks the entry only if that worked,
whatever may have hindered it. After a lost reply the entry is pending no more, which tells that the letter is there.

Where scripts may not be run, and for letters with more words than a script can pass on, it is a transaction that
watches the dead-letter stream and then looks whether the entry is still ours and still pending. Whoever else buries the
same entry writes to that stream, which breaks the transaction. So an entry is dead at most once on any server.
"""

import logging
from collections.abc import Sequence
from functools import partial

from redis.exceptions import NoScriptError, ResponseError

from millstream import failpoints
from millstream.client import emulate
from millstream.client.deadletter import DeadLetter, hindrance, pack
from millstream.client.line import Command, Reply, Withheld
from millstream.worker.model.lifecycle import Event, State
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.failure_log import Records
from millstream.worker.settlement.fence import Fence, no_script
from millstream.worker.settlement.fence_scripts import BURIED, BURY_SHA, FIELDS_LIMIT, NOT_PENDING

log = logging.getLogger("millstream.worker")

_BATCH = 50
_TRIES = 20

Corpse = tuple[Held, DeadLetter]


class Burials:
    """The entries of one consumer that are to be buried."""

    def __init__(self, member: Membership, fence: Fence, records: Records) -> None:
        self._member = member
        self._fence = fence
        self._records = records
        self._queue: list[Corpse] = []
        self._unsure: set[bytes] = set()  # ids whose burial was sent, and no reply came (yet)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, held: Held, letter: DeadLetter) -> None:
        """Bury this entry at the next flush."""
        self._queue.append((held, letter))

    async def flush(self) -> bool:
        """Bury all; False when the server refused or others kept coming first, and some are left for another time.

        Raises:
            Disconnected: what was not confirmed is kept.
        """
        while self._queue:
            batch = self._queue[:_BATCH]
            failpoints.reach("before_dead")
            done = await self._bury([one for one in batch if one[0].state is State.BURYING])
            self._queue = [one for one in self._queue if one[0].state is State.BURYING]
            if not done:
                return False
            failpoints.reach("after_dead")
        return True

    async def _bury(self, batch: list[Corpse]) -> bool:
        """Bury these; False when some are left, and the log says why."""
        large = [one for one in batch if len(one[1].fields) > FIELDS_LIMIT]
        if self._member.no_ack or self._fence.refusal is not None:
            large = batch
        try:
            done = len(large) == len(batch) or await self._bury_at_once([one for one in batch if one not in large])
            return (not large or await self._bury_watched(large)) and done
        except ResponseError as refused:
            if str(refused).startswith("NOGROUP"):
                for held, _ in batch:
                    self._member.lose(held)
                return True
            log.error(  # noqa: TRY400 - the server's words say all, a traceback of ours nothing
                "%s: cannot write to the dead-letter stream, entries are kept: %s", self._member.dead, refused
            )
        return False

    def _trim(self) -> tuple[str | int, ...]:
        return () if self._member.dead_maxlen is None else ("MAXLEN", "~", self._member.dead_maxlen)

    # -- by a script ------------------------------------------------------------------------------------------------

    async def _bury_at_once(self, batch: list[Corpse]) -> bool:
        member = self._member
        trim = self._trim()
        record = self._records.key if any(held.record is not None for held, _ in batch) else ""
        words: list[bytes | str | int] = [member.group, member.consumer, record, len(trim), *trim]
        for held, letter in batch:
            packed = pack(letter)
            words += [held.id, held.deliveries, len(packed), *packed]
        failpoints.reach("in_dead")
        before, self._unsure = self._unsure, self._unsure | {held.id for held, _ in batch}
        (reply,) = await member.line.calls([("EVALSHA", BURY_SHA, 2, member.stream, member.dead, *words)])
        self._unsure = before
        if not isinstance(reply, ResponseError):
            return self._take_note(batch, reply)
        if no_script(reply):
            await self._fence.prepare(member.line)
            if isinstance(reply, NoScriptError) or self._fence.refusal is not None:
                return False  # at the next try the script is there, or the other way is taken
        raise reply

    def _take_note(self, batch: list[Corpse], verdicts: Sequence[Reply]) -> bool:
        refused: bytes | None = None
        for (held, letter), verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, bytes):
                refused = verdict
            elif verdict == BURIED or (verdict == NOT_PENDING and held.id in self._unsure):
                self._confirm([(held, letter)])
            else:
                self._member.stats.fenced += 1
                self._lose(held)
        if refused is not None:
            raise ResponseError(refused.decode(errors="replace"))
        return True

    def _lose(self, held: Held) -> None:
        self._unsure.discard(held.id)
        self._member.lose(held)

    # -- by a transaction -------------------------------------------------------------------------------------------

    async def _bury_watched(self, batch: list[Corpse]) -> bool:
        member = self._member
        async with member.guard:
            for _ in range(_TRIES):
                mine = await self._still_mine(batch)
                if not mine:
                    return True
                failpoints.reach("in_dead")
                before, self._unsure = self._unsure, self._unsure | {held.id for held, _ in mine}
                try:
                    replies = await member.private.atomic(self._commands(mine), only_if=partial(self._fresh, mine))
                except Withheld:
                    replies = None  # we were frozen after the look; look again
                self._unsure = before  # it ran, or nothing of it did
                if replies is not None:
                    await self._check(mine, replies)
                    return True
        return False

    async def _still_mine(self, batch: list[Corpse]) -> list[Corpse]:
        """Watch, then look; entries that are not ours any more are lost to us."""
        member = self._member
        if member.no_ack:
            return batch
        look: list[Command] = [("XPENDING", member.stream, member.group, held.id, held.id, 1) for held, _ in batch]
        dead: list[Command] = [("WATCH", member.dead), ("TYPE", member.dead), ("XINFO", "STREAM", member.dead)]
        now = member.clock.now().mono
        watched, kind, info, *replies = await member.private.calls([*dead, *look])
        refused = next((one for one in (watched, *replies) if isinstance(one, ResponseError)), None)
        if refused is None and (told := hindrance(kind, info, len(batch))) is not None:
            refused = ResponseError(f"the key {told}")
        if refused is not None:
            await member.private.calls([("UNWATCH",)])
            raise refused
        owner = member.consumer.encode()
        mine = []
        for (held, letter), rows in zip(batch, replies, strict=True):
            if held.state is not State.BURYING:
                continue
            if rows and rows[0][1] == owner and rows[0][3] == held.deliveries:
                held.leased = now
                mine.append((held, letter))
            elif not rows and held.id in self._unsure:
                self._confirm([(held, letter)])  # it is pending no more because the transaction ran
            else:
                member.stats.fenced += 1
                self._lose(held)
        if not mine:
            await member.private.calls([("UNWATCH",)])
        return mine

    def _fresh(self, batch: list[Corpse]) -> bool:
        return not self._member.stale_among([held for held, _ in batch])

    def _commands(self, batch: list[Corpse]) -> list[Command]:
        member = self._member
        commands: list[Command] = []
        for held, letter in batch:
            commands.append(("XADD", member.dead, *self._trim(), "*", *pack(letter)))
            if not member.no_ack:
                commands.append(("XACK", member.stream, member.group, held.id))
        return commands

    async def _check(self, batch: list[Corpse], replies: list[Reply]) -> None:
        """Inside EXEC an XADD that fails does not hold up the XACK behind it: what was acked so is made pending again.

        :meth:`_still_mine` has seen to it that nothing known makes it fail.
        """
        member = self._member
        added = replies if member.no_ack else replies[::2]
        failed = [(one, reply) for one, reply in zip(batch, added, strict=True) if isinstance(reply, ResponseError)]
        lost = [one for one, _ in failed]
        self._confirm([one for one in batch if one not in lost])
        if not failed:
            gone = self._records.forget([held.id for held, _ in batch if held.record is not None])
            if gone:
                await member.line.calls(gone)
            return
        if not member.no_ack:
            back = [emulate.recount(member.group, member.consumer, held.deliveries) for held, _ in lost]
            again = zip(back, lost, strict=True)
            await member.line.calls([(*move.command(member.stream, [one[0].id]), "FORCE") for move, one in again])
        raise failed[0][1]

    # -- both ways --------------------------------------------------------------------------------------------------

    def _confirm(self, batch: list[Corpse]) -> None:
        member = self._member
        for held, letter in batch:
            if held.state is State.BURYING:
                held.step(Event.CONFIRM)
            member.drop(held)
            self._unsure.discard(held.id)
            member.stats.dead += 1
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
