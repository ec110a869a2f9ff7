"""The outcome of a command: its reply, and the log position that it waits for."""

from millstream.replies import Buffer


class Outcome:
    """A reply and the log position that it waits for."""

    __slots__ = ("barrier", "buffers")

    def __init__(self, buffers: list[Buffer], barrier: int) -> None:
        self.buffers = buffers  # Encoded replies, in order
        self.barrier = barrier  # Log position that must be durable first, as far as the fsync mode requires; 0 for none

    def __repr__(self) -> str:
        return f"Outcome({b''.join(self.buffers)!r}, barrier={self.barrier})"
