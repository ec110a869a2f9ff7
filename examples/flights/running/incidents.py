"""The record of the kills of a run, for the checks."""

from dataclasses import dataclass, field

from flights.producer import Resumption


@dataclass
class Incidents:
    """The kills of a run, and their observed effects.

    Attributes:
        victim: consumer whose process was killed; empty if none was.
        held: ids that were pending under its name after its death.
        acknowledged: for each kill of the server, the id of the last event that it had acknowledged.
        resumptions: the state that the producer found after each restart of the server.
    """

    victim: str = ""
    held: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    resumptions: list[Resumption] = field(default_factory=list)
