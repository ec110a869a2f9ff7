"""The progress of a part of a process, as ``/healthz`` and ``/readyz`` show it. Pure."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class PartProgress:
    """The progress of one handler or pipeline."""

    handler: str  # Its name
    doing: str  # Its activity, in one word
    idle_ms: int  # Milliseconds since it last moved

    lost_in: ClassVar[tuple[str, ...]]  # Activities that only a new process can end
    ready_in: ClassVar[tuple[str, ...]]  # Activities in which it works, or would if there were something to do

    @property
    def alive(self) -> bool:
        """False when only a new process can help."""
        return self.doing not in self.lost_in

    @property
    def ready(self) -> bool:
        """True while it works, or would if there were something to do."""
        return self.doing in self.ready_in
