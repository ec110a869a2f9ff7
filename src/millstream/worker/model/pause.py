"""A pause: no worker runs a handler for one group of a stream until a person resumes it.

The registry keeps pauses on the server, the subscriber obeys them, and the command line shows them. This module is
below all three.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HandlerPause:
    """The pause of one handler, in all workers."""

    stream: str  # Key of its stream
    group: str  # Name of the group
    reason: str  # Reason given by the user
    by: str  # User who paused it
    at_ms: int  # Start of the pause, in wall-clock milliseconds
