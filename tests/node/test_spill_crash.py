"""A crash at any disk operation of spilling: a start finds a state of the past with all acknowledged changes."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

import pytest

from node.test_spilling import expect_replay
from support.coldness import IS_COLD
from support.inprocess import Client, World
from support.simdisk import Crash, PowerCut, SimDisk
from support.spilled import SpillWorld, small
from support.state import check

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)

KEYS = ("s", "t", "u")


@pytest.fixture(autouse=True)
def _tiered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.node.tiering.writing.SMALLEST", 600)
    small(monkeypatch)


def lines() -> Iterator[list[str]]:
    """Yield commands that add, read, delete and trim."""
    for key in KEYS:
        yield ["XGROUP", "CREATE", key, "g", "0", "MKSTREAM"]
    for number in range(1, 61):
        key = "t" if number % 5 == 0 else "s"
        yield ["XADD", key, f"{number}-1", "f", f"v{number}" * (1 + number % 4)]
        if number % 7 == 0:
            yield ["XREADGROUP", "GROUP", "g", "a", "COUNT", "4", "STREAMS", "s", ">"]
        if number % 11 == 0:
            yield ["XDEL", "s", f"{number - 9}-1", f"{number - 3}-1"]
        yield ["XADD", "u", f"{number}-1", "f", f"w{number}" * 5]
        if number % 13 == 0:
            yield ["XDEL", "u", *(f"{each}-1" for each in range(number - 12, number) if each % 3)]
        if number % 20 == 0:
            yield ["XTRIM", "s", "MINID", f"{number - 15}-1"]
    yield ["XACK", "s", "g", "50-1"]


def seen(client: Client) -> list[object]:
    """Return all that a client sees, which reads all that is cold, without times."""
    found: list[object] = []
    for key in KEYS:
        found += [client.call("XREVRANGE", key, "+", "-"), client.call("XLEN", key), client.call("EXISTS", key)]
        found.append(client.call("XPENDING", key, "g") if client.call("EXISTS", key) else None)
    return found


def spill(world: SpillWorld, acknowledged: list[int]) -> None:
    """Run the commands, each acknowledged once it is on the disk, and spill between them."""
    client = world.client()
    for number, words in enumerate(islice(lines(), 90), 1):
        client.send(*words)
        world.written()
        acknowledged[0] = number
        if number % 9 == 0:
            world.spill()
    world.close()


def states() -> list[list[object]]:
    """Return what is seen after each command, without packs."""
    world = World({"stream-node-max-entries": "3"})
    client = world.client()
    found = [seen(client)]
    for words in lines():
        client.send(*words)
        found.append(seen(client))
    return found


def vacuum(world: SpillWorld, acknowledged: list[int]) -> None:
    """Run the commands with extents that are written anew, and with packs that a rewriting lets go."""
    client = world.client()
    for number, words in enumerate(islice(lines(), 75), 1):
        client.send(*words)
        world.written()
        acknowledged[0] = number
        if number % 12 == 0:
            world.spill()
            world.spiller.filler.end()
            world.vacuum.ask()
            world.spill()
        if number % 24 == 0:
            world.vacuum.renewer.end()
            world.rewrite()
    world.close()


@pytest.mark.parametrize("run", [spill, vacuum], ids=["spill", "vacuum"])
@pytest.mark.parametrize("crash", Crash, ids=lambda crash: crash.name)
def test_a_crash_at_any_operation(crash: Crash, run: Callable[[SpillWorld, list[int]], None]) -> None:
    """Nothing that was acknowledged is lost, nothing is invented, and every cold entry can be read."""
    assert crashes(crash, run, list(Crash).index(crash), 6)


def crashes(crash: Crash, run: Callable[[SpillWorld, list[int]], None], begin: int, step: int) -> int:
    """Let the disk crash at each of these operations; return the number of starts that found cold entries."""
    past = states()
    whole = SpillWorld(entropy=lambda size: b"e" * size)
    run(whole, [0])
    assert isinstance(whole.disk, SimDisk)
    assert len(whole.names) > 1
    assert run is spill or (whole.vacuum.extents and whole.opened.packs[0].number > 1)
    cold = 0
    for at in range(begin, whole.disk.operations, step):
        disk, acknowledged = SimDisk(at, crash_after=at), [0]
        with suppress(PowerCut):
            run(SpillWorld(disk=disk), acknowledged)
        after = disk.reboot(crash, at)
        after.locked.clear()
        again = SpillWorld(disk=after)
        assert seen(again.client()) in past[acknowledged[0] :], (at, acknowledged)
        check(again.node, wire=False)
        cold += again.extents() > 0
        again.client().call("XADD", "afterwards", "1-1", "f", "v")
        again.spill()
        expect_replay(again)
        assert seen(again.client()) in past[acknowledged[0] :]
    return cold
