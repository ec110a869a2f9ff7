"""The delays of one group's entries, as one worker stores and obeys them; see :mod:`millstream.client.delays.due`.

Each read that may claim sends :meth:`EntryDelays.hold` before it in the same request. It does so often enough that no
entry is idle for ``min_idle`` before it is due. So a claim returns no delayed entry, no matter which process delayed
it, even if that process has died. A claim may still return some if this process was frozen or may not run scripts.
Those are put back as if they were not claimed.
"""

import logging
from collections.abc import Iterable, Sequence

from redis.exceptions import NoScriptError, ResponseError

from millstream.client import emulate
from millstream.client.delays import due
from millstream.client.line import Command, Line, Reply
from millstream.worker.model.lifecycle import Event, State
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.fence import Answer, Fence, FenceStep

log = logging.getLogger("millstream.worker")


class EntryDelays:
    """Reads and writes the due times of one group, for one consumer."""

    def __init__(self, member: Membership, fence: Fence) -> None:
        self._member = member
        self._fence = fence
        self._held_at: int | None = None  # monotonic milliseconds of the last hold of delayed entries
        self._some = True  # True unless the group is known to have no due times
        self.many = False  # True if the group has more due times than one page
        self._kept = True  # True if the last write of due times succeeded
        #: Milliseconds before each looked-up entry is due, without entries that are due already
        self.left: dict[bytes, int] = {}

    # -- before a claim ---------------------------------------------------------------------------------------------

    def hold(self, *, whole: bool = False) -> tuple[Command, ...]:
        """Return the command to send before a read; empty if one was sent lately. Pass its reply to :meth:`held`.

        ``whole`` begins a search, even if another process made one lately.

        A read blocks for half of ``min_idle`` at most. So once in a quarter is enough to keep delayed entries below
        ``min_idle``. While the group has no due times, the command only checks for them.
        """
        member, now = self._member, self._member.clock.now().mono
        lately = self._held_at is not None and now - self._held_at < member.min_idle // 4
        if member.no_ack or self._fence.refusal is not None or (lately and not whole):
            return ()
        # The time of the request, not of the reply, since entries idle meanwhile
        self._held_at = now
        if not self._some and not whole:
            return (("ZCARD", due.key(member.stream, member.group)),)
        return (self._page(0, -1 if whole else 0, whole=whole),)

    async def held(self, reply: Reply, line: Line) -> list[bytes]:
        """Process the reply to :meth:`hold`; hold the other entries too if not all fit into one step.

        Returns:
            ids of entries that left the stream while they waited.
        """
        gone: list[bytes] = []
        first = begun = 0
        if reply == 0:
            return gone
        # There are due times after all, or the script is not cached: send the script itself
        if isinstance(reply, int | NoScriptError):
            (reply,) = await line.calls((self._page(0, whole=True),))
        self._some = isinstance(reply, list) and reply[2] > 0
        self.many = self._some and reply[2] > due.PAGE
        if self._some and self._held_at is not None:
            self._held_at -= reply[4]  # Another searched then; one under way is as old as makes us ask again
        # The script handles one page at a time, so that it never blocks the server for long
        while isinstance(reply, list):
            looked, lost, _, begun, _ = reply
            gone += lost
            first += due.PAGE
            if looked < due.PAGE:
                break
            (reply,) = await line.calls((self._page(first, begun),))
        return gone

    def _page(self, first: int, begun: int = 0, *, whole: bool = False) -> Command:
        member = self._member
        return due.hold(member.stream, member.group, member.min_idle, first=first, begun=begun, whole=whole)

    # -- after a claim ----------------------------------------------------------------------------------------------

    def question(self, ids: Sequence[bytes]) -> tuple[Command, Command]:
        """Return the commands that read the due times of entries; pass their replies to :meth:`answered`."""
        return due.question(self._member.stream, self._member.group, ids)

    def answered(self, ids: Sequence[bytes], time: Reply, scores: Reply) -> None:
        """Store the due times in the replies."""
        self.left |= due.remaining(ids, time, scores)
        for entry in due.noted(ids, scores):
            held = self._member.held.get(entry)
            if held is not None:
                held.was_due = True

    async def put_back(self, claimed: Iterable[Held], line: Line) -> list[Held]:
        """Put claimed entries that are not due back to waiting, uncharged; return these, which this consumer lost."""
        member = self._member
        early = [held for held in claimed if held.id in self.left and held.state is State.BUFFERED]
        alike: dict[tuple[int, int], list[Held]] = {}
        for held in early:
            # One command sets one count and one idle time for all its entries
            alike.setdefault((held.deliveries, min(self.left[held.id], member.min_idle)), []).append(held)
        steps = [
            FenceStep(
                emulate.delay(member.group, deliveries=count - 1, delay_ms=left, min_idle_ms=member.min_idle), part
            )
            for (count, left), part in alike.items()
        ]
        if steps:
            await self._fence.take(steps, line)
        for held in early:
            # Also if the fence refused, because another consumer owns it then
            held.step(Event.LOSE)
            member.drop(held)
        return early

    # -- with an outcome --------------------------------------------------------------------------------------------

    @staticmethod
    def farewell(entries: Iterable[Held]) -> int | None:
        """Return the due time for a step that ends entries for good: 0 deletes it, None if none is stored."""
        return 0 if any(held.was_due for held in entries) else None

    def heard(self, answers: Iterable[Answer]) -> None:
        """Note whether due times were written."""
        for answer in answers:
            if answer.step.due and answer.late is not None:
                self._refused(answer.late)
            elif answer.step.due and answer.entries:
                self._kept = self._some = True

    def _refused(self, error: ResponseError) -> None:
        member = self._member
        if self._kept:
            log.warning(
                "%s: it cannot be stored when delayed entries are due, so after %d s (min_idle_time) they are run: %s "
                "(key %s; a user of the server needs the rights to it)",
                member.stream,
                member.min_idle // 1000,
                error,
                due.key(member.stream, member.group),
            )
        self._kept = False
