"""Memory of full nodes is returned to the system, and nodes behave the same wherever their bytes are."""

import gc
import os
import random
from pathlib import Path

import pytest

from millstream import core
from millstream.engine.streams.entries import EntryStore, PyEntryStore

MIB = 1 << 20


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(store: PyEntryStore, first: int, count: int, size: int = 1000) -> None:
    """Add entries with numbers as ids, in nodes of a server's default size."""
    for entry in range(first, first + count):
        fields = [b"f", b"%08d" % entry + b"x" * (size - 8)]
        store.append(entry, fields, fresh=store.needs_block(size, 4096, 100))


@pytest.mark.skipif(core.NAME != core.NATIVE, reason="Python's allocator keeps what is freed")
@pytest.mark.skipif("PYTHONMALLOC" in os.environ, reason="the sanitizers keep what is freed")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell of a process's memory")
def test_memory_of_a_trimmed_stream_goes_back() -> None:
    """Trimming and deleting streams lowers the resident memory at once, also with small allocations in between."""
    gc.collect()
    before = resident()
    stores, others = [EntryStore(), EntryStore()], []
    for first in range(1, 60_000, 100):
        for store in stores:
            fill(store, first, 100)
        others.append(b"y" * 300)
    full = resident() - before
    assert full > 100 * MIB
    stores[0].remove_below(59_900, keep=True)
    assert resident() - before < full * 0.6
    assert stores[1].ids() == list(range(1, 60_001))
    del store
    stores.clear()
    assert resident() - before < full * 0.15
    assert len(others) == 600


@pytest.mark.parametrize("size", [20, 1000, 300_000])
def test_a_node_that_takes_entries_again(size: int) -> None:
    """If the last node is removed, the node before it takes entries again, for each size, in blocks or not."""
    count = 1_000_000 // size + 300
    store, plain = EntryStore(), PyEntryStore()
    choice = random.Random(size)
    for each in (store, plain):
        fill(each, 1, count, size)
    for step in range(60):
        last, begin = plain.last_live_id, count + step * 10 + 1
        gone = range(last, max(last - choice.choice((0, 3, 150)), 1), -1)
        low = choice.randint(1, 3) + plain.first_id
        for each in (store, plain):
            for entry in gone:
                each.remove(entry)
            fill(each, begin, 5, size)
            each.remove_below(low, keep=True)
        assert store.ids() == plain.ids()
        assert store.taken == sum(node.footprint for node in store.nodes())
    twin = store.copy()
    assert [node.pack() for node in store.nodes()] == [node.pack() for node in plain.nodes()]
    assert [node.pack() for node in twin.nodes()] == [node.pack() for node in plain.nodes()]
    del store
    assert twin.reply(0, 1 << 100, 10)[0] == 10
    assert twin.ids() == plain.ids()
