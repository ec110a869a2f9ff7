"""Commands that add, delete and trim entries: XADD XTRIM XDEL XDELEX XSETID XCFGSET XIDMPRECORD XLEN.

Each handler parses the whole command line first, then looks the key up, then decides, then commits. A client with two
errors sees that order, so it is Redis's: an option's error comes before WRONGTYPE, except where the handler's docstring
differs.

Adding an option to XADD takes four steps:
1. A slot in :class:`_AddOptions`, and its parsing in :func:`_take_add_option`, which returns the number of arguments.
   Parsing stops at the first argument that is not an option: that must be the id, so a misspelt option is reported as
   an invalid id, as in Redis.
2. The token in the row's ``syntax`` (``commands/table/documents.json``) with its first version (``@8.6.0``). COMMAND
   DOCS, the key finder and docs/compatibility.md are made from the row; ``make docs`` writes the page.
3. Its effect in :func:`_add`: an argument of the ``xadd`` transition if recovery must see it, which
   ``engine/streams/stream_ops.py`` applies and ``replication/words.py`` and ``dialect.py`` turn into commands. Never
   compute there what depends on the time or on the configuration: the transition has the result.
4. The generator of tests/conformance, so that the option is compared with a real server.

Source: the command pages at https://redis.io/docs/latest/commands/ and, where they differ, the server's behaviour.
"""

from millstream.commands.context.context import Context
from millstream.commands.streams.trimming import REFERENCE_POLICIES, Trim, parse_trim_options, run_trim
from millstream.commands.table.args import SYNTAX, entry_id, entry_ids, integer, is_sign, keyword, read_integer
from millstream.commands.table.table import STREAM
from millstream.engine import ids
from millstream.engine.cold import ColdDamage, want
from millstream.engine.cold_ops import foresee_delete
from millstream.engine.streams.idempotence import content_digest
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.replies import OK, Reply

# Largest size of the fields and values of one entry, in bytes (Redis: STREAM_LISTPACK_MAX_SIZE)
MAX_ENTRY_BYTES = 1 << 30
NO_SUCH_KEY = "ERR no such key"
EXHAUSTED = "ERR The stream has exhausted the last possible ID, unable to add more items"
TOO_SMALL = "ERR The ID specified in XADD is equal or smaller than the target stream top item"


def existing_stream(ctx: Context, key: bytes) -> Stream:
    """Return the stream at a key that must exist."""
    stream = ctx.lookup_as(key, Stream)
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    return stream


def create_stream(ctx: Context, key: bytes) -> Stream:
    """Make a new, empty stream at a free key.

    It gets the configured limits of idempotent adding: CONFIG SET changes only those of later streams. The transition
    has them, since a log may be replayed under another configuration.
    """
    config = ctx.host.config
    stream: Stream = ctx.commit(("xnew", ctx.db.index, key, config.idmp_duration, config.idmp_maxsize))
    return stream


class _AddOptions:
    """The options between XADD's key and its fields."""

    __slots__ = ("auto", "auto_ms", "entry_id", "idmp", "idmpauto", "no_create", "trim")

    def __init__(self) -> None:
        self.trim = Trim()  # MAXLEN or MINID with its options; without trimming, its strategy is None
        self.no_create = False  # NOMKSTREAM
        self.idmp: tuple[bytes, bytes] | None = None  # Producer and message id of IDMP; None if not given
        # Producer of IDMPAUTO, whose message id is a digest of the fields; None if not given
        self.idmpauto: bytes | None = None
        # True if the id is ``*``
        self.auto = False  # "*"
        # Milliseconds of an id ``ms-*``; None for any other form
        self.auto_ms: int | None = None  # "ms-*"
        self.entry_id = 0  # Id, if it is explicit


# Shared and never changed: it saves an allocation in the command that determines the server's speed. For XADD key *
# ..., the most frequent form
_AUTO = _AddOptions()
_AUTO.auto = True


def _parse_add(argv: list[bytes], *, obeys: bool) -> tuple[_AddOptions, int]:
    """Parse the options; return them and the position of the first field.

    ``*`` always ends the options; otherwise the first argument that is not an option is the id. Trimming options are
    checked at the end, so ``XADD k LIMIT 5 MAXLEN ~ 10 * f v`` is valid: the order of options is free.
    """
    if argv[2] == b"*":
        return _AUTO, 3
    options = _AddOptions()
    at = 2
    while at < len(argv):
        word = argv[at]
        if is_sign(word, b"*"):
            options.auto = True
            break
        used = options.trim.take(argv, at) or _take_add_option(options, argv, at)
        if not used:
            _take_id(options, word, obeys=obeys)
            break
        at += used
    options.trim.check(obeys=obeys)
    return options, at + 1


def _take_add_option(options: _AddOptions, argv: list[bytes], at: int) -> int:
    """Parse one option of XADD's own; return its number of arguments, 0 if it is another option.

    An option without its value is not an option (``XADD k IDMP p * f v`` has an invalid id). In most other commands
    that is a syntax error.
    """
    word = keyword(argv[at])
    more = len(argv) - at - 1
    if word == b"NOMKSTREAM":
        options.no_create = True
        return 1
    if (word == b"IDMPAUTO" and more >= 1) or (word == b"IDMP" and more >= 2):
        if options.idmp or options.idmpauto:
            raise CommandError("ERR syntax error, IDMP/IDMPAUTO specified multiple times")
        name = word.decode()
        if not argv[at + 1]:
            raise CommandError(f"ERR syntax error, {name} requires a non-empty producer ID")
        if name == "IDMPAUTO":
            options.idmpauto = argv[at + 1]
            return 2
        if not argv[at + 2]:
            raise CommandError("ERR syntax error, IDMP requires a non-empty idempotent ID")
        options.idmp = (argv[at + 1], argv[at + 2])
        return 3
    return 0


def _take_id(options: _AddOptions, word: bytes, *, obeys: bool) -> None:
    """Parse an id that is not ``*``.

    IDMP is refused for ``ms-*`` too: a repeated message must be able to get any id; otherwise the second attempt would
    fail by its id instead of being found. A primary sends its replicas the resulting id.
    """
    options.auto_ms = ids.parse_auto_seq(word)
    if options.auto_ms is None:
        options.entry_id = entry_id(word)
    if (options.idmp or options.idmpauto) and not obeys:
        raise CommandError("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")


@STREAM.command("xadd", -5, "write denyoom fast")
def xadd(ctx: Context, argv: list[bytes]) -> Reply:
    """Add an entry; replies its id, or null if NOMKSTREAM found no stream.

    Errors are reported in this order: options while parsing, the trimming as a whole, the number of fields, the id
    0-0. Then the key is looked up: WRONGTYPE, the id against the stream's last one, the size of the entry. NOMKSTREAM
    replies before the id is compared, so it never fails by the id.

    For a recorded message the reply is the first entry's id, before all other decisions: no entry, no trimming, no
    event, even if that entry was deleted since. It still counts as a change, since the number of duplicates is part of
    the state.
    """
    options, first_field = _parse_add(argv, obeys=ctx.obeys)
    fields = argv[first_field:]
    if len(fields) < 2 or len(fields) % 2:
        raise CommandError("ERR wrong number of arguments for 'xadd' command")
    # Only the id as written is invalid: 0-* on a new stream becomes the valid 0-1
    if not options.auto and options.auto_ms is None and options.entry_id == 0:
        raise CommandError("ERR The ID specified in XADD must be greater than 0-0")
    key = argv[1]
    stream = ctx.lookup_as(key, Stream)
    if stream is None and options.no_create:
        return None
    idmp = _message(options, fields)
    is_repetition = ctx.obeys and idmp is not None and _is_taken(stream, options)
    if idmp is not None and stream is not None and (is_repetition or not ctx.obeys):
        original = stream.idempotence.find(*idmp)
        if original is not None:
            ctx.commit(("xidmpdup", ctx.db.index, key, *idmp))
            ctx.dirty += 1
            return ids.text(original)
    if is_repetition:
        return None  # this server has already forgotten the message
    return _add(ctx, key, stream, options, fields, idmp)


def _message(options: _AddOptions, fields: list[bytes]) -> tuple[bytes, bytes] | None:
    """Return producer and message to look for; None without IDMP."""
    if options.idmpauto is not None:
        return options.idmpauto, content_digest(fields)
    return options.idmp


def _is_taken(stream: Stream | None, options: _AddOptions) -> bool:
    """True if a primary's message is a repeated one: Redis sends these with ``*``, Millstream with the entry's id."""
    if options.auto:
        return True
    return stream is not None and options.no_create and options.auto_ms is None and options.entry_id <= stream.last_id


def _add(
    ctx: Context,
    key: bytes,
    stream: Stream | None,
    options: _AddOptions,
    fields: list[bytes],
    idmp: tuple[bytes, bytes] | None,
) -> Reply:
    """Store the entry, then trim, then publish events.

    The new entry is trimmed like any other: ``MAXLEN 0`` leaves an empty stream whose last id is set. Events follow the
    changes, ``xadd`` before ``xtrim``. Waiting clients are signalled once at the end, and served after the whole
    transaction. So an entry that is trimmed at once wakes no client in vain.
    """
    new_id = _next_id(ctx, stream, options)
    size = sum(map(len, fields))
    # Checked after the id, as in Redis; but Redis leaves an empty stream behind, and this server does not
    if size > MAX_ENTRY_BYTES:
        raise CommandError("ERR Elements are too large to be stored")
    if stream is None:
        stream = create_stream(ctx, key)
    config = ctx.host.config
    # Decided here and logged: node limits are configuration, and a replay must build the same nodes
    fresh = stream.entries.needs_block(size, config.node_max_bytes, config.node_max_entries)
    ctx.commit(("xadd", ctx.db.index, key, ids.pack(new_id), fields, fresh, list(idmp) if idmp else None))
    ctx.dirty += 1
    ctx.notify("t", "xadd", key)
    if options.trim.strategy is not None and _trim_after(ctx, key, stream, options.trim):
        ctx.notify("t", "xtrim", key)
    ctx.signal(key)
    return ids.text(new_id)


def _trim_after(ctx: Context, key: bytes, stream: Stream, trim: Trim) -> int:
    """Trim after an entry was added; return the number of removed entries. Damage leaves them all, and the new one."""
    try:
        return run_trim(ctx, key, stream, trim)
    except ColdDamage as damage:
        if ctx.obeys:
            raise
        ctx.damage = damage
        return 0


def _next_id(ctx: Context, stream: Stream | None, options: _AddOptions) -> int:
    """The new entry's id.

    ``*`` is the time, or one more than the last id if the clock went back or stopped: ids always grow. After the
    largest sequence, ``*`` continues in the next millisecond. For ``ms-*`` that is an error, since it names the
    millisecond.
    """
    last = 0 if stream is None else stream.last_id
    if last == ids.MAX_ID:
        raise CommandError(EXHAUSTED)
    if options.auto:
        return max(ctx.now.wall << 64, last + 1)
    new_id = options.entry_id
    if options.auto_ms is not None:
        new_id = options.auto_ms << 64
        if last >> 64 == options.auto_ms:
            if last & ids.MAX64 == ids.MAX64:
                raise CommandError(TOO_SMALL)
            new_id = last + 1
    if new_id <= last:
        raise CommandError(TOO_SMALL)
    return new_id


@STREAM.command("xtrim", -4, "write")
def xtrim(ctx: Context, argv: list[bytes]) -> Reply:
    """Trim a stream; replies the number of removed entries.

    Options are parsed before the key is looked up, so a missing key with wrong options is an error and not 0. No client
    is signalled, since none waits for a removal.
    """
    trim = parse_trim_options(argv, 2, obeys=ctx.obeys)
    stream = ctx.lookup_as(argv[1], Stream)
    if stream is None:
        return 0
    removed = run_trim(ctx, argv[1], stream, trim)
    if removed:
        ctx.notify("t", "xtrim", argv[1])
        ctx.touch(argv[1])
        ctx.dirty += removed
    return removed


@STREAM.command("xdel", -3, "write fast")
def xdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete entries; replies the number of existing ones.

    For a missing key the reply is 0 before the ids are parsed (``XDEL nokey abc``); with a key, one bad id refuses the
    whole command. A repeated id counts once. Pending records stay: consumers notice a deleted entry when they claim it,
    or read their history.
    """
    stream = ctx.lookup_as(argv[1], Stream)
    if stream is None:
        return 0
    wanted = entry_ids(argv[2:])
    want(stream.entries, wanted)
    there = list(dict.fromkeys(entry for entry in wanted if entry in stream.entries))
    if there:
        delete_entries(ctx, argv[1], there)
        ctx.dirty += len(there)
    return len(there)


def delete_entries(ctx: Context, key: bytes, there: list[int]) -> None:
    """Delete existing entries, and publish the event."""
    ctx.commit(("xdel", ctx.db.index, key, ids.pack_all(there)))
    ctx.notify("t", "xdel", key)
    ctx.touch(key)


def parse_id_block(argv: list[bytes], at: int) -> tuple[bytes, list[bytes]]:
    """``[KEEPREF | DELREF | ACKED] IDS numids id ...`` in any order: the policy and the unparsed ids.

    The last of two IDS blocks counts; a second policy is a syntax error. The ids are not parsed here, because the reply
    for a missing key comes first.
    """
    policy: bytes | None = None
    words: list[bytes] | None = None
    while at < len(argv):
        word = keyword(argv[at])
        if word in REFERENCE_POLICIES and policy is None:
            policy = word
            at += 1
        elif word == b"IDS" and at + 1 < len(argv):
            count = read_integer(argv[at + 1])
            if count is None or count <= 0:
                raise CommandError("ERR Number of IDs must be a positive integer")
            if count > len(argv) - at - 2:
                raise CommandError("ERR The `numids` parameter must match the number of arguments")
            words = argv[at + 2 : at + 2 + count]
            at += 2 + count
        else:
            raise SYNTAX
    if words is None:
        raise CommandError("ERR IDS option is required")
    return policy or b"KEEPREF", words


@STREAM.command("xdelex", -5, "write fast")
def xdelex(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete entries; per id 1 deleted, -1 missing, 2 still referenced (ACKED).

    WRONGTYPE comes before the options here, unlike with XTRIM. DELREF also drops the pending records of a missing
    entry, and still replies -1 for it; each such drop is a change. ACKED replies 2 even for an id without an entry, if
    a group has not passed it yet: references are checked before existence. Without any group ACKED deletes, though the
    documentation says 2.
    """
    key = argv[1]
    stream = ctx.lookup_as(key, Stream)
    policy, words = parse_id_block(argv, 2)
    if stream is None:
        return [-1] * len(words)
    wanted = entry_ids(words)
    want(stream.entries, wanted)
    found = {entry for entry in wanted if entry in stream.entries}  # damage stops the command now, or not at all
    foresee_delete(stream.entries, found)
    answers: list[Reply] = []
    deleted = 0
    for entry in wanted:
        if policy == b"ACKED" and stream.is_referenced(entry):
            answers.append(2)
            continue
        there = entry in found
        if there:
            found.discard(entry)
            ctx.commit(("xdel", ctx.db.index, key, ids.pack(entry)))
            deleted += 1
        if policy == b"DELREF" and unreference(ctx, key, stream, entry):
            ctx.dirty += 1
        answers.append(1 if there else -1)
    if deleted:
        ctx.notify("t", "xdel", key)
        ctx.touch(key)
        ctx.dirty += deleted
    return answers


def unreference(ctx: Context, key: bytes, stream: Stream, entry: int) -> bool:
    """Drop the entry's pending records in every group; report whether there were any."""
    if not any(entry in group.pending for group in stream.groups.values()):
        return False
    ctx.commit(("xunref", ctx.db.index, key, ids.pack(entry)))
    return True


@STREAM.command("xlen", 2, "readonly fast")
def xlen(ctx: Context, argv: list[bytes]) -> Reply:
    """The number of entries; 0 for a missing key. Deleted entries that are still stored in a node are not counted."""
    stream = ctx.lookup_as(argv[1], Stream)
    return 0 if stream is None else stream.length


@STREAM.command("xsetid", -3, "write denyoom fast")
def xsetid(ctx: Context, argv: list[bytes]) -> Reply:
    """Set the last id; replies OK.

    All options are parsed and compared with each other first, then the key must exist, then they are compared with the
    stream. MAXDELETEDID 0-0 means that it was not given. A given one may also lower the stream's value, which only
    tools that copy streams do.
    """
    last = entry_id(argv[2])
    added: int | None = None
    max_deleted = 0
    at = 3
    while at < len(argv):
        word = keyword(argv[at])
        if word == b"ENTRIESADDED" and at + 1 < len(argv):
            added = integer(argv[at + 1])
            if added < 0:
                raise CommandError("ERR entries_added must be positive")
        elif word == b"MAXDELETEDID" and at + 1 < len(argv):
            max_deleted = entry_id(argv[at + 1])
            if last < max_deleted:
                raise CommandError("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
        else:
            raise SYNTAX
        at += 2
    stream = existing_stream(ctx, argv[1])
    _check_last_id(stream, last, added)
    packed = ids.pack(max_deleted) if max_deleted else None
    ctx.commit(("xsetid", ctx.db.index, argv[1], ids.pack(last), added, packed))
    ctx.notify("t", "xsetid", argv[1])
    ctx.dirty += 1
    return OK


def _check_last_id(stream: Stream, last: int, added: int | None) -> None:
    """Refuse values that contradict the stream: an id below its last entry, or fewer entries added than it holds.

    They matter only while it holds entries; an empty stream may be set back to its largest deleted id.
    """
    if last < stream.max_deleted:
        raise CommandError("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")
    if stream.length:
        if last < stream.entries.last_live_id:
            raise CommandError("ERR The ID specified in XSETID is smaller than the target stream top item")
        if added is not None and added < stream.length:
            raise CommandError("ERR The entries_added specified in XSETID is smaller than the target stream length")


@STREAM.command("xcfgset", -2, "write fast")
def xcfgset(ctx: Context, argv: list[bytes]) -> Reply:
    """Configure idempotence; replies OK.

    Setting the present value changes nothing. Any change drops all producers' messages, as in Redis, since the ones
    stored under other limits would not be reliable.
    """
    stream = existing_stream(ctx, argv[1])
    bounds = {b"IDMP-DURATION": (86400, "seconds"), b"IDMP-MAXSIZE": (10000, "entries")}
    given: dict[bytes, int] = {}
    at = 2
    while at < len(argv):
        word = keyword(argv[at])
        if word not in bounds or at + 1 >= len(argv):
            raise SYNTAX
        name = word.decode()
        if word in given:
            raise CommandError(f"ERR {name} specified multiple times")
        high, unit = bounds[word]
        value = integer(argv[at + 1])
        if not 1 <= value <= high:
            raise CommandError(f"ERR {name} must be between 1 and {high} {unit}")
        given[word] = value
        at += 2
    if not given:
        raise CommandError("ERR At least one parameter must be specified")
    memory = stream.idempotence
    duration = given.get(b"IDMP-DURATION", memory.duration)
    maxsize = given.get(b"IDMP-MAXSIZE", memory.maxsize)
    if (duration, maxsize) != (memory.duration, memory.maxsize):
        ctx.commit(("xcfg", ctx.db.index, argv[1], duration, maxsize))
        ctx.dirty += 1
    return OK


@STREAM.command("xidmprecord", 5, "write denyoom fast")
def xidmprecord(ctx: Context, argv: list[bytes]) -> Reply:
    """Record one message with its entry; replies OK.

    A primary sends a repeated message only after it dropped the first.
    """
    _, key, producer, message, word = argv
    entry = entry_id(word)
    if not producer:
        raise CommandError("ERR producer ID must be non-empty")
    if not message:
        raise CommandError("ERR idempotent ID must be non-empty")
    stream = existing_stream(ctx, key)
    if entry not in stream.entries:
        raise CommandError("ERR No such message in stream")
    known = stream.idempotence.find(producer, message)
    if known == entry:
        return OK
    if known is not None and not ctx.obeys:
        raise CommandError("ERR IID already exists for this producer with a different stream ID")
    ctx.commit(("xidmp", ctx.db.index, key, producer, message, ids.pack(entry)))
    ctx.dirty += 1
    return OK
