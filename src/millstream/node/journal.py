"""The journal: the changes of a command become one record of the log, and its reply gets the record's position.

A transition is applied first and noted here. After the command, transaction or script, all notes are appended as one
record, so a start finds all of it or nothing. Every later reply, not only the writer's, waits for the position of the
last such record: a reader must not report a change that a power cut may undo.

*Soft* transitions (when a consumer was last seen) are logged like the others, but only replies that show them wait:
see :func:`millstream.node.durability.outage.shows_times`. So an idle poll costs no fsync. After a crash, a seen time
may be older than it was.
"""

from millstream.commands.admin.info import Loading
from millstream.engine.keyspace import Transition
from millstream.errors import StorageError
from millstream.node.durability.outage import Outage
from millstream.node.durability.unconfirmed import Unconfirmed
from millstream.node.log import codec
from millstream.node.log.feeding import Feed
from millstream.node.log.weight import Weight
from millstream.persistence.log import Log


class Journal:
    """Collects transitions into records, and holds the position that replies wait for."""

    def __init__(self, log: Log | None) -> None:
        self.log = log  # The log; None if none is kept
        self.position = 0  # Position of the last record that replies wait for; 0 for none
        self.weight = Weight()  # Size of the present record
        self.disk_outage: Outage | None = None  # Reason why nothing can be appended now, None if it can
        self.shortage: Outage | None = None  # Reason why writes are refused though the disk works: too few replicas
        self.outage: Outage | None = None  # The first of these two that applies, which refers to the other
        self.unconfirmed = Unconfirmed()  # Written records that too few replicas have confirmed
        # Progress of reading the log; None once the data are complete
        self.loading: Loading | None = None
        self.saved_at = 0  # Wall seconds of the last SAVE or similar command
        self.feed: Feed | None = None  # Builds the stream for replicas; None if there is none
        self._steps: list[Transition | bytes] = []  # bytes: record of a run, which becomes a part of this one
        self._is_hard = False  # True if any of these steps is not soft
        # Position of the present command's record if it was made while changes are held, so that only its own reply
        # waits; else 0
        self.own = 0
        self._last = 0  # position before changes were held, or of a record made since
        self._unlogged = 0  # number of records made without a log, for replicas to confirm
        self._lost: StorageError | None = None

    # ------------------------------------------------------------------ the present record

    def note(self, step: Transition, soft: bool) -> None:
        """Record a transition that was applied."""
        self._steps.append(step)
        if not soft:
            self._is_hard = True
        if self.feed is not None:
            self.feed.note(step, soft)

    def note_run(self, record: bytes, *, soft: bool) -> None:
        """Note the changes of a run of plain commands inside a transaction."""
        self._steps.append(record)
        if not soft:
            self._is_hard = True
        if self.feed is not None:
            self.feed.note_run(record)

    def lose(self, error: StorageError) -> None:
        """Drop a script's changes, which will never be in the log; closing the current record raises this error."""
        self._lost = error

    def wait_for_soft(self) -> None:
        """Make a script's or transaction's reply wait for all soft transitions so far, since it shows them."""
        if self.log is not None and not self.is_holding:
            self.position, self._is_hard = self.log.appended, self._is_hard or bool(self._steps)

    def flush(self, wall: int) -> list[Transition]:
        """Append the notes since the last flush as one record; return them, without the runs of plain commands."""
        self.weight.bytes = self.own = 0
        if self._lost is not None:
            raise self._lost
        steps = self._steps
        is_fed = self.feed is not None and self.feed.close()
        if not steps:
            if is_fed:
                self._fed_alone(wall)
            return []
        self._steps = []
        hard, self._is_hard = self._is_hard, False
        logged = steps if self.feed is None else [*steps, *self._counted()]
        record = b""
        if self.log is not None or self.unconfirmed.is_asked:
            try:
                record = codec.join(wall, logged)
                position = self._append(record)
            except StorageError:
                raise
            except Exception as error:  # the record is too large, or memory ran out
                raise not_logged(f"{len(steps)} changes of one command or transaction were made", error) from error
            if hard and self.is_holding:  # for a change of role, only its own reply waits
                self.own = self._last = position
            elif hard:
                self.position = position
        if is_fed:
            self._fed(record)
        return [step for step in steps if not isinstance(step, bytes)]

    def _append(self, record: bytes) -> int:
        """Append a record to the log, if there is one; return its position."""
        if self.log is not None:
            return self.log.append(record)
        self._unlogged += self.unconfirmed.is_asked
        return self._unlogged

    def append_run(self, record: bytes, *, soft: bool) -> None:
        """Append the record of a run of plain commands; later replies wait for it unless it is ``soft``."""
        feed = self.feed
        if self.log is not None or feed is not None:
            try:
                logged = record if feed is None else feed.tell_run(record)
                position = self._append(logged)
            except StorageError:
                raise
            except Exception as error:  # as in flush()
                raise not_logged("plain commands were run", error) from error
            if not soft:
                self.position = position
            if feed is not None:
                self._fed(logged)

    # ------------------------------------------------------------------ replicas

    def _counted(self) -> list[Transition]:
        """Return the transition of the record that counts the bytes for replicas, if any."""
        step = None if self.feed is None else self.feed.count()
        return [] if step is None else [step]

    def _fed_alone(self, wall: int) -> None:
        """Send replicas bytes that change no data, once the log counts them; if it takes no records, at once.

        A request for replicas' offsets must not wait for the disk, so it is sent before it is counted. A replica that
        has it needs a copy if the power fails before the log counts it.
        """
        assert self.feed is not None
        if self.feed.is_prompt or self.disk_outage is not None:
            self._fed()
        if self.disk_outage is None:
            if self.log is not None:
                self.log.append(codec.join(wall, self._counted()))
            if not self.feed.is_prompt:
                self._fed()

    def _fed(self, record: bytes = b"") -> None:
        """Pass on new bytes for replicas, which belong to a record, or to none: a message or a request for offsets."""
        assert self.feed is not None
        position = self._unlogged if self.log is None else self.log.appended
        if record and self.unconfirmed.is_asked:
            self.unconfirmed.note(position, self.feed.offset, record)
        self.feed.appended(position)

    def count_fed(self) -> None:
        """Make the current record store the offset of the replication stream, even if it has no other change."""
        assert self.feed is not None
        self._steps.append(self.feed.count() or ("off", self.feed.db, 0))

    def tell(self, command: list[bytes], wall: int) -> None:
        """Send replicas a command that changes nothing, and have the log count it if it takes records."""
        assert self.feed is not None
        self.feed.say(command)
        self.flush(wall)

    def ask_replicas(self) -> None:
        """Pass on a request for replicas' offsets in the stream, which belongs to no record."""
        if self.feed is not None and self.feed.close():
            self._fed()

    # ------------------------------------------------------------------ the log as a whole

    def recovered(self) -> None:
        """Count the log's recovered records as written."""
        if self.log is not None:
            self.position = self.log.appended

    def save(self, wall: int) -> bool:
        """SAVE: bring everything to the disk; return False without a log."""
        if self.log is None:
            return False
        self.log.write()
        self.log.sync()
        self.saved_at = wall // 1000
        return True

    # ------------------------------------------------------------------ refused writes

    @property
    def is_holding(self) -> bool:
        """True if memory has changes that the disk or replicas have not taken; no reply shows them meanwhile."""
        return self.outage is not None and self.outage.is_holding

    def suspend(self, outage: Outage) -> None:
        """Refuse what a disk outage refuses, and make no changes of the server's own, until :meth:`resume`."""
        self.disk_outage = outage
        self._settle()

    def resume(self) -> None:
        """Take writes again; postponed work is due at the node's next tick."""
        self.disk_outage = None
        self._settle()

    @property
    def latest(self) -> int:
        """The same as :attr:`position`, also while changes are held."""
        return max(self._last, self.position)

    def lack_replicas(self, shortage: Outage | None) -> None:
        """Refuse what an outage for lack of replicas refuses; None if there are enough again."""
        self.shortage = shortage
        self._settle()

    def _settle(self) -> None:
        self.outage = self.disk_outage or self.shortage
        if self.outage is not None:
            self.outage.other = self.shortage if self.outage is not self.shortage else None
        if self.is_holding:
            # Later replies depend on nothing that waits
            self._last, self.position = self.latest, 0
        else:
            self.position = self.latest


def not_logged(what: str, error: Exception) -> StorageError:
    """Return the error to raise if memory holds changes that the log will never have."""
    return StorageError(
        f"{what} in memory and cannot be logged ({error or repr(error)}); they were not acknowledged, and a start "
        "leaves them out: start again, and make such changes in smaller parts"
    )
