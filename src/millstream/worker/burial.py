"""Dead letters: into the dead-letter stream and out of the pending list in one transaction, once.

The transaction watches the dead-letter stream and then looks whether the entry is still ours and still pending. Whoever
else buries the same entry writes to that stream, which breaks the transaction; and after a lost reply the second look
shows that the entry is pending no more. So an entry is dead at most once on any server with MULTI, EXEC and WATCH.
"""

import logging

from redis.exceptions import ResponseError

from millstream.client.line import Command
from millstream.worker import hooks
from millstream.worker.deadletter import DeadLetter, pack
from millstream.worker.membership import Held, Membership
from millstream.worker.records import Records
from millstream.worker.settle import Event, State

log = logging.getLogger("millstream.worker")

_BATCH = 50
_TRIES = 20


class Burials:
    """The entries of one consumer that are to be buried."""

    def __init__(self, member: Membership, records: Records) -> None:
        self._member = member
        self._records = records
        self._queue: list[tuple[Held, DeadLetter]] = []
        self._sent: set[bytes] = set()  # ids in transactions whose reply has not come (yet)

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
            hooks.reach("before_dead")
            async with self._member.guard:
                done = await self._bury(batch)
            if not done:
                return False
            del self._queue[: len(batch)]
            hooks.reach("after_dead")
            removals = self._records.removals(held for held, _ in batch if held.state is State.DEAD)
            if removals:
                self._records.heard(await self._member.line.calls(removals))
        return True

    async def _bury(self, batch: list[tuple[Held, DeadLetter]]) -> bool:
        member = self._member
        try:
            for _ in range(_TRIES):
                mine = await self._still_mine(batch)
                if not mine:
                    return True
                hooks.reach("in_dead")
                self._sent.update(held.id for held, _ in mine)
                if await member.private.atomic(self._commands(mine)) is not None:
                    self._confirm(mine)
                    return True
                self._sent.difference_update(held.id for held, _ in mine)  # nothing of it ran
        except ResponseError as refused:
            if str(refused).startswith("NOGROUP"):
                for held, _ in batch:
                    member.lose(held)
                return True
            log.error(  # noqa: TRY400 - the server's words say all, a traceback of ours nothing
                "%s: cannot write to the dead-letter stream, entries are kept: %s", member.dead, refused
            )
        return False

    async def _still_mine(self, batch: list[tuple[Held, DeadLetter]]) -> list[tuple[Held, DeadLetter]]:
        """Watch, then look; entries that are not ours any more are lost to us."""
        member = self._member
        if member.no_ack:
            return batch
        look: list[Command] = [("XPENDING", member.stream, member.group, held.id, held.id, 1) for held, _ in batch]
        # inside EXEC an XADD that fails would not hold up the XACK behind it
        watched, kind, *replies = await member.private.calls([("WATCH", member.dead), ("TYPE", member.dead), *look])
        if isinstance(kind, bytes) and kind not in (b"stream", b"none"):
            await member.private.calls([("UNWATCH",)])
            raise ResponseError(f"the key holds a {kind.decode()}, not a stream")
        owner = member.consumer.encode()
        mine = []
        for (held, letter), rows in zip(batch, replies, strict=True):
            if held.state is not State.BURYING:
                continue
            if isinstance(rows, ResponseError):
                raise rows
            if rows and rows[0][1] == owner and rows[0][3] == held.deliveries:
                mine.append((held, letter))
            elif not rows and self._was_ours(held):
                self._confirm([(held, letter)])
            else:
                member.lose(held)
        if isinstance(watched, ResponseError):
            raise watched
        if not mine:
            await member.private.calls([("UNWATCH",)])
        return mine

    def _was_ours(self, held: Held) -> bool:
        """True when a transaction was sent for it whose reply never came: it is pending no more because it ran."""
        return held.id in self._sent

    def _commands(self, batch: list[tuple[Held, DeadLetter]]) -> list[Command]:
        member = self._member
        trim = () if member.dead_maxlen is None else ("MAXLEN", "~", member.dead_maxlen)
        commands: list[Command] = []
        for held, letter in batch:
            commands.append(("XADD", member.dead, *trim, "*", *pack(letter)))
            if not member.no_ack:
                commands.append(("XACK", member.stream, member.group, held.id))
        return commands

    def _confirm(self, batch: list[tuple[Held, DeadLetter]]) -> None:
        member = self._member
        for held, letter in batch:
            if held.state is State.BURYING:
                held.step(Event.CONFIRM)
            member.drop(held)
            self._sent.discard(held.id)
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
            )
