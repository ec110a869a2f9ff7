"""Without a tier, a server writes the bytes that version 0.1.0 wrote, and leaves old files as they are.

The digests were recorded with that version, on the same clock, from the same commands.
"""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from compatibility import content
from millstream.node.log import rebuilding
from millstream.node.log.snapshot import payloads
from millstream.server.thread import ServerThread
from support.clock import Ahead
from support.coldness import IS_COLD
from support.spilled import SpillWorld
from support.wire import Wire

if IS_COLD:
    pytest.skip("its logs also record cold entries", allow_module_level=True)

RECORDED = Path(__file__).parents[1] / "fixtures" / "0.1.0"
COMMANDS = """
XGROUP CREATE s g 0 MKSTREAM
XGROUP CREATE s h $
XADD s MAXLEN ~ 400 {n}-1 f {n} g {n}
XADD s {n}-2 f v{n}
XREADGROUP GROUP g anna COUNT 3 STREAMS s >
XACK s g {n}-1
XDEL s {n}-2
XADD t {n}-0 a b
SETEX k{n} 1000 v
HSET hash {n} v
LPUSH list {n}
ZADD zset {n} m{n}
SADD set {n}
"""
LAST = """
XTRIM s MINID 120-0
XAUTOCLAIM s g bert 0 0
XTRIM t MAXLEN 50
DEL set
RENAME t u
COPY u w
XSETID s 900-0
XDEL w 300-0
EXPIRE hash 50
"""
DIGESTS = {
    "MANIFEST": "ee100bc37a5a2db8",
    "log-00000000000000000001.seg": "c00027d9e130d5a4",
    "snapshot": "4e457a05927bb741",
}


def lines() -> Iterator[list[str]]:
    """Yield commands that change streams, groups and other values."""
    for number in range(1, 301):
        for line in COMMANDS.strip().splitlines()[2 if number > 1 else 0 :]:
            yield line.format(n=number).split()
    for line in LAST.strip().splitlines():
        yield line.split()


def digest(data: bytes) -> str:
    """Return the beginning of a hash."""
    return hashlib.sha256(data).hexdigest()[:16]


@pytest.mark.parametrize("config", [{}, {"maxmemory": "0", "tier": "no"}], ids=["default", "no"])
def test_without_a_tier_every_byte_is_as_before(config: dict[str, str]) -> None:
    """The log, the manifest and a snapshot have the bytes of version 0.1.0."""
    world = SpillWorld(
        {"tier": "no", "stream-node-max-entries": "10", **config}, entropy=lambda size: bytes(range(size))
    )
    client = world.client()
    for words in lines():
        client.call(*words)
        world.spill()
    world.written()
    found = {}
    for name in world.disk.list(world.directory):
        if name != "lock":  # it holds the process's number
            file = world.disk.open_read(world.directory / name)
            found[name] = digest(file.read_at(0, file.size()))
    made = payloads(rebuilding.from_log(world.opened.replay()), 7)
    assert found | {"snapshot": digest(b"".join(made))} == DIGESTS


def test_an_old_directory_is_left_as_it_is(tmp_path: Path) -> None:
    """A server that only reads a directory of version 0.1.0 changes no byte of it but its lock."""
    home = tmp_path / "data"
    shutil.copytree(RECORDED / "data", home)

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in home.iterdir() if path.name != "lock"}

    before = files()
    clock = Ahead(content.BEGIN_MS)  # nothing has expired since
    with ServerThread(home, clock=clock) as server, Wire(server.url) as wire:
        keys = wire.ask("KEYS", "*")
        assert keys
        for key in keys:
            wire.ask("DUMP", key)
    assert files() == before
