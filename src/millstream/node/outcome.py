"""The outcome of a command: its reply, and the log position that it waits for."""

from millstream.replies import Buffer


class Outcome:
    """A reply and the log position that it waits for."""

    __slots__ = ("barrier", "buffers")

    def __init__(self, buffers: list[Buffer], barrier: int) -> None:
        self.buffers = buffers  # Encoded bytes, in order
        self.barrier = barrier  # Log position that must be kept first, by the fsync mode; 0 for at once

    def __repr__(self) -> str:
        return f"Outcome({b''.join(self.buffers)!r}, barrier={self.barrier})"
