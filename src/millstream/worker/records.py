"""The record of a group's failures: a hash beside the stream that tells crashes from failures.

::

    millstream:{orders}:tries:billing      hash, one for each stream and group: entry id -> "failures:pardoned:alone"

The words in braces are the stream's own hash tag, so that the record lies where the stream lies. An entry has a row
only from its first failure, or from its first claim after a crash, until its final outcome: an entry that is handled
the first time costs nothing. The hash ends a week after the last row was written.

A row lost, or a hash that may not be written, never loses an entry: its crashes are pardoned once more, or are counted
as failures are. What a row is good for is in :func:`millstream.worker.policy.course`.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from redis.exceptions import ResponseError

from millstream.client import emulate
from millstream.client.line import Command, Line, Reply
from millstream.client.slots import beside
from millstream.worker import hooks
from millstream.worker.membership import Held, Membership
from millstream.worker.policy import NO_RECORD, Course, Record, Retry, course

log = logging.getLogger("millstream.worker")

KEEP_SECONDS = 7 * 24 * 3600


def key(stream: str, group: str) -> str:
    """Key of the hash for one group of one stream, in the stream's slot."""
    return beside(stream, "tries", group)


class Records:
    """The rows of one group's record, as one consumer reads and writes them.

    Args:
        member: whose entries.
        retry: the policy that tells what a row means.
    """

    def __init__(self, member: Membership, retry: Retry) -> None:
        self._member = member
        self._retry = retry
        self._key = key(member.stream, member.group)
        #: those of the last look-up that must run alone; their deliveries are taken back until they do
        self.alone: list[Held] = []
        self._kept = True  # the last time something was written it was taken

    def course(self, held: Held) -> Course:
        """How to run an entry; TOGETHER is an entry whose pardon could not be stored."""
        found = course(self._retry, held.deliveries, held.record, kept=self._kept)
        return Course.ALONE if found is Course.TOGETHER else found

    # -- at a claim -------------------------------------------------------------------------------------------------

    async def look_up(self, claimed: list[Held], line: Line) -> None:
        """Read the rows of entries that were delivered before, pardon some, and take back what others were charged.

        When this returns, that is confirmed by the server: a crash after it is charged to none of them a second time.

        Raises:
            Disconnected: nothing is known.
        """
        self.alone = []
        (reply,) = await line.calls((("HMGET", self._key, *(held.id for held in claimed)),))
        if isinstance(reply, ResponseError):
            self._refused(reply)
            return
        pardoned, alone = [], []
        for held, row in zip(claimed, reply, strict=True):
            held.record = _parse(row)
            found = course(self._retry, held.deliveries, held.record, kept=self._kept)
            if found is Course.TOGETHER:
                pardoned.append((held, replace(held.record or NO_RECORD, pardoned=True)))
            elif found is Course.ALONE:
                alone.append(held)
        if not pardoned and not alone:
            return
        hooks.reach("before_pardon")
        writing = self._writing(pardoned) if pardoned else []
        replies = await line.calls([*writing, *self._recount(alone, -1)])
        if self._taken(replies[: len(writing)]):
            for held, record in pardoned:
                held.record = record
        for held in alone:
            held.deliveries -= 1
        self.alone = alone
        hooks.reach("after_pardon")

    async def charge(self, held: Held, *, alone: bool) -> bool:
        """Charge an entry its run, before it starts; False when it is not ours any more.

        Args:
            held: an entry that waited uncharged.
            alone: True when surely nothing runs beside it, which is noted.

        Raises:
            Disconnected: it may or may not be charged.
        """
        record = replace(held.record or NO_RECORD, alone=True)
        writing = self._writing([(held, record)]) if alone else []
        claimed, *written = await self._member.line.calls([*self._recount([held], +1), *writing])
        if isinstance(claimed, ResponseError) or not claimed:
            return False
        held.deliveries += 1
        if alone and self._taken(written):
            held.record = record
        return True

    def _recount(self, entries: list[Held], change: int) -> list[Command]:
        member = self._member
        counts = [(held.id, held.deliveries + change) for held in entries]
        return emulate.recount(member.stream, member.group, member.consumer, counts)

    # -- with an outcome --------------------------------------------------------------------------------------------

    @staticmethod
    def failed(held: Held) -> None:
        """This delivery ended with a word of the handler; :meth:`writes` stores it."""
        record = held.record or NO_RECORD
        held.record = replace(record, failures=record.failures + 1)

    def writes(self, entries: Iterable[Held]) -> list[Command]:
        """Commands that store what is known of entries that will be delivered again."""
        rows = [(held, held.record) for held in entries if held.record is not None]
        return self._writing(rows) if rows else []

    def removals(self, entries: Iterable[Held]) -> list[Command]:
        """Commands that forget entries that will never be delivered again."""
        return self.forget([held.id for held in entries if held.record is not None])

    def forget(self, ids: Sequence[bytes]) -> list[Command]:
        """The same by their ids."""
        return [("HDEL", self._key, *ids)] if ids else []

    def heard(self, replies: Sequence[Reply]) -> None:
        """Take note of what the server said to the commands made here."""
        self._taken(replies)

    def _writing(self, rows: Sequence[tuple[Held, Record]]) -> list[Command]:
        words = [word for held, record in rows for word in (held.id, _pack(record))]
        return [("HSET", self._key, *words), ("EXPIRE", self._key, KEEP_SECONDS)]

    def _taken(self, replies: Sequence[Reply]) -> bool:
        refused = next((reply for reply in replies if isinstance(reply, ResponseError)), None)
        if refused is not None:
            self._refused(refused)
            return False
        if replies:
            self._kept = True
        return True

    def _refused(self, error: ResponseError) -> None:
        if self._kept:
            log.warning(
                "%s: the record of failures cannot be kept, so failures and crashes count alike: %s (key %s; a user of "
                "the server needs the rights to it)",
                self._member.stream,
                error,
                self._key,
            )
        self._kept = False


def _pack(record: Record) -> str:
    return f"{record.failures}:{record.pardoned:d}:{record.alone:d}"


def _parse(row: bytes | None) -> Record | None:
    """The record in a row; None where there is none that can be read."""
    parts = (row or b"").split(b":")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return None
    failures, pardoned, alone = map(int, parts)
    return Record(failures, bool(pardoned), bool(alone))
