"""The replicas of a primary: their offsets, and the counts for WAIT and minimum replicas. PURE: times are arguments.

Source: https://redis.io/docs/latest/commands/wait/, waitaof/ and info/ (slaveN)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

FOREVER = 2**63
"""A limit in seconds that accepts any silence."""

Stage = Literal["wait_bgsave", "send_bulk", "online"]
"""A replica's state by INFO's names: its copy is being made, is being sent, or the replica follows."""


@dataclass(slots=True)
class Follower:
    """One replica, or a connection that announced to become one."""

    id: int  # Id of the session
    ip: str = ""  # Address that it announced, or that of the connection
    port: int = 0  # Port on which it reports to listen; 0 for none
    stage: Stage | None = None  # None before it requests the stream
    cursor: int = 0  # Offset of the next byte to send
    # Offset that the replica has reported; -1 before the first report, when it may still be loading its copy
    acked: int = -1
    durable: int = -1  # Offset that the replica has reported as being on its disk; -1 before the first report
    heard_at: int = 0  # Monotonic milliseconds of its last report
    is_old: bool = False  # True if it connected with SYNC and therefore reports nothing
    copy_only: bool = False  # True if it requests only the copy, without the stream
    keyless: bool = False  # True if the copy must contain no keys
    is_ours: bool = False  # True for Millstream, which can read the newest form of a copy
    reads_log: bool = False  # True if it can load the files of a log instead of a copy
    reads_packs: bool = False  # True if the log may have packs
    packs: frozenset[str] = frozenset()  # Identities of the packs that it has

    def lag(self, mono: int) -> int:
        """Return the whole seconds since its last message, as INFO shows them."""
        return 0 if self.is_old else max(mono - self.heard_at, 0) // 1000


class Followers:
    """All replicas, in the order of their arrival."""

    def __init__(self) -> None:
        self._by_id: dict[int, Follower] = {}

    def __iter__(self) -> Iterator[Follower]:
        """Iterate over the replicas that requested the stream or a copy."""
        return (each for each in list(self._by_id.values()) if each.stage is not None)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def get(self, session_id: int) -> Follower | None:
        """Return the replica of a session; None if there is none."""
        return self._by_id.get(session_id)

    def known(self, session_id: int, ip: str) -> Follower:
        """Return the replica of a session, created if missing."""
        return self._by_id.setdefault(session_id, Follower(session_id, ip))

    def drop(self, session_id: int) -> Follower | None:
        """Remove and return the replica of a session."""
        return self._by_id.pop(session_id, None)

    @property
    def online(self) -> list[Follower]:
        """The replicas that follow."""
        return [each for each in self if each.stage == "online"]

    def count(self, offset: int, *, durable: bool = False) -> int:
        """Return the number of replicas that have reached an offset."""
        return sum((each.durable if durable else each.acked) >= offset for each in self.online)

    def held_by(self, wanted: int) -> int:
        """Return the highest offset that ``wanted`` replicas have confirmed; -1 if fewer are online."""
        offsets = sorted((each.acked for each in self.online), reverse=True)
        return offsets[wanted - 1] if len(offsets) >= wanted else -1

    def good(self, mono: int, most_lag: int, *, confirming: bool = False) -> int:
        """Return the number of replicas with a recent message."""
        return sum(each.lag(mono) <= most_lag and (each.acked >= 0 or not confirming) for each in self.online)

    def needed(self) -> int | None:
        """Return the lowest offset from which a replica still needs bytes; None if none does."""
        cursors = [each.cursor for each in self if not each.copy_only]
        return min(cursors) if cursors else None
