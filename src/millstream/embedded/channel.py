"""One connection of a store: bytes of commands in, bytes of replies out, in order, none before its barrier.

The counterpart of the server's connection without a network: the caller's own thread runs the commands as it sends
them. Everything but :meth:`Channel.send` and :meth:`Channel.close` is called by the store, inside its guard.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from millstream.embedded.guard import outside
from millstream.errors import ProtocolError
from millstream.node.durability.held_replies import HeldReplies
from millstream.protocol.encoder import error_line
from millstream.protocol.reader import CommandReader, QueryBufferError

if TYPE_CHECKING:
    from millstream.commands.context.session import Session
    from millstream.node.batch import PlainRun
    from millstream.node.durability.held_replies import ReplyGate
    from millstream.node.node import Node
    from millstream.node.outcome import Outcome
    from millstream.replies import Buffer

Sink = Callable[[bytes], None]


class ChannelHost(Protocol):
    """What a channel needs of its store.

    Attributes:
        node: runs the commands.
        gate: how far replies may go.
    """

    node: "Node"
    gate: "ReplyGate"

    def run(self, channel: "Channel", data: bytes) -> None:
        """Run the commands a client sends."""

    def run_plain(self, session: "Session", reader: CommandReader) -> "PlainRun":
        """Run the plain commands that are next; a disk that fails on them ends the store."""

    def serve(self, session: "Session", key: bytes) -> None:
        """Run again what waited for a key, since a plain command of this session has changed it."""

    def execute(self, session: "Session", argv: list[bytes]) -> "Outcome | None":
        """Run one command; a disk that fails on it ends the store."""

    def empty_outbox(self) -> None:
        """Hand the node's replies and messages to the connections they are for."""

    def hang_up(self, channel: "Channel") -> None:
        """The client is gone."""

    def forget(self, channel: "Channel") -> None:
        """A connection ends, as its client wishes."""

    def cut(self, channel: "Channel", reason: str) -> None:
        """A connection ends because of what its client did."""


class Channel:
    """See the module's text.

    Args:
        store: whose connection it is.
        session: the node's view of it.
        sink: takes bytes of replies, and ``b""`` at the end; called in any thread, and must not block.

    Attributes:
        session: as given.
        closed: no bytes come or go any more.
        reason: why it was closed, in words; empty if by the client, or because it asked for it.
    """

    __slots__ = ("_ending", "_held", "_out", "_reader", "_sink", "_store", "_untaken", "closed", "reason", "session")

    def __init__(self, store: ChannelHost, session: "Session", sink: Sink) -> None:
        self._store = store
        self._sink = sink
        self._reader = CommandReader(trusted=session.user is not None)
        self._held = HeldReplies(store.gate, self)
        self._out: list[Buffer] = []
        self._untaken = 0  # bytes of messages handed to the sink since the client last sent or took something
        self._ending = False
        self.session = session
        self.closed = False
        self.reason = ""

    # ------------------------------------------------------------------ the client's calls

    def send(self, data: bytes) -> None:
        """Run the commands in ``data``; their replies go to the sink, now or later.

        Raises:
            UsageError: in a forked child.
        """
        self._store.run(self, data)

    def taken(self) -> None:
        """The client has read what the sink was given."""
        self._untaken = 0

    def close(self) -> None:
        """The client hangs up: whatever it waited for or watched is forgotten."""
        if not self.closed:
            outside(lambda: self._store.hang_up(self))

    # ------------------------------------------------------------------ inside the store's guard

    def feed(self, data: bytes) -> bool:
        """Take bytes from the client and run what is complete; whether all of it was plain commands.

        These end no wait and no connection, publish nothing and make nothing due.
        """
        if self.closed or self._ending:
            return False
        try:
            self._reader.feed(data)
        except QueryBufferError as error:
            self._store.cut(self, str(error))
            return False
        if self.session.blocked or not self._run_plain() or self._reader.chunk or self.session.held is not None:
            self.run()
            return False
        self.flush()
        return True

    def _run_plain(self) -> bool:
        """Run the plain commands that are next; whether there were any, and nobody had waited for what they changed."""
        store = self._store
        run = store.run_plain(self.session, self._reader)
        if run.commands:
            self.put([run.replies], store.node.journal.position)
        if run.woken is None:
            return run.commands > 0
        store.serve(self.session, run.woken)
        store.empty_outbox()
        return False

    def run(self) -> None:
        """Run the commands that are here, until one waits."""
        store, session = self._store, self.session
        while not (self.closed or self._ending or session.blocked):
            if self._run_plain() and session.held is None:  # the reader would look through the rest of the chunk
                continue
            try:
                argv = session.held or self._reader.next()
            except ProtocolError as error:
                self._ending = True
                self.put([error_line(f"ERR {error}")], 0)
                break
            if argv is None:
                if self._reader.has_more:
                    continue
                break
            session.held = None
            outcome = store.execute(session, argv)
            self._reader.trusted = session.user is not None  # AUTH and RESET change it
            if outcome is not None:
                self.put(outcome.buffers, outcome.barrier)
            self._ending = self._ending or session.closing
            store.empty_outbox()
        self.flush()

    def put(self, buffers: "list[Buffer]", barrier: int) -> None:
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
        """The log has come further: let out what waited for that."""
        self._out += self._held.take()
        self.flush()

    def flush(self) -> None:
        """Hand over what may be shown; close behind the last reply if the connection is to end."""
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
