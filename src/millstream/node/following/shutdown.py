"""SHUTDOWN and SIGTERM: the end waits for replicas that lag, up to ``shutdown-timeout``.

Writers are held back meanwhile, so that replicas can catch up. Each replica then gets as many of the remaining bytes as
its connection takes. The log names the replicas that lagged, with Redis's text.

Source: https://redis.io/docs/latest/commands/shutdown/
"""

from millstream.clock import Now
from millstream.commands.context.config import Config
from millstream.logs import logger
from millstream.node.clients.sessions import Sessions
from millstream.node.primary import Primary
from millstream.replication.followers import Follower

log = logger("millstream.node")

_PURPOSE = "shutdown"  # purpose for which writers are held back


class Shutdown:
    """The wait for replicas before the end of the process."""

    def __init__(self, config: Config, sessions: Sessions, primary: Primary) -> None:
        self._config, self._sessions, self._primary = config, sessions, primary
        self._ends: int | None = None
        self._needed = 0  # offset that replicas must reach
        self.is_due = False  # The shell must end the process now
        primary.heard.append(self._look)

    @property
    def is_waiting(self) -> bool:
        """True from :meth:`begin` until the end or an abort."""
        return self._ends is not None

    def left(self, mono: int) -> int | None:
        """Milliseconds left to wait at most, at a monotonic time in milliseconds; None if it does not wait."""
        return None if self._ends is None else max(self._ends - mono, 0)

    def begin(self, now: Now, *, at_once: bool) -> bool:
        """End the process, or wait for replicas first; report whether it ends at once."""
        if self.is_waiting:
            return False
        log.info("User requested shutdown...")
        self._needed = self._primary.offset
        if at_once or not self._config.shutdown_timeout or not self._lagging():
            self._finish()
            return True
        self._ends = now.mono + self._config.shutdown_timeout * 1000
        self._primary.ask(self._needed)
        self._sessions.pause.hold_writers(_PURPOSE, now)
        log.info("Waiting for replicas before shutting down.")
        return False

    def abort(self, now: Now) -> bool:
        """Continue to serve; return False if there is nothing to abort."""
        if not self.is_waiting:
            return False
        self._ends = None
        self._sessions.answer_fulfilled(now.wall)
        self._sessions.let_writers_go(_PURPOSE, now)
        log.info("Shutdown manually aborted.")
        return True

    def _lagging(self) -> list[Follower]:
        return [each for each in self._primary.followers if each.acked < self._needed]

    def _look(self, now: Now) -> None:
        """Check for the end of the wait, after a replica's report or some time."""
        if self._ends is not None and not self.is_due and (now.mono >= self._ends or not self._lagging()):
            self._finish()

    def _finish(self) -> None:
        count, lagging = len(list(self._primary.followers)), self._lagging()
        for each in lagging:
            log.warning(
                "Lagging replica %s:%d reported offset %d behind master, lag=%d, state=%s.",
                each.ip,
                each.port,
                self._needed - max(each.acked, 0),
                each.lag(self._primary.mono) if each.stage == "online" else 0,
                each.stage,
            )
        if count:
            log.info("%d of %d replicas are in sync when shutting down.", count - len(lagging), count)
        self.is_due = True
