"""A walk over all streams misses no reference to a pack, and no turn of it takes long."""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import pytest

from millstream.engine import cold_ops
from millstream.engine.cold import ColdReads, Extent, Holes, cold_records, records_of
from millstream.engine.cold_ops import named_packs
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from millstream.node.maintenance import renewing
from millstream.node.maintenance.renewing import Renewal, RenewalRule
from millstream.node.maintenance.walking import Settled, Walk
from millstream.node.tiering.policy import Ring
from node.test_vacuum import care, filled, idle
from support.coldness import IS_COLD
from support.inprocess import Client
from support.spilled import SpillWorld, small

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)


@pytest.fixture(autouse=True)
def _tiered(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)


def add(client: Client, key: str, first: int, count: int) -> None:
    """Add entries to a stream."""
    for number in range(first, first + count):
        client.call("XADD", key, f"{number}-1", "f", "v" * 9)


def shares(world: SpillWorld) -> dict[int, int]:
    """Return the bytes of each pack to which streams refer."""
    found: dict[int, int] = {}
    for _, stream in world.streams():
        for number, size in stream.entries.pack_sizes():
            found[number] = found.get(number, 0) + size
    return found


def begun(world: SpillWorld) -> Walk:
    """Return a walk that has begun."""
    world.vacuum.observe(("xnew", 0, b"x"))
    world.advance(11_000)
    for _ in range(1000):
        if (walk := world.vacuum.walk) is not None:
            return walk
        world.spiller.turn(world.clock.now())
    raise AssertionError("no walk began")


def test_work_at_other_streams_hides_none_from_a_walk() -> None:
    """Nothing was deleted, so no extent is written anew and no pack is idle, though each turn of a walk spills too."""
    cold = SpillWorld()
    client = cold.client()
    for group in range(10):
        for key in range(group * 40, group * 40 + 40):
            add(client, f"k{key}", 1, 12)
        for _ in range(60):
            cold.spill()
        cold.spiller.filler.end()
    assert len(cold.opened.packs) == 10
    asked = idle(cold)
    cold.node.config.rewrite_min_size = 0
    for turn in range(6):
        cold.advance(11_000)
        for number in range(600):
            client.call("XADD", f"k{number % 400}", f"{1000 * (turn + 1) + number}-1", "f", "v" * 20)
            cold.spiller.turn(cold.clock.now())
    assert cold.vacuum.extents == 0
    assert cold.vacuum.sparse == frozenset()
    assert asked == []


@pytest.mark.parametrize(
    "words", [["RENAME", "s", "t"], ["RENAME", "s", "other"], ["COPY", "s", "t"], ["SWAPDB", "0", "1"]], ids=" ".join
)
def test_a_stream_that_moves_during_a_walk_is_not_missed(words: list[str]) -> None:
    """The pack of a stream that gets another key while others are looked at is still needed."""
    cold = SpillWorld()
    client = filled(cold, 60)
    for _ in range(8):
        cold.spill()
    client.call("XADD", "other", "1-1", "f", "v")
    walk = begun(cold)
    walk.left = {place: size for place, size in walk.left.items() if place != (0, b"other")}
    client.call("XADD", "other", "2-1", "f", "v")
    client.call(*words)
    if words[0] == "COPY":
        client.call("DEL", "s")
    while not walk.turn():
        pass
    assert walk.is_void == (words[0] == "SWAPDB")
    assert walk.is_void or walk.needed == shares(cold) != {}
    idle(cold)
    care(cold)
    assert cold.vacuum.status == "ok"


def test_a_pack_that_gets_its_first_reference_during_a_walk_is_needed() -> None:
    """Entries of a stream that was looked at before may go to a pack meanwhile."""
    cold = SpillWorld({"tier-hot": "1gb"})
    filled(cold, 60)
    cold.spill()
    walk = Walk(cold.node.keyspace, cold.spiller.ring, RenewalRule(), 1, WeakKeyDictionary(), set())
    cold.vacuum.walk = walk
    while not walk.turn():
        pass
    assert walk.needed == {}
    cold.node.config.tier_hot = 0
    cold.vacuum.turn = lambda now, *, is_calm: None  # type: ignore[method-assign]  # only spilling works
    cold.spill()
    assert cold.extents()
    assert set(walk.needed) == set(shares(cold))


def long_stream(extents: int, holes: int) -> tuple[Keyspace, Stream, Ring]:
    """Return a stream of extents with a few holes each."""
    space, stream = Keyspace(), Stream(100, 100)
    stream.entries.reads = ColdReads()
    found = []
    for number in range(extents):
        begin = (number * 1000 + 1) << 64
        ends = begin, begin + (999 << 64), begin, begin + (999 << 64)
        dead = sum(1 << at * 3 for at in range(10, 10 + holes))
        found.append(Extent(1, 64 + number * 70_000, 65_000, 8, 1000, 1000 - holes, *ends, Holes(dead, 0)))
    for record in records_of(found, 4096):
        stream.entries.add_cold(*record)
    space.databases[0].keys[b"s"] = stream
    ring = Ring()
    ring.scan(space)
    return space, stream, ring


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of extents with holes in each slice that walks looked at."""
    found: list[int] = []
    real = renewing.wanted

    def wanted(place: tuple[int, bytes], stream: Stream, start: int, record: tuple[int, bytes, list[list[object]]],
               rule: RenewalRule) -> Iterator[Renewal]:  # fmt: skip
        found.append(len(record[2]))
        return real(place, stream, start, record, rule)

    monkeypatch.setattr(renewing, "wanted", wanted)
    return found


@pytest.mark.parametrize("every", [False, True])
def test_a_long_stream_is_looked_at_in_parts(looked: list[int], every: bool) -> None:
    """No turn looks at more than some hundred extents with holes, and all are found in the end."""
    space, _, ring = long_stream(5000, 3)
    walk = Walk(space, ring, RenewalRule(every=every), 9, WeakKeyDictionary(), set())
    is_over = False
    while not is_over:
        before = sum(looked)
        is_over = walk.turn()
        assert sum(looked) - before <= 1000
    assert sum(looked) == 5000
    assert walk.counted == (5000 if every else 0)
    assert walk.needed == {1: 5000 * 65_000}


def test_extents_that_go_between_two_turns_hide_no_other() -> None:
    """Trimming a stream while a walk looks at its extents moves the others up; each of these is still found."""
    space, stream, ring = long_stream(3000, 3)
    walk = Walk(space, ring, RenewalRule(every=True), 9, WeakKeyDictionary(), set())
    left, is_over = 0, False
    while not is_over:
        is_over = walk.turn()
        if left < 2000:
            left += 150
            stream.entries.cut((left * 1000 + 1) << 64, [])
    offsets = {each.extent.offset for each in walk.found}
    assert {64 + number * 70_000 for number in range(left, 3000)} <= offsets


def test_a_stream_with_the_same_holes_is_looked_at_once(looked: list[int]) -> None:
    """The next walk leaves its extents alone until an entry dies; one that wants all extents does not."""
    space, stream, ring = long_stream(300, 3)
    settled: Settled = WeakKeyDictionary()

    def walk(rule: RenewalRule) -> int:
        looked.clear()
        one = Walk(space, ring, rule, 9, settled, set())
        while not one.turn():
            pass
        return sum(looked)

    assert walk(RenewalRule()) == 300
    assert walk(RenewalRule()) == 0
    assert walk(RenewalRule(every=True)) == 300
    extent = next(iter(cold_records(stream.entries, 1)))
    assert extent[0] == 1
    ids = (1 << 64) + (999 << 64)
    stream.entries.punch([[0, 996, bytes(5), b"", b"".join(
        each.to_bytes(16, "big") for each in (1 << 64, ids, 1 << 64, ids))]])  # fmt: skip
    assert walk(RenewalRule()) == 300
    assert walk(RenewalRule(sparse=frozenset({1}))) == 300


def test_extents_to_write_anew_keep_no_deleted_stream() -> None:
    """Its packs may go at once. Otherwise each rewriting looked at all keys until the vacuum had come that far."""
    cold = SpillWorld({"tier-vacuum-rate": "1"})
    client = cold.client()
    add(client, "s", 1, 300)
    cold.spill()
    client.call("XDEL", "s", *(f"{number}-1" for number in range(100, 260)))
    walk = begun(cold)
    while not walk.turn():
        pass
    assert walk.found
    assert cold.node.keyspace.reads.packs()
    client.call("DEL", "s")
    cold.written()
    assert cold.node.keyspace.reads.packs() == set()
    assert walk.found[0].stream() is None


def test_named_packs_unpack_no_extent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop sums the bytes of all extents, of which there may be millions."""
    cold = SpillWorld()
    client = cold.client()
    for key in ("s", "t"):
        add(client, key, 1, 300)
    cold.spill()
    monkeypatch.setattr(cold_ops, "unpack_extents", None)
    assert [[number, size] for number, _, size in named_packs(cold.node.keyspace)] == sorted(
        map(list, shares(cold).items())
    )
