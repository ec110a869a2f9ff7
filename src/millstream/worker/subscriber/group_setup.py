"""The consumer group of a subscriber: created at the start if missing, and created again if it has gone.

A stream or a group may be deleted at any time, and a server may come back without its data. The subscriber then
continues as at its first start, from the ``start`` of its StreamSub. Only an error that makes that impossible ends it.
"""

import logging
from collections.abc import Collection

from redis.exceptions import ResponseError

from millstream.client import capabilities
from millstream.client.delays import due
from millstream.client.line import Command, Line, Reply, passes
from millstream.texts import plural
from millstream.worker.model.errors import FatalError
from millstream.worker.settlement.fence import Fence
from millstream.worker.subscriber.parts import Common, SubscriberPart

log = logging.getLogger("millstream.worker")

#: Largest number of other groups named in the warning about a new group.
_NAMES_SHOWN = 10


class GroupSetup(SubscriberPart):
    """Finds out the server's capabilities, and makes sure that the group exists."""

    def __init__(self, common: Common, fence: Fence, line: Line, siblings: Collection[str]) -> None:
        super().__init__(common)
        self._fence = fence
        self._line = line
        self._siblings = siblings

    async def prepare(self) -> None:
        """Set up the group at the start of the subscriber."""
        member = self._member
        member.capabilities = await capabilities.find(self._line, member.stream)
        await self._make(again=False)
        if member.no_ack:
            return  # nothing is pending, so nothing is fenced
        await self._prepare()
        refusal = self._fence.refusal
        if refusal is not None and member.delete_acked and not member.capabilities.xackdel:
            raise FatalError(f'{member.stream}: on_ack="delete" needs XACKDEL or the right to run scripts: {refusal}')

    async def restore(self) -> None:
        """Set up the group after an error: the server may be another one, or may have lost the group."""
        self._member.capabilities = await capabilities.find(self._line, self._member.stream)
        await self._prepare()
        await self._make(again=True)

    async def _prepare(self) -> None:
        """Load the scripts into the server, and hide delayed entries from the first claim."""
        replies = await self._fence.prepare(self._line, *self._delays.hold(whole=True))
        if replies:
            await self._delays.held(replies[0], self._line)

    async def _make(self, *, again: bool) -> None:
        member, start = self._member, self._subscription.sub.start
        # Create the consumer as well, so that a worker without entries is visible
        others: list[Command] = [
            ("XGROUP", "CREATECONSUMER", member.stream, member.group, member.consumer),
            ("XLEN", member.stream),
            ("XINFO", "GROUPS", member.stream),
        ]
        reply, _, length, groups = await self._line.calls([due.create(member.stream, member.group, start), *others])
        if _is_refused(reply):  # if only the script is refused, due times of an earlier group remain
            plain = ("XGROUP", "CREATE", member.stream, member.group, start, "MKSTREAM")
            reply, _, length, groups = await self._line.calls([plain, *others])
        if _is_refused(reply):
            raise FatalError(f"cannot create group {member.group} of {member.stream}: {reply}")
        if isinstance(reply, ResponseError):
            return
        member.stats.groups_created += 1
        if again:
            log.warning("%s: group %s was gone; created again from %s", member.stream, member.group, start)
        elif self._subscription.sub.group is None:
            self._warn_of_new_group(length, groups)

    def _warn_of_new_group(self, length: Reply, groups: Reply) -> None:
        """Warn that a group was created under the handler's name: after a renaming, all entries run once more."""
        if isinstance(length, ResponseError) or isinstance(groups, ResponseError):
            return  # the user lacks the right
        if not length:
            return
        stream, name, start = self._member.stream, self._subscription.name, self._subscription.sub.start
        names = [dict(zip(row[::2], row[1::2], strict=True))[b"name"].decode(errors="replace") for row in groups]
        others = [other for other in names if other not in self._siblings and other != self._member.group]
        whole = f"runs the whole stream of {plural(int(length), 'entry', 'entries')}"
        what = whole if start == "0" else f"begins at {start!r}"
        hint = "its other groups: " + ", ".join(map(repr, others[:_NAMES_SHOWN])) if others else "it has no other group"
        if others:
            hint += f". If {name} was called {others[0]!r} before, write StreamSub({stream!r}, group={others[0]!r})"
        log.warning(
            "%s: MADE A NEW GROUP named %r, after the handler, since StreamSub names none: it %s; %s. To keep this "
            "group when the handler is renamed, write StreamSub(%r, group=%r)",
            stream,
            self._member.group,
            what,
            hint,
            stream,
            self._member.group,
        )


def _is_refused(reply: Reply) -> bool:
    """Report whether the group was not created and will not be by another try."""
    return isinstance(reply, ResponseError) and not str(reply).startswith("BUSYGROUP") and not passes(reply)
