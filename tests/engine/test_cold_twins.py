"""Cold entries answer as hot ones: random steps against a store without cold nodes, and one that reads no pack.

``test_four_twins`` does so with both cores at once, and with groups, for a million steps.
"""

from random import Random

import pytest

from engine.cold_twins import ColdTwins, step
from millstream import core
from millstream.engine.cold import ColdDamage, ColdReads, Extent, extent_of, pack_bits
from millstream.engine.streams.entries import PyEntryStore
from support.coldness import BadSector, MemoryPacks, chilled

STORES = [PyEntryStore] if core.native is None else [PyEntryStore, core.native.EntryStore]


def steps(seed: int, store: type[PyEntryStore], count: int, every: int) -> int:
    """Run random steps, and compare after some of them; return their number."""
    random, twins = Random(seed), ColdTwins(store)
    for at in range(count):
        step(twins, random)
        if at % every == 0:
            ends = sorted((twins.some_id(random), twins.some_id(random)))
            twins.compare(*ends, random.choice((-1, 1, 3, 1000)))
    return count


@pytest.mark.parametrize("store", STORES, ids=["python", "native"][: len(STORES)])
@pytest.mark.parametrize("seed", range(12))
def test_random_steps(seed: int, store: type[PyEntryStore]) -> None:
    """Replies, nodes, counts and the extents themselves are right after any sequence of steps."""
    steps(seed, store, 120, 3)


@pytest.mark.parametrize("store", STORES, ids=["python", "native"][: len(STORES)])
@pytest.mark.parametrize("seed", [4337, 4401, 4409, 4470])
def test_a_first_node_that_was_empty_before_goes(seed: int, store: type[PyEntryStore]) -> None:
    """Trimming lets the first node that is left go if nothing lives in it, wherever it begins."""
    steps(seed, store, 250, 5)


@pytest.mark.parametrize("store", STORES, ids=["python", "native"][: len(STORES)])
def test_an_extent_of_no_entries_has_a_weight(store: type[PyEntryStore]) -> None:
    """A forged record of an extent without any entry ends no process: its weight is 0."""
    entries = store()
    entries.reads = ColdReads()
    entries.add_cold(1, Extent(1, 32, 100, 1, 0, 0, 5, 9, 0, 0).row(), [])
    assert entries.cold_weight(0, 100) == 0


SOUND = Extent(1, 32, 100, 2, 6, 6, 1, 6, 1, 6)
FORGED = [
    *({"live": 7}, {"stored": 101}, {"nodes": 101}, {"nodes": 0}, {"length": 20}, {"offset": 1 << 63}),
    *({"last_live": 0}, {"last_live": 7}, {"first_live": 0}, {"live": 0}, {"live": 0, "last_live": 0}, {"first": 7}),
]


@pytest.mark.parametrize("store", STORES, ids=["python", "native"][: len(STORES)])
@pytest.mark.parametrize("change", FORGED, ids=str)
def test_a_forged_extent_is_refused(change: dict[str, int], store: type[PyEntryStore]) -> None:
    """Both cores refuse a record of an extent that no program writes."""
    entries = store()
    entries.reads = ColdReads()
    with pytest.raises(ValueError, match="out of order"):
        entries.add_cold(1, SOUND._replace(**change).row(), [])
    entries.add_cold(1, SOUND.row(), [])
    with pytest.raises(ValueError, match="extent"):
        entries.move_cold(0, 1, SOUND._replace(**change).row(), [])


@pytest.mark.parametrize("store", STORES, ids=["python", "native"][: len(STORES)])
def test_packed_nodes_before_the_last_cold_entry_are_refused(store: type[PyEntryStore]) -> None:
    """A forged snapshot brings no hot node that begins below the cold ones."""
    entries, other = store(), store()
    entries.reads = ColdReads()
    entries.add_cold(1, SOUND.row(), [])
    other.append(5, [b"f", b"v"], fresh=True)
    with pytest.raises(ValueError, match="out of order"):
        entries.extend([node.pack() for node in other.nodes()])
    assert (entries.length, entries.node_count) == (6, 2)
    other.append(6, [b"f", b"v"], fresh=True)
    entries.extend([node.pack() for node in list(other.nodes())[1:]])
    assert (entries.length, entries.node_count) == (7, 3)


@pytest.mark.parametrize("store", STORES, ids=["python", "native"][: len(STORES)])
def test_an_extent_of_fewer_entries_than_its_nodes_have_is_refused(store: type[PyEntryStore]) -> None:
    """A node that is gone leaves no fewer stored entries than the other nodes have."""
    entries = store()
    entries.reads = ColdReads()
    for entry in range(1, 8):
        entries.append(entry, [b"f", b"v"], fresh=entry in {1, 4, 7})
    entries.remove(2, keep=True)
    whole = extent_of(list(entries.hot_nodes())[:2], 1, 32, 500)
    with pytest.raises(ValueError, match="other entries"):
        entries.add_cold(1, whole._replace(nodes=3, stored=5).row(), [[0, b"", pack_bits(1)]])
    entries.add_cold(1, whole._replace(nodes=3, stored=7).row(), [[0, b"", pack_bits(1)]])


@pytest.mark.parametrize("store", STORES, ids=["python", "native"][: len(STORES)])
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("count", [-1, 33])
def test_what_lies_before_a_bad_sector_is_read(count: int, is_cut: bool, store: type[PyEntryStore]) -> None:
    """Entries before the node that the disk cannot read come before the error."""
    packs, entries = BadSector(), store()
    entries.reads = ColdReads()
    entries.reads.source = packs
    for at in range(1, 42):
        entries.append(at, [b"f", b"v" * 500], fresh=at % 4 == 1)
    entries.add_cold(1, b"".join(chilled(entries, packs, 10, 10)), [])
    if is_cut:
        del packs.files[1][-2100 - 10 :]  # in the node of 33 to 36
    else:
        packs.bad = range(len(packs.files[1]) - 2100 - 10, len(packs.files[1]) - 2100)
    found = []
    with pytest.raises(ColdDamage, match="the file ends" if is_cut else "the disk reports") as damage:
        found.extend(entry for entry, _ in entries.rows(1, 100, count))
    assert found == list(range(1, 33))
    assert (damage.value.first, damage.value.last) == (33, 36)


@pytest.mark.parametrize("store", STORES, ids=["python", "native"][: len(STORES)])
def test_ids_outside_the_live_ends_of_a_node_need_no_read_of_it(store: type[PyEntryStore]) -> None:
    """The table says that nothing lives there, so damage of the node does not matter."""
    packs, entries = MemoryPacks(), store()
    entries.reads = ColdReads()
    entries.reads.source = packs
    for at in range(1, 14):
        entries.append(at, [b"f", b"v"], fresh=at % 4 == 1)
    for at in (5, 8):
        entries.remove(at, keep=True)
    entries.add_cold(1, b"".join(chilled(entries, packs, 3, 3)), [])
    assert 6 in entries
    packs.files[1][-40] ^= 1
    other = entries.copy()
    with pytest.raises(ColdDamage):
        list(other.rows(1, 13))
    for at in (5, 8):
        assert at not in other
        assert other.wire(at) is None
        assert list(other.rows(at, at)) == []
        assert other.reply(at, at, backwards=True)[0] == 0
        other.want_range(at, at)
    with pytest.raises(ColdDamage):
        assert 6 in other


@pytest.mark.parametrize("store", STORES, ids=["python", "native"][: len(STORES)])
def test_a_tombstone_hides_no_cold_entry(store: type[PyEntryStore]) -> None:
    """The last cold entry is there, although a tombstone with its id begins the first hot node."""
    twins = ColdTwins(store)
    for _ in range(3):
        twins.add(1, [b"f", b"v"], (0, 3), dead=False)
    twins.add(0, [b"f", b"v"], (0, 1), dead=True)
    twins.add(1, [b"f", b"v"], (0, 0), dead=False)
    twins.add(1, [b"f", b"v"], (0, 1), dead=False)
    twins.cold.add_cold(1, b"".join(chilled(twins.cold, twins.packs, 1, 1)), [])
    assert 3 in twins.cold
    assert twins.cold.wire(3) is not None
    assert twins.cold.ids(3) == [3, 4, 5]
    assert twins.cold.reply(3, 9)[0] == twins.cold.reply(3, 9, backwards=True)[0] == 3


@pytest.mark.parametrize("store", STORES, ids=["python", "native"][: len(STORES)])
def test_a_node_that_has_left_an_extent_ends_no_range(store: type[PyEntryStore]) -> None:
    """Nodes that got hot and went to a later extent are read there, whatever the former extent had behind them."""
    twins = ColdTwins(store)
    for added, nodes in ((12, 3), (6, 2)):
        for _ in range(added):
            twins.add(1, [b"f", b"v"], (0, 3), dead=False)
        rows = b"".join(chilled(twins.cold, twins.packs, nodes, 3))
        twins.cold.add_cold(1, rows, [])
        twins.blind.add_cold(1, rows, [])
        for entry in (10, 11, 12, 7, 8, 9):
            twins.remove(entry, keep=False)
    assert twins.cold.extent_count == 2
    for start in range(20):
        for end in range(start, 20):
            twins.compare(start, end, -1)
