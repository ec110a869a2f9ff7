"""XINFO: descriptions of a stream, its groups and their consumers.

Names of fields and their order are Redis's: RESP2 clients get a flat list and some read it by position. Groups and
consumers are sorted by name, byte for byte. ``radix-tree-keys`` is the number of nodes, on which Redis's own tests
rely. ``radix-tree-nodes`` describes Redis's implementation, which has no equivalent here.

Source: https://redis.io/docs/latest/commands/xinfo-stream/ and its siblings; where they differ, the server's behaviour.
"""

from millstream.commands.context.context import Context
from millstream.commands.streams.groups import group_of
from millstream.commands.streams.read import array_of
from millstream.commands.streams.write import existing_stream
from millstream.commands.table.args import bad_subcommand, integer, keyword
from millstream.commands.table.table import STREAM
from millstream.engine import ids
from millstream.engine.streams.group import UNKNOWN, Group
from millstream.engine.streams.pending import Consumer
from millstream.engine.streams.stream import Stream
from millstream.replies import Map, MapNames, MapRow, Raw, Reply

DEFAULT_FULL_COUNT = 10

STREAM.container("xinfo")


_STREAM = (
    *(b"length", b"radix-tree-keys", b"radix-tree-nodes", b"last-generated-id", b"max-deleted-entry-id"),
    *(b"entries-added", b"recorded-first-entry-id", b"idmp-duration", b"idmp-maxsize", b"pids-tracked"),
    *(b"iids-tracked", b"iids-added", b"iids-duplicates"),
)
_SUMMARY = MapNames(*_STREAM, b"groups", b"first-entry", b"last-entry")
_FULL = MapNames(*_STREAM, b"entries", b"groups")
_FULL_GROUP = MapNames(
    *(b"name", b"last-delivered-id", b"entries-read", b"lag", b"pel-count", b"nacked-count", b"pending", b"consumers")
)
_GROUP = MapNames(b"name", b"consumers", b"pending", b"last-delivered-id", b"entries-read", b"lag")


def _stream_values(stream: Stream) -> tuple[Reply, ...]:
    """The first fields of XINFO STREAM, with and without FULL: counters, ends, and idempotent adding."""
    memory = stream.idempotence
    nodes = stream.entries.node_count
    return (
        stream.length,
        nodes,
        nodes + 1,
        ids.text(stream.last_id),
        ids.text(stream.max_deleted),
        stream.entries_added,
        ids.text(stream.first_id),
        memory.duration,
        memory.maxsize,
        len(memory.producers),
        memory.tracked(),
        memory.added,
        memory.duplicates,
    )


@STREAM.command("xinfo|stream", -3, "readonly", keys=(2, 2, 1))
def xinfo_stream(ctx: Context, argv: list[bytes]) -> Reply:
    """A stream's counters with its first and last entry, or all its contents (FULL)."""
    stream = existing_stream(ctx, argv[2])
    count = full_count(argv)
    values = _stream_values(stream)
    if count is None:
        ends = (_entry(stream, stream.first_id), _entry(stream, stream.entries.last_live_id))
        return MapRow(_SUMMARY, *values, len(stream.groups), *ends)
    number, buffers, _ = stream.entries.reply(ids.MIN_ID, ids.MAX_ID, count)
    groups: list[Reply] = [_full_group(stream, name, group, count) for name, group in sorted(stream.groups.items())]
    return MapRow(_FULL, *values, array_of(number, buffers), groups)


def full_count(argv: list[bytes]) -> int | None:
    """The number of rows that FULL shows (-1: all); None without FULL.

    0 means all and a negative number the default of ten, as in Redis. An odd number of arguments has the error of an
    unknown subcommand.
    """
    if len(argv) == 3:
        return None
    if keyword(argv[3]) != b"FULL" or len(argv) not in {4, 6}:
        raise bad_subcommand("XINFO", argv[1])
    if len(argv) == 4:
        return DEFAULT_FULL_COUNT
    if keyword(argv[4]) != b"COUNT":
        raise bad_subcommand("XINFO", argv[1])
    count = integer(argv[5])
    if count < 0:
        return DEFAULT_FULL_COUNT
    return count or -1


def _entry(stream: Stream, entry_id: int) -> Reply:
    """An entry in wire form; null if there is none."""
    wire = stream.entries.wire(entry_id) if stream.length else None
    return None if wire is None else Raw([wire])


def _position(stream: Stream, group: Group) -> tuple[Reply, Reply, Reply]:
    """Position, count and lag of a group, each null if it is unknown, since monitoring would add up a guess."""
    read = None if group.entries_read == UNKNOWN else group.entries_read
    return ids.text(group.last_id), read, stream.lag(group)


def _full_group(stream: Stream, name: bytes, group: Group, count: int) -> Reply:
    """A group with its first pending records and its consumers; times are absolute, not idle times."""
    number, rows = group.pending.rows(count, own=False)
    consumers: list[Reply] = [_full_consumer(consumer, count) for _, consumer in sorted(group.consumers.items())]
    sizes = (len(group.pending), group.order.released)
    return MapRow(_FULL_GROUP, name, *_position(stream, group), *sizes, array_of(number, [rows]), consumers)


def _full_consumer(consumer: Consumer, count: int) -> Reply:
    """A consumer with its first pending records; COUNT limits both ``pending`` lists."""
    number, rows = consumer.pending.rows(count, own=True)
    return Map(
        [
            (b"name", consumer.name),
            (b"seen-time", consumer.seen),
            (b"active-time", consumer.active),
            (b"pel-count", len(consumer.pending)),
            (b"pending", array_of(number, [rows])),
        ]
    )


@STREAM.command("xinfo|groups", 3, "readonly", keys=(2, 2, 1))
def xinfo_groups(ctx: Context, argv: list[bytes]) -> Reply:
    """Every group, by name. The lag is null where deleted entries make it unknown (see ``Stream.lag``)."""
    stream = existing_stream(ctx, argv[2])
    places: dict[tuple[int, int], tuple[Reply, Reply, Reply]] = {}  # groups that have read all share one
    rows: list[Reply] = []
    for name, group in sorted(stream.groups.items()):
        place = (group.last_id, group.entries_read)
        if place not in places:
            places[place] = _position(stream, group)
        rows.append(MapRow(_GROUP, name, len(group.consumers), len(group.pending), *places[place]))
    return rows


@STREAM.command("xinfo|consumers", 4, "readonly", keys=(2, 2, 1))
def xinfo_consumers(ctx: Context, argv: list[bytes]) -> Reply:
    """Every consumer, by name.

    ``idle`` is the time since its last request, ``inactive`` since it last got entries (-1 for never): a consumer that
    polls an empty stream is inactive and not idle. Clocks may go back, so neither is shown as negative.
    """
    group = group_of(existing_stream(ctx, argv[2]), argv[2], argv[3])
    now = ctx.now.wall
    return [
        Map(
            [
                (b"name", name),
                (b"pending", len(consumer.pending)),
                (b"idle", max(now - consumer.seen, 0)),
                (b"inactive", -1 if consumer.active < 0 else max(now - consumer.active, 0)),
            ]
        )
        for name, consumer in sorted(group.consumers.items())
    ]


STREAM.help("xinfo")
