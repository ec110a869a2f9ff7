"""The link of a replica to its primary: the connection, the handshake, the copy, the stream, and the acknowledgements.

There is one task for each primary. It reconnects a lost link, with growing delays up to some seconds. Commands that
were run stay, and the replica continues with the next byte.

A copy goes into a file without a name. Another process reads it while it arrives and makes a snapshot of it. The
snapshot replaces the old data in one step, only once it is complete and was read back.

The replica reports once a second up to which offset the log has *kept* the primary's stream, by the fsync policy. So
the report does not count anything that a power cut could undo.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream import core
from millstream.commands.context.session import Session, Traffic
from millstream.errors import DiskError, MillstreamError, ProtocolError, StorageError
from millstream.logs import logger
from millstream.node.following.role import CONNECTING, HANDSHAKE, SYNC
from millstream.node.log.children import COPY, reason_of
from millstream.node.obeying import DivergedError, NotHeldError, Obedience
from millstream.persistence.disk import disk_error
from millstream.printable import printable
from millstream.replication.handshake import (
    FAILOVER,
    Continues,
    CopyAwaited,
    CopyBegins,
    CopyBytes,
    CopyEnds,
    CopyEvent,
    CopySize,
    Event,
    Handshake,
    Introduction,
    LinkRefused,
    PrimaryPast,
    Send,
    StreamBytes,
)
from millstream.replication.received import ReceivedStream
from millstream.replication.units import packed
from millstream.server.following.arriving import ArrivingCopy
from millstream.server.following.pauses import copy_pause
from millstream.server.listener import show_address
from millstream.server.serving import Serving

if TYPE_CHECKING:
    from millstream.server.following.taking import Taking

log = logger("millstream.server")

# Bytes that one read requests
_PIECE = 256 * 1024
# Bytes of the stream that may wait here until the preceding copy is in use; further bytes stay at the primary
_WAITING_MAX = 256 * 1024 * 1024
# Seconds between two attempts, first and longest, as in Redis: in a chain, the server above first needs a copy itself
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
# Seconds between two copies that are requested because the data differed
_DIVERGED_PAUSE = 600.0
# Seconds between two reports of the offset to the primary
_TELL = 1.0
# Seconds between two checks whether units may run
_HELD = 0.05

# Characters of a reason that are shown
_REASON_MAX = 1000

# Errors of a primary that rejects the user or its rights; Redis before 6 and servers without a password use the last
# two
_NOT_LET_IN = ("WRONGPASS", "NOAUTH", "NOPERM", "ERR invalid password", "ERR AUTH", "ERR Client sent AUTH")

_NOT_SYNCED = -1  # replaces an offset if nothing of the present link is on disk


class LinkLostError(MillstreamError):
    """The replica has lost the connection to the primary.

    What to do: nothing, since the replica connects again. If that does not help, read the reason.
    """


class ReplicaLink:
    """The shell of a node's :class:`~millstream.node.following.role.Following`."""

    def __init__(self, server: Serving) -> None:
        self._server = server
        self._following = server.node.following
        self._task: asyncio.Task[None] | None = None
        self._connection: _Connection | None = None
        self._diverged_at: float | None = None  # loop time of the last difference
        self._pause = _FIRST_PAUSE
        self._logged_reason = ""  # reason for the lost link that was last logged
        self._failed = 0  # number of successive copies that could not be used

    def follow(self, host: str, port: int) -> None:
        """Connect to a primary, and leave any other one."""
        self.stop()
        self._pause, self._logged_reason, self._diverged_at, self._failed = _FIRST_PAUSE, "", None, 0
        self._task = self._server.loop.create_task(self._keep_up(host, port))

    def stop(self) -> None:
        """Stop following."""
        if self._connection is not None:
            self._connection.leave()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def cut(self, session: Session) -> None:
        """CLIENT KILL of the link: disconnect, if the session is the present one; the link reconnects."""
        if self._connection is not None:
            self._connection.cut(session)

    async def close(self) -> None:
        """Close the link when the server stops."""
        task, connection = self._task, self._connection
        self.stop()
        if task is not None:
            await asyncio.wait([task])
        if connection is not None:
            await connection.ended()

    async def _keep_up(self, host: str, port: int) -> None:
        """Follow the primary until stopped, over one connection after the other."""
        following, clock = self._following, self._server.clock
        while not following.is_stuck:
            reason, has_failed = "", False
            wait: float | None = None
            before = following.offset
            connection = self._connection = _Connection(self._server)
            try:
                await connection.follow(host, port)
            except NotHeldError as error:
                following.is_stuck, reason = True, str(error)
                log.critical("%s:%d is not followed any more until the next REPLICAOF: %s", host, port, error)
            except DivergedError as error:
                reason = str(error)
                log.critical("the data differs from that of %s:%d, so a copy is requested: %s", host, port, error)
                self._diverged_at, last = self._server.loop.time(), self._diverged_at
                if last is not None:
                    wait = last + _DIVERGED_PAUSE - self._diverged_at
            except (StorageError, MemoryError) as error:
                reason, has_failed, own = reason_of(error, COPY), True, self._server.node.journal.log
                if isinstance(error, StorageError) and own is not None and own.is_poisoned:
                    self._server.fail(error)  # a later write would find the error, but there may be none
            except (LinkLostError, ProtocolError, OSError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            except Exception as error:
                reason = repr(error)
                if self._is_news(reason, before):
                    log.exception("internal error in the link to %s:%d", host, port)
            finally:
                connection.close()
            reason = printable(reason).replace("\n", " ")[:_REASON_MAX]  # it may contain text from the primary
            is_news, self._logged_reason = self._is_news(reason, before), reason
            self._failed = self._failed + 1 if has_failed else 0
            self._pause = min(self._pause * 2, _LONGEST_PAUSE) if following.offset == before else _FIRST_PAUSE
            wait = max(wait or 0, copy_pause(self._failed), self._pause)
            if has_failed:  # each such attempt costs both sides a whole copy, so log each
                log.warning("the link to %s:%d is down: %s; tried again in %.1f s", host, port, reason, wait)
            elif is_news:
                log.warning("the link to %s:%d is down: %s%s", host, port, reason, _what_lets_in(reason))
            following.lost(reason, clock.now().mono)
            failover = self._server.node.failover
            if failover.is_asking:
                try:
                    failover.not_led(
                        reason,
                        clock.now(),
                        may_lead=(connection.asked_to_lead or failover.is_resumed) and not connection.is_refused,
                    )
                except StorageError as error:
                    self._server.fail(error)
            self._server.after_commands()
            await asyncio.sleep(wait)

    def _is_news(self, reason: str, before: int) -> bool:
        """True if the log does not have this reason yet, or the link worked since then."""
        return reason != self._logged_reason or self._following.offset != before


def _what_lets_in(reason: str) -> str:
    """Return advice on the parameters for login, if the primary refused the user or its rights; else an empty text."""
    if not reason.startswith(_NOT_LET_IN):
        return ""
    return " (this server logs in with masteruser and masterauth; that user needs +psync +replconf +ping)"


class _Connection:
    """One connection to a primary, from the handshake to its end."""

    def __init__(self, server: Serving) -> None:
        self._server, self._directory = server, server.settings.directory
        self._node, self._following = server.node, server.node.following
        self._obedience = Obedience(self._node, self._following)
        self._received = ReceivedStream()
        self._running = asyncio.Lock()  # only one task at a time may run units
        self._writer: asyncio.StreamWriter | None = None
        self._copy: ArrivingCopy | None = None
        self._begins: CopyBegins | None = None
        self._past: PrimaryPast | None = None
        self._taking: asyncio.Task[None] | None = None
        self._taker: Taking | None = None
        self._is_copied = asyncio.Event()  # set when the copy is complete, or reading it has stopped
        self._telling: asyncio.Task[None] | None = None
        self._received_bytes = 0
        self._unsynced: tuple[int, int] | None = None  # a position of the log, and the offset that is durable with it
        self._durable = _NOT_SYNCED
        self._is_over = False
        self.asked_to_lead = False  # the latest PSYNC requested that the other server becomes the primary
        self.is_refused = False

    async def follow(self, host: str, port: int) -> None:
        """Follow a primary until the connection ends, which always raises."""
        following, config = self._following, self._node.config
        following.state = CONNECTING
        timeout = config.repl_timeout
        # Not wait_for(): in Python 3.11 it loses a cancellation that arrives when the awaited task ends
        async with asyncio.timeout(timeout):
            reader, self._writer = await asyncio.open_connection(host, port, ssl=self._server.link_tls)
        packs = await self._packs()  # only now: it looks at each pack, and a primary may be down for long
        following.state, following.heard_at = HANDSHAKE, self._server.clock.now().mono
        handshake = Handshake(self._introduction(packs))
        self._send(handshake.begin())
        self._telling = self._server.loop.create_task(self._tell())
        while True:
            async with asyncio.timeout(timeout):
                data = await reader.read(_PIECE)
            if self._taking is not None and self._taking.done() and not self._taking.cancelled():
                self._taking.result()
            if not data:
                raise LinkLostError("the primary has closed the connection")
            following.heard_at = self._server.clock.now().mono
            self._received_bytes += len(data)
            self._server.facts.input_bytes += len(data)
            self._server.facts.repl_input_bytes += len(data)
            for event in handshake.feed(data):
                await self._take_in(event, host, port)

    async def _packs(self) -> tuple[str, ...] | None:
        """Identities of the packs that a copy need not bring; None if it must not refer to packs.

        A pack that is known to be damaged comes anew. Packs need a directory. The Python core is for reading, and does
        not bound the memory that hostile records of cold entries would take.
        """
        own = self._node.journal.log
        if own is None or core.native is None:
            return None
        if not own.packs:
            return ()
        damaged = {number for number, _ in self._node.cold.damages()}
        sealed = await self._server.loop.run_in_executor(None, own.sealed_packs)
        return tuple(each.identity for each in sealed if each.number not in damaged)

    def _introduction(self, packs: tuple[str, ...] | None) -> Introduction:
        values, history = self._node.config.values, self._node.keyspace.history
        user, password = str(values["masteruser"]), str(values["masterauth"])
        return Introduction(
            int(str(values["replica-announce-port"])) or self._server.own_port,
            history.replid,
            self._following.offset,
            user,
            password,
            str(values["replica-announce-ip"]),
            hands_over=self._node.failover.is_asking,
            asks_past=bool(history.replid or history.is_given_up),
            packs=packs,
        )

    async def _take_in(self, event: Event, host: str, port: int) -> None:
        following = self._following
        match event:
            case StreamBytes(data):
                self._received.feed(data)
                if self._begins is None or self._taking is None or self._taking.done():
                    await self._run()
                elif self._received.waiting > _WAITING_MAX:
                    await self._taking
            case Send(data):
                self.asked_to_lead |= FAILOVER in data
                self._send(data)
            case LinkRefused(reason):
                self.is_refused = True
                raise LinkLostError(reason)
            case PrimaryPast():
                self._past = event
            case Continues(replid):
                if self._taking is not None:
                    self._taking.cancel()
                log.info("%s:%d goes on at offset %d", host, port, following.offset)
                with self._logged():
                    following.renamed(replid, self._server.clock.wall_time())
                    self._go_on()
            case _:
                self._copy_in(event, host, port)

    def _copy_in(self, event: CopyEvent, host: str, port: int) -> None:
        """Handle the start of a copy, or a piece of it."""
        following = self._following
        match event:
            case CopyBytes(data):
                assert self._copy is not None
                with self._to_disk():
                    self._copy.write(data)
                following.copy_read += len(data)
                if self._taker is not None and not self._taker.arrived(self._copy.written):
                    self._is_copied.set()
            case CopyAwaited():
                self._await_copy(host, port)
            case CopyBegins():
                with self._logged():
                    self._node.failover.done(self._server.clock.now())
                log.info("%s:%d sends a copy, as of offset %d", host, port, event.offset)
                following.state, following.copy_size, following.copy_read = SYNC, None, 0
                following.begun_at = self._server.clock.now().mono
                self._begins = event
                self._await_copy(host, port)
            case CopySize(size):
                assert self._copy is not None
                following.copy_size = self._copy.size = size
            case CopyEnds():
                assert self._copy is not None
                with self._to_disk():
                    self._copy.end()
                self._is_copied.set()

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        """Stop the server if memory has changes that cannot be logged; an unreadable copy does not stop it."""
        try:
            yield
        except StorageError as error:
            self._server.fail(error)
            raise

    @contextlib.contextmanager
    def _to_disk(self) -> Iterator[None]:
        """Turn a failure of the disk into a failed copy, not a failed connection."""
        try:
            yield
        except OSError as error:
            raise self._no_copy(error) from error

    def _send(self, data: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)

    # ------------------------------------------------------------------ the copy

    def _await_copy(self, host: str, port: int) -> None:
        """Start the process that will read the copy."""
        if self._copy is None:
            with self._to_disk():
                config = self._node.config
                self._copy = ArrivingCopy(self._directory, self._node.journal.log, lambda: config.disk_floor)
            self._taking = self._server.loop.create_task(self._take(self._copy, (host, port)))

    async def _take(self, copy: ArrivingCopy, primary: tuple[str, int]) -> None:
        """Replace the data by the copy, and run the commands after it; a failure ends the connection."""
        try:
            from millstream.server.following.taking import Taking  # noqa: PLC0415 - most servers never take a copy

            taker = self._taker = Taking(self._server, copy.file, copy.token, primary)
            try:
                await self._is_copied.wait()
                assert self._begins is not None
                upto = self._following.taken_up_to(self._begins, self._past)
                if upto is not None:
                    from millstream.server.following.tail import keep  # noqa: PLC0415 - few servers ever need it

                    await keep(self._node, self._server.gate, self._directory, upto)
                await taker.take(self._begins)
            finally:
                self._taker = None
                await taker.close()
            await self._server.loop.run_in_executor(None, copy.close)  # takes long for a large copy
            with self._logged():
                self._go_on()
            log.info("the copy of %s:%d replaced the former data", *primary)
            await self._run()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if self._writer is not None:
                self._writer.transport.abort()  # the reader notices it and retrieves the reason
            if isinstance(error, OSError):  # reading or writing a local file failed, not the connection
                raise self._no_copy(error) from error
            raise

    def _no_copy(self, error: OSError) -> DiskError:
        place = "the directory for temporary files" if self._directory is None else self._directory.absolute()
        return disk_error(f"cannot keep the primary's copy in {place}", error)

    # ------------------------------------------------------------------ the stream

    def _go_on(self) -> None:
        self._node.failover.done(self._server.clock.now())
        now = self._server.clock.now()
        self._following.connected(now.mono)
        self._obedience.begin()
        session = self._obedience.session
        if not session.id and self._writer is not None:
            peer, own = (self._writer.get_extra_info(name) for name in ("peername", "sockname"))
            self._node.sessions.admit(session, now, show_address(peer, None), show_address(own, None))
            session.traffic = self._traffic
        self._unsynced, self._durable = None, _NOT_SYNCED
        self._server.gate.watchers[self] = None
        self._tell_offset()

    def _traffic(self) -> Traffic:
        found = None if self._writer is None else self._writer.get_extra_info("socket")
        return Traffic(
            descriptor=-1 if found is None else found.fileno(),
            received=self._received_bytes,
            unread=self._received.waiting,
        )

    def cut(self, session: Session) -> None:
        """End the connection if it belongs to this session; the link reconnects."""
        if session is self._obedience.session and self._writer is not None:
            self._writer.transport.abort()

    async def _run(self) -> None:
        """Run the commands that have arrived."""
        async with self._running:
            has_more = True
            while has_more:
                while self._is_held:  # noqa: ASYNC110 - a disk does not send events
                    await asyncio.sleep(_HELD)
                try:
                    with self._logged():
                        has_more = self._obedience.run(self._received, self._server.clock.now())
                finally:
                    self._server.after_commands()
                if self._obedience.asked:
                    self.release()
                await asyncio.sleep(0)  # lets other tasks run

    @property
    def _is_held(self) -> bool:
        """True if no command may run now: the disk is full, or clients are paused."""
        return self._node.journal.outage is not None or self._node.sessions.pause.ends is not None

    def _kept(self) -> int:
        backlog = self._following.relay.backlog
        backlog.kept(self._server.gate.kept)
        return backlog.sendable

    @property
    def _keeps_durably(self) -> bool:
        return self._node.config.values["appendfsync"] == "always"

    def _synced(self) -> int:
        """The offset up to which the commands are on the disk.

        Writes since the last call count from the next sync on.
        """
        log = self._node.journal.log
        if log is None:
            return _NOT_SYNCED
        if self._keeps_durably:
            return self._kept()
        for _ in range(2):
            if self._unsynced is None:
                self._unsynced = log.appended, self._following.offset
            if self._unsynced[0] > log.durable:
                break
            self._durable, self._unsynced = self._unsynced[1], None
        return self._durable

    def _tell_offset(self) -> None:
        following = self._following
        following.acked_kept, following.acked_durable = self._kept(), self._synced()
        words = [b"REPLCONF", b"ACK", b"%d" % following.acked_kept]
        if following.acked_durable != _NOT_SYNCED:
            words += [b"FACK", b"%d" % following.acked_durable]
        self._send(packed(words))

    def release(self) -> None:
        """After progress of the log, reply to a pending request for the offset, and report the synced offset."""
        if 0 < self._obedience.asked <= self._kept():
            self._obedience.asked = 0
            self._tell_offset()
        elif self._following.is_up and not self._keeps_durably and self._synced() > self._following.acked_durable:
            self._tell_offset()

    async def _tell(self) -> None:
        """Report the offset once a second; after a copy has arrived and is being taken over, send a sign of life."""
        while True:
            await asyncio.sleep(_TELL)
            if self._following.is_up:
                self._tell_offset()
            elif self._is_copied.is_set():
                self._send(b"\n")

    def leave(self) -> None:
        """Leave the primary: later records may belong to another role, and must not be reported to it.

        The loop may run its commands or its copy next. So their tasks are cancelled here, before the reading task ends.
        """
        self._server.gate.watchers.pop(self, None)
        self._node.sessions.close(self._obedience.session)
        if not self._is_over:
            self._is_over = True
            for task in (self._taking, self._telling):
                if task is not None:
                    task.cancel()

    async def ended(self) -> None:
        """Wait for the end of the tasks that took over a copy."""
        if self._taking is not None:
            await asyncio.wait([self._taking])

    def close(self) -> None:
        """Close the connection and cancel its tasks."""
        self.leave()
        if self._copy is not None:
            try:
                self._server.loop.run_in_executor(None, self._copy.close)
            except RuntimeError:  # no more threads can be started
                self._copy.close()
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.transport.abort()
