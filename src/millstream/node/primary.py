"""The primary's side of replication: its replicas, their offsets and resynchronization, and clients that wait for them.

With ``sync-replicas`` all clients wait for replicas. While too few replicas confirm writes, writes are refused and
waiting replies are held, as on a full disk. Too few means fewer than required, or no confirmation for some seconds.

No bytes are sent here: a *shell* does that, which also makes the copies with which replicas begin. A replica gets only
bytes that the log has kept, so it never has data that its primary could lose in a power cut.

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/replication/
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from millstream.clock import Now
from millstream.commands.admin.info import CopyFacts, ReplicaFacts, ReplicationFacts
from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.engine.history import NO_OFFSET
from millstream.engine.keyspace import Keyspace, Transition
from millstream.errors import CommandError
from millstream.logs import logger
from millstream.node.durability.outage import Shortage
from millstream.node.journal import Journal
from millstream.node.log.feeding import Feed, begun, given_up, gone_on, new_replid
from millstream.replication.followers import FOREVER, Follower, Followers
from millstream.replication.units import ASK, PING
from millstream.replies import Many, Reply, Simple

if TYPE_CHECKING:
    from millstream.node.clients.sessions import Sessions

log = logger("millstream.node")

STALLED = 2000
"""Milliseconds without a confirmation after which waiting clients no longer delay others; checked once a second."""

NO_FAILOVER = "no-failover"

_EMBEDDED = "ERR this server lives in another program, where no replica reaches it"
_NO_LINK = "NOMASTERLINK Can't SYNC while not connected with my master"
_FULL_DISK = "NOMASTERLINK the disk of this server takes no writes now, so no copy can be made: ask again later"


class Shell(Protocol):
    """The shell that sends bytes to replicas."""

    def begin(self, feed: Feed) -> None:
        """Start to send the bytes of this feed, at the beginning of a history or after a restart."""

    def join(self, follower: Follower) -> None:
        """Add a replica: it needs a copy, or is online."""

    def leave(self, follower: Follower) -> None:
        """Remove a replica that is gone."""

    def confirmed(self) -> None:
        """Release replies, since replicas hold more or are no longer required."""

    def refuse_held(self) -> None:
        """Drop replies that wait for replicas, and disconnect their clients: no replica will hold the writes."""


class Primary:
    """Tracks the replicas of a node and their offsets."""

    def __init__(self, config: Config, keyspace: Keyspace, journal: Journal, sessions: "Sessions") -> None:
        self._config, self._keyspace, self._journal, self._sessions = config, keyspace, journal, sessions
        self.followers = Followers()  # Replicas of this node
        self.shell: Shell | None = None  # Sends bytes; None if no replica can connect
        self.replid = new_replid()  # Name of the present history, or of the next one if there is none
        self.good = self.forks = self.fork_usec = 0
        self.furthest = NO_OFFSET  # Largest offset of the present history that a replica has reported; -1 for none
        # Number of records that no new primary took over, by the file that contains them, since the start
        self.diverged: dict[str, int] = {}
        self.diverged_files = self.copies_made = 0
        self.last_copy: CopyFacts | None = None  # Facts of the last copy; None for none
        self.full_syncs = self.partial_syncs = self.refused_syncs = 0
        # True if replicas may connect; False while this server is a replica without a link
        self.may_serve: Callable[[], bool] = lambda: True
        self._moved_at = 0  # monotonic milliseconds of the last confirmation by replicas, or since when none is needed
        config.on_change = self._look
        self.on_feed: Callable[[], None] = lambda: None  # Called when a feed exists
        # Called when a replica has reported its offset, and once a second
        self.heard: list[Callable[[Now], None]] = []
        self.failover = NO_FAILOVER  # State of a failover, as INFO names it
        self.mono = 0  # Monotonic milliseconds of the last check
        self._pinged_at = 0
        self._alone_since = 0
        self._asked = 0  # last offset that replicas were requested to confirm

    @property
    def feed(self) -> Feed | None:
        """The maker of the replication stream; None if there is none."""
        return self._journal.feed

    @property
    def offset(self) -> int:
        """The offset at the end of the history."""
        return self._keyspace.history.offset if self.feed is None else self.feed.offset

    # ------------------------------------------------------------------ the history

    def _record(self, step: Transition) -> None:
        self._keyspace.apply(step)
        self._journal.note(step, soft=False)

    def start_feed(self, mono: int, past: Feed | None = None, kind: type[Feed] = Feed) -> Feed:
        """Start the feed of the recorded history; its backlog continues that of ``past``."""
        feed = kind(self._keyspace, self._config)
        if past is not None:
            feed.backlog = past.backlog
        self.adopt(feed, mono)
        return feed

    def adopt(self, feed: Feed, mono: int) -> None:
        """Send the bytes of a feed to replicas from here on."""
        self._journal.feed = feed
        self.replid, self._asked = self._keyspace.history.replid or new_replid(), -1
        self._alone_since = self.mono = self._pinged_at = mono
        self.on_feed()
        assert self.shell is not None
        self.shell.begin(feed)

    def forget_feed(self) -> None:
        """Drop the feed, since no replica has the present data; the next history gets a new name."""
        self._journal.feed = None
        self.replid = new_replid()

    def cut_all(self) -> None:
        """Have all replicas connect again, since the history has another name."""
        for follower in self.followers:
            self._sessions.kill_id(follower.id)

    def recovered(self, wall: int) -> None:
        """Drop the history that the log holds, since this node may not be one that feeds replicas."""
        past = self._keyspace.history
        if past.replid and self._keyspace.followed is None:
            self._record(given_up(self._keyspace, had_replicas=True))
            self._journal.flush(wall)

    def resume(self, now: Now) -> None:
        """Continue the history for returning replicas; called in place of :meth:`recovered` if there is a shell."""
        if self._keyspace.history.replid:
            self._record(gone_on(self._keyspace))
            self._journal.flush(now.wall)
            self.start_feed(now.mono)
        self._look()

    def _end(self, wall: int) -> None:
        """Stop recording the history after a long time without replicas; keep the name and offset that they had."""
        self._journal.count_fed()
        self.forget_feed()
        self._record(given_up(self._keyspace, had_replicas=self.furthest != NO_OFFSET))
        self._journal.flush(wall)
        self.furthest = NO_OFFSET

    def stop(self, wall: int) -> None:
        """Have the log count all bytes sent to replicas, at the server's end, so that they can continue there."""
        if self.feed is not None and self._journal.disk_outage is None:
            self._journal.count_fed()
            self._journal.flush(wall)

    # ------------------------------------------------------------------ requests of replicas

    def announced(self, session: Session) -> Follower:
        """Return the follower of a connection that has announced itself as a replica."""
        if self.shell is None:
            raise CommandError(_EMBEDDED)
        host = session.addr.rpartition(":")[0]
        return self.followers.known(session.id, host.removeprefix("[").removesuffix("]"))  # IPv6, as Redis shows it

    def note_packs(self, session: Session, identities: Collection[bytes]) -> None:
        """Note the packs of this log that a replica has; other names take no memory."""
        named, log = set(identities), self._journal.log
        own = () if log is None else log.packs
        self.announced(session).packs = frozenset(each.identity for each in own if each.identity.encode() in named)

    def sync(self, session: Session, replid: str, offset: int, now: Now, *, is_old: bool = False) -> Reply:
        """PSYNC and SYNC: make a connection a replica's, which gets a copy or the bytes that it lacks."""
        follower, shell = self.announced(session), self.shell
        assert shell is not None
        if follower.stage is not None:
            return Many([])  # it sent the request twice
        if not self.may_serve():
            raise CommandError(_NO_LINK)
        feed = self.feed
        goes_on = feed is not None and self._keyspace.history.follows(replid, offset) and feed.backlog.has(offset - 1)
        if not goes_on and self._journal.disk_outage is not None:
            raise CommandError(_FULL_DISK)
        session.is_replica, follower.is_old = True, is_old
        self._sessions.unsubscribe(session)  # a message within the stream would be taken for a part of it
        follower.heard_at = self.mono = now.mono
        if goes_on:
            self.partial_syncs += 1
            follower.cursor = offset - 1  # it has run the stream up to here; it reports later how much it keeps
            self.go_online(follower)
            shell.join(follower)
            return Simple(b"CONTINUE " + self.replid.encode())
        self._await_copy(follower, now)
        self.full_syncs += 1
        self.refused_syncs += replid != "?"
        shell.join(follower)
        return Many([])

    def _await_copy(self, follower: Follower, now: Now) -> None:
        """Store all new bytes from here on for a replica, which gets them after its copy."""
        feed = self.feed
        if feed is None:
            self._record(begun(self._keyspace, self.replid))
            feed = self.start_feed(now.mono)
        follower.stage, follower.cursor = "wait_bgsave", feed.offset
        self._journal.count_fed()  # the copy's source must contain the history's present offset

    def go_online(self, follower: Follower) -> None:
        """Let a replica that has its copy receive the stream."""
        follower.stage, follower.heard_at = "online", self.mono
        self._look()

    def acknowledge(self, session: Session, offset: int, durable: int | None, now: Now) -> None:
        """REPLCONF ACK: record a replica's offset, limited to the bytes that were sent to it."""
        follower = self.followers.get(session.id)
        if follower is None or follower.stage is None:
            return
        was_silent = follower.lag(now.mono) > self._config.most_lag
        follower.heard_at = self.mono = now.mono
        before = follower.acked
        if offset <= follower.cursor:
            follower.acked = max(before, offset)
            self.furthest = max(self.furthest, offset)
        if durable is not None and durable <= follower.cursor:
            follower.durable = max(follower.durable, durable)
        # The check visits all replicas, perhaps a thousand, so do it only if the result may differ
        if (
            was_silent
            or self._journal.shortage is not None
            or self._journal.unconfirmed.is_between(before, follower.acked)
        ):
            self._look()
        self._sessions.answer_fulfilled(now.wall)
        self._tell(now)

    def _tell(self, now: Now) -> None:
        for look in self.heard:
            look(now)

    def leave(self, session: Session) -> None:
        """Remove a connection that is gone."""
        follower = self.followers.drop(session.id)
        if follower is not None and follower.stage is not None:
            self._alone_since = self.mono
            self._look()
            if self.shell is not None:
                self.shell.leave(follower)

    # ------------------------------------------------------------------ requests of clients

    @property
    def written(self) -> int:
        """Offset after the last change of data."""
        return 0 if self.feed is None else self.feed.written

    def count(self, offset: int, *, durable: bool = False) -> int:
        """Return the number of replicas that have reached an offset."""
        return self.followers.count(offset, durable=durable)

    def ask(self, offset: int) -> None:
        """Request the offsets of all replicas, unless that was done after this offset already."""
        if self.feed is not None and self._asked < offset:
            self._asked = offset
            self.feed.say(ASK)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message to listeners here and at replicas; return the number of listeners here."""
        if self.feed is not None:
            self.feed.say([b"PUBLISH", channel, message])
        return self._sessions.publish(channel, message)

    def rows(self) -> list[Reply]:
        """Address, port and offset of each replica, for ROLE."""
        return [[each.ip.encode(), b"%d" % each.port, b"%d" % max(each.acked, 0)] for each in self.followers.online]

    @property
    def backlog_held(self) -> int:
        """Bytes of the stream stored for returning replicas."""
        return 0 if self.feed is None else self.feed.backlog.end - self.feed.backlog.first

    def facts(self) -> ReplicationFacts:
        """Return INFO's facts about replication."""
        past, feed = self._keyspace.history, self.feed
        backlog = None if feed is None else feed.backlog
        return ReplicationFacts(
            replicas=[
                ReplicaFacts(each.ip, each.port, each.stage or "", max(each.acked, 0), each.lag(self.mono))
                for each in self.followers
            ],
            good=self.good,
            wanted=self._config.min_replicas,
            replid=self.replid,
            replid2="" if past.is_given_up else past.replid2,
            offset=self.offset,
            second=NO_OFFSET if past.is_given_up else past.second,
            earlier=past.before() if past.is_given_up else past.earlier,
            backlog_size=self._config.backlog_size,
            backlog_first=None if backlog is None else backlog.first + 1,
            backlog_held=self.backlog_held,
            full_syncs=self.full_syncs,
            copies_made=self.copies_made,
            last_copy=self.last_copy,
            forks=self.forks,
            fork_usec=self.fork_usec,
            partial_syncs=self.partial_syncs,
            refused_syncs=self.refused_syncs,
            failover=self.failover,
            diverged_records=sum(self.diverged.values()),
            diverged_files=self.diverged_files,
            dialect=self._config.dialect,
            annotate=self._config.annotate,
            confirming=self._config.sync_replicas,
            confirmed_by=self._confirming(),
            is_short=self._journal.shortage is not None,
            unconfirmed=len(self._journal.unconfirmed),
            held_clients=len(self._journal.unconfirmed.gate.holders),
        )

    def _confirming(self) -> int:
        """Number of replicas that confirm writes; during a shortage, only those that hold the oldest waiting write."""
        there = self.followers.good(self.mono, self._config.most_lag or FOREVER, confirming=True)
        oldest = self._journal.unconfirmed.oldest
        return there if self._journal.shortage is None or oldest is None else min(there, self.count(oldest))

    def count_copy(self, took: int, size: int) -> None:
        """Count a copy of all data, with its duration in milliseconds and its size in bytes."""
        self.copies_made += 1
        self.last_copy = CopyFacts(took, size)

    def count_fork(self, usec: int) -> None:
        """Count a fork of this process, which paused it for this many microseconds."""
        self.forks += 1
        self.fork_usec = usec

    def reset(self) -> None:
        """Reset the counters for CONFIG RESETSTAT."""
        self.forks = self.fork_usec = 0
        self.full_syncs = self.partial_syncs = self.refused_syncs = 0

    # ------------------------------------------------------------------ time

    def _look(self) -> None:
        self.good = self.followers.good(self.mono, self._config.most_lag)
        wanted = self._config.sync_replicas if self.shell is not None and self._keyspace.followed is None else 0
        unconfirmed = self._journal.unconfirmed
        if not (wanted or unconfirmed.is_asked):
            return
        if wanted:
            unconfirmed.is_asked = True
            has_moved = unconfirmed.confirm(self.followers.held_by(wanted))
        else:
            has_moved = unconfirmed.forget()
        if has_moved or not unconfirmed:
            self._moved_at = self.mono
        was_short, is_short = self._journal.shortage is not None, self._is_short(wanted)
        if is_short != was_short:
            self._journal.lack_replicas(Shortage(unconfirmed.records()) if is_short else None)
            if is_short:
                log.warning(
                    "fewer than %d replicas confirm writes (sync-replicas): writes are refused, %d changes wait",
                    wanted,
                    len(unconfirmed),
                )
            else:
                log.warning("writes are accepted again: replicas confirm them, or no longer need to")
        if self.shell is not None and (has_moved or is_short != was_short):
            self.shell.confirmed()

    def _is_short(self, wanted: int) -> bool:
        """True if too few replicas confirm; stays True until nothing waits for them."""
        there = self.followers.good(self.mono, self._config.most_lag or FOREVER, confirming=True)
        if there < wanted:
            return True
        waits = bool(self._journal.unconfirmed)
        if self._journal.shortage is not None:
            return waits
        return waits and self.mono - self._moved_at >= STALLED

    def ask_confirmation(self) -> None:
        """Request that replicas confirm the writes so far, which the log is about to keep."""
        feed = self.feed
        if feed is not None and self._journal.unconfirmed and self._asked < feed.written:
            self.ask(feed.written)
            self._journal.ask_replicas()

    def step_up(self) -> None:
        """Require confirmations from here on, as a primary."""
        self._look()

    def step_down(self) -> None:
        """Become a replica: clients get no reply to writes that too few replicas hold, as others may lack them."""
        if self._journal.unconfirmed and self.shell is not None:
            self.shell.refuse_held()
        self._look()

    def tick(self, now: Now) -> list[Follower]:
        """Do the due work, once a second while there is a feed; return the replicas that were silent for too long."""
        self.mono = now.mono
        self._tell(now)
        feed = self.feed
        self._look()
        if feed is None:
            return []
        if feed.is_relay:
            return self._silent(now.mono)
        if not feed.is_counted:  # requests to replicas went ahead of the log; after a crash, those would need a copy
            self.stop(now.wall)
        if not self.followers:
            ttl = self._config.backlog_ttl * 1000
            if ttl and now.mono - self._alone_since >= ttl and not self._journal.unconfirmed:
                self._end(now.wall)
            return []
        # Not during a failover, which needs a constant offset
        if self.failover == NO_FAILOVER and now.mono - self._pinged_at >= self._config.ping_period * 1000:
            self._pinged_at = now.mono
            self._journal.tell(PING, now.wall)
        return self._silent(now.mono)

    def _silent(self, mono: int) -> list[Follower]:
        limit = self._config.repl_timeout
        return [each for each in self.followers.online if not each.is_old and each.lag(mono) > limit]
