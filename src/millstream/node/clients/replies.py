"""The way from a reply to bytes: its size limit, the log position that it waits for, and CLIENT REPLY."""

from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.commands.table.spec import Command
from millstream.node.durability.outage import shows_times
from millstream.node.journal import Journal
from millstream.node.outcome import Outcome
from millstream.protocol.encoder import encode, weight
from millstream.replies import Many, Push, Reply

# Number of a reply's items up to which its size is not computed before it is encoded
_FEW = 1024
# Commands that report the server's state
_WATCHING = {"info", "role"}


class Heard(Many):
    """The replies of a transaction that switched replies on or off: all of them are sent."""

    __slots__ = ()


class Replies:
    """Turns replies into the outcomes that are sent."""

    def __init__(self, config: Config, journal: Journal) -> None:
        self._config = config
        self._journal = journal
        # If limited, replies above the hard limit of ``client-output-buffer-limit`` are not built, since the shell
        # would disconnect their client: see :attr:`~millstream.commands.context.session.Session.overflow`
        self.are_limited = False

    def outcome(self, session: Session, reply: Reply, row: Command | None) -> Outcome | None:
        """Return a reply with its barrier; None if the session gets no reply."""
        if isinstance(reply, Heard):
            if not reply.values:
                return None
            reply = Many(reply.values)
        elif session.reply_mode != "on":
            _count_skipped(session)
            pushes = pushes_in(reply)
            if not pushes:
                return None
            reply = Many(pushes)
        journal = self._journal
        if row is not None and self._waits_for_nothing(row):
            barrier = 0
        elif journal.log is None or journal.own:
            barrier, journal.own = max(journal.own, journal.position), 0
        else:
            # Soft records delay only those replies that show their changes
            shows_soft = row is not None and shows_times(row) and not journal.is_holding
            barrier = journal.log.appended if shows_soft else journal.position
        if type(reply) is list and self._overflows(session, reply):
            return None
        return Outcome(encode(reply, session.resp), barrier)

    def _waits_for_nothing(self, row: Command) -> bool:
        """True if a reply may be sent before earlier changes are durable, since it shows no change.

        This holds for commands that connect a client. INFO counts keys, and so waits for the disk. INFO does not wait
        for the replicas of ``sync-replicas``, which may stay away; otherwise the server would look dead while it works.
        """
        return row.group == "connection" or (self._config.sync_replicas > 0 and row.name in _WATCHING)

    def _overflows(self, session: Session, reply: list[Reply]) -> bool:
        """True if a reply is too large to make; one string may occur many times in it, and writing would copy each."""
        if len(reply) > _FEW and (ceiling := self.ceiling(session)) and (size := weight(reply)) > ceiling:
            session.overflow = size
        return session.overflow > 0

    def ceiling(self, session: Session) -> int:
        """Largest size of a reply that is made, in bytes; 0 for no limit."""
        return self.limit(session) if session.reply_mode == "on" else 0

    def limit(self, session: Session) -> int:
        """The hard limit of a session's replies in bytes, also while it gets none; 0 for no limit."""
        if not self.are_limited:
            return 0
        limits = self._config.output_limits
        return (limits.pubsub if session.is_subscribed else limits.normal).hard


def _count_skipped(session: Session) -> None:
    """Turn replies on again after the one reply that CLIENT REPLY SKIP suppresses."""
    if session.reply_mode == "skip":
        session.reply_mode = "skipping"  # SKIP's own reply is suppressed too
    elif session.reply_mode == "skipping":
        session.reply_mode = "on"


def pushes_in(reply: Reply) -> list[Reply]:
    """The parts of a reply, also of EXEC's, that a client without replies gets: confirmations of SUBSCRIBE and similar.

    Redis sends them like the messages that they announce.
    """
    if isinstance(reply, Many):
        return [value for value in reply.values if isinstance(value, Push)]
    if isinstance(reply, list):
        return [push for each in reply if isinstance(each, Many) for push in pushes_in(each)]
    return []
