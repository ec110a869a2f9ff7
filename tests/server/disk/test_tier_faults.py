"""If a system call on a pack fails, a real server goes on, and the next start has every acknowledged entry."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.maintenance.log.examine import examine_directory
from support.callfaults import SHORT, Call, CallFault, calls, library, preloading
from support.coldness import IS_COLD
from support.packed import packed
from support.servers import millstream_server
from support.smalldisk import run_on
from support.waiting import eventually
from support.wire import Wire

if IS_COLD:
    pytest.skip("its servers have packs of their own", allow_module_level=True)

OPTIONS = ("--set", "tier=yes", "--set", "tier-hot=64kb", "--set", "stream-node-max-entries=10")
ENTRIES = 1200
FAULTS = [
    ("open", errno.EIO),
    ("open", errno.EMFILE),
    ("write", errno.EIO),
    ("write", errno.ENOSPC),
    ("write", SHORT),
    ("fsync", errno.EIO),
    ("fsync", -errno.EIO),
    ("fsync", errno.ENOSPC),
    ("rename", errno.EIO),
    ("rename", -errno.EIO),
    ("rename", errno.ENOSPC),
    ("rename unlink", errno.ENOSPC),
    ("pread", errno.EIO),
    ("preadv", errno.EIO),
    ("preadv", SHORT),
    ("preadv", errno.EAGAIN),
    ("preadv", errno.EOPNOTSUPP),
]
AGAIN = 1_000_000
LASTING = {errno.EAGAIN, errno.EOPNOTSUPP}
"""Faults of a file system that stay."""


def tier_figures(wire: Wire) -> dict[str, str]:
    """Return INFO's section."""
    lines = wire.ask("INFO", "tier").decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def spilled(wire: Wire) -> dict[str, str]:
    """Wait until entries are in packs, or could not go there."""

    def is_over() -> dict[str, str]:
        try:
            found = tier_figures(wire)
        except ConnectionError as error:  # it would be asked again
            raise EOFError from error
        return found if int(found["tier_entries"]) > ENTRIES // 2 or int(found["tier_spill_failures"]) else {}

    return eventually(is_over)


def live(folder: Path, made: Path, fault: CallFault | None) -> tuple[int, list[Call]]:
    """Run a server with a fault; return the number of acknowledged entries, and its calls."""
    trace = folder.parent / f"{folder.name}.trace"
    server = millstream_server(folder, *OPTIONS)
    server.command[:0] = preloading(made, folder / "data", trace, fault)
    acknowledged = 0
    with server, Wire(server.url) as wire:
        try:
            for at in range(0, ENTRIES, 100):
                lines = [("XADD", "s", f"{number}-1", "f", "x" * 500) for number in range(at + 1, at + 101)]
                acknowledged += sum(isinstance(each, bytes) for each in wire.ask_together(lines))
            spilled(wire)
            entries = wire.ask("XRANGE", "s", "-", "+")
            assert [each[0] for each in entries] == [b"%d-1" % number for number in range(1, ENTRIES + 1)]
        except (EOFError, ConnectionError):  # a call on the log failed
            assert server.process is not None
            assert server.process.wait(30) == 1
    text = server.log.read_text(errors="replace")
    assert "Traceback" not in text, text[-3000:]
    return acknowledged, calls(trace)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    """Return the library, and the calls of a run without a fault."""
    folder = tmp_path_factory.mktemp("whole")
    made = library(folder)
    acknowledged, seen = live(folder / "server", made, None)
    assert acknowledged == ENTRIES
    return made, seen


@pytest.mark.parametrize("later", range(2))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}-{fault[1]}")
def test_a_failing_call_while_entries_go_to_a_pack_loses_nothing(
    fault: tuple[str, int], later: int, whole: tuple[Path, list[Call]], tmp_path: Path
) -> None:
    """One of the first calls from the pack's creation on fails; the server answers, or a start has all entries."""
    made, seen = whole
    call, _, then = fault[0].partition(" ")
    how, times = fault[1], AGAIN if fault[1] in LASTING else 1
    begin = next(at for at, each in enumerate(seen) if each.call == "open" and each.name.startswith("pack-"))
    places = [each.at for each in seen[begin:] if each.call == call]
    assert places, f"no {call} after a pack was created"
    # A busy machine has fewer calls at times, such as reads that wait: then the first one fails
    for place in (places[min(later, len(places) - 1)], places[0]):
        folder = tmp_path / str(place)
        acknowledged, those = live(folder, made, CallFault("server", call, place, how, times, then))
        if {call, then or call} <= {each.call for each in those if each.failed}:
            break
    else:
        pytest.fail(f"no {call} failed")
    with millstream_server(folder, *OPTIONS) as server, Wire(server.url) as wire:
        entries = wire.ask("XRANGE", "s", "-", "+")
        assert len(entries) >= acknowledged
        assert [each[0] for each in entries] == [b"%d-1" % number for number in range(1, len(entries) + 1)]


@pytest.mark.parametrize("how", [errno.EMLINK, errno.EIO, -errno.EIO, errno.ENOSPC])
def test_a_link_that_fails_leaves_no_half_backup(how: int, whole: tuple[Path, list[Call]], tmp_path: Path) -> None:
    """A pack is copied where it cannot be linked; after another error nothing is left, and the next backup works."""
    home, backups, trace = tmp_path / "data", tmp_path / "backups", tmp_path / "trace"
    packed(home)
    backups.mkdir()
    words = [Path(sys.executable).with_name("millstream"), "backup", home, backups / "one", "--link"]
    prefix = preloading(whole[0], backups, trace, CallFault("server", "link", 1, how))
    first = subprocess.run([*prefix, *words], capture_output=True, text=True, check=False)
    assert any(each.failed for each in calls(trace))
    assert (first.returncode, "Traceback" in first.stderr) == (int(how != errno.EMLINK), False), first.stderr
    if first.returncode:
        assert list(backups.iterdir()) == []
        assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert examine_directory(backups / "one").report.ok
    assert examine_directory(home).report.ok


def test_a_disk_that_fills_stops_spilling_and_not_the_server(tmp_path: Path) -> None:
    """On a real, small file system the tier leaves the space that rewriting needs, and the server goes on."""
    folder = tmp_path / "disk"
    folder.mkdir()
    run_on(folder, "40m", Path(__file__).with_name("tier_full.py"))


@pytest.mark.parametrize("how", ["trim", "retention", "keep"])
def test_a_full_disk_gets_its_space_back_without_a_restart(how: str, tmp_path: Path) -> None:
    """XTRIM or retention alone is enough: a rewriting begins by itself, and removes the packs.

    Entries that are still needed move elsewhere before that.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    run_on(folder, "60m", Path(__file__).with_name("tier_reclaimed.py"), how)
