"""The native core's cold entries: the runner of plain commands, memory that ends, and memory that is given back."""

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.cold_twins import ColdTwins, step
from engine.test_no_memory import has_memory
from engine.test_pack_reader import FilePack, everything, grown
from engine.twins import native
from millstream.commands.context.config import Config
from millstream.engine.cold import cold_records
from millstream.engine.ids import text
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from support import needs
from support.wire import pack as packed

_testcapi = needs.package("_testcapi")  # makes allocations fail
AT_ONCE = 10  # allocations of which one fails, beyond the first hundred


class Plain:
    """A keyspace with a stream, and a runner of plain commands."""

    def __init__(self, entries: Any) -> None:
        self.database = Keyspace().databases[0]
        stream = self.database.keys[b"s"] = Stream(100, 100)
        self.entries = stream.entries = entries
        stream.entries_added = len(entries.ids())
        stream.last_id = entries.last_live_id
        self.group = native.Group(entries.first_id, 1)
        self.group.consumer(b"c", 1)
        stream.add_group(b"g", self.group)
        self.runner = native.PlainRunner(Config(), {}, {}, True)

    def run(self, *words: object) -> bytes | None:
        """Run one command; return its reply, None if it is not plain."""
        run = self.runner.run(self.database, packed(*words), 0, 1_700_000_000_000, 2)
        return None if run.words else bytes(run.replies)


def counted(count: int) -> Any:
    """Return a native store of small ids, with some tombstones."""
    store = native.EntryStore()
    for at in range(1, count + 1):
        store.append(at << 64 | 1, [b"f", b"%d" % at], fresh=store.needs_block(9, 0, 7))
    for at in range(3, count, 11):
        store.remove(at << 64 | 1, keep=True)
    return store


def test_plain_ranges_are_read_from_packs(tmp_path: Path) -> None:
    """XRANGE, XREVRANGE and XREAD of cold entries are plain; what delivers or claims them is not."""
    random = Random(1)
    store = counted(400)
    pack = FilePack(tmp_path / "pack")
    hot, cold = Plain(store), Plain(pack.chill(store, 20))
    ids = store.ids()
    for _ in range(40):
        start, end = (text(each) for each in sorted(random.sample(ids, 2)))
        for words in (
            ("XRANGE", "s", start, end),
            ("XRANGE", "s", start, "+", "COUNT", 5),
            ("XREVRANGE", "s", end, start, "COUNT", 30),
            ("XREAD", "COUNT", 7, "STREAMS", "s", start),
        ):
            reply = hot.run(*words)
            assert reply is not None
            assert cold.run(*words) == reply
    read = ("XREADGROUP", "GROUP", "g", "c", "COUNT", 3, "STREAMS", "s", ">")
    assert cold.run(*read) is None
    assert hot.run(*read) is not None
    cold.group.assign(ids[1], cold.group.consumers[b"c"], 1, 1)
    for words in (("XCLAIM", "s", "g", "c", 0, text(ids[1])), ("XAUTOCLAIM", "s", "g", "c", 0, "0")):
        assert cold.run(*words) is None


def test_plain_commands_leave_misses_and_damage_to_the_ordinary_way(tmp_path: Path) -> None:
    """A range that cannot be read is not plain, and no exception is left; other ranges are."""
    store = counted(200)
    pack = FilePack(tmp_path / "pack", cache=0)
    cold = Plain(pack.chill(store, 20))
    data = pack.path.read_bytes()
    pack.path.write_bytes(data[:100] + b"?" + data[101:])
    assert cold.run("XRANGE", "s", "-", "+") is None
    assert cold.run("XREVRANGE", "s", "+", "-", "COUNT", 1) is not None
    assert cold.run("XRANGE", "s", text(store.ids()[-1]), "+") is not None
    pack.reader.drop(7)
    assert cold.run("XREVRANGE", "s", "+", "-") is None
    assert cold.run("XLEN", "s") == b":%d\r\n" % store.length


def test_ids_between_the_cold_and_the_hot_nodes_take_no_memory(tmp_path: Path) -> None:
    """Claims of ids that are in no node are left to the ordinary way, and leave nothing behind."""
    store = native.EntryStore()
    for at in range(1, 60):
        store.append(2 * at << 64, [b"f", b"x"], fresh=store.needs_block(9, 0, 7))
    cold = Plain(FilePack(tmp_path / "pack").chill(store, 20))
    between = cold.entries.cold_last + 1
    assert between not in cold.entries
    cold.group.assign(between, cold.group.consumers[b"c"], 1, 1)
    words = ("XCLAIM", "s", "g", "c", 0, text(between))
    assert cold.run(*words) is None
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(200):
            cold.run(*words)
        grown_by = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown_by < 10_000


def test_extents_and_holes_are_counted_and_given_back(tmp_path: Path) -> None:
    """The bytes counted for cold entries are those computed again, through all changes; without the store none are."""
    random = Random(3)
    for seed in range(4):
        store = grown(Random(seed), 500)
        pack = FilePack(tmp_path / "pack", cache=0)
        gc.collect()
        before = native.stream_memory()
        cold = pack.chill(store, 15)
        assert native.stream_memory() - before == cold.footprint
        for entry in random.sample(store.ids(), store.length // 2):
            remove(cold, entry, keep=random.random() < 0.5)
            assert native.stream_memory() - before == cold.footprint
        twin = cold.copy()
        assert native.stream_memory() - before == cold.footprint + twin.footprint
        bound = random.choice(store.ids())
        cut(cold, bound)
        twin.punch(twin.plan_delete([], 1 << 128))
        del cold
        assert twin.ids() == sorted(twin.ids())
        del twin
        assert native.stream_memory() == before


def remove(store: Any, entry: int, *, keep: bool) -> None:
    """Remove an entry, by a plan if it is cold."""
    if entry <= store.cold_last:
        store.punch(store.plan_delete([entry], 0) if keep else store.plan_delete([entry]))
    else:
        if store.length - store.cold_live == 1:
            store.warm(*store.plan_warm())
        store.remove(entry, keep=keep)


def cut(store: Any, bound: int) -> None:
    """Trim a store with cold entries."""
    store.cut(bound, store.plan_cut(bound))


def test_each_node_has_as_many_holes_as_entries_died_there(tmp_path: Path) -> None:
    """Nodes are counted right with any holes of one large extent, before and after nodes of it have gone."""
    random, store = Random(4), counted(1500)
    cold = FilePack(tmp_path / "pack").chill(store, 1000)
    assert cold.extent_count == 1
    while store.length > 20:
        some = random.choice(store.ids()[:-10])
        gone = [entry for entry in store.ids()[:-10] if some <= entry and random.random() < 0.7][
            : random.choice((1, 9, 90))
        ]
        cold.punch(cold.plan_delete(gone))
        for entry in gone:
            store.remove(entry)
        assert [node.live for node in cold.nodes()] == [node.live for node in store.nodes()]


STEPS: dict[str, Callable[[Any], object]] = {
    "range": lambda store: store.reply(0, 2**128, -1),
    "back": lambda store: store.reply(0, 2**128, 9, backwards=True),
    "rows": lambda store: list(store.rows()),
    "wire": lambda store: [store.wire(entry) for entry in store.ids()[:9]],
    "nodes": lambda store: [(node.pack(), node.listpack(), list(node.entries())) for node in store.nodes()],
    "dump": native.pack_entries,
    "records": lambda store: list(cold_records(store, 2)),
    "record": lambda store: [store.cold_record(index, 2) for index in range(-1, 9)],
    "extents": lambda store: store.extents(0, 100),
    "pack_sizes": lambda store: store.pack_sizes(),
    "copy": lambda store: store.copy(),
    "remove all below": lambda store: cut(store, 2**128),
    "remove below": lambda store: cut(store, store.ids()[12]),
    "drop": lambda store: store.punch(store.plan_delete([], 2**128)),
    "plan": lambda store: store.plan_delete(store.ids()[:9]),
    "punch": lambda store: store.punch(store.plan_delete(store.ids()[:9])),
    "warm": lambda store: store.warm(*store.plan_warm()),
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("what", STEPS)
def test_an_allocation_that_fails_changes_nothing(what: str, tmp_path: Path) -> None:
    """If any allocation fails, the store raises MemoryError and answers as before, and the next try works."""
    pack = FilePack(tmp_path / "pack", cache=0)
    cold = pack.chill(grown(Random(5), 80), 4)
    remove(cold, cold.ids()[5], keep=True)
    before, wanted = everything(cold), cold.copy()
    STEPS[what](wanted)
    right = everything(wanted)
    allocation, succeeded = 0, 0
    while succeeded < 5:
        store = cold.copy()
        succeeded = succeeded + 1 if has_memory(allocation, STEPS[what], store) else 0
        if not succeeded:
            assert everything(store) == before, allocation
            STEPS[what](store)
        assert everything(store) == right, allocation
        allocation += 1 if allocation < 60 else AT_ONCE


@pytest.mark.usefixtures("alone")
def test_what_is_done_again_takes_no_more_memory() -> None:
    """Repeated use leaves no counted byte behind, whatever misses and fails in between."""
    kept = []
    for _ in range(3):
        for seed in range(3):
            random, twins = Random(seed), ColdTwins(native.EntryStore)
            for at in range(60):
                step(twins, random)
                if at % 9 == 0:
                    twins.compare(0, twins.last, -1)
        del twins
        gc.collect()
        kept.append(native.stream_memory())
    assert kept[0] == kept[1] == kept[2]
