"""The fence of reads: the server delivers entries of a partition to its owner only.

The loop's own connection keeps a ``WATCH`` of the owner key, and has read the key since. A read is a transaction with
the next read of the key after it: one round trip. The server refuses it once the key expired, changed its owner or was
renewed, and the read of the key shows which. A new connection sends WATCH before any other command.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from millstream import failpoints
from millstream.client import emulate
from millstream.client.line import Command, Disconnected, Line, Reply, Withheld, passes
from millstream.client.partitions.lease import PartitionLease
from millstream.client.ranges import behind
from millstream.worker.model.errors import FatalError, LeaseLost

_PAGE = 500


class ReadFence:
    """Fences the reads of one connection."""

    def __init__(self, line: Line, lease: PartitionLease, lost: Callable[[], None]) -> None:
        self._line = line
        self._lease = lease
        self._lost = lost
        self._text = lease.text.encode()
        self._watch: tuple[Command, ...] = (("WATCH", lease.key), ("GET", lease.key))
        self._connects = 0  # connection on which the owner was checked
        self._ours = False  # result of the last check
        #: Number of transactions that the server refused
        self.refused = 0

    async def calls(self, before: Sequence[Command], commands: Sequence[Command], within: float | None) -> list[Reply]:
        """Send ``before`` unfenced, then the commands for the owner only, and return all replies.

        Raises:
            LeaseLost: another worker owns the partition; nothing was delivered.
        """
        first: list[Reply] = []
        ahead, fenced = list(before), (("MULTI",), *commands, ("EXEC",), *self._watch)
        while True:
            failpoints.reach("before_fenced_read")
            try:
                replies = await self._line.calls((*ahead, *fenced), timeout=within, only_if=self._is_ours)
            except Withheld:
                raise self._gone() from None
            # A second round must not send ``before`` again: it is outside of MULTI, so the server has run it
            first, replies, ahead = first or replies[: len(ahead)], replies[len(ahead) :], []
            result, holder = replies[-3], replies[-1]
            self._ours = holder == self._text
            if isinstance(result, list):
                return [*first, *result]
            # EXEC only reports that it was aborted; the reply to a queued command contains the reason
            if isinstance(result, ResponseError):
                reason = next((one for one in replies if isinstance(one, ResponseError)), result)
                return [*first, *(reason for _ in commands)]
            # EXEC replied null, so the key of the lease has changed since WATCH. A renewal by this worker also does
            # that: then the new check finds its own name, and the commands are sent again
            self.refused += 1
            if not self._ours:
                raise self._gone()

    def _is_ours(self) -> bool:
        """Report the result of the last look at the owner key, or of the greeting of a new connection."""
        if self._line.connects != self._connects:
            self._connects = self._line.connects
            greeting = self._line.greeting
            self._ours = len(greeting) == 3 and greeting[2] == self._text
        return self._ours

    def _gone(self) -> LeaseLost:
        self._lost()
        return LeaseLost(f"{self._lease.stream}: another owns the partition")

    async def take_over(self) -> list[bytes]:
        """Claim every pending entry from its consumer, so that no earlier owner settles it.

        Later claims find all of them at once. A delayed entry keeps its due time. An entry that was held when its owner
        ended counts as after any crash.

        Returns:
            ids of all pending entries.

        Raises:
            LeaseLost: another worker owns the partition.
            FatalError: the server refuses the command.
        """
        pending: list[bytes] = []
        async for rows in self._pages():
            pending += [row[0] for row in rows]
            # These two names own no running entry, and a claim would change the time of a delayed one
            await self._pass_on([row[0] for row in rows if row[1] not in (emulate.WAITING, emulate.NOBODY)])
        return pending

    async def take_back(self, held: Iterable[bytes]) -> bool:
        """Claim this consumer's pending entries that are not held: a read whose reply is lost delivered them.

        Such a delivery is not charged, since nothing was run. The next claims find the entries.

        Returns:
            True if there were any.

        Raises:
            LeaseLost: another worker owns the partition.
            FatalError: the server refuses the command.
        """
        found, ours = False, set(held)  # as of before the request: an outcome may be stored before its reply is read
        async for rows in self._pages(self._lease.consumer):
            by_count: defaultdict[int, list[bytes]] = defaultdict(list)
            for entry, _, _, deliveries in rows:
                if entry not in ours:
                    by_count[max(deliveries - 1, 0)].append(entry)
            for count, ids in by_count.items():
                await self._pass_on(ids, "RETRYCOUNT", count)
            found = found or bool(by_count)
        return found

    async def _pages(self, *consumer: str) -> AsyncIterator[list[Any]]:
        """Yield the pending entries of one consumer, or of all, in pages."""
        first: str | None = "-"
        while first is not None:
            rows = await self._line.call(
                "XPENDING", self._lease.stream, self._lease.group, first, "+", _PAGE, *consumer
            )
            yield rows
            first = behind(rows[-1][0]) if len(rows) == _PAGE else None

    async def _pass_on(self, ids: list[bytes], *count: str | int) -> None:
        """Make entries stale at once."""
        if not ids:
            return
        stream, group = self._lease.stream, self._lease.group
        move = ("XCLAIM", stream, group, emulate.NOBODY, 0, *ids, "TIME", 0, *count, "JUSTID")
        (reply,) = await self.calls((), (move,), None)
        if isinstance(reply, ResponseError):
            if passes(reply):
                raise Disconnected(str(reply))
            raise FatalError(f"{stream}: {reply}") from reply
