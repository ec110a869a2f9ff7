"""A primary and its replica, each on a simulated disk of its own, with a link that the test moves byte by byte.

Nodes, logs and their messages are the real ones; sockets, processes and clocks are the test's. Either
machine can lose power at any operation of its disk.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hiredis

from millstream.clock import ManualClock, Now
from millstream.commands.context.config import Config
from millstream.engine.history import NO_DATABASE, ReplicationState
from millstream.engine.keyspace import Keyspace
from millstream.engine.serialization.rdb.reading import read_file
from millstream.node.durability.disk_guard import DiskGuard
from millstream.node.durability.group_commit import CommitStep, perform
from millstream.node.log import rebuilding
from millstream.node.log.copying import pieces
from millstream.node.log.feeding import Feed
from millstream.node.log.snapshot import payloads
from millstream.node.log.taking import fill
from millstream.node.node import Node
from millstream.node.obeying import Obedience
from millstream.persistence.log import Log
from millstream.persistence.rewrite import contents, make
from millstream.replication.dialect import COPIES, DIALECTS
from millstream.replication.followers import Follower
from millstream.replication.handshake import CopyBegins
from millstream.replication.received import ReceivedStream
from replication.campaigns.load import Load
from replication.replicated import state
from support.inprocess import Word, to_words
from support.simdisk import Crash, SimDisk

HOME = Path("/data")
SEGMENT_BYTES = 6000
CRASHES = list(Crash)


class _Quiet:
    """Shell of both roles that does nothing: the test sends and connects."""

    def begin(self, feed: Feed) -> None:
        """Do nothing: the test reads the backlog."""

    def join(self, follower: Follower) -> None:
        """Do nothing: the test has connected the replica."""

    def leave(self, follower: Follower) -> None:
        """Do nothing: the test has cut the replica off."""

    def confirmed(self) -> None:
        """Do nothing: no reply waits for replicas."""

    def refuse_state(self) -> None:
        """Do nothing: no reply waits for replicas."""

    def follow(self, host: str, port: int) -> None:
        """Do nothing: the test connects."""

    def stop(self) -> None:
        """Do nothing: the test disconnects."""


class Machine:
    """A server without sockets, on a disk that may lose power.

    Args:
        seed: the random seed.
        fsync: the policy.
        clock: moved by the test.

    Attributes:
        node: the current node.
        released: position of the log up to which the policy allows replies and bytes to replicas.
        losses: the number of power losses.
    """

    def __init__(self, seed: int, fsync: str, clock: ManualClock) -> None:
        self.fsync = fsync
        self.losses = self._commits = 0
        self._clock = clock
        self._chance = random.Random(seed)
        self.disk = SimDisk(seed)
        self.open()
        self._loads = [Load(seed * 10 + at, self.now.wall) for at in range(3)]

    @property
    def now(self) -> Now:
        """Return both clocks' times."""
        return self._clock.now()

    def open(self) -> None:
        """Start from the disk's content."""
        marks = random.Random(self.disk.operations + self.losses)
        self.log, recovery = Log.open(HOME, self.disk, segment_bytes=SEGMENT_BYTES, entropy=marks.randbytes)
        self.node = Node(Config(), self.log)
        self.node.recover(recovery.payloads(), tells_replicas=True)
        self.node.primary.shell = self.node.following.shell = _Quiet()
        self.guard = DiskGuard(self.log, self.node.journal, lambda: 0, self._clock)
        self.recovered = self.node.keyspace.history.offset
        if self.node.following.is_replica:
            self.node.following.resume(self.now)
        else:
            self.node.primary.resume(self.now)
        self._sessions = [self.node.sessions.open(self.now) for _ in range(4)]
        self.released = self.log.durable

    def lose(self, crash: Crash, seed: int) -> None:
        """Lose power, and start again from the disk's content."""
        self.losses += 1
        self.disk = self.disk.reboot(crash, seed)
        self.disk.locked.clear()
        self.open()

    @property
    def is_cut(self) -> bool:
        """Report whether the disk has done its last operation."""
        return self.disk.crash_after is not None and self.disk.operations >= self.disk.crash_after

    @property
    def offset(self) -> int:
        """Return the offset at the end of the history in memory."""
        return self.node.following.offset

    def ask(self, *words: Word) -> Any:
        """Return the reply to a command that does not wait."""
        outcome = self.node.execute(self._sessions[-1], to_words(words), self.now)
        assert outcome is not None
        reader = hiredis.Reader()
        reader.feed(b"".join(outcome.buffers))
        return reader.gets()

    def write(self, count: int) -> None:
        """Make ``count`` changes from each of three clients; a client that waits is skipped."""
        for session, load in zip(self._sessions, self._loads, strict=False):
            for words in load.some(count):
                if not session.blocked:
                    self.node.execute(session, words, self.now)
        self._clock.advance(self._chance.choice((1, 5, 30)))
        self.node.tick(self.now)
        self.node.outbox.clear()

    def commit(self) -> None:
        """Write and sync the appended records as the policy requires."""
        self._commits += 1
        syncs = self.fsync == "always" or (self.fsync == "everysec" and self._commits % 3 == 0)
        error = perform(CommitStep.COMMIT if syncs else CommitStep.WRITE, self.log, self.guard).error
        assert error is None, error
        self.released = self.log.durable if self.fsync == "always" else self.log.written

    def rewrite(self) -> None:
        """Rewrite the log."""

        def snapshot(sealed: Any) -> Any:
            return payloads(rebuilding.from_log(contents(self.disk, HOME, sealed)), self.now.wall)

        self._put(snapshot, lambda: None)

    def take(self, copy: bytes, replid: str, offset: int) -> None:
        """Replace all data by a primary's copy, by the steps of the server."""
        following = self.node.following
        following.begin_taking(self.now.wall)
        self.log.write()
        space = Keyspace()
        space.history, space.primary = ReplicationState(replid, offset, NO_DATABASE), self.node.keyspace.followed
        assert fill(space, read_file([copy], 100, 100)) == []

        def adopt() -> None:
            following.prepared(payloads(space, self.now.wall), CopyBegins(replid, offset))(self.now.mono)

        self._put(lambda _: payloads(space, self.now.wall), adopt)
        following.is_taking = False

    def _put(self, snapshot: Callable[[Any], Any], behind: Callable[[], None]) -> None:
        sealed = self.log.begin_rewrite()
        if sealed is None:
            return
        make(self.disk, HOME, sealed, snapshot(sealed))
        self.log.commit_rewrite(sealed)
        behind()
        self.log.remove_obsolete()

    def lead(self) -> None:
        """Run REPLICAOF NO ONE."""
        self.node.following.lead(self.now)
        self.node.journal.flush(self.now.wall)

    def follow(self) -> None:
        """Run REPLICAOF with the other machine."""
        self.node.following.follow("other", 1, self.now)
        self.node.journal.flush(self.now.wall)


class Link:
    """A link from a replica to its primary, connected anew by each object.

    Args:
        primary: the primary.
        replica: the replica.
        chance: cuts the bytes in pieces.

    Attributes:
        went_on: whether the link continued without a copy.
    """

    def __init__(self, primary: Machine, replica: Machine, chance: random.Random) -> None:
        self._primary, self._replica, self._chance = primary, replica, chance
        self._session = primary.node.sessions.open(primary.now)
        self._received = ReceivedStream()
        self._obedience = Obedience(replica.node, replica.node.following)
        following, past = replica.node.following, replica.node.keyspace.history
        words = ["PSYNC", past.replid or "?", following.offset + 1 if past.replid else -1]
        outcome = primary.node.execute(self._session, to_words(words), primary.now)
        assert outcome is not None
        said = b"".join(outcome.buffers).decode()
        follower = primary.node.primary.followers.get(self._session.id)
        assert follower is not None
        self._follower = follower
        self.went_on = said.startswith("+CONTINUE ")
        if self.went_on:
            following.renamed(said.split()[1], replica.now.wall)
        else:
            assert said == ""
            self._copy()
        following.connected(replica.now.mono)
        self._obedience.begin()

    def _copy(self) -> None:
        """Copy the durable data, under any policy, since a copy is made from sealed files."""
        node, log = self._primary.node, self._primary.log
        log.write()
        log.sync()
        feed = node.primary.feed
        assert feed is not None
        replid, offset, wall = node.primary.replid, feed.offset, self._primary.now.wall
        past = ReplicationState(replid, offset, feed.db)
        self._replica.take(b"".join(pieces(node.keyspace, past, wall, COPIES[DIALECTS[-1]])), replid, offset)
        self._follower.cursor = offset
        node.primary.go_online(self._follower)

    def pump(self, most: int = 1 << 30) -> int:
        """Send up to ``most`` of the released bytes, in pieces; return their number."""
        primary, replica = self._primary, self._replica
        feed = primary.node.primary.feed
        assert feed is not None
        feed.backlog.kept(primary.released)
        count = 0
        while count < most and (data := feed.backlog.read(self._follower.cursor, self._chance.randint(1, 3000))):
            self._follower.cursor += len(data)
            count += len(data)
            self._received.feed(data)
            while self._obedience.run(self._received, replica.now):
                pass
            if self._chance.random() < 0.3:
                self._tell()
        self._tell()
        return count

    def _tell(self) -> None:
        """Commit on the replica, and acknowledge its offset."""
        self._replica.commit()
        backlog = self._replica.node.following.relay.backlog
        backlog.kept(self._replica.released)
        self._primary.node.primary.acknowledge(self._session, backlog.sendable, None, self._primary.now)

    @property
    def acked(self) -> int:
        """Return the offset that the primary has as acknowledged."""
        return self._follower.acked

    def close(self) -> None:
        """Cut the link."""
        self._replica.node.following.lost("cut", self._replica.now.mono)
        self.leave()

    def leave(self) -> None:
        """Remove the replica."""
        self._primary.node.sessions.close(self._session)


def assert_level(primary: Machine, replica: Machine, link: Link) -> None:
    """Send all bytes, and check that both have the same data."""
    primary.node.tick(primary.now)
    state(primary.ask)  # what is over goes when it is looked at
    primary.commit()
    while link.pump():
        primary.commit()
    assert replica.offset == primary.offset
    assert state(replica.ask) == state(primary.ask)
