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
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from millstream.clock import Clock, Now, SystemClock
from millstream.commands.admin import aclfile
from millstream.commands.admin.info import Loading, LogFacts, MachineFacts
from millstream.commands.context.tier import NO_TIER
from millstream.errors import DiskFullError, MillstreamError, StorageError
from millstream.logs import logger
from millstream.node.durability.disk_guard import DiskGuard, default_floor
from millstream.node.facts import log_facts
from millstream.node.log.packs import KeyspacePacks, bring_packs_back, expect_packs, open_log
from millstream.node.log.rewriting import Rewriter
from millstream.node.node import Node
from millstream.paths import exposed
from millstream.persistence.log import Log
from millstream.persistence.recovery import RecoveryReport
from millstream.server.accepting import Listener
from millstream.server.committer import Committer, answered
from millstream.server.connection import Clients, Connection
from millstream.server.figures.machine import read_machine, resident
from millstream.server.following.link import ReplicaLink
from millstream.server.following.tail import count, remove_parts
from millstream.server.leading.replicas import Replicas
from millstream.server.listener import ListenError, bind_tcp, bind_unix, tcp_sentence, tcp_url
from millstream.server.serving import Serving
from millstream.server.settings import Settings
from millstream.server.sockets import Sockets, native_calls
from millstream.server.spilling import Spilling
from millstream.server.tls import make_context, make_link_context

log = logger("millstream.server")

Progress = Callable[[str, int, int], None]
T = TypeVar("T")

LOST = (
    "{error}; the last {held} unacknowledged records could not be written and are lost; all acknowledged data is on "
    "disk; then start again"
)
_STOPPED = "stopped while the log was read; nothing was changed"


class LoadingStoppedError(MillstreamError):
    """The server was stopped before it had read its data directory.

    What to do: start the server again if you need it.
    """


class Server(Serving):
    """A node with its log, listeners and connections in one event loop."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, on_progress: Progress | None = None) -> None:
        super().__init__(settings, clock or SystemClock())
        self.report: RecoveryReport | None = None  # Result of the recovery, None without a data directory
        self.disk_guard: DiskGuard | None = None  # Watches the disk's free space; None without a data directory
        self._reading_ends = threading.Event()  # set to stop reading the data directory early
        self._on_progress = on_progress
        self._log: Log | None = None
        self._listeners: list[Listener] = []
        self._sockets: Sockets | None = None  # Client sockets without TLS; None leaves them to asyncio
        self._clients = Clients(self)
        self._spilling: Spilling | None = None  # Moves entries to files; None without a data directory
        self._replicas: Replicas | None = None
        self._link: ReplicaLink | None = None

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Bind the addresses, listen, and recover the data directory; clients get the loading error meanwhile."""
        self.loop = asyncio.get_running_loop()
        calls = native_calls()
        self._sockets = None if calls is None else Sockets(self.loop, self, calls)
        config = self.settings.config()
        node = self.node = Node(config)
        node.journal.unconfirmed.gate = self.gate
        node.memory.begin_from(resident())
        node.cold.attach(_ColdShell(self))
        # Order: checks that can fail at once, then the addresses, then the recovery, which may take minutes. A server
        # that cannot bind its address must not touch the data. During the recovery clients get LOADING, so that a
        # supervisor can distinguish the server from a dead one.
        if self.settings.aclfile is not None:
            aclfile.load(node.accounts, self.settings.aclfile)
        try:
            await self._bind()
            loading = None if self.settings.directory is None else Loading(self.clock.now().wall)
            node.journal.loading = loading
            self._listen()
            if loading is not None:
                await self._recover(loading)
            self._replicas = node.primary.shell = Replicas(self, self._clients, self._log)
            self._link = node.following.shell = ReplicaLink(self)
            self._clients.feed_replica, self._clients.cut_link = self._replicas.pump_one, self._link.cut
            self._resume_role()
            if self.committer is not None:
                self.committer.begin()
            if self._log is not None:
                self._log.announce(self.url)
        except BaseException:  # also for Ctrl-C during a recovery: release the lock of the data directory
            await self._close_listeners()
            await self._close_storage()
            self.abort_all()
            self._close_sockets()
            raise

    async def _recover(self, loading: Loading) -> None:
        """Read the data directory without blocking the loop, and make the parts that work on its log."""
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
        """Read the log in a separate thread."""

        def tell(doing: str, done: int, total: int) -> None:
            if self._reading_ends.is_set():
                raise LoadingStoppedError(_STOPPED)
            loading.loaded, loading.total = done, total
            if self._on_progress is not None:
                self._on_progress(doing, done, total)

        assert self.settings.directory is not None
        self._log, recovery = open_log(self.settings.directory, on_progress=tell)
        check = functools.partial(expect_packs, log=self._log)
        return self.node.prepared(self._paced(recovery.payloads()), check), recovery.report

    def _paced(self, payloads: Iterator[bytes]) -> Iterator[bytes]:
        """Yield records as they are read, until loading is cancelled, at most as fast as ``key-load-delay`` permits."""
        values = self.node.config.values
        for payload in payloads:
            delay = values["key-load-delay"]
            if self._reading_ends.is_set() or (delay and self._reading_ends.wait(int(str(delay)) / 1_000_000)):
                raise LoadingStoppedError(_STOPPED)
            yield payload

    def _take_over(self, adopt: Callable[[Log], None], report: RecoveryReport) -> None:
        """Give the node the recovered data and the log."""
        node, config, directory = self.node, self.node.config, self.settings.directory
        assert directory is not None
        assert self._log is not None
        adopt(self._log)
        node.cold.open(self._log)
        remove_parts(directory)
        node.primary.diverged_files = count(directory)
        if exposure := exposed(directory):
            log.warning("%s", exposure)
        if report.fallback_reason:
            log.warning(
                "%s; the log files it was made from are whole and are used in its place", report.fallback_reason
            )
        if config.max_memory and not config.tier:
            log.info(NO_TIER)
        if "disk-free-floor" not in self.settings.parameters:
            config.set([("disk-free-floor", str(default_floor(self._log.total())))])
        guard = self.disk_guard = DiskGuard(self._log, _WriteSwitch(self, node), lambda: config.disk_floor, self.clock)
        self.committer = Committer(self._log, self.settings.fsync, guard, self.fail, gate=self.gate)
        self.committer.before_write = node.primary.ask_confirmation
        self._spilling = Spilling(self, self._log)
        self.spill_soon = self._spilling.poke
        taking, damages = self._spilling.taking, node.cold.damages
        packs = KeyspacePacks(node.keyspace, self._in_turn, node.cold.drop_packs, taking, damaged=damages)
        rewriter = node.host.rewriter = self.rewriter = Rewriter(
            self._log, config, exclusively=self.committer.exclusively, packs=packs
        )
        rewriter.data_size = node.memory.data

    def _in_turn(self, job: Callable[[], T]) -> T:
        """Run a job in the loop, and wait for its result in another thread."""
        run, done = answered(job)
        self.loop.call_soon_threadsafe(run)
        return done.result()

    def _resume_role(self) -> None:
        """Resume the role in the data directory, primary or replica; without one, take the role in the settings."""
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
        """Bind the addresses first, so that a long recovery does not end with "in use"."""
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
        """Add bound sockets; they do not reply before :meth:`_listen`."""
        factory = functools.partial(Connection, self._clients, is_unix=is_unix)
        served = None if context is None else self.settings.tls
        self._listeners.append(Listener(sockets, factory, self._clients.count_refused, self._sockets, served, context))

    def _listen(self) -> None:
        """Accept clients."""
        self.node.config.values["port"] = self.facts.tcp_port
        self.node.config.values["tls-port"] = self.tls_port
        self._describe()
        try:
            for listener in self._listeners:
                listener.begin()
        except OSError as error:  # another program took the port after our bind
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

    def _read_machine(self) -> MachineFacts:
        primary, directory = self.node.primary, self.settings.directory
        if primary.diverged_files and directory is not None:  # others may delete them, but only this server adds any
            primary.diverged_files = count(directory)
        self.node.surroundings.max_clients = self.node.config.max_clients
        self.facts.rates = self.per_second()
        return read_machine()

    def _read_log(self) -> LogFacts:
        """The log's facts for INFO; without a log, the start counts as the last save."""
        committer, guard, rewriter = self.committer, self.disk_guard, self.rewriter
        if self._log is None or committer is None or self.report is None or guard is None or rewriter is None:
            is_read = self.settings.directory is not None  # the log exists, but was not read completely yet
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
        """URLs at which a client on this machine reaches the server."""
        found = []
        if self.facts.tcp_port:
            found.append(tcp_url(self.settings.host, self.facts.tcp_port))
        if self.tls_port:
            found.append(tcp_url(self.settings.host, self.tls_port, "rediss"))
        if self.facts.unix_socket:
            found.append(f"unix://{self.facts.unix_socket}")
        return found

    @property
    def url(self) -> str:
        """The first of :attr:`urls`: unencrypted TCP if the server listens there, else TLS, else the unix socket."""
        return self.urls[0]

    @property
    def open_connections(self) -> list[Connection]:
        """All connections: clients, and those that only have to read their last replies."""
        return list(self._clients.open)

    def shut_down(self) -> None:
        """Run SHUTDOWN: :attr:`stopping` is set once replicas have all data, or the timeout is over."""
        self.node.ending.begin(self.clock.now(), at_once=False)
        self.after_commands()

    def request_stop(self) -> None:
        """Set :attr:`stopping`; the owner of the server then calls :meth:`stop`."""
        self.stopping.set()

    async def stop(self) -> None:
        """Stop accepting, bring everything to the disk, send the replies that waited for it, and close."""
        # Connections finish before the log closes, since the log must contain their remaining commands. Their replies
        # are sent afterwards, since each waits for its position on disk
        self.stopping.set()
        await self._close_listeners()
        if self._timer is not None:
            self._timer.cancel()
        if self._spilling is not None:
            self._spilling.stop_timer()
        if self._link is not None:
            await self._link.close()
        for connection in list(self._clients.by_id.values()):
            if not connection.session.is_replica:
                connection.finish()
        with contextlib.suppress(StorageError):  # closing the log raises and reports it again
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
        """Give clients a limited time to read their outstanding replies."""
        if self._clients.open:
            self._clients.none_open.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._clients.none_open.wait(), self.settings.delays.farewell)
        self.abort_all()

    def _close_sockets(self) -> None:
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    async def _close_storage(self) -> None:
        """Bring all records to the disk, release the replies that waited for it, and release the data directory."""
        # Both threads may wait for a job of the committer
        if self.rewriter is not None:
            await asyncio.to_thread(self.rewriter.stop)
        if self._spilling is not None:
            await asyncio.to_thread(self._spilling.stop)
        if self.committer is not None:
            await self.committer.close()
        if self._log is not None:  # also after a failure: the open files may be the only copies
            try:
                await asyncio.to_thread(bring_packs_back, self._log)
            except StorageError as error:
                if self.failure is not None:
                    log.error("%s", error)  # noqa: TRY400 - the sentence says all
                self.fail(error)
        await asyncio.to_thread(self.node.cold.close)  # its threads may wait for the disk
        if self._log is None:
            return
        held = len(self._log.held())
        try:
            self._log.close()
        except DiskFullError as error:
            self.fail(DiskFullError(LOST.format(error=error, held=held)))
        except StorageError as error:
            self.fail(error)


class _ColdShell:
    """The loop for commands that wait for cold entries, see :class:`millstream.node.tiering.tickets.ColdShell`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def post(self, work: Callable[[Now], None]) -> None:
        """Run something in the loop, and then do all work after commands."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._server.loop.call_soon_threadsafe(self._run, work)

    def soon(self, work: Callable[[], None]) -> None:
        """Run something in the next turn."""
        self._server.loop.call_soon(work)

    def _run(self, work: Callable[[Now], None]) -> None:
        server = self._server
        try:
            work(server.clock.now())
        except StorageError as error:
            server.fail(error)
            return
        server.after_commands()


class _WriteSwitch:
    """The node, and the work to do when it takes writes again."""

    def __init__(self, server: Server, node: Node) -> None:
        self._server = server
        self.suspend = node.journal.suspend
        self._node = node

    def resume(self) -> None:
        """See :class:`millstream.node.durability.disk_guard.WriteSwitch`."""
        self._node.journal.resume()
        self._server.after_commands()
