"""A server on a data directory with packs: it starts without reading them, and its rewritings remove them."""

import os
from pathlib import Path

import pytest

from millstream.errors import DiskError, LogCorruptError
from millstream.maintenance.health.server import Limits, diagnose_server
from millstream.server.thread import ServerThread
from support.coldness import IS_COLD
from support.packed import PackedWorld, packed, two_packs
from support.removed import SHOWS_REMOVED
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire

if IS_COLD:
    pytest.skip("its streams have packs of their own", allow_module_level=True)


def test_packs_that_nothing_needs_are_removed(tmp_path: Path) -> None:
    """BGREWRITEAOF removes the pack of a deleted stream, and keeps those of others."""
    two_packs(tmp_path)
    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        for key, left in (("s", 1), ("t", 0)):
            assert wire.ask("XLEN", key) == 20
            wire.ask("DEL", key)
            wire.ask("BGREWRITEAOF")
            eventually(lambda left=left: len(list(tmp_path.glob("*.pack"))) == left, what=f"{left} packs are left")  # type: ignore[misc]  # a default binds it


def test_a_server_without_a_pack_says_what_would_be_missing(tmp_path: Path) -> None:
    """The server does not start, and its error names the entries and the command to go on without them."""
    packed(tmp_path)
    (pack,) = tmp_path.glob("*.pack")
    pack.unlink()
    said = rf"18 entries 1-1 to 18-1 of 's'.*log cut --pack {pack.name}"
    with pytest.raises(LogCorruptError, match=said), ServerThread(tmp_path):
        pass


@SHOWS_REMOVED
def test_a_server_that_stops_writes_a_removed_pack_anew(tmp_path: Path) -> None:
    """The stop would end the last copy of the entries."""
    packed(tmp_path)
    (pack,) = tmp_path.glob("*.pack")
    for _ in range(2):
        with ServerThread(tmp_path) as server, Wire(server.url) as wire:
            assert len(wire.ask("XRANGE", "s", "-", "+")) == 20
            pack.unlink()
        assert pack.exists()


@SHOWS_REMOVED
@pytest.mark.parametrize("is_short", [False, True])
def test_a_server_that_fails_writes_a_removed_pack_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_short: bool
) -> None:
    """A failure of the disk ends the open files too, and stays the reason of the end even if another pack lacks."""
    short, pack = two_packs(tmp_path)
    server = ServerThread(tmp_path).start()
    if is_short:
        os.truncate(short, short.stat().st_size - 1)
    pack.unlink()
    server.server.loop.call_soon_threadsafe(server.server.fail, DiskError("the disk is broken"))
    with pytest.raises(DiskError, match="the disk is broken"):
        server.stop()
    assert pack.exists()
    assert (f"log cut --pack {short.name} " in caplog.text) is is_short
    assert ("With --keep-readable" in caplog.text) is is_short


def test_a_server_that_lacks_a_pack_at_its_end_says_so(tmp_path: Path) -> None:
    """It does not say that everything is on disk, names the pack, and returns 1."""
    packed(tmp_path / "data")
    (pack,) = (tmp_path / "data").glob("*.pack")
    with millstream_server(tmp_path) as server, Wire(server.url) as wire:
        assert wire.ask("PING") == b"PONG"
        pack.rename(tmp_path / "moved")
        wire.ask("BGREWRITEAOF")
        eventually(lambda: pack.name.encode() in wire.ask("INFO", "persistence"), what="the rewriting has failed")
        found = list(diagnose_server(server.url, Limits()))
        assert [each.what for each in found if each.check == "packs"] == [f"{pack.name} is missing or cut short"]
        assert "aof_last_bgrewrite_status" not in {each.check for each in found}
        assert server.process is not None
        server.process.terminate()
        assert server.process.wait(20) == 1
        said = server.log.read_text()
    assert f"--pack {pack.name}" in said
    assert "everything is on disk" not in said


def test_packs_take_no_descriptors_from_clients(tmp_path: Path) -> None:
    """A server with more packs than the allowed files starts; at a hard limit ``maxclients`` leaves room for them."""
    world = PackedWorld(tmp_path / "data")
    for number in range(90):
        world.fill("s", 6, first=1 + 6 * number)
        world.chill()
        world.seal()
    world.close()
    limits = {"-Sn": 64, "-n": 160}
    for option, limit in limits.items():
        server = millstream_server(tmp_path)
        server.command = ["sh", "-c", f'ulimit {option} {limit}; exec "$@"', "sh", *server.command]
        with server, Wire(server.url) as wire:
            assert len(wire.ask("XRANGE", "s", "-", "+")) == 540
            possible = int(wire.ask("CONFIG", "GET", "maxclients")[1])
            assert possible == (10_000 if option == "-Sn" else limit - 48 - 90)
