"""A job as data. PURE."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.ops.words import Facts


@dataclass(frozen=True, slots=True)
class GroupJob:
    """The state of a job in one group."""

    group: str  # Name of the group
    state: str  # ``queued``, ``running``, ``done``, ``dead``, ``cancelled`` or ``unknown``
    end: Mapping[str, Any] | None = None  # Record of the job's end; None if it has not ended
    progress: Mapping[str, Any] | None = None  # Progress that the job last reported
    cancelled_ms: int | None = None  # Time of a cancellation that no worker has carried out yet
    large: int | None = None  # Bytes of a result or progress that is left out as too large; None if all is read

    @property
    def open(self) -> bool:
        """True if the job can be cancelled."""
        return self.state in ("queued", "running")


@dataclass(frozen=True, slots=True)
class JobSeen:
    """The states of a job in all groups of its stream."""

    stream: str  # Key of the stream
    id: str  # Id of the entry
    at_ms: int  # Time of the server
    keep_ms: int | None  # Milliseconds for which a result is kept; None if the entry is gone
    groups: tuple[GroupJob, ...] = ()


def group_facts(one: GroupJob) -> Facts:
    """Return a job's state in one group as data."""
    end = one.end or {}
    ended = end.get("at_ms")
    return {
        "group": one.group,
        "state": one.state,
        "ended_ms": ended if isinstance(ended, int) else None,
        "cancelled_ms": one.cancelled_ms,
        "progress": one.progress,
        "value": end.get("value"),
        "error": end.get("error"),
        "left_out_bytes": one.large,
    }
