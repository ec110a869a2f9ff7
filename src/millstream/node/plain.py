"""The result of a run of plain commands in the native core; see :mod:`millstream.node.batch`."""

from typing import NamedTuple

from millstream import core

NAMES: tuple[str, ...] = () if core.native is None else core.native.PLAIN_COMMANDS
"""The commands that have plain forms, from the native core's table; empty without it."""


SLOW_MAX = 512
"""Number of a script's slow commands that the runner collects before they must be fetched."""


class PlainRun(NamedTuple):
    """The outcome of a run of plain commands."""

    at: int  # Position in the data after the last command that was read
    # Next command, if it is complete: it was read too, and runs the ordinary way. None at the end of the data, at
    # incomplete or unusual RESP, and if the run ended for another reason.
    words: list[bytes] | None
    commands: int  # Number of plain commands that ran
    last: str  # Name of the last one
    replies: bytes  # Replies of these commands, in order
    record: bytes | None  # Changes of these commands as a log record; None without changes
    changes: int  # Number of changes, as Redis counts them
    hits: int  # Number of reads that found their key
    misses: int  # Number of reads that did not find their key
    # Key changed by the last command for which clients wait; serve these first
    woken: bytes | None
    # No reply waits for the record, since it contains only attempts to claim; see
    # :func:`~millstream.commands.streams.read.note_seen`
    soft: bool
    # In a primary's stream, the position after the last complete unit: it equals ``at`` unless a transaction is open
    # there
    whole: int


NOTHING = PlainRun(0, None, 0, "", b"", None, 0, 0, 0, None, soft=False, whole=0)
"""A run of no commands."""
