"""A job: a published entry for which the publisher can await the result, read the progress, or request cancellation."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, cast

from redis.exceptions import ResponseError

from millstream import times
from millstream.client.jobs import record
from millstream.client.later.scripts import ServerScript
from millstream.client.line import Reply
from millstream.client.partitions.declared import find_layout
from millstream.client.ranges import order_of
from millstream.errors import Disconnected, UsageError
from millstream.worker.jobs.replies import ReplyHints
from millstream.worker.model.answers import JobCancelledError, JobDeadError
from millstream.worker.tasks import set_within

CANCEL = ServerScript.beside("millstream.client.jobs", "cancel.lua")

_LOOKS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between two reads of the result while no hint arrives; the last value repeats."""


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job in one group, or in the group that ended it first.

    Attributes:
        state: ``queued``, ``running``, ``done``, ``dead``, ``cancelled`` or ``unknown``. A running job was delivered to
            a worker; it may also be waiting there to start or to be retried. For an unknown job, no result is stored.
        progress: the last ``await msg.progress(...)`` of its handler, as ``{"at": 40, "of": 100, "text": "pages"}``.
        error: the error of a dead job.
        at_ms: time at which the job ended, in milliseconds since 1970.
    """

    state: Literal["queued", "running", "done", "dead", "cancelled", "unknown"]
    progress: dict[str, Any] | None = None
    error: str | None = None
    at_ms: int | None = None


class JobDoor(NamedTuple):
    """Functions by which a job reaches its server."""

    replies: Callable[[], ReplyHints]  # Returns the hints of the running event loop
    run: Callable[[str, Callable[[ReplyHints], Awaitable[Any]]], Any]  # Runs a function of the hints in a thread


class Job(str):
    """A published entry with its result. It is also the text of the entry's id, which ``publish`` returns.

    Args:
        ident: the entry's id; ``publish`` and ``App.job`` make jobs that can be awaited.

    Attributes:
        stream: key of its stream; of a partitioned stream, the partition, once it is known.
        group: group that handles the job; None for the first group that has a result.
    """

    __slots__ = ("_door", "_placed", "_why_none", "group", "stream")

    stream: str
    group: str | None
    _door: JobDoor
    _why_none: str | None  # Reason why there is no result to wait for; None if there may be one
    _placed: bool  # False if the stream may be the name of a partitioned one

    def __new__(cls, ident: str) -> Self:
        """Make the text alone; ``app.job`` makes a job that can be awaited."""
        return super().__new__(cls, ident)

    @classmethod
    def made(
        cls,
        ident: str,
        stream: str,
        door: JobDoor,
        group: str | None = None,
        why_none: str | None = None,
        *,
        placed: bool = True,
    ) -> Self:
        """Return the job of an entry."""
        job = cls(ident)
        job._placed = placed
        job.stream, job.group, job._door, job._why_none = stream, group, door, why_none
        return job

    @property
    def id(self) -> str:
        """The entry's id, as a plain text."""
        return str.__str__(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle the id alone; ``app.job`` makes a job from it in another process."""
        return str, (self.id,)

    async def result(self, timeout: float | str | None = None) -> Any:  # noqa: ASYNC109 - a text such as "30s" too
        """Wait for the job and return the value that its handler returned in the acknowledged run.

        Args:
            timeout: seconds, or a text such as ``"30s"``; None waits without limit.

        Raises:
            JobDeadError: the entry is in the dead-letter stream.
            JobCancelledError: the job was cancelled.
            TimeoutError: there was no result in that time; the job goes on.
            UsageError: the entry was published without ``result=``, or neither the entry nor a result exists.
            Disconnected: the server cannot be reached.
        """
        if self._why_none is not None:
            raise UsageError(self._why_none)
        seconds = None if timeout is None else times.configured("Job.result(timeout=", timeout, "s")
        try:
            async with asyncio.timeout(seconds):
                row = await self._ended()
        except TimeoutError:
            raise TimeoutError(
                f"{self.stream} {self.id}: no result within {seconds:g} s; the job goes on. Call result() again, or "
                "cancel()."
            ) from None
        if row["state"] == "dead":
            raise JobDeadError(f"{self.stream} {self.id} is dead: {row.get('error')}")
        if row["state"] == "cancelled":
            raise JobCancelledError(f"{self.stream} {self.id} was cancelled")
        return row.get("value")

    def result_sync(self, timeout: float | str | None = None) -> Any:
        """:meth:`result` for programs without an event loop."""
        return self._sync("result_sync", lambda job: job.result(timeout))

    def state_sync(self) -> JobState:
        """:meth:`state` for programs without an event loop."""
        return cast("JobState", self._sync("state_sync", lambda job: job.state()))

    def cancel_sync(self) -> bool:
        """:meth:`cancel` for programs without an event loop."""
        return bool(self._sync("cancel_sync", lambda job: job.cancel()))

    def _sync(self, name: str, work: "Callable[[Job], Awaitable[Any]]") -> Any:
        def there(replies: ReplyHints) -> Awaitable[Any]:
            door = self._door._replace(replies=lambda: replies)
            return work(Job.made(self.id, self.stream, door, self.group, self._why_none, placed=self._placed))

        return self._door.run(name, there)

    async def _find(self, replies: ReplyHints) -> bool:
        """Find the partition that has the entry or its result; return False if no partition has it.

        Raises:
            UsageError: several partitions have an entry of this id.
        """
        if not self._placed and (layout := await find_layout(replies.line, self.stream)) is not None:
            keys = tuple(dict.fromkeys((*layout.every_key, self.stream)))
            asked = [
                one
                for key in keys
                for one in (("XRANGE", key, self.id, self.id), ("EXISTS", record.result_key(key, self.id)))
            ]
            answers = await replies.line.calls(asked)
            known = [bool(one) and not isinstance(one, Exception) for one in answers]
            found = [key for key, *there in zip(keys, known[::2], known[1::2], strict=True) if any(there)]
            if len(found) > 1:
                raise UsageError(
                    f"job({self.stream!r}, {self.id!r}) is ambiguous: {found[0]!r} and {found[1]!r} have this id. "
                    "Give the partition, which is the stream of the job that publish returned."
                )
            if not found:
                return False
            self.stream = found[0]
        self._placed = True
        return True

    async def _ended(self) -> dict[str, Any]:
        """Wait for the record of the job's end and return it."""
        replies, looks = self._door.replies(), 0
        with replies.expected(self.id) as woken:
            while True:
                woken.clear()  # before the check: a hint that arrives during it must not be lost
                try:
                    await self._find(replies)
                    if (row := self._first(await self._rows(replies))) is not None:
                        return row
                    # Checked only after a while, since a result usually comes before that
                    if looks and (why := await self._why_never(replies)) is not None:
                        raise UsageError(why)
                except Disconnected:
                    if not looks:
                        raise
                await set_within(woken, _LOOKS[min(looks, len(_LOOKS) - 1)])
                looks += 1

    async def _rows(self, replies: ReplyHints) -> dict[str, bytes]:
        return record.rows_of(await replies.line.call("HGETALL", record.result_key(self.stream, self.id)))

    def _first(self, rows: dict[str, bytes]) -> dict[str, Any] | None:
        """Return the record of the job's group, or of the group that ended first."""
        groups = [self.group] if self.group is not None else [name for name in rows if not name.startswith("progress:")]
        found = [row for name in groups if (row := record.parse_result(rows.get(name))) is not None]
        return min(found, key=lambda row: _number(row.get("at_ms")) or 0, default=None)

    async def state(self) -> JobState:
        """Return the job's state and progress.

        Raises:
            UsageError: several partitions have an entry of this id.
            Disconnected: the server cannot be reached.
        """
        replies = self._door.replies()
        await self._find(replies)
        rows = await self._rows(replies)
        names = [self.group] if self.group else [n.removeprefix("progress:") for n in rows if n.startswith("progress:")]
        progress = next((p for n in names if (p := record.parse_progress(rows.get(f"progress:{n}")))), None)
        row = self._first(rows)
        if row is not None:
            error = row.get("error")
            return JobState(row["state"], progress, None if error is None else str(error), _number(row.get("at_ms")))
        return JobState(await self._place(replies), progress)

    async def _place(self, replies: ReplyHints) -> Literal["queued", "running", "unknown"]:
        """Return the job's state if no result is stored."""
        line, ident = replies.line, self.id
        found, groups = await line.calls((("XRANGE", self.stream, ident, ident), ("XINFO", "GROUPS", self.stream)))
        last = _last_ids(groups)
        meant = [self.group] if self.group is not None else list(last)
        pending = await line.calls([("XPENDING", self.stream, group, ident, ident, 1) for group in meant])
        if any(reply and not isinstance(reply, ResponseError) for reply in pending):
            return "running"
        waits = not meant or any(order_of(last.get(group, b"0-0")) < order_of(ident.encode()) for group in meant)
        return "queued" if found and not isinstance(found, ResponseError) and waits else "unknown"

    async def _why_never(self, replies: ReplyHints) -> str | None:
        """Return the reason why no result can come; None if one may come, or if the server refuses to reply."""
        # The third command, about a group that may not exist, shows whether the user may run it
        found, *others = await replies.line.calls(
            [
                ("XRANGE", self.stream, self.id, self.id),
                ("XINFO", "GROUPS", self.stream),
                ("XPENDING", self.stream, self.group or "-", self.id, self.id, 1),
            ]
        )
        if any(isinstance(one, ResponseError) and "no such key" not in str(one).lower() for one in (found, *others)):
            return None
        if found and record.take_trailer(found[0][1])[2] is None:
            return no_job(self.stream, self.id)
        # The result is read last: the step that ends the entry also stores it
        if await self._place(replies) != "unknown" or self._first(await self._rows(replies)) is not None:
            return None
        return (
            f"{self.stream} {self.id} has no result: there is no such entry that waits or runs, and nothing is kept of "
            "its end. Check the stream and the id, or publish it with a longer result=."
        )

    async def cancel(self) -> bool:
        """Cancel the job in its group, or in each group of its stream; return False if it had ended in all of them.

        After True, a job that has not begun never begins. If its handler is a coroutine that runs, it gets
        ``CancelledError`` once, within about a second. A plain function sees ``msg.cancelled``.

        Raises:
            UsageError: no group reads the stream yet, the entry was published without ``result=``, or it is scheduled
                for later (``at=``, ``delay=``).
            Disconnected: the server cannot be reached.
        """
        if self._why_none is not None:
            raise UsageError(self._why_none)
        replies = self._door.replies()
        if not await self._find(replies):
            return False
        found, rows = await replies.line.calls(
            (("XRANGE", self.stream, self.id, self.id), ("XINFO", "GROUPS", self.stream))
        )
        if isinstance(found, ResponseError):
            raise found
        # Workers look up only jobs; an entry that is gone from the stream may still be in a worker
        if found and record.take_trailer(found[0][1])[2] is None:
            raise UsageError(no_job(self.stream, self.id))
        groups = [self.group] if self.group is not None else list(_last_ids(rows))
        if not groups:
            raise UsageError(
                f"no group reads {self.stream} yet: nothing is cancelled. Name the group: app.job(stream, id, group=)."
            )
        cancelled = False
        for group in groups:
            keys = (self.stream, record.result_key(self.stream, self.id), record.cancelled_key(self.stream, group))
            cancelled |= bool(await CANCEL.call(replies.line, keys, (group, self.id, record.CANCELLED_MS)))
        return cancelled


def no_job(stream: str, ident: str) -> str:
    """Return the error text for an entry that was published without ``result=``."""
    return f'{stream} {ident} is not a job: it was published without a result. Write publish(..., result="1h").'


def _last_ids(groups: Reply) -> dict[str, bytes]:
    """Return the last delivered id of each group; empty if the stream does not exist."""
    if isinstance(groups, ResponseError):
        return {}
    rows = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in groups]
    return {row[b"name"].decode(errors="surrogateescape"): row[b"last-delivered-id"] for row in rows}


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
