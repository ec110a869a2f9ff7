"""One watched server: each query is sent once for all viewers, no more often than the server can bear.

Without a viewer, nothing is sent. A page or view that is loaded or kept live requests a reading. It gets one that is
fresh enough, or waits for a running one. The time that a reading stays fresh depends on the duration of all readings on
view: together they take at most :data:`SHARE` of the time. If the server does not reply, the last reading is shown with
its age and the reason.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from millstream.client.line import AccessDenied, Command, Disconnected, Line, wrong_reply
from millstream.client.open import open_line
from millstream.client.url import REPORT, remedy
from millstream.errors import MillstreamError
from millstream.ops.asking import NotedLine
from millstream.ops.history.own import OwnHistory
from millstream.ops.history.series import HistoryReader
from millstream.ops.watching.history import History
from millstream.ops.watching.jobs import ChangeJobs
from millstream.ops.watching.servers import ConsoleServer
from millstream.printable import without_secrets

T = TypeVar("T")
U = TypeVar("U")

FRESH = 0.9
"""Seconds for which a reading is always fresh; pages refresh once a second."""

KEPT = 64
"""Limit of readings that are kept."""

STALEST = 5.0
"""Seconds after which a reading is never fresh, even if readings take long, so that pages stay live."""

LONGEST = 15.0
"""Seconds that a reader waits for a reply; a later reply appears on the next page."""

_AGAIN = 1.0  # time limit in seconds of a query after one that timed out

SHARE = 0.02
"""Share of the time that all readings together may take."""

_LOOKED_AT = 30.0  # seconds for which a reading counts as viewed
# Number of readings before durations count in full, and their limit in seconds until then: the first reading connects
_SURE, _UNSURE = 3, 0.02
_NOTED = 200  # largest number of commands that a page shows
_APART = 15_000  # milliseconds between readings that are kept for rates
_OLDEST = 600_000  # longest interval of a rate, in milliseconds


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """The result of one query to a server."""

    value: T  # Facts
    at_ms: int  # Wall milliseconds after the reply
    took: float  # Duration of the query in seconds
    commands: tuple[Command, ...]  # First commands that were sent
    sent: int  # Number of commands that were sent
    trouble: str = ""  # Reason why there is no newer reading, in words; empty if it is fresh
    # Reading of the same query 15 to 30 seconds earlier, for rates, or the last one within 10 minutes; None for the
    # first one
    before: "Reading[T] | None" = None

    def mapped(self, change: "Callable[[T], U]") -> "Reading[U]":
        """Return a reading with a function applied to its value and to the reading before it."""
        before = None if self.before is None else self.before.mapped(change)
        return Reading(change(self.value), self.at_ms, self.took, self.commands, self.sent, self.trouble, before)

    @property
    def over_ms(self) -> int:
        """Milliseconds between this reading and the one before; 0 if there is none."""
        return 0 if self.before is None else max(self.at_ms - self.before.at_ms, 0)


@dataclass(slots=True, eq=False)
class _Kept:
    """The last reading of a query, and the running one."""

    reading: Reading[Any] | None = None
    marks: tuple[Reading[Any], ...] = ()
    # Durations of the last readings in seconds; the shortest is the server's part, any excess is this machine's
    took: tuple[float, ...] = ()
    made: float = 0.0
    wanted: float = 0.0
    left: bool = False
    # Seconds of the running reading; readings that run at once share the time
    share: float = 0.0
    under_way: "asyncio.Task[Reading[Any]] | None" = None


class ServerWatch:
    """A server with the readings that its viewers share."""

    def __init__(self, server: ConsoleServer) -> None:
        self.server = server
        self.history = History()  # of the small charts in tables, which cover some minutes
        self.written = HistoryReader()
        self.own = OwnHistory()  # in place of a written one
        #: number of recurring schedules at the last reading; pages link to them only if there are some
        self.recurring = 0
        self.noticed: dict[str, int] = {}  # Id of each present cause -> time of the first reading that had it
        self.jobs = ChangeJobs(server.url, self.changed)
        self._line: Line | None = None
        self._kept: dict[Hashable, _Kept] = {}
        # Earlier readings of dropped queries
        self._marks: OrderedDict[Hashable, tuple[Reading[Any], ...]] = OrderedDict()
        self._changes = 0
        self._silent = False  # True if the last query timed out
        self._running: list[_Kept] = []
        self._shared_at = 0.0  # until when the running readings have their shares of the time

    @property
    def recorded(self) -> bool:
        """True if the server is a report, which never changes."""
        return self.server.url.startswith(REPORT)

    @property
    def line(self) -> Line:
        """The connection that all readings share, opened at its first use."""
        if self._line is None:
            self._line = open_line(self.server.url, redial=True, joint=True)
        return self._line

    @contextmanager
    def replies(self) -> Iterator[None]:
        """Turn any exception from parsing replies into an error that a viewer can show."""
        try:
            yield
        except MillstreamError:
            raise
        except Exception as error:
            raise wrong_reply(error, self.server.url) from error

    async def read(self, question: Hashable, work: Callable[[Line], Awaitable[T]]) -> Reading[T]:
        """Return a reading that is fresh enough."""
        now = time.monotonic()
        kept = self._kept.get(question)
        if kept is None:
            kept = self._kept[question] = _Kept(marks=self._marks.pop(question, ())[-1:])
        kept.wanted, kept.left = now, False
        if kept.reading is not None and now - kept.made < self.every():
            return kept.reading
        if kept.under_way is None:
            self._forget(now)
            kept.under_way = asyncio.create_task(self._make(kept, work))
        # A viewer that leaves must not cancel the reading of other viewers
        under_way = asyncio.shield(kept.under_way)
        if kept.reading is None:
            return await self.answered(under_way)
        try:
            return await self.answered(under_way)
        except Disconnected as error:
            return replace(kept.reading, trouble=str(error))

    async def answered(self, asking: Awaitable[T]) -> T:
        """Wait for a reply within the time limit of a reader: a frozen server keeps its connections open.

        The queries of a page follow one another, so only the first of them waits that long.
        """
        try:
            async with asyncio.timeout(_AGAIN if self._silent else LONGEST):
                found = await asking
        except TimeoutError:
            self._silent = True
            silence = Disconnected(f"no answer came within {LONGEST:g} s")
            raise Disconnected(unanswered(self.server, silence)) from None
        self._silent = False
        return found

    def every(self) -> float:
        """Return the present interval in seconds between two readings of the same query."""
        now = time.monotonic()
        looked_at = [kept for kept in self._kept.values() if not kept.left and now - kept.wanted < _LOOKED_AT]
        took = sum(_cost(kept.took) for kept in looked_at if kept.took)
        return min(max(FRESH, took / SHARE), STALEST)

    def pause(self) -> float:
        """Return the seconds until the next refresh, a little longer than a reading stays fresh."""
        return max(self.every() + 0.1, 1.0)

    @property
    def size(self) -> int:
        """Number of readings that are kept."""
        return len(self._kept)

    def leave(self) -> None:
        """Keep all readings, but ignore them when computing the interval, after the only viewer left."""
        for kept in self._kept.values():
            kept.left = True

    def changed(self) -> None:
        """Mark all earlier readings as stale after the console changed something."""
        self._changes += 1
        for kept in self._kept.values():
            kept.made = 0.0

    async def close(self) -> None:
        """Interrupt running changes and close the connection."""
        await self.jobs.close()
        tasks = [kept.under_way for kept in self._kept.values() if kept.under_way is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._line is not None:
            await self._line.close()

    async def _make(self, kept: _Kept, work: Callable[[Line], Awaitable[T]]) -> Reading[T]:
        noted: list[Command] = []
        began, changes = time.monotonic(), self._changes
        self._share()
        kept.share = 0.0
        self._running.append(kept)
        try:
            with self.replies():
                value = await work(NotedLine(self.line, lambda _, commands, __: noted.extend(commands)))
        except (Disconnected, AccessDenied) as error:
            words = unanswered(self.server, error)
            if kept.reading is None:
                raise type(error)(words) from error
            kept.made = time.monotonic()
            kept.reading = replace(kept.reading, trouble=words)
            return kept.reading
        finally:
            kept.under_way = None
            self._share()
            self._running.remove(kept)
        self._silent = False  # a slow server counts too, since it has replied
        kept.made = time.monotonic()
        at_ms = self.line.wall_time()
        bare = Reading(value, at_ms, kept.made - began, tuple(noted[:_NOTED]), len(noted))
        kept.took = (*kept.took[-4:], kept.share)
        if changes != self._changes:  # the reading may show the state before a change that was made meanwhile
            kept.made = 0.0
        kept.marks = tuple(mark for mark in kept.marks if at_ms - mark.at_ms < _OLDEST)
        kept.reading = replace(bare, before=kept.marks[0] if kept.marks else None)
        if not kept.marks or at_ms - kept.marks[-1].at_ms >= _APART:
            kept.marks = (*kept.marks[-1:], bare)
        return kept.reading

    def _share(self) -> None:
        """Divide the time since the last division among the running readings."""
        now = time.monotonic()
        for kept in self._running:
            kept.share += (now - self._shared_at) / len(self._running)
        self._shared_at = now

    def _forget(self, now: float) -> None:
        """Drop readings without viewers, so that memory stays bounded."""
        old = [name for name, kept in self._kept.items() if kept.under_way is None and now - kept.wanted > _LOOKED_AT]
        by_use = sorted(
            (name for name, kept in self._kept.items() if kept.under_way is None),
            key=lambda name: self._kept[name].wanted,
        )
        for name in {*old, *by_use[: max(len(self._kept) - KEPT, 0)]}:
            self._marks[name] = self._kept.pop(name).marks
        while len(self._marks) > KEPT:
            self._marks.popitem(last=False)


def _cost(took: tuple[float, ...]) -> float:
    """Return the server's share of a reading's duration: the shortest of the last ones, limited at first."""
    return min(took) if len(took) >= _SURE else min(*took, _UNSURE)


def unanswered(server: ConsoleServer, error: Exception) -> str:
    """Return a sentence for a server that does not reply, with the reason and a remedy, without secrets."""
    said = without_secrets(str(error)).rstrip(".")
    if isinstance(error, AccessDenied):
        return f"{server.address} refuses the console: {said}. Start the console with the URL of a user who has access."
    step = remedy(server.url, error, "Start it")
    return f"{server.address} does not answer: {said}. {step}, or start the console with another URL."
