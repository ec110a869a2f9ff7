"""The server itself as commands see it, apart from the keys: its clients, its counters, its log, its end.

Commands know it as ``ctx.host``; what a command does to keys goes through its context, and never through here.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.clock import Now
from millstream.commands.admin.info import render
from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.node.durability.outage import Outage
from millstream.node.journal import Journal
from millstream.node.log import rebuilding
from millstream.node.log.rewriting import Rewriter
from millstream.node.primary import Primary

if TYPE_CHECKING:
    from millstream.node.admission import Admission
    from millstream.node.clients.sessions import Sessions
    from millstream.node.facts import NodeFacts
    from millstream.node.following.failover import Failover
    from millstream.node.following.role import Following
    from millstream.node.following.shutdown import Shutdown


class NodeHost:
    """See the module's text."""

    def __init__(
        self,
        config: Config,
        facts: "NodeFacts",
        journal: Journal,
        admission: "Admission",
        failover: "Failover",
        ending: "Shutdown",
    ) -> None:
        sessions: Sessions = facts.sessions
        self._facts, self._journal, self._sessions = facts, journal, sessions
        self.config = config
        self.accounts = facts.accounts
        self.keyspace = facts.keyspace
        self.scripts = facts.scripts
        self.replication: Primary = facts.primary
        self.following: Following = facts.following
        self.failover: Failover = failover
        self.ending: Shutdown = ending
        self.lookups = facts.stats.lookups
        self.channels, self.patterns, self.watches = sessions.channels, sessions.patterns, sessions.watches
        self.publish, self.kill, self.unblock = sessions.publish, sessions.kill, sessions.unblock
        self.wake = sessions.waits.wake
        self.weigh = journal.weight.add
        self.refusal, self.note_refusal = admission.refusal, admission.note_refusal
        self.slowlog = sessions.slowlog
        self.rewriter: Rewriter | None = None  # Makes the log smaller; the shell provides it where there is a log
        self.wall = self.mono = 0

    @property
    def outage(self) -> Outage | None:
        """Why nothing may be written now, None if it may."""
        return self._journal.outage

    # ------------------------------------------------------------------ clients

    def sessions(self) -> Iterator[Session]:
        """Every open session, oldest first."""
        return iter(self._sessions)

    def concerned(self, db: int) -> list[bytes]:
        """The keys of a database that clients watch or wait for."""
        places = (self.watches, self._sessions.waits.lines.places())
        return [key for each in places for index, key in each if index == db]

    @property
    def is_paused(self) -> bool:
        """True if clients are paused."""
        return self._sessions.pause.ends is not None

    def pause(self, milliseconds: int, now: Now, *, writes_only: bool) -> None:
        """CLIENT PAUSE: hold back what comes."""
        self._sessions.pause.begin(milliseconds, now, writes_only=writes_only)
        if writes_only:
            self._sessions.release_held()

    def unpause(self, now: Now) -> None:
        """CLIENT UNPAUSE: who writes is held back all the same for a failover or a shutdown."""
        self._sessions.unpause(now)

    # ------------------------------------------------------------------ counters

    def info(self, sections: list[str]) -> str:
        """The text of INFO."""
        return render(sections, self._facts.gather(self.wall, self.mono))

    def reset_stats(self) -> None:
        """CONFIG RESETSTAT."""
        self._facts.reset()

    # ------------------------------------------------------------------ the log

    def last_save(self) -> int:
        """LASTSAVE."""
        return self._facts.last_save()

    def save(self) -> bool:
        """SAVE: bring everything to the disk; False if nothing is kept."""
        is_kept = self._journal.save(self.wall)
        if is_kept:
            self._facts.stats.dirty = 0
        return is_kept

    def rewrite(self) -> bool | None:
        """BGREWRITEAOF: begin to rewrite the log; False if that is under way, None if nothing is kept."""
        return None if self.rewriter is None else self.rewriter.start()

    def rebuild(self, *, from_log: bool) -> list[bytes] | None:
        """DEBUG RELOAD and LOADAOF: make the keyspace again, if that gives the same.

        Returns:
            Keys that would not be the same, in which case nothing is changed; None if there is no log.
        """
        log = self._journal.log
        if not from_log:
            fresh = rebuilding.from_dumps(self.keyspace)
        elif log is None:
            return None
        else:
            fresh = rebuilding.from_log(log.replay())
        found = rebuilding.differing(self.keyspace, fresh)
        if not found:
            rebuilding.adopt(self.keyspace, fresh)
            self._sessions.waits.wake_all()
        return found
