"""The server's shell of spilling: turns of the event loop, and one timer."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

from millstream.errors import StorageError
from millstream.logs import logger
from millstream.node.maintenance.joining import join_tier
from millstream.node.tiering.spilling import Spiller
from millstream.persistence.disk import DiskFile, allow_files
from millstream.persistence.log import Log
from millstream.persistence.manifest import PackEntry
from millstream.server.serving import Serving

log = logger("millstream.server")

# Seconds from a change of data to the next look, at most
_PACE = 0.05


class Spilling:
    """Runs a server's spiller."""

    def __init__(self, server: Serving, opened: Log) -> None:
        assert server.committer is not None
        self._server = server
        self._loop = server.loop
        self.spiller = Spiller(server.node, opened, exclusively=server.committer.exclusively, wake=self._wake)
        join_tier(server.node, opened, self.spiller)
        self._log = opened
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # loop time
        self._is_in_turn = False

    def _wake(self) -> None:
        """Run a turn soon; called in the spiller's thread."""
        self._loop.call_soon_threadsafe(self._run)

    @contextlib.contextmanager
    def taking(self, packs: Sequence[PackEntry]) -> Iterator[Callable[[], None]]:
        """Open the packs of a primary's copy, and wait until no other is written; see ``KeyspacePacks``."""
        opened: list[tuple[int, str, DiskFile]] = []
        allow_files(len(packs))  # beside those that are open now
        try:
            opened.extend((each.number, each.name, self._log.open_pack(each.name)) for each in packs)
            self.spiller.background.wait()
            yield lambda: self._begin_again(opened)
        finally:
            for *_, file in opened:  # unless they were taken over
                file.close()

    def _begin_again(self, opened: list[tuple[int, str, DiskFile]]) -> None:
        self._server.node.cold.replace_packs(opened)
        self.spiller.begin_again()

    def poke(self) -> None:
        """Look soon, since data may have changed."""
        node = self._server.node
        if self._is_in_turn or not (node.config.tier or node.spills is not None):
            return
        if self._timer is None or self._timer_at > self._loop.time() + _PACE:
            self._set(_PACE)

    def _set(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._run)

    def _run(self) -> None:
        """Run a turn. A defect there is logged and tried again later, so that it does not end the server."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        server, self._is_in_turn = self._server, True
        try:
            seconds = self.spiller.turn(server.clock.now())
            server.after_commands()
        except StorageError as error:
            server.fail(error)
            return
        except Exception:
            log.exception("internal error while entries were moved to files")
            server.facts.internal_errors += 1
            seconds = server.settings.delays.after_error
        finally:
            self._is_in_turn = False
        if seconds is not None:
            self._set(seconds)

    def stop(self) -> None:
        """End the work; called in another thread, since its thread may wait for a job of the committer."""
        self.spiller.stop()

    def stop_timer(self) -> None:
        """Run no more turns."""
        if self._timer is not None:
            self._timer.cancel()
