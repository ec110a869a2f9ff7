"""A store: one node, the guard around it, its log, and a thread for what nobody calls for.

The callers' threads run the commands, one at a time inside the guard. What is left over is done by the *keeper*, a
thread that is started when there is work for it: it writes and syncs the log (all records that gathered while it did so
before are one group), releases the replies that waited for that, and wakes reads whose time is up.

``always``
    A reply waits until its record is durable; the keeper writes and syncs.
``everysec``, ``no``
    The caller's thread writes at once, and the reply goes out: the end of the process loses nothing. The keeper syncs
    once a second with ``everysec``; with ``no`` the log is synced only when it is closed.

A disk that fails ends it: every connection is cut, with no reply that was not covered, and says why. A disk that is
full does not: further writes are refused (:mod:`millstream.node.disk_guard`), and the keeper tries again
what the log kept.
"""

import contextlib
import logging
import queue
import secrets
import threading
import time
from typing import TYPE_CHECKING

from millstream.clock import Clock, ManualClock, Now, SystemClock
from millstream.commands.admin.info import LogFacts, RewriteFacts, ShellFacts
from millstream.commands.context.config import Config
from millstream.embedded.channel import Channel, Sink
from millstream.embedded.guard import Guard, be_helper
from millstream.errors import DiskFullError, StorageError, UsageError
from millstream.node.disk_guard import LOOK_SECONDS, Room, default_floor
from millstream.node.log.rewriting import Rewriter
from millstream.node.node import Node
from millstream.node.outcome import Outcome
from millstream.persistence.exposure import exposed
from millstream.persistence.log import Log
from millstream.protocol.encoder import error_line

if TYPE_CHECKING:
    from pathlib import Path

    from millstream.commands.context.session import Session
    from millstream.embedded.place import Fsync, Place
    from millstream.persistence.disk import Disk

log = logging.getLogger("millstream.embedded")

SYNC_SECONDS = 1.0
"""How often ``everysec`` syncs (Redis: the same)."""

FORKED = (
    "this process was forked from one that had the store of {url} open, and cannot use it: connect in the child to a "
    "memory:// of its own, or serve the data (millstream serve --dir DIR) and connect to the server from both"
)

# Ctrl-C may strike anywhere; what the log has is whole commands, what is in memory may be half of one.
INTERRUPTED = (
    "a command on {url} was interrupted half-way ({error}), so what is in memory is not to be trusted; close all its "
    "clients and connect again"
)

TOO_MANY = "ERR max number of clients reached"

# What clients see as their own address and the server's: there is neither host nor port.
_ADDRESS = "embedded:0"


class Store:
    """See the module's text.

    Args:
        place: what to open.
        clock: where time comes from; one turned by hand is followed only when :meth:`tick` is called.
        disk: the real one by default.

    Attributes:
        place: as given.
        clock: as given.
        fsync: when writes are brought to the disk.
        node: the state.
        released: replies may go out that wait for this position or an earlier one.
        room: whether the disk takes writes; None for a store in memory.
        waiting: connections with replies that wait for more.
        failure: why the disk failed, or None.
        forked: this is a child's copy of its parent's store.

    Raises:
        StorageError: the data directory is locked, damaged or not usable.
    """

    def __init__(self, place: "Place", *, clock: Clock | None = None, disk: "Disk | None" = None) -> None:
        self.place = place
        self.clock = clock or SystemClock()
        self.fsync: Fsync = place.fsync or "always"
        self.failure: StorageError | None = None
        self.forked = False
        self.waiting: dict[Channel, None] = {}
        self._guard = Guard()
        self._channels: dict[int, Channel] = {}  # by session id
        self._again: list[Channel] = []  # their wait is over, so commands they sent since may run
        self._log: Log | None = None
        self._rewriter: Rewriter | None = None
        self._recovered = 0
        self._synced_at = time.time()
        self._keeper: threading.Thread | None = None
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: stop
        self._woken = False  # the keeper has not yet looked since it was last woken
        self._closing = False  # the keeper is being waited for: what it still does starts no other one
        self._busy = False  # the keeper is writing or syncing, outside the guard
        self._sync_due: float | None = None  # when ``everysec`` syncs next; None if there is nothing to sync
        self._try_due: float | None = None  # when free space is looked at again; None while writes are taken
        self._look_at = 0.0  # from when on the weaker policies look at free space again
        self._alarm: int | None = None  # monotonic milliseconds at which the keeper wakes by itself
        self.room: Room | None
        self.node = self._open(place.directory, disk)
        self.released = 0 if self._log is None else self._log.appended
        self._describe()
        if self.room is not None:
            with self._guard:
                self._look(self.room.measure())

    def _open(self, directory: "Path | None", disk: "Disk | None") -> Node:
        if directory is None:
            self.room = None
            return Node(Config())
        config = Config({"dir": str(directory), "appendonly": "yes", "appendfsync": self.fsync})
        self._log, recovery = Log.open(directory, disk)
        if exposure := exposed(directory):
            log.warning("%s", exposure)
        try:
            node = Node(config, self._log)
            self._recovered = node.recover(recovery.payloads())
            config.set([("disk-free-floor", str(default_floor(self._log.total())))])
        except BaseException:
            self._log.close()
            raise
        self.room = Room(self._log, node, lambda: config.disk_floor, self.clock)
        node.rewriter = self._rewriter = Rewriter(self._log, config, in_thread=be_helper)
        return node

    def _describe(self) -> None:
        around = self.node.surroundings
        around.shell = ShellFacts(started=self.clock.now().wall, run_id=secrets.token_hex(20))
        around.log = self._read_log
        around.max_clients = self.node.config.max_clients

    def _read_log(self) -> LogFacts:
        log_, room = self._log, self.room
        if log_ is None or room is None:
            return LogFacts(last_save=self.node.surroundings.shell.started // 1000)
        return LogFacts(
            enabled=True,
            policy=self.fsync,
            size=log_.total_bytes,
            base_size=log_.snapshot_bytes,
            appended=log_.appended,
            durable=log_.durable,
            recovered=self._recovered,
            last_save=int(self._synced_at),
            disk_state=room.state,
            disk_since=room.since // 1000,
            disk_free=free if (free := room.measure()) is not None else -1,
            rewrite=self._rewriter.told() if self._rewriter else RewriteFacts(),
        )

    # ------------------------------------------------------------------ what connections call

    def connect(self, sink: Sink) -> Channel:
        """A new connection.

        Args:
            sink: see :class:`Channel`.

        Raises:
            UsageError: in a forked child.
            StorageError: the disk has failed.
        """
        self._check_process()
        with self._guard:
            if self.failure is not None:
                raise self.failure
            session = self.node.open_session(self._now(), addr=_ADDRESS, laddr=_ADDRESS)
            channel = Channel(self, session, sink)
            if len(self._channels) >= self.node.config.max_clients:
                self.node.close_session(session)
                sink(error_line(TOO_MANY))
                channel.end(TOO_MANY)
            else:
                self._channels[session.id] = channel
        return channel

    def run(self, channel: Channel, data: bytes) -> None:
        """Run the commands a client sends."""
        self._check_process()
        with self._guard:
            try:
                channel.feed(data)
                self._settle()
            except BaseException as error:
                self._fail(StorageError(INTERRUPTED.format(url=self.place.url, error=repr(error))))
                raise

    def hang_up(self, channel: Channel) -> None:
        """The client is gone."""
        if self.forked:
            return
        with self._guard:
            self.forget(channel)

    def tick(self) -> None:
        """Do what is due by the clock; the keeper calls it, or who turns the clock by hand."""
        with self._guard:
            self._tick()

    def _check_process(self) -> None:
        if self.forked:
            raise UsageError(FORKED.format(url=self.place.url))

    def _now(self) -> Now:
        return self.clock.now()

    # ------------------------------------------------------------------ inside the guard, called by channels

    def execute(self, session: "Session", argv: list[bytes]) -> Outcome | None:
        """Run one command; a disk that fails on it ends the store."""
        try:
            return self.node.execute(session, argv, self._now())
        except StorageError as error:
            self._fail(error)
            return None

    def empty_outbox(self) -> None:
        """Hand the node's replies and messages to the connections they are for."""
        outbox = self.node.outbox
        while outbox:
            pending, outbox[:] = outbox[:], []
            for session, outcome in pending:
                channel = self._channels.get(session.id)
                if channel is not None:
                    channel.deliver(outcome)
                    self._again.append(channel)

    def forget(self, channel: Channel) -> None:
        """A connection ends, as its client wishes."""
        channel.end("")
        self._drop(channel)

    def cut(self, channel: Channel, reason: str) -> None:
        """A connection ends because of what its client did."""
        log.warning("closing client %d of %s: %s", channel.session.id, self.place.url, reason)
        channel.end(reason)
        self._drop(channel)

    def _drop(self, channel: Channel) -> None:
        if self._channels.pop(channel.session.id, None) is not None:
            self.waiting.pop(channel, None)
            self.node.close_session(channel.session)

    # ------------------------------------------------------------------ after commands

    def _settle(self) -> None:
        """Commands have run: see to everything but the replies to who sent them."""
        self.empty_outbox()
        while self._again:
            again, self._again = self._again, []
            for channel in again:
                channel.run()
            self.empty_outbox()
        if self.node.stopping:
            self.node.stopping = False
            self._cut_all("SHUTDOWN")
        self._commit()
        if self._rewriter is not None and self.failure is None:
            self._rewriter.consider()
        self._set_alarm()

    def _commit(self) -> None:
        """Write what was appended, or have it written and synced."""
        log_, room = self._log, self.room
        if room is not None and self._try_due is not None and room.has_moved():
            self._try_due = time.monotonic()  # who lowers the floor by CONFIG SET need not wait for the next try
            self._wake()
        if log_ is None or room is None or room.is_full or self.failure is not None or self._busy:
            return  # the keeper looks again when it is done, or when there may be space
        if self.fsync == "always":
            if log_.appended > self.released:
                self._wake()
            return
        if log_.appended > self.released:
            try:
                self._release(log_.write())
            except StorageError as error:
                self._fail(error)
                return
            if room.is_near or time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + LOOK_SECONDS
                self._look(room.measure())
        if self.fsync == "everysec" and self._sync_due is None and log_.durable < log_.appended:
            self._sync_due = time.monotonic() + SYNC_SECONDS
            self._wake()

    def _release(self, position: int) -> None:
        self.released = position
        for channel in list(self.waiting):
            channel.release()

    def _set_alarm(self) -> None:
        """Wake the keeper if it would sleep past the next deadline."""
        if isinstance(self.clock, ManualClock):
            return
        due = self.node.next_deadline(self._now())
        if due is not None and (self._alarm is None or due < self._alarm):
            self._wake()

    def _wake(self) -> None:
        if self._woken or self._closing:
            return
        self._woken = True
        self._wakes.put(False)
        if self._keeper is None:
            self._keeper = threading.Thread(
                target=self._keep, args=(self._wakes,), name="millstream-embedded", daemon=True
            )
            self._keeper.start()

    def _look(self, free: int | None) -> None:
        """Everything was written, and so much is free."""
        assert self.room is not None
        self.room.worked(free)
        self._try_due = None
        if self.room.state != "ok":
            self._try_later()

    def _try_later(self) -> None:
        assert self.room is not None
        self._try_due = time.monotonic() + self.room.delay()
        self._wake()

    def _fail(self, error: StorageError) -> None:
        """The disk failed: show nobody anything more. If it is only full, hold back what it refused."""
        if isinstance(error, DiskFullError):
            assert self.room is not None
            self.room.refused(error)
            self._try_later()
            return
        if self.failure is None:
            self.failure = error
            log.critical("%s: %s", self.place.url, error)
        self._cut_all(str(error))

    def _cut_all(self, reason: str) -> None:
        for channel in list(self._channels.values()):
            channel.end(reason)
            self._drop(channel)

    # ------------------------------------------------------------------ the keeper

    def _keep(self, wakes: "queue.SimpleQueue[bool]") -> None:
        """The keeper's life: until :meth:`close`."""
        be_helper()
        while True:
            with contextlib.suppress(queue.Empty):
                if wakes.get(timeout=self._sleep(wakes)):
                    return
            with self._guard:
                self._woken = False
                self._tick()
                self._busy = self._should_sync()
            if self._busy:
                self._sync()

    def _sleep(self, wakes: "queue.SimpleQueue[bool]") -> float | None:
        """Seconds until there is something to do unasked; None for never."""
        with self._guard:
            if wakes is not self._wakes:  # closing; the word to stop is in the queue
                return None
            now = self._now()
            self._alarm = None if isinstance(self.clock, ManualClock) else self.node.next_deadline(now)
            moments = [] if self._alarm is None else [(self._alarm - now.mono) / 1000]
            dues = (self._sync_due, self._try_due)
            moments.extend(due - time.monotonic() for due in dues if due is not None)
        return max(min(moments), 0.0) if moments else None

    def _should_sync(self) -> bool:
        log_, room = self._log, self.room
        if log_ is None or room is None or self.failure is not None:
            return False
        if self._try_due is not None and time.monotonic() >= self._try_due:
            return True
        if room.is_full:
            return False
        if self.fsync == "always":
            return log_.appended > self.released
        return self._sync_due is not None and time.monotonic() >= self._sync_due

    def _sync(self) -> None:
        """Write and sync outside the guard, so that commands go on meanwhile; then let out what waited for it."""
        log_, room = self._log, self.room
        assert log_ is not None
        assert room is not None
        failure: StorageError | None = None
        done = 0
        free: int | None = None
        try:
            log_.write()
            done = log_.sync()
            free = room.measure()
        except StorageError as error:
            failure = error
        except BaseException as error:  # noqa: BLE001 - whatever it is, no reply may be released after it
            failure = StorageError(f"the log failed: {error!r}")
        with self._guard:
            self._busy = False
            self._sync_due = None
            if failure is not None:
                self._fail(failure)
                return
            self._synced_at = time.time()
            self._release(done)
            self._look(free)
            self._settle()

    def _tick(self) -> None:
        now = self._now()
        due = self.node.next_deadline(now)
        if due is None or due > now.mono:
            return
        try:
            self.node.tick(now)
        except StorageError as error:
            self._fail(error)
            return
        self._settle()

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Cut every connection, bring everything to the disk and let the directory go.

        A store in memory keeps what it holds, and goes on if it is used again.

        Raises:
            StorageError: the disk failed now.
        """
        if self.forked:
            return
        with self._guard:
            self._cut_all("the store was closed")
            keeper, self._keeper = self._keeper, None
            wakes, self._wakes = self._wakes, queue.SimpleQueue()
            self._woken, self._alarm = False, None
            self._closing = True
        try:
            if keeper is not None:
                wakes.put(True)
                keeper.join()
        finally:
            self._closing = False
        if self._rewriter is not None:
            self._rewriter.stop()
        if self._log is not None:
            self._log.close()

    def abandon(self) -> None:
        """In a forked child: hold on to nothing of the parent's, and write nothing."""
        self.forked = True
        if self._rewriter is not None:
            self._rewriter.abandon()
        if self._log is not None:
            self._log.abandon()
