"""The host of a node's commands: the server as all commands see it, and the node's parts for ``node/commands/``."""

from collections.abc import Callable

from millstream.clock import Now
from millstream.commands.admin.info import render
from millstream.commands.context.config import Config
from millstream.commands.context.context import Context
from millstream.commands.context.host import Host
from millstream.node.admission import Admission
from millstream.node.facts import NodeFacts
from millstream.node.following.failover import Failover
from millstream.node.journal import Journal
from millstream.node.log import rebuilding
from millstream.node.log.rewriting import Rewriter


class NodeHost(Host):
    """Gives commands access to the node that runs them."""

    def __init__(
        self, config: Config, facts: NodeFacts, journal: Journal, admission: Admission, failover: Failover
    ) -> None:
        sessions, primary, pause = facts.sessions, facts.primary, facts.sessions.pause
        super().__init__(
            config=config,
            accounts=facts.accounts,
            keyspace=facts.keyspace,
            lookups=facts.stats.lookups,
            slowlog=sessions.slowlog,
            watches=sessions.watches,
            channels=sessions.channels,
            patterns=sessions.patterns,
            sessions=sessions,
            wake=sessions.waits.wake,
            weigh=journal.weight.add,
            publish=primary.publish,
            kill=sessions.kill,
            unblock=sessions.unblock,
            hold=sessions.hold,
            unpause=sessions.unpause,
            concerned=sessions.concerned,
            note_refusal=admission.note_refusal,
            keeps_expired=lambda: journal.outage is not None or pause.ends is not None or self.is_replica,
        )
        self._facts, self._journal, self._waits = facts, journal, sessions.waits
        self.replication, self.following, self.failover = primary, facts.following, failover
        self.scripts, self.ending = facts.scripts, facts.ending
        # Begins a vacuum of packs, False if one is in progress; the shell provides it if it moves entries to packs
        self.vacuum: Callable[[], bool] | None = None
        self.rewriter: Rewriter | None = None  # Rewrites the log; the shell provides it if there is a log

    @staticmethod
    def of(ctx: Context) -> "NodeHost":
        """Return the host of the node that runs a command."""
        assert isinstance(ctx.host, NodeHost)
        return ctx.host

    def info(self, sections: list[str], now: Now) -> str:
        """The text of INFO."""
        return render(sections, self._facts.gather(now.wall, now.mono))

    def reset_stats(self) -> None:
        """Reset the counters for CONFIG RESETSTAT."""
        self._facts.reset()

    def last_save(self) -> int:
        """Return the time for LASTSAVE."""
        return self._facts.last_save()

    def save(self, wall: int) -> bool:
        """SAVE: bring everything to the disk; return False without a data directory."""
        is_kept = self._journal.save(wall)
        if is_kept:
            self._facts.stats.dirty = 0
        return is_kept

    def rewrite(self) -> bool | None:
        """BGREWRITEAOF: begin to rewrite the log; return False if a rewrite runs, None without a data directory."""
        return None if self.rewriter is None else self.rewriter.start()

    def rebuild(self, *, from_log: bool) -> list[bytes] | None:
        """DEBUG RELOAD and LOADAOF: build the keyspace again, and adopt the result if it is equal.

        Returns:
            Keys that would differ, in which case nothing is changed; None if there is no log.
        """
        log = self._journal.log
        if not from_log:
            fresh = rebuilding.from_dumps(self.keyspace)
        elif log is None:
            return None
        else:
            fresh = rebuilding.from_log(log.replay())
            fresh.reads.source = self.keyspace.reads.source
        found = rebuilding.differing(self.keyspace, fresh)
        if not found:
            rebuilding.adopt(self.keyspace, fresh)
            self._waits.wake_all()
        return found
