"""Tools for a directory with packs: their usage, a copy without them, going on without one, and comparing extents."""

import contextlib
import itertools
import json
from errno import EACCES, EIO
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from maintenance.conftest import content
from millstream.cli.main import main
from millstream.engine.keyspace import Keyspace
from millstream.errors import DiskFullError, LogCorruptError, StorageError, UsageError
from millstream.maintenance.backup.thaw import thaw
from millstream.maintenance.health import directory, tier
from millstream.maintenance.health.directory import diagnose_directory
from millstream.maintenance.health.tier import diagnose_tier
from millstream.maintenance.log.cut_pack import cut_packs, entries_without
from millstream.maintenance.log.examine import advice, examine_directory, kind_of
from millstream.maintenance.log.packs import dump_pack
from millstream.maintenance.log.tier import look_at_tier
from millstream.node.log.packs import expect_packs, open_log
from millstream.node.log.replay import read_back
from millstream.persistence.disk import RealDisk
from millstream.persistence.frame import FRAME_SIZE
from millstream.persistence.manifest import Manifest, read_manifest
from millstream.persistence.recovery import switch_manifest
from millstream.server.thread import ServerThread
from support.badsectors import BadDisk
from support.coldness import IS_COLD
from support.packed import FIELDS, PackedWorld, make_packed, packed
from support.simdisk import Crash, PowerCut, SimDisk

if IS_COLD:
    pytest.skip("its streams have packs of their own", allow_module_level=True)


def run(*words: object) -> Result:
    done = CliRunner().invoke(main, [*map(str, words)], prog_name="millstream")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def two_packs(home: Path) -> None:
    """Make a directory with streams ``s`` and ``t``, each with a pack, a group with pending entries, and deletions."""
    world = PackedWorld(home)
    client = world.fill("s")
    client.call("XGROUP", "CREATE", "s", "g", 0)
    client.call("XREADGROUP", "GROUP", "g", "c", "COUNT", 4, "STREAMS", "s", ">")
    world.chill(b"s")
    world.seal()
    world.fill("t", 30)
    world.chill(b"t")
    client.call("XDEL", "t", "2-1", "3-1")
    client.call("XTRIM", "t", "MINID", "13-0")
    client.call("SET", "x", "y")
    world.close()


def shown(world: PackedWorld) -> list[object]:
    """Return what clients see."""
    client = world.client()
    words = [["XRANGE", key, "-", "+"] for key in ("s", "t")] + [["XINFO", "STREAM", "s", "FULL"], ["GET", "x"]]
    return [client.call(*each) for each in [*words, ["XPENDING", "s", "g"], ["DBSIZE"]]]


def manifest_of(home: Path) -> Manifest:
    found = read_manifest(RealDisk(), home)
    assert found is not None
    return found


def test_usage_of_packs_and_streams_is_shown(tmp_path: Path) -> None:
    """Packs are in the order of what is still needed of them, streams in the order of their cold part."""
    home = tmp_path / "data"
    two_packs(home)
    before = content(home)
    report = look_at_tier(home)
    assert [(pack.name[5:25].lstrip("0"), pack.sealed, pack.extents, pack.entries) for pack in report.packs] == [
        ("2", True, 3, 15),
        ("1", True, 3, 18),
    ]
    assert 0 < report.packs[0].live_share < 0.6 < report.packs[1].live_share <= 1
    assert [(each.key, each.entries, each.cold) for each in report.streams] == [(b"s", 20, 18), (b"t", 18, 15)]
    assert report.index_bytes >= 6 * 112
    facts = json.loads(run("log", "tier", home, "-o", "json").stdout)
    assert (facts["packs_count"], facts["extents"], facts["entries"]) == (2, 6, 33)
    assert [pack["live_share"] for pack in facts["packs"]] == sorted(pack["live_share"] for pack in facts["packs"])
    assert "still needed" in run("log", "tier", home).stdout
    assert content(home) == before
    assert run("log", "tier", tmp_path / "none").exit_code == 1


def test_a_thawed_directory_has_all_data_and_no_pack(tmp_path: Path) -> None:
    """The copy has format 2, the same positions and the same replies; the source is unchanged."""
    home, out = tmp_path / "data", tmp_path / "out"
    two_packs(home)
    before, world = content(home), PackedWorld(home)
    expected, last = shown(world), world.log.appended
    world.close()
    made = thaw(home, out)
    assert (made.last, made.entries, manifest_of(out).facts()["format"]) == (last, 33, 2)
    assert not list(out.glob("*.pack"))
    assert examine_directory(out).report.ok
    world = PackedWorld(out)
    assert (shown(world), world.log.appended) == (expected, last)
    world.close()
    assert {name: data for name, data in content(home).items() if not name.startswith(("log-", "lock"))} == {
        name: data for name, data in before.items() if not name.startswith(("log-", "lock"))
    }
    with pytest.raises(UsageError, match="exists already"):
        thaw(home, out)
    with pytest.raises(StorageError, match="has no log"):
        thaw(tmp_path, tmp_path / "other")
    assert run("log", "thaw", home, tmp_path / "again").exit_code == 0


class SmallDisk(RealDisk):
    """A disk with almost no room left."""

    def free(self, directory: Path) -> int:
        """1000 bytes."""
        return 1000


def test_thawing_begins_only_with_room_for_its_result(tmp_path: Path) -> None:
    """Without it nothing is written, and the error names the free and the needed bytes."""
    home = tmp_path / "data"
    two_packs(home)
    with pytest.raises(DiskFullError, match=r"has 1000 free bytes, and the new directory needs about \d{4}"):
        thaw(home, tmp_path / "out", SmallDisk())
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_damage_of_a_pack_stops_thawing(tmp_path: Path) -> None:
    """Nothing is written if a cold entry cannot be read, and the error names pack and entries."""
    home = tmp_path / "data"
    packed(home)
    (pack,) = home.glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    with pytest.raises(LogCorruptError, match="entries 7-1 to 12-1 of a stream cannot be read"):
        thaw(home, tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("out")]


@pytest.mark.parametrize("how", ["missing", "cut", "there"])
def test_a_log_goes_on_without_a_pack(tmp_path: Path, how: str) -> None:
    """Entries of the pack are gone as by XDEL, all others stay, and the file is kept under another name."""
    home = tmp_path / "data"
    two_packs(home)
    pack = min(home.glob("*.pack"))
    if how == "missing":
        pack.unlink()
    elif how == "cut":
        pack.write_bytes(pack.read_bytes()[:-1])
    if how != "there":
        found = examine_directory(home)
        assert found.lost_entries == {"missing": 18, "cut": 0}[how]
        said = run("log", "check", home).output
        assert "whole record" not in said
        assert ("18 entries of packs cannot be read" in said) is (how == "missing")
        steps = advice(found)
        assert steps[-1].endswith(f"`millstream log cut {home} --pack {pack.name}`.")
    (missing,) = entries_without(home, [pack.name])
    assert missing.sentence() == "18 entries 1-1 to 18-1 of 's'"
    done = run("log", "cut", home, "--pack", pack.name, "--yes")
    assert (done.exit_code, "18 entries will be missing" in done.output) == (0, True)
    assert len(list(home.glob(f"cut-{pack.name}-*"))) == (how != "missing")
    assert examine_directory(home).report.ok
    world = PackedWorld(home)
    client = world.client()
    assert client.call("XRANGE", "s", "-", "+") == [[b"%d-1" % at, [b"f", b"v%d" % at]] for at in (19, 20)]
    facts = client.call("XINFO", "STREAM", "s")
    assert facts[facts.index(b"max-deleted-entry-id") + 1] == b"18-1"  # type: ignore[attr-defined,index]  # a reply may be anything
    assert (client.call("XLEN", "t"), client.call("XPENDING", "s", "g")[0]) == (18, 4)  # type: ignore[index]  # likewise
    world.close()
    open_log(home)[0].close()


def test_a_name_that_only_has_the_number_of_a_pack_is_refused(tmp_path: Path) -> None:
    """It may be a typing error, or a file of another directory; the error has the right name."""
    home = tmp_path / "data"
    two_packs(home)
    before, pack = content(home), min(home.glob("*.pack"))
    wrong = pack.name.replace(pack.stem[-16:], "0123456789abcdef")
    for name in (wrong, wrong.replace(".pack", "-00000001.pack")):
        done = run("log", "cut", home, "--pack", name, "--yes")
        assert (done.exit_code, content(home)) == (2, before)
        assert f"{name!r} is not a pack of this log: pack 1 is {pack.name!r}. Give that name, or 1." in done.stderr
    assert run("log", "cut", home, "--pack", pack.name, "--yes").exit_code == 0


def test_two_packs_are_cut_as_the_error_of_the_start_prints_it(tmp_path: Path) -> None:
    """The command names all packs that are missing; a cut of one of them changes nothing, and prints the same."""
    home = tmp_path / "data"
    two_packs(home)
    packs = sorted(home.glob("*.pack"))
    for pack in packs:
        pack.unlink()
    before = content(home)
    with pytest.raises(LogCorruptError, match="of 's', 15 entries") as refused:
        open_log(home)
    for pack in packs:
        done = run("log", "cut", home, "--pack", pack.name, "--yes")
        assert (done.exit_code, content(home)) == (2, before)
        assert done.stderr.count("--pack") == 2
    (step,) = [each for each in advice(examine_directory(home)) if "--pack" in each]
    words = str(refused.value).rpartition("`millstream ")[2].rstrip("`").split(" ")
    assert sorted(words) == sorted(step.rpartition("`millstream ")[2].rstrip("`.").split(" "))
    assert run(*words, "--yes").exit_code == 0
    assert examine_directory(home).report.ok
    world = PackedWorld(home)
    assert (world.client().call("XLEN", "s"), world.client().call("XLEN", "t")) == (2, 3)
    world.close()


@pytest.mark.parametrize("quick", [False, True])
def test_a_check_finds_an_unsealed_pack_that_was_cut_short(tmp_path: Path, quick: bool) -> None:
    """A start is refused, so the check says so, with all packs and the command; the doctor reports no such pack."""
    make_packed(tmp_path, {"s": 41}, sealed=False)
    (pack,) = tmp_path.glob("pack-*")
    pack.write_bytes(pack.read_bytes()[:-100])
    found = examine_directory(tmp_path, quick=quick)
    (problem,) = found.report.problems
    assert (kind_of(problem), problem.refuses, problem.offset) == ("pack", True, pack.stat().st_size)
    log, recovery = open_log(tmp_path)
    with contextlib.closing(log):
        space = Keyspace()
        read_back(space, recovery.payloads())
        with pytest.raises(LogCorruptError, match="it up to byte") as refused:
            expect_packs(space, log)
    assert str(refused.value).startswith(problem.text)
    assert any(step.endswith(f"--pack {pack.name} --keep-readable`.") for step in advice(found))
    findings = {each.check: each for each in diagnose_directory(tmp_path)}
    assert ("packs" not in findings, findings["log"].level) == (True, "problem")
    assert run("log", "cut", tmp_path, "--pack", pack.name, "--keep-readable", "--yes").exit_code == 0
    assert examine_directory(tmp_path).report.ok


@pytest.mark.parametrize("unsealed", [False, True])
def test_all_packs_that_refuse_a_start_are_named(tmp_path: Path, unsealed: bool) -> None:
    """A cut that leaves one of them is refused, and the start, the check and the cut name the same packs."""
    home = tmp_path / "data"
    world = PackedWorld(home)
    for key in ("s", "t", "u"):
        world.fill(key)
        world.chill(key.encode())
        if key != "u" or not unsealed:
            world.seal()
    if world.pack is not None:
        world.pack.close()
        world.pack = None
    world.close()
    first, _, last = sorted(home.glob("*.pack"))
    first.unlink()
    last.write_bytes(last.read_bytes()[:-100])
    found = examine_directory(home)
    assert [Path(each.path).name for each in found.report.problems] == [first.name, last.name]
    options = f"--pack {first.name} --pack {last.name}"
    assert all(options in step for step in advice(found) if "--pack" in step)
    with pytest.raises(LogCorruptError, match=f"log cut {options} "):
        open_log(home)
    before = content(home)
    for pack, other in ((first, last), (last, first)):
        done = run("log", "cut", home, "--pack", pack.name, "--keep-readable", "--yes")
        assert (done.exit_code, content(home)) == (2, before)
        assert f"{other.name} cannot be used either" in done.stderr
        assert "--keep-readable it gives up only" in done.stderr
    assert run("log", "cut", home, *options.split(" "), "--keep-readable", "--yes").exit_code == 0
    assert examine_directory(home).report.ok
    world = PackedWorld(home)
    expect_packs(world.node.keyspace, world.log)
    lengths = [world.client().call("XLEN", key) for key in "stu"]
    assert (lengths[:2], 2 < lengths[2] < 20) == ([2, 20], True)  # type: ignore[operator]  # a reply may be anything
    world.close()


def test_a_check_of_a_directory_in_use_does_not_advise_a_cut(tmp_path: Path) -> None:
    """The server still has a removed pack open, and writes it anew; its end would lose it on some systems."""
    home = tmp_path / "data"
    two_packs(home)
    pack = min(home.glob("*.pack"))
    data = pack.read_bytes()
    with ServerThread(home) as server, redis.Redis.from_url(server.url) as client:
        pack.unlink()
        found = examine_directory(home)
        steps = advice(found)
        assert (found.running, "BGREWRITEAOF" in steps[0], "Do not end it before" in steps[0]) == (True, True, True)
        assert "log cut" not in " ".join(steps)
        assert "BGREWRITEAOF" in next(each.advice for each in diagnose_directory(home) if each.check == "log")
        assert client.ping()
        pack.write_bytes(data)


@pytest.mark.parametrize("damage", ["cut", "seal", "middle", "header"])
def test_a_cut_keeps_what_can_be_read_of_a_pack(tmp_path: Path, damage: str) -> None:
    """With --keep-readable only the other entries go, and the directory is whole for all that reads it then."""
    home = tmp_path / "data"
    two_packs(home)
    pack = min(home.glob("*.pack"))
    data, places = bytearray(pack.read_bytes()), list(dump_pack(pack))
    if damage == "cut":
        del data[-(FRAME_SIZE + 10) :]
    else:
        data[{"seal": len(data) - 9, "middle": places[1].offset + FRAME_SIZE + 9, "header": 25}[damage]] ^= 1
    pack.write_bytes(data)
    lost = {"cut": places[-1:], "seal": [], "middle": places[1:2], "header": places}[damage]
    gone = [each.id for place in lost for each in place.entries]
    if damage != "middle":
        with pytest.raises(LogCorruptError, match="--keep-readable"):
            open_log(home)
        assert any(step.endswith("--keep-readable`.") for step in advice(examine_directory(home)))
    assert examine_directory(home).lost_entries == len(gone)
    done = run("log", "cut", home, "--pack", pack.name, "--keep-readable", "--yes")
    assert (done.exit_code, f"{len(gone)} entries will be missing" in done.output) == (0, True)
    assert pack.exists() is (damage != "header")
    for _ in range(2):
        world = PackedWorld(home)
        expect_packs(world.node.keyspace, world.log)
        entries: Any = world.client().call("XRANGE", "s", "-", "+")
        assert [row[0].decode() for row in entries] == [f"{at}-1" for at in range(1, 21) if f"{at}-1" not in gone]
        world.sync()
        world.close()
    assert examine_directory(home).report.ok is (damage != "middle")


def test_a_cut_keeps_the_readable_nodes_of_a_damaged_extent(tmp_path: Path) -> None:
    """It removes the entries that the server cannot read, and no neighbour of the same extent."""
    home = tmp_path / "data"
    make_packed(home, {"s": 41}, each=4)
    (pack,) = home.glob("pack-*")
    places = list(dump_pack(pack))
    lost = set()
    data = bytearray(pack.read_bytes())
    for place, node in ((places[1], 0), (places[2], 1), (places[2], 2), (places[0], 3)):
        ids = [each.id for each in place.entries if each.node == node]
        lost.update(ids)
        data[data.index(FIELDS + ids[0].removesuffix("-1").encode(), place.offset) + 3] ^= 1
    pack.write_bytes(data)
    assert examine_directory(home).lost_entries == len(lost) == 12
    done = run("log", "cut", home, "--pack", pack.name, "--keep-readable", "--yes")
    assert (done.exit_code, "12 entries will be missing" in done.output) == (0, True)
    found = examine_directory(home)
    assert found.lost_entries == 0
    assert all("all entries that are left in it can be read" in each.text for each in found.report.problems)
    for _ in range(2):
        world = PackedWorld(home)
        expect_packs(world.node.keyspace, world.log)
        entries: Any = world.client().call("XRANGE", "s", "-", "+")
        assert [row[0].decode() for row in entries] == [f"{at}-1" for at in range(1, 42) if f"{at}-1" not in lost]
        assert world.client().call("XLEN", "s") == len(entries)
        world.close()


@pytest.mark.parametrize("where", ["middle", "header"])
def test_a_cut_takes_a_bad_sector_for_damage(tmp_path: Path, where: str) -> None:
    """It gives up the entries there alone, or the pack if its header is there; other errors of the disk may pass."""
    home = tmp_path / "data"
    two_packs(home)
    pack = min(home.glob("*.pack"))
    places = list(dump_pack(pack))
    sector = places[1].offset + FRAME_SIZE + 9 if where == "middle" else 25
    lost = {entry.id for place in (places[1:2] if where == "middle" else places) for entry in place.entries}
    before = content(home)
    with pytest.raises(StorageError, match="Permission denied"):
        cut_packs(home, [pack.name], BadDisk(pack, sector, EACCES), keeps_readable=True)
    assert content(home) == before
    cut_packs(home, [pack.name], BadDisk(pack, sector, EIO), keeps_readable=True)
    assert pack.exists() is (where == "middle")
    world = PackedWorld(home)
    entries: Any = world.client().call("XRANGE", "s", "-", "+")
    assert [row[0].decode() for row in entries] == [f"{at}-1" for at in range(1, 21) if f"{at}-1" not in lost]
    world.close()


def test_a_cut_that_was_interrupted_is_repeated(tmp_path: Path) -> None:
    """Without the record a start is refused and names the command, which then completes the cut."""
    home = tmp_path / "data"
    packed(home)
    manifest = manifest_of(home)
    (pack,) = home.glob("*.pack")
    pack.rename(home / f"cut-{pack.name}-0")
    switch_manifest(RealDisk(), home, Manifest(manifest.segments, manifest.snapshot, next_pack=2))
    report = examine_directory(home).report
    assert (report.starts, "records of the log need pack 1, which is not in" in report.problems[0].text) == (
        False,
        True,
    )
    assert cut_packs(home, ["1"]).kept == ()
    assert examine_directory(home).report.ok
    world = PackedWorld(home)
    assert world.client().call("XLEN", "s") == 2
    world.close()
    with pytest.raises(UsageError, match="'1' is not a pack of this log"):
        cut_packs(home, ["1"])


@pytest.mark.parametrize("crash", Crash)
def test_a_cut_may_be_interrupted_anywhere_and_repeated(crash: Crash) -> None:
    """After a crash at any operation a start is refused or has all that the cut keeps; a second cut then completes."""
    home, disk = Path("/data"), SimDisk()
    packed(home, disk)
    refused = 0
    for step in itertools.count(1):
        broken = disk.copy()
        broken.locked.clear()
        broken.crash_after = broken.operations + step
        try:
            cut_packs(home, ["1"], broken)
            break
        except PowerCut:
            after = broken.reboot(crash, step)
        lengths = []
        for _ in range(2):
            try:
                world = PackedWorld(home, after.copy())
                expect_packs(world.node.keyspace, world.log)
                lengths.append(world.client().call("XLEN", "s"))
            except LogCorruptError:
                refused += 1
            after.locked.clear()
            with contextlib.suppress(UsageError):  # it was complete
                cut_packs(home, ["1"], after)
            after.locked.clear()
        assert lengths[-1] == 2, (step, lengths)
        assert set(lengths) <= {2, 20}, (step, lengths)
    assert step > 20
    assert refused > 3


def test_a_cut_is_confirmed_and_takes_one_option(tmp_path: Path) -> None:
    """Without --yes and a terminal nothing is cut; --at and --pack exclude each other."""
    packed(tmp_path / "data")
    before = content(tmp_path / "data")
    assert run("log", "cut", tmp_path / "data", "--pack", "1").exit_code == 2
    assert run("log", "cut", tmp_path / "data").exit_code == 2
    assert run("log", "cut", tmp_path / "data", "--pack", "1", "--at", "x:1").exit_code == 2
    assert run("log", "cut", tmp_path / "data", "--pack", "../1", "--yes").exit_code == 0
    assert content(tmp_path / "data") != before
    assert run("log", "cut", tmp_path / "data", "--pack", "x", "--yes").exit_code == 2


def test_a_check_compares_extents_with_the_records(tmp_path: Path) -> None:
    """A whole pack with other extents than the records name is reported, with a right seal and right checksums."""
    home, other = tmp_path / "data", tmp_path / "other"
    packed(home)
    world = PackedWorld(other)
    world.fill(first=101)
    world.chill()
    world.close()
    (pack,), (wrong,) = home.glob("*.pack"), other.glob("*.pack")
    manifest = manifest_of(home)
    (entry,) = manifest_of(other).packs
    (home / wrong.name).write_bytes(wrong.read_bytes())
    pack.unlink()
    switch_manifest(RealDisk(), home, Manifest(manifest.segments, manifest.snapshot, packs=(entry,), next_pack=2))
    report = examine_directory(home).report
    assert (report.ok, report.starts) == (False, True)
    assert "it has other entries than the records say" in report.problems[0].text


def test_the_doctor_reports_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor shows the packs' size, reads no entry of them, and warns of much space for deleted entries."""
    home = tmp_path / "data"
    two_packs(home)
    found = {each.check: each for each in diagnose_directory(home)}
    assert found["packs"].level == "ok"
    assert found["packs"].what.startswith("2 packs of 0.0 MB, ")
    monkeypatch.setattr(tier, "_WASTE", 10)
    world = PackedWorld(home)
    world.client().call("DEL", "t")
    world.close()
    found = {each.check: each for each in diagnose_directory(home)}
    assert (found["packs"].level, "log tier" in found["packs"].advice) == ("warning", True)
    assert "page cache" not in found
    monkeypatch.setattr(directory, "_available", lambda: 10)
    assert {each.check: each.level for each in diagnose_directory(home)}["page cache"] == "note"


GB = 10**9
HEALTHY = {"tier_enabled": 1, "tier_packs": 9, "tier_bytes": 40 * GB, "tier_live_bytes": 30 * GB, "tier_nowait": "yes"}
HEALTHY |= {"tier_last_spill_status": "ok", "tier_disk_needed": GB, "millstream_disk_free": 3 * GB}
HEALTHY |= {"total_system_memory": 4 * GB, "used_memory_rss": GB}


@pytest.mark.parametrize(
    ("changed", "check", "level", "what"),
    [
        ({}, "tier", "ok", "on, 9 packs of 40.0 GB"),
        ({"tier_last_spill_status": "disk-full"}, "tier", "warning", "tier_last_spill_status:disk-full"),
        ({"millstream_disk_free": GB}, "tier", "warning", "1.0 GB free on the disk; below 1.0 GB no entries go"),
        ({"tier_damaged_extents": 1}, "packs", "problem", "1 part cannot be read"),
        ({"tier_live_bytes": 10 * GB}, "packs", "warning", "no stream refers to 30.0 GB of 40.0 GB"),
        ({"tier_nowait": "no"}, "tier_nowait", "note", "RWF_NOWAIT"),
        ({"used_memory_rss": 3 * GB}, "page cache", "note", "about 1.0 GB for 40.0 GB of packs"),
    ],
)
def test_the_doctor_reports_a_servers_tier(changed: dict[str, object], check: str, level: str, what: str) -> None:
    """Each trouble is one finding, and without one the tier is a line."""
    (found,) = diagnose_tier(HEALTHY | changed)
    assert (found.check, found.level, what in found.what) == (check, level, True), found.what
    assert ("server vacuum" in found.advice) == ("tier_live_bytes" in changed)


def test_the_doctor_reports_no_tier_where_there_is_none(tmp_path: Path) -> None:
    """A server without a tier has no line about it; a real one with a tier has the fields of the checks."""
    assert list(diagnose_tier({"tier_enabled": 0, "tier_packs": 0, "tier_nowait": "no"})) == []
    with ServerThread(tmp_path, parameters={"tier": "yes"}) as server, redis.Redis.from_url(server.url) as client:
        info = client.info()
    assert info.keys() >= HEALTHY.keys()
    assert [each.check for each in diagnose_tier(info)] == ["tier"]


@pytest.mark.parametrize("past_damage", [False, True])
@pytest.mark.parametrize("where", ["data", "aside"])
@pytest.mark.parametrize("gone", [FRAME_SIZE, 500])
def test_a_pack_that_is_cut_short_is_shown_with_an_error(
    tmp_path: Path, where: str, gone: int, past_damage: bool
) -> None:
    """Its user must not take the entries for all of them, with or without a manifest next to the pack."""
    make_packed(tmp_path / "data", {"s": 41}, each=2)
    (pack,) = (tmp_path / "data").glob("pack-*")
    whole = len(list(dump_pack(pack)))
    pack.write_bytes(pack.read_bytes()[:-gone])
    if where == "aside":
        pack = pack.rename(tmp_path / "cut-pack")
    words = ["log", "dump", pack, *["--past-damage"] * past_damage]
    done = run(*words)
    shown = done.stdout.count("extent of")
    assert done.exit_code == 1
    assert (shown == whole) is (gone == FRAME_SIZE)
    assert shown > 0
    assert f"after {shown} whole extents, without a seal: " in done.stderr
    assert ("entries in them are missing" in done.stderr) is (where == "data")


def test_a_pack_that_is_being_filled_is_shown_without_an_error(tmp_path: Path) -> None:
    """Its last extent may be torn, and the manifest does not say where it ends."""
    make_packed(tmp_path, {"s": 41}, sealed=False)
    (pack,) = tmp_path.glob("pack-*")
    assert run("log", "dump", pack).exit_code == 0
    pack.write_bytes(pack.read_bytes() + b"torn")
    assert run("log", "dump", pack).exit_code == 0
