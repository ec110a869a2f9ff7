"""Sending copies and the stream to replicas, and checking on them once a second.

Each replica gets bytes from the backlog as fast as it reads, once the log has kept them: never bytes that a power cut
could undo. :mod:`millstream.server.leading.making` makes the copies.
"""

import asyncio
import time

from millstream.errors import StorageError
from millstream.logs import logger
from millstream.node.following.role import FORCED
from millstream.node.log.feeding import Feed
from millstream.persistence.log import Log
from millstream.replication.followers import Follower
from millstream.server.connection import Clients, Connection
from millstream.server.leading.copies import PIECE
from millstream.server.leading.making import CopyMaker
from millstream.server.serving import Serving

log = logger("millstream.server")

# Bytes sent to all replicas together in one turn of the loop, before clients get their turn
_TURN = 4 * 1024 * 1024
# Seconds from the begin of a turn after which it reads no more of copies, since the disk may be slow
_READING = 0.01
# Seconds between two checks
_LOOK = 1.0


class Replicas:
    """The shell of a node's primary, see :class:`~millstream.node.primary.Shell`."""

    def __init__(self, server: Serving, clients: Clients, kept: Log | None) -> None:
        self._server, self._clients = server, clients
        self._maker = CopyMaker(server, clients, kept, self.schedule)
        self._primary = server.node.primary
        self._slow: dict[int, int] = {}  # session id: monotonic milliseconds since when it exceeds the soft limit
        # session id: bytes of its copy that it has read, and monotonic milliseconds since when this has not grown
        self._taken: dict[int, tuple[int, int]] = {}
        self._is_scheduled = self._is_opening = False
        self._left = 0  # bytes that may still be sent in this turn
        self._began = 0.0  # begin of this turn
        self._first = 0  # index of the replica that is served first
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ calls by the primary

    def begin(self, feed: Feed) -> None:
        """Send the bytes of a feed, at the start of a history or after a restart."""
        self._maker.feed, feed.on_bytes = feed, self._fed
        if self._timer is None:
            self._timer = self._server.loop.call_later(_LOOK, self._look)

    def join(self, follower: Follower) -> None:
        """Add a replica."""
        log.info("replica %s:%d asks for the stream: %s", follower.ip, follower.port, follower.stage)
        if (connection := self._clients.by_id.get(follower.id)) is not None:
            connection.keep_little(PIECE)
        self.schedule()

    def leave(self, follower: Follower) -> None:
        """Remove a replica."""
        log.info("replica %s:%d is gone", follower.ip, follower.port)
        self._slow.pop(follower.id, None)
        if (copy := self._maker.copies.pop(follower.id, None)) is not None:
            copy.drop(follower.id)

    def confirmed(self) -> None:
        """Release replies that waited for replicas, after the current command."""
        if not self._is_opening:
            self._is_opening = True
            self._server.loop.call_soon(self._open)

    def _open(self) -> None:
        self._is_opening = False
        self._server.gate.open()
        self._server.after_commands()

    def refuse_held(self) -> None:
        """Send clients an error in place of replies to writes that too few replicas hold, and close them."""
        self._server.is_void = self._server.in_turn
        for connection in list(self._clients.open):
            connection.refuse_held(FORCED)

    def _fed(self) -> None:
        """Send new bytes, together with the replies that wait for the same position, or soon."""
        assert self._maker.feed is not None
        gate = self._server.gate
        if self in gate.watchers:
            return  # earlier bytes are not kept yet
        position = self._maker.feed.backlog.next_position()
        if position is not None and position > gate.kept:  # kept, not released: replicas must get it to confirm it
            gate.watchers[self] = None
        else:
            self.schedule()

    def release(self) -> None:
        """Send bytes that the log's progress permits."""
        self.pump()
        if self._maker.feed is None or self._maker.feed.backlog.next_position() is None:
            self._server.gate.watchers.pop(self, None)

    def schedule(self) -> None:
        """Soon send bytes to the replicas that lack some, and start copies for those that wait."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._server.loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        if self._server.settings.directory is None:  # with a log, a write would request the confirmation
            self._primary.ask_confirmation()
        self._maker.start()
        self.pump()

    # ------------------------------------------------------------------ sending

    def pump(self) -> None:
        """Send each replica as many bytes as it takes."""
        feed = self._maker.feed
        if feed is None:
            return
        feed.backlog.kept(self._server.gate.kept)
        self._left, self._began = _TURN, time.perf_counter()
        followers = list(self._primary.followers)
        for place in range(len(followers)):
            follower = followers[(self._first + place) % len(followers)]
            if not self._has_all(feed, follower):
                self._serve(feed, follower)
            if self._left <= 0:
                self._first += place + 1
                self.schedule()
                break
        backlog = feed.backlog
        backlog.size = self._server.node.config.backlog_size
        needed = self._primary.followers.needed()
        backlog.trim(backlog.end if needed is None else needed)

    def pump_one(self, session_id: int) -> None:
        """Send bytes to one replica that reads again; the others are skipped, since there may be a thousand."""
        follower, feed = self._primary.followers.get(session_id), self._maker.feed
        if follower is not None and feed is not None:
            self._left, self._began = PIECE, time.perf_counter()
            self._serve(feed, follower)
            if self._left <= 0:
                self.schedule()

    def _has_all(self, feed: Feed, follower: Follower) -> bool:
        is_even = follower.stage == "online" and follower.cursor == feed.backlog.end
        return is_even and follower.id not in self._slow

    def _serve(self, feed: Feed, follower: Follower) -> None:
        try:
            self._send(feed, follower)
        except Exception:
            log.exception("internal error; closing replica %s:%d", follower.ip, follower.port)
            self._maker.cut(follower, "of a defect")

    def _send(self, feed: Feed, follower: Follower) -> None:
        connection = self._clients.by_id.get(follower.id)
        if connection is None:
            return
        if follower.stage == "send_bulk":
            self._send_copy(follower, connection)
        if follower.stage == "online":
            while self._may_send(connection) and (data := feed.backlog.read(follower.cursor, PIECE)):
                follower.cursor += len(data)
                self._left -= len(data)
                connection.push(data)
        self._check_output(follower, feed.backlog.end - follower.cursor + connection.unsent)

    def _may_send(self, connection: Connection) -> bool:
        return self._left > 0 and not connection.is_full

    def _send_copy(self, follower: Follower, connection: Connection) -> None:
        copy = self._maker.copies[follower.id]
        while self._may_send(connection):
            try:
                data = copy.read(follower.id)
            except (OSError, StorageError) as error:
                self._maker.give_up(f"its copy cannot be read: {error}", [follower])
                return
            is_over = time.perf_counter() - self._began >= _READING
            self._left = 0 if is_over else self._left - len(data)
            if data:
                connection.push(data)
                continue
            del self._maker.copies[follower.id]
            copy.drop(follower.id)
            self._maker.sent()
            log.info("replica %s:%d was sent its copy", follower.ip, follower.port)
            if follower.copy_only:
                connection.finish()
            else:
                self._primary.go_online(follower)
            return

    def _check_output(self, follower: Follower, behind: int) -> None:
        """Cut a replica that lags too far; a limit below the backlog's size counts as that size, as in Redis."""
        config = self._server.node.config
        limit, size = config.output_limits.slave, config.backlog_size
        if limit.hard and behind > max(limit.hard, size):
            self._maker.cut(follower, f"it left {behind} bytes unread")
        elif limit.soft and behind > max(limit.soft, size):
            now = self._server.clock.now().mono
            if now - self._slow.setdefault(follower.id, now) >= limit.seconds * 1000:
                self._maker.cut(follower, f"it left {behind} bytes unread for {limit.seconds} s")
        else:
            self._slow.pop(follower.id, None)

    # ------------------------------------------------------------------ time

    def _look(self) -> None:
        self._timer = None
        try:
            self._look_after()
        except StorageError as error:
            self._server.fail(error)
            return
        except Exception:  # no other code would schedule the next check
            log.exception("internal error in the service for replicas")
        self._maker.feed = self._primary.feed
        if self._maker.feed is not None:
            self._timer = self._server.loop.call_later(_LOOK, self._look)
            self.schedule()
        self._server.after_commands()

    def _look_after(self) -> None:
        for follower in self._primary.tick(self._server.clock.now()):
            self._maker.cut(follower, "it was silent for too long")
        for follower in self._stalled():
            self._maker.cut(follower, "it read nothing of its copy for too long")
        self._maker.greet_waiting()

    def _stalled(self) -> list[Follower]:
        """Replicas that have stopped reading their copies; they must be cut, since open files occupy the disk."""
        now, before, stalled = self._server.clock.now().mono, self._taken, []
        self._taken = {}
        for follower in self._primary.followers:
            copy, connection = self._maker.copies.get(follower.id), self._clients.by_id.get(follower.id)
            if copy is None or connection is None:
                continue
            taken = copy.place(follower.id) - connection.unsent
            last, since = before.get(follower.id, (-1, now))
            self._taken[follower.id] = taken, since if taken == last else now
            if taken == last and now - since > self._server.node.config.repl_timeout * 1000:
                stalled.append(follower)
        return stalled

    def stop(self) -> None:
        """Send the bytes that may be sent, and close."""
        self.pump()
        if self._timer is not None:
            self._timer.cancel()
        for follower in self._primary.followers:
            if (connection := self._clients.by_id.get(follower.id)) is not None:
                connection.finish()
        self._maker.feed = None
