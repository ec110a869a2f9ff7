"""A crash at any disk operation of spilling and of what follows it: a start finds a state of the past.

It has all acknowledged changes, and every cold entry can be read.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import pytest

from millstream.persistence.manifest import is_pack_name
from node.test_spilling import expect_replay
from support.coldness import IS_COLD
from support.inprocess import Client, World
from support.simdisk import Crash, PowerCut, SimDisk
from support.spilled import HOME, SpillWorld, small
from support.state import check

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)

KEYS = ("s", "t", "u")
PAUSE = ["pause"]
"""Stands for a second without a command, in which retention works."""


@pytest.fixture(autouse=True)
def _tiered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.node.tiering.writing.SMALLEST", 600)
    small(monkeypatch)


def begin() -> Iterator[list[str]]:
    """Yield the commands that make the streams and their groups."""
    for key in KEYS:
        yield ["XGROUP", "CREATE", key, "g", "0", "MKSTREAM"]


def lines() -> Iterator[list[str]]:
    """Yield commands that add, read, delete and trim."""
    yield from begin()
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


def endings() -> Iterator[list[str]]:
    """Yield commands that remove the end of a stream, so that a cold node takes entries, also under ids used before."""
    yield from begin()
    last = 0
    for turn in range(4):
        ids = range(last + 1, last + 17)
        for number in ids:
            yield ["XADD", "s", f"{turn}-{number}", "f", f"w{number}" * 5]
            yield ["XADD", "t", f"{number}-1", "f", f"v{turn}.{number}" * 3]
        yield ["XDEL", "s", *(f"{turn}-{number}" for number in ids[2:])]
        yield ["XGROUP", "SETID", "t", "g", f"{last}-1"]
        yield ["XREADGROUP", "GROUP", "g", "a", "COUNT", "100", "STREAMS", "t", ">"]
        yield ["XACK", "t", "g", *(f"{number}-1" for number in ids[2:])]
        yield ["XTRIM", "t", "MINID", "100", "ACKED"]
        last += 3
        yield ["XSETID", "t", f"{last}-1"]


def aging() -> Iterator[list[str]]:
    """Yield commands between which time passes."""
    yield from begin()
    for number in range(1, 61):
        yield ["XADD", "s", "*", "f", f"v{number}" * (1 + number % 4)]
        if number % 7 == 0:
            yield ["XREADGROUP", "GROUP", "g", "a", "COUNT", "3", "STREAMS", "s", ">"]
        if number % 5 == 0:
            yield ["XADD", "u", "*", "f", f"w{number}" * 5]
        yield PAUSE


def seen(client: Client) -> list[object]:
    """Return all that a client sees, which reads all that is cold, without times."""
    found: list[object] = []
    for key in KEYS:
        found += [client.call("XREVRANGE", key, "+", "-"), client.call("XLEN", key), client.call("EXISTS", key)]
        found.append(client.call("XPENDING", key, "g") if client.call("EXISTS", key) else None)
    return found


def spill(world: SpillWorld, number: int) -> None:
    """Spill between the commands."""
    if number % 9 == 0:
        world.spill()


def vacuum(world: SpillWorld, number: int) -> None:
    """Write extents anew, and let packs go by a rewriting."""
    if number % 12 == 0:
        world.spill()
        world.spiller.filler.end()
        world.vacuum.ask()
        world.spill()
    if number % 24 == 0:
        world.vacuum.renewer.end()
        world.rewrite()


def thaw(world: SpillWorld, number: int) -> None:
    """Spill before a stream loses its end."""
    if number % 5 == 0:
        world.spill()


def release(world: SpillWorld, number: int) -> None:
    """Spill, and let packs go of which retention has removed all."""
    if number % 16 == 0:
        world.spill()
        world.spiller.filler.end()
    if number % 32 == 0:
        world.rewrite()


@dataclass(frozen=True)
class Run:
    """Commands, and the work on packs after each of them."""

    words: Callable[[], Iterator[list[str]]]
    work: Callable[[SpillWorld, int], None]
    count: int = 1000
    """Number of commands at most."""
    retention: str = ""
    needs_packs: bool = False
    """True if a node without packs has other states, since it has other sizes."""

    @property
    def config(self) -> dict[str, str]:
        """Configuration of its nodes."""
        return {"stream-node-max-entries": "3", "stream-retention": self.retention}

    def live(self, world: World, told: "Told") -> None:
        """Run the commands, each acknowledged once it is on the disk."""
        client = world.client()
        told.note(client)
        for number, words in enumerate(islice(self.words(), self.count), 1):
            if words is PAUSE:
                world.advance(1000)
            else:
                client.send(*words)
            told.note(client)
            if isinstance(world, SpillWorld):
                world.written()
                told.acknowledged = number
                self.work(world, number)
        if isinstance(world, SpillWorld):
            world.close()

    def states(self) -> list[list[object]]:
        """Return what is seen after each command."""
        told = Told(looks=True)
        self.live(SpillWorld(self.config) if self.needs_packs else World(self.config), told)
        return told.states


@dataclass
class Told:
    """The states that clients may have seen in a run."""

    looks: bool = False
    """True to keep the states."""
    states: list[list[object]] = field(default_factory=list)
    acknowledged: int = 0
    """Number of the last acknowledged command."""

    def note(self, client: Client) -> None:
        """Keep what is seen."""
        if self.looks:
            self.states.append(seen(client))


RUNS = {
    "spill": Run(lines, spill, 90),
    "vacuum": Run(lines, vacuum, 75),
    "thaw": Run(endings, thaw),
    "age": Run(aging, release, retention="s 20s 0"),
    "size": Run(aging, release, retention="s 0 2kb", needs_packs=True),
}


@pytest.mark.parametrize("crash", Crash, ids=lambda crash: crash.name)
@pytest.mark.parametrize("name", RUNS)
def test_a_crash_at_any_operation(crash: Crash, name: str) -> None:
    """Nothing that was acknowledged is lost, nothing is invented, and every cold entry can be read."""
    number = list(Crash).index(crash)
    assert crashes(crash, name, number, 6 if name in {"spill", "vacuum"} else 12)


def expect_proven(name: str, world: SpillWorld, disk: SimDisk) -> None:
    """Expect that a run did what it is there for."""
    assert world.opened.packs[-1].number > 1
    if name == "vacuum":
        assert world.vacuum.extents
    if name in {"vacuum", "age", "size"}:
        assert world.opened.packs[0].number > 1
    if name == "thaw":
        assert sum(inode.cache.count(b"twarm") for inode in disk.names.values()) > 5


def rebooted(disk: SimDisk, crash: Crash, seed: int) -> SimDisk:
    """Return the disk that the next start finds."""
    after = disk.reboot(crash, seed)
    after.locked.clear()
    return after


def crashes(crash: Crash, name: str, begin: int, step: int) -> int:
    """Let the disk crash at each of these operations; return the number of starts that found cold entries."""
    run = RUNS[name]
    past = run.states()
    whole = SpillWorld(run.config, entropy=lambda size: b"e" * size)
    run.live(whole, Told())
    assert isinstance(whole.disk, SimDisk)
    expect_proven(name, whole, whole.disk)
    cold = 0
    for at in range(begin, whole.disk.operations, step):
        disk, told = SimDisk(at, crash_after=at), Told()
        with suppress(PowerCut):
            run.live(SpillWorld(run.config, disk=disk), told)
        after = rebooted(disk, crash, at)
        if at % 5 == 0:  # the first start crashes too
            after.crash_after = at % 83
            with suppress(PowerCut):
                SpillWorld(disk=after)
            after = rebooted(after, crash, at)
        again = SpillWorld(disk=after)
        assert seen(again.client()) in past[told.acknowledged :], (at, told.acknowledged)
        assert {each for each in after.list(HOME) if is_pack_name(each)} == {each.name for each in again.opened.packs}
        check(again.node, wire=False)
        cold += again.extents() > 0
        again.client().call("XADD", "afterwards", "1-1", "f", "v")
        again.spill()
        again.spiller.filler.end()
        again.rewrite()
        expect_replay(again)
        assert seen(again.client()) in past[told.acknowledged :]
    return cold
