"""Periodic work of a node, like Redis's ``serverCron``: delete expired keys and old messages of idempotent producers.

Nothing runs while there is no work: the node calls :meth:`Cron.next_due`. The changes of a round are logged like a
client's command, so recovery never reads a clock. The rules by which streams are trimmed are in
:mod:`millstream.node.maintenance.retention`.
"""

from itertools import islice

from millstream.clock import Now
from millstream.commands.context.context import Context
from millstream.engine.keyspace import Keyspace, Transition
from millstream.engine.streams.stream import Stream
from millstream.node.maintenance.retention import Retention

# Milliseconds between rounds while there are keys with an expiry
INTERVAL = 100
# Milliseconds between checks of the messages that streams remember. Until then a stream still remembers an outdated
# message, as Redis does, so XIDMPRECORD accepts it and it remains visible.
FORGETTING = 1000
# Number of keys examined in one round
SAMPLE = 1000
# Bytes of names after which a round deletes no more keys, since one log record contains them all
NAMED = 1 << 24


class Cron:
    """Tracks the databases with expiring keys, and the streams with producers' messages."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._expire_at: int | None = None  # monotonic milliseconds of the next check of keys with an expiry
        self._forget_at: int | None = None  # monotonic milliseconds of the next check of messages
        self._remembering: set[tuple[int, bytes]] = set()
        self._position = 0  # position in the keys with an expiry at which the last round stopped

    def observe(self, step: Transition, now: Now) -> None:
        """Note a transition that may cause periodic work."""
        self._retention.observe(step)
        op = step[0]
        if op == "xadd":
            if step[6] is not None:
                self._remember(step[1], step[2], now)
        elif op in {"set", "expire", "restore"}:
            if step[-1] is not None:
                self._expire_soon(now)
            if op == "restore":
                self._remember(step[1], step[2], now)
        elif op in {"move", "copy"}:
            self._expire_soon(now)
            self._remember(step[3], step[4], now)
        elif op in {"xidmp", "xidmppid"}:
            self._remember(step[1], step[2], now)
        elif op == "swap":
            for place in list(self._remembering):
                self._remembering |= {(step[1], place[1]), (step[2], place[1])}

    def _remember(self, db: int, key: bytes, now: Now) -> None:
        self._remembering.add((db, key))
        if self._forget_at is None:
            self._forget_at = now.mono + FORGETTING

    def _expire_soon(self, now: Now) -> None:
        if self._expire_at is None:
            self._expire_at = now.mono

    def recovered(self, wall: int) -> None:
        """Note the time of the last record of a log that was read."""
        self._retention.recovered(wall)

    def scan(self, space: Keyspace) -> None:
        """Search a recovered keyspace for work; the first round does what is overdue."""
        self._retention.scan(space)
        for db in space.databases:
            if db.expires:
                self._expire_at = 0
            for key, value in db.keys.items():
                if isinstance(value, Stream) and value.idempotence.producers:
                    self._remembering.add((db.index, key))
                    self._forget_at = 0

    def next_due(self) -> int | None:
        """Monotonic milliseconds of the next round; None if there is no work."""
        known = (self._expire_at, self._forget_at, self._retention.next_due())
        moments = [moment for moment in known if moment is not None]
        return min(moments) if moments else None

    def is_due(self, now: Now) -> bool:
        """True if a round should run now."""
        due = self.next_due()
        return due is not None and now.mono >= due

    def is_forgetting(self, now: Now) -> bool:
        """True if a round run now would expire messages."""
        return self._forget_at is not None and now.mono >= self._forget_at

    def run(self, ctx: Context, now: Now) -> None:
        """Run one round."""
        if self._expire_at is not None and now.mono >= self._expire_at:
            self._expire_keys(ctx)
            has_more = any(db.expires for db in ctx.host.keyspace.databases)
            self._expire_at = now.mono + INTERVAL if has_more else None
        if self.is_forgetting(now):
            self._forget_messages(ctx, now)
            self._forget_at = now.mono + FORGETTING if self._remembering else None
        if self.is_trimming(now):
            self.trim(ctx, now)

    def next_trim(self) -> int | None:
        """Monotonic milliseconds of the next round of retention; None if no stream has a rule."""
        return self._retention.next_due()

    def is_trimming(self, now: Now) -> bool:
        """True if a round of retention is due."""
        due = self._retention.next_due()
        return due is not None and now.mono >= due

    def trim(self, ctx: Context, now: Now) -> None:
        """Run one round of retention."""
        self._retention.run(ctx, now)

    def _expire_keys(self, ctx: Context) -> None:
        """Delete expired keys among a limited number of those with expiry times; the next round continues after them.

        Redis samples at random and repeats while many were overdue. Walking in order visits each key once per pass, and
        limits the cost of a round.
        """
        if not ctx.host.config.expires_unasked or ctx.host.is_replica:
            return
        has_expired = False
        named = 0
        has_more = False
        for db in ctx.host.keyspace.databases:
            keys = list(islice(db.expires, self._position, self._position + SAMPLE))
            has_more = has_more or len(keys) == SAMPLE
            for key in keys:
                if named < NAMED and db.is_expired(key, ctx.now.wall):
                    ctx.lookup(key, db)
                    has_expired = True
                    named += len(key)
        if not has_more:
            self._position = 0
        elif not has_expired:  # deleted keys let others move up, which are examined next
            self._position += SAMPLE

    def _forget_messages(self, ctx: Context, now: Now) -> None:
        """Drop old messages of idempotent producers; stop tracking streams that are gone or have no messages."""
        for place in list(self._remembering):
            stream = ctx.host.keyspace.databases[place[0]].keys.get(place[1])
            if not isinstance(stream, Stream) or not stream.idempotence.producers:
                self._remembering.discard(place)
            elif stream.idempotence.has_expired(now.wall):
                ctx.commit(("xidmpexp", place[0], place[1], now.wall))
