"""A server on a data directory with packs: it starts without reading them, and its rewritings remove them."""

from pathlib import Path

import pytest

from millstream.errors import LogCorruptError
from millstream.server.thread import ServerThread
from support.coldness import IS_COLD
from support.packed import PackedWorld, packed
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


def test_a_replica_gets_the_entries_of_packs(tmp_path: Path) -> None:
    """A replica has all entries in memory, as its copy is an RDB file, for which a child reads the packs."""
    packed(tmp_path / "one")
    one, two = ServerThread(tmp_path / "one"), ServerThread(tmp_path / "two")
    with one as first, two as second, Wire(first.url) as wire, Wire(second.url) as replica:
        wire.ask("SET", "x", "y")
        replica.ask("REPLICAOF", "127.0.0.1", str(first.server.facts.tcp_port))
        eventually(lambda: replica.ask("GET", "x") == b"y", what="the replica has the copy")
        found = replica.ask("XRANGE", "s", "-", "+")
        assert [entry[0] for entry in found] == [b"%d-1" % number for number in range(1, 21)]
        assert not list((tmp_path / "two").glob("*.pack"))
        wire.ask("XADD", "s", "21-1", "f", "v")
        eventually(lambda: replica.ask("XLEN", "s") == 21, what="the replica follows")
