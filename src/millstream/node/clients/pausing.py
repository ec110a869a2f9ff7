"""Commands that arrive while clients are paused, stored with their sessions until the pause ends.

Clients request a pause (CLIENT PAUSE). Besides, the server holds writers back during a failover, and while it waits for
replicas before its end. Neither kind of pause ends, extends or widens the other.

A held command has not begun: its arguments stay with its session (:attr:`Session.held`), which counts as blocked. The
shell runs them once the session is released.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.clock import Now
from millstream.commands.context.session import Session
from millstream.commands.table.spec import Command
from millstream.commands.table.table import find

# Milliseconds between two checks of a pause for the server's own purposes, which ends only through :meth:`let_go`
_LONG = 365 * 24 * 3600 * 1000
# Commands without the flag ``write`` that may write
MAY_WRITE = frozenset({"publish", "eval", "evalsha"})


@dataclass(slots=True)
class Pause:
    """The pauses of a node, if there are any."""

    ends: int | None = None  # Monotonic milliseconds of the next check of the pause; None for no pause
    writes_only: bool = False  # Only writing commands are held back
    held: dict[Session, None] = field(default_factory=dict)  # Sessions that wait, in the order of their commands
    # Recognises a call of a script that declares that it does not write
    only_reads: Callable[[list[bytes]], bool] = lambda argv: False  # noqa: ARG005 - until the node has scripts
    _asked: int | None = None  # end of the pause that a client requested
    _asked_writes_only: bool = False
    _holders: set[str] = field(default_factory=set)  # purposes for which the server itself holds writers back

    def begin(self, milliseconds: int, now: Now, *, writes_only: bool) -> None:
        """Pause clients, or extend the pause; never shorten it."""
        if self._asked is None and not milliseconds:
            return
        self._asked = max(self._asked or 0, now.mono + milliseconds)
        self._asked_writes_only = writes_only
        self._settle(now)

    def end(self, now: Now) -> None:
        """End the pause that clients requested."""
        self._asked = None
        self._settle(now)

    def hold_writers(self, purpose: str, now: Now) -> None:
        """Hold back commands that write, until :meth:`let_go` with the same purpose."""
        self._holders.add(purpose)
        self._settle(now)

    def let_go(self, purpose: str, now: Now) -> None:
        """Stop holding writers back for this purpose."""
        self._holders.discard(purpose)
        self._settle(now)

    def _settle(self, now: Now) -> None:
        self.ends = self._asked
        if self._asked is None and self._holders:
            self.ends = now.mono + _LONG
        self.writes_only = self._asked is None or self._asked_writes_only

    def holds(self, session: Session, row: Command, argv: list[bytes]) -> bool:
        """True if a session's command must wait."""
        if self.ends is None or session.is_replica:  # a replica only reports its offset
            return False
        if not self.writes_only:
            return True
        if row.name == "exec":
            return any(self._may_write(find(words), words) for words in session.queue or ())
        return self._may_write(row, argv)

    def _may_write(self, row: Command | None, argv: list[bytes]) -> bool:
        if row is None or ("write" not in row.flags and row.name not in MAY_WRITE):
            return False
        return row.group != "scripting" or not self.only_reads(argv)

    def is_over(self, now: Now) -> bool:
        """True if the time of the pause that clients requested is over."""
        return self._asked is not None and self._asked <= now.mono

    def release(self) -> list[Session]:
        """Release all waiting sessions; their commands are checked again."""
        held = list(self.held)
        self.held.clear()
        return held
