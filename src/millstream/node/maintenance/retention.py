"""Retention: streams lose their oldest entries by age and size, according to ``stream-retention``.

The primary trims by XTRIM's transition, so recovery and replicas need no rules. Entries go by whole nodes: that needs
no reading of entries, and gives one record for some hundred of them.

Only streams with a rule are tracked, so other keys cost nothing. A round visits a limited number of streams and removes
a limited number of nodes; the next round continues. Ages depend on the wall clock, so they do not count for an hour
after it went forward, or at a start if the log's last record is old.
"""

from dataclasses import replace

from millstream.clock import Now
from millstream.commands.context.config import Config
from millstream.commands.context.context import Context
from millstream.commands.streams.trimming import packed_bound
from millstream.engine import ids
from millstream.engine.cold import ColdDamage, each_extent
from millstream.engine.keyspace import Keyspace, Transition, filled_places
from millstream.engine.streams.stream import Stream
from millstream.glob import Rule
from millstream.logs import logger
from millstream.node.stats import NodeStats
from millstream.printable import printable

log = logger("millstream.node")

# Milliseconds between passes over all streams, and between the rounds of a pass
INTERVAL, SOON = 1000, 100
# Limits of a round, which takes a few milliseconds: streams examined, nodes removed
LOOKED, NODES = 500, 2000
# Number of nodes that a size limit never removes
LEFT = 2
# Bytes of a key in a warning
_SHOWN = 100
# Milliseconds before a warning is repeated
_SAID_AGAIN = 60_000
# Streams that the log names when their entries begin to go, from one change of the rules to the next
NAMED = 50
# Milliseconds by which the wall clock may gain on the monotonic one between two rounds, and of the pause if it did. The
# pause is also the greatest age of the log's last record at a start without one
JUMP, PAUSE = 300_000, 3_600_000

Place = tuple[int, bytes]


class Retention:
    """The streams with rules, and the times of their next visits."""

    def __init__(self, config: Config, stats: NodeStats) -> None:
        self._config, self._stats = config, stats
        self._rules = config.retention  # Rules at the time of the last scan
        self._places: dict[Place, Rule] = {}
        self._turn: list[Place] = []  # Remaining streams of this pass, in reverse order
        self._due = 0  # monotonic milliseconds of the next round
        self._damaged: set[Place] = set()  # Streams whose damage was reported
        self._warned_at: int | None = None  # wall milliseconds of the last warning
        self._begun: set[Place] = set()  # Streams that have lost entries by the present rules, as far as they are named
        self._ahead: int | None = None  # Wall minus monotonic milliseconds at the last round
        self._recovered_wall = 0  # wall milliseconds of the log's last record at the start; 0 if unknown
        self._young_until = 0  # monotonic milliseconds until which ages do not count

    def scan(self, space: Keyspace) -> None:
        """Find the streams with rules in a recovered keyspace, or after a change of the rules."""
        self._rules, self._places, self._turn, self._due = self._config.retention, {}, [], 0
        if self._rules.rules:
            for db in space.databases:
                for key, value in db.keys.items():
                    if isinstance(value, Stream):
                        self._add(db.index, key)

    def recovered(self, wall: int) -> None:
        """Note the time of the last record of a log that was read."""
        self._recovered_wall = wall

    def observe(self, step: Transition) -> None:
        """Note a transition that may have made a stream."""
        if not self._rules.rules:
            return
        for db, key in filled_places(step, self._places):
            self._add(db, key)

    def _add(self, db: int, key: bytes) -> None:
        rule = self._rules.find(key)
        if rule is not None:
            self._places[db, key] = rule

    def next_due(self) -> int | None:
        """Monotonic milliseconds of the next round; None if no stream has a rule."""
        if self._rules is not self._config.retention:
            return 0
        return self._due if self._places else None

    def run(self, ctx: Context, now: Now) -> None:
        """Run one round."""
        if self._rules is not self._config.retention:
            self.scan(ctx.host.keyspace)
            self._begun, self._ahead, self._recovered_wall, self._young_until = set(), None, 0, 0
        self._check_clock(now)
        if ctx.host.is_replica:  # its primary removes the entries
            self._due = now.mono + INTERVAL
            return
        if not self._turn:
            self._turn = list(self._places)[::-1]
        looked, room = 0, NODES
        while self._turn and looked < LOOKED and room:
            looked += 1
            place = self._turn.pop()
            try:
                room -= self._look(ctx, place, room)
            except ColdDamage as damage:
                self._tell_damage(place, damage)
                continue
            if not room:
                self._turn.append(place)  # more of its entries may have to go
        self._due = now.mono + (INTERVAL if room and not self._turn else SOON)

    def _check_clock(self, now: Now) -> None:
        """Let no age count for a while if the wall clock went forward, since all entries would seem old.

        A start knows only the time of the last record, so it cannot tell a wrong clock from a long time without writes.
        """
        ahead, before = now.wall - now.mono, self._ahead
        self._ahead = ahead
        if before is not None:
            gained, most = ahead - before, JUMP
            seen = f"the clock went forward by {gained // 1000} s"
        else:
            gained, most = now.wall - self._recovered_wall if self._recovered_wall else 0, PAUSE
            seen = f"the last record of the log is {gained // 1000} s old"
        if gained > most:
            self._young_until = now.mono + PAUSE
            log.warning(
                "%s; retention by age pauses for an hour. If the clock is right now, set stream-retention again, which "
                "ends the pause",
                seen,
            )

    def _look(self, ctx: Context, place: Place, room: int) -> int:
        """Trim one stream; return the number of removed nodes."""
        db = ctx.host.keyspace.databases[place[0]]
        stream, rule = db.keys.get(place[1]), self._places[place]
        if ctx.now.mono < self._young_until:
            rule = replace(rule, age=0)
        if not isinstance(stream, Stream):
            del self._places[place]
            return 0
        if db.is_expired(place[1], ctx.now.wall):
            return 0
        floor = stream.needed_from() if self._config.retention_holds else ids.MAX_ID + 1
        nodes, bound, unread = find_bound(stream, rule, ctx.now.wall, floor, room)
        if nodes:
            ctx.db, before = db, stream.length
            removed = ctx.commit(("xtrim", *place, packed_bound(bound), False, True))
            if removed:
                ctx.notify("t", "xtrim", place[1])
                ctx.touch(place[1])
                ctx.dirty += removed
                self._tell_begin(place, rule, removed, before)
            self._count(place[1], removed, unread, ctx.now.wall)
        return nodes

    def _tell_begin(self, place: Place, rule: Rule, removed: int, before: int) -> None:
        """Log once that a stream begins to lose entries; not for each of very many streams."""
        if place in self._begun or len(self._begun) > NAMED:
            return
        self._begun.add(place)
        if len(self._begun) > NAMED:
            log.info("retention begins to remove entries of more streams, which are not named here")
            return
        log.info(
            "retention begins to remove entries of %s: %d of %d at first, by the rule '%s' of stream-retention",
            _name(place[1]),
            removed,
            before,
            _printed(rule.text),
        )

    def _tell_damage(self, place: Place, damage: ColdDamage) -> None:
        """Report once that a stream keeps entries until their extent goes as a whole, since it cannot be read."""
        if place not in self._damaged:
            self._damaged.add(place)
            log.error(
                "retention removes the oldest entries of %s later, since they cannot be read (%s)",
                _name(place[1]),
                damage,
            )

    def _count(self, key: bytes, removed: int, unread: int, wall: int) -> None:
        self._stats.retained_no_more += removed
        self._stats.removed_unread += unread
        if unread and (self._warned_at is None or not 0 <= wall - self._warned_at < _SAID_AGAIN):
            self._warned_at = wall
            log.warning(
                "retention removed %d entries of %s that a group had not read. Start its consumers, or lengthen "
                "stream-retention",
                unread,
                _name(key),
            )


def _name(key: bytes) -> str:
    return _printed(key[:_SHOWN].decode("utf-8", "surrogateescape"))


def _printed(text: str) -> str:
    return printable(text[:_SHOWN]).replace("\n", " ")


def find_bound(stream: Stream, rule: Rule, wall: int, floor: int, room: int) -> tuple[int, int, int]:
    """Find the nodes to remove by a rule, at most ``room``, and none with an id from ``floor`` on.

    An extent goes as a whole if it can, and counts as one node then. It is not read, so damage in it does not matter.

    Returns:
        Their number, the id below which entries are removed, and how many of those a group has not read.
    """
    entries, oldest = stream.entries, 0
    if rule.age and ids.is_timed(entries.last_live_id, wall):
        oldest = ids.make(max(wall - rule.age, 0), 0)
    left, size = entries.node_count, entries.taken + entries.cold_bytes
    if entries.first_id >= oldest and not 0 < rule.size < size:
        return 0, 0, 0
    hindmost = min((group.last_id for group in stream.groups.values()), default=ids.MAX_ID)
    gone = unread = 0
    bound = entries.first_id
    for live, last, nodes, length in each_extent(entries):
        is_large = rule.size and size - length >= rule.size and left - nodes >= LEFT
        if gone == room or last >= floor or not (last < oldest or is_large):
            break
        unread += _unread(stream, live, bound, last, hindmost)
        size, left, gone, bound = size - length, left - nodes, gone + 1, last + 1
    try:
        for node in entries.nodes(gone):
            last = node.last
            is_large = rule.size and size > rule.size and left > LEFT
            if gone == room or last >= floor or not (last < oldest or is_large):
                return gone, node.first, unread
            unread += _unread(stream, node.live, node.first, last, hindmost)
            size, left, gone, bound = size - node.footprint, left - 1, gone + 1, last + 1
    except ColdDamage:
        if not gone:
            raise
        return gone, bound, unread
    return gone, ids.MAX_ID + 1, unread


def _unread(stream: Stream, live: int, first: int, last: int, hindmost: int) -> int:
    """Count the live entries between two ids that the hindmost group has not read; all of them if they are damaged."""
    if not first <= hindmost < last:
        return live if last > hindmost else 0
    try:
        return len(stream.entries.ids(hindmost + 1, last))
    except ColdDamage:
        return live
