"""The cold entries that commands name in their words: what a transaction asks for, and what is too much to read.

A transaction asks before it begins. A command that would fail asks for nothing, and reports its error by itself. The
effects of earlier commands of the transaction are not known yet, so this is only a forecast: a command that needs more
reads it when it runs.
"""

from collections.abc import Callable, Iterable, Iterator

from millstream.commands.streams.inspect import full_count
from millstream.commands.streams.options import parse_read
from millstream.commands.streams.pending import claimed_ids
from millstream.commands.streams.read import range_of, read_position, want_all
from millstream.commands.streams.write import parse_id_block
from millstream.commands.table.args import entry_id, entry_ids, keyword
from millstream.engine import ids
from millstream.engine.cold import WANTED_MAX, ColdDamage, ColdMiss, Range, least_size, want
from millstream.engine.keyspace import Database, Keyspace
from millstream.engine.streams.group import Group
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError


def ask(space: Keyspace, db: int, commands: Iterable[list[bytes]], wall: int, most: int = 0) -> list[ColdMiss]:
    """Return a miss for each command of a transaction that needs entries for which reading would wait.

    A command that reads more than ``most`` bytes (0: no limit) asks for nothing, since it will not read them. No more
    is asked for at once than is kept for clients.
    """
    found: list[ColdMiss] = []
    missed, size = set[Range](), 0
    for argv in commands:
        if size >= WANTED_MAX:
            break
        name = argv[0].lower()
        if name == b"select" and len(argv) == 2 and argv[1].isdigit() and int(argv[1][:9]) < len(space.databases):
            db = int(argv[1][:9])
        asks = ASKING.get(name)
        if asks is None or (most and name in _RANGES and size_of(space.databases[db], argv, wall, most)):
            continue
        try:
            asks(space.databases[db], argv, wall)
        except ColdMiss as miss:
            found.append(miss)
            size += sum(length for _, _, length in set(miss.ranges) - missed)
            missed.update(miss.ranges)
        except (CommandError, ColdDamage, IndexError):
            continue  # the command itself reports it
    return found


def _stream(db: Database, key: bytes, wall: int) -> Stream | None:
    """Return a stream with cold entries, unless its key has expired."""
    found = db.keys.get(key)
    if not isinstance(found, Stream) or not found.entries.extent_count or db.is_expired(key, wall):
        return None
    return found


def size_of(db: Database, argv: list[bytes], wall: int, most: int) -> int:
    """Return the least size of the cold entries that a command reads in order, if it may be more than ``most`` bytes.

    Otherwise, and for a command that will fail, return 0.
    """
    size = 0
    try:
        for stream, start, end, count in _RANGES[argv[0].lower()](db, argv, wall):
            if stream.entries.cold_bytes > most:
                size += least_size(stream.entries, min(start, end), max(start, end), count, most, backwards=start > end)
    except (CommandError, IndexError):
        return 0  # the command itself reports it
    return size if size > most else 0


_Ranges = Iterator[tuple[Stream, int, int, int]]
# A stream with cold entries, both ends of a range in the direction of reading, and a number of entries, -1 for all


def _range_of(db: Database, argv: list[bytes], wall: int) -> _Ranges:
    stream = _stream(db, argv[1], wall)
    if stream is not None:
        backwards = argv[0].lower() == b"xrevrange"
        start, end, count = range_of(argv, backwards=backwards)
        if start < end:
            yield (stream, end, start, count) if backwards else (stream, start, end, count)


def _ranges_of_read(db: Database, argv: list[bytes], wall: int) -> _Ranges:
    options = parse_read(argv, keyword(argv[0]).decode().lower(), wall)
    count = options.count if options.max_count is None else options.max_count
    for key, word in zip(options.keys, options.words, strict=True):
        stream = _stream(db, key, wall)
        if stream is None or options.max_size is not None:
            continue
        if options.group is None and word != b"+":
            yield stream, read_position(stream, word) + 1, ids.MAX_ID, count
        elif word == b">" and options.group in stream.groups:
            yield stream, stream.groups[options.group].last_id + 1, ids.MAX_ID, count


def _whole(db: Database, argv: list[bytes], wall: int) -> _Ranges:
    stream = _stream(db, argv[1], wall)
    if stream is not None:
        yield stream, ids.MIN_ID, ids.MAX_ID, -1


def _all_of(db: Database, argv: list[bytes], wall: int) -> _Ranges:
    stream = _stream(db, argv[2], wall)
    if stream is not None and keyword(argv[1]) == b"STREAM" and (count := full_count(argv)) is not None:
        yield stream, ids.MIN_ID, ids.MAX_ID, count


_RANGES: dict[bytes, Callable[[Database, list[bytes], int], _Ranges]] = {
    b"xrange": _range_of,
    b"xrevrange": _range_of,
    b"xread": _ranges_of_read,
    b"xreadgroup": _ranges_of_read,
    b"xinfo": _all_of,
    b"dump": _whole,
}


def _range(db: Database, argv: list[bytes], wall: int) -> None:
    stream = _stream(db, argv[1], wall)
    if stream is not None:
        backwards = argv[0].lower() == b"xrevrange"
        start, end, count = range_of(argv, backwards=backwards)
        stream.entries.want_range(start, end, count, backwards=backwards)


def _read(db: Database, argv: list[bytes], wall: int) -> None:
    options = parse_read(argv, keyword(argv[0]).decode().lower(), wall)
    plan: list[tuple[bytes, Stream, Group, int | None]] = []
    for key, word in zip(options.keys, options.words, strict=True):
        stream = _stream(db, key, wall)
        if stream is None:
            continue
        if options.group is None:
            count = 1 if word == b"+" else options.most(stream.entries)
            stream.entries.want_range(read_position(stream, word) + 1, ids.MAX_ID, count)
        elif options.group in stream.groups and word not in {b"$", b"+"}:
            after = None if word == b">" else entry_id(word)
            plan.append((key, stream, stream.groups[options.group], None if after == ids.MAX_ID else after))
    want_all(plan, options)


def _ids(db: Database, argv: list[bytes], wall: int) -> None:
    stream = _stream(db, argv[1], wall)
    if stream is not None:
        want(stream.entries, _IDS[argv[0].lower()](argv))


_IDS: dict[bytes, Callable[[list[bytes]], list[int]]] = {
    b"xdel": lambda argv: entry_ids(argv[2:]),
    b"xdelex": lambda argv: entry_ids(parse_id_block(argv, 2)[1]),
    b"xackdel": lambda argv: entry_ids(parse_id_block(argv, 3)[1]),
    b"xclaim": lambda argv: claimed_ids(argv)[0],
}
ASKING: dict[bytes, Callable[[Database, list[bytes], int], None]] = {
    b"xrange": _range,
    b"xrevrange": _range,
    b"xread": _read,
    b"xreadgroup": _read,
    **dict.fromkeys(_IDS, _ids),
}
