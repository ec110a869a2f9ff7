"""The log: one sequence of atomic records, each durable before any client sees an effect of it.

The caller ensures this with group commit::

    position = log.append(payload)        # loop thread: the change is made in memory
    ...                                   # more commands in the same turn of the event loop
    log.write(); log.sync()               # worker thread: one write, one fdatasync for all of them
    ...                                   # send replies that wait for a position <= log.durable

Duties of the caller when the disk fails:

``DiskError``
    The log is poisoned: every later ``append``, ``write`` and ``sync`` raises. Records above ``durable`` may or may not
    be on disk, and a retry could report a false success. Show nothing above ``durable``, and end the process; a start
    recovers the records on the disk.

``DiskFullError`` (from ``write`` or ``sync``)
    Space, open files or memory have run out. Nothing of the refused records is on disk, and the log keeps them, in
    order, under their positions. Their changes are in the caller's memory already. So show nothing above ``durable``,
    refuse further writes, and call ``write`` again when ``free()`` reports space. Reads of durable data continue. To
    prevent a failed write, watch ``free()`` and refuse writes while it is below a minimum.

Files of a data directory:

- ``MANIFEST`` (see ``manifest``);
- ``log-<first position>.seg`` (see ``frame``);
- ``snapshot-<last position>-<identity>.snap`` (see ``snapshot``);
- ``pack-<number>-<identity>.pack`` (see ``packs``);
- ``lock`` (see ``lockfile``);
- ``torn-<log file>-<offset>-<n>``: bytes that recovery cut, kept for a person to examine.

Memory and disk always have the same list of files. Only :meth:`Log._switch` replaces the manifest, and after the rename
memory holds the new one, even if a later step fails. If it is unknown whether the rename took place or is durable, the
log is poisoned; a poisoned log removes nothing.

The log uses the locked directory, even if its path changes. It checks that the path still leads there before it writes
a group, before it reports one as durable, and before it replaces the manifest. If not, it is poisoned.

Three steps make a consistent copy of a directory in use:

1. Read the manifest (``read_manifest``).
2. Copy the files it names in its order: the snapshot, then the log files.
3. Write the manifest that was read as the copy's manifest.

No file changes while the manifest names it, except the last log file, which grows. Its copy may end in the middle of a
record, and a start from the copy cuts that record, as after a crash. A rewrite may remove a file before it is copied
(``FileNotFoundError``; an open file stays readable): start over with the manifest. Such a copy holds every record that
was durable at its start, whole, and perhaps later ones.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from millstream.errors import DiskError, DiskFullError, LogCorruptError, StorageError, UsageError
from millstream.persistence.disk import FULL, Disk, DiskFile, DiskLock, RealDisk, datasync, disk_error, put, tried
from millstream.persistence.frame import HEADER_SIZE, MAX_PAYLOAD, Entropy, encode_records, encode_seal
from millstream.persistence.inventory import Progress, payloads_of, size_of, take_inventory, unnamed
from millstream.persistence.lockfile import Owner, take_lock, write_owner
from millstream.persistence.manifest import (
    NEW_NAME,
    Manifest,
    PackEntry,
    is_pack_name,
    is_snapshot_name,
    read_manifest,
    segment_name,
)
from millstream.persistence.packs import HeldFiles, PackWriter, begin_pack, bring_back, new_pack, sealed_packs
from millstream.persistence.recovery import Opened, RecoveredLog, name_manifest, recover, stage_manifest, stage_segment
from millstream.persistence.rewrite import Rewrite
from millstream.persistence.segment import LogFiles
from millstream.persistence.snapshot import new_entry, sealed_size, snapshot_payloads

SEGMENT_BYTES = 64 << 20

_DISPLACED = (
    "{}, while this process used it: a start would not find the records after position {} there, so it accepts no "
    "more. The acknowledged records are in the former directory: put it back if it was moved, and start again"
)
_LOOK = "`millstream log check {}` shows the damage, the loss and the remedy"


class Log:
    """An open log; :meth:`open` creates it.

    ``append`` belongs to one thread, ``write`` and ``sync`` to one other at a time; ``close`` may come from either.
    """

    def __init__(
        self, disk: Disk, directory: Path, lock: DiskLock, opened: Opened, *, segment_bytes: int, entropy: Entropy
    ) -> None:
        self.disk = self._disk = disk
        self._directory = directory
        self._lock = lock
        self._manifest = opened.manifest
        self._file = opened.file
        self._header = opened.header
        self._size = opened.size
        self._others = opened.sizes  # bytes of the log's other files, by name
        self._before = sum(opened.sizes.values())  # total bytes of these files
        self._sealed = opened.sealed
        self._segment_bytes = segment_bytes
        self._entropy = entropy
        self.appended = self.written = self.durable = opened.last
        self._gate = threading.Lock()  # guards _pending and appended
        self._pending: list[bytes] = []  # appended records that write() has not taken yet
        self._io = threading.RLock()  # guards the following attributes and the file
        self._batch: list[bytes] = []  # taken by write() and not on disk: refused by a full disk, or being written
        self._busy = False  # True while the file and these attributes change together
        # Last position at which a record may add extents of a pack, by number; 0 for packs from before this start
        self._filled_until: dict[int, int] = {}
        self._filled: dict[int, PackWriter] = {}  # packs that are being filled
        # Sizes of packs without an end, which grow no more
        self._size_left = cache(lambda name: size_of(disk, directory / name))
        self._held = HeldFiles()  # packs that copies still have to send
        self._failure, self._closed = "", False

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        disk: Disk | None = None,
        on_progress: Progress | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        entropy: Entropy = os.urandom,
    ) -> tuple["Log", RecoveredLog]:
        """Open a data directory, created if missing, and recover it.

        Everything is verified before this returns; ``RecoveredLog.payloads()`` then reads it once more to apply it.
        """
        disk = disk or RealDisk()
        path = Path(directory)
        try:
            disk.make_directory(path)
            lock = take_lock(disk, path)
            try:
                opened, recovery = recover(disk, path, entropy, on_progress)
            except LogCorruptError as error:
                lock.release()
                raise LogCorruptError(f"{error}. {_LOOK.format(path)}", path=error.path, offset=error.offset) from None
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise disk_error(f"cannot open the data directory {path}", error) from error
        return cls(disk, path, lock, opened, segment_bytes=segment_bytes, entropy=entropy), recovery

    @property
    def directory(self) -> Path:
        """The data directory."""
        return self._directory

    @property
    def place(self) -> str:
        """The data directory's identity, whatever its path; see ``DiskLock.place``."""
        return self._lock.place

    @property
    def total_bytes(self) -> int:
        """Total size of the log's files, in bytes."""
        return self._size + self._before

    @property
    def snapshot_bytes(self) -> int:
        """Size of the snapshot in bytes, 0 without one."""
        made = self._manifest.snapshot
        return 0 if made is None else self._others[made.name]

    @property
    def is_poisoned(self) -> bool:
        """True if the log refuses all writes, since the content of the disk is unknown."""
        return bool(self._failure)

    def announce(self, address: str) -> None:
        """Write this process's address, such as ``"unix:/run/x.sock"``, into the lock file, so that others attach."""
        owner = Owner(os.getpid(), address)
        tried(lambda: write_owner(self._lock, owner), f"cannot write the lock file of {self._directory}")

    def free(self) -> int:
        """Return the number of bytes that may still be written to the disk."""
        return tried(lambda: self._disk.free(self._directory), f"cannot find the free space of {self._directory}")

    def total(self) -> int:
        """Return the total size in bytes of the data directory's file system."""
        doing = f"cannot find the size of the file system of {self._directory}"
        return tried(lambda: self._disk.total(self._directory), doing)

    def held(self) -> list[bytes]:
        """Return the records that were appended and not written yet, oldest first."""
        with self._io, self._gate:
            return [*self._batch, *self._pending]

    @property
    def unwritten(self) -> int:
        """Size in bytes of the records that no write has taken yet; this never waits for the disk."""
        with self._gate:
            return sum(map(len, self._pending))

    def append(self, payload: bytes) -> int:
        """Buffer one record; it is whole on disk or not at all.

        Returns:
            Its position: 1, 2, 3, ... over the life of the data directory.
        """
        if self._failure:
            raise DiskError(self._failure)
        if len(payload) > MAX_PAYLOAD:
            raise UsageError(f"a log record holds at most {MAX_PAYLOAD} bytes, this one has {len(payload)}")
        with self._gate:
            self._pending.append(payload)
            self.appended += 1
            return self.appended

    def write(self) -> int:
        """Pass all buffered records to the operating system in one write.

        Returns:
            The last position written.
        """
        with self._io:
            self._check()
            self._expect_place()
            with self._gate:
                self._batch += self._pending
                self._pending = []
            if not self._batch:
                return self.written
            if self._size >= self._segment_bytes:
                self._roll()
            first = self._header.first
            pieces = encode_records(self._header, self._batch, self.written + 1 - first, self.durable + 1 - first)
            self._put(b"".join(pieces))
            self.written += len(self._batch)
            self._batch = []
            self._busy = False
            return self.written

    def sync(self) -> int:
        """Make everything written durable.

        Returns:
            The last durable position.
        """
        with self._io:
            self._check()
            if self.durable < self.written:
                try:
                    self._datasync()
                except OSError as error:
                    raise self._poison("sync", error) from error
            return self.durable

    def replay(self) -> Iterator[bytes]:
        """Yield the snapshot's payloads and every later record from disk; appends are forbidden meanwhile."""
        with self._io:
            self.write()
            examined = [found for found, _ in take_inventory(self._disk, self._directory, self._manifest)]
            if self._manifest.snapshot is not None:
                yield from snapshot_payloads(self._disk, self._directory, self._manifest.snapshot)
            for found in examined:
                yield from payloads_of(self._disk, self._directory, found, lambda _: None)

    def files(self, last: int, having: Collection[str] | None = None) -> LogFiles:
        """Open the log's present files for a replica that loads them; later renames do not matter.

        Packs are part of it, and stay, if the identities of those that the replica has are given.
        """
        with self._io, contextlib.ExitStack() as opened:
            self._check()
            made = self._manifest.snapshot
            if last > self.written or last + 1 < self._manifest.begin:
                raise UsageError(f"the log has no files up to record {last}: it begins with {self._manifest.begin}")
            segments = [each for each in self._manifest.segments if each.first <= max(last, self._manifest.begin)]
            sizes = self._others | {self._manifest.segments[-1].name: self._size}
            names = [*([made.name] if made else []), *(each.name for each in segments)]
            files = [(opened.enter_context(contextlib.closing(self.open_pack(name))), sizes[name]) for name in names]
            if having is None:
                opened.pop_all()
                return LogFiles(Manifest(tuple(segments), made), last, files)
            valid, old = self.pack_sizes(), self._manifest
            wanted = [
                (each, valid[each.number]) for each in old.packs if not each.sealed or each.identity not in having
            ]
            names = [each.name for each, _ in wanted]
            self._held.add(names)
            opened.pop_all()
            manifest = Manifest(tuple(segments), made, packs=old.packs, next_pack=old.next_pack)
            return LogFiles(manifest, last, files, wanted, lambda: self._held.drop(names))

    @property
    def count(self) -> int:
        """Number of the log's files."""
        return len(self._manifest.names)

    @property
    def packs(self) -> tuple[PackEntry, ...]:
        """The packs, in order of their numbers."""
        return self._manifest.packs

    def settled_packs(self, rewrite: Rewrite) -> set[int]:
        """Numbers of the packs whose extents no record behind the rewrite's source can name for the first time."""
        last = rewrite.target.last  # later packs are left to the next rewrite
        with self._io:
            return {pack.number for pack in rewrite.source.packs if self._filled_until.get(pack.number, 0) <= last}

    def pack_sizes(self) -> dict[int, int]:
        """Numbers of valid bytes by number of the pack; the file's size if the pack was never ended."""
        packs = self.packs  # first: another thread may add one, whose size as of now must not be kept
        filled = {number: pack.size for number, pack in list(self._filled.items())}
        return {each.number: each.bytes or filled.get(each.number) or self._size_left(each.name) for each in packs}

    def sealed_packs(self) -> list[PackEntry]:
        """The packs with a correct seal, after a look at each of them."""
        return list(sealed_packs(self._disk, self._directory, self.packs))

    def receive_pack(self, name: str) -> DiskFile:
        """Begin a file for a pack that comes with a copy; a start removes it unless the copy was taken over."""
        return self._disk.create(self._directory / name)

    def discard_packs(self, names: Iterable[str]) -> None:
        """Remove packs of a copy that was not taken over; those that the manifest names stay."""
        with self._io:
            left = {*names} - {each.name for each in self.packs}
        self._discard(*left)  # writes need not wait for it

    def bring_back(self, pack: PackEntry) -> bool:
        """Write a removed pack anew, see :func:`packs.bring_back`; raise if a start would not look for it here."""
        if reason := self._lock.displaced():
            raise DiskError(_DISPLACED.format(reason, self.durable))
        return bring_back(self._disk, self._directory, pack)

    def begin_rewrite(self) -> Rewrite | None:
        """Begin a new log file, so that all earlier files never change again; see ``rewrite``.

        Returns:
            The possible rewrite; None if there is nothing to rewrite.
        """
        with self._io:
            self._check()
            if self.written >= self._header.first:
                self._roll()
            sealed = self._manifest.segments[:-1]
            if not sealed:
                return None
            source = replace(self._manifest, segments=sealed, obsolete=(), gone=())
            return Rewrite(source, new_entry(self.written, self._entropy))

    def rewritten(self, rewrite: Rewrite, synced: Iterable[int] = ()) -> Iterator[bytes]:
        """Yield the payloads of the new snapshot, complete or still being written, before the log uses it."""
        return snapshot_payloads(self._disk, self._directory, rewrite.target, synced=synced)

    @property
    def pack_count(self) -> int:
        """Number of packs."""
        return len(self._manifest.packs)

    def pack_bytes(self) -> int:
        """Size of all packs in bytes; of one that was not ended, the size of its file, if that can be opened now."""
        try:
            return sum(self.pack_sizes().values())
        except StorageError:
            return sum(each.bytes or 0 for each in self.packs)

    def open_pack(self, name: str) -> DiskFile:
        """Open a pack for reading."""
        path = self._directory / name
        return tried(lambda: self._disk.open_unreserved(path), f"cannot open {path}")

    def add_pack(self) -> PackWriter:
        """Begin a pack. The manifest names it before it holds an entry, so that it is never a stray file."""
        with self._io:
            self._check()
            old = self._manifest
            entry = new_pack(old.next_pack, self._entropy)
            try:
                pack = begin_pack(self._disk, self._directory, entry)
            except OSError as error:
                raise self._refused("add a pack after", error, entry.name) from error
            manifest = replace(old, packs=(*old.packs, entry), next_pack=entry.number + 1)
            self._filled_until[entry.number] = sys.maxsize
            self._filled[entry.number] = pack
            try:
                self._sync_names()
                self._switch(manifest, self._others, "add a pack after", entry.name)
            except BaseException:
                pack.close()
                raise
            return pack

    def open_packs(self) -> Iterator[tuple[int, str, DiskFile]]:
        """Open each pack that the manifest names for reading; yield its number and its name too."""
        with self._io:
            found = self._manifest.packs
        for each in found:
            yield each.number, each.name, self.open_pack(each.name)

    def end_pack(self, pack: PackWriter) -> None:
        """Seal a pack, or close it as it is after an error; the manifest then records its number of valid bytes.

        Call it after the last record that adds extents of the pack was appended: a rewrite may then release it.
        """
        ended = pack.end()
        try:
            with self._io:
                self._filled_until[ended.number] = self.appended  # even if the manifest cannot say that it has ended
                self._filled.pop(ended.number, None)
                self._check()
                packs = tuple(ended if each.number == ended.number else each for each in self._manifest.packs)
                self._switch(replace(self._manifest, packs=packs), self._others, "end a pack after")
        finally:
            pack.close()

    def commit_rewrite(
        self, rewrite: Rewrite, gone: Collection[int] = (), taken: Sequence[PackEntry] | None = None, next_pack: int = 1
    ) -> None:
        """Replace the sources by the new snapshot, which must be whole and synced.

        ``gone`` has the numbers of packs that neither the snapshot nor a later record needs. If the snapshot has data
        of another server, ``taken`` has its packs, which take the place of all others, and ``next_pack`` is its number.
        """
        with self._io:
            self._check()
            old = self._manifest
            count = len(rewrite.source.segments)
            if (old.segments[:count], old.snapshot) != (rewrite.source.segments, rewrite.source.snapshot):
                raise UsageError("the log is not the one that was sealed off: call begin_rewrite() again")
            try:
                size = sealed_size(self._disk, self._directory, rewrite.target)
                there = frozenset(self._disk.list(self._directory))
            except OSError as error:
                raise disk_error(f"cannot read {self._directory / rewrite.target.name}", error) from error
            obsolete = tuple(entry for entry in (*old.obsolete, *rewrite.source.segments) if entry.name in there)
            packs = tuple(each for each in old.packs if each.number not in gone) if taken is None else tuple(taken)
            left = (*(each for each in old.gone if each.name in there), *(p for p in old.packs if p not in packs))
            manifest = replace(
                old,
                segments=old.segments[count:],
                snapshot=rewrite.target,
                obsolete=obsolete,
                packs=packs,
                gone=left,
                next_pack=max(old.next_pack, next_pack),
            )
            kept = {name: number for name, number in self._others.items() if name in manifest.names}
            self._sync_names()  # makes the names of the snapshot and of the packs durable
            self._switch(manifest, kept | {rewrite.target.name: size}, "name the snapshot in")
            if taken is not None:
                self._filled_until, self._filled = {}, {}

    def remove_obsolete(self) -> None:
        """Remove leftovers of rewrites: snapshots that are not part of the log, and files that one replaced.

        This may run in parallel to anything else, except while a snapshot is being written. It takes long for large
        files.
        """
        try:
            for name in self._removable():
                self._disk.remove(self._directory / name)
        except OSError as error:
            raise disk_error(f"cannot remove files that are not needed from {self._directory}", error) from error

    def _removable(self) -> list[str]:
        """Return the names that :meth:`remove_obsolete` may remove; the manifest in memory must equal that on disk."""
        with self._io:
            self._check()
            self._expect_place()
            manifest = self._manifest
            if read_manifest(self._disk, self._directory) != manifest:
                raise self._poison("remove files of", OSError("the manifest on disk is not this process's"))
            obsolete = {entry.name for entry in manifest.obsolete} | {entry.name for entry in manifest.gone}
            names = (name for name, _ in unnamed(self._disk, self._directory, manifest))
            found = [n for n in names if (is_snapshot_name(n) or n in obsolete) and n not in self._held]
            return sorted(found, key=is_pack_name)  # a log that a start can fall back to has all its packs

    def close(self) -> None:
        """Write, sync and seal what is buffered, and release the directory. A second call does nothing.

        A poisoned log is only released.
        """
        with self._io:
            if self._closed:
                return
            try:
                if not self._failure:
                    self.write()
                    self.sync()
                    with contextlib.suppress(DiskFullError):  # all is durable; the seal only records it
                        self._seal()
            finally:
                self._closed = True
                self._failure = self._failure or f"the log in {self._directory} is closed"
                with contextlib.suppress(OSError):  # all important bytes were synced before
                    self._file.close()
                self._lock.release()

    def abandon(self) -> None:
        """Close a forked child's copies of the parent's files, and write nothing.

        Otherwise the directory would stay locked while the child lives. This takes no thread lock, since the thread
        that held it does not exist in the child.
        """
        self._closed = True
        self._failure = f"the log in {self._directory} belongs to the process this one was forked from"
        with contextlib.suppress(OSError):  # errors do not matter: the files only need to be closed
            self._file.close()
        with contextlib.suppress(OSError):
            self._lock.release()

    def refuse(self, error: BaseException) -> DiskError:
        """Poison the log, since memory does not have the data that it took over; return the error."""
        self._failure = f"cannot use the data that {self._directory} has now: {str(error) or repr(error)}; start again"
        return DiskError(self._failure)

    def _check(self) -> None:
        if self._failure:
            raise DiskError(self._failure)
        if self._busy:  # an exception such as KeyboardInterrupt has left a write in an unknown state
            raise self._poison("go on with", OSError("the last write was interrupted"))

    def _expect_place(self) -> None:
        """Raise unless a start on this directory's path would find these writes."""
        reason = self._lock.displaced()
        if not reason and (what := self._file.displaced(self._size)):
            reason = f"{self._directory / self._manifest.segments[-1].name} {what}"
        if reason:
            self._failure = _DISPLACED.format(reason, self.durable)
            raise DiskError(self._failure)

    def _poison(self, doing: str, error: OSError) -> DiskError:
        self._failure = (
            f"cannot {doing} {self._directory / self._manifest.segments[-1].name}: {error.strerror or error}; "
            f"records after position {self.durable} may or may not be on disk, so no more are taken; start again"
        )
        return DiskError(self._failure)

    def _datasync(self) -> None:
        """Make all writes so far durable by one fdatasync, and check that the directory's path still leads here."""
        datasync(self._file)
        self._expect_place()
        self.durable = self.written

    def _put(self, data: bytes) -> None:
        """Append to the file; on a full disk restore its earlier size. The caller clears ``_busy``."""
        self._busy = True
        try:
            put(self._file, data)
        except OSError as error:
            if error.errno not in FULL:
                raise self._poison("write to", error) from error
            self._take_back()
            self._busy = False
            raise disk_error(f"cannot write to {self._directory}", error) from error
        self._size += len(data)
        self._sealed = False

    def _take_back(self) -> None:
        """Remove the remains of a refused write, durably: the next write must follow the last whole record."""
        try:
            self._file.truncate(self._size)
            self._datasync()
        except OSError as error:
            raise self._poison("truncate", error) from error

    def _seal(self) -> None:
        """Mark in the file that all of it is durable, so that later damage is not mistaken for a torn write."""
        if self._sealed:
            return
        self._put(encode_seal(self._header, self.written + 1 - self._header.first))
        try:
            self._datasync()
        except OSError as error:
            raise self._poison("sync", error) from error
        self._sealed = True
        self._busy = False

    def _roll(self) -> None:
        """Continue in a new log file; records of the old one are durable before the new one is part of the log."""
        self.sync()
        self._seal()
        first = self.written + 1
        try:
            entry, header, file = stage_segment(self._disk, self._directory, first, self._entropy)
        except OSError as error:
            raise self._refused("add a log file after", error, segment_name(first)) from error
        manifest = replace(self._manifest, segments=(*self._manifest.segments, entry))
        others = self._others | {self._manifest.segments[-1].name: self._size}
        try:
            self._sync_names()
            self._switch(manifest, others, "add a log file after", entry.name)
        except BaseException:
            file.close()
            raise
        with contextlib.suppress(OSError):  # everything was synced before
            self._file.close()
        self._file, self._header = file, header
        self._size, self._sealed = HEADER_SIZE, False

    def _switch(self, manifest: Manifest, others: dict[str, int], doing: str, *staged: str) -> None:
        """Replace the manifest on disk and then in memory, so that memory never has one that is not on disk."""
        self._expect_place()
        try:
            stage_manifest(self._disk, self._directory, manifest)
        except OSError as error:
            raise self._refused(doing, error, NEW_NAME, *staged) from error
        try:
            name_manifest(self._disk, self._directory)
        except OSError as error:
            if NEW_NAME not in self._there():
                raise self._poison(doing, error) from error  # the rename may have happened in spite of the error
            raise self._refused(doing, error, NEW_NAME, *staged) from error
        self._manifest, self._others, self._before = manifest, others, sum(others.values())
        self._sync_names()

    def _sync_names(self) -> None:
        try:
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise self._poison("sync the directory of", error) from error

    def _there(self) -> list[str]:
        """Return the names in the directory; empty if the system refuses to list them."""
        try:
            return self._disk.list(self._directory)
        except OSError:
            return []

    def _refused(self, doing: str, error: OSError, *names: str) -> DiskError:
        """Return the error for files that were not created; if space ran out, remove them so the log can continue."""
        if error.errno in FULL and self._discard(*names):
            return disk_error(f"cannot {doing} {self._directory / self._manifest.segments[-1].name}", error)
        return self._poison(doing, error)

    def _discard(self, *names: str) -> bool:
        """Remove files that are not part of the log yet; return True on success."""
        for name in names:
            try:
                self._disk.remove(self._directory / name)
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True
