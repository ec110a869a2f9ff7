"""What runs plain commands, and what comes of a run; see :mod:`millstream.node.batch`, which has the runners."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from millstream.engine.keyspace import Database


class PlainRun(NamedTuple):
    """What came of a run of plain commands.

    Attributes:
        at: position in the data behind the last command that was taken.
        words: the command there, if it is complete; it was taken too, and goes the ordinary way. None at the end of
            the data, at what is not complete or not usual RESP, and where the run ended for another reason.
        commands: how many plain commands were run.
        last: name of the last of them.
        replies: theirs, in order.
        record: their changes as a record of the log; None without any.
        changes: how many there were, as Redis counts them.
        hits: keys that were read and were there.
        misses: keys that were read and were not there.
        woken: the key, if the last command changed one that somebody waits for; they are to be served before
            anything else.
        soft: no reply waits for the record, which holds only when consumers tried to claim; see
            :func:`~millstream.commands.streams.read.note_seen`.
    """

    at: int
    words: list[bytes] | None
    commands: int
    last: str
    replies: bytes
    record: bytes | None
    changes: int
    hits: int
    misses: int
    woken: bytes | None
    soft: bool


NOTHING = PlainRun(0, None, 0, "", b"", None, 0, 0, 0, None, soft=False)
"""A run of no commands."""


class PlainRunner(Protocol):
    """Runs plain commands; what the two implementations have in common."""

    def run(self, db: "Database", data: bytes, at: int, wall: int, resp: int) -> PlainRun:
        """Run plain commands from the head of ``data`` on.

        Args:
            db: the session's database.
            data: bytes from the client.
            at: where to begin.
            wall: wall milliseconds, for all of them.
            resp: the session's protocol, 2 or 3.
        """
        ...

    def drain(self) -> list[tuple[int, int]]:
        """Calls and nanoseconds of each command in the order of :data:`NAMES` since this was last asked."""
        ...
