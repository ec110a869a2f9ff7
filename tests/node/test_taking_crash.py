"""A crash at any disk operation while a copy with packs takes the place of a log with packs: one or the other is there.

The disk is simulated. One process does here what several of a server do: packs arrive and are proved, and the snapshot
is written. Then one switch names all of it, and the rest is removed.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from millstream.errors import MillstreamError
from millstream.node.log import copied_log
from millstream.node.log.foreign import from_copy
from millstream.persistence.disk import put
from millstream.persistence.log import Log
from millstream.persistence.manifest import PackEntry, is_pack_name
from millstream.persistence.packs import examine_pack, packs_of, settle_pack
from millstream.persistence.segment import TailState
from millstream.persistence.snapshot import write_snapshot
from node.test_copied_log import Whole, sent
from support.coldness import IS_COLD
from support.packed import PackedWorld
from support.simdisk import Crash, Fault, PowerCut, SimDisk

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)

HOME = Path("/data")
OLD, SHARED, NEW = b"old", b"shared", b"new"


def world_of(disk: SimDisk, *keys: bytes) -> PackedWorld:
    """Open a directory, and add a stream in a sealed pack of its own for each key."""
    world = PackedWorld(HOME, disk)
    for key in keys:
        world.fill(key.decode())
        world.chill(key)
        world.seal()
    world.sync()
    return world


def directories() -> tuple[SimDisk, bytes, dict[int, bytes]]:
    """Return a replica's disk, and a primary's copy and packs; both have a pack in common, and one of equal numbers."""
    disk = SimDisk()
    world_of(disk, SHARED).close()
    primary = disk.copy()
    primary.locked.clear()
    world_of(disk, OLD).close()
    source = world_of(primary, NEW)
    own = {each.identity for each in Log.open(HOME, rebooted(disk))[0].packs}
    files = source.log.files(source.log.appended, own)
    packs = {}
    for entry, size in files.packs or ():
        with closing(primary.open_read(HOME / entry.name)) as file:
            packs[entry.number] = file.read_at(0, size)
    return disk, sent(files), packs


def rebooted(disk: SimDisk) -> SimDisk:
    """Return a copy of a disk whose locks are free."""
    twin = disk.copy()
    twin.locked.clear()
    return twin


def take(disk: SimDisk, data: bytes, packs: dict[int, bytes], token: str = "0a0b0c0d") -> None:
    """Let a copy take the place of a log."""
    log, _ = Log.open(HOME, disk)
    head = copied_log.read_head(Whole(data).read_at)
    arrived: list[PackEntry] = []
    for entry in head.taken(token):
        if entry.name:
            with closing(log.receive_pack(entry.name)) as file:
                for at in range(0, len(packs[entry.number]), 400):
                    put(file, packs[entry.number][at : at + 400])
            arrived.append(settle_pack(disk, HOME, entry))
        else:
            arrived.append(entry)
    log.append(b"\x93\x01\x00\x90")
    log.write()
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    write_snapshot(disk, HOME, rewrite.target, copied_log.payloads(Whole(data).read_at))
    taken = packs_of(arrived, log.packs)
    from_copy(log.rewritten(rewrite), lambda: taken)
    log.commit_rewrite(rewrite, taken=taken, next_pack=head.manifest.next_pack)
    log.remove_obsolete()
    log.close()


def found(disk: SimDisk) -> list[bytes]:
    """Start from a disk; return the streams, all of whose entries can be read, and expect no other file of packs."""
    world = PackedWorld(HOME, disk)
    keys = sorted(world.node.keyspace.databases[0].keys)
    for key in keys:
        entries = world.client().call("XRANGE", key.decode(), "-", "+")
        assert [entry[0] for entry in entries] == [b"%d-1" % number for number in range(1, 21)]
    assert {name for name in disk.list(HOME) if is_pack_name(name)} == {each.name for each in world.log.packs}
    for each in world.log.packs:
        assert examine_pack(disk, HOME, each).state is TailState.WHOLE
    number = world.log.add_pack().entry.number
    assert number not in {each.number for each in world.log.packs[:-1]}
    world.close()
    return keys


def each_point(run: Callable[[SimDisk], None], disk: SimDisk) -> Iterable[int]:
    """Return the numbers of the disk operations of a run."""
    whole = rebooted(disk)
    run(whole)
    return range(disk.operations, whole.operations)


@pytest.mark.parametrize("crash", Crash, ids=lambda crash: crash.name)
def test_a_crash_at_any_operation(crash: Crash) -> None:
    """After a crash at any operation a start has all of the old data or all of the new, and can take the copy again."""
    disk, data, packs = directories()
    saw = set()
    for at in each_point(lambda twin: take(twin, data, packs), disk):
        cut = rebooted(disk)
        cut.crash_after = at
        with suppress(PowerCut):
            take(cut, data, packs)
        after = cut.reboot(crash, at)
        after.locked.clear()
        keys = found(after)
        assert keys in ([OLD, SHARED], [NEW, SHARED]), at
        saw.add(keys[0])
        if at % 7 == 0 and keys[0] == OLD:
            again = rebooted(after)
            take(again, data, packs, os.urandom(4).hex())
            assert found(rebooted(again)) == [NEW, SHARED]
    assert saw == {OLD, NEW}


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC, Fault.EMFILE], ids=lambda fault: fault.name)
def test_any_operation_may_fail(fault: Fault) -> None:
    """After an error at any operation a start has all of the old data or all of the new."""
    disk, data, packs = directories()
    for at in each_point(lambda twin: take(twin, data, packs), disk):
        cut = rebooted(disk)
        cut.faults = {at: fault}
        with suppress(MillstreamError, OSError):
            take(cut, data, packs)
        for crash in (Crash.PROCESS, Crash.DROPPED):
            after = rebooted(cut).reboot(crash, at)
            after.locked.clear()
            assert found(after) in ([OLD, SHARED], [NEW, SHARED]), at
