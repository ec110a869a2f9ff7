"""A primary's copy replaces a replica's data: another process reads and checks it, then one step swaps it in.

If there is a log, the new snapshot becomes that log by one rename; a crash before it leaves the old data with their old
history. Without a log, a log in a temporary directory does the same work.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import IO

from millstream.commands.context.config import Config
from millstream.errors import StorageError
from millstream.node.log import codec
from millstream.node.log.children import GivenUpError
from millstream.node.log.foreign import PackList
from millstream.node.log.rewriting import Commit, Rewriter, TakeOrder
from millstream.node.log.taking import NOT_HELD
from millstream.node.obeying import NotHeldError
from millstream.persistence.log import Log
from millstream.replication.handshake import CopyBegins
from millstream.server.following.files import passing_directory
from millstream.server.serving import Serving

# Seconds between two checks whether a running rewriting has ended
_BUSY = 0.05


class _PassingLog:
    """A temporary log, while a server without one takes over a copy."""

    def __init__(self, config: Config) -> None:
        self._directory = passing_directory()
        self._log, _ = Log.open(self._directory.name)
        self._log.append(codec.pack(0, []))  # a snapshot must replace at least one record
        self.rewriter = Rewriter(self._log, config)

    def close(self) -> None:
        """Delete the temporary log."""
        self.rewriter.stop()
        self._log.close()
        self._directory.cleanup()


class Taking:
    """One copy that replaces the data; its constructor starts a process that reads it while it arrives."""

    def __init__(self, server: Serving, file: IO[bytes], token: str, primary: tuple[str, int]) -> None:
        self._server = server
        self._following = server.node.following
        self._is_cancelled = self._is_ordered = False
        self._begins: CopyBegins | None = None
        self._end: asyncio.Future[None] = server.loop.create_future()
        config = server.node.config
        words = token, *primary, config.idmp_duration, config.idmp_maxsize
        self._passing, rewriter = None, server.rewriter
        if rewriter is None:
            self._passing = _PassingLog(config)
            rewriter = self._passing.rewriter
        self._rewriter = rewriter
        try:
            self._child = rewriter.reader(file, tuple(map(str, words)))
        except OSError as error:
            if self._passing is not None:
                self._passing.close()
            raise GivenUpError(f"the process that reads a primary's copy cannot be started: {error}") from error

    def arrived(self, size: int) -> bool:
        """Note that this many bytes of the copy are in its file; return False if its reader has ended."""
        return self._child.hint(str(size))

    async def take(self, begins: CopyBegins) -> None:
        """Replace the data by the copy, which is complete in its file."""
        following, rewriter = self._following, self._rewriter
        self._begins = begins
        order = TakeOrder(self._child, (begins.replid, begins.offset), self._swap, self._failed)
        try:
            following.begin_taking(self._server.clock.wall_time())
            while not rewriter.start(priority=0, take=order):
                await asyncio.sleep(_BUSY)  # another rewriting is running
                following.begin_taking(self._server.clock.wall_time())
            self._is_ordered = True
            await self._end
        except GivenUpError as error:
            if error.code == NOT_HELD:
                raise NotHeldError(f"{error}, as of offset {begins.offset}") from None
            raise
        finally:
            self._is_cancelled = True
            following.is_taking = False
            self._server.after_commands()

    async def close(self) -> None:
        """End the work, also for a copy that was not used."""
        self._is_cancelled = True
        self._child.kill()
        # Started at once, not as a task: the loop may end before a task's first turn, and files would stay open
        await asyncio.shield(self._server.loop.run_in_executor(None, self._clear))

    def _clear(self) -> None:
        if not self._is_ordered:
            self._child.close()
        if self._passing is not None:
            self._passing.close()

    # ------------------------------------------------------------------ in the thread of the rewriting

    def _swap(self, payloads: Iterator[bytes], packs: PackList, commit: Commit) -> None:
        assert self._begins is not None
        adopt = self._following.prepared(payloads, self._begins, packs)
        done: Future[None] = Future()
        self._server.loop.call_soon_threadsafe(self._adopt, adopt, commit, done)
        done.result()

    def _failed(self, error: StorageError | OSError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._server.loop.call_soon_threadsafe(self._end_with, error)

    # ------------------------------------------------------------------ in the loop

    def _adopt(self, adopt: Callable[[int], None], commit: Commit, done: Future[None]) -> None:
        """Make the new snapshot the log and the data, in one step."""
        try:
            # The waiting task may already be cancelled without having run since
            if not (self._is_cancelled or self._end.done()):
                commit(lambda: adopt(self._server.clock.now().mono))
                self._end_with(None)
            done.set_result(None)
        except BaseException as error:  # noqa: BLE001 - the thread raises it
            own = self._server.node.journal.log
            if isinstance(error, StorageError) and own is not None and own.is_poisoned:
                self._server.fail(error)  # at once: no command may see data that are not those of the log
            done.set_exception(error)

    def _end_with(self, error: Exception | None) -> None:
        if self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)
