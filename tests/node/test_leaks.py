"""The native core returns all memory that it took, after any use and any failure."""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from engine import group_twins, twins
from millstream.commands.context.config import Config
from millstream.engine.ids import pack_all
from millstream.engine.streams.stream import Stream
from millstream.node.log import codec
from millstream.persistence.frame import MAGIC, FileHeader
from support import needs
from support.inprocess import World
from support.wire import pack

pytestmark = pytest.mark.usefixtures("alone")
_testcapi = needs.package("_testcapi")
native = needs.native_core(at_work=True)
clear_caches: Callable[[], None] = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache  # noqa: SLF001 - sys has no public name for it

HEADER = FileHeader(b"mark", 7, 1, MAGIC)
LINES = (
    *("SET k v", "GET k", "XADD s * a b", "XADD s * c d e f", "XLEN s", "XRANGE s - + COUNT 3", "XREVRANGE s + -"),
    *("XREAD STREAMS s 1-1", "XREADGROUP GROUP g c COUNT 2 STREAMS s >", "XACK s g 2-1", "XADD w * a b", "XDEL s 1-1"),
)
DATA = b"".join(pack(*line.split()) for line in LINES)


def entries(random: Random) -> None:
    """Use stores of entries."""
    pair = twins.Twins()
    for _ in range(150):
        twins.step(pair, random)
    pair.compare(0, 2**128, -1)


def groups(random: Random) -> None:
    """Use groups, their consumers and records."""
    pair = group_twins.GroupTwins()
    for _ in range(150):
        group_twins.step(pair, random)
    pair.compare()


def runs(random: Random) -> None:
    """Use runs of plain commands, and apply their records elsewhere."""
    places = [World(), World()]
    for world in places:
        client = world.client()
        for line in ("XADD s 1-1 a b", "XADD s 2-1 a b", "XADD w 1-1 a b", "XGROUP CREATE s g 0", "SET k v"):
            client.call(*line.split())
        client.call("XGROUP", "CREATECONSUMER", "s", "g", "c")
    runner = native.PlainRunner(Config(), {(0, b"w"): None}, {}, True)
    for _ in range(30):
        at, data = 0, DATA[: random.choice([len(DATA), random.randrange(len(DATA))])]
        while at < len(data):
            run = runner.run(places[0].node.keyspace.databases[0], data, at, 1_700_000_000_000, random.choice([2, 3]))
            if (
                run.record is not None
                and native.apply_plain(places[1].node.keyspace.databases, Stream, run.record, None) < 0
            ):
                for step in codec.unpack(run.record)[1]:
                    places[1].node.keyspace.apply(tuple(step))
            if run.at == at:
                break
            at = run.at


def frames(random: Random) -> None:
    """Write and read frames, also damaged ones."""
    payloads = [random.randbytes(random.choice([0, 7, 900, 5000])) for _ in range(5)]
    for index in range(20):
        data = bytearray(b"".join(native.encode_records(HEADER, payloads, index, index)))
        native.decode_run(HEADER, bytes(data), index)
        data[random.randrange(len(data))] ^= 1
        native.decode_run(HEADER, bytes(data), index)


def filled() -> tuple[Any, Any]:
    """Return a store and a group with content."""
    store, group = native.EntryStore(), native.Group(0, 0)
    for entry in range(1, 20):
        store.append(entry << 64, [b"f", b"v" * entry], fresh=store.needs_block(2, 0, 5))
    group.assign_all(pack_all([entry << 64 for entry in range(1, 20)]), group.consumer(b"a", 1), 5, [1] * 19)
    return store, group


def without_memory(_: Random) -> None:
    """Make calls in which any allocation fails."""
    store, group = filled()
    consumer, nodes = group.consumers[b"a"], [node.pack() for node in store.nodes()]
    data = b"".join(native.encode_records(HEADER, [b"", b"x" * 5000], 3, 3))
    world = World()
    runner = native.PlainRunner(Config(), {}, {}, True)
    calls: list[Callable[[], object]] = [
        lambda: native.encode_records(HEADER, [b"", b"x" * 5000], 3, 3),
        lambda: native.decode_run(HEADER, data, 3),
        lambda: runner.run(world.node.keyspace.databases[0], DATA, 0, 5, 2),
        lambda: store.append(99 << 64, [b"f", b"v" * 9000], fresh=True),
        lambda: store.reply(0, 2**128, -1, backwards=True),
        lambda: [node.entries() for node in store.nodes()],
        lambda: native.EntryStore().extend(nodes),
        store.copy,
        lambda: group.assign(77, consumer, 9, 1),
        lambda: group.claimable(store, 0, 0, 99, most=99, looks=99),
        lambda: list(group.order),
        group.copy,
    ]
    for call in calls:
        for allocation in range(40):
            _testcapi.set_nomemory(allocation, allocation + 1)
            try:
                call()
            except (MemoryError, ValueError):  # the other: the entry is there already
                pass
            finally:
                _testcapi.remove_mem_hooks()


@pytest.mark.parametrize("work", [entries, groups, runs, frames, without_memory])
def test_what_is_done_again_takes_no_more_memory(work: Any) -> None:
    """Repeated use of the native core leaves no block of Python's allocators allocated."""
    kept = []
    tracemalloc.start()
    try:
        for _ in range(4):
            for seed in range(10):
                work(Random(seed))
            gc.collect()
            clear_caches()  # they keep names that were looked up
            kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert kept[3] - kept[1] < 1000, kept
