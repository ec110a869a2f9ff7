"""Cut files and flipped bits: a start recovers the longest whole prefix or refuses, and reports damage always."""

import itertools
import random
from collections.abc import Iterator

import pytest

from millstream.errors import LogCorruptError
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE, FileHeader, py_encode_records
from millstream.persistence.log import Log
from millstream.persistence.manifest import NAME as MANIFEST
from millstream.persistence.recovery import RecoveryReport
from millstream.persistence.segment import Scan, TailState, assess, read_header
from persistence.reference import HOME, disk_with, entropy, files_of, segment_in, written
from support import campaign
from support.simdisk import Crash, PowerCut, SimDisk

SEAL = FRAME_SIZE


def recovered(files: dict[str, bytes]) -> tuple[list[bytes], RecoveryReport, SimDisk]:
    disk = disk_with(files)
    log, recovery = Log.open(HOME, disk)
    payloads = list(recovery.payloads())
    log.close()
    return payloads, recovery.report, disk


def edges(payloads: list[bytes]) -> list[int]:
    """Return the end of each record in a single log file; the first is the end of the header."""
    ends = [HEADER_SIZE]
    for payload in payloads:
        ends.append(ends[-1] + FRAME_SIZE + len(payload))
    return ends


def mixed(count: int, total: int) -> list[bytes]:
    """Return records of many lengths, ``total`` bytes with their frames."""
    chance = random.Random(3)
    room = total - HEADER_SIZE - count * FRAME_SIZE
    cuts = sorted(chance.randrange(room) for _ in range(count - 1))
    return [chance.randbytes(stop - start) for start, stop in zip([0, *cuts], [*cuts, room], strict=True)]


KIB64 = mixed(70, 64 * 1024)
KIB64_FILES = written(KIB64, close=False)


def test_reference_log_has_64_kib() -> None:
    """The log of the campaign below has at least 64 KiB."""
    assert len(KIB64_FILES[segment_in(KIB64_FILES)]) == 64 * 1024


def test_scan_of_a_log_cut_at_every_byte_finds_the_longest_whole_prefix() -> None:
    """A scan of a 64 KiB log cut at any byte finds the longest whole prefix."""
    name = segment_in(KIB64_FILES)
    ends = edges(KIB64)
    disk = disk_with(KIB64_FILES)
    file = disk.open_read(HOME / name)
    header = read_header(file, HOME / name)
    whole = 0
    for size in range(HEADER_SIZE, 64 * 1024 + 1):
        whole += size in ends[1:]
        scan = Scan(file, header, size)
        assert sum(map(len, scan.runs())) == whole
        result = assess(scan)
        assert (result.records, result.end, result.size) == (whole, ends[whole], size)
        assert result.state is (TailState.WHOLE if size == ends[whole] else TailState.TORN)


def cut_points() -> Iterator[int]:
    """Return every byte of the header, eight bytes around each record's edge, and some in between."""
    around = {edge + step for edge in edges(KIB64) for step in range(-8, 9)}
    yield from sorted({*range(HEADER_SIZE), *around, *range(0, 64 * 1024, 509)} & set(range(64 * 1024 + 1)))


def opens_cut_at(size: int) -> None:
    name = segment_in(KIB64_FILES)
    data = KIB64_FILES[name]
    ends = edges(KIB64)
    whole = sum(end <= size for end in ends[1:])
    end = ends[whole] if size >= HEADER_SIZE else 0
    payloads, report, disk = recovered(KIB64_FILES | {name: data[:size]})
    assert payloads == KIB64[:whole]
    assert (report.torn_bytes, report.torn_offset) == (size - end, end)
    if size == end:
        assert report.torn_path is None
    else:
        assert files_of(disk)[report.torn_path.name] == data[end:size]
        assert str(end) in report.sentence()
        assert report.torn_path.name in report.sentence()
    again, report, _ = recovered(files_of(disk))
    assert (again, report.torn_bytes) == (payloads, 0)


def test_opening_a_cut_log_keeps_the_rest_aside_and_says_so() -> None:
    """A log cut near a record's edge opens with the longest whole prefix, and the cut bytes are saved in a file."""
    for size in cut_points():
        opens_cut_at(size)


def opens_cut_from(size: int) -> int:
    """Run a piece of the campaign: 512 sizes."""
    sizes = range(size, min(size + 512, 64 * 1024 + 1))
    for some in sizes:
        opens_cut_at(some)
    return len(sizes)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_opening_a_log_cut_at_every_byte() -> None:
    """A 64 KiB log cut at any byte opens with the longest whole prefix."""
    campaign.run("cuts", opens_cut_from, range(0, 64 * 1024 + 1, 512), unit="cuts")


def test_cut_bytes_are_on_the_medium_in_one_place_or_the_other_at_any_time() -> None:
    """The bytes cut off a torn log are durable in a copy, with its name, before the log file is cut."""
    name = segment_in(KIB64_FILES)
    size = edges(KIB64)[40] + 1500
    whole = edges(KIB64)[sum(end <= size for end in edges(KIB64)) - 1]
    data = KIB64_FILES[name][:size]
    kept = set()
    for crash in Crash:
        for limit in itertools.count():
            disk = disk_with(KIB64_FILES | {name: data})
            disk.crash_after = limit
            try:
                Log.open(HOME, disk)
            except PowerCut:
                done = False
            else:
                done = True
            left = files_of(disk.reboot(crash, limit))
            aside = [content for other, content in left.items() if other.startswith("torn-")]
            assert left[name] == data or data[whole:] in aside
            kept.add((left[name] == data, data[whole:] in aside))
            if done:
                assert left[name] == data[:whole]
                break
    assert kept >= {(True, False), (False, True)}


def test_records_that_were_cut_never_come_back() -> None:
    """Records that a start cut off never come back, not even behind new ones of equal length after a power cut."""
    files = written([b"a" * 500], close=False, seed=4)
    name = segment_in(files)
    frames = py_encode_records(FileHeader.new(1, entropy(4)), [b"b" * 500, b"c" * 500, b"d" * 500], 1, 1)
    frames[3] = bytes(500)
    files[name] += b"".join(frames)
    found = set()
    for seed in range(300):
        disk = disk_with(files)
        log, recovery = Log.open(HOME, disk)
        assert recovery.report.torn_records == 2
        log.append(b"B" * 500)
        log.write()
        found.add(tuple(payload[:1] for payload in Log.open(HOME, disk.reboot(Crash.REORDERED, seed))[1].payloads()))
    assert found == {(b"a",), (b"a", b"B")}


SMALL = [b"", b"a", b"first", bytes(40), b"\xff" * 9, b"last one"]


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_every_flipped_bit_of_a_closed_log_is_seen() -> None:
    """A flipped bit anywhere in the records of a closed, sealed log is refused, the last record included."""
    files = written(SMALL)
    name = segment_in(files)
    end = edges(SMALL)[-1]
    assert len(files[name]) == end + SEAL
    for bit in range(8 * end):
        with pytest.raises(LogCorruptError, match=r"Nothing was changed|damaged|not a log file") as caught:
            recovered(files | {name: flipped(files[name], bit)})
        start = max((edge for edge in (0, *edges(SMALL)) if edge <= bit // 8), default=0)
        assert (caught.value.offset, caught.value.path) == (start, str(HOME / name))
    for bit in range(8 * end, 8 * (end + SEAL)):
        payloads, report, _ = recovered(files | {name: flipped(files[name], bit)})
        assert (payloads, report.torn_bytes) == (SMALL, SEAL)


def test_every_flipped_bit_of_a_killed_log_is_seen() -> None:
    """A flipped bit in a log without a seal is refused, or, in its very last record, cut off and reported."""
    files = written(SMALL, close=False)
    name = segment_in(files)
    last = edges(SMALL)[-2]
    for bit in range(8 * last):
        with pytest.raises(LogCorruptError):
            recovered(files | {name: flipped(files[name], bit)})
    for bit in range(8 * last, 8 * len(files[name])):
        payloads, report, disk = recovered(files | {name: flipped(files[name], bit)})
        assert payloads == SMALL[:-1]
        assert report.torn_bytes == len(files_of(disk)[report.torn_path.name]) == FRAME_SIZE + len(SMALL[-1])


def test_every_flipped_bit_of_the_manifest_is_seen() -> None:
    """A damaged manifest is refused, and no log file is left out."""
    files = written(SMALL)
    for bit in range(8 * len(files[MANIFEST])):
        with pytest.raises(LogCorruptError):
            recovered(files | {MANIFEST: flipped(files[MANIFEST], bit)})


def damage_at_random(rounds: int, seed: int) -> int:
    """Damage a log of several files anew each round; return the number of rounds."""
    payloads = mixed(400, 100_000)
    disk = SimDisk()
    log, _ = Log.open(HOME, disk, segment_bytes=30_000, entropy=entropy(1))
    for payload in payloads:
        log.append(payload)
        log.write()
        log.sync()
    log.close()
    files = files_of(disk)
    names = [name for name in files if name.endswith(".seg")]
    assert len(names) >= 4
    chance = random.Random(seed)
    for _ in range(rounds):
        name = chance.choice(names)
        data = bytearray(files[name])
        at = chance.randrange(len(data))
        span = chance.choice((1, 4, 100, 512, 5000))
        piece = data[at : at + span]
        data[at : at + span] = chance.choice((bytes(len(piece)), chance.randbytes(len(piece)), flipped(piece, 3)))
        harmed = [n for n in range(at, at + len(piece)) if data[n] != files[name][n]]
        if not harmed:
            continue
        if name == max(names) and harmed[-1] >= len(data) - SEAL:
            prefix, report, _ = recovered(files | {name: bytes(data)})
            assert prefix == payloads[: len(prefix)]
            assert report.torn_offset <= harmed[0]
            assert report.torn_bytes == len(data) - report.torn_offset > 0
        else:
            with pytest.raises(LogCorruptError):
                recovered(files | {name: bytes(data)})
    return rounds


def test_random_damage_of_a_larger_log_is_seen() -> None:
    """Flips, zeros and garbage in a closed log are refused, or, at the very end of it, cut off and reported."""
    damage_at_random(300, 300)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_much_random_damage_of_a_larger_log_is_seen() -> None:
    """100,000 logs with random damage are refused, or cut off and reported at their very end."""
    campaign.run("damage", lambda seed: damage_at_random(1000, seed), range(1000, 1100), unit="damaged logs")


def test_a_refusal_changes_nothing_and_says_what_would_be_lost() -> None:
    """A refusal names file, offset, record and the records behind it, and changes no byte of the directory."""
    files = written([b"x" * 50] * 10)
    name = segment_in(files)
    offset = HEADER_SIZE + 3 * (FRAME_SIZE + 50)
    files[name] = flipped(files[name], 8 * (offset + 5))
    disk = disk_with(files)
    with pytest.raises(LogCorruptError) as caught:
        Log.open(HOME, disk)
    text = str(caught.value)
    assert all(
        part in text for part in (name, f"record 4 at byte {offset}", "with 6 whole records", "Nothing was changed")
    )
    assert files_of(disk) == files
    assert not disk.locked


def test_missing_records_between_whole_ones_are_seen() -> None:
    """Records missing between whole ones are detected by the record numbers."""
    payloads = [b"%d" % n for n in range(5)]
    files = written(payloads, batch=5, close=False)
    name = segment_in(files)
    ends = edges(payloads)
    with pytest.raises(LogCorruptError, match="records before it are missing"):
        recovered(files | {name: files[name][: ends[1]] + files[name][ends[2] :]})


def test_a_damaged_seal_between_records_costs_none_of_them() -> None:
    """A damaged seal followed by the next record means that nothing was torn there, so no record is cut off."""
    files = written([b"a"])
    name = segment_in(files)
    seal = len(files[name]) - SEAL
    disk = disk_with(files)
    log, _ = Log.open(HOME, disk)
    log.append(b"b")
    log.append(b"c")
    log.write()
    log.sync()
    files = files_of(disk)
    for bit in range(8 * seal, 8 * (seal + SEAL)):
        with pytest.raises(LogCorruptError, match="the next record follows it"):
            recovered(files | {name: flipped(files[name], bit)})


def several_files() -> dict[str, bytes]:
    disk = SimDisk()
    log, _ = Log.open(HOME, disk, segment_bytes=100)
    for number in range(12):
        log.append(b"%d" % number * 20)
        log.write()
        log.sync()
    log.close()
    return files_of(disk)


def test_a_sealed_file_may_not_be_torn_missing_or_shorter() -> None:
    """A sealed log file that ends early is refused: only the last file can be torn."""
    files = several_files()
    first, second, *_ = sorted(name for name in files if name.endswith(".seg"))
    for damaged in (
        files | {second: files[second][:-30]},
        files | {second: files[second][:-SEAL]},
        files | {second: files[second][:HEADER_SIZE]},
        files | {second: b""},
        {name: data for name, data in files.items() if name != second},
        files | {second: files[first]},
    ):
        if damaged.get(second) == files[second][:-SEAL]:
            recovered(damaged)  # all its records are there
            continue
        with pytest.raises(LogCorruptError, match=second):
            recovered(damaged)


def test_a_lost_manifest_is_refused() -> None:
    """A directory with records and no manifest is refused, rather than started as an empty log."""
    files = several_files()
    del files[MANIFEST]
    with pytest.raises(LogCorruptError, match="there is no manifest"):
        recovered(files)


def test_a_file_of_another_log_is_refused() -> None:
    """A log file of the same name from another log is refused."""
    files, other = written([b"ours"], seed=1), written([b"theirs"], seed=2)
    name = segment_in(files)
    with pytest.raises(LogCorruptError, match="not the file that the manifest names"):
        recovered(files | {name: other[name]})


def test_a_log_inside_a_record_is_no_evidence() -> None:
    """A torn record that contains the bytes of a log, even of this one, is cut off and not refused."""
    other = written([b"x"] * 20, seed=9)
    inner = other[segment_in(other)]
    before = written([b"a", b"b"], close=False, seed=4)
    own = before[segment_in(before)]
    for payload in (inner * 3, own * 3):
        files = written([b"a", b"b", payload], close=False, seed=4)
        name = segment_in(files)
        for cut in (1, 50, len(payload) - 1):
            payloads, report, _ = recovered(files | {name: files[name][:-cut]})
            assert payloads == [b"a", b"b"]
            assert report.torn_bytes == FRAME_SIZE + len(payload) - cut


def test_a_hostile_tail_is_searched_in_bounded_time() -> None:
    """Forged frame heads with long payloads in a log's tail end in a refusal, not in hours of search."""
    header = FileHeader.new(1, entropy(4))
    files = written([b"a"], close=False, seed=4)
    name = segment_in(files)
    assert files[name][:HEADER_SIZE] == header.encode()
    length = 1_000_000
    forged = b"".join(py_encode_records(header, [bytes(length)], 7, 0)[:3])
    tail = b"\0" * 100 + forged * 40_000 + b"\1" * length
    disk = disk_with(files | {name: files[name] + tail})
    with pytest.raises(LogCorruptError, match="bounded time"):
        Log.open(HOME, disk)
    assert disk.operations < 200
