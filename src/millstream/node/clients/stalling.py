"""Commands above ``maxmemory`` that wait until a tier has moved entries to files, for ``tier-stall-ms`` at most.

A command that waits has not begun, as in a pause: its arguments stay with its session. The shell runs it again once
there is room, or when its time is over; it then gets the error. Nothing waits in a transaction or a script.
"""

from collections.abc import Callable

from millstream.clock import Now
from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.commands.table.table import find

# Milliseconds between two looks at the memory while commands wait
_LOOKS = 20
_NOT_WAITING = frozenset({"exec", "multi"})


class Stalls:
    """The sessions of a node whose commands wait for room in memory."""

    def __init__(self, config: Config) -> None:
        self._config = config
        # True if entries can go to files, or are on their way; the spiller sets it
        self.may_help: Callable[[Now], bool] = lambda now: False  # noqa: ARG005 - without a tier nothing helps
        self.held: dict[Session, None] = {}  # Sessions that wait, in the order of their commands
        # Monotonic milliseconds at which sessions that wait, or are about to try again, get the error
        self.until: dict[Session, int] = {}
        self._look = 0  # monotonic milliseconds of the next look
        self.count = 0  # Number of commands that waited

    def holds(self, session: Session, argv: list[bytes], now: Now) -> bool:
        """True if a command that memory is short for waits; it is held then."""
        if session.queue is not None or session.is_primary or not self._config.tier_stall:
            return False
        row = find(argv)
        if row is None or row.group == "scripting" or row.name in _NOT_WAITING:
            return False
        until = self.until.get(session)
        if (until is not None and now.mono >= until) or not self.may_help(now):
            self.until.pop(session, None)
            return False
        if until is None:
            self.until[session] = now.mono + self._config.tier_stall
            self.count += 1
        session.held, session.blocked = argv, True
        self._look = now.mono + _LOOKS
        self.held[session] = None
        return True

    def drop(self, session: Session) -> None:
        """Forget a session that has gone."""
        self.held.pop(session, None)
        self.until.pop(session, None)

    def next_due(self) -> int | None:
        """Monotonic milliseconds of the next look; None if no command waits."""
        return self._look if self.held else None

    def release(self, now: Now, *, has_room: bool) -> list[Session]:
        """Return the sessions that may try again: all if there is room, or those whose time is over."""
        self._look = now.mono + _LOOKS
        waits = not has_room and self.may_help(now)
        found = [each for each in self.held if not waits or now.mono >= self.until[each]]
        for session in found:
            del self.held[session]
        return found
