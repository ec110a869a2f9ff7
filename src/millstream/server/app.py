"""The server: a node, its log, its listeners and its connections, tied to one asyncio event loop.

Use it embedded::

    server = Server(Settings(directory=Path("data")))
    await server.start()
    ... server.url ...
    await server.stop()

``millstream serve`` adds signals, a banner and exit codes (:mod:`millstream.server.process`); from a program without an
event loop use :class:`millstream.server.thread.ServerThread`.
"""

import asyncio
import contextlib
import functools
import ipaddress
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from millstream.clock import Clock, SystemClock
from millstream.commands.admin import aclfile
from millstream.commands.admin.info import Loading, LogFacts, MachineFacts, ShellFacts
from millstream.errors import DiskFullError, MillstreamError, StorageError
from millstream.logs import logger
from millstream.node.durability.disk_guard import DiskGuard, default_floor
from millstream.node.durability.held_replies import UNLIMITED, ReplyGate
from millstream.node.facts import log_facts
from millstream.node.log.rewriting import Rewriter
from millstream.node.node import Node
from millstream.persistence.exposure import exposed
from millstream.persistence.log import Log
from millstream.persistence.recovery import RecoveryReport
from millstream.protocol import limits
from millstream.server.accepting import TOO_MANY, Listener
from millstream.server.committer import Committer
from millstream.server.connection import VOID, Connection
from millstream.server.figures.machine import read_machine
from millstream.server.figures.rates import Counters, Rates
from millstream.server.following.link import ReplicaLink
from millstream.server.following.tail import count, remove_parts
from millstream.server.leading.replicas import Replicas
from millstream.server.listener import ListenError, bind_tcp, bind_unix, show_address, tcp_sentence, tcp_url
from millstream.server.settings import Settings
from millstream.server.sockets import Sockets, native_calls
from millstream.server.tls import make_context, make_link_context

log = logger("millstream.server")

Progress = Callable[[str, int, int], None]

LOST = (
    "{error}; the last {held} unacknowledged records could not be written and are lost; all acknowledged data is on "
    "disk; then start again"
)
_STOPPED = "stopped while the log was read; nothing was changed"
DENIED = (
    "DENIED Millstream is running in protected mode: no password is set, so only clients on the server's own machine "
    "are answered. To let others in, set a password (start with --requirepass, or CONFIG SET requirepass from a client "
    "on that machine), or, on a network where everybody may read and change all data, CONFIG SET protected-mode no."
)


class LoadingStoppedError(MillstreamError):
    """The server was stopped before it had read its data directory.

    What to do: nothing; start again when it is wanted.
    """


class Server:
    """See the module's text."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, on_progress: Progress | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.facts = ShellFacts()  # Counters INFO shows
        self.report: RecoveryReport | None = None  # Result of the recovery, None without a data directory
        self.failure: StorageError | None = None  # Why the disk made the server stop, or None
        self.committer: Committer | None = None
        self.disk_guard: DiskGuard | None = None  # True if the disk takes writes; None without a data directory
        self.gate = ReplyGate(UNLIMITED)  # Limit up to which replies may go; the committer's if there is a log
        self.tls_port = 0  # The port for TLS, 0 without
        self.link_tls: ssl.SSLContext | None = None  # TLS context for following a primary; None without TLS
        self.stopping = asyncio.Event()  # Set once the server should stop, or has begun to
        self._reading_ends = threading.Event()  # set to end the reading of the data directory early
        self.node: Node  # The state served; there from :meth:`start` on
        self.loop: asyncio.AbstractEventLoop
        self._on_progress = on_progress
        self._log: Log | None = None
        self._rewriter: Rewriter | None = None
        self._listeners: list[Listener] = []
        self._sockets: Sockets | None = None  # of clients without TLS; None leaves them to the loop
        self._connections: dict[int, Connection] = {}  # by session id
        self._transports: set[Connection] = set()  # those above and those still sending their last replies
        self._none_open = asyncio.Event()
        self._slow: dict[Connection, None] = {}
        self._replicas: Replicas | None = None
        self._link: ReplicaLink | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rates = Rates()
        self._is_void = False  # plain commands of the turn at work were run before this became a replica
        # Seconds of the loop's clock from which :meth:`sample` is due when bytes come
        self.sample_at = 0.0  # loop time
        self._timer_at = 0

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Take the addresses, listen, and recover the data directory; clients are asked to wait meanwhile."""
        self.loop = asyncio.get_running_loop()
        calls = native_calls()
        self._sockets = None if calls is None else Sockets(self.loop, self, calls)
        config = self.settings.config()
        node = self.node = Node(config)
        node.journal.unconfirmed.gate = self.gate
        # The order is: checks that can refuse at once, then the addresses, then the recovery, which may take minutes. A
        # server that cannot get its address has not touched the data either. A supervisor has to tell a server that
        # reads its log from one that is gone, so clients are answered meanwhile: LOADING
        if self.settings.aclfile is not None:
            aclfile.load(node.accounts, self.settings.aclfile)
        try:
            await self._bind()
            loading = None if self.settings.directory is None else Loading(self.clock.now().wall)
            node.journal.loading = loading
            self._listen()
            if loading is not None:
                await self._recover(loading)
            self._replicas = node.primary.shell = Replicas(self, self._rewriter, self._log, self.settings.directory)
            self._link = node.following.shell = ReplicaLink(self, self._rewriter, self.settings.directory)
            self._resume_role()
            if self.committer is not None:
                self.committer.begin()
            if self._log is not None:
                self._log.announce(self.url)
        except BaseException:  # Ctrl-C during a recovery too: the lock of the data directory must not stay
            await self._close_listeners()
            await self._close_storage()
            for connection in self.open_connections:
                connection.abort()
            self._close_sockets()
            raise

    async def _recover(self, loading: Loading) -> None:
        """Read the data directory, next to the loop, and make the parts that look after its log."""
        reading = self.loop.create_task(asyncio.to_thread(self._read, loading))
        stopped = self.loop.create_task(self.stopping.wait())
        try:
            await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._reading_ends.set()
            stopped.cancel()
            await asyncio.wait({reading})  # the data directory is in use until then
        adopt, self.report = reading.result()
        if self.stopping.is_set():
            raise LoadingStoppedError(_STOPPED)
        self._take_over(adopt, self.report)

    def _read(self, loading: Loading) -> tuple[Callable[[Log], None], RecoveryReport]:
        """Read the log, in a thread of its own."""

        def tell(doing: str, done: int, total: int) -> None:
            if self._reading_ends.is_set():
                raise LoadingStoppedError(_STOPPED)
            loading.loaded, loading.total = done, total
            if self._on_progress is not None:
                self._on_progress(doing, done, total)

        assert self.settings.directory is not None
        self._log, recovery = Log.open(self.settings.directory, on_progress=tell)
        return self.node.prepared(self._paced(recovery.payloads())), recovery.report

    def _paced(self, payloads: Iterator[bytes]) -> Iterator[bytes]:
        """Records as they are read, until that is given up, no faster than ``key-load-delay`` says."""
        values = self.node.config.values
        for payload in payloads:
            delay = values["key-load-delay"]
            if self._reading_ends.is_set() or (delay and self._reading_ends.wait(int(str(delay)) / 1_000_000)):
                raise LoadingStoppedError(_STOPPED)
            yield payload

    def _take_over(self, adopt: Callable[[Log], None], report: RecoveryReport) -> None:
        """Make the recovered data and the log the node's."""
        node, config, directory = self.node, self.node.config, self.settings.directory
        assert directory is not None
        assert self._log is not None
        adopt(self._log)
        remove_parts(directory)
        node.primary.diverged_files = count(directory)
        if exposure := exposed(directory):
            log.warning("%s", exposure)
        if report.fallback_reason:
            log.warning(
                "%s; the log files it was made from are whole and are used in its place", report.fallback_reason
            )
        if "disk-free-floor" not in self.settings.parameters:
            config.set([("disk-free-floor", str(default_floor(self._log.total())))])
        guard = self.disk_guard = DiskGuard(self._log, _WriteSwitch(self, node), lambda: config.disk_floor, self.clock)
        self.committer = Committer(self._log, self.settings.fsync, guard, self.fail, gate=self.gate)
        self.committer.before_write = node.primary.ask_confirmation
        node.host.rewriter = self._rewriter = Rewriter(self._log, config, exclusively=self.committer.exclusively)

    def _resume_role(self) -> None:
        """Take up the role in the data directory, primary or replica; without one, the role in the settings."""
        node, wanted, now = self.node, self.settings.replicaof, self.clock.now()
        said = node.keyspace.primary
        if node.following.is_replica:
            node.following.resume(now)
            node.failover.resume()
        else:
            node.primary.resume(now)
        if wanted is None or said == wanted:
            return
        if said is None:
            node.following.follow(*wanted, now)
            node.journal.flush(now.wall)
        else:
            role = f"a replica of {said[0]}:{said[1]}" if said[0] else "a primary"
            log.warning(
                "this server is %s, as the last REPLICAOF set; --replicaof is for a directory without a role", role
            )

    async def _bind(self) -> None:
        """Take the addresses, so that a long recovery does not end with "in use"."""
        settings = self.settings
        if settings.port is not None:
            sockets, self.facts.tcp_port = await bind_tcp(settings.host, settings.port)
            self._add_listener(sockets)
        if settings.tls is not None and settings.tls.replication:
            self.link_tls = make_link_context(settings.tls)
        if settings.tls is not None and settings.tls.port is not None:
            context = make_context(settings.tls)
            sockets, self.tls_port = await bind_tcp(settings.host, settings.tls.port, "--tls-port")
            self._add_listener(sockets, context)
        if settings.unixsocket is not None:
            self._add_listener(bind_unix(settings.unixsocket), is_unix=True)
            self.facts.unix_socket = str(settings.unixsocket)

    def _add_listener(
        self, sockets: list[socket.socket], context: ssl.SSLContext | None = None, *, is_unix: bool = False
    ) -> None:
        """Keep sockets that are bound; they do not answer before :meth:`_listen`."""
        factory = functools.partial(Connection, self, is_unix=is_unix)
        served = None if context is None else self.settings.tls
        self._listeners.append(Listener(sockets, factory, self._count_refused, self._sockets, served, context))

    def _count_refused(self) -> None:
        self.facts.rejected_connections += 1

    def _listen(self) -> None:
        """Let clients in."""
        self.node.config.values["port"] = self.facts.tcp_port
        self.node.config.values["tls-port"] = self.tls_port
        self._describe()
        try:
            for listener in self._listeners:
                listener.begin()
        except OSError as error:  # another program was quicker between our bind and this
            which = (self.facts.tcp_port, "--port") if self.facts.tcp_port else (self.tls_port, "--tls-port")
            raise ListenError(tcp_sentence(self.settings.host, which[0], error, which[1])) from None

    def _describe(self) -> None:
        """Fill in the facts for INFO."""
        self.facts.started = self.clock.now().wall
        self.facts.run_id = secrets.token_hex(20)
        self.facts.event_loop = type(self.loop).__module__.partition(".")[0]
        self.node.replies.are_limited = True
        around = self.node.surroundings
        around.shell = self.facts
        around.machine = self._read_machine
        around.log = self._read_log
        around.max_clients = self.node.config.max_clients

    def sample(self) -> None:
        """Keep the counters of now, for INFO's rates; due at ``sample_at``, before bytes that come are counted."""
        self._rates.sample(int(self.loop.time() * 1000), self._done())
        self.sample_at = self._rates.due / 1000

    def _done(self) -> Counters:
        return self.node.stats.processed, self.facts.input_bytes, self.facts.output_bytes

    def _read_machine(self) -> MachineFacts:
        primary, directory = self.node.primary, self.settings.directory
        if primary.diverged_files and directory is not None:  # readers remove them; only this server adds any
            primary.diverged_files = count(directory)
        waiting = {True: 0, False: 0}
        for connection in self._connections.values():
            waiting[connection.session.is_replica] += connection.unsent
        self.facts.replica_output_waiting, self.facts.output_waiting = waiting[True], waiting[False]
        self.node.surroundings.max_clients = self.node.config.max_clients
        self.facts.rates = self._rates.per_second(int(self.loop.time() * 1000), self._done())
        return read_machine()

    def _read_log(self) -> LogFacts:
        """The log's facts for INFO; with nothing to keep, the last save is the start."""
        committer, guard, rewriter = self.committer, self.disk_guard, self._rewriter
        if self._log is None or committer is None or self.report is None or guard is None or rewriter is None:
            is_read = self.settings.directory is not None  # and not read to its end yet
            return LogFacts(enabled=is_read, policy=self.settings.fsync, last_save=self.facts.started // 1000)
        return log_facts(
            self._log,
            guard,
            rewriter,
            policy=self.settings.fsync,
            recovered=self.report.records,
            synced_at=self.clock.now().wall / 1000 - (self.loop.time() - committer.synced_at),
            slow_syncs=committer.slow_syncs,
        )

    @property
    def urls(self) -> list[str]:
        """URLs by which a client on this machine reaches the server."""
        found = []
        if self.facts.tcp_port:
            found.append(tcp_url(self.settings.host, self.facts.tcp_port))
        if self.tls_port:
            found.append(tcp_url(self.settings.host, self.tls_port, "rediss"))
        if self.facts.unix_socket:
            found.append(f"unix://{self.facts.unix_socket}")
        return found

    @property
    def own_port(self) -> int:
        """The port that is reported to a primary; 0 for none."""
        ports = self.facts.tcp_port, self.tls_port
        return (ports[1] or ports[0]) if self.link_tls is not None else (ports[0] or ports[1])

    @property
    def url(self) -> str:
        """The first of :attr:`urls`: unencrypted TCP if it is listened to, else TLS, else the unix socket."""
        return self.urls[0]

    @property
    def open_connections(self) -> list[Connection]:
        """Every connection there is: the clients, and those that only have their last replies to take."""
        return list(self._transports)

    def shut_down(self) -> None:
        """As SHUTDOWN: :attr:`stopping` is set once replicas have all, or had their time for it."""
        self.node.ending.begin(self.clock.now(), at_once=False)
        self.after_commands()

    def request_stop(self) -> None:
        """Have :attr:`stopping` set; the owner of the server then calls :meth:`stop`."""
        self.stopping.set()

    async def stop(self) -> None:
        """Accept nothing more, bring everything to the disk, send the replies that were waiting for that, and close."""
        # Connections finish before the log closes, since the commands they still run are logged; their replies go after
        # it, since each waits for its place on the disk
        self.stopping.set()
        await self._close_listeners()
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            await self._link.close()
        for connection in list(self._connections.values()):
            if not connection.session.is_replica:
                connection.finish()
        with contextlib.suppress(StorageError):  # closing the log meets it again, and says so
            self.node.primary.stop(self.clock.now().wall)
        await self._close_storage()
        if self._replicas is not None:
            self._replicas.stop()
        await self._farewell()
        self._close_sockets()

    async def _close_listeners(self) -> None:
        for listener in self._listeners:
            await listener.close()
        if self._listeners:
            self._remove_socket_file()
        self._listeners.clear()

    def _remove_socket_file(self) -> None:
        if self.facts.unix_socket:
            Path(self.facts.unix_socket).unlink(missing_ok=True)

    async def _farewell(self) -> None:
        """Let clients take their outstanding replies, but not for ever."""
        if self._transports:
            self._none_open.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_open.wait(), self.settings.delays.farewell)
        for connection in self.open_connections:
            connection.abort()

    def _close_sockets(self) -> None:
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    async def _close_storage(self) -> None:
        """Bring all records to the disk, release the replies that waited for it, and let the data directory go."""
        if self._rewriter is not None:
            await asyncio.to_thread(self._rewriter.stop)  # its thread may wait for a job of the committer
        if self.committer is not None:
            await self.committer.close()
        if self._log is None:
            return
        held = len(self._log.held())
        try:
            self._log.close()
        except DiskFullError as error:
            self.fail(DiskFullError(LOST.format(error=error, held=held)))
        except StorageError as error:
            self.fail(error)

    def fail(self, error: StorageError) -> None:
        """Stop after a failure of the disk, without another reply. Writes acknowledged before are on the disk."""
        if self.failure is None:
            self.failure = error
            log.critical("stopping: %s", error)
        # Not closed in order: a reply that waits for the disk would report a write that is not there
        for connection in self.open_connections:
            connection.abort()
        self.stopping.set()

    # ------------------------------------------------------------------ what connections call

    def admit(self, connection: Connection, transport: asyncio.Transport, *, is_unix: bool) -> str | None:
        """Open a session for a new connection, or say why not."""
        self._transports.add(connection)
        config = self.node.config
        # One more by the unix socket: a user with access to it must be able to list the clients, and use CLIENT KILL
        if len(self._connections) >= config.max_clients + is_unix:
            self._count_refused()
            return TOO_MANY
        peer = transport.get_extra_info("peername")
        if not is_unix:
            if config.is_protected and self.node.accounts.default.nopass and not is_loopback(peer):
                self.facts.denied_connections += 1
                return DENIED
            keep_alive(transport.get_extra_info("socket"))
        path = self.settings.unixsocket
        connection.session = self.node.sessions.open(
            self.clock.now(),
            addr=show_address(peer, path),
            laddr=show_address(transport.get_extra_info("sockname"), path),
            is_unix=is_unix,
        )
        self._connections[connection.session.id] = connection
        return None

    def forget(self, connection: Connection) -> None:
        """A connection is closing: nothing is run or waited for in its name any more."""
        self._connections.pop(connection.session.id, None)
        self._slow.pop(connection, None)
        self.node.sessions.close(connection.session)
        self.node.primary.leave(connection.session)

    def gone(self, connection: Connection) -> None:
        """A connection is closed."""
        self._transports.discard(connection)
        if not self._transports:
            self._none_open.set()

    def connection_of(self, session_id: int) -> Connection | None:
        """The connection of a session."""
        return self._connections.get(session_id)

    def feed_replica(self, session_id: int) -> None:
        """A replica can take more."""
        if self._replicas is not None:
            self._replicas.pump_one(session_id)

    def after_commands(self) -> None:
        """Commands have run: do everything but the reply to their client."""
        if self.node.outbox:
            self.empty_outbox()
        self.after_writes()
        if self.node.ending.is_due:
            self.stopping.set()
        self._schedule_tick()

    def after_writes(self) -> None:
        """Something may have been logged: see to it that it is committed."""
        if self.committer is not None:
            self.committer.poke()
        if self._rewriter is not None:
            self._rewriter.consider()

    def end_turn(self, size: int) -> tuple[int, bool]:
        """All that came together was run: commit it together.

        Returns:
            The position of the log that the replies to them wait for, and whether all of them may go out now.
        """
        if self.loop.time() >= self.sample_at:
            self.sample()
        self.facts.input_bytes += size
        barrier, gate = self.node.journal.latest, self.gate
        if self._is_void:
            self._is_void, barrier = False, VOID
        if self.committer is not None:
            self.committer.end_turn()
        if self._rewriter is not None:
            self._rewriter.consider()
        return barrier, VOID < barrier <= gate.released and not gate.holders and self.failure is None

    def refuse_held(self, line: str) -> None:
        """Send all clients with waiting replies an error in their place, and close their connections."""
        self._is_void = self._sockets is not None and self._sockets.in_turn
        for connection in self.open_connections:
            connection.refuse_held(line)

    def empty_outbox(self) -> None:
        """Hand the node's replies and messages to the connections they are for."""
        outbox = self.node.outbox
        while outbox:
            pending, outbox[:] = outbox[:], []
            for session, outcome in pending:
                connection = self._connections.get(session.id)
                if connection is not None:
                    connection.deliver(outcome)
                elif session.is_primary and self._link is not None:  # CLIENT KILL
                    self._link.cut(session)

    # ------------------------------------------------------------------ time

    def _schedule_tick(self) -> None:
        """Have the node looked after when it next has something due: one timer for all waits and expirations."""
        now = self.clock.now()
        due = self.node.next_deadline(now)
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self.loop.call_later(max(due - now.mono, 0) / 1000, self._tick)

    def _tick(self) -> None:
        """Do the due work. A defect there is logged and tried again later: it must not end every client's server."""
        self._timer = None
        try:
            self.node.tick(self.clock.now())
        except StorageError as error:
            self.fail(error)
            return
        except Exception:
            log.exception("internal error in a periodic task")
            self.facts.internal_errors += 1
            self._timer_at = 0  # no earlier time is asked for until this one has come
            self._timer = self.loop.call_later(self.settings.delays.after_error, self._tick)
            return
        self.after_commands()

    def watch_slow(self, connection: Connection) -> None:
        """Look at this connection's output from time to time, until it is small again."""
        if not self._slow:
            self.loop.call_later(self.settings.delays.slow_check, self._look_at_slow)
        self._slow[connection] = None

    def _look_at_slow(self) -> None:
        """Ask again those above the soft limit of output: only the passing of time cuts them, so no event does."""
        for connection in list(self._slow):
            connection.check_output()
            if connection.slow_since is None:
                self._slow.pop(connection, None)
        if self._slow:
            self.loop.call_later(self.settings.delays.slow_check, self._look_at_slow)


class _WriteSwitch:
    """The node and the work to do when it takes writes again."""

    def __init__(self, server: Server, node: Node) -> None:
        self._server = server
        self.suspend = node.journal.suspend
        self._node = node

    def resume(self) -> None:
        """See :class:`millstream.node.durability.disk_guard.WriteSwitch`."""
        self._node.journal.resume()
        self._server.after_commands()


def is_loopback(peer: object) -> bool:
    """True if a TCP peer is on the server's own machine."""
    if not isinstance(peer, tuple):
        return False
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel look whether a silent peer is still there."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.KEEPALIVE_SECONDS)
