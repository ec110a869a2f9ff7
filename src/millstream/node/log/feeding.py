"""The stream for replicas, as it is made: what each record changes, in words, becomes bytes of the history.

Words are made at once after each transition, since they report the state at that moment. The bytes are made at the end
of the record, which then also says how many there are. So the offset is in the log with the changes it counts, and a
primary that starts again knows how far its history went. A command that changes no data (PUBLISH, PING) has a record
that only counts it.

While no replica has ever asked, nothing of this is done: the journal has no feed.
"""

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream import core
from millstream.commands.context.config import Config
from millstream.engine.history import NO_DATABASE, NO_OFFSET
from millstream.engine.keyspace import Keyspace, Transition
from millstream.node.log import codec
from millstream.replication.backlog import Backlog
from millstream.replication.dialect import commands_of
from millstream.replication.units import ASK, Command, unit


def new_replid() -> str:
    """A name that no other history has."""
    return secrets.token_hex(20)


def py_tell_plain(
    payload: bytes,  # noqa: ARG001 - its double's
    selected: int,  # noqa: ARG001 - its double's
    uncounted: int,  # noqa: ARG001 - its double's
) -> tuple[bytes, int, bytes] | None:
    """The bytes for replicas of a record that does nothing but add entries, acknowledge and set strings.

    Returns:
        The bytes, its database, and the record with how many bytes tell of it. None if it is none of these. Here that
        is so of every record: the double in C takes a short cut.
    """
    return None


if TYPE_CHECKING:
    tell_plain = py_tell_plain
else:
    tell_plain = core.choose(py_tell_plain)


class Feed:
    """See the module's text. The journal calls it, once a history is recorded."""

    is_relay = False
    selects = False
    is_prompt = False

    def __init__(self, space: Keyspace, config: Config) -> None:
        self._space, self._config = space, config
        self.db = space.history.db  # The database that is selected at :attr:`offset`
        self._unlogged = 0  # bytes that no record counts yet
        self._commands: list[Command] = []
        self._has_changes = False  # they tell of one that clients may wait for
        # The bytes made, with the part that replicas may be sent
        self.backlog = Backlog(space.history.offset, config.backlog_size)
        self.written = space.history.offset  # Offset after the last change of data
        # Called when there are more bytes; the shell sends them once they are kept
        self.on_bytes: Callable[[], None] = lambda: None

    @property
    def offset(self) -> int:
        """The offset at the end of the history."""
        return self.backlog.end

    @property
    def _selected(self) -> int:
        """The database that what comes next need not select."""
        return NO_DATABASE if self.selects else self.db

    def forget_database(self) -> None:
        """A copy was made: the next record begins with SELECT, where this server says what comes."""
        if not self.is_relay:
            self.db = NO_DATABASE

    def note(self, step: Transition, soft: bool) -> None:
        """A transition was applied; ``soft`` ones change only when a consumer was seen."""
        config = self._config
        commands = commands_of(self._space, step, soft=soft, dialect=config.dialect, annotate=config.annotate)
        if commands:
            self._commands += commands
            self._has_changes = self._has_changes or not soft

    def note_run(self, record: bytes) -> None:
        """The changes of a run of plain commands were made."""
        for step in codec.unpack(record)[1]:
            self.note(tuple(step), soft=step[0] == "cseen")  # of a consumer that was there

    def tell_run(self, record: bytes) -> bytes:
        """A run of plain commands is a record: make bytes of its changes; the record that counts them too."""
        if not self._commands and self._config.annotate != "always":  # in any dialect the words are the same
            short = tell_plain(record, NO_DATABASE if self.selects else self.db, self._unlogged)
            if short is not None:
                data, self.db, counted = short
                backlog = self.backlog
                backlog.append(data)
                self.written, self.is_prompt = backlog.end, False
                self._space.history.advance(self.db, self._unlogged + len(data))  # as the record says
                self._unlogged = 0
                return counted
        self.note_run(record)
        self.close()
        step = self.count()
        return record if step is None else codec.add(record, step)

    def say(self, command: list[bytes]) -> None:
        """A command that changes no data goes with what is told of the record at work."""
        self._commands.append((NO_DATABASE, command))

    def close(self) -> bool:
        """The record at work is through: make bytes of what was noted; whether there were any."""
        commands = self._commands
        if not commands:
            return False
        self._commands = []
        data, self.db = unit(commands, self._selected)
        self.extend(data)
        self.is_prompt = all(command is ASK for _, command in commands)
        if self._has_changes:
            self.written, self._has_changes = self.backlog.end, False
        return True

    def extend(self, data: bytes) -> None:
        """The next bytes, which no record counts yet."""
        self._unlogged += len(data)
        self.backlog.append(data)

    @property
    def is_counted(self) -> bool:
        """Records tell of all bytes made until now."""
        return not self._unlogged

    def count(self) -> Transition | None:
        """The transition that counts the bytes made until now, applied as of now; None where all are counted."""
        if not self._unlogged and self.db == self._space.history.db:
            return None
        step = ("off", self.db, self._unlogged)
        self._unlogged = 0
        self._space.apply(step)
        return step

    def appended(self, position: int) -> None:
        """Allow the bytes made so far to be sent once the log has reached a position."""
        self.backlog.await_position(position)
        self.on_bytes()


def begun(space: Keyspace, replid: str) -> Transition:
    """The transition with which a history begins where none is recorded, or none any more.

    After a history that was given up it begins further on: there may be changes that no offset counts, and a replica at
    that end would not have them.
    """
    past = space.history
    return ("hist", NO_DATABASE, replid, past.offset + past.is_given_up, "", NO_OFFSET, list(past.before()))


def forgotten(space: Keyspace) -> Transition:
    """The transition with which nothing is known any more of where the data have come from."""
    return ("hist", NO_DATABASE, "", space.history.offset, "", NO_OFFSET)


def given_up(space: Keyspace, *, had_replicas: bool) -> Transition:
    """The transition with which a primary records its history no more, and what it was called when others had it."""
    past = space.history
    if had_replicas or not past.replid2:
        return ("hist", NO_DATABASE, "", past.offset, past.replid, past.offset + 1, list(past.before()))
    return ("hist", NO_DATABASE, "", past.offset, past.replid2, past.second, list(past.earlier))


def gone_on(space: Keyspace) -> Transition:
    """The transition with which a primary that was started again goes on with its history, under another name.

    Bytes that it sent and did not keep are of the old name only, so no replica takes them for a part of the new one.
    """
    return renamed(space, new_replid(), NO_DATABASE)


def renamed(space: Keyspace, replid: str, db: int) -> Transition:
    """The transition with which the history goes on under another name."""
    past = space.history
    return ("hist", db, replid, past.offset, past.replid, past.offset + 1, list(past.before()))
