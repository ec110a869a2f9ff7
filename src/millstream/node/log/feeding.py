"""The replication stream: each record's changes, as commands, become bytes of the history.

Each transition becomes commands at once, since they describe the state at that moment. The bytes are made at the end of
the record, which then also stores their number. So the log holds the offset together with the changes, and a restarted
primary recovers its offset. A command that changes no data (PUBLISH, PING) has a record that only counts its bytes.

Until the first replica connects, the journal has no feed, and nothing of this is done.
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
    """Return a new, unique name of a history."""
    return secrets.token_hex(20)


def py_tell_plain(
    payload: bytes,  # noqa: ARG001 - its double's
    selected: int,  # noqa: ARG001 - its double's
    uncounted: int,  # noqa: ARG001 - its double's
) -> tuple[bytes, int, bytes] | None:
    """Return a record's bytes for replicas, if it does nothing but add entries, acknowledge and set strings.

    Returns:
        The bytes, the database that they select, and the record with their number added. None for any other record.
        This function returns None for every record; only its double in C has the short cut.
    """
    return None


if TYPE_CHECKING:
    tell_plain = py_tell_plain
else:
    tell_plain = core.choose(py_tell_plain)


class Feed:
    """Turns the journal's records into bytes for replicas, once a history is recorded."""

    is_relay = False
    selects = False
    is_prompt = False

    def __init__(self, space: Keyspace, config: Config) -> None:
        self._space, self._config = space, config
        self.db = space.history.db  # Database selected at :attr:`offset`
        self._unlogged = 0  # bytes that no record counts yet
        self._commands: list[Command] = []
        self._has_changes = False  # the commands contain a change that clients may wait for
        # Bytes of the stream, and the part that may be sent to replicas
        self.backlog = Backlog(space.history.offset, config.backlog_size)
        self.written = space.history.offset  # Offset after the last change of data
        # Called after bytes were added; the shell sends them once they are kept
        self.on_bytes: Callable[[], None] = lambda: None

    @property
    def offset(self) -> int:
        """The offset at the end of the history."""
        return self.backlog.end

    @property
    def _selected(self) -> int:
        """The database that the next command need not select."""
        return NO_DATABASE if self.selects else self.db

    def forget_database(self) -> None:
        """Begin the next record with SELECT, because a copy was made; a relay does not."""
        if not self.is_relay:
            self.db = NO_DATABASE

    def note(self, step: Transition, soft: bool) -> None:
        """Convert an applied transition to commands; ``soft`` transitions change only when a consumer was seen."""
        config = self._config
        commands = commands_of(self._space, step, soft=soft, dialect=config.dialect, annotate=config.annotate)
        if commands:
            self._commands += commands
            self._has_changes = self._has_changes or not soft

    def note_run(self, record: bytes) -> None:
        """Convert the changes of a run of plain commands."""
        for step in codec.unpack(record)[1]:
            self.note(tuple(step), soft=step[0] == "cseen")  # the consumer exists already

    def tell_run(self, record: bytes) -> bytes:
        """Make bytes from the record of a run of plain commands; return the record with their number added."""
        if not self._commands and self._config.annotate != "always":  # the commands are the same in any dialect
            short = tell_plain(record, NO_DATABASE if self.selects else self.db, self._unlogged)
            if short is not None:
                data, self.db, counted = short
                backlog = self.backlog
                backlog.append(data)
                self.written, self.is_prompt = backlog.end, False
                self._space.history.advance(self.db, self._unlogged + len(data))  # as recorded in the log
                self._unlogged = 0
                return counted
        self.note_run(record)
        self.close()
        step = self.count()
        return record if step is None else codec.add(record, step)

    def say(self, command: list[bytes]) -> None:
        """Add a command that changes no data to the current record's commands."""
        self._commands.append((NO_DATABASE, command))

    def close(self) -> bool:
        """Make bytes from the current record's commands; report whether there were any."""
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
        """Append bytes that no record counts yet."""
        self._unlogged += len(data)
        self.backlog.append(data)

    @property
    def is_counted(self) -> bool:
        """True if records count all bytes made until now."""
        return not self._unlogged

    def count(self) -> Transition | None:
        """Apply and return the transition that counts the bytes made until now; None if all are counted."""
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
    """Return the transition that starts a history where none is recorded.

    After a history that was given up, the new one starts at a higher offset. The data may have changes that no offset
    counts, and a replica at the old end would lack them.
    """
    past = space.history
    return ("hist", NO_DATABASE, replid, past.offset + past.is_given_up, "", NO_OFFSET, list(past.before()))


def forgotten(space: Keyspace) -> Transition:
    """Return the transition that clears the origin of the data."""
    return ("hist", NO_DATABASE, "", space.history.offset, "", NO_OFFSET)


def given_up(space: Keyspace, *, had_replicas: bool) -> Transition:
    """Return the transition that stops a primary's history; it keeps the old name that replicas have."""
    past = space.history
    if had_replicas or not past.replid2:
        return ("hist", NO_DATABASE, "", past.offset, past.replid, past.offset + 1, list(past.before()))
    return ("hist", NO_DATABASE, "", past.offset, past.replid2, past.second, list(past.earlier))


def gone_on(space: Keyspace) -> Transition:
    """Return the transition with which a restarted primary continues its history under a new name.

    Bytes that the primary sent but did not keep belong only to the old name. So no replica takes them for a part of
    the new history.
    """
    return renamed(space, new_replid(), NO_DATABASE)


def renamed(space: Keyspace, replid: str, db: int) -> Transition:
    """Return the transition that continues the history under another name."""
    past = space.history
    return ("hist", db, replid, past.offset, past.replid, past.offset + 1, list(past.before()))
