"""What sends replicas their copies and the stream, and looks after them once a second.

Bytes go out of the backlog as each replica takes them, once the log has kept them: never what a power cut could still
take back. A Millstream begins with the files of the log as they lie there, where not much in them is out of date. For
anybody else the process that rewrites the log makes a copy, of the same sealed files, in a file without a name;
replicas that come meanwhile share it. Without a data directory a child of this process makes it, of the memory as it is
at that moment.
"""

import asyncio
import contextlib
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millstream.errors import DiskFullError, StorageError, UsageError
from millstream.logs import logger
from millstream.node.following.role import FORCED
from millstream.node.log.copying import NO_KEYS, pieces
from millstream.node.log.rewriting import CopyMade, CopyOrder
from millstream.replication.dialect import COPIES, DIALECTS
from millstream.server.following.files import unnamed_file
from millstream.server.following.pauses import copy_pause
from millstream.server.leading.copies import PIECE, Copy
from millstream.server.leading.forking import can_fork, write_in_child

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from millstream.clock import Clock
    from millstream.node.durability.held_replies import ReplyGate
    from millstream.node.log.feeding import Feed
    from millstream.node.log.rewriting import Rewriter
    from millstream.node.node import Node
    from millstream.persistence.log import Log, LogFiles
    from millstream.replication.followers import Follower
    from millstream.server.connection import Connection

log = logger("millstream.server")

MOST_BEHIND = 128 * 1024 * 1024
"""A log is sent as it is where what lies behind its snapshot is no larger than that and so many bytes."""
MOST_FILES = 64
"""Files that are open for all copies at most, where the next is to be of a log: who never reads his keeps them open."""
# Bytes passed on in one turn of the loop, to all replicas together; then clients have theirs
_TURN = 4 * 1024 * 1024
# Seconds between two looks
_LOOK = 1.0


class ReplicaHost(Protocol):
    """What is needed of the server.

    Attributes:
        node: whose primary this is the shell of.
        gate: how far the log is.
        clock: where time comes from.
        loop: the event loop.
    """

    node: "Node"
    gate: "ReplyGate"
    clock: "Clock"
    loop: asyncio.AbstractEventLoop

    def connection_of(self, session_id: int) -> "Connection | None":
        """The connection of a session."""

    def after_commands(self) -> None:
        """Something was done unasked: see to it that it is committed and sent."""

    def refuse_held(self, line: str) -> None:
        """Answer whoever has replies that wait with an error in their place, and close their connections."""

    def fail(self, error: StorageError) -> None:
        """The disk failed."""


class Replicas:
    """The shell of a node's primary, see :class:`~millstream.node.primary.Shell`.

    Args:
        server: whose replicas these are.
        rewriter: makes copies; None where no log is kept.
        log: what it rewrites.
        directory: for the files of copies; None where no log is kept.
    """

    def __init__(
        self, server: ReplicaHost, rewriter: "Rewriter | None", log: "Log | None", directory: Path | None
    ) -> None:
        self._server, self._rewriter, self._log, self._directory = server, rewriter, log, directory
        self._primary = server.node.primary
        self._feed: Feed | None = None
        self._copies: dict[int, Copy] = {}  # on their way, by session
        self._is_copying = False
        self._failed = 0  # copies in a row that could not be made
        self._not_before = 0.0  # loop time of the next one
        self._ordered_at = 0  # monotonic milliseconds, of the copy that is made
        self._moment: tuple[CopyMade, int] | None = None  # of a log, and the position that is to be kept first
        self._slow: dict[int, int] = {}  # session: monotonic milliseconds since when the soft limit is passed
        # session: bytes of its copy that it has taken, and monotonic milliseconds since when it is no more
        self._taken: dict[int, tuple[int, int]] = {}
        self._is_scheduled = self._is_opening = False
        self._left = 0  # bytes that may be passed on in this turn
        self._first = 0  # place of the replica that is served first
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ what the primary tells

    def begin(self, feed: "Feed") -> None:
        """A history begins, or goes on after a start."""
        self._feed, feed.on_bytes = feed, self._fed
        if self._timer is None:
            self._timer = self._server.loop.call_later(_LOOK, self._look)

    def join(self, follower: "Follower") -> None:
        """A replica has come."""
        log.info("replica %s:%d asks for the stream: %s", follower.ip, follower.port, follower.stage)
        if (connection := self._server.connection_of(follower.id)) is not None:
            connection.keep_little(PIECE)
        self._schedule()

    def leave(self, follower: "Follower") -> None:
        """A replica is gone."""
        log.info("replica %s:%d is gone", follower.ip, follower.port)
        self._slow.pop(follower.id, None)
        if (copy := self._copies.pop(follower.id, None)) is not None:
            copy.drop(follower.id)

    def confirmed(self) -> None:
        """Replicas hold more: let out what waited for that, behind the command that is at work."""
        if not self._is_opening:
            self._is_opening = True
            self._server.loop.call_soon(self._open)

    def _open(self) -> None:
        self._is_opening = False
        self._server.gate.open()
        self._server.after_commands()

    def refuse_held(self) -> None:
        """Nobody is told of what too few replicas hold."""
        self._server.refuse_held(FORCED)

    def _fed(self) -> None:
        """There are more bytes: they go out with the replies that wait for the same position, or else soon."""
        assert self._feed is not None
        gate = self._server.gate
        if self in gate.watchers:
            return  # what comes first is not kept yet
        position = self._feed.backlog.next_position()
        if position is not None and position > gate.kept:  # kept, not released: who has not got it confirms nothing
            gate.watchers[self] = None
        else:
            self._schedule()

    def release(self) -> None:
        """The log has come further."""
        self.pump()
        self._open_log()
        if self._moment is None and (self._feed is None or self._feed.backlog.next_position() is None):
            self._server.gate.watchers.pop(self, None)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._server.loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        if self._directory is None:  # nothing is written, before which it would be done
            self._primary.ask_confirmation()
        self._start_copies()
        self.pump()

    # ------------------------------------------------------------------ sending

    def pump(self) -> None:
        """Send each replica what it takes."""
        feed = self._feed
        if feed is None:
            return
        feed.backlog.kept(self._server.gate.kept)
        self._left = _TURN
        followers = list(self._primary.followers)
        for place in range(len(followers)):
            follower = followers[(self._first + place) % len(followers)]
            if not self._has_all(feed, follower):
                self._serve(feed, follower)
            if self._left <= 0:
                self._first += place + 1
                self._schedule()
                break
        backlog = feed.backlog
        backlog.size = self._server.node.config.backlog_size
        needed = self._primary.followers.needed()
        backlog.trim(backlog.end if needed is None else needed)

    def pump_one(self, session_id: int) -> None:
        """A replica takes more again; the others are not looked at, since there may be a thousand."""
        follower, feed = self._primary.followers.get(session_id), self._feed
        if follower is not None and feed is not None:
            self._left = PIECE
            self._serve(feed, follower)
            if self._left <= 0:
                self._schedule()

    def _has_all(self, feed: "Feed", follower: "Follower") -> bool:
        is_even = follower.stage == "online" and follower.cursor == feed.backlog.end
        return is_even and follower.id not in self._slow

    def _serve(self, feed: "Feed", follower: "Follower") -> None:
        try:
            self._send(feed, follower)
        except Exception:
            log.exception("internal error; closing replica %s:%d", follower.ip, follower.port)
            self._cut(follower, "of a defect")

    def _send(self, feed: "Feed", follower: "Follower") -> None:
        connection = self._server.connection_of(follower.id)
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

    def _may_send(self, connection: "Connection") -> bool:
        return self._left > 0 and not connection.is_full

    def _send_copy(self, follower: "Follower", connection: "Connection") -> None:
        copy = self._copies[follower.id]
        while self._may_send(connection):
            try:
                data = copy.read(follower.id)
            except OSError as error:
                self._cut(follower, f"its copy cannot be read: {error}")
                return
            self._left -= len(data)
            if data:
                connection.push(data)
                continue
            del self._copies[follower.id]
            copy.drop(follower.id)
            log.info("replica %s:%d was sent its copy", follower.ip, follower.port)
            if follower.copy_only:
                connection.finish()
            else:
                self._primary.go_online(follower)
            return

    def _check_output(self, follower: "Follower", behind: int) -> None:
        """Cut a replica that is too far behind; a limit below the backlog's size counts as that, as in Redis."""
        config = self._server.node.config
        limit, size = config.output_limits.slave, config.backlog_size
        if limit.hard and behind > max(limit.hard, size):
            self._cut(follower, f"it left {behind} bytes untaken")
        elif limit.soft and behind > max(limit.soft, size):
            now = self._server.clock.now().mono
            if now - self._slow.setdefault(follower.id, now) >= limit.seconds * 1000:
                self._cut(follower, f"it left {behind} bytes untaken for {limit.seconds} s")
        else:
            self._slow.pop(follower.id, None)

    def _cut(self, follower: "Follower", reason: str) -> None:
        connection = self._server.connection_of(follower.id)
        if connection is not None:
            log.warning("closing replica %s:%d, since %s", follower.ip, follower.port, reason)
            connection.abort()

    # ------------------------------------------------------------------ copies

    def _waiting(self) -> "list[Follower]":
        return [each for each in self._primary.followers if each.stage == "wait_bgsave"]

    def _version(self, follower: "Follower") -> int:
        """Of the RDB file that a replica gets as its copy."""
        return COPIES[DIALECTS[-1] if follower.is_ours else self._server.node.config.dialect]

    def _start_copies(self) -> None:
        """See to the copies for those that wait for one."""
        if self._feed is None or self._is_copying or not (waiting := self._waiting()):
            return
        if self._server.loop.time() < self._not_before:  # they wait, and are told each second that this server is there
            return
        self._ordered_at = self._server.clock.now().mono
        if self._log is not None and any(map(self._takes_log, waiting)) and self._is_small(self._log):
            self._order_log(self._log)
        else:
            self._order_rdb(self._feed, waiting)

    def _order_rdb(self, feed: "Feed", waiting: "list[Follower]") -> None:
        """An RDB file, of the form that the first of those who wait reads."""
        version = self._version(waiting[0])  # who reads another one is next
        waiting = [each for each in waiting if self._version(each) == version]
        keyless = [each for each in waiting if each.keyless]
        if keyless:
            self._copy_at_once(keyless, version, keyless=True)
            waiting = [each for each in waiting if not each.keyless]
        if waiting and self._rewriter is None:
            self._copy_at_once(waiting, version)
        elif waiting:
            self._order_copy(self._rewriter, feed, version)

    def _copy_at_once(self, waiting: "list[Follower]", version: int, *, keyless: bool = False) -> None:
        """Make a copy of what is in memory: by a child, which has it as it is now, or here where there can be none."""
        feed, space = self._feed, NO_KEYS if keyless else self._server.node.keyspace
        assert feed is not None
        made = CopyMade(self._primary.replid, feed.offset, feed.db)
        file = None
        try:
            file = unnamed_file(self._directory)
            data = pieces(space, made, self._server.clock.wall_time(), version)
            if not keyless and can_fork():
                self._is_copying = True
                written = partial(self._written, file, made, version, waiting)
                begun = time.perf_counter()
                write_in_child(self._server.loop, file, data, written)
                self._primary.count_fork(round((time.perf_counter() - begun) * 1e6))
                self._greet_waiting()
                feed.forget_database()
                return
            file.writelines(data)
            file.flush()
        except (OSError, MemoryError) as error:
            self._is_copying = False
            self._no_file(file, str(error) or repr(error), waiting)
            return
        feed.forget_database()
        self._hand_out(Copy.of_file(made, file), waiting)

    def _written(self, file: "IO[bytes]", made: CopyMade, version: int, waiting: "list[Follower]", failed: str) -> None:
        """The child begun for some has ended; who has come since then shares what it wrote, not its failure."""
        self._is_copying = False
        if not failed:
            self._copied(Copy.of_file(made, file), partial(self._takes_file, version))
        else:
            self._no_file(file, failed, waiting)
            self._schedule()

    def _no_file(self, file: "IO[bytes] | None", reason: str, waiting: "list[Follower]") -> None:
        if file is not None:
            with contextlib.suppress(OSError):  # what is left is written before it is closed
                file.close()
        self._give_up(f"no file can be made for its copy: {reason}", waiting)

    def _order_copy(self, rewriter: "Rewriter | None", feed: "Feed", version: int) -> None:
        assert rewriter is not None
        try:
            file = unnamed_file(self._directory)
        except OSError as error:
            self._give_up(f"no file can be made for its copy: {error}", self._waiting())
            return
        call = self._server.loop.call_soon_threadsafe

        def made(copy: CopyMade | str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                call(self._rewritten, file, copy, version)

        if rewriter.start(priority=0, copy=CopyOrder(file, version, made)):
            self._is_copying = feed.selects = True
            self._greet_waiting()
        else:  # a rewriting is under way: the next look tries again
            file.close()

    def _rewritten(self, file: "IO[bytes]", made: CopyMade | str, version: int) -> None:
        """The process that rewrites the log has made a copy, or has not, for a reason."""
        self._is_copying = False
        if self._feed is not None:
            self._feed.selects = False
        if isinstance(made, str):
            file.close()
            self._give_up(f"its copy could not be made: {made}", self._waiting())
        else:
            self._copied(Copy.of_file(made, file), partial(self._takes_file, version))

    def _takes_file(self, version: int, follower: "Follower") -> bool:
        return not follower.keyless and self._version(follower) == version

    def _takes_log(self, follower: "Follower") -> bool:
        return follower.reads_log and not (follower.keyless or follower.copy_only)

    def _is_small(self, kept: "Log") -> bool:
        """Behind the snapshot there may be what is out of date: is it little, in few files? Else it is rewritten."""
        is_recent = kept.total_bytes - kept.snapshot_bytes <= kept.snapshot_bytes + MOST_BEHIND
        return is_recent and kept.count + sum(copy.files for copy in set(self._copies.values())) <= MOST_FILES

    def _order_log(self, kept: "Log") -> None:
        """The files of the log, up to what is in memory now, once that is kept."""
        history = self._server.node.keyspace.history  # as the records say it: a question that none counts is behind it
        self._moment = CopyMade(history.replid, history.offset, history.db), kept.appended
        self._is_copying = True
        self._greet_waiting()
        self._open_log()

    def _open_log(self) -> None:
        """Have the files opened, in a thread: who writes them holds the log for as long as its disk takes."""
        if self._moment is None:
            return
        made, position = self._moment
        if self._server.gate.kept < position:
            self._server.gate.watchers[self] = None
            return
        self._moment = None
        try:
            self._server.loop.run_in_executor(None, self._open_files, made, position)
        except RuntimeError as error:  # no more threads can be started
            self._opened(made, StorageError(str(error)))

    def _open_files(self, made: CopyMade, position: int) -> None:
        assert self._log is not None
        found: LogFiles | StorageError | UsageError
        try:
            found = self._log.files(position)
        except (StorageError, UsageError) as error:
            found = error
        except Exception as error:  # memory ends, or a defect: nobody else would say that no copy is made
            log.exception("internal error while the log was opened for replicas")
            found = StorageError(repr(error))
        try:
            self._server.loop.call_soon_threadsafe(self._opened, made, found)
        except RuntimeError:  # the loop has ended
            if not isinstance(found, Exception):
                found.close()

    def _opened(self, made: CopyMade, found: "LogFiles | StorageError | UsageError") -> None:
        self._is_copying = False
        if isinstance(found, UsageError):  # the log was rewritten meanwhile: another one
            self._schedule()
        elif isinstance(found, DiskFullError) and self._feed is not None and (waiting := self._waiting()):
            self._order_rdb(self._feed, waiting)  # there are not descriptors for all its files: this takes one
        elif isinstance(found, StorageError):
            self._give_up(
                f"its copy could not be made: {found}", [each for each in self._waiting() if self._takes_log(each)]
            )
        else:
            self._copied(Copy.of_log(made, found), self._takes_log)

    def _copied(self, copy: Copy, takes: "Callable[[Follower], bool]") -> None:
        """There is a copy, for all that wait for such a one by now."""
        feed, made = self._feed, copy.made
        if feed is None:  # the server stops, or nobody follows any more
            copy.close()
            return
        feed.forget_database()
        if not made.replid:
            copy.close()
            self._give_up("this server knows no more of which history its data are", self._waiting())
        elif made.replid != self._primary.replid:  # who had ordered it was cut with that: the next look orders another
            copy.close()
        elif feed.backlog.has(made.offset):
            self._hand_out(copy, list(filter(takes, self._waiting())))
            self._run()
        else:  # who had ordered it is gone, and with it the bytes behind the copy: another one
            copy.close()
            self._schedule()

    def _hand_out(self, copy: Copy, waiting: "list[Follower]") -> None:
        self._failed, self._not_before = 0, 0.0
        self._primary.count_copy(self._server.clock.now().mono - self._ordered_at, copy.size)
        if waiting:
            names = ", ".join(f"{each.ip}:{each.port}" for each in waiting)
            log.info("a copy of %d bytes, %s, goes to replica %s", copy.size, copy.form, names)
        for follower in waiting:
            copy.add(follower.id)
            self._copies[follower.id] = copy
            follower.stage, follower.cursor = "send_bulk", copy.made.offset
            connection = self._server.connection_of(follower.id)
            if connection is not None:
                head = b"" if follower.is_old else f"+FULLRESYNC {copy.made.replid} {copy.made.offset}\r\n".encode()
                connection.push(head + b"$%d\r\n" % copy.size)
        if not waiting:
            copy.drop(0)

    def _give_up(self, reason: str, waiting: "list[Follower]") -> None:
        """No copy could be made: those it was for are sent away, and whoever comes waits, ever longer."""
        self._failed += 1
        self._not_before = self._server.loop.time() + copy_pause(self._failed)
        for follower in waiting:
            self._cut(follower, reason)

    # ------------------------------------------------------------------ time

    def _look(self) -> None:
        self._timer = None
        try:
            self._look_after()
        except StorageError as error:
            self._server.fail(error)
            return
        except Exception:  # nobody else would look again
            log.exception("internal error while looking after replicas")
        self._feed = self._primary.feed
        if self._feed is not None:
            self._timer = self._server.loop.call_later(_LOOK, self._look)
            self._schedule()
        self._server.after_commands()

    def _look_after(self) -> None:
        for follower in self._primary.tick(self._server.clock.now()):
            self._cut(follower, "it was silent for too long")
        for follower in self._stalled():
            self._cut(follower, "it took nothing of its copy for too long")
        self._greet_waiting()

    def _stalled(self) -> "list[Follower]":
        """Those to be sent away for their copies' sake: the files of each are on the disk, removed or not."""
        now, before, stalled = self._server.clock.now().mono, self._taken, []
        self._taken = {}
        for follower in self._primary.followers:
            copy, connection = self._copies.get(follower.id), self._server.connection_of(follower.id)
            if copy is None or connection is None:
                continue
            taken = copy.place(follower.id) - connection.unsent
            last, since = before.get(follower.id, (-1, now))
            self._taken[follower.id] = taken, since if taken == last else now
            if taken == last and now - since > self._server.node.config.repl_timeout * 1000:
                stalled.append(follower)
        return stalled

    def _greet_waiting(self) -> None:
        """Say that a copy is being made: so they make ready for it, and do not think that we are gone."""
        for follower in self._waiting():
            if (connection := self._server.connection_of(follower.id)) is not None:
                connection.push(b"\n")

    def stop(self) -> None:
        """Send what may be sent, and close."""
        self.pump()
        if self._timer is not None:
            self._timer.cancel()
        for follower in self._primary.followers:
            if (connection := self._server.connection_of(follower.id)) is not None:
                connection.finish()
        self._feed = None
