"""What was done to the processes of a run, put down for the checks."""

from dataclasses import dataclass, field

from flights.producer import Resumption


@dataclass
class Incidents:
    """What the one who ran the demo did and saw while it ran.

    Attributes:
        victim: consumer whose process was killed; empty if none was.
        held: ids that were pending under its name when it was dead.
        acknowledged: id of the last event that the server had acknowledged, for each time it was killed.
        resumptions: what the producer found each time the server was back.
    """

    victim: str = ""
    held: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    resumptions: list[Resumption] = field(default_factory=list)
