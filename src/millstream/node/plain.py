"""The native core's runner of plain commands, and the result of a run; see :mod:`millstream.node.batch`."""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from millstream import core

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.engine.keyspace import Database


NAMES: tuple[str, ...] = () if core.native is None else core.native.PLAIN_COMMANDS
"""The commands that have plain forms: none without the native core, whose table they are."""


SLOW_MAX = 512
"""Commands of a script that took long; then they are to be taken over."""


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


class PlainRunner(Protocol):
    """Runs plain commands: the interface of ``PlainRunner`` in the native core (``_core/runner.c``)."""

    records: bool  # Changes go into records, for a log or for replicas
    # Commands that took at least ``Config.slow_from``, each as it was sent, with its nanoseconds; whoever runs them
    # empties it, and a script's are not plain while it holds :data:`SLOW_MAX`
    slow: list[tuple[bytes, int]]

    def run(self, db: "Database", data: bytes, at: int, wall: int, resp: int) -> PlainRun:
        """Run plain commands from the head of ``data`` on."""
        ...

    def obey(self, db: "Database", data: bytes, at: int, wall: int, is_open: bool) -> PlainRun:
        """Run plain commands of a primary, of ``data`` from ``at`` on; without replies.

        A command that is not plain stays where it is, but of a transaction of which commands were run: there it is
        taken, and in ``words``.
        """
        ...

    def begin(
        self, db: "Database", wall: int, left: int, table: "Callable[..., Any]", faults: list[BaseException]
    ) -> None:
        """Begin a run, of :meth:`call` from here on until :meth:`end`."""
        ...

    def call(self, data: bytes) -> object:
        """Run a command; its reply as a value of the script's, under RESP2. None: it was not run.

        A status is True and its text. A small array is True, False, its shape and its leaves. The shape has two bytes
        for each array: its number of items, and 0x8000 if some are arrays; then each other item has 0xffff.
        """
        ...

    def end(self) -> PlainRun:
        """The outcome of all calls since :meth:`begin`; without replies."""
        ...

    def drain(self) -> list[tuple[str, int, int]]:
        """Name, calls and nanoseconds of each command since this was last asked."""
        ...
