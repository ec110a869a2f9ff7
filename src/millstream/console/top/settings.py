"""What ``millstream top`` was started with."""

from dataclasses import dataclass

from millstream.console.changes.audit import Actor
from millstream.console.top.views.view import TopPlace
from millstream.console.watching.servers import ConsoleServer

OVERVIEW = TopPlace("overview")

READ_ONLY = "top is read-only: start it with --allow-changes"
"""Why no change is open, where none was allowed."""


@dataclass(frozen=True, slots=True)
class TopSettings:
    """All of it.

    Attributes:
        server: that is looked at.
        actor: who makes changes; None where none are allowed.
        start: the first view.
    """

    server: ConsoleServer
    actor: Actor | None = None
    start: TopPlace = OVERVIEW
