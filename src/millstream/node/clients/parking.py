"""Clients whose command waits for bytes of packs: *parked*, and run again once threads have read these.

A parked client is blocked for the shell: no input of it runs. Its command has changed nothing, so it begins again from
its words (:attr:`~millstream.commands.context.session.Session.held`), with the time of then. A client that waited for a
key before, as in XREAD BLOCK, stays among those that wait, with its deadline, and its place there is tried again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millstream.commands.context.session import Session
from millstream.engine.cold import Range
from millstream.node.clients.blocking import Waiter


@dataclass(slots=True, eq=False)
class Ticket:
    """The parts that one client waits for; it is kept until the command has run again."""

    session: Session  # Client that is parked
    release: Callable[["Ticket"], None]  # Lets go what was read, or is read, for the client
    tries: int = 1  # Runs of the command that missed
    left: int = 0  # Number of parts that are not read yet
    waiter: Waiter | None = None  # Its wait for a key; None for a command that has not waited
    began: int = 0  # Nanoseconds of :func:`time.perf_counter_ns` at the miss
    parts: list[Any] = field(default_factory=list)  # Fetches of parts that it needs
    pins: list[Range] = field(default_factory=list)  # Parts that its command has read itself


class Parking:
    """The parked clients of a node."""

    def __init__(self) -> None:
        self.by_session: dict[int, Ticket] = {}  # Each ticket by its session's id, also of commands that may run again

    def add(self, ticket: Ticket) -> None:
        """Park a client."""
        self.drop(ticket.session)
        self.by_session[ticket.session.id] = ticket
        ticket.session.parked = True

    def drop(self, session: Session) -> None:
        """Forget a client that has gone, or whose command has run."""
        ticket = self.by_session.pop(session.id, None)
        if ticket is not None:
            session.parked = False
            ticket.release(ticket)

    def longest(self, at: int) -> int:
        """Nanoseconds since the longest wait for bytes began, at a time of :func:`time.perf_counter_ns`."""
        return max((at - one.began for one in self.by_session.values() if one.session.parked), default=0)

    @property
    def count(self) -> int:
        """Number of clients that are parked now."""
        return sum(ticket.session.parked for ticket in self.by_session.values())
