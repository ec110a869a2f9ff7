"""A pause: somebody lets no worker run anything for one group of a stream until it is resumed.

The registry keeps pauses on the server, the subscriber obeys them, and the command line shows them; what one is stands
here, below all three.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HandlerPause:
    """A handler that is to run nothing, in all workers.

    Attributes:
        stream: key of its stream.
        group: its group.
        reason: why, in words.
        by: who.
        at_ms: since when, wall milliseconds.
    """

    stream: str
    group: str
    reason: str
    by: str
    at_ms: int
