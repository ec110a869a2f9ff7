"""The entries that commands ask for before they begin: how many bytes, and how many entries."""

from random import Random

import pytest

from millstream.commands.streams import asking
from millstream.engine.cold import WANTED_MAX, ColdMiss, want
from support.coldness import IS_COLD, MemoryPacks, chill
from support.inprocess import World

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)


class AskingWorld:
    """A node with a stream of cold entries, and a transaction that asks for them."""

    def __init__(self, count: int, size: int, each: int) -> None:
        self.world = World({"stream-node-max-entries": "1"})
        random = Random(1)  # no byte is saved by compression
        self.client, self.space = self.world.client(), self.world.node.keyspace
        self.packs = self.space.reads.source = MemoryPacks()
        for number in range(1, count + 1):
            self.client.call("XADD", "s", f"{number}-1", "f", random.randbytes(size))
        self.client.call("XGROUP", "CREATE", "s", "g", "0")
        step = chill(self.space, self.packs, 0, b"s", each)
        assert step is not None
        self.space.apply(step)

    def ask(self, *commands: str) -> list[ColdMiss]:
        """Ask for the entries of commands once."""
        self.space.reads.may_wait = False
        try:
            return asking.ask(self.space, 0, [command.encode().split() for command in commands], 0)
        finally:
            self.space.reads.may_wait = True

    def asked(self, *commands: str) -> int:
        """Bytes that are asked for until the transaction may begin."""
        total = 0
        while misses := self.ask(*commands):
            for each in {wanted for miss in misses for wanted in miss.ranges}:
                total += each[2]
                self.packs.read(*each, may_wait=True)
        return total


def test_a_miss_of_many_entries_asks_for_a_part_of_them() -> None:
    """Ids may be a million, as those of a consumer's history; more than what is kept for clients is read later."""
    world = AskingWorld(80, 1 << 20, 1)
    stream = world.space.databases[0].keys[b"s"]
    sizes = []
    for _ in range(4):
        world.space.reads.may_wait = False
        try:
            want(stream.entries, [number << 64 | 1 for number in range(1, 79)])  # type: ignore[attr-defined]  # a stream
            break
        except ColdMiss as miss:
            sizes.append(sum(length for _, _, length in miss.ranges))
            for each in miss.ranges:
                world.packs.read(*each, may_wait=True)
    assert len(sizes) in {2, 3}  # the native core asks for tables first
    assert WANTED_MAX <= max(sizes) < WANTED_MAX + (2 << 20)


def test_a_transaction_does_not_ask_for_more_than_is_kept_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """All its commands together ask for so many bytes at once; the same bytes count once."""
    monkeypatch.setattr(asking, "WANTED_MAX", 64 << 10)
    world = AskingWorld(90, 1 << 10, 1)
    assert len(world.ask(*["XRANGE s 5-1 6-1"] * 100)) == 100
    sizes = []
    while misses := world.ask(*(f"XRANGE s {number}-1 {number}-1" for number in range(1, 81))):
        ranges = {wanted for miss in misses for wanted in miss.ranges}
        sizes.append(sum(length for _, _, length in ranges))
        for each in ranges:
            world.packs.read(*each, may_wait=True)
    assert 64 << 10 <= max(sizes) < 66 << 10


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ("MAXCOUNT 2", 2),
        ("COUNT 1 MAXCOUNT 5", 1),
        ("MAXSIZE 1", 1),
        ("MAXSIZE 25000", 3),
        ("MAXCOUNT 90 MAXSIZE 1", 1),
    ],
)
@pytest.mark.parametrize("words", ["XREAD {} STREAMS s 9-1", "XREADGROUP GROUP g c {} STREAMS s >"])
def test_a_command_asks_for_about_as_many_entries_as_it_reads(options: str, most: int, words: str) -> None:
    """COUNT and MAXCOUNT bound what is asked for; MAXSIZE does by the size of an average entry, but for the first."""
    world = AskingWorld(60, 10_000, 50)
    asked = world.asked(words.format(options))
    assert most * 10_000 < asked < (most + 1) * 10_000  # with the table
