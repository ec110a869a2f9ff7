"""The result of a run of plain commands in the native core; see :mod:`millstream.node.batch`."""

from typing import NamedTuple

from millstream import core

NAMES: tuple[str, ...] = () if core.native is None else core.native.PLAIN_COMMANDS
"""The commands that have plain forms, from the native core's table; empty without it."""


SLOW_MAX = 512
"""Number of a script's slow commands that the runner collects before they must be fetched."""


class PlainRun(NamedTuple):
    """The outcome of a run of plain commands."""

    at: int  # Position in the data after the last command that was taken
    # The command there, if it is complete; it was taken too, and goes the ordinary way. None at the end of the data, at
    # what is not complete or not usual RESP, and where the run ended for another reason.
    words: list[bytes] | None
    commands: int  # The number of plain commands that ran
    last: str  # Name of the last of them
    replies: bytes  # Theirs, in order
    record: bytes | None  # Their changes as a record of the log; None without any
    changes: int  # The number of changes, as Redis counts them
    hits: int  # Keys that were read and were there
    misses: int  # Keys that were read and were not there
    # The key, if the last command changed one that clients wait for; they are to be served before anything else
    woken: bytes | None
    # No reply waits for the record, which holds only when consumers tried to claim; see
    # :func:`~millstream.commands.streams.read.note_seen`
    soft: bool
    # In a primary's stream, the position after the last unit of which all was run: it is ``at``, unless a transaction
    # is open there
    whole: int


NOTHING = PlainRun(0, None, 0, "", b"", None, 0, 0, 0, None, soft=False, whole=0)
"""A run of no commands."""
