"""What INFO shows, gathered from a node and from what surrounds it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from millstream.commands.admin.info import CommandFacts, DatabaseFacts, InfoFacts, LogFacts, MachineFacts, ShellFacts

if TYPE_CHECKING:
    from millstream.engine.keyspace import Database
    from millstream.node.durability.disk_guard import DiskGuard
    from millstream.node.durability.group_commit import Fsync
    from millstream.node.log.rewriting import Rewriter
    from millstream.node.node import Node
    from millstream.persistence.log import Log


@dataclass(slots=True)
class Surroundings:
    """What only the shell around a node knows; an embedded node keeps these defaults.

    Attributes:
        shell: of the network, kept up to date by the shell.
        machine: reads what the operating system says of the process.
        log: reads the state of the log.
        max_clients: most connections at a time.
    """

    shell: ShellFacts = field(default_factory=ShellFacts)
    machine: Callable[[], MachineFacts] = MachineFacts
    log: Callable[[], LogFacts] = LogFacts
    max_clients: int = 0


def gather(node: "Node", wall: int) -> InfoFacts:
    """Everything INFO shows, at this wall time in milliseconds."""
    stats, around = node.stats, node.surroundings
    sessions = list(node.sessions())
    waited = {place for waiter in node.waits.by_session.values() for place in waiter.places}
    grouped = {place for waiter in node.waits.by_session.values() if waiter.group_wait for place in waiter.places}
    return InfoFacts(
        now=wall,
        connected_clients=len(sessions),
        blocked_clients=sum(session.blocked for session in sessions),
        watching_clients=sum(bool(session.watched) for session in sessions),
        watched_keys=len({place for session in sessions for place in session.watched}),
        pubsub_clients=sum(session.is_subscribed for session in sessions),
        pubsub_channels=len(node.channels),
        pubsub_patterns=len(node.patterns),
        blocking_keys=len(waited),
        blocking_keys_on_nokey=len(grouped),
        max_clients=around.max_clients,
        dirty=stats.dirty,
        connections=stats.connections,
        processed=stats.processed,
        error_replies=stats.error_replies,
        expired_keys=stats.lookups.expired,
        hits=stats.lookups.hits,
        misses=stats.lookups.misses,
        refused=node.accounts.refused,
        commands={
            name: CommandFacts(each.calls, each.nanoseconds / 1000, each.rejected, each.failed)
            for name, each in stats.commands.items()
        },
        errors=stats.errors,
        databases=[] if node.is_holding else [_database(db, wall) for db in node.keyspace.databases],
        is_holding=node.is_holding,
        shell=around.shell,
        machine=around.machine(),
        scripts=node.scripts.facts(),
        log=replace(around.log(), last_save=node.last_save()),
    )


def _database(db: "Database", wall: int) -> DatabaseFacts:
    left = [max(at - wall, 0) for at in db.expires.values()]
    return DatabaseFacts(db.index, len(db.keys), len(left), sum(left) // len(left) if left else 0)


def log_facts(
    log: "Log", guard: "DiskGuard", rewriter: "Rewriter", *, policy: "Fsync", recovered: int, synced_at: float
) -> LogFacts:
    """What INFO shows of a log that is kept on disk.

    Args:
        log: the log.
        guard: whether the disk takes writes.
        rewriter: makes the log smaller.
        policy: when it is synced.
        recovered: records that the start found.
        synced_at: wall seconds of the last sync.
    """
    free = guard.measure()
    return LogFacts(
        enabled=True,
        policy=policy,
        size=log.total_bytes,
        base_size=log.snapshot_bytes,
        appended=log.appended,
        durable=log.durable,
        recovered=recovered,
        last_save=int(synced_at),
        disk_state=guard.state,
        disk_since=guard.since // 1000,
        disk_free=-1 if free is None else free,
        rewrite=rewriter.told(),
    )
