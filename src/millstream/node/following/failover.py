"""FAILOVER: a primary makes a replica with all its data the new primary, and follows it.

Writers are held back until the replica has reported that it has all data. Then, with no command in between, this server
becomes its replica, and requests the change of roles with FAILOVER, the last argument of PSYNC. If it cannot reach the
replica, or the replica refuses, this server takes its role back. Without a reply the replica may have become primary.
So this server repeats the request, and stays a replica.

Source: https://redis.io/docs/latest/commands/failover/
"""

from millstream.clock import Now
from millstream.commands.context.context import LEADS_ALREADY
from millstream.errors import CommandError
from millstream.logs import logger
from millstream.node.clients.sessions import Sessions
from millstream.node.following.role import Following
from millstream.node.journal import Journal
from millstream.node.primary import NO_FAILOVER, Primary
from millstream.replication.followers import Follower

log = logger("millstream.node")

NONE, WAITING, ASKING = NO_FAILOVER, "waiting-for-sync", "failover-in-progress"
"""States of a failover, with INFO's names."""

_PURPOSE = "failover"  # purpose for which writers are held back


class Failover:
    """The state and the steps of a failover."""

    def __init__(self, sessions: Sessions, journal: Journal, primary: Primary, following: Following) -> None:
        self._sessions, self._journal, self._primary, self._following = sessions, journal, primary, following
        self._target: tuple[str, int] | None = None
        self._ends: int | None = None
        self._by_force = False
        self.is_resumed = False  # True after a restart: the other server may have received the request before
        primary.heard.append(self._look)

    @property
    def is_under_way(self) -> bool:
        """True during a failover."""
        return self._primary.failover != NONE

    @property
    def is_asking(self) -> bool:
        """True if the server that is followed must still be requested to become the primary."""
        return self._primary.failover == ASKING

    def begin(self, target: tuple[str, int] | None, timeout: int | None, now: Now, *, by_force: bool) -> None:
        """Hold writers back until a replica can become the primary."""
        if self.is_under_way:
            raise CommandError("ERR FAILOVER already in progress.")
        if self._following.is_replica:
            raise CommandError("ERR FAILOVER is not valid when server is a replica.")
        if not self._primary.followers:
            raise CommandError("ERR FAILOVER requires connected replicas.")
        if by_force and (timeout is None or target is None):
            raise CommandError("ERR FAILOVER with force option requires both a timeout and target HOST and IP.")
        if target is not None:
            found = [each for each in self._primary.followers if (each.ip, each.port) == target]
            if not found:
                raise CommandError("ERR FAILOVER target HOST and PORT is not a replica.")
            if all(each.stage != "online" for each in found):
                raise CommandError("ERR FAILOVER target replica is not online.")
        self._target, self._by_force = target, by_force
        self._ends = None if timeout is None else now.mono + timeout
        self._primary.failover = WAITING
        self._sessions.pause.hold_writers(_PURPOSE, now)
        self._primary.ask(self._primary.written)

    def abort(self, now: Now) -> None:
        """FAILOVER ABORT: take writes again."""
        if not self.is_under_way:
            raise CommandError("ERR No failover in progress.")
        self.give_up("it was aborted", now)

    def give_up(self, reason: str, now: Now) -> None:
        """Take writes again, as the primary."""
        log.warning("the failover failed, and this server stays the primary: %s", reason)
        if self.is_asking:
            self._following.lead(now)
            self._journal.flush(now.wall)
        self._end(now)

    def not_led(self, reason: str, now: Now, *, may_lead: bool) -> None:
        """Handle the loss of the link before the other server confirmed that it is the primary."""
        if reason == LEADS_ALREADY:
            self.done(now)  # because of an earlier request whose reply was lost, or of another client's command
        elif not may_lead:
            self.give_up(reason, now)

    def resume(self) -> None:
        """Repeat the request to another server after a restart, since that server may be the primary by now."""
        if self._following.hands_over:
            self._primary.failover, self.is_resumed = ASKING, True

    def done(self, now: Now) -> None:
        """Finish: the other server is the primary, and held writers get the error of a replica."""
        if self.is_under_way:
            self._following.led()
            self._journal.flush(now.wall)
            self._end(now)
            log.info("failover: the replica is the primary now, and this server follows it")

    def _end(self, now: Now) -> None:
        self._primary.failover, self._target, self._ends = NONE, None, None
        self.is_resumed = False
        self._sessions.let_writers_go(_PURPOSE, now)

    def _look(self, now: Now) -> None:
        """Continue a failover after a replica's report, or after some time."""
        if self._primary.failover != WAITING:
            return
        chosen = next((each for each in self._candidates() if each.acked >= self._primary.offset), None)
        if chosen is not None:
            self._switch((chosen.ip, chosen.port), now)
        elif self._ends is not None and self._ends <= now.mono:
            if self._by_force and self._target is not None:
                self._switch(self._target, now)
            else:
                self.give_up("no replica caught up in time", now)

    def _candidates(self) -> list[Follower]:
        return [each for each in self._primary.followers.online if self._target in (None, (each.ip, each.port))]

    def _switch(self, place: tuple[str, int], now: Now) -> None:
        log.info("failover: %s:%d becomes the primary at offset %d", *place, self._primary.offset)
        self._primary.failover = ASKING
        self._following.follow(*place, now, hands_over=True)
        self._journal.flush(now.wall)
