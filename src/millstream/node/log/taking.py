"""A process that makes a snapshot of a primary's copy, as :mod:`millstream.node.log.compaction` does of the log.

``python -m millstream.node.log.taking DIRECTORY NICENESS PLACE COPY TOKEN HOST PORT DURATION MAXSIZE`` reads the copy
from descriptor ``COPY``. It reads an RDB file while that still arrives, but a log's files only once all have arrived.
Lines of standard input give the number of arrived bytes. The last two lines give the history's name and offset, and the
:class:`~millstream.persistence.rewrite.Rewrite` to make; the copy is complete then. The snapshot holds the keys of an
RDB file, or a log's records unchanged, and names the primary. Lines of ``synced`` and a number on standard output
report how many of the snapshot's bytes are on the disk; the parent reads them back. ``DURATION`` and ``MAXSIZE`` are
the limits of producers' messages for streams of an RDB file without limits of their own.

Packs of a log are in files of their own, whose names have the ``TOKEN``. Each is synced and read back once it is
complete. A line of ``taken`` gives all packs that the snapshot may refer to, before the first line of ``synced``.

Exit codes:

- ``0``: the snapshot is on the disk.
- ``1``: the snapshot failed, for the reason on standard error; a part of it may be left.
- ``3``: the copy has data that this server cannot hold, listed on standard error; nothing was written.
"""

import errno
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from millstream.clock import SystemClock
from millstream.commands.table.args import read_integer
from millstream.engine import transitions
from millstream.engine.history import NO_DATABASE, names_of
from millstream.engine.keyspace import DATABASES, Keyspace
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb.reading import AuxField, NotHeld, RdbError, RdbItem, RdbKey, named, read_file
from millstream.errors import LogCorruptError, MillstreamError
from millstream.node.log import codec, copied_log
from millstream.node.log.children import COPY, reason_of
from millstream.node.log.compaction import open_disk, stand_back
from millstream.node.log.copied_log import MAGIC, PACKED, CopyHead
from millstream.node.log.copying import EARLIER
from millstream.node.log.packs import damage_at
from millstream.node.log.rebuilding import from_log
from millstream.node.log.snapshot import payloads
from millstream.persistence.disk import Disk, disk_error
from millstream.persistence.manifest import PackEntry
from millstream.persistence.packs import settle_pack
from millstream.persistence.rewrite import Rewrite
from millstream.persistence.snapshot import write_snapshot

NOT_HELD = 3
_PIECE = 1 << 20
# Number of keys named among those that are not supported
_NAMED = 5
# Redis omits these as well
_EMPTY = "empty collection"


def fill(space: Keyspace, items: Iterator[RdbItem]) -> list[NotHeld]:
    """Put the contents of a copy into an empty keyspace; return the items that this server cannot hold."""
    lacking = []
    for item in items:
        if isinstance(item, RdbKey) and item.db < DATABASES:
            db = space.databases[item.db]
            db.used -= db.size_of(item.key)  # a file may contain a key twice
            db.keys[item.key] = item.value
            db.used += db.size_of(item.key)
            if item.expires_at is not None:
                db.expires[item.key] = item.expires_at
        elif isinstance(item, RdbKey):
            lacking.append(NotHeld("key of a database that does not exist here", item.db, item.key))
        elif isinstance(item, AuxField):
            if item.name == EARLIER.encode():
                space.history.earlier = names_of(item.value)
            elif item.name == b"repl-stream-db" and not _select(space, item.value):
                lacking.append(NotHeld(f"database {named(item.value)}, with which the stream goes on", 0))
        elif item.what != _EMPTY:
            lacking.append(item)
    return lacking


def _select(space: Keyspace, value: bytes) -> bool:
    """Set the database that the replication stream has selected; return False if it does not exist here."""
    number = read_integer(value)
    if number is None or number >= DATABASES:
        return False
    space.history.db = max(number, NO_DATABASE)
    return True


def _named(lacking: list[NotHeld]) -> str:
    shown = [
        each.what if each.key is None else f"{each.what} {named(each.key)} of database {each.db}"
        for each in lacking[:_NAMED]
    ]
    more = len(lacking) - len(shown)
    return f"the copy holds data that does not exist here: {', '.join(shown)}" + (f" and {more} more" if more else "")


class Arriving:
    """The arrived part of a copy, as reported by lines of standard input; the process exits when these end."""

    def __init__(self, lines: Iterable[str], descriptor: int) -> None:
        self._lines, self._descriptor = lines, descriptor
        self._changed = threading.Condition()
        self._size = 0
        self._history = ("", 0)
        self._order: Rewrite | None = None

    def listen(self) -> None:
        """Read all lines of standard input, then exit the process."""
        for line in self._lines:
            with self._changed:
                name, _, offset = line.partition(" ")
                if name.strip().isdigit():
                    self._size = int(line)
                elif not name.startswith("{"):
                    self._history = name, int(offset)
                else:
                    self._order, self._size = Rewrite.decode(line), os.fstat(self._descriptor).st_size
                self._changed.notify()
        os._exit(1)

    def pieces(self) -> Iterator[bytes]:
        """The copy's bytes, as they arrive."""
        at = 0
        while size := self._beyond(at):
            piece = self._read(at, min(size, _PIECE))
            at += len(piece)
            yield piece

    def read_at(self, offset: int, size: int) -> bytes:
        """Wait for bytes at an offset, and return as many as requested; fewer only at the end of the copy."""
        there = max(min(self._beyond(offset + size - 1) + size - 1, size), 0)
        return self._read(offset, there) if there else b""

    def wait_for(self, size: int) -> None:
        """Wait for this many bytes of the copy."""
        self._beyond(size - 1)

    def _read(self, at: int, size: int) -> bytes:
        """Read arrived bytes by offset, since the parent writes at the file's shared position."""
        data = os.pread(self._descriptor, size, at)
        if len(data) < size:
            raise OSError(errno.EIO, "the copy is shorter than was said")
        return data

    def _beyond(self, at: int) -> int:
        """Wait for bytes after an offset; return their number, 0 or less if the copy ends there or before."""
        with self._changed:
            self._changed.wait_for(lambda: self._size > at or self._order is not None)
            return self._size - at

    def order(self) -> tuple[Rewrite, str, int]:
        """Wait for the order; return the rewrite to make, and the history's name and offset."""
        with self._changed:
            self._changed.wait_for(lambda: self._order is not None)
            assert self._order is not None
            return self._order, *self._history


def _as_replica(records: Iterator[bytes], host: str, port: int) -> Iterator[bytes]:
    """Yield the records of a primary's log, then the one that makes this server its replica."""
    yield from records
    yield codec.pack(SystemClock().wall_time(), [("role", NO_DATABASE, host, port)])


def _packs(disk: Disk, directory: Path, arriving: Arriving, head: CopyHead, token: str) -> Iterator[PackEntry]:
    """Yield all packs of a copied log; those that come along once they are here, synced and proved whole."""
    end = head.log_end
    sizes = {each.number: size for each, size in head.packs}
    for source, entry in zip(head.manifest.packs, head.taken(token), strict=True):
        if not entry.name:
            yield entry
            continue
        end += sizes[entry.number]
        arriving.wait_for(end)
        try:
            settled = settle_pack(disk, directory, entry)
            offset, reason = settled.bytes or 0, ""
        except LogCorruptError as error:
            settled, offset, reason = entry, error.offset, str(error)
        if reason or offset < sizes[entry.number]:  # nothing needs what a crash of the primary left behind its end
            space = from_log(copied_log.payloads(arriving.read_at))
            if reason := damage_at(space, entry.number, offset, source.name) or reason:
                raise LogCorruptError(reason, path=source.name, offset=offset)
        yield settled


def _tell_taken(packs: Iterable[PackEntry], next_pack: int) -> None:
    print("taken", json.dumps([next_pack, [asdict(each) for each in packs]]), flush=True)  # noqa: T201 - this is a program


def _tell_compact(size: int) -> None:
    print("compact", size, flush=True)  # noqa: T201 - this is a program


def _tell_synced(size: int) -> None:
    print("synced", size, flush=True)  # noqa: T201 - this is a program


def main(argv: list[str]) -> int:
    """Run the process with its arguments, listed at the top of this module; return the exit code."""
    directory, niceness, place, copy, token, host, port, duration, maxsize = argv
    arriving = Arriving(sys.stdin, int(copy))
    threading.Thread(target=arriving.listen, daemon=True).start()
    stand_back(int(niceness))
    assert transitions.MODULES, "importing them is what matters"
    try:
        disk, magic = open_disk(Path(directory), place), arriving.read_at(0, len(MAGIC))
        if magic in {MAGIC, PACKED}:
            if magic == PACKED:
                head = copied_log.read_head(arriving.read_at)
                _tell_taken(list(_packs(disk, Path(directory), arriving, head, token)), head.manifest.next_pack)
            rewrite, *_ = arriving.order()
            made = _as_replica(copied_log.payloads(arriving.read_at, _tell_compact), host, int(port))
        else:
            space = Keyspace()
            space.primary = host, int(port)
            lacking = fill(space, read_file(arriving.pieces(), int(duration), int(maxsize)))
            if lacking:
                print(_named(lacking), file=sys.stderr)  # noqa: T201 - this is a program
                return NOT_HELD
            rewrite, space.history.replid, space.history.offset = arriving.order()
            made = payloads(space, SystemClock().wall_time())
        write_snapshot(disk, Path(directory), rewrite.target, made, _tell_synced)
    except RdbError as error:
        print(f"the primary's copy is damaged: {error}", file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    except LogCorruptError as error:
        look = "`millstream log check` on the primary's data directory shows the damage and the remedy"
        print(f"the log that the primary has sent is damaged: {error}; {look}", file=sys.stderr)  # noqa: T201 - as above
        return 1
    except OSError as error:
        print(disk_error(f"cannot make a log of the primary's copy in {directory}", error), file=sys.stderr)  # noqa: T201 - as above
        return 1
    except (MillstreamError, MalformedError, MemoryError) as error:
        print(reason_of(error, COPY), file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # as in compaction
