"""Common parts of the log's tests: a data directory in memory, a reference workload and the rule for its recovery."""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millstream.errors import DiskError, DiskFullError
from millstream.persistence.log import Log
from millstream.persistence.manifest import read_manifest
from millstream.persistence.packs import PackWriter, extents_of
from millstream.persistence.rewrite import contents, make
from support.simdisk import Inode, SimDisk

HOME = Path("/data")


def entropy(seed: int) -> Callable[[int], bytes]:
    """Return a repeatable source of random bytes."""
    return random.Random(seed).randbytes


def disk_with(files: dict[str, bytes], **options: int) -> SimDisk:
    """Return a simulated disk that has these files in its data directory, all durable."""
    disk = SimDisk(**options)
    disk.names = {HOME / name: Inode(bytearray(data), bytearray(data)) for name, data in files.items()}
    disk._durable_names = dict(disk.names)  # noqa: SLF001 - the simulated disk's own state
    return disk


def files_of(disk: SimDisk) -> dict[str, bytes]:
    """Return the files of the data directory as programs see them."""
    return {path.name: bytes(inode.cache) for path, inode in disk.names.items()}


def written(payloads: Iterable[bytes], *, batch: int = 1, close: bool = True, seed: int = 0) -> dict[str, bytes]:
    """Return the files of a log of these records, each ``batch`` of them synced together; sealed if it is closed."""
    disk = SimDisk()
    log, _ = Log.open(HOME, disk, entropy=entropy(seed))
    for number, payload in enumerate(payloads, 1):
        log.append(payload)
        if number % batch == 0:
            log.write()
            log.sync()
    log.write()
    log.sync()
    if close:
        log.close()
    return files_of(disk)


def segment_in(files: dict[str, bytes]) -> str:
    """Return the name of the last log file."""
    return max(name for name in files if name.endswith(".seg"))


@dataclass
class Promises:
    """The log's input and its promises, with which every recovery is compared.

    Attributes:
        appended: payloads in order of position.
        durable: the highest position that the log reported durable.
        extents: the extents written to each pack, by the pack's number.
        may_go: the numbers of packs that a rewriting was free to remove.
    """

    appended: list[bytes] = field(default_factory=list)
    durable: int = 0
    extents: dict[int, list[bytes]] = field(default_factory=dict)
    may_go: set[int] = field(default_factory=set)

    def copy(self) -> "Promises":
        """Return a copy of the promises."""
        extents = {number: list(each) for number, each in self.extents.items()}
        return Promises(list(self.appended), self.durable, extents, set(self.may_go))

    def check(self, recovered: list[bytes]) -> None:
        """Check that ``recovered`` is a prefix of the appended records with all durable ones, and continue from it."""
        assert recovered == self.appended[: len(recovered)], "something was invented or changed"
        assert len(recovered) >= self.durable, f"lost: {len(recovered)} recovered of {self.durable} durable"
        self.appended = recovered
        self.durable = len(recovered)

    def check_packs(self, disk: SimDisk) -> None:
        """Check that the manifest names every pack that is needed, and that each pack has all its extents."""
        disk = disk_with(files_of(disk))  # which does not fail
        manifest = read_manifest(disk, HOME)
        assert manifest is not None
        named = {entry.number: entry for entry in manifest.packs}
        assert self.extents.keys() - self.may_go <= named.keys(), "a pack that is needed is not named"
        for number in self.extents.keys() & named.keys():
            found = [payload for _, payload in extents_of(disk, HOME, named[number])]
            assert found[: len(self.extents[number])] == self.extents[number]


@dataclass
class Caller:
    """A caller that uses ``Log`` as documented, step by step, and checks the promises.

    Args:
        disk: The disk to run on.
        promises: The promises to check.
        when_full: A function called when the disk is full, before the write is tried again.
        lazy: Sync only every third commit, as ``everysec`` does between its seconds.
    """

    disk: SimDisk
    promises: Promises
    when_full: Callable[[SimDisk], None] = lambda disk: None
    seed: int = 0
    lazy: bool = False
    segment_bytes: int = 700
    rewrites: bool = False  # the log is rewritten all the while, one step after each commit
    packs: bool = False  # an extent goes to a pack after each commit, and every third pack is let go later
    pack: PackWriter | None = None
    number: int = 0  # of that pack
    commits: int = 0
    step: str = ""  # what is being done
    rewriting: Iterator[str] | None = None
    rewritten: int = 0

    def open(self) -> None:
        """Open the log, and compare the recovered records with the promises."""
        self.step = "open"
        self.log, recovery = Log.open(
            HOME, self.disk, segment_bytes=self.segment_bytes, entropy=entropy(self.disk.operations + self.seed)
        )
        payloads = list(recovery.payloads())
        report = recovery.report
        assert report.snapshot_last + report.records == len(payloads) == report.last
        self.promises.check(payloads)
        self.promises.check_packs(self.disk)
        self.rewriting = self.pack = None

    def heed(self) -> None:
        """Record the log's durable position after a failure as promised, whichever call raised."""
        if hasattr(self, "log"):
            self.promises.durable = max(self.promises.durable, self.log.durable)

    def append(self, payload: bytes) -> None:
        """Append one record."""
        self.promises.appended.append(payload)
        assert self.log.append(payload) == len(self.promises.appended)

    def commit(self) -> None:
        """Write and sync; if the disk is full, try again."""
        self.step = "commit"
        try:
            self.log.write()
        except DiskFullError:
            self.when_full(self.disk)
            self.log.write()
        self.commits += 1
        if not self.lazy or self.commits % 3 == 0:
            assert self.log.sync() == len(self.promises.appended)
        self.promises.durable = self.log.durable
        if self.packs:
            self.pack_on()
        if self.rewrites:
            self.rewrite_on()

    def pack_on(self) -> None:
        """Write one extent to a pack. A full or failing disk harms neither the log nor earlier extents."""
        self.step = "pack"
        try:
            if self.pack is None:
                self.pack = self.log.add_pack()
                self.number = self.pack.entry.number
            extents = [b"%d" % self.commits * 50, b"second"]
            with contextlib.suppress(DiskFullError):
                self.pack.add(extents)
                self.promises.extents.setdefault(self.number, []).extend(extents)
            if self.commits % 3 == 0:
                self.log.end_pack(self.pack)
                self.pack = None
        except DiskError:
            if self.log.is_poisoned:
                raise
            if self.pack is not None:
                with contextlib.suppress(DiskFullError):
                    self.log.end_pack(self.pack)
                    self.pack = None

    def rewrite_on(self) -> None:
        """Take one step of a rewriting. A full disk for it does no harm."""
        self.rewriting = self.rewriting or self.rewrite()
        try:
            self.step = next(self.rewriting, "")
        except DiskFullError:
            self.step = ""
        if not self.step:
            self.rewriting = None

    def rewrite(self) -> Iterator[str]:
        """Run a rewriting step by step. The snapshot holds the records themselves, for comparison."""
        self.step = "begin the rewriting"
        rewrite = self.log.begin_rewrite()
        if rewrite is None:
            return
        yield "make"
        try:
            payloads = list(contents(self.disk, HOME, rewrite))
            assert payloads == self.promises.appended[: rewrite.target.last], "the snapshot would not hold the log"
            make(self.disk, HOME, rewrite, payloads)
        except (OSError, DiskError):  # the process that does this ends; the log goes on
            with contextlib.suppress(DiskError):
                self.log.remove_obsolete()
            return
        yield "commit"
        self.step = "commit the rewriting"  # if the snapshot cannot be read, the log is not poisoned
        gone = {number for number in self.promises.extents if number % 3 == 1 and number != self.number}
        self.promises.may_go |= gone
        self.log.commit_rewrite(rewrite, gone)
        self.rewritten += 1
        yield "remove"
        with contextlib.suppress(DiskError):
            self.log.remove_obsolete()

    def run(self) -> None:
        """Run the reference workload: batches of many sizes over several log files, with restarts in between."""
        sizes = random.Random(7)
        number = 0
        for part in range(3):
            self.open()
            for batch in (1, 3, 1, 5):
                for _ in range(batch):
                    number += 1
                    self.append(b"%d:" % number + sizes.randbytes(sizes.choice((0, 9, 90, 700))))
                self.commit()
            if part != 1:
                self.step = "close"
                self.log.close()
            else:
                self.append(b"written, not synced")
                self.log.write()
                self.disk.locked.clear()  # the process was killed; what it wrote is in the cache still
