"""A power cut, a killed process or a failing disk at any operation of the log never loses durable records."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.errors import DiskError, DiskFullError
from millstream.persistence.log import Log
from millstream.persistence.rewrite import contents, make
from persistence.reference import HOME, Caller, Promises
from support import campaign
from support.simdisk import Crash, Fault, PowerCut, SimDisk

# Ways of running the reference workload
WAYS: dict[str, dict[str, bool]] = {
    "synced": {},
    "lazy": {"lazy": True},
    "rewriting": {"rewrites": True},
    "packs": {"rewrites": True, "packs": True},
}


def operations(way: str) -> int:
    """Return the number of disk operations of the reference workload."""
    disk = SimDisk()
    caller = Caller(disk, Promises(), **WAYS[way])
    caller.run()
    assert way != "rewriting" or caller.rewritten >= 3, "the log is rewritten again and again"
    return disk.operations


def go_on(disk: SimDisk, promises: Promises, seed: int) -> None:
    """Recover and lose power again, half the time before a new write: no record recovered once may be missing."""
    steps = (True, True) if seed % 2 else (False, True)
    for write in steps:
        caller = Caller(disk, promises, seed=disk.operations + seed)
        caller.open()
        if write:
            caller.append(b"after the crash")
            caller.commit()
        disk = disk.reboot(Crash.DROPPED)
    Caller(disk, promises, seed=-seed).open()


class Seen(SimDisk):
    """A disk with a callback before each operation.

    Args:
        look: called before any part of the operation is done.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def begin(self, what: str, path: Path) -> Fault | None:
        """Call ``look`` with the disk as a power cut now would leave it."""
        self._look()
        return super().begin(what, path)


def crash_everywhere(crash: Crash, seeds: range, way: str) -> int:
    """Crash and recover once for each operation and seed; return the number of crashes."""
    count = operations(way)
    if crash is Crash.PROCESS:
        points = [(1_000_003 * seed + point, *cut_short(point, way)) for seed in seeds for point in range(count)]
    else:
        left = moments(way)
        assert len(left) == count
        points = [(1_000_003 * seed + point, *one) for seed in seeds for point, one in enumerate(left)]
    for seed, disk, promises in points:
        go_on(disk.copy().reboot(crash, seed), promises.copy(), seed)
    return len(seeds) * count


def cut_short(point: int, way: str) -> tuple[SimDisk, Promises]:
    """Return the disk and promises after a power cut at an operation. The exception passes through all the code."""
    disk, promises = SimDisk(crash_after=point), Promises()
    caller = Caller(disk, promises, **WAYS[way])
    with pytest.raises(PowerCut):
        caller.run()
    caller.heed()
    return disk, promises


def moments(way: str) -> list[tuple[SimDisk, Promises]]:
    """Return the disk and promises at every operation, from one run.

    The cut's content on the medium does not depend on the log's code after the cut. So it is enough that one kind of
    crash goes through :func:`cut_short`.
    """
    found: list[tuple[SimDisk, Promises]] = []

    def look() -> None:
        caller.heed()
        found.append((disk.copy(), promises.copy()))

    disk, promises = Seen(look), Promises()
    caller = Caller(disk, promises, **WAYS[way])
    caller.run()
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("crash", Crash, ids=lambda crash: crash.name)
def test_a_crash_after_any_operation_loses_nothing_durable(crash: Crash, way: str) -> None:
    """After a crash at any operation, recovery returns a prefix of the appended records with every durable one.

    Every operation once; with 29 other chances for each in ``make test-long``.
    """
    crash_everywhere(crash, range(1), way)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("crash", Crash, ids=lambda crash: crash.name)
def test_a_crash_after_any_operation_with_many_seeds(crash: Crash, way: str) -> None:
    """After a crash at any operation, under many random tears and reorderings, every durable record is recovered."""
    name = f"crash-{crash.name.lower()}-{way}"

    def piece(seed: int) -> int:
        return crash_everywhere(crash, range(seed, seed + 1), way)

    campaign.run(name, piece, range(1, 30), unit="crashes")


@pytest.mark.parametrize("way", ["synced", "rewriting", "packs"])
def test_a_crash_at_any_operation_of_a_recovery_loses_nothing_durable(way: str) -> None:
    """A crash in a recovery, which cuts and creates files itself, loses no durable record at any operation."""
    whole = SimDisk()
    Caller(whole, Promises(), **WAYS[way]).run()
    reached = set()
    every = {"rewriting": 3, "packs": 7}.get(way, 1)  # its recoveries are longer, and there are more of them
    for point, (what, _) in enumerate(whole.trace, 1):
        if what == "rename" or (what == "append" and point % every == 0):
            crash = (Crash.TORN, Crash.REORDERED, Crash.DATA_LOST)[point % 3]
            reached |= crash_in_recovery(point, crash, way)
    assert {"create", "append", "truncate", "datasync", "sync_directory", "remove", "rename"} <= reached


def crash_in_recovery(point: int, crash: Crash, way: str) -> set[str]:
    """Crash, then crash in the recovery after 0, 1, 2, ... operations until it completes; return its operations."""
    cut, promised = SimDisk(point, crash_after=point), Promises()
    with pytest.raises(PowerCut):
        Caller(cut, promised, **WAYS[way]).run()
    for limit in itertools.count():
        disk, promises = cut.copy().reboot(crash, point), promised.copy()
        disk.crash_after = limit
        try:
            Caller(disk, promises, seed=1).open()
        except PowerCut:
            go_on(disk.reboot((Crash.TORN, Crash.REORDERED, Crash.NAMES_LOST)[limit % 3], limit), promises, limit)
        else:
            return {what for what, _ in disk.trace}
    raise AssertionError("unreachable")


def points_of(way: str) -> list[int]:
    """Return the operations of the workload that may fail; for the workload with packs only those on packs."""
    disk = SimDisk()
    Caller(disk, Promises(), **WAYS[way]).run()
    return [at for at, (_, name) in enumerate(disk.trace, 1) if way != "packs" or "pack-" in name]


def fail_at(point: int, fault: Fault, crash: Crash, way: str) -> str:
    """Run with one failing operation; return the caller's view of it."""
    disk, promises = SimDisk(point, faults={point: fault}), Promises()
    caller = Caller(disk, promises, **WAYS[way])
    saw = "nothing"
    try:
        caller.run()
    except DiskFullError:
        saw = "full"
    except DiskError:
        saw = "failed"
        if caller.step == "commit":
            for call in (caller.log.write, caller.log.sync, lambda: caller.log.append(b"x")):
                with pytest.raises(DiskError):
                    call()
    caller.heed()
    go_on(disk.reboot(crash, point), promises, point)
    return saw


@pytest.mark.parametrize("way", ["synced", "rewriting", "packs"])
@pytest.mark.parametrize(
    "fault",
    # These two are met as ENOSPC is (``FULL`` in persistence/disk.py); all of them in ``make test-long``
    [pytest.param(each, marks=pytest.mark.long) if each.name in {"EDQUOT", "EMFILE"} else each for each in Fault],
    ids=lambda fault: fault.name,
)
def test_any_operation_may_fail_and_nothing_durable_is_lost(fault: Fault, way: str) -> None:
    """After any failed operation the log promises nothing more, and the next start finds every durable record.

    The restart finds the page cache of the failed one (PROCESS), where a failed sync looks like one that worked, and
    loses power later. Or it loses power at once (TORN).
    """
    crashes = (Crash.PROCESS, Crash.TORN)
    saw = set()
    for point in points_of(way):
        for crash in crashes if way == "synced" else crashes[point % 2 :][:1]:
            saw.add(fail_at(point, fault, crash, way))
    full = {"full", "nothing"} if way == "packs" else {"full", "failed", "nothing"}  # a pack that fails is ended
    expected = {
        Fault.EIO: {"failed"} if way == "synced" else {"failed", "nothing"},  # a snapshot or a pack may fail alone
        Fault.ENOSPC: full,
        Fault.EDQUOT: full,
        Fault.EINTR: {"failed", "nothing"},
        Fault.EMFILE: {"full", "nothing"},
        Fault.SHORT: {"nothing"},
    }
    assert saw == expected[fault]


@pytest.mark.parametrize("way", ["synced", "rewriting"])
def test_a_full_disk_refuses_and_goes_on_when_there_is_space(way: str) -> None:
    """On a disk of any size, records refused for lack of space are written later in order, each whole and once."""
    disk = SimDisk()
    Caller(disk, Promises(), **WAYS[way]).run()
    needed = sum(len(inode.cache) for inode in disk.names.values())
    refused = 0
    for capacity in range(400, needed, 23):
        calls = []

        def more(disk: SimDisk, calls: list[int] = calls) -> None:
            calls.append(disk.operations)
            disk.capacity += 3000

        disk, promises = SimDisk(capacity, capacity=capacity), Promises()
        try:
            Caller(disk, promises, when_full=more, **WAYS[way]).run()
        except DiskFullError:
            assert not calls or disk.capacity < needed + 3000  # opening or closing met it
        refused += len(calls)
        disk.capacity = None
        go_on(disk.reboot(Crash.DROPPED, capacity), promises, capacity)
    assert refused > 100


@pytest.mark.parametrize("crash", Crash, ids=lambda crash: crash.name)
def test_a_snapshot_is_there_by_name_before_the_manifest_names_it(crash: Crash) -> None:
    """A crash at any operation of adopting a snapshot never leaves a manifest that names a missing snapshot."""
    payloads = [b"%d" % number for number in range(20)]
    done = cut = 0
    for seed, limit in itertools.product(range(6), range(25)):
        disk = SimDisk(seed)
        log, _ = Log.open(HOME, disk)
        for payload in payloads:
            log.append(payload)
        log.write()
        rewrite = log.begin_rewrite()
        assert rewrite is not None
        make(disk, HOME, rewrite, list(contents(disk, HOME, rewrite)))
        disk.crash_after = disk.operations + limit
        try:
            log.commit_rewrite(rewrite)
            done += 1
        except PowerCut:
            cut += 1
        _, recovery = Log.open(HOME, disk.reboot(crash, seed))
        assert list(recovery.payloads()) == payloads
        assert not recovery.report.fallback_reason, (
            "it was saved by the files that it replaced, which may be gone the next time"
        )
    assert done >= 6
    assert cut >= 6 * 5


@pytest.mark.parametrize("crash", [Crash.DROPPED, Crash.TORN, Crash.REORDERED], ids=lambda crash: crash.name)
def test_a_log_file_is_there_by_name_before_the_manifest_names_it(crash: Crash) -> None:
    """A crash at any operation of adding a log file never leaves a manifest that names a missing file."""
    done = cut = 0
    for seed, limit in itertools.product(range(8), range(20)):
        disk = SimDisk(seed)
        log, _ = Log.open(HOME, disk)
        log.append(b"x")
        log.write()
        log.sync()
        disk.crash_after = disk.operations + limit
        try:
            log.begin_rewrite()
            done += 1
        except PowerCut:
            cut += 1
        _, recovery = Log.open(HOME, disk.reboot(crash, seed))
        assert list(recovery.payloads()) == [b"x"]
    assert done >= 8
    assert cut >= 8 * 8


def test_a_full_disk_shows_nothing_as_durable_and_stays_full_without_harm() -> None:
    """While the disk is full the durable position does not move, however often a write is tried."""
    disk, promises = SimDisk(1), Promises()
    caller = Caller(disk, promises)
    caller.open()
    caller.append(b"before")
    caller.commit()
    disk.capacity = sum(len(inode.cache) for inode in disk.names.values()) + 40
    for _ in range(3):
        caller.append(b"y" * 100)
        with pytest.raises(DiskFullError):
            caller.log.write()
        assert caller.log.sync() == caller.log.durable == caller.log.written == 1
    assert caller.log.free() == 40
    disk.capacity = None
    caller.commit()
    go_on(disk.reboot(Crash.DROPPED), promises, 1)


def test_the_same_seed_does_the_same() -> None:
    """The same seed gives the same failure, byte for byte."""

    def once() -> tuple[list[tuple[str, str]], dict[str, bytes]]:
        disk = SimDisk(5, crash_after=operations("synced") // 2)
        with pytest.raises(PowerCut):
            Caller(disk, Promises()).run()
        trace = disk.trace
        disk = disk.reboot(Crash.REORDERED, 5)
        return trace, {path.name: bytes(inode.cache) for path, inode in disk.names.items() if path.name != "lock"}

    assert once() == once()
