"""A server on a data directory with packs: it starts without reading them, and its rewritings remove them."""

from pathlib import Path

import pytest

from millstream.errors import LogCorruptError
from millstream.server.thread import ServerThread
from support.coldness import IS_COLD
from support.packed import PackedWorld, packed
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire

if IS_COLD:
    pytest.skip("its streams have packs of their own", allow_module_level=True)


def test_packs_that_nothing_needs_are_removed(tmp_path: Path) -> None:
    """BGREWRITEAOF removes the pack of a deleted stream, and keeps those of others."""
    world = PackedWorld(tmp_path)
    for key in ("s", "t"):
        world.fill(key)
        world.chill(key.encode())
        world.seal()
    world.close()
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
