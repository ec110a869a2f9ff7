"""One connection of a store: bytes of commands in, bytes of replies out, in order, none before its barrier.

The counterpart of the server's connection without a network: the caller's own thread runs the commands as it sends
them. Everything but :meth:`Channel.send` and :meth:`Channel.close` is called by the store, inside its guard.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.embedded.guard import outside
from millstream.errors import ProtocolError
from millstream.protocol.encoder import error_line
from millstream.protocol.reader import CommandReader, QueryBufferError

if TYPE_CHECKING:
    from millstream.commands.context.session import Session
    from millstream.embedded.store import Store
    from millstream.node.outcome import Outcome
    from millstream.replies import Buffer

Sink = Callable[[bytes], None]


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

    __slots__ = ("_ending", "_out", "_parked", "_reader", "_sink", "_store", "_untaken", "closed", "reason", "session")

    def __init__(self, store: "Store", session: "Session", sink: Sink) -> None:
        self._store = store
        self._sink = sink
        self._reader = CommandReader(trusted=session.user is not None)
        self._parked: deque[tuple[int, list[Buffer]]] = deque()
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

    def feed(self, data: bytes) -> None:
        """Take bytes from the client and run what is complete."""
        if self.closed or self._ending:
            return
        try:
            self._reader.feed(data)
        except QueryBufferError as error:
            self._store.cut(self, str(error))
            return
        self.run()

    def run(self) -> None:
        """Run the commands that are here, until one waits."""
        store, session = self._store, self.session
        while not (self.closed or self._ending or session.blocked):
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
        if self._parked or barrier > self._store.released:
            self._parked.append((barrier, buffers))
            self._store.waiting[self] = None
        else:
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
        released = self._store.released
        while self._parked and self._parked[0][0] <= released:
            self._out += self._parked.popleft()[1]
        if not self._parked:
            self._store.waiting.pop(self, None)
        self.flush()

    def flush(self) -> None:
        """Hand over what may be shown; close behind the last reply if the connection is to end."""
        if self._out and not self.closed:
            out, self._out = self._out, []
            self._sink(b"".join(out))
        if self._ending and not self._parked and not self.closed:
            self._store.forget(self)

    def end(self, reason: str) -> None:
        """No more: tell the client, showing nothing that still waits."""
        if not self.closed:
            self.closed = True
            self.reason = reason
            self._parked.clear()
            self._out.clear()
            self._sink(b"")
