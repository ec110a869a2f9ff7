"""The commands of a primary: they run unit by unit, without checks, and many share one record with their offset.

A primary's command is not refused for rights, roles, replicas or memory, and its reply is dropped. Events, WATCHes and
waiting clients are served as after a client's command. A command that fails here did not fail on the primary, so the
data differ: nothing more runs, and only a copy helps. If a command is unknown here, nothing of its unit runs.
"""

from millstream.clock import Now
from millstream.commands.context.context import Context, Origin
from millstream.commands.context.session import Session
from millstream.commands.table.spec import Command
from millstream.commands.table.table import find
from millstream.engine.cold import ColdDamage
from millstream.engine.keyspace import DATABASES
from millstream.errors import MillstreamError
from millstream.node.following import annotated
from millstream.node.following.role import Following
from millstream.node.node import Node
from millstream.protocol import limits
from millstream.replication.annotations import AnnotationError, is_annotation
from millstream.replication.received import ReceivedStream, ReceivedUnit
from millstream.replies import Error

# Number of bytes searched for plain commands at a time; a larger unit is not plain
_HEAD = 64 * 1024
# Limits of one record, unless a single unit is larger
PIECE_COMMANDS = 512
PIECE_BYTES = 256 * 1024
# Name of the link's user, as Redis shows it
_SUPERUSER = b"(superuser)"
# Longest part of a command in an error
_SHOWN = 200


class NotHeldError(MillstreamError):
    """The primary sent a command, or selected a database, that does not exist on this replica.

    What to do: remove the keys that the message names from the primary, or follow another server. Then send REPLICAOF
    NO ONE and REPLICAOF again, which begins with a copy.
    """


class DivergedError(MillstreamError):
    """A command of the primary failed on this replica, so their data differ.

    What to do: nothing, since the replica requests a new copy of the primary's data. If it happens again, report it
    with the log.
    """


class Obedience:
    """Runs the commands of the primary's stream on the node."""

    def __init__(self, node: Node, following: Following) -> None:
        self._node, self._following = node, following
        # Session that runs the commands; its database is the one selected in the stream
        self.session = Session(0, is_primary=True, user=_SUPERUSER)
        self.asked = 0  # Offset after the primary's last request for this server's offset
        self._commands = self._size = 0  # number and bytes of the commands of this piece that have run

    def begin(self) -> None:
        """Start reading the stream at the end of the history."""
        self.session.db = max(self._node.keyspace.history.db, 0)
        self.asked = 0

    def run(self, received: ReceivedStream, now: Now) -> bool:
        """Run received units as one record; return True if more may be ready."""
        self._commands = self._size = 0
        ctx = self._node.context(self.session, now, Origin.PRIMARY)
        head, at = b"", 0
        try:
            while self._commands < PIECE_COMMANDS and self._size < PIECE_BYTES:
                if at >= len(head):
                    head, at = received.head(_HEAD), 0
                before = self._size
                if at < len(head):
                    self._run_plain(ctx, received, head, at)
                at += self._size - before
                if self._commands >= PIECE_COMMANDS:
                    break
                unit = received.next()
                if unit is None:
                    if received.cost > limits.CHANGE_MAX:  # no log record could contain it, even if it were complete
                        self._count_divergence()
                        raise DivergedError("a command or a transaction of the primary is too large to be run here")
                    if received.waiting < _HEAD:
                        received.give_back()
                    return False
                self._run_unit(ctx, unit)
                self._size += unit.size
                self._commands += len(unit.commands)
                at += unit.size
        except NotHeldError as error:
            raise NotHeldError(f"{error}, at offset {self._following.offset + self._size}") from None
        else:
            return True
        finally:
            if self._size:
                self._following.relay.take_in(received.taken(self._size), self.session.db)
            received.drop()
            self._node.close(ctx)

    def _run_plain(self, ctx: Context, received: ReceivedStream, head: bytes, at: int) -> None:
        """Run the plain commands of the units from a position on, up to the last complete unit."""
        is_open, first, whole = False, at, at  # position after the last complete unit
        try:
            while at < len(head):
                run = self._node.batches.run_inside(ctx, head, at, is_open=is_open)
                self._commands += run.commands
                if run.whole > at or not is_open:
                    whole = run.whole
                if is_open and run.at == at:
                    self._count_divergence()
                    raise DivergedError("there is no memory for a transaction of the primary")
                is_open, at = run.at > whole, run.at
                if not is_open:
                    return
                if run.words is not None and (row := _row(run.words)) is not None:
                    self._node.journal.weight.bytes = 0
                    self._run_words(ctx, row, run.words)
                    self._commands += 1
        finally:
            if whole > first:
                self._size += whole - first
                received.skip(whole - first)

    def _run_unit(self, ctx: Context, unit: ReceivedUnit) -> None:
        rows = list(map(_row, unit.commands))
        self._node.journal.weight.bytes = 0  # a unit may be as large as a client's transaction
        covered = 0  # number of following commands that an annotation covers
        for row, words in zip(rows, unit.commands, strict=True):
            if covered and row is not None:
                covered -= 1
            elif row is not None:
                self._run_words(ctx, row, words)
            elif words[0].upper() == b"SELECT":
                self.session.db = int(words[1])
            elif words[0].upper() == b"REPLCONF":
                self.asked = self._following.offset + self._size + unit.size
            elif is_annotation(words):
                covered = self._run_annotation(ctx, words[1])
        if covered:
            self._count_divergence()
            raise DivergedError("an annotation of the primary covers more commands than came with it")

    def _run_words(self, ctx: Context, row: Command, words: list[bytes]) -> None:
        reply = self._node.run(ctx, row, words)
        if isinstance(reply, Error):
            self._count_divergence()
            raise DivergedError(f"the primary's command {_text(words)} failed here: {reply.line}")

    def _run_annotation(self, ctx: Context, payload: bytes) -> int:
        try:
            return annotated.run(ctx, payload)
        except (AnnotationError, ColdDamage) as error:
            if isinstance(error, ColdDamage):
                self._node.cold.note_damage(*error.extent[:2])
            self._count_divergence()
            raise DivergedError(f"the primary has sent an annotation that cannot be applied here: {error}") from None

    def _count_divergence(self) -> None:
        self._following.divergences += 1
        self._following.forget_history()


def _row(words: list[bytes]) -> Command | None:
    """Return the row of a command to run; None for a command about the stream itself."""
    row = find(words)
    if row is None or row.name in _OF_STREAM:
        name = words[0].upper()
        if name == b"SELECT" and not (len(words) == 2 and words[1] in _DATABASES):
            raise NotHeldError(f"the primary selects a database that does not exist here: {_text(words)}")
        if row is not None or name in _UNHEARD:
            return None
    if row is None or row.handler is None or not row.takes(len(words)):
        raise NotHeldError(f"the primary has sent a command that does not exist here: {_text(words)}")
    if "write" not in row.flags and row.name != "publish":
        raise NotHeldError(f"the primary has sent a command that does not change data: {_text(words)}")
    return row


_DATABASES = frozenset(b"%d" % number for number in range(DATABASES))
# Commands about the stream, or signs that the primary is alive
_OF_STREAM = frozenset({"ping", "select", "replconf"})
# Ignored: a message in a cluster, which changes nothing
_UNHEARD = frozenset({b"SPUBLISH"})


def _text(words: list[bytes]) -> str:
    return b" ".join(words)[:_SHOWN].decode("utf-8", "backslashreplace")
