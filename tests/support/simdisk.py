"""A disk in memory with the faults of real disks, repeatable, for tests of all code that writes.

It keeps two states of each file and of the names: the one that programs see (the page cache), and the one on the
medium. They meet only when synced. A :class:`PowerCut` can be set after any operation; :meth:`SimDisk.reboot` then
returns the disk that the next start finds, by one kind of :class:`Crash`. Any operation can be made to fail. All
random choices come from one seed, and operations are counted, so a test can go through every one of them.
"""

import errno
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from millstream.persistence.disk import Data

OPENS = frozenset({"create", "open_append", "open_read", "list", "lock"})
"""Operations that need a descriptor. A locked directory is held by its own, so that its sync needs none."""

SECTOR = 512  # bytes that reach the medium together or not at all


class PowerCut(BaseException):
    """Error for a machine that stopped after the set operation. Every later operation of the disk raises it too."""


class Crash(Enum):
    """The treatment of unsynced data in a crash."""

    PROCESS = "process killed: all of it, in the cache still"
    DROPPED = "nothing of it"
    TORN = "the first part of it, in the order it was done, cut at any byte"
    REORDERED = "any 512-byte pieces and any names of it"
    NAMES_LOST = "all data, no names"
    DATA_LOST = "all names and lengths, no data: it reads as zeros"


class Fault(Enum):
    """A kind of failure of an operation."""

    EIO = errno.EIO
    ENOSPC = errno.ENOSPC
    EDQUOT = errno.EDQUOT
    EINTR = errno.EINTR
    EMFILE = errno.EMFILE  # only what opens a file can fail so; of anything else nothing is changed
    SHORT = 0  # a write takes fewer bytes than given; other operations work


Change = tuple[int, bytes] | int
"""A write (offset, data), or a truncation to a size."""

NameChange = tuple[tuple[Path, "Inode | None"], ...]
"""Names set, or removed by None, in one step."""


@dataclass(eq=False, slots=True)
class Inode:
    """One file's content, cached and durable.

    Attributes:
        cache: Content that reads return.
        medium: Content that surely survives a power cut.
        changes: Changes of the cache that are not yet on the medium.
    """

    cache: bytearray = field(default_factory=bytearray)
    medium: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        """Write the changes to the medium."""
        for change in self.changes:
            apply(self.medium, change)
        self.changes.clear()


def apply(content: bytearray, change: Change) -> None:
    """Apply one change to a content; a gap before a write is filled with zeros."""
    if isinstance(change, int):
        del content[change:]
        return
    offset, data = change
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def pieces(changes: list[Change]) -> Iterator[Change]:
    """Yield the changes, with writes split at sector borders."""
    for change in changes:
        if isinstance(change, int):
            yield change
            continue
        offset, data = change
        at = 0
        while at < len(data):
            step = SECTOR - (offset + at) % SECTOR
            yield offset + at, data[at : at + step]
            at += step


class SimFile:
    """Open file of a :class:`SimDisk`; see ``DiskFile`` for the methods."""

    def __init__(self, disk: "SimDisk", path: Path, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode

    def append(self, data: Data) -> int:
        """Append all data, or the part that a fault or the capacity allows."""
        fault = self._disk.begin("append", self._path)
        taken = len(data)
        if fault:
            taken = self._disk.random.randrange(len(data)) if data else 0
            if fault is Fault.EINTR:
                taken = 0
            elif fault is Fault.SHORT:
                taken = max(taken, 1)
        room = self._disk.room()
        if room is not None and taken > room:
            taken = room
            fault = fault if room else Fault.ENOSPC
        if taken:
            change = (len(self._inode.cache), bytes(data[:taken]))
            apply(self._inode.cache, change)
            self._inode.changes.append(change)
        self._disk.end(fault)
        return taken

    def read_at(self, offset: int, size: int) -> bytes:
        """Read from the cache."""
        self._disk.end(self._disk.begin("read", self._path))
        return bytes(self._inode.cache[offset : offset + size])

    def size(self) -> int:
        """Return the size in the cache."""
        self._disk.end(self._disk.begin("size", self._path))
        return len(self._inode.cache)

    def truncate(self, size: int) -> None:
        """Truncate the file; a failure may leave it done or not."""
        fault = self._disk.begin("truncate", self._path)
        if self._disk.happens(fault):
            apply(self._inode.cache, size)
            self._inode.changes.append(size)
        self._disk.end(fault)

    def datasync(self) -> None:
        """Write the changes to the medium. After a failure, changes may be lost although the next sync succeeds."""
        fault = self._disk.begin("datasync", self._path)
        inode = self._inode
        if fault and fault not in {Fault.EINTR, Fault.SHORT}:
            inode.changes = [piece for piece in pieces(inode.changes) if self._disk.random.random() < 0.5]
        if fault is not Fault.EINTR:
            inode.sync()
        self._disk.end(fault)

    def drop_cache(self, start: int = 0) -> None:
        """Drop the cache after a position if all its changes are written."""
        fault = self._disk.begin("drop_cache", self._path)
        if not fault and not self._inode.changes:
            self._inode.cache[start:] = self._inode.medium[start:]
        self._disk.end(fault)

    def displaced(self, size: int) -> str:
        """Return the fault if the file lost its name or has another length, else an empty text. It cannot fail."""
        if self._disk.names.get(self._path) is not self._inode:
            return "was removed"
        return "" if len(self._inode.cache) == size else f"has {len(self._inode.cache)} bytes"

    def close(self) -> None:
        """Close the file, which holds nothing."""


class SimLock:
    """Held lock of a :class:`SimDisk`."""

    def __init__(self, disk: "SimDisk", path: Path) -> None:
        self._disk = disk
        self._path = path
        self._inode = disk.names[path]

    @property
    def place(self) -> str:
        """Return the folder, since there is one lock per name."""
        return str(self._path.parent)

    def displaced(self) -> str:
        """Return the fault if the lock file lost its name, else an empty text. It cannot fail."""
        return "" if self._disk.names.get(self._path) is self._inode else f"{self._path} was removed"

    def write(self, data: bytes) -> None:
        """Write to the lock file, visible at once and never durable."""
        self._disk.end(self._disk.begin("write_lock", self._path))
        self._inode.cache[:] = data

    def release(self) -> None:
        """Release the lock, which always succeeds, as at the end of a process."""
        self._disk.locked.discard(self._path)


class SimDisk:
    """File system in memory; see ``Disk`` for the methods.

    Args:
        seed: Seed of all random choices.
        crash_after: Number of operations before :class:`PowerCut`; None for never.
        faults: Kind of failure by number of the operation, from 1.
        capacity: Maximum size of all files in bytes; None for no limit.

    Attributes:
        operations: Number of operations begun.
        trace: Kind and file of each operation.
        names: Names as programs see them.
        locked: Held lock files.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        crash_after: int | None = None,
        faults: Mapping[int, Fault] | None = None,
        capacity: int | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.crash_after = crash_after
        self.faults = dict(faults or {})
        self.capacity = capacity
        self.operations = 0
        self.trace: list[tuple[str, str]] = []
        self.names: dict[Path, Inode] = {}
        self.locked: set[Path] = set()
        self._durable_names: dict[Path, Inode] = {}
        self._name_changes: list[NameChange] = []
        self._directories: set[Path] = set()
        self._dead = False

    def begin(self, what: str, path: Path) -> Fault | None:
        """Count an operation and return its fault, if any."""
        if self._dead or (self.crash_after is not None and self.operations >= self.crash_after):
            self._dead = True
            raise PowerCut
        self.operations += 1
        self.trace.append((what, path.name))
        fault = self.faults.get(self.operations)
        return None if fault is Fault.EMFILE and what not in OPENS else fault

    def end(self, fault: Fault | None) -> None:
        """Raise the error of the fault."""
        if fault and fault is not Fault.SHORT:
            raise OSError(fault.value, os.strerror(fault.value))

    def happens(self, fault: Fault | None) -> bool:
        """Return True if an operation takes effect: always without a fault; by chance in an input/output error."""
        return fault in {None, Fault.SHORT} or (fault is Fault.EIO and self.random.random() < 0.5)

    def room(self) -> int | None:
        """Return the free bytes, if there is a capacity."""
        if self.capacity is None:
            return None
        return max(0, self.capacity - sum(len(inode.cache) for inode in self.names.values()))

    def create(self, path: Path) -> SimFile:
        """Create a file, as ``Disk`` does."""
        fault = self.begin("create", path)
        if path in self.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        inode = Inode()
        if self.happens(fault):
            self._rename(((path, inode),))
        self.end(fault)
        return SimFile(self, path, inode)

    def open_append(self, path: Path) -> SimFile:
        """Open a file to append, as ``Disk`` does."""
        self.end(self.begin("open_append", path))
        return SimFile(self, path, self._inode(path))

    def open_read(self, path: Path) -> SimFile:
        """Open a file to read, as ``Disk`` does."""
        self.end(self.begin("open_read", path))
        return SimFile(self, path, self._inode(path))

    def open_unreserved(self, path: Path) -> SimFile:
        """Open a file to read, since there are no descriptors to reserve."""
        return self.open_read(path)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, as ``Disk`` does."""
        fault = self.begin("rename", new)
        inode = self._inode(old)
        if self.happens(fault):
            self._rename(((old, None), (new, inode)))
        self.end(fault)

    def remove(self, path: Path) -> None:
        """Remove a file, as ``Disk`` does."""
        fault = self.begin("remove", path)
        self._inode(path)
        if self.happens(fault):
            self._rename(((path, None),))
        self.end(fault)

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, as ``Disk`` does."""
        self.end(self.begin("list", directory))
        return sorted(path.name for path in self.names if path.parent == directory)

    def make_directory(self, directory: Path) -> None:
        """Create a directory, which is durable at once."""
        self.end(self.begin("make_directory", directory))
        self._directories.add(directory)

    def sync_directory(self, directory: Path) -> None:
        """Sync a directory. After a failure, the first changes may be durable; the others wait, as in a journal."""
        fault = self.begin("sync_directory", directory)
        count = len(self._name_changes)
        if fault and fault is not Fault.SHORT:
            count = self.random.randint(0, count)
        set_names(self._durable_names, self._name_changes[:count])
        del self._name_changes[:count]
        self.end(fault)

    def free(self, directory: Path) -> int:
        """Return the free bytes, as ``Disk`` does."""
        self.end(self.begin("free", directory))
        room = self.room()
        return 1 << 40 if room is None else room

    def total(self, directory: Path) -> int:
        """Return the total bytes, as ``Disk`` does."""
        self.end(self.begin("total", directory))
        return 1 << 40 if self.capacity is None else self.capacity

    def lock(self, path: Path) -> SimLock:
        """Lock a file, as ``Disk`` does."""
        self.end(self.begin("lock", path))
        if path in self.locked:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
        if path not in self.names:
            self._rename(((path, Inode()),))
        self.locked.add(path)
        return SimLock(self, path)

    def reboot(self, crash: Crash, seed: int = 0) -> "SimDisk":
        """Return the disk that the next start finds; this one must not be used any more."""
        after = SimDisk(seed, capacity=self.capacity)
        after._directories = self._directories
        if crash is Crash.PROCESS:
            after.names, after._durable_names = self.names, self._durable_names
            after._name_changes = self._name_changes
            return after
        names = dict(self._durable_names)
        set_names(names, self._surviving_names(crash, after.random))
        left = {id(inode): _after_crash(inode, crash, after.random) for inode in names.values()}
        after.names = {path: left[id(inode)] for path, inode in names.items()}
        after._durable_names = dict(after.names)
        return after

    def copy(self) -> "SimDisk":
        """Return an independent copy of the disk."""
        twin = SimDisk(capacity=self.capacity)
        twin.random.setstate(self.random.getstate())
        twin.operations, twin._directories, twin.locked = self.operations, set(self._directories), set(self.locked)
        inodes: dict[int, Inode] = {}

        def again(inode: Inode | None) -> Inode | None:
            if inode is not None and id(inode) not in inodes:
                content = bytearray(inode.cache), bytearray(inode.medium), list(inode.changes)
                inodes[id(inode)] = Inode(*content)
            return inodes.get(id(inode))

        changes = [tuple((path, again(inode)) for path, inode in change) for change in self._name_changes]
        twin._name_changes = changes
        for names, ours in ((twin.names, self.names), (twin._durable_names, self._durable_names)):
            set_names(names, [tuple((path, again(inode)) for path, inode in ours.items())])
        return twin

    def _surviving_names(self, crash: Crash, chance: random.Random) -> Sequence[NameChange]:
        pending = self._name_changes
        if crash is Crash.TORN:
            return pending[: chance.randint(0, len(pending))]
        if crash is Crash.REORDERED:
            return [change for change in pending if chance.random() < 0.5]
        return pending if crash is Crash.DATA_LOST else []

    def _rename(self, change: NameChange) -> None:
        set_names(self.names, [change])
        self._name_changes.append(change)

    def _inode(self, path: Path) -> Inode:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self.names[path]


def set_names(names: dict[Path, Inode], changes: Iterable[NameChange]) -> None:
    """Apply changes of names."""
    for change in changes:
        for path, inode in change:
            if inode is None:
                names.pop(path, None)
            else:
                names[path] = inode


def _after_crash(inode: Inode, crash: Crash, chance: random.Random) -> Inode:
    """Return a file's content after a crash."""
    content = bytearray(inode.medium)
    if crash is Crash.TORN:
        done = inode.changes[: chance.randint(0, len(inode.changes))]
        for number, change in enumerate(done, 1):
            if number == len(done) and not isinstance(change, int):
                change = (change[0], change[1][: chance.randint(0, len(change[1]))])  # noqa: PLW2901 - the last is cut
            apply(content, change)
    elif crash is Crash.REORDERED:
        for change in pieces(inode.changes):
            if chance.random() < 0.5:
                apply(content, change)
    elif crash is Crash.NAMES_LOST:
        for change in inode.changes:
            apply(content, change)
    elif crash is Crash.DATA_LOST:
        for change in inode.changes:
            apply(content, change if isinstance(change, int) else (change[0], bytes(len(change[1]))))
    return Inode(bytearray(content), content)
