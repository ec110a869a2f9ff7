"""The simulated disk must fail as it claims, or the campaigns on it prove nothing."""

import errno
from pathlib import Path

import pytest

from millstream.persistence.disk import Disk, RealDisk, datasync, put
from support.simdisk import SECTOR, Crash, Fault, PowerCut, SimDisk

HOME = Path("/d")
ONE, TWO = HOME / "one", HOME / "two"


def content(disk: SimDisk, path: Path = ONE) -> bytes | None:
    return bytes(disk.names[path].cache) if path in disk.names else None


def half_synced() -> SimDisk:
    """Return a disk with file ``one``: its name and 600 bytes are durable, 1400 more are not."""
    disk = SimDisk()
    file = disk.create(ONE)
    file.append(b"a" * 600)
    file.datasync()
    disk.sync_directory(HOME)
    file.append(b"b" * 700)
    file.append(b"c" * 700)
    return disk


def outcomes(crash: Crash) -> set[bytes | None]:
    return {content(half_synced().reboot(crash, seed)) for seed in range(200)}


A, B, C = b"a" * 600, b"b" * 700, b"c" * 700


def test_what_was_synced_survives_every_crash() -> None:
    """Synced data survives every kind of crash."""
    for crash in Crash:
        assert all(left.startswith(A) for left in outcomes(crash))


def test_dropped_leaves_only_what_was_synced() -> None:
    """A crash of kind "dropped" loses all unsynced data."""
    assert outcomes(Crash.DROPPED) == {A}


def test_torn_leaves_a_prefix_cut_anywhere() -> None:
    """A torn write leaves a prefix of any length, with the right bytes."""
    found = outcomes(Crash.TORN)
    assert all((A + B + C).startswith(left) for left in found)
    lengths = {len(left) for left in found}
    assert len(lengths) > 50
    assert any(length % SECTOR for length in lengths)


def test_reordered_loses_pieces_in_the_middle_and_keeps_later_ones() -> None:
    """A reordered crash loses pieces in the middle and keeps later ones. A valid frame then proves nothing."""
    found = outcomes(Crash.REORDERED)
    assert any(b"\0" in left and left.endswith(b"c") for left in found)
    assert A in found or A + B + C in found
    whole = A + B + C
    for left in found:
        assert all(have in {want, 0} for have, want in zip(left, whole, strict=False))


def test_other_crashes_keep_or_blank_all() -> None:
    """A killed process loses nothing. Delayed allocation leaves lengths without data."""
    assert outcomes(Crash.PROCESS) == outcomes(Crash.NAMES_LOST) == {A + B + C}
    assert outcomes(Crash.DATA_LOST) == {A + bytes(1400)}


def test_names_need_a_directory_sync() -> None:
    """A synced file without a synced name is lost."""
    disk = SimDisk()
    file = disk.create(ONE)
    file.append(b"x")
    file.datasync()
    assert content(disk.reboot(Crash.NAMES_LOST)) is None
    disk.sync_directory(HOME)
    assert content(disk.reboot(Crash.NAMES_LOST)) == b"x"


def test_a_rename_happens_as_a_whole_or_not_at_all() -> None:
    """After a crash in a rename one of the two states is there, never both names or none."""
    states = set()
    for seed in range(50):
        for crash in (Crash.TORN, Crash.REORDERED, Crash.DROPPED, Crash.DATA_LOST):
            disk = SimDisk()
            for path in (ONE, TWO):
                file = disk.create(path)
                file.append(path.name.encode())
                file.datasync()
            disk.sync_directory(HOME)
            disk.rename(ONE, TWO)
            after = disk.reboot(crash, seed)
            states.add((content(after, ONE), content(after, TWO)))
    assert states == {(b"one", b"two"), (None, b"one")}


def test_a_failed_sync_loses_data_and_then_lies() -> None:
    """After a failed sync a second one succeeds, yet the medium lacks data that the cache shows."""
    lied = set()
    for seed in range(30):
        disk = SimDisk(seed, faults={4: Fault.EIO})
        file = disk.create(ONE)
        file.append(b"a" * 5000)
        disk.sync_directory(HOME)
        with pytest.raises(OSError, match="Input/output") as caught:
            file.datasync()
        assert caught.value.errno == errno.EIO
        file.datasync()
        assert content(disk) == b"a" * 5000
        lied.add(content(disk.reboot(Crash.DROPPED)) != b"a" * 5000)
        file.drop_cache()
        assert content(disk) == content(disk.reboot(Crash.DROPPED))
    assert True in lied


def test_power_cut_stops_everything_after_the_ordered_operation() -> None:
    """A power cut stops every operation after the given one, also those of error handling."""
    disk = SimDisk(crash_after=2)
    file = disk.create(ONE)
    file.append(b"x")
    for call in (file.datasync, file.size, lambda: disk.list(HOME)):
        with pytest.raises(PowerCut):
            call()
    assert disk.operations == 2
    assert disk.trace == [("create", "one"), ("append", "one")]


def test_faults_do_what_their_names_say() -> None:
    """A short write writes some bytes, an interrupted one none, and put() continues after both."""
    for fault in (Fault.SHORT, Fault.EINTR):
        disk = SimDisk(3, faults={2: fault})
        file = disk.create(ONE)
        put(file, b"0123456789")
        assert content(disk) == b"0123456789"
        assert disk.operations == 3
    disk = SimDisk(faults={2: Fault.EINTR})
    file = disk.create(ONE)
    datasync(file)
    assert disk.operations == 3


def test_capacity_ends_in_a_short_write_and_then_enospc() -> None:
    """A full disk writes as much as fits and then raises ENOSPC, as in POSIX."""
    disk = SimDisk(capacity=10)
    file = disk.create(ONE)
    assert file.append(b"x" * 8) == 8
    assert file.append(b"x" * 8) == 2
    with pytest.raises(OSError, match="No space left") as caught:
        file.append(b"x")
    assert caught.value.errno == errno.ENOSPC
    assert disk.free(HOME) == 0


def exercise(disk: Disk, home: Path) -> list[object]:
    """Call every operation of the protocol at least once; return the results."""
    one, two = home / "one", home / "two"
    disk.make_directory(home)
    disk.make_directory(home)
    file = disk.create(one)
    answers: list[object] = [file.append(b"hello"), file.append(b" world"), file.size(), file.read_at(3, 4)]
    file.truncate(8)
    file.datasync()
    file.append(b"!")
    file.drop_cache()
    answers += [file.read_at(0, 100), file.read_at(100, 1)]
    file.close()
    for call in (lambda: disk.create(one), lambda: disk.open_append(two), lambda: disk.open_read(two)):
        try:
            call()
        except OSError as error:
            answers.append(type(error))
    disk.rename(one, two)
    disk.sync_directory(home)
    again = disk.open_append(two)
    answers += [again.append(b"?"), disk.open_read(two).read_at(0, 100)]
    lock = disk.lock(home / "lock")
    lock.write(b"long text")
    lock.write(b"short")
    try:
        disk.lock(home / "lock")
    except OSError as error:
        answers.append(type(error))
    answers += [disk.open_read(home / "lock").read_at(0, 100), disk.list(home)]
    lock.release()
    disk.lock(home / "lock").release()
    disk.remove(two)
    answers += [disk.list(home), disk.free(home) > 0]
    return answers


def test_simulated_and_real_disk_answer_alike(tmp_path: Path) -> None:
    """The simulated and the real disk have the same results for every operation."""
    assert exercise(SimDisk(), Path("/sim/home")) == exercise(RealDisk(), tmp_path / "real" / "home")


@pytest.mark.parametrize("crash", Crash, ids=lambda crash: crash.name)
@pytest.mark.parametrize("seed", range(5))
def test_a_copy_crashes_as_the_disk_would_and_leaves_it_alone(crash: Crash, seed: int) -> None:
    """A copy of a simulated disk crashes as the original would, and leaves the original unchanged."""
    disk = half_synced()
    disk.rename(ONE, TWO)
    first, second = disk.copy(), disk.copy()
    first.open_append(TWO).append(b"more")
    first.remove(TWO)
    first.sync_directory(HOME)
    assert (content(disk, TWO), content(second, TWO)) == (content(half_synced()),) * 2
    left, copied = disk.copy().reboot(crash, seed), second.reboot(crash, seed)
    assert [content(left, path) for path in (ONE, TWO)] == [content(copied, path) for path in (ONE, TWO)]
