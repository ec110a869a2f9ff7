"""Running what a primary sends: unit by unit, unjudged, one record for many, with how far the stream is in it.

A primary's command is not refused for rights, roles, replicas or memory; its reply goes nowhere; events, WATCHes and
those that wait are served as by any client's. One that fails here did not fail there, so the data differ: nothing more
is run, and only a copy helps. One that is not known here is not run, nor is anything else of its unit.
"""

from typing import TYPE_CHECKING, Protocol

from millstream.commands.context.session import Session
from millstream.commands.table.table import find
from millstream.engine.keyspace import DATABASES
from millstream.errors import MillstreamError
from millstream.node.following import annotated
from millstream.protocol import limits
from millstream.replication.annotations import AnnotationError, is_annotation
from millstream.replies import Error

if TYPE_CHECKING:
    from millstream.clock import Now
    from millstream.commands.context.context import Context
    from millstream.commands.table.spec import Command
    from millstream.engine.keyspace import Keyspace
    from millstream.node.following.role import Following
    from millstream.node.journal import Journal
    from millstream.replication.received import ReceivedStream, ReceivedUnit
    from millstream.replies import Reply

# What one record holds at most, but for a single unit
PIECE_COMMANDS = 512
PIECE_BYTES = 256 * 1024
# Longest part of a command in an error's text
_SHOWN = 200


class NotHeldError(MillstreamError):
    """The primary has sent what does not exist here.

    What to do: take the keys that the command is for away from the primary, or follow another server; then REPLICAOF
    again.
    """


class DivergedError(MillstreamError):
    """A command of the primary failed here, so the data are not the same.

    What to do: nothing; a copy of the primary's data is asked for. If it comes again, report it with the log.
    """


class UnaskedRunner(Protocol):
    """What is needed of the node.

    Attributes:
        keyspace: the data.
        journal: the record at work.
    """

    keyspace: "Keyspace"
    journal: "Journal"

    def context_of(self, session: Session, now: "Now") -> "Context":
        """For commands of the primary."""

    def run_unasked(self, ctx: "Context", row: "Command", argv: list[bytes]) -> "Reply":
        """Run a command that nobody checks, as a part of the record at work.

        Args:
            ctx: from :meth:`context_of`.
            row: the command.
            argv: its words, as many as it takes.
        """

    def end_unasked(self, ctx: "Context", now: "Now") -> None:
        """Make a record of them, and serve those who waited for what has changed."""


class Obedience:
    """See the module's text.

    Args:
        node: runs the commands.
        following: where the bytes go, and the divergences.

    Attributes:
        session: in whose name they run; its database is that of the stream.
        asked: offset behind the last question how far this is.
    """

    def __init__(self, node: UnaskedRunner, following: "Following") -> None:
        self._node, self._following = node, following
        self.session = Session(0, is_primary=True)
        self.asked = 0

    def begin(self) -> None:
        """The stream goes on where the history stands."""
        self.session.db = max(self._node.keyspace.history.db, 0)
        self.asked = 0

    def run(self, received: "ReceivedStream", now: "Now") -> bool:
        """Run units that have come, as one record; whether there may be more.

        Args:
            received: what has come.
            now: both clocks.

        Raises:
            NotHeldError: a unit cannot be run; those before it were.
            DivergedError: a unit failed, or is too large; those before it were run.
            ProtocolError: what has come are no commands.
            StorageError: the log takes nothing any more.
        """
        parts: list[bytes] = []
        commands = size = 0
        ctx = self._node.context_of(self.session, now)
        try:
            while commands < PIECE_COMMANDS and size < PIECE_BYTES:
                unit = received.next()
                if unit is None:
                    if received.cost > limits.CHANGE_MAX:  # no record of the log could hold it, however it ends
                        self._count_divergence()
                        raise DivergedError("a command or a transaction of the primary is too large to be run here")
                    return False
                data = received.take(unit.size)
                self._run_unit(ctx, unit, size + unit.size)
                parts.append(data)
                size += unit.size
                commands += len(unit.commands)
            return True
        finally:
            received.drop()
            if parts:
                self._following.relay.take_in(b"".join(parts), self.session.db)
            self._node.end_unasked(ctx, now)

    def _run_unit(self, ctx: "Context", unit: "ReceivedUnit", size: int) -> None:
        """Run one; ``size`` bytes of the piece are behind it then."""
        rows = list(map(_row, unit.commands))
        self._node.journal.weight.bytes = 0  # a unit may be as large as a client's transaction
        covered = 0  # of the commands to come, by an annotation
        for row, words in zip(rows, unit.commands, strict=True):
            if covered and row is not None:
                covered -= 1
            elif row is not None:
                reply = self._node.run_unasked(ctx, row, words)
                if isinstance(reply, Error):
                    self._count_divergence()
                    raise DivergedError(f"the primary's command {_text(words)} failed here: {reply.line}")
            elif words[0].upper() == b"SELECT":
                self.session.db = int(words[1])
            elif words[0].upper() == b"REPLCONF":
                self.asked = self._following.offset + size
            elif is_annotation(words):
                covered = self._run_annotation(ctx, words[1])
        if covered:
            self._count_divergence()
            raise DivergedError("an annotation of the primary stands for more commands than came with it")

    def _run_annotation(self, ctx: "Context", payload: bytes) -> int:
        try:
            return annotated.run(ctx, payload)
        except AnnotationError as error:
            self._count_divergence()
            raise DivergedError(f"the primary has said what cannot be done here: {error}") from None

    def _count_divergence(self) -> None:
        self._following.divergences += 1
        self._following.forget_history()


def _row(words: list[bytes]) -> "Command | None":
    """The row of a command that is to be run; None for those that are of the stream itself.

    Raises:
        NotHeldError: there is none, or not with so many words, or it is for clients: whoever took a primary's place may
            stop a replica, but not its server.
    """
    row = find(words)
    if row is None or row.name in _OF_STREAM:
        name = words[0].upper()
        if name == b"SELECT" and not (len(words) == 2 and words[1].isdigit() and int(words[1]) < DATABASES):
            raise NotHeldError(f"the primary selects a database that does not exist here: {_text(words)}")
        if row is not None or name in _UNHEARD:
            return None
    if row is None or row.handler is None or not row.takes(len(words)):
        raise NotHeldError(f"the primary has sent a command that does not exist here: {_text(words)}")
    if "write" not in row.flags and row.name != "publish":
        raise NotHeldError(f"the primary has sent a command that is no change of data: {_text(words)}")
    return row


# They tell of the stream, or that the primary is there
_OF_STREAM = frozenset({"ping", "select", "replconf"})
# It changes nothing: a message of clusters
_UNHEARD = frozenset({b"SPUBLISH"})


def _text(words: list[bytes]) -> str:
    return b" ".join(words)[:_SHOWN].decode("utf-8", "backslashreplace")
