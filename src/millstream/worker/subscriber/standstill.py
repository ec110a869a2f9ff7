"""Care for a process's entries while its event loop is blocked; all of it runs in the watchdog's thread.

* Entries that have not begun are released, uncharged, so that other workers can run them.
* Running entries are renewed, above all the entry whose handler blocks the loop. If the next worker claimed it, it
  would block that worker too, and so on.
* Begun entries that only wait for the loop are released, uncharged, when others would claim them.
* Before the process is killed, the known outcomes are stored. The blocking entry is charged with a crash of its own,
  and all other entries are released uncharged.

The loop may go on at any moment. An entry to release counts as lost here before the command is sent, so that no lane
begins it. The fence, which checks the owner of each entry, resolves all other races.
"""

import asyncio
import contextlib
from asyncio.events import Handle
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import FrameType
from typing import Protocol

from millstream.client import emulate
from millstream.client.delays import due
from millstream.client.line import Line
from millstream.client.open import open_line
from millstream.client.url import EMBEDDED
from millstream.worker.handlers.frames import MACHINERY
from millstream.worker.handlers.invoke import HandlerCalls
from millstream.worker.handlers.message import Message
from millstream.worker.model.lifecycle import LEASED, State
from millstream.worker.settlement import spare
from millstream.worker.settlement.consumer import Held, Membership, hold
from millstream.worker.settlement.fence import Fence, FenceStep, by_count
from millstream.worker.settlement.running import AT_WORK
from millstream.worker.subscriber.loop import SubscriberLoop

_IN_HAND = (State.BUFFERED, State.RUNNING, State.LEFT)


class HasParts(Protocol):
    """Interface of a subscriber, whose loops may change."""

    @property
    def member(self) -> Membership:
        """Its consumer in the group."""
        ...

    @property
    def parts(self) -> Sequence[SubscriberLoop]:
        """Its current loops."""


class Standstill:
    """Looks after the entries of one process; made in its event loop."""

    def __init__(self, url: str, loops: "Sequence[HasParts]") -> None:
        self._url = url
        # Only this process reads an embedded server, and its only thread may be the blocked one
        self._acking = [] if url.startswith(EMBEDDED) else [one for one in loops if not one.member.no_ack]
        self._every = loops
        self._home = asyncio.get_running_loop()
        #: Shortest idle time, in seconds, after which others claim an entry
        self.min_idle = min((one.member.min_idle / 1000 for one in self._acking), default=3600.0)

    @property
    def _loops(self) -> list[SubscriberLoop]:
        """The current loops to look after; loops of partitions may come and go."""
        return [part for one in self._acking for part in one.parts]

    def blocking(self, frame: FrameType | None) -> list[Held]:
        """Return the entries whose handler runs at this frame of the loop's thread; several for a batch.

        If a read passed several entries to a middleware's hook, return the one that the hook uses, or the first.
        """
        inner: list[FrameType] = []
        while frame is not None:
            found = _entries(frame)
            if found and frame.f_code.co_name == HandlerCalls._tell_received.__name__:  # noqa: SLF001 - its frame
                return [next((one for one in _looked_at(inner) if one in found), found[0])]
            if found:
                return found
            inner.append(frame)
            frame = frame.f_back
        return []

    def names(self, entries: Sequence[Held]) -> str:
        """Return the handler and the entries as text."""
        for loop in (part for one in self._every for part in one.parts):
            if entries and loop.member.held.get(entries[0].id) is entries[0]:
                more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
                return f"handler {loop.subscription.name}, entry {entries[0].id.decode()} of {loop.member.stream}{more}"
        return "no handler's code"

    async def keep(self, blocking: Sequence[Held], seconds: float) -> None:
        """Release entries that have not begun, and renew running ones."""
        await self._each(lambda loop, line: self._keep(loop, line, blocking, seconds))

    async def leave(self, blocking: Sequence[Held], *, alone: bool) -> None:
        """Settle all entries, right before the end of the process."""
        await self._each(lambda loop, line: self._leave(loop, line, blocking, alone=alone))

    async def _each(self, work: Callable[[SubscriberLoop, Line], Awaitable[None]]) -> None:
        """Call a function for each loop; raise the first error after all are done."""

        async def one(loop: SubscriberLoop) -> None:
            line = open_line(self._url, near=loop.member.stream)  # a separate connection for this thread
            try:
                await work(loop, line)
            finally:
                await line.close()

        for result in await asyncio.gather(*map(one, self._loops), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _keep(self, loop: SubscriberLoop, line: Line, blocking: Sequence[Held], seconds: float) -> None:
        """Keep the entries of one loop; release those that only wait for it once others are about to claim them."""
        steps = self._returning(loop, blocking)
        held = [one for one in list(loop.member.held.values()) if one.state in LEASED]
        waiting = await _unread(loop, line)
        if loop.subscription.is_async:
            waiting += [one for one in held if one.state is State.RUNNING and one not in blocking]
        if seconds * 1000 > loop.member.min_idle * 3 / 4:
            # Stale by now: if the loop continues, it renews before a run, and the fence refuses outcomes
            steps += _release(loop, waiting, charge=False)
            held = [one for one in held if one not in waiting]
        else:
            held += [one for one in waiting if one not in held]
        if held:
            steps.append(FenceStep(emulate.renew(loop.member.group, loop.member.consumer), held, any_count=True))
        await _take(loop, steps, line)

    async def _leave(self, loop: SubscriberLoop, line: Line, blocking: Sequence[Held], *, alone: bool) -> None:
        held = list(loop.member.held.values())
        charged = [one for one in held if one in blocking]
        others = [one for one in held if one.state is State.RUNNING and one not in blocking]
        rows = [loop.common.failures.alone_row(one) for one in charged] if alone and len(charged) == 1 else None
        steps = [*loop.common.acks.unsent(), *self._returning(loop, blocking)]
        steps += _release(loop, [*others, *await _unread(loop, line)], charge=False)
        for step in _release(loop, charged, charge=True):
            step.rows = rows
            steps.append(step)
        await _take(loop, steps, line)

    def _returning(self, loop: SubscriberLoop, blocking: Sequence[Held]) -> list[FenceStep]:
        """Return the steps that release entries not begun; they count as lost here."""
        held = list(loop.member.held.values())
        waiting = [one for one in held if one.state is State.BUFFERED and one not in blocking]
        alone = loop.waiting_alone()  # their deliveries are already taken back
        for one in waiting:
            one.state = State.LOST
        if waiting:
            self._home.call_soon_threadsafe(_forget, loop, waiting)
        loop.stats.released += len(waiting)
        return [
            *_release(loop, [one for one in waiting if one not in alone], charge=False),
            *_release(loop, [one for one in waiting if one in alone], charge=True),
        ]


async def _take(loop: SubscriberLoop, steps: Sequence[FenceStep], line: Line) -> None:
    if steps:
        member = loop.member
        await Fence(member, loop.common.failures.key, due.key(member.stream, member.group)).take(steps, line)


async def _unread(loop: SubscriberLoop, line: Line) -> list[Held]:
    """Return entries that the server has delivered and the loop has not read from the connection."""
    if spare.is_here():
        return []  # entries passed to the spare were not delivered
    member = loop.member
    most = len(member.held) + 256
    rows = await line.call("XPENDING", member.stream, member.group, "-", "+", most, member.consumer)
    return [hold(row[0], [], row[3], 0) for row in rows if row[0] not in member.held]


def _release(loop: SubscriberLoop, entries: Sequence[Held], *, charge: bool) -> list[FenceStep]:
    member = loop.member
    return [
        FenceStep(emulate.release(member.capabilities, member.group, part[0].deliveries, charge=charge), part)
        for part in by_count(entries)
    ]


def _forget(loop: SubscriberLoop, entries: Iterable[Held]) -> None:
    for held in entries:
        loop.member.drop(held)


def _looked_at(frames: Iterable[FrameType]) -> Iterable[Held]:
    """Yield the entries of the messages in variables of these frames."""
    for frame in frames:
        for value in list(frame.f_locals.values()):
            if issubclass(type(value), Message):
                yield value._held  # noqa: SLF001 - the entry of a message


def _entries(frame: FrameType) -> list[Held]:
    """Return the entries for which a frame of Millstream's, or of asyncio's, works."""
    found: object = None
    if frame.f_code is Handle._run.__code__:  # noqa: SLF001 - the context says on whose behalf a task or callback runs
        with contextlib.suppress(AttributeError):
            found = frame.f_locals["self"]._context.get(AT_WORK)  # noqa: SLF001 - as above
    elif frame.f_code.co_filename.startswith(MACHINERY):
        found = frame.f_locals.get("held") or frame.f_locals.get("entries")
    several = found if isinstance(found, list | tuple) else [found]
    return [one for one in several if isinstance(one, Held) and one.state in _IN_HAND]
