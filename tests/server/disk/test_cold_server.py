"""A server whose data directory names packs: it reads their entries from its start on, and closes them at its end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream import core
from millstream.persistence.disk import RealDisk
from millstream.persistence.manifest import read_manifest
from millstream.server.thread import ServerThread
from support import needs
from support.coldness import IS_COLD
from support.packed import FIELDS, forget_packs, make_packed, open_packs
from support.wire import Wire

if IS_COLD:
    pytest.skip("its servers have packs of their own", allow_module_level=True)

SOURCE = Path(needs.__file__).parent / "readfaults.c"
COUNT = 900
ENTRIES = [[b"%d-1" % number, [b"f", FIELDS + b"%d" % number]] for number in range(1, COUNT + 1)]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_server_reads_the_packs_of_its_directory(tmp_path: Path, sealed: bool) -> None:
    """Entries in packs are read after a start, whether the page cache has them or not."""
    make_packed(tmp_path, {"s": COUNT, "t": 30}, sealed=sealed)
    for _ in range(2):
        forget_packs(tmp_path)
        with ServerThread(dir=tmp_path) as thread, Wire(thread.url) as wire:
            assert wire.ask("XLEN", "s") == COUNT
            assert thread.server.node.keyspace.reads.source is not None
            assert wire.ask("XRANGE", "s", "-", "+") == ENTRIES
            assert wire.ask("XREVRANGE", "s", "500", "-", "COUNT", "7") == ENTRIES[499:492:-1]
            assert wire.ask("XRANGE", "t", "-", "+") == ENTRIES[:30]
            assert wire.ask("XADD", "s", "MAXLEN", "~", "10000", "*", "f", "v")
            assert wire.ask("XDEL", "s", wire.ask("XREVRANGE", "s", "+", "-", "COUNT", "1")[0][0]) == 1
        assert not open_packs(tmp_path)


def test_a_store_of_this_process_reads_packs(tmp_path: Path) -> None:
    """A ``file://`` store reads packs in the caller's thread, and closes them with the directory."""
    make_packed(tmp_path, {"s": COUNT})
    forget_packs(tmp_path)
    with millstream.open_store(f"file://{tmp_path}") as store:
        found = store.xrange("s")
        assert [entry for entry, _ in found] == [each[0] for each in ENTRIES]
    assert not open_packs(tmp_path)


def test_a_server_without_packs_has_no_reader(tmp_path: Path) -> None:
    """Nothing is read, opened or started for packs where there are none."""
    with ServerThread(dir=tmp_path) as thread, Wire(thread.url) as wire:
        assert wire.ask("XADD", "s", "1-1", "f", "v") == b"1-1"
        assert thread.server.node.keyspace.reads.source is None
        assert thread.server.node.cold.tickets is None
    manifest = read_manifest(RealDisk(), tmp_path)
    assert manifest is not None
    assert not manifest.packs


FAULTS = """
import ctypes, errno, sys
from pathlib import Path
from millstream.node.tiering.figures import reading_rows
from millstream.server.thread import ServerThread
from server.disk.test_cold_server import ENTRIES
from support.wire import Wire

faults = ctypes.CDLL(sys.argv[2])
fast, slow = (ctypes.c_int.in_dll(faults, name) for name in ("read_fault", "read_wait_fault"))
with ServerThread(dir=sys.argv[1]) as thread, Wire(thread.url) as wire, Wire(thread.url) as other:
    node = thread.server.node
    for code, supports in ((errno.EOPNOTSUPP, "no"), (errno.EAGAIN, "yes")):
        fast.value = code
        assert wire.ask("XRANGE", "s", "-", "+", "COUNT", "400") == ENTRIES[:400]
        assert wire.ask("XRANGE", "s", "700", "+", "COUNT", "5") == ENTRIES[699:704]
        wire.ask("XGROUP", "CREATE", "s", "g" + str(code), "0")
        found = wire.ask("XREADGROUP", "GROUP", "g" + str(code), "c", "COUNT", "9", "STREAMS", "s", ">")
        assert found == [[b"s", ENTRIES[:9]]]
        assert wire.ask("XREADGROUP", "GROUP", "g" + str(code), "c", "STREAMS", "s", "0") == found
        assert dict(reading_rows(node.cold, node.sessions))["tier_nowait"] == supports
    rows = dict(reading_rows(node.cold, node.sessions))
    assert rows["tier_misses"] > 0, rows
    assert sys.argv[3] == "python" or rows["tier_blocking_reads"] == 0, rows
    node.cold.packs.limit(0)
    slow.value = errno.EIO
    assert str(wire.ask("XRANGE", "s", "500", "+", "COUNT", "5")).startswith("MSDAMAGED")
    assert other.ask("XADD", "s", "*", "f", "v")
    slow.value = -1
    assert wire.ask("XRANGE", "s", "500", "+", "COUNT", "5") == ENTRIES[499:504]
    rows = dict(reading_rows(node.cold, node.sessions))
    assert rows["tier_damaged_extents"] == 1, rows
    assert sys.argv[3] == "python" or rows["tier_blocking_reads"] == 0, rows
print("fine")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are preloaded so on Linux only")
@pytest.mark.parametrize("name", ["native", "python"])
def test_file_systems_that_cannot_read_without_waiting(tmp_path: Path, name: str) -> None:
    """Threads read all that is cold where each read would wait, and a broken disk is an error of its readers."""
    if name == "native" and core.native is None:
        pytest.skip("the native core is not compiled here")
    make_packed(tmp_path / "data", {"s": COUNT})
    made = tmp_path / "readfaults.so"
    subprocess.run([needs.program("cc"), "-O1", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"], check=True)
    before = os.environ.get("LD_PRELOAD", "")
    ran = subprocess.run(
        [sys.executable, "-c", FAULTS, tmp_path / "data", made, name],
        env=os.environ
        | {"LD_PRELOAD": f"{before} {made}".strip(), "PYTHONPATH": os.pathsep.join(sys.path), "MILLSTREAM_CORE": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "fine\n", ran.stderr
