"""Making the copies with which replicas begin; ``replicas`` sends them.

A Millstream replica gets the log's files unchanged, unless much in them is out of date. For any other replica, the
process that rewrites the log makes a copy from the same sealed files, in a file without a name. Replicas that connect
meanwhile share it. Without a data directory, a forked child makes the copy from the memory of that moment.
"""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import IO

from millstream.errors import DiskFullError, StorageError, UsageError
from millstream.logs import logger
from millstream.node.log.children import reason_of
from millstream.node.log.copying import NO_KEYS, pieces
from millstream.node.log.feeding import Feed
from millstream.node.log.rewriting import CopyMade, CopyOrder
from millstream.persistence.log import Log
from millstream.persistence.segment import LogFiles
from millstream.replication.dialect import COPIES, DIALECTS
from millstream.replication.followers import Follower
from millstream.server.connection import Clients
from millstream.server.following.files import unnamed_file
from millstream.server.following.pauses import copy_pause
from millstream.server.leading.copies import Copy
from millstream.server.leading.forking import can_fork, write_in_child
from millstream.server.serving import Serving

log = logger("millstream.server")

MOST_BEHIND = 128 * 1024 * 1024
"""Bytes by which the records after a log's snapshot may exceed it if the log is sent unchanged."""
MOST_FILES = 64
"""Largest number of open files of all copies at which another log is sent: a slow replica keeps its files open."""


class CopyMaker:
    """Makes copies for the replicas that wait for one."""

    def __init__(self, server: Serving, clients: Clients, kept: Log | None, schedule: Callable[[], None]) -> None:
        self._server, self._clients, self._log = server, clients, kept
        self._schedule = schedule  # schedules a check of the replicas
        self._rewriter, self._directory = server.rewriter, server.settings.directory
        self.feed: Feed | None = None  # Builds the stream; None if there is none, or the server is stopping
        self.copies: dict[int, Copy] = {}  # Copies being sent, by session id
        self._primary = server.node.primary
        self._is_copying = False
        self._failed = 0  # number of successive copies that failed
        self._not_before = 0.0  # loop time before which no copy is made
        self._ordered_at = 0  # monotonic milliseconds at which the present copy was requested
        # A copy of the log to make, the position to keep first, and the packs that its replicas have (None: no packs)
        self._moment: tuple[CopyMade, int, frozenset[str] | None] | None = None

    def waiting(self) -> list[Follower]:
        """The replicas that wait for a copy."""
        return [each for each in self._primary.followers if each.stage == "wait_bgsave"]

    def _version(self, follower: Follower) -> int:
        """The version of the RDB file that a replica gets as its copy."""
        return COPIES[DIALECTS[-1] if follower.is_ours else self._server.node.config.dialect]

    def start(self) -> None:
        """Start copies for the replicas that wait for one."""
        if self.feed is None or self._is_copying or not (waiting := self.waiting()):
            return
        if self._server.loop.time() < self._not_before:  # waiting replicas get a message each second, so the link stays
            return
        self._ordered_at = self._server.clock.now().mono
        having = self._having(waiting)
        if self._log is None or not any(self._takes_log(having, each) for each in waiting):
            self._order_rdb(self.feed, waiting)
        elif having is not None and not self._has_descriptors(self._log):
            return  # an RDB file would bring all entries of packs to the replica's memory: wait for another copy's end
        elif having is not None or self._is_small(self._log):
            self._order_log(self._log, having)
        else:
            self._order_rdb(self.feed, waiting)

    def _order_rdb(self, feed: Feed, waiting: list[Follower]) -> None:
        """Order an RDB file, of the version that the first waiting replica reads."""
        version = self._version(waiting[0])  # replicas with another version are served next
        waiting = [each for each in waiting if self._version(each) == version]
        keyless = [each for each in waiting if each.keyless]
        if keyless:
            self._copy_at_once(keyless, version, keyless=True)
            waiting = [each for each in waiting if not each.keyless]
        if waiting and self._rewriter is None:
            self._copy_at_once(waiting, version)
        elif waiting:
            self._order_copy(feed, version)

    def _copy_at_once(self, waiting: list[Follower], version: int, *, keyless: bool = False) -> None:
        """Copy the data in memory at this moment: by a forked child, or here if forking is not possible."""
        feed, space = self.feed, NO_KEYS if keyless else self._server.node.keyspace
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
                self.greet_waiting()
                feed.forget_database()
                return
            file.writelines(data)
            file.flush()
        except (OSError, MemoryError) as error:
            self._is_copying = False
            self._no_file(file, reason_of(error, "a copy"), waiting)
            return
        feed.forget_database()
        self._hand_out(Copy.of_file(made, file), waiting)

    def _written(self, file: IO[bytes], made: CopyMade, version: int, waiting: list[Follower], failed: str) -> None:
        """Handle the end of a child's copy; replicas that joined later share its file, but not its failure."""
        self._is_copying = False
        if not failed:
            self._copied(Copy.of_file(made, file), partial(self._takes_file, version))
        else:
            self._no_file(file, failed, waiting)
            self._schedule()

    def _no_file(self, file: IO[bytes] | None, reason: str, waiting: list[Follower]) -> None:
        if file is not None:
            with contextlib.suppress(OSError):  # closing also writes the buffer, which may fail
                file.close()
        self.give_up(f"no file can be made for its copy: {reason}", waiting)

    def _order_copy(self, feed: Feed, version: int) -> None:
        assert self._rewriter is not None
        if self._rewriter.facts.is_running:  # the next check retries
            return
        try:
            file = unnamed_file(self._directory)
        except OSError as error:
            self.give_up(f"no file can be made for its copy: {error}", self.waiting())
            return
        call = self._server.loop.call_soon_threadsafe

        def made(copy: CopyMade | str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                call(self._rewritten, file, copy, version)

        if self._rewriter.start(priority=0, copy=CopyOrder(file, version, made)):
            self._is_copying = feed.selects = True
            self.greet_waiting()
        else:  # the rewriter has stopped
            file.close()

    def _rewritten(self, file: IO[bytes], made: CopyMade | str, version: int) -> None:
        """Handle the copy of the process that rewrites the log, or the reason for its failure."""
        self._is_copying = False
        if self.feed is not None:
            self.feed.selects = False
        if isinstance(made, str):
            file.close()
            self.give_up(f"its copy could not be made: {made}", self.waiting())
        else:
            self._copied(Copy.of_file(made, file), partial(self._takes_file, version))

    def _takes_file(self, version: int, follower: Follower) -> bool:
        return not follower.keyless and self._version(follower) == version

    def _having(self, waiting: list[Follower]) -> frozenset[str] | None:
        """Return the packs of the first replica that can read a log with packs; None if the log has none."""
        if self._log is None or not self._log.packs:
            return None
        return next((each.packs for each in waiting if self._takes_log(each.packs, each)), frozenset())

    def _takes_log(self, having: frozenset[str] | None, follower: Follower) -> bool:
        """True if a replica can load a log without packs (None), or one that lacks just these packs."""
        reads = follower.reads_log if having is None else follower.reads_packs and follower.packs == having
        return reads and not (follower.keyless or follower.copy_only)

    def _is_small(self, kept: Log) -> bool:
        """True if the records after the snapshot are few, in few files; otherwise the log is rewritten."""
        is_recent = kept.total_bytes - kept.snapshot_bytes <= kept.snapshot_bytes + MOST_BEHIND
        return is_recent and kept.count + self._open_files() <= MOST_FILES

    def _open_files(self) -> int:
        return sum(copy.files for copy in set(self.copies.values()))

    def _has_descriptors(self, kept: Log) -> bool:
        """True if other copies leave enough descriptors for one of the log; the first copy gets them in any case."""
        return not self._open_files() or kept.count + self._open_files() <= MOST_FILES

    def _order_log(self, kept: Log, having: frozenset[str] | None) -> None:
        """Order a copy of the log's files, up to the present data, once the log has kept them."""
        history = self._server.node.keyspace.history  # as in the records, without an uncounted request after them
        self._moment = CopyMade(history.replid, history.offset, history.db), kept.appended, having
        self._is_copying = True
        self.greet_waiting()
        self._open_log()

    def release(self) -> None:
        """Open the log's files, if the log has come far enough for an ordered copy."""
        self._server.gate.watchers.pop(self, None)
        self._open_log()

    def _open_log(self) -> None:
        """Open the files in a thread, since their writer locks the log as long as the disk takes."""
        if self._moment is None:
            return
        made, position, having = self._moment
        if self._server.gate.kept < position:
            self._server.gate.watchers[self] = None
            return
        self._moment = None
        try:
            self._server.loop.run_in_executor(None, self._open_log_files, made, position, having)
        except RuntimeError as error:  # no more threads can be started
            self._opened(made, having, StorageError(str(error)))

    def _open_log_files(self, made: CopyMade, position: int, having: frozenset[str] | None) -> None:
        assert self._log is not None
        found: LogFiles | StorageError | UsageError
        try:
            found = self._log.files(position, having)
        except (StorageError, UsageError) as error:
            found = error
        except Exception as error:  # memory ran out, or a defect: no other code would report the missing copy
            log.exception("internal error while the log was opened for replicas")
            found = StorageError(reason_of(error, "a copy"))
        try:
            self._server.loop.call_soon_threadsafe(self._opened, made, having, found)
        except RuntimeError:  # the loop has ended
            if not isinstance(found, Exception):
                found.close()

    def _opened(
        self, made: CopyMade, having: frozenset[str] | None, found: LogFiles | StorageError | UsageError
    ) -> None:
        self._is_copying = False
        takes, is_packed = partial(self._takes_log, having), having is not None
        if isinstance(found, UsageError):  # the log was rewritten meanwhile, so make another copy
            self._schedule()
        elif (
            isinstance(found, DiskFullError) and not is_packed and self.feed is not None and (waiting := self.waiting())
        ):
            self._order_rdb(self.feed, waiting)  # too few descriptors for the log's files; this copy needs only one
        elif isinstance(found, StorageError):
            self.give_up(f"its copy could not be made: {found}", list(filter(takes, self.waiting())))
        else:
            assert self._log is not None
            try:
                copy = Copy.of_log(made, found, self._log.open_pack)
            except MemoryError as error:
                found.close()
                self._opened(made, having, StorageError(reason_of(error, "a copy")))
                return
            self._copied(copy, takes)

    def _copied(self, copy: Copy, takes: Callable[[Follower], bool]) -> None:
        """Give a finished copy to all replicas that wait for one of its kind."""
        feed, made = self.feed, copy.made
        if feed is None:  # the server is stopping, or there are no more replicas
            copy.close()
            return
        feed.forget_database()
        if not made.replid:
            copy.close()
            self.give_up("this server does not know the history of its data any more", self.waiting())
        elif made.replid != self._primary.replid:  # its replica was disconnected; the next check requests another copy
            copy.close()
        elif feed.backlog.has(made.offset):
            self._hand_out(copy, list(filter(takes, self.waiting())))
            self._schedule()
        else:  # the replica that requested it is gone, and so are the bytes after the copy: make another one
            copy.close()
            self._schedule()

    def sent(self) -> None:
        """Note that a replica was sent its whole copy: so the next copy need not wait."""
        self._failed, self._not_before = 0, 0.0

    def _hand_out(self, copy: Copy, waiting: list[Follower]) -> None:
        self._primary.count_copy(self._server.clock.now().mono - self._ordered_at, copy.size)
        if waiting:
            names = ", ".join(f"{each.ip}:{each.port}" for each in waiting)
            log.info("a copy of %d bytes, %s, goes to replica %s", copy.size, copy.form, names)
        for follower in waiting:
            copy.add(follower.id)
            self.copies[follower.id] = copy
            follower.stage, follower.cursor = "send_bulk", copy.made.offset
            connection = self._clients.by_id.get(follower.id)
            if connection is not None:
                head = b"" if follower.is_old else f"+FULLRESYNC {copy.made.replid} {copy.made.offset}\r\n".encode()
                connection.push(head + b"$%d\r\n" % copy.size)
        if not waiting:
            copy.drop(0)

    def give_up(self, reason: str, waiting: list[Follower]) -> None:
        """Disconnect the replicas of a copy that failed; new ones wait longer after each failure."""
        self._failed += 1
        self._not_before = self._server.loop.time() + copy_pause(self._failed)
        for follower in waiting:
            self.cut(follower, reason)

    def cut(self, follower: Follower, reason: str) -> None:
        """Disconnect a replica."""
        connection = self._clients.by_id.get(follower.id)
        if connection is not None:
            log.warning("closing replica %s:%d, since %s", follower.ip, follower.port, reason)
            connection.abort()

    def greet_waiting(self) -> None:
        """Notify waiting replicas that a copy is being made, so that they prepare for it and do not time out."""
        for follower in self.waiting():
            if (connection := self._clients.by_id.get(follower.id)) is not None:
                connection.push(b"\n")
