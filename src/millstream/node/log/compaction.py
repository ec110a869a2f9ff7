"""A process that makes a snapshot of the log's sealed files, so that the server's own process never pauses for it.

``python -m millstream.node.log.compaction DIRECTORY NICENESS PLACE [COPY VERSION [alone]]`` reads one line from
standard input, a :class:`~millstream.persistence.rewrite.Rewrite`, and writes the snapshot that it asks for. First,
given a descriptor ``COPY``, it writes a copy for replicas to that, an RDB file of that version. It then reports on
standard output, in one line of ``copy``, the history's name, its offset and database; ``alone``, it makes no snapshot.
Its priority is that much lower than its parent's. It works in the very directory of its parent's log, which ``PLACE``
tells from every other (``DiskLock.place``), and in no other that has its path by now. It takes no lock, changes no file
that is there, and ends at once when its standard input does, which happens at the latest when its parent ends.

Exit codes:

- ``0``: the snapshot is whole and on the disk, or was not to be made.
- ``1``: it is not, for the reason given on standard error; a part of it may be left.
"""

import contextlib
import gc
import os
import sys
import threading
from functools import partial
from pathlib import Path

from millstream.engine import transitions
from millstream.engine.keyspace import Keyspace
from millstream.errors import DiskError, MillstreamError
from millstream.node.log import replay
from millstream.node.log.children import reason_of
from millstream.node.log.copying import pieces
from millstream.node.log.snapshot import payloads
from millstream.persistence.disk import Disk, RealDisk, disk_error
from millstream.persistence.rewrite import Rewrite, contents, make


def compact(
    disk: Disk, directory: Path, rewrite: Rewrite, copy: int | None = None, version: int = 10, *, alone: bool = False
) -> None:
    """Make the snapshot of a rewriting."""
    assert transitions.MODULES, "importing them is what matters"
    space = Keyspace()
    _, wall = replay.read_back(space, contents(disk, directory, rewrite))
    if copy is not None:
        _write_copy(space, wall, copy, version)
    if not alone:
        made = payloads(space, wall)
        del space  # it goes with the last of its payloads, and leaves its memory to what is read back
        try:
            make(disk, directory, rewrite, made, partial(replay.read_back, Keyspace()))
        except OSError as error:
            raise disk_error(f"cannot make the snapshot {directory / rewrite.target.name}", error) from error


def _write_copy(space: Keyspace, wall: int, descriptor: int, version: int) -> None:
    past = space.history
    with open(descriptor, "wb") as file:
        file.writelines(pieces(space, past, wall, version))
    print("copy", past.replid, past.offset, past.db, flush=True)  # noqa: T201 - this is a program


def end_with_parent() -> None:
    """Wait for the end of standard input, and end the process."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def stand_back(niceness: int) -> None:
    """Leave memory, and as much of the processor as is asked for, to others where they want them."""
    gc.disable()  # nothing becomes garbage here but at the end
    os.nice(niceness)
    with contextlib.suppress(OSError):  # no such file outside Linux
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, let it be this process


def open_disk(directory: Path, place: str) -> RealDisk:
    """The disk, if the directory is still the one that the log is in."""
    disk = RealDisk()
    try:
        found = disk.hold(directory)
    except OSError as error:
        raise disk_error(f"cannot open the data directory {directory}", error) from error
    if found != place:
        raise DiskError(f"{directory} is no longer the directory that holds the log")
    return disk


def main(directory: str, niceness: str, place: str, copy: str = "", version: str = "10", alone: str = "") -> int:
    """Read what is asked for, and do it; the exit code."""
    rewrite = Rewrite.decode(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    stand_back(int(niceness))
    try:
        order = int(copy) if copy else None
        compact(open_disk(Path(directory), place), Path(directory), rewrite, order, int(version), alone=bool(alone))
    except (MillstreamError, OSError, MemoryError) as error:
        print(reason_of(error, "a rewriting of the log"), file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # to take a large keyspace apart would take long, for nothing
