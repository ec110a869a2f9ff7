"""The state of each handler or pipeline of a process, as ``/healthz`` and ``/readyz`` show it. Pure."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class PartProgress:
    """The current state of one handler or pipeline."""

    handler: str  # Name of the handler or pipeline
    doing: str  # Activity, in one word
    idle_ms: int  # Milliseconds since it last made progress

    lost_in: ClassVar[tuple[str, ...]]  # Activities that only a new process can end
    ready_in: ClassVar[tuple[str, ...]]  # Activities in which it works or waits for work

    @property
    def alive(self) -> bool:
        """False if only a new process can help."""
        return self.doing not in self.lost_in

    @property
    def ready(self) -> bool:
        """True while it works or waits for work."""
        return self.doing in self.ready_in
