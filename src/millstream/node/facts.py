"""INFO's facts, gathered from a node and from its surroundings."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from millstream.commands.admin.info import CommandFacts, DatabaseFacts, InfoFacts, LogFacts, MachineFacts, ShellFacts
from millstream.commands.users.accounts import Accounts
from millstream.engine.keyspace import Database, Keyspace
from millstream.node.clients.sessions import Sessions
from millstream.node.durability.disk_guard import DiskGuard
from millstream.node.durability.group_commit import Fsync
from millstream.node.following.role import Following
from millstream.node.following.shutdown import Shutdown
from millstream.node.journal import Journal
from millstream.node.log.rewriting import Rewriter
from millstream.node.memory import Memory
from millstream.node.primary import Primary
from millstream.node.scripting.scripts import Scripts
from millstream.node.stats import NodeStats
from millstream.persistence.log import Log


@dataclass(slots=True)
class Surroundings:
    """Facts that only the shell around a node knows; an embedded node keeps these defaults."""

    shell: ShellFacts = field(default_factory=ShellFacts)  # Facts of the network, updated by the shell
    machine: Callable[[], MachineFacts] = MachineFacts  # Reads the operating system's facts about the process
    log: Callable[[], LogFacts] = LogFacts  # Reads the state of the log
    max_clients: int = 0  # Largest number of simultaneous connections
    # Each returns figures of INFO's section ``tier`` at a time (wall milliseconds)
    tier: list[Callable[[int], Iterable[tuple[str, object]]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The sources of INFO's figures."""

    stats: NodeStats  # Counters of the node
    sessions: Sessions  # Clients
    accounts: Accounts  # Users, with the counts of refused commands
    keyspace: Keyspace  # Data
    journal: Journal  # Log records, and the reason if writes are refused
    scripts: Scripts  # Cached scripts
    primary: Primary  # Replicas
    following: Following  # Link to the primary
    ending: Shutdown  # State of SHUTDOWN
    memory: Memory  # Counted memory
    surroundings: Surroundings = field(default_factory=Surroundings)  # Facts outside of the node

    def last_save(self) -> int:
        """Wall seconds of the last moment at which all writes were known to be on disk."""
        return max(self.surroundings.log().last_save, self.journal.saved_at)

    def reset(self) -> None:
        """Reset the counters for CONFIG RESETSTAT."""
        self.stats.reset()
        self.primary.reset()
        self.memory.reset()
        self.surroundings.shell.reset()
        self.accounts.reset_counts()

    def gather(self, wall: int, mono: int) -> InfoFacts:
        """Return all facts that INFO shows."""
        stats, around, clients = self.stats, self.surroundings, self.sessions
        stats.collect()
        machine, logged = around.machine(), replace(around.log(), last_save=self.last_save())
        sessions = list(clients)
        waiters = clients.waits.by_session.values()
        is_holding = self.journal.is_holding
        return InfoFacts(
            now=wall,
            connected_clients=sum(not session.is_replica for session in sessions),
            blocked_clients=sum(session.blocked and not session.parked for session in sessions),
            watching_clients=sum(bool(session.watched) for session in sessions),
            watched_keys=len({place for session in sessions for place in session.watched}),
            pubsub_clients=sum(session.is_subscribed for session in sessions),
            pubsub_channels=len(clients.channels),
            pubsub_patterns=len(clients.patterns),
            blocking_keys=len({place for waiter in waiters for place in waiter.places}),
            blocking_keys_on_nokey=len({place for waiter in waiters if waiter.group_wait for place in waiter.places}),
            max_clients=around.max_clients,
            dirty=stats.dirty,
            connections=stats.connections,
            processed=stats.processed,
            error_replies=stats.error_replies,
            expired_keys=stats.lookups.expired,
            retained_no_more=stats.retained_no_more,
            removed_unread=stats.removed_unread,
            hits=stats.lookups.hits,
            misses=stats.lookups.misses,
            refused=self.accounts.refused,
            commands={
                name: CommandFacts(each.calls, each.nanoseconds / 1000, each.rejected, each.failed)
                for name, each in stats.commands.items()
            },
            errors=stats.errors,
            databases=[] if is_holding else [_database(db, wall) for db in self.keyspace.databases],
            is_holding=is_holding,
            shell=around.shell,
            machine=machine,
            memory=self.memory.facts(logged.unwritten),
            scripts=self.scripts.facts(),
            replication=self.primary.facts(),
            link=self.following.facts(mono),
            shutdown_in=self.ending.left(mono),
            loading=self.journal.loading,
            log=logged,
            has_tier=self.memory.has_tier,
            tier=[row for rows in around.tier for row in rows(wall)],
        )


def _database(db: Database, wall: int) -> DatabaseFacts:
    left = [max(at - wall, 0) for at in db.expires.values()]
    return DatabaseFacts(db.index, len(db.keys), len(left), sum(left) // len(left) if left else 0)


def log_facts(
    log: Log, guard: DiskGuard, rewriter: Rewriter, *, policy: Fsync, recovered: int, synced_at: float, slow_syncs: int
) -> LogFacts:
    """Return INFO's facts about a log on disk."""
    free = guard.measure()
    return LogFacts(
        enabled=True,
        policy=policy,
        size=log.total_bytes,
        base_size=log.snapshot_bytes,
        appended=log.appended,
        unwritten=log.unwritten,
        durable=log.durable,
        recovered=recovered,
        last_save=int(synced_at),
        slow_syncs=slow_syncs,
        disk_state=guard.state,
        disk_since=guard.since // 1000,
        disk_free=-1 if free is None else free,
        rewrite=rewriter.report(),
    )
