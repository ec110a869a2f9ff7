"""A store: one node, the guard around it, its connections, its log, and a background thread for the other work.

The callers' threads run the commands, one at a time inside the guard. The background thread does all other work, and is
started when there is some. It carries out the slow steps of the group commit, releases the replies that wait for them,
and wakes reads at their timeout. :mod:`millstream.node.durability.group_commit` decides about writes and about replies
that may be sent, as for the server. The thread that ran the commands carries out the quick steps.

If the disk fails, the store ends: every connection is closed with the reason, and replies whose writes are not durable
are dropped. If the disk is only full, the store continues: further writes are refused
(:mod:`millstream.node.durability.disk_guard`), and the background thread retries the writes that the log kept.
"""

import contextlib
import queue
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.clock import Clock, ManualClock, Now, SystemClock
from millstream.commands.admin.info import LogFacts, ShellFacts
from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.embedded.durable import Durable
from millstream.embedded.guard import INSIDE, Guard, Helper, catch_up, late, outside
from millstream.embedded.place import Place
from millstream.embedded.spilling import StoreSpilling
from millstream.errors import DiskFullError, ProtocolError, StorageError, UsageError
from millstream.logs import logger
from millstream.node.durability.disk_guard import DiskGuard, default_floor
from millstream.node.durability.group_commit import CommitStep, Fsync, GroupCommit, Report, perform, perform_safely
from millstream.node.durability.held_replies import HeldReplies, ReplyGate
from millstream.node.log.packs import KeyspacePacks, expect_packs, open_log
from millstream.node.log.rewriting import Rewriter
from millstream.node.node import Node
from millstream.node.outcome import Outcome
from millstream.node.plain import NOTHING, PlainRun
from millstream.paths import exposed
from millstream.persistence.disk import Disk
from millstream.protocol.encoder import error_line
from millstream.protocol.reader import CommandReader, QueryBufferError
from millstream.replies import Buffer

log = logger("millstream.embedded")

Sink = Callable[[bytes], None]

FORKED = (
    "this process was forked from one that had the store of {url} open, and cannot use it: connect in the child to a "
    "memory:// of its own, or serve the data (millstream serve --dir DIR) and connect to the server from both"
)

# Ctrl-C may occur anywhere: the log contains whole commands, but memory may contain half of one.
INTERRUPTED = (
    "a command on {url} was interrupted halfway ({error}), so the data in memory may be wrong; close all its clients "
    "and connect again"
)

# The background thread may also have changed half of the data.
BROKEN = (
    "the background thread of {url} has failed ({error}), so the data in memory may be wrong; close all its clients "
    "and connect again"
)

NO_THREAD = (
    "the background thread of {url} cannot be started ({error}): let this process have more threads or memory, close "
    "all its clients and connect again"
)

TOO_MANY = "ERR max number of clients reached"

# Address that clients see as their own and the server's: there is no host and no port.
_ADDRESS = "embedded:0"

# Size in bytes below which input runs directly, without the reader
_SHORT = 4096


class Channel:
    """One connection of a store: it takes the bytes of commands and returns the bytes of replies, in order.

    No reply is sent before the log has reached its barrier. A channel is the counterpart of the server's connection
    without a network: the caller's own thread runs the commands as it sends them. The store calls all methods except
    :meth:`send`, :meth:`taken` and :meth:`close`, inside its guard.
    """

    __slots__ = ("_ending", "_held", "_out", "_reader", "_sink", "_store", "_untaken", "closed", "reason", "session")

    def __init__(self, store: "Store", session: "Session", sink: Sink) -> None:
        self._store = store
        self._sink = sink
        self._reader = CommandReader(trusted=session.user is not None)
        self._held = HeldReplies(store.gate, self)
        self._out: list[Buffer] = []
        self._untaken = 0  # bytes of messages passed to the sink since the client last sent or read something
        self._ending = False
        self.session = session  # Session of the client
        self.closed = False  # True if no more bytes come or go
        self.reason = ""  # Text of the reason for the close; empty if the client closed or ended it

    # ------------------------------------------------------------------ calls by the client

    def send(self, data: bytes) -> None:
        """Run the commands in ``data``; the sink receives their replies, now or later."""
        self._store.run(self, data, self._sink)

    def taken(self) -> None:
        """Record that the client has read the bytes that the sink received."""
        self._untaken = 0

    def close(self) -> None:
        """Close the connection for the client and end its waits and watches."""
        if not self.closed:
            outside(lambda: self._store.hang_up(self))

    # ------------------------------------------------------------------ inside the store's guard

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes from the client and run the complete commands.

        Returns:
            The replies, if all commands were plain: these end no wait and no connection, publish nothing and make
            nothing due. Empty bytes if the replies wait for the log; None for any other command.
        """
        if self.closed or self._ending:
            return None
        session, reader, store = self.session, self._reader, self._store
        batches = store.node.batches
        run = NOTHING
        if len(data) < _SHORT and reader.is_empty and not session.blocked and batches.takes(session):
            try:
                run = batches.run(session, data, 0, store.clock.wall_time())
            except StorageError as error:
                store.fail(error)
            if run.at == len(data) and run.words is None and run.woken is None:
                barrier = store.node.journal.position
                if self._out or self._held.size or barrier > store.gate.released:
                    self.put([run.replies], barrier)
                    self.flush()
                    return b""
                return run.replies
        try:
            reader.feed(data)
        except QueryBufferError as error:
            store.cut(self, str(error))
            return None
        if run.at:
            reader.advance(run.at)
            session.held = run.words
            self._take(run)
        self.run()
        return None

    def _run_plain(self) -> "PlainRun":
        """Run the plain commands at the start of the buffer."""
        store = self._store
        try:
            return store.node.batches.take(self.session, self._reader, store.clock.wall_time())
        except StorageError as error:
            store.fail(error)
            return NOTHING

    def _take(self, run: "PlainRun") -> None:
        """Store the replies of plain commands, and serve clients that waited for the changed keys."""
        store = self._store
        if run.commands:
            self.put([run.replies], store.node.journal.position)
        if run.woken is not None:
            try:
                store.node.serve(self.session.db, run.woken, store.clock.now())
            except StorageError as error:
                store.fail(error)
            store.empty_outbox()

    def run(self) -> None:
        """Run the buffered commands until one waits."""
        store, session, reader = self._store, self.session, self._reader
        while not (self.closed or self._ending or session.blocked):
            if reader.chunk:
                run = self._run_plain()
                self._take(run)
                if run.commands and session.held is None:  # otherwise the reader would scan the rest of the chunk
                    continue
            try:
                argv = session.held or reader.next()
            except ProtocolError as error:
                self._ending = True
                self.put([error_line(f"ERR {error}")], 0)
                break
            if argv is None:
                if reader.has_more:
                    continue
                break
            session.held = None
            outcome = self._execute(argv)
            reader.trusted = session.user is not None  # AUTH and RESET change it
            if outcome is not None:
                self.put(outcome.buffers, outcome.barrier)
            self._ending = self._ending or session.closing
            store.empty_outbox()
        self.flush()

    def _execute(self, argv: list[bytes]) -> "Outcome | None":
        store = self._store
        try:
            return store.node.execute(self.session, argv, store.clock.now())
        except StorageError as error:
            store.fail(error)
            return None

    def put(self, buffers: "list[Buffer]", barrier: int) -> None:
        """Store a reply until the next flush, or until the log has reached its barrier.

        The order of replies is kept.
        """
        if not self._held.hold(buffers, barrier):
            self._out += buffers

    def deliver(self, outcome: "Outcome") -> None:
        """Take a reply or message that the command of another connection or the passing of time has caused."""
        self._ending = self._ending or self.session.closing
        if outcome.buffers:
            self.put(outcome.buffers, outcome.barrier)
            self._untaken += sum(map(len, outcome.buffers))
            limits = self._store.node.config.output_limits
            limit = (limits.pubsub if self.session.is_subscribed else limits.normal).hard
            if limit and self._untaken > limit:
                self._store.cut(self, f"it left {self._untaken} bytes of messages untaken")
                return
        self.flush()

    def release(self) -> None:
        """Send the replies that waited for the log, which has advanced."""
        self._out += self._held.take()
        self.flush()

    def flush(self) -> None:
        """Send the replies that are ready. Close the connection after the last one if it is ending."""
        if self._out and not self.closed:
            out, self._out = self._out, []
            self._sink(b"".join(out))
        if self._ending and not self._held and not self.closed:
            self._store.forget(self)

    def end(self, reason: str) -> None:
        """Close the connection, drop the replies that still wait, and notify the client."""
        if not self.closed:
            self.closed = True
            self.reason = reason
            self._held.end()
            self._out.clear()
            self._sink(b"")


class Store:
    """One node with its guard, connections and log.

    Args:
        place: the store to open.
        clock: the source of time; a manual clock has an effect only when :meth:`tick` is called.
        disk: the real disk by default.

    Attributes:
        place: the argument.
        clock: the argument, or the system's clock.
        fsync: the sync mode: ``always``, ``everysec`` or ``no``.
        node: the node, which has all data.
        gate: the log position up to which replies may be sent, and the connections that wait for more.
        failure: the error of the disk, or None.
        forked: True in a forked child, whose copy of the parent's store is unusable.

    Raises:
        StorageError: the data directory is locked, damaged or not usable.
    """

    def __init__(self, place: Place, *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.place = place
        self.clock = clock or SystemClock()
        self.fsync: Fsync = place.fsync or "always"
        self.failure: StorageError | None = None
        self.forked = False
        self.gate = ReplyGate()
        self._guard = Guard()
        self._lock, self._is_mine = self._guard.lock, self._guard.is_mine
        self._channels: dict[int, Channel] = {}  # by session id
        self._again: list[Channel] = []  # channels whose wait has ended, so that their later commands may run
        self._durable: Durable | None = None
        self._thread: threading.Thread | None = None  # background thread, created when there is work for it
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: stop
        self._woken = False  # the background thread was woken and has not yet checked
        self._closing = False  # the background thread is ending: its remaining work must not start another one
        self._alarm: float | None = None  # monotonic seconds at which the background thread wakes without a message
        self.node = self._open(place.directory, disk)
        self.node.config.no_replicas = "this store lives in the caller's program, where no replica reaches it"
        self._describe()
        self._look_at_disk()

    def _open(self, directory: Path | None, disk: Disk | None) -> Node:
        given = dict(self.place.parameters)
        if directory is None:
            config = Config(given)
            config.expect_files()
            return Node(config)
        config = Config(given | {"dir": str(directory), "appendonly": "yes", "appendfsync": self.fsync})
        config.has_files = True
        log_, recovery = open_log(directory, disk)
        if exposure := exposed(directory):
            log.warning("%s", exposure)
        with contextlib.ExitStack() as undo:
            undo.callback(log_.close)
            node = Node(config, log_)
            undo.callback(node.cold.close)
            recovered = node.recover(recovery.payloads())
            expect_packs(node.keyspace, log_)
            node.cold.open(log_)
            config.set([("disk-free-floor", str(default_floor(log_.total())))])
            undo.pop_all()
        disk_guard = DiskGuard(log_, node.journal, lambda: config.disk_floor, self.clock)
        spilling = StoreSpilling(node, log_, lambda: self._wakes.put(False))
        packs = KeyspacePacks(node.keyspace, self._in_turn, node.cold.drop_packs, damaged=node.cold.damages)
        rewriter = node.host.rewriter = Rewriter(log_, config, packs=packs, thread=Helper)
        rewriter.data_size = node.memory.data
        commit = GroupCommit(log_, self.fsync, disk_guard, time.monotonic())
        self._durable = Durable(log_, disk_guard, rewriter, commit, spilling, recovered)
        self.gate = commit.gate
        return node

    def _in_turn(self, job: Callable[[], Any]) -> Any:
        with self._guard:
            return job()

    def _look_at_disk(self) -> None:
        """Check the free space before the first write. If it is too small, check again without a caller."""
        with self._guard:
            self._commit()
            if self._durable is not None and self._durable.commit.next_due() is not None:
                self._wake()

    def _describe(self) -> None:
        around = self.node.surroundings
        around.shell = ShellFacts(started=self.clock.now().wall, run_id=secrets.token_hex(20))
        around.log = self._read_log
        around.max_clients = self.node.config.max_clients

    def _read_log(self) -> LogFacts:
        kept = self._durable
        if kept is None:
            return LogFacts(last_save=self.node.surroundings.shell.started // 1000)
        return kept.facts(self.fsync)

    # ------------------------------------------------------------------ calls by connections

    def connect(self, sink: Sink) -> Channel:
        """Return a new connection.

        Args:
            sink: function that receives the replies' bytes; see :class:`Channel`.

        Raises:
            UsageError: in a forked child.
            StorageError: the disk has failed.
        """
        self._check_process()
        with self._guard:
            if self.failure is not None:
                raise self.failure
            session = self.node.sessions.open(self._now(), addr=_ADDRESS, laddr=_ADDRESS)
            channel = Channel(self, session, sink)
            if len(self._channels) >= self.node.config.max_clients:
                self.node.sessions.close(session)
                sink(error_line(TOO_MANY))
                channel.end(TOO_MANY)
            else:
                self._channels[session.id] = channel
        return channel

    def run(self, channel: Channel, data: bytes, sink: Sink | None) -> bytes | None:
        """Run the commands that a client sends.

        Args:
            channel: the client's connection.
            data: the client's bytes.
            sink: function that receives the result of :meth:`Channel.feed`, which is also returned.

        Raises:
            UsageError: in a forked child, or in a signal handler during a call of the same thread.
        """
        if self.forked:
            self._check_process()
        if self._is_mine():
            raise UsageError(INSIDE)
        try:
            with self._lock:  # the guard's own lock saves two calls, which matter for a plain command
                try:
                    replies = channel.feed(data)
                    if replies is None:
                        self._settle()
                    else:
                        if sink is not None and replies:
                            sink(replies)
                        if self._durable is not None:
                            self._settle_writes(self._durable)
                except BaseException as error:
                    self.fail(StorageError(INTERRUPTED.format(url=self.place.url, error=repr(error))))
                    raise
        finally:
            if late.own or late.left_over:
                catch_up()
        return replies

    def hang_up(self, channel: Channel) -> None:
        """Remove the connection of a client that has closed it."""
        if self.forked:
            return
        with self._guard:
            self.forget(channel)

    def tick(self) -> None:
        """Do the work that is due by the clock. The background thread calls this, or the owner of a manual clock."""
        with self._guard:
            self._tick()

    def _check_process(self) -> None:
        if self.forked:
            raise UsageError(FORKED.format(url=self.place.url))

    def _now(self) -> Now:
        return self.clock.now()

    # ------------------------------------------------------------------ inside the guard, called by channels

    def empty_outbox(self) -> None:
        """Pass the node's replies and messages to their connections."""
        outbox = self.node.outbox
        while outbox:
            pending, outbox[:] = outbox[:], []
            for session, outcome in pending:
                channel = self._channels.get(session.id)
                if channel is not None:
                    channel.deliver(outcome)
                    self._again.append(channel)

    def forget(self, channel: Channel) -> None:
        """Close a connection at its client's request."""
        channel.end("")
        self._drop(channel)

    def cut(self, channel: Channel, reason: str) -> None:
        """Close a connection because of its client's behaviour, and log the reason."""
        log.warning("closing client %d of %s: %s", channel.session.id, self.place.url, reason)
        channel.end(reason)
        self._drop(channel)

    def _drop(self, channel: Channel) -> None:
        if self._channels.pop(channel.session.id, None) is not None:
            self.node.sessions.close(channel.session)

    # ------------------------------------------------------------------ after commands

    def _settle(self) -> None:
        """Do the work that follows commands, except the replies to their senders."""
        self.empty_outbox()
        while self._again:
            again, self._again = self._again, []
            for channel in again:
                channel.run()
            self.empty_outbox()
        if self.node.ending.is_due:
            self.node.ending.is_due = False
            self._cut_all("SHUTDOWN")
        if self._durable is not None:
            self._settle_writes(self._durable)
        self._set_alarm(self._next_due())

    def _settle_writes(self, kept: Durable) -> None:
        """Write and settle the logged records."""
        if self._commit() is not None:
            self._wake()
        if self.failure is None:
            kept.rewriter.consider()
            kept.spilling.poke()
            self._set_alarm(kept.spilling.due)
        self._set_alarm(kept.commit.next_due())

    def _commit(self) -> CommitStep | None:
        """Carry out the quick steps of the group commit. Return the next step if it waits for the disk, else None."""
        kept = self._durable
        if kept is None:
            return None
        kept.commit.retry_if_floor_moved()
        while (step := kept.commit.next_step(time.monotonic())) is not None and not step.in_thread:
            self._take_in(kept.commit, perform(step, kept.log, kept.disk_guard))
        return step

    def _take_in(self, commit: GroupCommit, report: Report) -> None:
        """Send the replies that waited for a step, or report its failure."""
        if commit.done(report, time.monotonic()):
            self.gate.open()
        if commit.failure is not None:
            self.fail(commit.failure)

    def _next_due(self) -> float | None:
        """Return the next time of due work, in monotonic seconds; None if there is none."""
        node = None if isinstance(self.clock, ManualClock) else self.node.next_deadline(self._now())
        kept = self._durable
        # No turn of spilling follows a failure, so its time would stay in the past
        own = () if kept is None else (kept.commit.next_due(), None if self.failure else kept.spilling.due)
        return min((moment for moment in (node and node / 1000, *own) if moment is not None), default=None)

    def _set_alarm(self, due: float | None) -> None:
        """Wake the background thread if it would sleep past its next work."""
        if due is not None and (self._alarm is None or due < self._alarm):
            self._wake()

    def _wake(self) -> None:
        if self._woken or self._closing:
            return
        if self._thread is None:
            try:
                thread = Helper(target=self._work, args=(self._wakes,), name="millstream-embedded", daemon=True)
                thread.start()
            except (RuntimeError, MemoryError) as error:  # without it, replies and timeouts would wait for ever
                self.fail(StorageError(NO_THREAD.format(url=self.place.url, error=repr(error))))
                return
            self._thread = thread
        self._wakes.put(False)
        self._woken = True

    def fail(self, error: StorageError) -> None:
        """Send no more replies, since the disk failed. If it is only full, keep the refused writes for a retry."""
        if self._durable is not None:
            self._durable.commit.fail(error, time.monotonic())
            if isinstance(error, DiskFullError):
                return
        if self.failure is None:
            self.failure = error
            log.critical("%s: %s", self.place.url, error)
        self._cut_all(str(error))

    def _cut_all(self, reason: str) -> None:
        for channel in list(self._channels.values()):
            channel.end(reason)
            self._drop(channel)

    # ------------------------------------------------------------------ the background thread

    def _work(self, wakes: queue.SimpleQueue[bool]) -> None:
        """Run the background thread until :meth:`close`. An error ends the store, or replies would wait for ever."""
        try:
            while self._turn(wakes):
                pass
        except BaseException as error:
            with self._guard:
                self.fail(StorageError(BROKEN.format(url=self.place.url, error=repr(error))))
            log.exception("internal error in the background thread of %s", self.place.url)

    def _turn(self, wakes: queue.SimpleQueue[bool]) -> bool:
        """Wait for the next work and do it; return False once the store closes."""
        with contextlib.suppress(queue.Empty):
            if wakes.get(timeout=self._sleep(wakes)):
                return False
        with self._guard:
            self._woken = False
            self._tick()
            self._spill()
            step = self._commit()
            if step is not None and self._durable is not None:
                self._durable.commit.begin(step)
        if step is not None and self._durable is not None:
            self._perform(step, self._durable)
        return True

    def _sleep(self, wakes: queue.SimpleQueue[bool]) -> float | None:
        """Return the seconds until the next due work; None for an unlimited sleep."""
        with self._guard:
            if wakes is not self._wakes:  # the store is closing; the stop message is in the queue
                return None
            self._alarm = self._next_due()
            return None if self._alarm is None else max(self._alarm - time.monotonic(), 0.0)

    def _perform(self, step: CommitStep, kept: Durable) -> None:
        """Write or sync outside the guard, so that commands can run meanwhile."""
        report = perform_safely(step, kept.log, kept.disk_guard)
        with self._guard:
            self._take_in(kept.commit, report)
            self._settle()

    def _tick(self) -> None:
        now = self._now()
        due = self.node.next_deadline(now)
        if due is None or due > now.mono:
            return
        try:
            self.node.tick(now)
        except StorageError as error:
            self.fail(error)
            return
        self._settle()

    def _spill(self) -> None:
        """Move entries to packs, one turn, if that is due."""
        if self._durable is None or self.failure is not None:
            return
        try:
            if self._durable.spilling.turn(self._now()):
                self._settle()
        except StorageError as error:
            self.fail(error)

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """Close every connection, write everything to disk and release the directory.

        A store in memory keeps its data and can be used again.

        Raises:
            StorageError: the disk failed during the close.
        """
        if self.forked:
            return
        with self._guard:
            self._cut_all("the store was closed")
            thread, self._thread = self._thread, None
            wakes, self._wakes = self._wakes, queue.SimpleQueue()
            self._woken, self._alarm = False, None
            self._closing = True
        try:
            if thread is not None:
                wakes.put(True)
                thread.join()
        finally:
            self._closing = False
        if self._durable is not None:
            self._durable.close(self.node.cold)

    def abandon(self) -> None:
        """Release the parent's resources in a forked child, and write nothing."""
        self.forked = True
        if self._durable is not None:
            self._durable.abandon(self.node.cold)
