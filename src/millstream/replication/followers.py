"""The replicas of a primary: how far each is, and which of them count. PURE: times are arguments.

Source: https://redis.io/docs/latest/commands/wait/, waitaof/ and info/ (slaveN)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

FOREVER = 2**63
"""Seconds: any silence is short enough."""

Stage = Literal["wait_bgsave", "send_bulk", "online"]
"""A replica's state, in the words of INFO: its copy is being made, is on its way, or it follows."""


@dataclass(slots=True)
class Follower:
    """One replica, or a connection that has said that it will be one."""

    id: int  # Id of its session
    ip: str = ""  # Its address: the announced one, or that of the connection
    port: int = 0  # Port where it reports to listen; 0 if it reported none
    stage: Stage | None = None  # None until it asks for the stream
    cursor: int = 0  # Offset of the next byte to send
    # Offset that the replica reports to have; -1 before its first report, while it may still be loading its copy
    acked: int = -1
    durable: int = -1  # Offset that the replica reports to have on its disk; -1 before its first report
    heard_at: int = 0  # Monotonic milliseconds when it last said so
    is_old: bool = False  # It came by SYNC and reports nothing
    copy_only: bool = False  # It wants the copy without the stream after it
    keyless: bool = False  # The copy must be without keys
    is_ours: bool = False  # It is Millstream, and reads the newest form of a copy
    reads_log: bool = False  # It begins with the files of a log, where there is one

    def lag(self, mono: int) -> int:
        """Whole seconds since it was last heard of, as INFO shows them."""
        return 0 if self.is_old else max(mono - self.heard_at, 0) // 1000


class Followers:
    """All replicas, in the order of their arrival."""

    def __init__(self) -> None:
        self._by_id: dict[int, Follower] = {}

    def __iter__(self) -> Iterator[Follower]:
        """The replicas that have asked for the stream or a copy."""
        return (each for each in list(self._by_id.values()) if each.stage is not None)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def get(self, session_id: int) -> Follower | None:
        """The replica of a session."""
        return self._by_id.get(session_id)

    def known(self, session_id: int, ip: str) -> Follower:
        """The replica of a session, or a new one."""
        return self._by_id.setdefault(session_id, Follower(session_id, ip))

    def drop(self, session_id: int) -> Follower | None:
        """Remove a replica that is gone."""
        return self._by_id.pop(session_id, None)

    @property
    def online(self) -> list[Follower]:
        """The replicas that follow."""
        return [each for each in self if each.stage == "online"]

    def count(self, offset: int, *, durable: bool = False) -> int:
        """The number of replicas that have come as far as an offset."""
        return sum((each.durable if durable else each.acked) >= offset for each in self.online)

    def held_by(self, wanted: int) -> int:
        """The offset that ``wanted`` of them hold; -1 where there are fewer. Those without a word hold nothing."""
        offsets = sorted((each.acked for each in self.online), reverse=True)
        return offsets[wanted - 1] if len(offsets) >= wanted else -1

    def good(self, mono: int, most_lag: int, *, confirming: bool = False) -> int:
        """The number of replicas that were heard of recently."""
        return sum(each.lag(mono) <= most_lag and (each.acked >= 0 or not confirming) for each in self.online)

    def needed(self) -> int | None:
        """Offset of the first byte that one of them is still to be sent; None where there is none."""
        cursors = [each.cursor for each in self if not each.copy_only]
        return min(cursors) if cursors else None
