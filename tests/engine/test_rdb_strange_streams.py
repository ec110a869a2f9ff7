"""Streams in every shape that XADD, XDEL, XTRIM and XSETID give Redis's nodes are restored unchanged."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from engine.rdb_lives import portrait, told_apart
from millstream.engine.serialization.rdb import bulk
from millstream.engine.serialization.rdb import streams as rdb_streams
from millstream.replies import Error
from support.inprocess import World
from support.servers import ServerProcess
from support.wire import Wire

pytestmark = pytest.mark.realserver
MASTER_ABOVE = [
    "XADD s 3-3 x y", "XADD s 5-2 f 2 g 3", "XDEL s 5-2", "XTRIM s MINID 5-1", "XSETID s 1-2", "XADD s 2-3 f 2 g 3"
]  # fmt: skip
CASES = {
    "master above": MASTER_ABOVE,
    "then more": [*MASTER_ABOVE, "XADD s 2-4 x y", "XADD s 9-1 x y", "XADD s 9-2 x z"],
    "twice": [*MASTER_ABOVE, "XDEL s 2-3", "XSETID s 1-5", "XADD s 1-7 x y", "XADD s 1-8 q r"],
    "all dead": [*MASTER_ABOVE, "XDEL s 2-3", "XSETID s 0-1"],
    "a node before": ["XADD s 1-1 a b", "CONFIG SET stream-node-max-entries 1", *MASTER_ABOVE],
}


def program(random: Random) -> Iterator[str]:
    """Yield commands on one stream, with ids that often lie below tombstones."""
    yield f"CONFIG SET stream-node-max-entries {random.choice((1, 2, 3, 100))}"
    for _ in range(random.choice((6, 12, 30))):
        entry_id = f"{random.randrange(1, 7)}-{random.randrange(1, 6)}"
        fields = random.choice(("x y", "x z", "f 2 g 3", "x 1 x 2"))
        yield random.choice(
            (
                f"XADD s {entry_id} {fields}",
                f"XADD s {entry_id} {fields}",
                f"XADD s {random.randrange(1, 8)}-* {fields}",
                f"XDEL s {entry_id} {random.randrange(1, 7)}-{random.randrange(1, 6)}",
                f"XTRIM s MINID {entry_id}",
                f"XTRIM s MAXLEN {random.randrange(3)}",
                f"XSETID s {entry_id}",
                f"XGROUP CREATE s g{random.randrange(2)} {entry_id}",
                f"XGROUP SETID s g{random.randrange(2)} 0",
                f"XREADGROUP GROUP g0 c{random.randrange(2)} COUNT 2 STREAMS s >",
                f"XACK s g0 {entry_id}",
                f"CONFIG SET stream-node-max-entries {random.choice((1, 2, 3, 100))}",
            )
        )


def difference(wire: Wire, commands: list[str]) -> list[Any]:
    """Return the differences between the stream that a server builds and the one restored from its DUMP.

    Redis 7.0 lets XSETID put the last id below the largest deleted one, which our counters never are.
    """
    wire.ask("FLUSHALL")
    wire.ask("CONFIG", "SET", "stream-node-max-entries", "100")
    for line in commands:
        wire.ask(*line.split(" "))
    data = wire.ask("DUMP", "s")
    if data is None:
        return []
    ours = World().client().call
    answer = ours("RESTORE", "s", 0, data)
    if isinstance(answer, Error):
        return [answer]
    there, here = wire.ask("XRANGE", "s", "-", "+"), ours("XRANGE", "s", "-", "+")
    if here != there:
        return [there, here]
    apart = told_apart(portrait(wire.ask, b"s"), portrait(ours, b"s"))
    return [line for line in apart if not line.startswith("[2] max-deleted-entry-id")]


@pytest.fixture(params=["native", "python"])
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(rdb_streams, "read_listpacks", bulk.py_read_listpacks)


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("commands", CASES.values(), ids=list(CASES))
def test_entries_below_their_node_are_restored(each_redis: ServerProcess, commands: list[str]) -> None:
    """A node whose id is above its entries, since XSETID set the last id back behind tombstones, is read."""
    with Wire(each_redis.url) as wire:
        assert not difference(wire, commands)


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("part", range(20))
def test_random_streams_are_restored(each_redis: ServerProcess, part: int) -> None:
    """RESTORE of Redis's DUMP of a random stream has the same entries, counters and groups."""
    with Wire(each_redis.url) as wire:
        for seed in range(part * 20, part * 20 + 20):
            assert not difference(wire, list(program(Random(seed)))), seed
