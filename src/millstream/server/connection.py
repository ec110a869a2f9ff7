"""One client's connection: bytes in, commands run in order, replies out in order once the log permits.

A connection pauses for three reasons; in each, bytes that have arrived stay unread:

* *blocked*: the last command waits inside the node (XREAD BLOCK); its reply comes by :meth:`Connection.deliver`;
* *held*: too many replies already wait for the log (see :mod:`millstream.node.durability.held_replies`);
* *full*: the client does not read its replies.

So a client costs at most its unread input, bounded by the reader's limits, and about two megabytes of output. Only a
single larger reply can exceed that, up to ``client-output-buffer-limit``, where the client is disconnected.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from millstream.clock import Now
from millstream.commands.context.config import OutputLimit
from millstream.commands.context.session import Session, Traffic
from millstream.errors import ProtocolError, StorageError
from millstream.logs import logger
from millstream.node.durability.held_replies import HeldReplies
from millstream.node.following.role import FORCED
from millstream.node.outcome import Outcome
from millstream.node.plain import NOTHING, PlainRun
from millstream.protocol import limits
from millstream.protocol.encoder import error_line
from millstream.protocol.reader import CommandReader, QueryBufferError
from millstream.replies import Buffer
from millstream.server.listener import DENIED, TOO_MANY, is_loopback, keep_alive, show_address
from millstream.server.serving import VOID, Serving

log = logger("millstream.server")

# Number of commands that a client may run before other clients get their turn.
_BURST = 512
# Number of commands after which the clock is read again.
_CLOCK_EVERY = 32
# Bytes of replies that are collected before they are sent.
_BATCH = 256 * 1024
# Unsent bytes in the transport above which the client counts as full, and below which it no longer does.
_HIGH_WATER, _LOW_WATER = 1024 * 1024, 256 * 1024
# Bytes of replies waiting for the log above which no more commands run.
_HELD_MAX = 1024 * 1024

# A replica is sent only as much as it reads; the remaining data waits elsewhere and is limited there.
_NO_LIMIT = OutputLimit(0, 0, 0)

# First words of an HTTP request, with which an attacker could misuse a browser (Redis also rejects these).
_CROSS_PROTOCOL = frozenset({b"post", b"host:"})


class Connection(asyncio.Protocol):
    """The asyncio protocol of one client."""

    __slots__ = (  # noqa: SIM905 - a list would need one line for each name
        "_again _blocked _clients _closed _ending _eof _forgotten _held _is_unix _out _out_barrier _out_size _paused "
        "_reader _reads _received _server _transport is_full sent session slow_since"
    ).split()

    session: Session

    def __init__(self, clients: "Clients", *, is_unix: bool) -> None:
        self._clients, self._server = clients, clients.server
        self._is_unix = is_unix
        self._reader = CommandReader()
        self._transport: asyncio.Transport
        self._held = HeldReplies(self._server.gate, self)  # replies that wait for the disk; empty without a log
        self._out: list[Buffer] = []  # replies of the present round of commands
        self._out_size = self._out_barrier = 0
        self._blocked = False  # a command waits in the node
        self.is_full = False  # The client reads its replies more slowly than they are produced
        self._paused = False  # the transport was asked to stop reading
        self._again = False  # another round of commands is scheduled
        self._ending = False  # no more commands run; the connection closes after the last reply
        self._eof = False  # the client has closed its sending side
        self._closed = False  # no more replies are added; unsent bytes are still sent
        self._forgotten = False  # no longer counted as a client
        self._received = self.sent = self._reads = 0  # bytes, bytes, number of reads
        self.slow_since: int | None = None  # monotonic milliseconds since when it exceeds the soft output limit

    # ------------------------------------------------------------------ calls by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse a new connection, or open a session."""
        # uvloop's transports do not inherit from asyncio's
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=_HIGH_WATER, low=_LOW_WATER)
        refusal = self._clients.admit(self, transport, is_unix=self._is_unix)
        if refusal is not None:
            self._ending = self._closed = self._forgotten = True
            transport.write(error_line(refusal))
            transport.close()
            return
        self._reader.trusted = self.session.user is not None
        self.session.traffic = self._traffic

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """End the session of a connection that was closed by either side."""
        self._closed = True  # a round of commands may still be scheduled, and with uvloop a write would now raise
        self._forget()
        self._clients.gone(self)

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        server, size = self._server, len(data)
        if server.loop.time() >= server.sample_at:
            server.sample()
        server.facts.input_bytes += size
        self._received += size
        self._reads += 1
        if self._ending or self._closed:
            return
        if self._feed(data) and not (self._blocked or self._paused or self._again or self._run_directly()):
            self._run()

    def _feed(self, data: bytes) -> bool:
        """Pass received bytes to the reader; return False if they exceed its limit."""
        try:
            self._reader.feed(data)
        except QueryBufferError:
            self._server.facts.query_buffer_closed += 1
            self._cut("it sent more than the limit of unprocessed bytes")
            return False
        return True

    def run_at_once(self, data: bytes, wall: int) -> bytes | None:
        """Run the commands of a turn; return replies to send after its commit, or None if other code sends them."""
        session, batches = self.session, self._server.node.batches
        if (
            self._blocked
            or self._paused
            or self._again
            or self._ending
            or self._closed
            or self._held.size
            or not self._reader.is_empty
            or not batches.takes(session)
        ):
            self.data_received(data)
            return None
        self._received += len(data)
        self._reads += 1
        try:
            run = batches.run(session, data, 0, wall)
        except StorageError as error:
            self._server.fail(error)
            return None
        if run.at == len(data) and run.words is None and run.woken is None:
            return run.replies
        self._server.facts.input_bytes += len(data)
        if self._feed(data):
            self._reader.advance(run.at)
            session.held = run.words
            self._take(run, self._server.clock.now())
            self._run()
        return None

    def answer(self, replies: bytes, barrier: int) -> None:
        """Send the replies of a committed turn, or hold them if the log has not reached the barrier."""
        try:
            if barrier == VOID:
                self.refuse_held(FORCED, [replies])
            elif self._held.size or barrier > self._server.gate.released:
                self._send([replies], barrier)
            elif not self._closed:
                self._server.facts.output_bytes += len(replies)
                self.sent += len(replies)
                self._transport.write(replies)
                if self.is_full:
                    self.check_output()
            if self._is_stalled():
                self._pause()
        except Exception as error:  # noqa: BLE001 - the other connections must continue
            self._defect(error)

    def eof_received(self) -> bool:
        """Run the commands already sent, then close, since the client sends no more."""
        is_begun = self.session.parked and self.session.held is not None  # it runs again, and does not wait for a key
        if self._blocked and not is_begun:  # as in Redis, it is not checked whether the client still reads
            return False
        if self._transport.get_extra_info("sslcontext") is not None:  # TLS has no half-closed connections
            return False
        self._eof = True
        if not (self._again or self._blocked or self._is_stalled()):
            self._ending = True
            self._close_if_done()
        return not self._closed

    def pause_writing(self) -> None:
        """Pause, since the client reads its replies too slowly."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Continue, since the client has caught up."""
        self.is_full = False
        self.slow_since = None
        self._relieved()
        if self.session.is_replica:
            self._clients.feed_replica(self.session.id)

    # ------------------------------------------------------------------ commands

    def _run(self) -> None:
        """Run the commands that have arrived."""
        self._again = False
        if self._closed or self._ending:
            return
        try:
            self._run_burst()
        except ProtocolError as error:
            self._server.facts.protocol_errors += 1
            self._ending = True
            self._send([error_line(f"ERR {error}")], 0)
        self._server.after_commands()
        if self._is_stalled():
            self._pause()
        elif self._eof and not (self._again or self.session.parked):
            self._ending = True
        self._close_if_done()

    def _run_directly(self) -> bool:
        """Run all received bytes if they are plain commands, as most are; return False if more work is left.

        Plain commands never need the other work of :meth:`_run`: they do not end a wait, a connection or another
        client's turn, do not publish, and make nothing due. A client that waits for each reply pays for every call
        here. So steps that are separate elsewhere are together here.
        """
        server, reader = self._server, self._reader
        try:
            run = server.node.batches.take(self.session, reader, server.clock.wall_time())
        except StorageError as error:
            server.fail(error)
            return True
        if reader.chunk or run.words is not None or run.woken is not None or not run.commands:
            self._take(run, server.clock.now())
            return False
        replies, barrier = run.replies, server.node.journal.position
        if self._held.size or barrier > server.gate.released or len(replies) > _BATCH:
            self._send([replies], barrier)
            server.after_writes()
        else:
            server.facts.output_bytes += len(replies)
            self.sent += len(replies)
            self._transport.write(replies)
            if run.soft:
                server.after_writes()
            if self.is_full:
                self.check_output()
        if self.is_full or self._held.size > _HELD_MAX:
            self._pause()
        return True

    def _run_burst(self) -> None:
        """Run commands until none is left, or a reason to pause; replies are sent in batches."""
        server, reader, session = self._server, self._reader, self.session
        now = server.clock.now()
        left, turns = _BURST, 0
        try:
            while left > 0:
                if reader.chunk:
                    run = self._run_plain(now)
                    left -= run.commands
                    if self._must_stop():
                        break
                    if run.commands and session.held is None:  # otherwise the reader would scan the rest of the chunk
                        continue
                argv = session.held or reader.next()
                if argv is None:
                    if reader.has_more:  # the command has very many arguments: other clients get their turn in between
                        self._go_on_later()
                    return
                session.held = None
                outcome = self._execute(argv, now)
                if outcome is not None:
                    self._gather(outcome.buffers, outcome.barrier)
                if self._must_stop():
                    break
                left -= 1
                turns += 1
                if not turns % _CLOCK_EVERY:
                    now = server.clock.now()
            else:
                self._go_on_later()
        finally:
            self._send_gathered()
            self._blocked = session.blocked
            self._ending = self._ending or session.closing

    def _gather(self, buffers: list[Buffer], barrier: int) -> None:
        """Collect replies, to be sent together with later ones."""
        self._out += buffers
        self._out_size += sum(map(len, buffers))
        self._out_barrier = max(self._out_barrier, barrier)  # XINFO waits for a later position than commands after it

    def _send_gathered(self) -> None:
        if self._out:
            out, barrier = self._out, self._out_barrier
            self._out, self._out_size, self._out_barrier = [], 0, 0
            self._send(out, barrier)

    def _must_stop(self) -> bool:
        """Send replies that are many, or must precede other clients' ones; return True if no more commands may run."""
        node = self._server.node
        if node.outbox or self._out_size > _BATCH:
            self._send_gathered()
            self._clients.empty_outbox()
        session = self.session
        return self._ending or session.blocked or session.closing or self._is_stalled()

    def _run_plain(self, now: Now) -> PlainRun:
        """Run the plain commands that come next."""
        server = self._server
        try:
            run = server.node.batches.take(self.session, self._reader, now.wall)
        except StorageError as error:
            server.fail(error)
            return NOTHING
        self._take(run, now)
        return run

    def _take(self, run: PlainRun, now: Now) -> None:
        """Collect the replies of the run, and serve the clients that waited for its changes."""
        server = self._server
        if run.commands:
            self._gather([run.replies], server.node.journal.position)
        if run.woken is None:
            return
        try:
            server.node.serve(self.session.db, run.woken, now)
        except StorageError as error:
            server.fail(error)
        except Exception as error:  # noqa: BLE001 - as in _execute; the collected steps may be incomplete
            self._defect(error)
            server.after_commands()

    def _defect(self, error: Exception) -> None:
        """Handle a defect of the server, or a lack of memory, so that no other client suffers."""
        log.error("internal error; closing client %s", self.session.addr, exc_info=error)
        self._server.facts.internal_errors += 1
        self.abort()

    def _execute(self, argv: list[bytes], now: Now) -> Outcome | None:
        server, session = self._server, self.session
        if argv[0].lower() in _CROSS_PROTOCOL:
            server.facts.cross_protocol += 1
            self._cut("it speaks HTTP, so it may be a browser made to attack this server")
            return None
        try:
            outcome = server.node.execute(session, argv, now)
        except StorageError as error:
            server.fail(error)
            return None
        except Exception:  # the node handles errors of its commands; this handles errors of the connection
            log.exception("internal error; closing client %s", session.addr)
            server.facts.internal_errors += 1
            self._ending = True
            return Outcome([error_line("ERR internal error; the server's log has the details")], 0)
        if session.overflow:
            self._cut_slow(session.overflow)
        if session.queue is not None and session.queue.size > limits.QUERY_BUFFER_MAX:
            # Commands queued by MULTI count towards a client's limit of waiting input
            server.facts.query_buffer_closed += 1
            self._cut("its transaction is too large")
        self._reader.trusted = session.user is not None  # AUTH and RESET change it
        return outcome

    # ------------------------------------------------------------------ replies

    def deliver(self, outcome: Outcome) -> None:
        """Deliver a reply or message that another session's command, or a timer, caused."""
        try:
            if self.session.killed:
                self._kill()
            if self._closed:
                return
            if outcome.buffers:
                self._send(outcome.buffers, outcome.barrier)
            self._ending = self._ending or self.session.closing
            if self._blocked and not self.session.blocked:
                self._blocked = False
                self._continue()
        except Exception as error:  # noqa: BLE001 - the other connections must get their replies
            self._defect(error)

    def keep_little(self, size: int) -> None:
        """Lower the client's output buffer to this many bytes: it is a replica, and its data are stored elsewhere."""
        self._transport.set_write_buffer_limits(high=size, low=size // 4)

    def push(self, data: bytes) -> None:
        """Send bytes that are not a command's reply, after all replies so far."""
        self._server.facts.repl_output_bytes += len(data)
        self._send([data], 0)

    def _send(self, buffers: list[Buffer], barrier: int) -> None:
        """Send replies, or hold them until the log reaches the barrier; keep their order."""
        if not self._held.hold(buffers, barrier):
            self._write(buffers)

    def release(self) -> None:
        """Send the replies that the log's progress permits."""
        try:
            if ready := self._held.take():
                self._write(ready)
            self._relieved()
        except Exception as error:  # noqa: BLE001 - the other connections must be released
            self._defect(error)

    def refuse_held(self, line: str, more: Sequence[Buffer] = ()) -> None:
        """Replace the replies that wait to be sent by an error, and close; ``more`` are further waiting replies."""
        if more or self._held or self._out_barrier > self._server.gate.released:
            self._held.end()
            self._out, self._out_size, self._out_barrier = [], 0, 0
            self._write([error_line(line)])
            self.finish()

    def _write(self, buffers: list[Buffer]) -> None:
        """Pass replies to the transport, unless many bytes would exceed the hard limit."""
        if self._closed:
            return
        size = sum(map(len, buffers))
        if size > _BATCH and self._would_pass(size):
            return
        self._server.facts.output_bytes += size
        self.sent += size
        if size <= _BATCH:
            self._transport.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        else:
            self._transport.writelines(buffers)
        if self.is_full:
            self.check_output()

    def _would_pass(self, size: int) -> bool:
        """Cut the client if these bytes exceed its hard limit, before the transport takes and copies them.

        As in Redis a reply counts whole, however quickly the client reads it.
        """
        held = self._transport.get_write_buffer_size() + size
        hard = self._output_limit.hard
        if hard and held > hard:
            self._cut_slow(held)
        return self._closed

    @property
    def _output_limit(self) -> OutputLimit:
        if self.session.is_replica:
            return _NO_LIMIT
        limits = self._server.node.config.output_limits
        return limits.pubsub if self.session.is_subscribed else limits.normal

    def check_output(self) -> None:
        """Cut the client if it leaves more bytes unread than its limit."""
        held = self._transport.get_write_buffer_size()
        limit = self._output_limit
        if limit.hard and held > limit.hard:
            self._cut_slow(held)
        elif limit.soft and held > limit.soft:
            now = self._server.clock.now().mono
            if self.slow_since is None:
                self.slow_since = now
                self._clients.watch_slow(self)
            elif now - self.slow_since >= limit.seconds * 1000:
                self._cut_slow(held)
        else:
            self.slow_since = None

    def _cut_slow(self, held: int) -> None:
        self._server.facts.output_buffer_closed += 1
        self._cut(f"it left {held} bytes of replies unread")

    # ------------------------------------------------------------------ pausing and resuming

    def _is_stalled(self) -> bool:
        return self.is_full or self._held.size > _HELD_MAX

    def _pause(self) -> None:
        if not self._paused and not self._closed:
            self._paused = True
            self._transport.pause_reading()

    def _relieved(self) -> None:
        """Check if the connection may continue, with fewer held replies or a client that is not full."""
        if self._paused or self._ending:
            self._continue()

    def _continue(self) -> None:
        """Close, or run on, unless another reason to pause is left."""
        if self._ending:
            self._close_if_done()
        elif self._closed or self._blocked or self._again:
            return
        elif self._is_stalled():
            self._pause()  # after a wait, commands may be unread: :meth:`_relieved` must continue here
        else:
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            if self._eof or self.session.held is not None or not self._reader.is_empty:
                self._go_on_later()

    def _go_on_later(self) -> None:
        """Run on after the other clients' turn."""
        self._again = True
        self._server.loop.call_soon(self._run)

    def finish(self) -> None:
        """Stop running commands, send the replies that may be sent, and close."""
        self._ending = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        """Close after the last reply. Until the client has read it, the connection is listed, counted and limited."""
        if self._ending and not self._held and not self._closed:
            self._closed = True
            encrypted = self._transport.get_extra_info("sslcontext") is not None
            if not (encrypted or self._transport.get_write_buffer_size()):  # otherwise closing waits for the client
                self._forget()
            if not self._transport.is_closing():  # asyncio's TLS transport breaks if close() is called twice
                self._transport.close()
            if not self._forgotten:
                self.check_output()  # no later reply will check it

    def _kill(self) -> None:
        """CLIENT KILL: close now, without waiting for the client to read its replies."""
        if self._transport.get_write_buffer_size():
            self.abort()
            return
        self._ending = self._closed = True
        self._forget()
        self._transport.close()

    def _cut(self, reason: str) -> None:
        """Close at once because the client broke a limit."""
        if self._forgotten:
            return
        log.warning("closing client %s (id %d): %s", self.session.addr, self.session.id, reason)
        self.abort()

    def abort(self) -> None:
        """Close at once, sending nothing more."""
        self._ending = self._closed = True
        self._forget()
        self._transport.abort()

    def _forget(self) -> None:
        if not self._forgotten:
            self._forgotten = True
            self._held.end()
            self._clients.forget(self)

    def _traffic(self) -> Traffic:
        found = self._transport.get_extra_info("socket")
        return Traffic(
            descriptor=-1 if found is None else found.fileno(),
            received=self._received,
            sent=self.sent,
            reads=self._reads,
            unread=self._reader.buffered,
            untaken=self.unsent,
        )

    @property
    def unsent(self) -> int:
        """Size of the replies that the client has not read, in bytes."""
        return self._transport.get_write_buffer_size() + self._held.size


class Clients:
    """The connections of a server."""

    def __init__(self, server: Serving) -> None:
        self.server = server
        self.open: set[Connection] = set()  # All connections, including those that only have to send their last replies
        self.by_id: dict[int, Connection] = {}  # Client connections by session id
        self.none_open = asyncio.Event()  # Set when the last connection closes
        self._slow: dict[Connection, None] = {}
        self.feed_replica: Callable[[int], None]  # Sends a replica more data
        self.cut_link: Callable[[Session], None]  # Runs CLIENT KILL for the link to a primary
        server.empty_outbox, server.abort_all = self.empty_outbox, self.abort_all

    def count_refused(self) -> None:
        """Count a refused connection."""
        self.server.facts.rejected_connections += 1

    def admit(self, connection: Connection, transport: asyncio.Transport, *, is_unix: bool) -> str | None:
        """Open a session for a new connection; if it is refused, return the reason."""
        self.open.add(connection)
        server, config = self.server, self.server.node.config
        # The Unix socket accepts one more, so that an administrator can list the clients and use CLIENT KILL
        if len(self.by_id) >= config.max_clients + is_unix:
            self.count_refused()
            return TOO_MANY
        peer = transport.get_extra_info("peername")
        if not is_unix:
            if config.is_protected and server.node.accounts.default.nopass and not is_loopback(peer):
                server.facts.denied_connections += 1
                return DENIED
            keep_alive(transport.get_extra_info("socket"))
        path, own = server.settings.unixsocket, transport.get_extra_info("sockname")
        connection.session = server.node.sessions.open(
            server.clock.now(), addr=show_address(peer, path), laddr=show_address(own, path), is_unix=is_unix
        )
        self.by_id[connection.session.id] = connection
        return None

    def forget(self, connection: Connection) -> None:
        """Remove a closing connection: none of its commands run or wait any more."""
        self.by_id.pop(connection.session.id, None)
        self._slow.pop(connection, None)
        self.server.node.sessions.close(connection.session)
        self.server.node.primary.leave(connection.session)

    def gone(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self.open.discard(connection)
        if not self.open:
            self.none_open.set()

    def empty_outbox(self) -> None:
        """Pass the node's replies and messages to their connections."""
        outbox = self.server.node.outbox
        while outbox:
            pending, outbox[:] = outbox[:], []
            for session, outcome in pending:
                connection = self.by_id.get(session.id)
                if connection is not None:
                    connection.deliver(outcome)
                elif session.is_primary:
                    self.cut_link(session)

    def watch_slow(self, connection: Connection) -> None:
        """Check this connection's output from time to time, until it is small again."""
        if not self._slow:
            self.server.loop.call_later(self.server.settings.delays.slow_check, self._look_at_slow)
        self._slow[connection] = None

    def _look_at_slow(self) -> None:
        """Check the connections above the soft output limit again; only time cuts them, so no event triggers it."""
        for connection in list(self._slow):
            connection.check_output()
            if connection.slow_since is None:
                self._slow.pop(connection, None)
        if self._slow:
            self.server.loop.call_later(self.server.settings.delays.slow_check, self._look_at_slow)

    def abort_all(self) -> None:
        """Close every connection at once."""
        for connection in list(self.open):
            connection.abort()
