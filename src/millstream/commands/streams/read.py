"""Commands that read entries: XRANGE XREVRANGE XREAD XREADGROUP.

The engine's store of entries returns a range in wire form; nothing is encoded here. Read XRANGE first, then XREAD,
which adds several streams, budgets and waiting, then XREADGROUP, which changes state.

**Waiting.** A handler that finds nothing raises :class:`Blocked` with the command line to run again. The node lets the
session wait, and runs the *whole command* again once a key is signalled, after the transaction that signalled it. The
arguments, the group and the consumer are looked up again, so the same code notices all changes to them. The deadline
stays that of the first attempt. Only ``$`` must be resolved before, since "new" means new since the first attempt.

**XREADGROUP** is a write: all refusals are checked for all streams before the first of them changes, since a command
that has committed cannot fail any more.

Source: the command pages at https://redis.io/docs/latest/commands/ and, where they differ, the server's behaviour.
"""

from contextlib import suppress
from functools import partial
from itertools import islice

from millstream.commands.context.context import Blocked, Context
from millstream.commands.streams.options import ReadOptions, parse_read
from millstream.commands.streams.visits import attend, note_seen
from millstream.commands.table.args import SYNTAX, entry_id, integer, keyword, range_end, range_start, shown
from millstream.commands.table.table import STREAM
from millstream.engine import ids
from millstream.engine.cold import ColdDamage, Lost, up_to_damage, want
from millstream.engine.keyspace import Database, Transition
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.group import Group, next_count
from millstream.engine.streams.nodes import ENTRY_HEADER
from millstream.engine.streams.pending import Pending
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.replies import NIL_ARRAY, Buffer, Map, Raw, Reply

CLAIMED_HEADER = b"*4\r\n"


def _claimed_row(entry: Buffer, idle: int, count: int) -> bytes:
    """A stored entry in CLAIM's form: ``[id, [fields], idle milliseconds, earlier deliveries]``.

    The stored entry is an array of two; its header is replaced and two numbers are appended.
    """
    return b"".join((CLAIMED_HEADER, entry[len(ENTRY_HEADER) :], b":%d\r\n:%d\r\n" % (idle, count)))


def array_of(count: int, buffers: list[Buffer]) -> Raw:
    """Return an array of entries that are already in wire form."""
    buffers.insert(0, b"*%d\r\n" % count)
    return Raw(buffers)


def range_of(argv: list[bytes], *, backwards: bool) -> tuple[int, int, int]:
    """Parse XRANGE or XREVRANGE: both ends, and the largest number of entries, -1 for all."""
    first, second = (argv[3], argv[2]) if backwards else (argv[2], argv[3])
    start, end = range_start(first), range_end(second)
    count = -1
    at = 4
    while at < len(argv):
        if keyword(argv[at]) != b"COUNT" or at + 1 >= len(argv):
            raise SYNTAX
        count = max(integer(argv[at + 1]), 0)
        at += 2
    return start, end, count


def _range(ctx: Context, argv: list[bytes], *, backwards: bool) -> Reply:
    """XRANGE and XREVRANGE, which differ in the order of two arguments and of the reply.

    Both ends are parsed before COUNT, and COUNT before the key is looked up. COUNT 0 replies null for a stream and an
    empty array for a missing key; a negative one does the same, as in Redis. A missing sequence is 0 at the start and
    the largest at the end, so ``5 5`` is the whole millisecond.
    """
    start, end, count = range_of(argv, backwards=backwards)
    stream = ctx.lookup_as(argv[1], Stream)
    if stream is None:
        return []
    if count == 0:
        return NIL_ARRAY
    number, buffers, _ = stream.entries.reply(start, end, count, backwards=backwards)
    return array_of(number, buffers)


@STREAM.command("xrange", -4, "readonly")
def xrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Entries between two ids, oldest first."""
    return _range(ctx, argv, backwards=False)


@STREAM.command("xrevrange", -4, "readonly")
def xrevrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Entries between two ids, newest first."""
    return _range(ctx, argv, backwards=True)


class _Answer:
    """The reply in the making, with the budgets of MAXCOUNT and MAXSIZE.

    MAXSIZE is soft: it is checked before each entry, and the first entry is always sent; otherwise a client could never
    read past an entry larger than its budget. It counts bytes of the reply in Redis's encoding, including headers, so
    that both servers stop at the same entry.
    """

    __slots__ = ("_left", "_limit", "_resp", "emitted", "size", "streams")

    def __init__(self, options: ReadOptions, resp: int) -> None:
        self.streams: list[tuple[bytes, Raw]] = []  # Key and entries of each stream in the reply
        # Size of the reply so far in bytes, as Redis counts it; only headers count if no MAXSIZE was given
        self.size = 0
        self.emitted = 0  # Entries in the reply so far
        self._left = options.max_count
        self._limit = options.max_size
        self._resp = resp

    def is_full(self) -> bool:
        """True if nothing more may be added."""
        if self._left is not None and self._left <= 0:
            return True
        return self._limit is not None and self.emitted > 0 and self.size >= self._limit

    def begin(self, key: bytes) -> None:
        """Count a stream's header.

        It is the key as a bulk string (five bytes on top of key and length) and, in RESP2, the head of the pair's
        array.
        """
        self.size += len(key) + len(b"%d" % len(key)) + 5 + (4 if self._resp == 2 else 0)

    def end(self, key: bytes, count: int, buffers: list[Buffer]) -> None:
        """Add a stream with its entries."""
        self.size += len(b"*%d\r\n" % count)
        self.streams.append((key, array_of(count, buffers)))

    def bound(self, count: int) -> int:
        """The number of entries that one stream may reply; -1 for all."""
        if self._left is None:
            return count
        return self._left if count < 0 else min(count, self._left)

    def take(self, entries: EntryStore, after: int, bound: int) -> tuple[int, list[Buffer], int]:
        """Return entries above an id within the budgets: their number, their bytes, and the last id.

        Only with a budget of bytes, or for those before damage, is each entry visited.
        """
        if self._limit is None:
            with suppress(ColdDamage):
                count, buffers, last = entries.reply(after + 1, ids.MAX_ID, bound)
                self.emitted += count
                if self._left is not None:
                    self._left -= count
                return count, buffers, last
        rows: list[Buffer] = []
        last = 0
        for entry, row in up_to_damage(entries.rows(after + 1, ids.MAX_ID, bound)):
            if self.is_full():
                break
            self.add(len(row))
            rows.append(row)
            last = entry
        return len(rows), rows, last

    def add(self, size: int) -> None:
        """Count one entry of this many bytes."""
        self.size += size
        self.emitted += 1
        if self._left is not None:
            self._left -= 1

    def reply(self) -> Reply:
        """The whole reply: a map in RESP3, pairs in RESP2, null if there are no entries."""
        if not self.streams:
            return NIL_ARRAY
        if self._resp == 3:
            return Map(list(self.streams))
        return [[key, entries] for key, entries in self.streams]


@STREAM.command("xread", -4, "readonly blocking movablekeys", keys=(0, 0, 0))
def xread(ctx: Context, argv: list[bytes]) -> Reply:
    """Entries above an id, of several streams.

    All ids are parsed and all types checked before anything is read. A stream may be named several times, and is read
    each time. The client waits only if no stream has entries.
    """
    options = parse_read(argv, "xread", ctx.now.wall)
    plan: list[tuple[bytes, Stream | None, int]] = []
    for key, word in zip(options.keys, options.words, strict=True):
        stream = ctx.lookup_as(key, Stream)
        plan.append((key, stream, read_position(stream, word)))
    answer = _Answer(options, ctx.session.resp)
    ctx.damage = None  # that of an earlier attempt
    for (key, stream, after), word in zip(plan, options.words, strict=True):
        if answer.is_full():
            break
        if stream is None and ctx.tells_misses:
            ctx.missed(key)  # Redis looks the key up twice, for the position and for the entries
        if stream is None or stream.length == 0 or stream.entries.last_live_id <= after:
            continue
        count = 1 if word == b"+" else options.count
        answer.begin(key)
        try:
            taken, buffers, _ = answer.take(stream.entries, after, answer.bound(count))
        except ColdDamage as damage:  # the other streams are read, as in XREADGROUP
            ctx.damage = ctx.damage or damage
            continue
        answer.end(key, taken, buffers)
    if ctx.damage is not None and not answer.streams:
        raise ctx.damage
    if not answer.streams and options.block is not None and ctx.may_block:
        frozen = argv.copy()
        half = len(options.keys)
        for index, (_, _, after) in enumerate(plan):
            if options.words[index] == b"$":
                frozen[options.streams_at + half + index] = ids.text(after)
        glance = partial(_glance, plan[0][0], plan[0][2]) if half == 1 and options.words[0] != b"+" else None
        raise Blocked(options.keys, options.block, frozen, glance=glance)
    return answer.reply()


def _glance(key: bytes, after: int, db: Database, wall: int) -> list[Transition] | None:  # noqa: ARG001 - as of a group
    """Return an empty list if XREAD of one key would find nothing, else None: see :class:`Blocked`."""
    stream = db.keys.get(key)
    if type(stream) is not Stream or key in db.expires or (stream.length and stream.entries.last_live_id > after):
        return None
    return []


def read_position(stream: Stream | None, word: bytes) -> int:
    """The id above which XREAD reads.

    ``$`` is the last generated id, 0-0 for a missing stream. ``+`` requests the last live entry, so it is one less than
    that entry's id. Unlike ``$`` it is resolved again each time a waiting command runs.
    """
    if word == b"$":
        return 0 if stream is None else stream.last_id
    if word == b"+":
        return 0 if stream is None or stream.length == 0 else stream.entries.last_live_id - 1
    if word == b">":
        raise CommandError(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
        )
    return entry_id(word)


def meaningless(sign: str) -> str:
    """The error for ``$`` and ``+`` in XREADGROUP, which takes neither."""
    return (
        f"ERR The {sign} ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer "
        "by specifying a proper ID, or use the > ID to get new messages. "
        f"The {sign} ID would just return an empty result set."
    )


@STREAM.command("xreadgroup", -7, "write blocking movablekeys", keys=(0, 0, 0))
def xreadgroup(ctx: Context, argv: list[bytes]) -> Reply:
    """Entries for a consumer: new ones (``>``), claimed ones (CLAIM), or its own pending ones (an id).

    With CLAIM stale entries come before new ones, and every row has four elements, new ones too. An id in place of
    ``>`` disables CLAIM for its stream, and for all streams after it, as in Redis; clients see it by the form of rows.

    Each stream served counts as one change, for any number of entries; reading a consumer's own history does not count.
    NOACK delivers without a record, and still moves the group's position.
    """
    options = parse_read(argv, "xreadgroup", ctx.now.wall)
    plan = _plan_group_read(ctx, options)
    want_all(plan, options)
    answer = _Answer(options, ctx.session.resp)
    claiming = options.claim is not None
    claimers: list[_GroupRead] = []
    ctx.damage = None  # that of an earlier attempt
    for key, stream, group, after in plan:
        if answer.is_full():
            break
        reader = _GroupRead(ctx, options, answer, key, stream, group)
        claiming = claiming and after is None  # one read of the history switches CLAIM off for all later streams
        try:
            reader.run(after, claim=claiming)
        except ColdDamage as damage:
            ctx.damage = ctx.damage or damage
            continue
        if claiming:
            claimers.append(reader)
    if ctx.damage is not None and not answer.streams:  # otherwise the client gets what was delivered to it
        raise ctx.damage
    if not answer.streams and options.block is not None and ctx.may_block:
        due = partial(_next_claim, claimers) if claimers else None
        is_one = len(options.keys) == 1 and due is None and plan[0][3] is None
        glance = partial(_glance_as_group, options.keys[0], options.group, options.consumer) if is_one else None
        raise Blocked(options.keys, options.block, argv, group_wait=True, due=due, glance=glance)
    return answer.reply()


def _glance_as_group(
    key: bytes, name: bytes | None, consumer: bytes, db: Database, wall: int
) -> list[Transition] | None:
    """Return the transition of the consumer's visit, if any, if XREADGROUP would find nothing new; else None.

    It is for a command with only one key.
    """
    stream = db.keys.get(key)
    if type(stream) is not Stream or key in db.expires or name is None:
        return None
    group = stream.groups.get(name)
    reader = None if group is None else group.consumers.get(consumer)
    if group is None or reader is None or (stream.length and stream.entries.last_live_id > group.last_id):
        return None
    return [] if reader.seen == wall else [("cseen", db.index, key, name, consumer, wall)]


def _plan_group_read(ctx: Context, options: ReadOptions) -> list[tuple[bytes, Stream, Group, int | None]]:
    """Check everything that can be refused before anything changes; None in a result means ``>``.

    Each stream is checked completely, in the order of the arguments. So of two errors the client gets the one of the
    first stream.
    """
    assert options.group is not None
    plan: list[tuple[bytes, Stream, Group, int | None]] = []
    for key, word in zip(options.keys, options.words, strict=True):
        stream = ctx.lookup_as(key, Stream)
        group = None if stream is None else stream.groups.get(options.group)
        if stream is None or group is None:
            raise CommandError(no_group(key, options.group) + " in XREADGROUP with GROUP option")
        if word in {b"$", b"+"}:
            raise CommandError(meaningless(word.decode()))
        after = None if word == b">" else entry_id(word)
        # Redis itself represents ">" by the largest id, so a client that sends that id also gets new entries
        plan.append((key, stream, group, None if after == ids.MAX_ID else after))
    return plan


def want_all(plan: list[tuple[bytes, Stream, Group, int | None]], options: ReadOptions) -> None:
    """Ask for the cold entries that a command will read, as far as can be seen, before it changes anything."""
    for _, stream, group, after in plan:
        if not stream.entries.extent_count:
            continue
        count = options.most(stream.entries)
        with suppress(ColdDamage):  # it may lie behind what is delivered, and other streams are read
            if after is None:
                stream.entries.want_range(group.last_id + 1, ids.MAX_ID, count)
        most = None if count < 0 else count
        if after is not None and options.consumer in group.consumers:
            records = group.consumers[options.consumer].pending.walk(after + 1)
            want(stream.entries, [record.id for record in islice(records, most)])
        elif options.claim is not None:
            want(stream.entries, [record.id for record in islice(group.order, most)])


def no_group(key: bytes, group: bytes) -> str:
    """The NOGROUP error for a key and a group; it does not reveal which of them is missing."""
    return f"NOGROUP No such key '{shown(key)}' or consumer group '{shown(group)}'"


class _GroupRead:
    """One stream of an XREADGROUP."""

    __slots__ = ("_answer", "_buffers", "_consumer", "_count", "_ctx", "_group", "_key", "_name", "_options", "_stream")

    def __init__(
        self, ctx: Context, options: ReadOptions, answer: _Answer, key: bytes, stream: Stream, group: Group
    ) -> None:
        assert options.group is not None
        self._ctx = ctx
        self._options = options
        self._answer = answer
        self._key = key
        self._stream = stream
        self._group = group
        self._name = options.group
        self._consumer = options.consumer
        self._count = 0
        self._buffers: list[Buffer] = []

    def run(self, after: int | None, *, claim: bool) -> None:
        """Read the stream: the consumer's history above an id, or with None new and stale entries."""
        place = (self._ctx, self._key, self._name, self._group, self._consumer)
        attend(*place)
        if after is None:
            self.new(claim=claim)
        else:
            self.history(after)
        note_seen(*place)

    def history(self, after: int) -> None:
        """The consumer's own pending entries above an id; a deleted entry shows as null.

        Existing ones count one more delivery, with the present time. So a consumer that works off its history after a
        crash does not look idle. Records of deleted entries do not change, and await XACK. Those of damaged entries are
        left out.
        """
        self._answer.begin(self._key)
        again: list[int] = []
        bound, lost = self._answer.bound(self._options.count), Lost()
        for record in self._group.consumers[self._consumer].pending.walk(after + 1):
            if self._count == bound or self._answer.is_full():
                break
            if record.id in lost:
                continue
            try:
                wire: Buffer | None = self._stream.entries.wire(record.id)
            except ColdDamage as damage:
                lost.add(damage)
                continue
            if wire is None:
                name, null = ids.text(record.id), b"_\r\n" if self._ctx.session.resp == 3 else b"*-1\r\n"
                wire = b"*2\r\n$%d\r\n%b\r\n%b" % (len(name), name, null)
            else:
                again.append(record.id)
            self._emit(wire)
        self._ctx.damage = self._ctx.damage or lost.damage
        if lost.damage is not None and not self._count:
            raise lost.damage
        if again:
            self._commit("gagain", self._ctx.now.wall, ids.pack_all(again))
        self._answer.end(self._key, self._count, self._buffers)

    def new(self, *, claim: bool) -> None:
        """Stale entries first with CLAIM, then new ones."""
        stale = self._stale() if claim else []
        entries = self._stream.entries
        has_new = entries.length > 0 and entries.last_live_id > self._group.last_id
        if not stale and not has_new:
            return
        self._answer.begin(self._key)
        if stale:
            self._claim(stale)
        if has_new:
            self._deliver(claim=claim)
        self._answer.end(self._key, self._count, self._buffers)
        self._ctx.dirty += 1

    def _stale(self) -> list[Pending]:
        """Records of existing entries that are idle long enough, in time order, within the limits.

        The group's records are in order of delivery time, released ones first: the walk ends at the first that is too
        fresh. CLAIM 0 takes all, also those with a time ahead of a clock that was set back.
        """
        assert self._options.claim is not None
        latest = self._ctx.now.wall - self._options.claim
        bound = self._answer.bound(self._options.count)
        found: list[Pending] = []
        lost = Lost()
        for record in self._group.order:
            if (record.time > latest and self._options.claim) or len(found) == bound:
                break
            try:
                if record.id not in lost and record.id in self._stream.entries:
                    found.append(record)
            except ColdDamage as damage:
                lost.add(damage)
        self._ctx.damage = self._ctx.damage or lost.damage
        return found

    def _claim(self, stale: list[Pending]) -> None:
        """Move stale records to the consumer; the rows show their earlier idle times and counts."""
        taken: list[int] = []
        counts: list[int] = []
        now = self._ctx.now.wall
        for record in stale:
            if self._answer.is_full():
                break
            wire = self._stream.entries.wire(record.id)
            assert wire is not None
            idle = max(now - record.time, 0)
            self._emit(_claimed_row(wire, idle, record.count))
            taken.append(record.id)
            counts.append(next_count(record.count))
        if taken:
            self._commit("gclaim", now, now, ids.pack_all(taken), counts)

    def _deliver(self, *, claim: bool) -> None:
        """Deliver new entries within the budgets; one transition moves the position and makes all records."""
        bound = self._answer.bound(self._options.count)
        if bound >= 0 and self._options.count > 0:
            bound = min(bound, self._options.count - self._count)
        if bound == 0 or self._answer.is_full():
            return
        if claim:
            last = self._emit_rows(bound)
        else:
            count, buffers, last = self._answer.take(self._stream.entries, self._group.last_id, bound)
            self._count += count
            self._buffers += buffers
        if last:
            after = ids.pack(self._group.last_id)
            self._commit("gread", self._ctx.now.wall, ids.pack(last), self._options.noack, after)

    def _emit_rows(self, bound: int) -> int:
        """Reply new entries in CLAIM's form with four elements, up to damage; return the last id."""
        last = 0
        try:
            for entry, row in self._stream.entries.rows(self._group.last_id + 1, ids.MAX_ID, bound):
                if self._answer.is_full():
                    break
                self._emit(_claimed_row(row, 0, 0))
                last = entry
        except ColdDamage as damage:
            if not self._count:
                raise
            self._ctx.damage = damage
        return last

    def next_claim(self) -> int | None:
        """Wall milliseconds at which the oldest record with an existing entry will be idle long enough.

        A cold entry that is not due yet counts as existing: the command asks for it when it runs again.
        """
        assert self._options.claim is not None
        entries, ran_at = self._stream.entries, self._ctx.now.wall
        for record in self._group.order:
            try:
                is_later = record.id <= entries.cold_last and record.time + self._options.claim > ran_at
                is_there = is_later or record.id in entries
            except ColdDamage:
                is_there = True  # the command then runs again, and reports the damage
            if is_there:
                return record.time + self._options.claim
        return None

    def _emit(self, row: Buffer) -> None:
        self._count += 1
        self._buffers.append(row)
        self._answer.add(len(row))
        self._ctx.expect_small(self._answer.size)

    def _commit(self, op: str, *rest: object) -> None:
        ctx = self._ctx
        ctx.commit((op, ctx.db.index, self._key, self._name, self._consumer, *rest))


def _next_claim(readers: list[_GroupRead]) -> int | None:
    """Wall milliseconds at which the first of several streams will have an entry to claim."""
    moments = [moment for reader in readers if (moment := reader.next_claim()) is not None]
    return min(moments) if moments else None
