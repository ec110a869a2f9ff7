"""One connection of a store: bytes of commands in, bytes of replies out, in order, none before its barrier.

The counterpart of the server's connection without a network: the caller's own thread runs the commands as it sends
them. Everything but :meth:`Channel.send` and :meth:`Channel.close` is called by the store, inside its guard.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.embedded.guard import outside
from millstream.errors import ProtocolError, StorageError
from millstream.node.durability.held_replies import HeldReplies
from millstream.node.plain import NOTHING, PlainRun
from millstream.protocol.encoder import error_line
from millstream.protocol.reader import CommandReader, QueryBufferError
from millstream.replies import Buffer

if TYPE_CHECKING:
    from millstream.commands.context.session import Session
    from millstream.embedded.store import Store
    from millstream.node.outcome import Outcome

Sink = Callable[[bytes], None]

# Bytes of a command, or a few, that are looked at before the reader has them; it keeps that many as they are
_SHORT = 4096


class Channel:
    """One connection's bytes; see the module's text."""

    __slots__ = ("_ending", "_held", "_out", "_reader", "_sink", "_store", "_untaken", "closed", "reason", "session")

    def __init__(self, store: "Store", session: "Session", sink: Sink) -> None:
        self._store = store
        self._sink = sink
        self._reader = CommandReader(trusted=session.user is not None)
        self._held = HeldReplies(store.gate, self)
        self._out: list[Buffer] = []
        self._untaken = 0  # bytes of messages handed to the sink since the client last sent or took something
        self._ending = False
        self.session = session  # The session as given
        self.closed = False  # No bytes come or go any more
        self.reason = ""  # The reason for the close, in words; empty if the client closed it or asked for that

    # ------------------------------------------------------------------ the client's calls

    def send(self, data: bytes) -> None:
        """Run the commands in ``data``; their replies go to the sink, now or later."""
        self._store.run(self, data, self._sink)

    def taken(self) -> None:
        """Note that the client has read the bytes that the sink was given."""
        self._untaken = 0

    def close(self) -> None:
        """Hang up for the client: its waits and watches are forgotten."""
        if not self.closed:
            outside(lambda: self._store.hang_up(self))

    # ------------------------------------------------------------------ inside the store's guard

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes from the client and run the complete commands.

        Returns:
            The replies, if all of it was plain commands: these end no wait and no connection, publish nothing and make
            nothing due. They are empty where they wait for the log; None where anything else was done.
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

    def _run_plain(self) -> PlainRun:
        """Run the plain commands that are next."""
        store = self._store
        try:
            return store.node.batches.take(self.session, self._reader, store.clock.wall_time())
        except StorageError as error:
            store.fail(error)
            return NOTHING

    def _take(self, run: PlainRun) -> None:
        """Keep the replies of plain commands, and serve clients that waited for the changed keys."""
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
        """Run the commands that are here, until one waits."""
        store, session, reader = self._store, self.session, self._reader
        while not (self.closed or self._ending or session.blocked):
            if reader.chunk:
                run = self._run_plain()
                self._take(run)
                if run.commands and session.held is None:  # the reader would look through the rest of the chunk
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

    def put(self, buffers: list[Buffer], barrier: int) -> None:
        """Keep a reply until it is flushed, or until the log has reached the barrier; never past an earlier one."""
        if not self._held.hold(buffers, barrier):
            self._out += buffers

    def deliver(self, outcome: "Outcome") -> None:
        """A reply or a message that another connection's command, or the passing of time, has brought about."""
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
        """Let out the replies that waited for the log, which has come further."""
        self._out += self._held.take()
        self.flush()

    def flush(self) -> None:
        """Hand over what may be shown; close after the last reply if the connection is to end."""
        if self._out and not self.closed:
            out, self._out = self._out, []
            self._sink(b"".join(out))
        if self._ending and not self._held and not self.closed:
            self._store.forget(self)

    def end(self, reason: str) -> None:
        """No more: tell the client, showing nothing that still waits."""
        if not self.closed:
            self.closed = True
            self.reason = reason
            self._held.end()
            self._out.clear()
            self._sink(b"")
