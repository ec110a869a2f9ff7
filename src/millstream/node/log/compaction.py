"""A process that makes a snapshot of the log's sealed files, so that the server's own process never pauses for it.

``python -m millstream.node.log.compaction DIRECTORY NICENESS PLACE [COPY VERSION [alone]]`` reads one line from
standard input, a :class:`~millstream.persistence.rewrite.Rewrite`, and writes the snapshot that it describes. Given a
descriptor ``COPY``, it first writes a copy for replicas there, an RDB file of that version. It then reports the
history's name, its offset and database on standard output, in one line of ``copy``. With ``alone`` it makes no
snapshot. ``NICENESS`` is added to the parent's. It works only in the very directory of its parent's log, which
``PLACE`` identifies (``DiskLock.place``). Another directory may have the same path by now. It takes no lock and changes
no existing file. It exits when its standard input ends, at the latest when its parent exits.

If there are packs, a line of ``packs`` gives the numbers of those that the snapshot needs. Only a copy reads them.

Exit codes:

- ``0``: the snapshot is complete and on the disk, or was not requested.
- ``1``: the snapshot failed, for the reason on standard error; a part of it may be left.
"""

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from millstream.engine import transitions
from millstream.engine.cold import ColdDamage
from millstream.engine.cold_ops import named_packs
from millstream.engine.ids import text
from millstream.engine.keyspace import Keyspace
from millstream.errors import DiskError, LogCorruptError, MillstreamError
from millstream.node.log import replay
from millstream.node.log.children import reason_of
from millstream.node.log.copying import pieces
from millstream.node.log.snapshot import payloads
from millstream.persistence.disk import Disk, RealDisk, disk_error
from millstream.persistence.packs import PackFiles
from millstream.persistence.rewrite import Rewrite, contents, make


def compact(
    disk: Disk,
    directory: Path,
    rewrite: Rewrite,
    copy: int | None = None,
    version: int = 10,
    *,
    alone: bool = False,
    on_packs: Callable[[Sequence[int]], None] = lambda _: None,
) -> None:
    """Make the snapshot of a rewrite; ``on_packs`` gets the numbers of the packs that it needs, if there are packs."""
    assert transitions.MODULES, "importing them is what matters"
    space = Keyspace()
    space.packs = {pack.number: pack.identity for pack in rewrite.source.packs}
    _, wall = replay.read_back(space, contents(disk, directory, rewrite))
    if copy is not None:
        packs = PackFiles(lambda name: disk.open_read(directory / name), lambda: rewrite.source.packs)
        with contextlib.closing(packs) as space.reads.source:
            try:
                _write_copy(space, wall, copy, version)
            except ColdDamage as damage:
                raise damaged(directory, damage, "no copy for replicas can be made") from damage
    if not alone:
        if space.packs:
            on_packs([number for number, *_ in named_packs(space)])
        made = payloads(space, wall)
        del space  # freed after its last payload, so that reading back can use the memory
        try:
            make(disk, directory, rewrite, made, partial(replay.read_back, Keyspace()))
        except OSError as error:
            raise disk_error(f"cannot make the snapshot {directory / rewrite.target.name}", error) from error


def damaged(directory: Path, damage: ColdDamage, so: str) -> LogCorruptError:
    """Return the error of work that must read all packs; ``so`` is what follows, in words."""
    assert damage.reads.source is not None, "something was read"
    name, extent = damage.reads.source.name(damage.extent.pack), damage.extent
    first, last = (text(each).decode() for each in (damage.first, damage.last))
    return LogCorruptError(
        f"entries {first} to {last} of a stream cannot be read from {directory / name}, so {so}: {damage}. "
        f"`millstream log check {directory}` shows the damage",
        path=str(directory / name),
        offset=extent.offset,
    )


def _write_copy(space: Keyspace, wall: int, descriptor: int, version: int) -> None:
    past = space.history
    with open(descriptor, "wb") as file:
        file.writelines(pieces(space, past, wall, version))
    print("copy", past.replid, past.offset, past.db, flush=True)  # noqa: T201 - this is a program


def _tell_packs(numbers: Sequence[int]) -> None:
    print("packs", *numbers, flush=True)  # noqa: T201 - this is a program


def end_with_parent() -> None:
    """Wait for the end of standard input, then exit the process."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def stand_back(niceness: int) -> None:
    """Lower this process's priority for the processor, and make it the first to end if memory is short."""
    gc.disable()  # no garbage arises before the end
    os.nice(niceness)
    with contextlib.suppress(OSError):  # the file exists only on Linux
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, the system should kill this process


def open_disk(directory: Path, place: str) -> RealDisk:
    """Open the disk if the directory is still the one with the log."""
    disk = RealDisk()
    try:
        found = disk.hold(directory)
    except OSError as error:
        raise disk_error(f"cannot open the data directory {directory}", error) from error
    if found != place:
        raise DiskError(f"{directory} is no longer the directory that holds the log")
    return disk


def main(directory: str, niceness: str, place: str, copy: str = "", version: str = "10", alone: str = "") -> int:
    """Run the process with its arguments; return the exit code."""
    rewrite = Rewrite.decode(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    stand_back(int(niceness))
    try:
        order, home = int(copy) if copy else None, Path(directory)
        disk = open_disk(home, place)
        compact(disk, home, rewrite, order, int(version), alone=bool(alone), on_packs=_tell_packs)
    except (MillstreamError, OSError, MemoryError) as error:
        print(reason_of(error, "a rewriting of the log"), file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # freeing a large keyspace would only waste time
