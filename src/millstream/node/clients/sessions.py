"""Every client of a node, and its unrequested output: messages, late replies, the end of a pause.

Output for other sessions than the one whose command runs is collected in :attr:`Sessions.outbox`, which the shell
empties after the command.
"""

from collections.abc import Iterator

from millstream.clock import Now
from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.commands.context.slowlog import SlowLog
from millstream.commands.context.watches import Watches
from millstream.commands.table.events import messages
from millstream.commands.table.spec import Command
from millstream.commands.users.accounts import Accounts
from millstream.engine.channels import Channels, Patterns
from millstream.glob import PatternTooCostlyError
from millstream.logs import logger
from millstream.node.clients.blocking import Waiter, Waits
from millstream.node.clients.parking import Parking
from millstream.node.clients.pausing import Pause
from millstream.node.clients.replies import Replies
from millstream.node.clients.stalling import Stalls
from millstream.node.outcome import Outcome
from millstream.node.stats import NodeStats
from millstream.protocol.encoder import encode
from millstream.replies import Error, Push, Reply

log = logger("millstream.node")


class Sessions:
    """All sessions of a node, with their waits, pauses and subscriptions."""

    def __init__(self, config: Config, accounts: Accounts, replies: Replies, stats: NodeStats) -> None:
        self._config = config
        self._accounts = accounts
        self._replies = replies
        self._stats = stats
        self._by_id: dict[int, Session] = {}
        self._last_id = 0
        # Published by the running command; sent after its record
        self.messages: list[tuple[Session, Push]] = []
        # Output for sessions other than the one that just ran a command; the shell drains it
        self.outbox: list[tuple[Session, Outcome]] = []
        self.slowlog = SlowLog(config)  # Slow commands
        self.waits = Waits()  # Sessions that wait inside a command
        self.parking = Parking()  # Sessions whose commands wait for bytes of packs
        self.pause = Pause()  # Pause of all clients, or of those that write
        self.stalls = Stalls(config)  # Commands that wait for room in memory
        self.watches = Watches()  # Sessions that watch each key
        self.channels: Channels[Session] = Channels()  # Sessions that are subscribed to each channel
        self.patterns: Patterns[Session] = Patterns()  # Sessions that are subscribed to each pattern

    def __iter__(self) -> Iterator[Session]:
        """Every open session, oldest first."""
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, now: Now, *, addr: str = "", laddr: str = "", is_unix: bool = False) -> Session:
        """Open a session for a new client."""
        self._last_id += 1
        user = self._accounts.first_user  # None if it must authenticate first
        session = Session(self._last_id, addr, laddr, created=now.wall, last_used=now.wall, is_unix=is_unix, user=user)
        self._by_id[session.id] = session
        self._stats.connections += 1
        return session

    def admit(self, session: Session, now: Now, addr: str, laddr: str) -> None:
        """List a connection that this server has opened as a session."""
        self._last_id += 1
        session.id, session.addr, session.laddr = self._last_id, addr, laddr
        session.created = session.last_used = now.wall
        self._by_id[session.id] = session

    def close(self, session: Session) -> None:
        """Remove a disconnected client, with its waits and watches."""
        waiter = self.waits.by_session.get(session.id)
        if waiter is not None:
            self.waits.stop(waiter)
        self.watches.drop(session)
        self.parking.drop(session)
        self.pause.held.pop(session, None)
        self.stalls.drop(session)
        self.unsubscribe(session)
        self._by_id.pop(session.id, None)

    def unsubscribe(self, session: Session) -> None:
        """Remove all subscriptions of a client."""
        for names, channels in ((session.channels, self.channels), (session.patterns, self.patterns)):
            for name in names:
                channels.leave(session, name)
            names.clear()

    # ------------------------------------------------------------------ output

    def send(self, session: Session, reply: Reply, row: Command | None = None) -> None:
        """Send a reply to a session whose command waited."""
        outcome = self._replies.outcome(session, reply, row)
        if outcome is None and session.overflow:
            self.kill(session)
        else:  # the shell continues after the wait, even if the session has switched replies off
            self.outbox.append((session, outcome or Outcome([], 0)))

    def kill(self, session: Session) -> None:
        """Have a session's connection closed; the shell sees ``killed`` when it empties the outbox."""
        session.closing = session.killed = True
        self.close(session)  # at once: nothing more is sent to it, not even from the same transaction
        self.outbox.append((session, Outcome([], 0)))

    def kill_id(self, session_id: int) -> None:
        """Have the connection of the session with this id closed, if there is one."""
        session = self._by_id.get(session_id)
        if session is not None:
            self.kill(session)

    def end_wait(self, waiter: Waiter, reply: Reply, wall: int) -> None:
        """Reply to a client whose command was not served; SLOWLOG records it without the wait, as in Redis 8."""
        self.waits.stop(waiter)
        if waiter.may_unblock and waiter.took >= self._config.slow_from:
            self.slowlog.note(waiter.session, waiter.given, waiter.took, wall)
        self.send(waiter.session, reply)

    def disconnect_waiting(self, line: str, wall: int) -> None:
        """Reply to all waiting clients with an error, and close their connections."""
        for waiter in list(self.waits.by_session.values()):
            self._count_failed(waiter, line)
            waiter.session.closing = True
            self.end_wait(waiter, Error(line), wall)

    def unblock(self, session_id: int, error: bool, wall: int) -> bool:
        """CLIENT UNBLOCK: end a session's wait with null or an error; False if there is no wait that it may end."""
        waiter = self.waits.by_session.get(session_id)
        if waiter is None or not waiter.may_unblock:
            return False
        line = "UNBLOCKED client unblocked via CLIENT UNBLOCK"
        if error:
            self._count_failed(waiter, line)
        self.end_wait(waiter, Error(line) if error else waiter.late(), wall)
        return True

    def _count_failed(self, waiter: Waiter, line: str) -> None:
        """Count a waiting command that ends with an error as failed for INFO, as Redis does."""
        self._stats.error(line)
        self._stats.command(waiter.argv[0].decode("latin-1").lower()).failed += 1

    def answer_fulfilled(self, wall: int) -> None:
        """Reply to clients of WAIT whose number of replicas has confirmed; called after replicas report offsets."""
        for waiter in list(self.waits.by_session.values()):
            if waiter.fulfilled is not None and waiter.fulfilled():
                self.end_wait(waiter, waiter.late(), wall)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message to a channel's listeners once the command's own record is in the log; return their number."""
        found = [(session, Push([b"message", channel, message])) for session in self.channels.listeners(channel)]
        for pattern in self.patterns.fitting(channel):
            push = Push([b"pmessage", pattern, channel, message])
            found += [(session, push) for session in self.patterns.listeners(pattern)]
        self.messages += [each for each in found if not each[0].closing]  # counted, but nothing more is sent to it
        return len(found)

    def notify(self, kind: str, event: str, db: int, key: bytes) -> None:
        """Publish a keyspace event, if CONFIG enables it and a client may be listening."""
        if self._config.events and (self.channels or self.patterns):
            try:
                for channel, text in messages(self._config.events, kind, event, db, key):
                    self.publish(channel, text)
            except PatternTooCostlyError:  # the change has happened already; a publisher would get an error
                log.warning(
                    "event %s of a key of %d bytes is not published: too long for the patterns", event, len(key)
                )

    def send_messages(self, barrier: int) -> None:
        """Send the messages that the current command published; they wait for the log like its reply."""
        found, self.messages = self.messages, []
        for session, push in found:
            self.outbox.append((session, Outcome(encode(push, session.resp), barrier)))

    def concerned(self, db: int) -> list[bytes]:
        """The keys of a database that clients watch or wait for."""
        return [key for each in (self.watches, self.waits.lines.places()) for index, key in each if index == db]

    # ------------------------------------------------------------------ pausing

    def hold(self, milliseconds: int, now: Now, writes_only: bool) -> None:
        """CLIENT PAUSE: hold back commands that arrive from now on."""
        self.pause.begin(milliseconds, now, writes_only=writes_only)
        if writes_only:
            self.release_held()

    def unpause(self, now: Now) -> None:
        """End the pause, for CLIENT UNPAUSE or when its time is over; a failover or shutdown still holds writers."""
        self.pause.end(now)
        self._go_on(now)

    def let_writers_go(self, purpose: str, now: Now) -> None:
        """End the effect of :meth:`Pause.hold_writers`."""
        self.pause.let_go(purpose, now)
        self._go_on(now)

    def _go_on(self, now: Now) -> None:
        """Check held commands again; another pause may hold them once more."""
        self.release_held()
        for waiter in self.waits.by_session.values():
            self.waits.set_alarm(waiter, now)

    def release_held(self) -> None:
        """Have the shell run held commands, in the order of their arrival."""
        self._run_again(self.pause.release())

    def release_stalled(self, now: Now, *, has_room: bool) -> None:
        """Have the shell run commands again that waited for room in memory: all, or those whose time is over."""
        self._run_again(self.stalls.release(now, has_room=has_room))

    def _run_again(self, found: list[Session]) -> None:
        for session in found:
            session.blocked = False
            self.outbox.append((session, Outcome([], 0)))
