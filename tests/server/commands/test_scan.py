"""SCAN's promise, over any mixture of walks and changes."""

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.engine import scanning
from millstream.engine.scanning import ScanOrder, place
from millstream.server.thread import ServerThread
from support.inprocess import World
from support.wire import Wire

KEYS = [b"%d" % number for number in range(60)]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(KEYS)),
        st.tuples(st.just("drop"), st.sampled_from(KEYS)),
        st.tuples(st.just("walk"), st.integers(0, 2), st.integers(1, 7)),
        st.tuples(st.just("begin"), st.integers(0, 2)),
    ),
    max_size=120,
)


class Walk:
    """One of three simultaneous walks: the keys that it must still return, and those that it returned."""

    def __init__(self, keys: dict[bytes, None]) -> None:
        self.cursor = 0
        self.begun = False
        self.lasting = set(keys)
        self.seen: set[bytes] = set()


@given(st.sets(st.sampled_from(KEYS)), steps, st.sampled_from([scanning.SLICE, 20, 7]), st.sampled_from([2**30, 3]))
@settings(max_examples=600, deadline=None)
def test_what_lasts_is_seen(first: set[bytes], changes: list[tuple[object, ...]], at_once: int, numbers: int) -> None:
    """SCAN returns a key that exists from its first step to its last, whatever other clients change meanwhile.

    That holds with any number of keys sorted at one step, and when the internal numbering starts again.
    """
    walked(ScanOrder(at_once, numbers), first, changes)


def walked(order: ScanOrder, first: set[bytes], changes: list[tuple[object, ...]]) -> None:
    """Run three walks with changes between their steps."""
    keys = dict.fromkeys(sorted(first))
    walks = [Walk(keys) for _ in range(3)]

    def step(walk: Walk, count: int) -> None:
        if not walk.begun:
            walk.begun, walk.lasting, walk.seen = True, set(keys), set()
        walk.cursor, found = order.step(keys, walk.cursor, count)
        walk.seen.update(found)
        if walk.cursor == 0:
            assert walk.lasting <= walk.seen
            walk.begun = False

    for change in changes:
        match change:
            case "add", bytes(key):
                keys[key] = None
            case "drop", bytes(key):
                keys.pop(key, None)
                for walk in walks:
                    walk.lasting.discard(key)
            case "walk", int(number), int(count):
                step(walks[number], count)
            case "begin", int(number):
                walks[number] = Walk(keys)
    for walk in walks:
        while walk.begun:
            step(walk, 5)


def test_keys_that_share_a_place() -> None:
    """Keys with the same checksum are returned in one step, since a cursor cannot stand between them."""
    twins = [b"plumless", b"buckeroo"]
    assert place(twins[0]) == place(twins[1])
    keys = dict.fromkeys([*KEYS, *twins])
    order, cursor, seen = ScanOrder(), 0, []
    while True:
        cursor, found = order.step(keys, cursor, 1)
        seen += found
        if not cursor:
            break
    assert sorted(seen) == sorted(keys)


def test_walk_goes_on_after_a_restart(tmp_path: object) -> None:
    """A SCAN cursor stays valid across a restart on the same data."""
    with ServerThread(str(tmp_path)) as server, Wire(server.url) as wire:
        wire.ask("MSET", *[word for key in KEYS for word in (key, b"v")])
        cursor, seen = wire.ask("SCAN", 0, "COUNT", 20)
    with ServerThread(str(tmp_path)) as server, Wire(server.url) as wire:
        while cursor != b"0":
            cursor, more = wire.ask("SCAN", cursor, "COUNT", 7)
            seen += more
    assert sorted(seen) == sorted(KEYS)


def test_filters_and_databases() -> None:
    """MATCH and TYPE filter keys, expired keys are left out, and swapped databases are scanned as they are."""
    with ServerThread() as server, Wire(server.url) as wire:
        wire.ask("MSET", "a1", 1, "a2", 2, "b1", 3)
        wire.ask("XADD", "a3", "1-1", "f", "v")
        wire.ask("MSETEX", 1, "a4", 1, "PXAT", 1)
        assert sorted(wire.ask("SCAN", 0, "COUNT", 100, "MATCH", "a*")[1]) == [b"a1", b"a2", b"a3"]
        assert wire.ask("SCAN", 0, "COUNT", 100, "TYPE", "stream")[1] == [b"a3"]
        cursor, _ = wire.ask("SCAN", 0, "COUNT", 1)
        wire.ask("SWAPDB", 0, 1)
        assert wire.ask("SCAN", cursor) == [b"0", []]


def test_a_walk_that_was_given_up_keeps_nothing_in_memory() -> None:
    """Keys that FLUSHALL deletes use no memory, even if a client had begun to scan them."""
    world = World()
    client, base = world.client(), world.node.keyspace.databases[0]
    client.call("MSET", *[word for key in KEYS for word in (key, b"v")])
    assert client.call("SCAN", 0)[0] != b"0"
    keys = base.keys
    client.call("FLUSHALL")
    alone: dict[bytes, bytes] = {}
    assert sys.getrefcount(keys) == sys.getrefcount(alone)  # this function has it, and nothing else


def test_a_walk_begins_soon_however_many_keys_there_are() -> None:
    """Each SCAN step sorts a fixed number of keys.

    None are returned before all are sorted, and COUNT has an upper limit.
    """
    keys = dict.fromkeys(b"%d" % number for number in range(3 * scanning.SLICE))
    order, cursor, seen, sizes = ScanOrder(), 0, [], []
    while True:
        cursor, found = order.step(keys, cursor, 10**9)
        seen += found
        sizes.append(len(found))
        if not cursor:
            break
    assert sizes == [0, 0] + [scanning.MOST] * (len(keys) // scanning.MOST)
    assert sorted(seen) == sorted(keys)
