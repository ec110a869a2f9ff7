"""The role of a node: becoming a replica, the state of the link to its primary, and becoming a primary again.

The *shell* makes the connection, see :class:`LinkShell`. The role is in the log and in the keyspace. So a restarted
replica is still one, and continues with its primary at its offset. A replica refuses writes, does not delete expired
keys, and changes only by its primary's commands.

Source: https://redis.io/docs/latest/commands/replicaof/, role/ and info/ (replication)
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from millstream.clock import Now
from millstream.commands.admin.info import CopyFacts, LinkFacts
from millstream.commands.context.config import Config
from millstream.engine.history import NO_DATABASE, NO_OFFSET
from millstream.engine.keyspace import Keyspace, Transition
from millstream.errors import CommandError, MillstreamError
from millstream.node.clients.sessions import Sessions
from millstream.node.following.relay import Relay
from millstream.node.journal import Journal
from millstream.node.log import foreign, rebuilding
from millstream.node.log.children import COPY, GivenUpError, reason_of
from millstream.node.log.feeding import forgotten, gone_on, renamed
from millstream.node.log.foreign import PackList
from millstream.node.primary import Primary
from millstream.replication.handshake import CopyBegins, PrimaryPast
from millstream.replies import Reply

_EMBEDDED = "ERR this server runs inside another program, and cannot follow a primary"
FORCED = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
READ_ONLY = "READONLY You can't write against a read only replica."
LINK_DOWN = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."

CONNECT, CONNECTING, HANDSHAKE, SYNC, CONNECTED = "connect", "connecting", "handshake", "sync", "connected"
"""States of the link, with ROLE's names."""


class LinkShell(Protocol):
    """The shell of the link, which connects to the primary and receives its bytes."""

    def follow(self, host: str, port: int) -> None:
        """Connect to a primary, and leave any other one."""

    def stop(self) -> None:
        """Stop following."""


class Following:
    """The node's role as a replica, and the state of its link."""

    def __init__(
        self, config: Config, keyspace: Keyspace, journal: Journal, sessions: Sessions, primary: Primary
    ) -> None:
        self._config, self._keyspace, self._journal = config, keyspace, journal
        self._sessions, self._primary = sessions, primary
        self.shell: LinkShell | None = None  # Controls the link; None if there can be none
        # Called after all data were replaced, to find keys that need maintenance
        self.scan: Callable[[], None] = lambda: None
        self.state = CONNECT  # State of the link, as ROLE names it
        self.error = ""  # Reason why the link is down or was down last; empty for none
        self.is_stuck = self.is_taking = False
        self.divergences = self.full_syncs = 0
        self.copied_at: int | None = None  # Monotonic milliseconds of the last complete copy; None for none
        self.last_copy: CopyFacts | None = None  # Facts of that copy; None for none
        self.begun_at = 0  # Monotonic milliseconds at which the present copy began to arrive
        self.acked_kept = self.acked_durable = NO_OFFSET
        self.heard_at = self.down_since = 0
        self.copy_size: int | None = None  # Size of the present copy in bytes; None if the primary did not report it
        self.copy_read = 0  # Bytes of this copy received so far
        self._has_led = False  # this server was a primary since the last copy or the start

    @property
    def is_replica(self) -> bool:
        """True if this node follows another server."""
        return self._keyspace.followed is not None

    @property
    def is_up(self) -> bool:
        """True if the primary's stream is arriving."""
        return self.state == CONNECTED

    @property
    def is_stale(self) -> bool:
        """True if data must not be shown now, since their age is unknown."""
        return self.is_replica and not self.is_up and self._config.values["replica-serve-stale-data"] == "no"

    @property
    def relay(self) -> Relay:
        """The relay for the primary's bytes."""
        relay = self._journal.feed
        assert isinstance(relay, Relay)
        return relay

    # ------------------------------------------------------------------ the role

    def follow(self, host: str, port: int, now: Now, *, hands_over: bool = False) -> bool:
        """REPLICAOF: follow a primary; return False if this node follows it already.

        The data stay until the primary has sent a copy; if the history is the same, the stream continues at its end.
        """
        if self.shell is None:
            raise CommandError(_EMBEDDED)
        if self._keyspace.followed == (host, port) and not self.is_stuck:
            return False
        was_replica = self.is_replica
        self._record(("role", NO_DATABASE, host, port, *([True] if hands_over else [])))
        if not was_replica:
            self._has_led = True
            if self._journal.feed is not None:
                self._journal.count_fed()
            self._primary.start_feed(now.mono, self._journal.feed, Relay)
            self._primary.cut_all()
            self._primary.step_down()
            self._sessions.disconnect_waiting(FORCED, now.wall)
        self._begin_link(now.mono)
        self.shell.follow(host, port)
        return True

    @property
    def hands_over(self) -> bool:
        """True if the server that is followed has not replied yet if it is the primary."""
        return self._keyspace.hands_over

    def led(self) -> None:
        """Record that the server that is followed has become the primary."""
        if self._keyspace.hands_over and self._keyspace.followed is not None:
            self._record(("role", NO_DATABASE, *self._keyspace.followed))

    def resume(self, now: Now) -> None:
        """Continue after the log's end, in a restarted replica."""
        assert self.shell is not None
        assert self._keyspace.followed is not None
        self._primary.start_feed(now.mono, self._journal.feed, Relay)
        self._begin_link(now.mono)
        self.shell.follow(*self._keyspace.followed)

    def lead(self, now: Now) -> None:
        """REPLICAOF NO ONE: take writes; the new history continues the old one, for replicas with its bytes."""
        if not self.is_replica:
            return
        if self.shell is not None:
            self.shell.stop()
        if self._journal.feed is not None:
            self._journal.count_fed()
        self._record(("role", NO_DATABASE, "", 0))
        self._primary.cut_all()  # makes replicas reconnect and learn the history's new name
        if self._keyspace.history.replid:
            self._record(gone_on(self._keyspace))
            self._primary.start_feed(now.mono, self._journal.feed)
        else:
            self._primary.forget_feed()
        self._primary.step_up()

    def _record(self, step: Transition) -> None:
        self._keyspace.apply(step)
        self._journal.note(step, soft=False)

    def _begin_link(self, mono: int) -> None:
        self.state, self.error, self.is_stuck = CONNECT, "", False
        self.acked_kept = self.acked_durable = NO_OFFSET
        self.down_since = mono

    # ------------------------------------------------------------------ events of the link

    def lost(self, reason: str, mono: int) -> None:
        """Note that the link is down."""
        if self.is_up:
            self.down_since = mono
        self.state, self.error = CONNECT, reason

    def connected(self, mono: int) -> None:
        """Note that the stream arrives from here on."""
        self.state, self.error, self.heard_at = CONNECTED, "", mono

    def renamed(self, replid: str, wall: int) -> None:
        """Continue the history under another name, since the primary has changed."""
        past = self._keyspace.history
        if past.replid == replid:
            return
        self._journal.count_fed()  # bytes that changed nothing belong to the history with the old name
        self._record(renamed(self._keyspace, replid, past.db))
        self._journal.flush(wall)
        self._primary.adopt(self.relay, self.heard_at)
        self._primary.cut_all()

    def forget_history(self) -> None:
        """Record that the data here differ from the primary's, so only a copy helps."""
        self._record(forgotten(self._keyspace))

    def begin_taking(self, wall: int) -> None:
        """Make a record before a copy replaces all records up to it."""
        self.is_taking = True
        self._journal.count_fed()
        self._journal.flush(wall)

    def taken_up_to(self, begins: CopyBegins, past: PrimaryPast | None) -> int | None:
        """Return the offset up to which a copy's primary has the present history; None if it has all of it.

        The result is :data:`NO_OFFSET` without a history, since then the primary has none of the present data.

        The primary may not report it. If this server was a primary, it is then the last offset that replicas reported,
        or after a start the recovered one. Without that, the primary counts as having all of it, as when an unrelated
        server is followed. After the end of a history that was given up, there may be changes that no offset counts.
        """
        mine = self._keyspace.history
        known = NO_OFFSET
        if not (mine.replid or mine.is_given_up):  # no replica ever followed this server, so all of its data is its own
            return NO_OFFSET if any(base.keys for base in self._keyspace.databases) else None
        ends = dict(mine.ends()) | {mine.replid: mine.offset}
        theirs = [(begins.replid, begins.offset), *(() if past is None else past.ends)]
        for name, offset in theirs:
            if name in ends:
                known = max(known, min(offset, ends[name]))
        if known == NO_OFFSET and (self._has_led or mine.is_given_up):
            known = self._primary.furthest if self._primary.furthest != NO_OFFSET else max(mine.second - 1, 0)
        if mine.is_given_up:
            return min(known, mine.offset)
        return known if NO_OFFSET < known < mine.offset else None

    def prepared(
        self, payloads: Iterator[bytes], begins: CopyBegins, packs: PackList = lambda: None
    ) -> Callable[[int], None]:
        """Read a copy, in any thread; the returned function makes it the data, at a monotonic time in milliseconds."""
        try:
            fresh = foreign.from_copy(payloads, packs)
        except MemoryError as error:
            raise GivenUpError(reason_of(error, COPY)) from error
        except (MillstreamError, OSError):
            raise
        except Exception as error:  # a primary's records may contain anything, though their checksums are right
            raise GivenUpError(f"the primary's copy is damaged: a record is invalid: {error!r:.200}") from error
        past = fresh.history
        if (past.replid, past.offset) != (begins.replid, begins.offset):
            wanted = f"{begins.replid} up to offset {begins.offset}"
            held = f"history {past.replid or 'none'} up to offset {past.offset}"
            raise GivenUpError(f"the primary's copy is damaged: it should hold history {wanted}, and holds {held}")
        return lambda mono: self._adopt(fresh, mono)

    def _adopt(self, fresh: Keyspace, mono: int) -> None:
        rebuilding.adopt(self._keyspace, fresh)
        self._keyspace.history = fresh.history
        self._journal.feed = None  # it belongs to the previous history
        self._primary.start_feed(mono, kind=Relay)
        self._primary.cut_all()
        self._primary.furthest, self._has_led = NO_OFFSET, False
        for db, key in list(self._sessions.watches):
            self._sessions.watches.breaks(db, key)
        self._sessions.waits.wake_all()
        self.scan()
        self.full_syncs += 1
        self.copied_at = mono
        self.last_copy = CopyFacts(mono - self.begun_at, self.copy_read)

    # ------------------------------------------------------------------ reports

    def role(self) -> list[Reply] | None:
        """The reply of ROLE on a replica."""
        primary = self._keyspace.followed
        if primary is None:
            return None
        host, port = primary
        return [b"slave", host.encode(), port, self.state.encode(), self.offset if self.is_up else NO_OFFSET]

    @property
    def offset(self) -> int:
        """Offset in the primary's stream up to which all commands were run."""
        feed = self._journal.feed
        return self._keyspace.history.offset if feed is None else feed.offset

    def facts(self, mono: int) -> LinkFacts | None:
        """Return INFO's facts at a monotonic time in milliseconds; None without a primary."""
        primary = self._keyspace.followed
        if primary is None:
            return None
        return LinkFacts(
            host=primary[0],
            port=primary[1],
            state=self.state,
            error=self.error,
            silent_for=(mono - self.heard_at) // 1000 if self.is_up else -1,
            down_for=None if self.is_up else max(mono - self.down_since, 0) // 1000,
            offset=self.offset,
            copy_size=self.copy_size,
            copy_read=self.copy_read,
            priority=str(self._config.values["replica-priority"]),
            divergences=self.divergences,
            full_syncs=self.full_syncs,
            copied_for=-1 if self.copied_at is None else (mono - self.copied_at) // 1000,
            last_copy=self.last_copy,
            kept=self.acked_kept,
            durable=self.acked_durable,
            is_announced=self._config.values["replica-announced"] == "yes",
        )
