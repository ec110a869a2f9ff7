"""A pause: somebody lets no worker run anything for one group of a stream until it is resumed.

The registry keeps pauses on the server, the subscriber obeys them, and the command line shows them; what one is stands
here, below all three.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HandlerPause:
    """A handler that is to run nothing, in all workers."""

    stream: str  # Key of its stream
    group: str  # Its group
    reason: str  # Why, in words
    by: str  # User who paused it
    at_ms: int  # Since when, wall milliseconds
