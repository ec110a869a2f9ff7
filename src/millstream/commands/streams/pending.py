"""Commands on pending entries: XACK XACKDEL XNACK XPENDING XCLAIM XAUTOCLAIM.

A pending record states that an entry was delivered and is not acknowledged: its consumer, the time, and the number of
deliveries. It belongs to the group and outlives the entry: XDEL and trimming leave it, so every command here must
handle a deleted entry. XCLAIM and XAUTOCLAIM remove such records.

A record without an owner was released by XNACK. It has no time, so any claim takes it, whatever the minimum idle time.

The commands differ in their first checks, as in Redis:
* XACK and XACKDEL reply 0, or -1 for each id, for a missing key or group, and parse the ids only if both exist;
* XNACK, XCLAIM and XPENDING with three arguments refuse a missing group (NOGROUP) before their options;
* XAUTOCLAIM and XPENDING with a range refuse their options first.

Source: the command pages at https://redis.io/docs/latest/commands/ and, where they differ, the server's behaviour.
"""

from dataclasses import dataclass
from itertools import islice

from millstream.commands.context.context import Context
from millstream.commands.streams.read import array_of, no_group
from millstream.commands.streams.visits import attend, note_seen
from millstream.commands.streams.write import delete_entries, parse_id_block, unreference
from millstream.commands.table.args import (
    LLONG_MAX,
    SYNTAX,
    entry_id,
    entry_ids,
    integer,
    keyword,
    range_end,
    range_start,
    read_integer,
    shown,
)
from millstream.commands.table.table import STREAM
from millstream.engine import ids
from millstream.engine.cold import ColdDamage, Lost, want
from millstream.engine.cold_ops import foresee_delete
from millstream.engine.streams.group import ATTEMPTS, Group, find_claimable, next_count
from millstream.engine.streams.pending import MAX_DELIVERIES, Pending
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.replies import NIL_ARRAY, Buffer, Reply

MAX_AUTOCLAIM_COUNT = LLONG_MAX // 16
# From this COUNT on, Redis fails to allocate 16 bytes for each entry: 64 GiB
_TOO_MANY = 2**32
# Redis stores the number of ids in an int for XNACK, but not for XACKDEL and XDELEX
INT_MAX = 2**31 - 1


def find_group(ctx: Context, key: bytes, name: bytes) -> tuple[Stream, Group] | None:
    """Return the stream and the group, or None if either is missing."""
    stream = ctx.lookup_as(key, Stream)
    group = None if stream is None else stream.groups.get(name)
    return None if stream is None or group is None else (stream, group)


def existing_group(ctx: Context, key: bytes, name: bytes) -> tuple[Stream, Group]:
    """Return the stream and the group, both of which must exist."""
    found = find_group(ctx, key, name)
    if found is None:
        raise CommandError(no_group(key, name))
    return found


@STREAM.command("xack", -4, "write fast")
def xack(ctx: Context, argv: list[bytes]) -> Reply:
    """Acknowledge entries; replies the number that were pending.

    Any consumer may acknowledge entries of another consumer, or without an owner. A repeated id counts once. There is
    no keyspace event, and no client waits for it.
    """
    found = find_group(ctx, argv[1], argv[2])
    if found is None:
        return 0
    pending = found[1].pending
    # All ids are parsed before the first is acknowledged: one invalid id makes the whole command fail
    there = list(dict.fromkeys([entry for entry in entry_ids(argv[3:]) if entry in pending]))
    if there:
        _forget(ctx, argv[1], argv[2], there)
    return len(there)


def _forget(ctx: Context, key: bytes, group: bytes, there: list[int]) -> None:
    """Drop pending records of a group; each one counts as a change, as in Redis."""
    ctx.commit(("gack", ctx.db.index, key, group, ids.pack_all(there)))
    ctx.dirty += len(there)


@STREAM.command("xackdel", -6, "write fast")
def xackdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Acknowledge and delete; per id 1 done, -1 not pending here, 2 acknowledged but still needed by a group.

    -1 means "not pending in this group": then the entry is left alone, even with DELREF (the documentation says
    otherwise). The reply is 1 also if the entry was already gone.
    """
    key, name = argv[1], argv[2]
    found = find_group(ctx, key, name)
    policy, words = parse_id_block(argv, 3)
    if found is None:
        return [-1] * len(words)
    stream, group = found
    answers: list[Reply] = []
    deleted: list[int] = []
    wanted = entry_ids(words)
    want(stream.entries, (entry for entry in wanted if entry in group.pending))
    there = {entry for entry in wanted if entry in group.pending and entry in stream.entries}  # or damage stops it now
    foresee_delete(stream.entries, there)
    for entry in wanted:
        if entry not in group.pending:
            answers.append(-1)
            continue
        _forget(ctx, key, name, [entry])
        # Checked after the acknowledgement: this group no longer needs the entry, so another one does
        if policy == b"ACKED" and stream.is_referenced(entry):
            answers.append(2)
            continue
        if policy == b"DELREF":
            unreference(ctx, key, stream, entry)
        if entry in there:
            deleted.append(entry)
        answers.append(1)
    if deleted:
        delete_entries(ctx, key, deleted)
    return answers


@dataclass(slots=True)
class _Nack:
    """XNACK's options."""

    words: list[bytes]  # Ids as written
    retry_count: int | None  # Delivery count to set; None to derive it from the mode
    force: bool  # Create a record for an existing entry that is not pending


def _parse_nack(argv: list[bytes]) -> _Nack:
    """Parse the arguments after the mode. The last of two IDS blocks counts; an extra id is an unknown option."""
    words: list[bytes] | None = None
    options = _Nack([], None, force=False)
    at = 4
    while at < len(argv):
        word = keyword(argv[at])
        more = len(argv) - at - 1
        if word == b"IDS" and more:
            count = read_integer(argv[at + 1])
            if count is None or not 0 < count <= INT_MAX:
                raise CommandError("ERR numids must be a positive integer")
            if count > more - 1:
                raise CommandError("ERR number of IDs doesn't match numids")
            words = argv[at + 2 : at + 2 + count]
            at += 2 + count
        elif word == b"RETRYCOUNT" and more:
            options.retry_count = integer(argv[at + 1])
            if options.retry_count < 0:
                raise CommandError("ERR Invalid RETRYCOUNT value, must be >= 0")
            at += 2
        elif word == b"FORCE":
            options.force = True
            at += 1
        else:
            raise CommandError(f"ERR Unrecognized XNACK option '{shown(argv[at])}'")
    if words is None:
        raise CommandError("ERR syntax error, expected IDS keyword")
    options.words = words
    return options


@STREAM.command("xnack", -7, "write fast")
def xnack(ctx: Context, argv: list[bytes]) -> Reply:
    """Release entries; replies the number of releases, repetitions included.

    XNACK reports that a delivery failed. Any client may do so for any record, since the command names no consumer. The
    mode decides the count of deliveries: SILENT takes the last one back (it does not count as an attempt), FAIL leaves
    it. FATAL sets the largest possible number, which marks a poison message.

    A repeated id is released twice: with SILENT its count goes down twice, as in Redis. So the counts are collected in
    a dictionary, and only the final ones are committed.

    Waiting readers with XREADGROUP CLAIM are woken, since released entries can be claimed at once; there is no keyspace
    event.
    """
    key, name = argv[1], argv[2]
    stream, group = existing_group(ctx, key, name)
    mode = keyword(argv[3])
    if mode not in {b"SILENT", b"FAIL", b"FATAL"}:
        raise CommandError("ERR mode must be SILENT, FAIL, or FATAL")
    options = _parse_nack(argv)
    counts: dict[int, int] = {}
    released: list[int] = []
    for entry in entry_ids(options.words):
        record = group.pending.get(entry)
        if record is None and entry not in counts and not (options.force and entry in stream.entries):
            continue
        before = counts.get(entry, 0 if record is None else record.count)
        counts[entry] = _nacked_count(before, mode, options.retry_count)
        released.append(entry)
    if released:
        final = [counts[entry] for entry in released]
        ctx.commit(("gnack", ctx.db.index, key, name, ids.pack_all(released), final))
        ctx.dirty += len(released)
        ctx.wake(key)
    return len(released)


def _nacked_count(count: int, mode: bytes, retry_count: int | None) -> int:
    """The count of deliveries after a release; RETRYCOUNT takes precedence over the mode."""
    if retry_count is not None:
        return retry_count
    if mode == b"SILENT":
        return max(count - 1, 0)
    return MAX_DELIVERIES if mode == b"FATAL" else count


@STREAM.command("xpending", -3, "readonly")
def xpending(ctx: Context, argv: list[bytes]) -> Reply:
    """The summary of a group's pending entries, or rows of a range of them.

    The number of arguments selects the form, as in Redis: with IDLE there must be at least eight, and an extra argument
    without it is ignored. An unknown consumer has no rows, and is not created.

    Rows are ordered by id and not by time, so the search for idle ones visits the whole range. Clients that need only
    stale entries should use XAUTOCLAIM or XREADGROUP CLAIM.
    """
    if len(argv) == 3:
        return _pending_summary(existing_group(ctx, argv[1], argv[2])[1])
    if not 6 <= len(argv) <= 9:
        raise SYNTAX
    at, min_idle = 3, 0
    if keyword(argv[3]) == b"IDLE":
        min_idle = integer(argv[4])
        # Checked after the number is parsed, because an invalid number has its own error
        if len(argv) < 8:
            raise SYNTAX
        at = 5
    count = max(integer(argv[at + 2]), 0)
    start, end = range_start(argv[at]), range_end(argv[at + 1])
    # Redis ignores further arguments if IDLE was not given
    consumer = argv[at + 3] if len(argv) > at + 3 else None
    _, group = existing_group(ctx, argv[1], argv[2])
    index = group.pending
    if consumer is not None:
        holder = group.consumers.get(consumer)
        if holder is None:
            return []
        index = holder.pending
    number, rows = index.idle_rows(start, end, count, min_idle, ctx.now.wall)
    return array_of(number, [rows])


def _pending_summary(group: Group) -> Reply:
    """Count, first and last id, and the consumers with records, by name; released records count, but have no owner."""
    if not len(group.pending):
        return [0, None, None, NIL_ARRAY]
    rows: list[Reply] = [
        [name, b"%d" % len(holder.pending)] for name, holder in sorted(group.consumers.items()) if len(holder.pending)
    ]
    return [len(group.pending), ids.text(group.pending.first()), ids.text(group.pending.last()), rows]


@dataclass(slots=True)
class _Claim:
    """XCLAIM's options."""

    time: int  # Delivery time to set, wall milliseconds
    retry_count: int | None = None  # Delivery count to set; None to add one
    force: bool = False  # Create records that do not exist
    just_id: bool = False  # Reply with ids only, and do not change the count
    last_id: int = 0  # New position of the group, if higher; 0 if not given


def _parse_claim(argv: list[bytes], at: int, now: int, *, obeys: bool) -> _Claim:
    """Parse XCLAIM's options, from the first argument on that is not an id.

    So a bad id is reported as an unrecognized option, as in Redis. A negative or future delivery time becomes now, so
    no client can make an entry look fresh for years. A primary's clock may be ahead of this one.
    """
    options = _Claim(now)
    while at < len(argv):
        word = keyword(argv[at])
        more = len(argv) - at - 1
        if word == b"FORCE":
            options.force = True
            at += 1
            continue
        if word == b"JUSTID":
            options.just_id = True
            at += 1
            continue
        if word not in {b"IDLE", b"TIME", b"RETRYCOUNT", b"LASTID"} or not more:
            raise CommandError(f"ERR Unrecognized XCLAIM option '{shown(argv[at])}'")
        value = argv[at + 1]
        at += 2
        if word == b"LASTID":
            options.last_id = entry_id(value)
            continue
        number = integer(value, f"ERR Invalid {word.decode()} option argument for XCLAIM")
        if word == b"IDLE":
            options.time = now - number
        elif word == b"TIME":
            options.time = number
        else:
            options.retry_count = number
    if options.time < 0 or (options.time > now and not obeys):
        options.time = now
    return options


def claimed_ids(argv: list[bytes]) -> tuple[list[int], int]:
    """Return the ids of an XCLAIM, and the index of the first word after them."""
    at = 5
    wanted: list[int] = []
    while at < len(argv):
        entry = ids.parse(argv[at])
        if entry is None:
            break
        wanted.append(entry)
        at += 1
    return wanted, at


@STREAM.command("xclaim", -6, "write fast")
def xclaim(ctx: Context, argv: list[bytes]) -> Reply:
    """Claim given entries; replies the claimed entries, or only their ids.

    Even an empty claim has effects: the consumer exists, its seen time is now, LASTID moves the group's position.
    LASTID leaves the count of entries read alone, so the lag may be wrong afterwards. That is Redis's bug
    (redis#10569), reproduced since clients see the number.

    For each id, in the given order:
    1. The entry is deleted: its record is removed at any idle time, without a reply for it.
    2. There is no record: nothing, or with FORCE a new one, which already counts one delivery.
    3. It is idle for less than the minimum: nothing. Equal is enough, and a released one always is.
    4. Otherwise it is claimed. The count goes up unless JUSTID or RETRYCOUNT prevents that.
    """
    key, name, consumer = argv[1], argv[2], argv[3]
    stream, group = existing_group(ctx, key, name)
    min_idle = max(integer(argv[4], "ERR Invalid min-idle-time argument for XCLAIM"), 0)
    wanted, at = claimed_ids(argv)
    options = _parse_claim(argv, at, ctx.now.wall, obeys=ctx.obeys)
    want(stream.entries, wanted)
    there = {entry for entry in wanted if entry in stream.entries}  # damage stops the command now, or not at all
    moved = options.last_id > group.last_id
    if moved:
        # Redis 7.0 propagates each new delivery as this command, without the count of entries read
        count = stream.count_with(group, options.last_id) if ctx.obeys else group.entries_read
        ctx.commit(("gset", ctx.db.index, key, name, ids.pack(options.last_id), count))
    attend(ctx, key, name, group, consumer)
    before = ctx.dirty
    claimer = _Claimer(ctx, argv, stream, options)
    gone: dict[int, None] = {}
    for entry in wanted:
        # A repeated id is claimed twice, and the second claim adds to the count of the first
        claimer.settle(entry)
        record = group.pending.get(entry)
        if entry not in there:
            if record is not None:
                gone[entry] = None
        elif record is None:
            if options.force:
                claimer.take(entry, 1)  # Redis creates the record with one delivery
        elif _is_stale(record, min_idle, ctx.now.wall):
            claimer.take(entry, record.count)
    claimer.flush()
    if gone:
        _forget(ctx, key, name, list(gone))
    if moved and ctx.dirty == before:
        ctx.dirty += 1  # Redis counts a claim and the position that it moves as one change
    note_seen(ctx, key, name, group, consumer)
    return claimer.reply()


def _is_stale(record: Pending, min_idle: int, now: int) -> bool:
    """True if an entry may be claimed; with 0 any may, also with a time ahead of a clock that was set back."""
    return record.consumer is None or not min_idle or now - record.time >= min_idle


class _Claimer:
    """Moves entries to a consumer, all in one transition, and collects the reply.

    One transition for a thousand entries is one record in the log and one walk, not a thousand.
    """

    __slots__ = ("_consumer", "_count", "_ctx", "_key", "_name", "_options", "_rows", "_size", "_stream", "_taken")

    def __init__(self, ctx: Context, argv: list[bytes], stream: Stream, options: _Claim) -> None:
        self._ctx = ctx
        self._key, self._name, self._consumer = argv[1:4]
        self._stream = stream
        self._options = options
        self._count = self._size = 0
        self._rows: list[Buffer] = []
        self._taken: dict[int, int] = {}  # Count by entry, not committed yet

    def settle(self, entry: int) -> None:
        """Commit earlier changes to this entry, if the command names it twice, so that they show."""
        if entry in self._taken:
            self.flush()

    def flush(self) -> None:
        """Commit the collected claims."""
        if not self._taken:
            return
        place = (self._ctx.db.index, self._key, self._name, self._consumer)
        packed, counts = ids.pack_all(list(self._taken)), list(self._taken.values())
        self._ctx.commit(("gclaim", *place, self._ctx.now.wall, self._options.time, packed, counts))
        self._ctx.dirty += len(counts)
        self._taken = {}

    def take(self, entry: int, count: int) -> None:
        """Claim one existing entry; ``count`` is its number of deliveries so far."""
        options = self._options
        if options.retry_count is not None and options.retry_count >= 0:
            count = options.retry_count
        elif not options.just_id:
            count = next_count(count)
        self._taken[entry] = count
        self._count += 1
        if options.just_id:
            text = ids.text(entry)
            self._rows.append(b"$%d\r\n%b\r\n" % (len(text), text))
        else:
            wire = self._stream.entries.wire(entry)
            assert wire is not None
            self._rows.append(wire)
            self._size += len(wire)
            self._ctx.expect_small(self._size)

    def reply(self) -> Reply:
        """The claimed entries or ids."""
        return array_of(self._count, self._rows)


@STREAM.command("xautoclaim", -6, "write fast")
def xautoclaim(ctx: Context, argv: list[bytes]) -> Reply:
    """Claim stale entries from an id on; replies the next cursor, the entries or ids, and the deleted ids.

    At most ten times COUNT records are visited, so that a group of millions of fresh records does not block the server.
    The next call continues at the cursor. It is the id of an existing record, not a position in a list, so it stays
    valid if that record is removed. 0-0 is the end.

    COUNT limits claimed and deleted entries together. Records of deleted entries are dropped at any idle time. Those of
    damaged entries stay; the command returns the error at the end of the records, if it found no others.
    """
    key, name, consumer = argv[1], argv[2], argv[3]
    min_idle = max(integer(argv[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM"), 0)
    start = range_start(argv[5])
    count, just_id = _parse_autoclaim(argv)
    stream, group = existing_group(ctx, key, name)
    if count >= _TOO_MANY:
        raise CommandError("ERR Insufficient memory, failed allocating transient memory, COUNT too high.")
    want(stream.entries, (record.id for record in islice(group.pending.walk(start), count)))
    lost, looks = Lost(), count * ATTEMPTS
    try:
        cursor, taken, counts, gone = group.claimable(
            stream.entries, start, min_idle, ctx.now.wall, most=count, looks=looks
        )
    except ColdDamage:
        records = group.pending.walk(start)
        cursor, taken, counts, gone = find_claimable(
            records, stream.entries, min_idle, ctx.now.wall, most=count, looks=looks, lost=lost
        )
    ctx.damage = lost.damage
    if lost.damage is not None and not (cursor or taken or gone):
        raise lost.damage
    attend(ctx, key, name, group, consumer)
    options = _Claim(ctx.now.wall, just_id=just_id)
    claimer = _Claimer(ctx, argv, stream, options)
    found = ids.unpack_all(taken)
    for entry, deliveries in zip(found, counts, strict=True):
        claimer.take(entry, deliveries)
    claimer.flush()
    missing = ids.unpack_all(gone)
    if missing:
        _forget(ctx, key, name, missing)
    note_seen(ctx, key, name, group, consumer)
    return [ids.text(cursor), claimer.reply(), [ids.text(entry) for entry in missing]]


def _parse_autoclaim(argv: list[bytes]) -> tuple[int, bool]:
    """COUNT (100 by default) and JUSTID; every bad count has the same error text."""
    count, just_id = 100, False
    at = 6
    while at < len(argv):
        word = keyword(argv[at])
        if word == b"JUSTID":
            just_id = True
            at += 1
        elif word == b"COUNT" and at + 1 < len(argv):
            number = read_integer(argv[at + 1])
            if number is None or not 1 <= number <= MAX_AUTOCLAIM_COUNT:
                raise CommandError("ERR COUNT must be > 0")
            count = number
            at += 2
        else:
            raise SYNTAX
    return count, just_id
