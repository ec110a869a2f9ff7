"""The cold entries that commands name in their words, for a transaction that asks for them before it begins.

A command that would fail asks for nothing, and reports its error by itself. The effects of earlier commands of the
transaction are not known yet, so this is only a forecast: a command that needs more reads it when it runs.
"""

from collections.abc import Callable, Iterable

from millstream.commands.streams.pending import claimed_ids
from millstream.commands.streams.read import ask_read, range_of
from millstream.commands.streams.write import parse_id_block
from millstream.commands.table.args import entry_ids
from millstream.engine.cold import ColdDamage, ColdMiss, want
from millstream.engine.keyspace import Database, Keyspace
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError


def ask(space: Keyspace, db: int, commands: Iterable[list[bytes]], wall: int) -> list[ColdMiss]:
    """Return a miss for each command of a transaction that needs entries for which reading would wait."""
    found: list[ColdMiss] = []
    for argv in commands:
        name = argv[0].lower()
        if name == b"select" and len(argv) == 2 and argv[1].isdigit() and int(argv[1][:9]) < len(space.databases):
            db = int(argv[1][:9])
        asks = ASKING.get(name)
        if asks is None:
            continue
        try:
            asks(space.databases[db], argv, wall)
        except ColdMiss as miss:
            found.append(miss)
        except (CommandError, ColdDamage, IndexError):
            continue  # the command itself reports it
    return found


def _stream(db: Database, key: bytes) -> Stream | None:
    """Return a stream with cold entries."""
    found = db.keys.get(key)
    return found if isinstance(found, Stream) and found.entries.extent_count else None


def _range(db: Database, argv: list[bytes], wall: int) -> None:  # noqa: ARG001 - one signature
    stream = _stream(db, argv[1])
    if stream is not None:
        backwards = argv[0].lower() == b"xrevrange"
        start, end, count = range_of(argv, backwards=backwards)
        stream.entries.want_range(start, end, count, backwards=backwards)


def _ids(first: int) -> Callable[[Database, list[bytes], int], None]:
    def ask_ids(db: Database, argv: list[bytes], wall: int) -> None:  # noqa: ARG001 - one signature
        stream = _stream(db, argv[1])
        if stream is not None:
            want(stream.entries, entry_ids(argv[first:]))

    return ask_ids


def _id_block(first: int) -> Callable[[Database, list[bytes], int], None]:
    def ask_block(db: Database, argv: list[bytes], wall: int) -> None:  # noqa: ARG001 - one signature
        stream = _stream(db, argv[1])
        if stream is not None:
            want(stream.entries, entry_ids(parse_id_block(argv, first)[1]))

    return ask_block


def _claimed(db: Database, argv: list[bytes], wall: int) -> None:  # noqa: ARG001 - one signature
    stream = _stream(db, argv[1])
    if stream is not None:
        want(stream.entries, claimed_ids(argv)[0])


ASKING: dict[bytes, Callable[[Database, list[bytes], int], None]] = {
    b"xrange": _range,
    b"xrevrange": _range,
    b"xread": ask_read,
    b"xreadgroup": ask_read,
    b"xdel": _ids(2),
    b"xdelex": _id_block(2),
    b"xackdel": _id_block(3),
    b"xclaim": _claimed,
}
