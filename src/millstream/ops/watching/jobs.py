"""Running changes: each continues without a viewer, reports its progress, and can be interrupted between two parts.

A job has its own connection, since putting letters back watches keys. The finished part of an interrupted job stays,
and is in the audit stream; the same change again continues with what is left.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.client.open import open_line
from millstream.errors import MillstreamError
from millstream.ops.audit import Actor
from millstream.ops.guard import ChangeOutcome
from millstream.ops.making import Prepared, carry_out
from millstream.ops.parameters import now_ms
from millstream.ops.plan import ChangeRefusedError

RUNNING = 8
"""Limit of changes that run on one server at the same time."""

_KEPT = 50  # largest number of ended jobs that are kept to show their outcomes
_GRACE = 5.0  # seconds in which jobs must finish their present part when the console ends


@dataclass(slots=True)
class ChangeJob:
    """One confirmed change while it runs, and afterwards."""

    id: str  # Id in URLs and in the audit stream
    prepared: Prepared  # Change to make
    words: dict[str, str]  # Values of the confirmed form, to repeat the change
    actor: Actor  # Author of the change
    began_ms: int  # Time of its confirmation, wall milliseconds
    done: int = 0  # Number of entries or letters processed so far
    stop: asyncio.Event = field(default_factory=asyncio.Event)  # Set to interrupt the change
    outcome: ChangeOutcome | None = None  # Outcome; None while it runs, and if it failed
    error: MillstreamError | None = None  # Reason why it failed; None if it did not fail
    task: "asyncio.Task[None] | None" = None

    @property
    def running(self) -> bool:
        """True if the change is running."""
        return self.task is not None and not self.task.done()

    async def ended(self, seconds: float) -> bool:
        """Wait for its end, at most this number of seconds; return True if it has ended."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=seconds)
        if self.error is not None:
            raise self.error
        return not self.running

    def count(self, done: int) -> None:
        """Store the number of entries processed so far."""
        self.done = done


class ChangeJobs:
    """The changes of one server."""

    def __init__(self, url: str, changed: Callable[[], None]) -> None:
        self._url = url
        self._changed = changed
        self._jobs: dict[str, ChangeJob] = {}

    def start(self, prepared: Prepared, words: dict[str, str], actor: Actor) -> ChangeJob:
        """Start a change."""
        if len(self.running) >= RUNNING:
            raise ChangeRefusedError(f"{RUNNING} changes are already running: wait for one to end, or cancel one")
        job = ChangeJob(secrets.token_hex(6), prepared, words, actor, now_ms())
        job.task = asyncio.create_task(self._run(job))
        self._jobs[job.id] = job
        self._forget()
        return job

    @property
    def running(self) -> list[ChangeJob]:
        """The jobs that are running."""
        return [job for job in self._jobs.values() if job.running]

    def get(self, name: str) -> ChangeJob | None:
        """Return the job with this id; None if there is none, or it was dropped."""
        return self._jobs.get(name)

    def under_way(self, stream: str) -> list[ChangeJob]:
        """Return the running jobs of a stream."""
        return [job for job in self.running if job.prepared.plan.stream == stream]

    async def close(self) -> None:
        """Interrupt the running jobs, each between two parts."""
        jobs = self.running
        tasks = [job.task for job in jobs if job.task is not None]
        for job in jobs:
            job.stop.set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_GRACE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, job: ChangeJob) -> None:
        line = open_line(self._url)
        try:
            job.outcome = await carry_out(line, job.prepared, job.actor, job.id, job.count, job.stop)
        except MillstreamError as error:
            job.error = error
        except Exception as error:  # noqa: BLE001 - viewers of the job must see that it failed, and why
            job.error = MillstreamError(f"the console failed: {type(error).__name__}: {error}")
            job.error.__notes__ = getattr(error, "__notes__", [])
        finally:
            self._changed()
            await line.close()

    def _forget(self) -> None:
        """Drop the oldest jobs that ended."""
        ended = [name for name, job in self._jobs.items() if not job.running]
        for name in ended[: max(len(ended) - _KEPT, 0)]:
            del self._jobs[name]
