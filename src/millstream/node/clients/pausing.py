"""CLIENT PAUSE: commands that come while the clients are paused, kept with their sessions until the pause is over.

A command held back has not begun: its words stay with its session (:attr:`Session.held`), which counts as blocked; the
shell runs them when it hears that the session no longer is.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.clock import Now
from millstream.commands.table.spec import Command
from millstream.commands.table.table import find

if TYPE_CHECKING:
    from millstream.commands.context.session import Session

# Commands that may write, though they have no such flag
_MAY_WRITE = frozenset({"publish", "eval", "evalsha"})


@dataclass(slots=True)
class Pause:
    """The pause of a node, if there is one.

    Attributes:
        ends: monotonic milliseconds; None for no pause.
        writes_only: only commands that write are held back.
        held: who waits for the end, in the order of their commands.
    """

    ends: int | None = None
    writes_only: bool = False
    held: "dict[Session, None]" = field(default_factory=dict)

    def begin(self, milliseconds: int, now: Now, *, writes_only: bool) -> None:
        """Pause, or go on pausing: never for less time than was asked for before.

        Args:
            milliseconds: from now on; 0 while nothing is paused begins nothing.
            now: both clocks.
            writes_only: commands that only read go on.
        """
        if self.ends is None and not milliseconds:
            return
        self.ends = max(self.ends or 0, now.mono + milliseconds)
        self.writes_only = writes_only

    def holds(self, session: "Session", row: Command) -> bool:
        """Whether a session's command must wait."""
        if self.ends is None or session.is_replica:  # a replica only says how far it is
            return False
        if not self.writes_only:
            return True
        if row.name == "exec":
            return any(_may_write(find(argv)) for argv in session.queue or ())
        return _may_write(row)

    def is_over(self, now: Now) -> bool:
        """Whether it has ended by itself."""
        return self.ends is not None and self.ends <= now.mono

    def release(self) -> "list[Session]":
        """Let go of all who wait; their commands are looked at anew."""
        held = list(self.held)
        self.held.clear()
        return held


def _may_write(row: Command | None) -> bool:
    return row is not None and ("write" in row.flags or row.name in _MAY_WRITE)
