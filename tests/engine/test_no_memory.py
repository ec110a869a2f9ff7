"""The native core reports a failed allocation, and leaves the object unchanged."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from engine.dump_twins import some_node
from engine.group_twins import seen as group_seen
from engine.twins import native, seen
from millstream.engine.ids import pack_all
from support import needs

pytestmark = pytest.mark.usefixtures("alone")
_testcapi = needs.package("_testcapi")  # makes allocations fail

LARGE = [b"f%d" % at for at in range(100)]  # more words than are looked at without asking for memory


def filled() -> Any:
    """Return a store of 15 entries in nodes of three, with tombstones inside and at both ends of nodes."""
    store = native.EntryStore()
    for entry in range(1, 16):
        store.append(entry << 64, [b"f", b"x" * entry * 40], fresh=store.needs_block(2, 0, 3))
    for entry in (1, 5, 9, 13, 15):
        store.remove(entry << 64, keep=True)
    return store


def everything(store: Any) -> list[Any]:
    """Return the content of the store, after a check that it still works."""
    return [[seen(node) for node in store.nodes()], store.length, store.ids(), store.reply(0, 2**128, -1)]


PACKED = [node.pack() for node in filled().nodes()]
STEPS: dict[str, Callable[[Any], object]] = {
    "append": lambda store: store.append(20 << 64, [b"f", b"y" * 9000], fresh=False),
    "append in a new node": lambda store: store.append(20 << 64, [b"g", b"y" * 9000], fresh=True),
    "append many words": lambda store: store.append(20 << 64, LARGE, fresh=False),
    "restore": lambda store: native.EntryStore().extend(PACKED),
    "copy": lambda store: store.copy(),
    "remove": lambda store: store.remove(2 << 64),
    "remove below": lambda store: store.remove_below(8 << 64, keep=False),
    "drop": lambda store: store.drop_emptied(2**128),
    "reach back": lambda store: store.reach_back(14 << 64 | 300),
    "ids": lambda store: store.ids(),
    "reply": lambda store: store.reply(0, 2**128, -1),
    "reply backwards": lambda store: store.reply(0, 2**128, -1, backwards=True),
    "rows": lambda store: list(store.rows(0, 2**128, -1)),
    "wire": lambda store: store.wire(2 << 64),
    "views": lambda store: [seen(node) for node in store.nodes()],
    "make": lambda store: native.EntryStore(),
}

NEED_NOTHING = {"remove", "remove below", "drop"}


def has_memory(allocation: int, change: Callable[[Any], object], of: Any) -> bool:
    """Make a change of which one allocation fails; return False if it raised MemoryError."""
    _testcapi.set_nomemory(allocation, allocation + 1)
    try:
        change(of)
    except MemoryError:
        return False
    finally:
        _testcapi.remove_mem_hooks()
    return True


@pytest.mark.parametrize("what", STEPS)
def test_an_allocation_that_fails_changes_nothing(what: str) -> None:
    """If any allocation fails, the store raises MemoryError and is unchanged, and the next try works."""
    allocation, succeeded = 0, 0
    while succeeded < 5:  # an allocation may fail unnoticed where memory would only have been given back
        store, wanted = filled(), filled()
        before = everything(store)
        STEPS[what](wanted)
        succeeded = succeeded + 1 if has_memory(allocation, STEPS[what], store) else 0
        if not succeeded:
            assert everything(store) == before, allocation
            STEPS[what](store)
        assert everything(store) == everything(wanted), allocation
        allocation += 1
    assert allocation > 5 or what in NEED_NOTHING


def held() -> Any:
    """Return a group of 300 records of two consumers, five records released, in full and partial pieces."""
    group = native.Group(0, 0)
    for at, name in enumerate((b"a", b"b", b"a")):
        ids = range(at * 100 + 1, at * 100 + 101)
        group.assign_all(pack_all(list(ids)), group.consumer(name, 1), 10 * at, [1] * 100)
    for entry in range(1, 6):
        group.release(entry * 9, 2)
    return group


def again(group: Any) -> Any:
    """Return a new group with the content of another."""
    found = native.Group(0, 0)
    for one in group.order:
        owner = one.consumer and found.consumer(one.consumer.name, 1)
        found.restore(one.id, owner, one.time, one.count)
    return found


CHANGES: dict[str, Callable[[Any], object]] = {
    "assign a new one": lambda group: group.assign(1000, group.consumers[b"a"], 99, 1),
    "assign to a full piece": lambda group: group.assign(0, group.consumers[b"b"], 15, 1),
    "assign to another": lambda group: group.assign(50, group.consumers[b"b"], 15, 1),
    "assign what was alone": lambda group: group.assign(9, group.consumer(b"a", 1), 15, 1),
    "assign a new consumer's": lambda group: group.assign(60, group.consumer(b"c", 1), 20, 3),
    "release": lambda group: group.release(50, 1),
    "release a new one": lambda group: group.release(1000, 1),
    "forget": lambda group: group.forget_all(pack_all(list(range(100)))),
    "drop a consumer": lambda group: group.drop_consumer(b"a"),
    "copy": lambda group: group_seen(group.copy(), 0),
    "restore": lambda group: group_seen(again(group), 0),
    "rows": lambda group: (group.pending.rows(-1, own=False), group.pending.idle_rows(0, 999, 999, 0, 99)),
    "claimable": lambda group: group.claimable(STORE, 0, 0, 99, most=99, looks=999),
    "views": lambda group: group_seen(group, 7),
}
STORE = filled()
HELD = held()
PLACES = {b"a": 0, b"b": 1}
ENTRIES, RECORDS = b"".join(native.pack_entries(STORE)), native.pack_records(HELD, PLACES)
NODE = some_node(Random(4), 1)
OWNED = b"".join(entry.to_bytes(16, "big") for entry in range(1, 300))
PENDING = b"".join(entry.to_bytes(16, "big") + b"\5" + b"\0" * 7 + b"\1" for entry in range(1, 300))


def read_records() -> object:
    """Load the records of one group into another."""
    group = native.Group(0, 0)
    native.read_records(RECORDS, 0, group, [group.consumer(name, 1) for name in PLACES])
    return group_seen(group, 0)


def read_pending() -> object:
    """Load Redis's records into a group."""
    group = native.Group(0, 0)
    native.assign_pending(group, native.read_pending(PENDING, 0, 299)[0], [(group.consumer(b"a", 1), OWNED)])
    return group_seen(group, 0)


DUMPS: dict[str, Callable[[], object]] = {
    "pack entries": lambda: native.pack_entries(STORE),
    "pack records": lambda: native.pack_records(HELD, PLACES),
    "read entries": lambda: everything(native.read_entries(ENTRIES, 0)[0]),
    "read records": read_records,
    "read listpacks": lambda: everything(native.read_listpacks([NODE])),
    "read pending": read_pending,
    "decompress": lambda: native.decompress(b"\x02abc" + b"\xe0\xff\x02" * 99, 3 + 264 * 99),
}


@pytest.mark.parametrize("what", DUMPS)
def test_a_dump_that_finds_no_memory_is_not_made(what: str) -> None:
    """If any allocation fails, a dump raises MemoryError, and the next try makes the whole dump."""
    wanted, allocation, succeeded = DUMPS[what](), 0, 0
    while succeeded < 5:
        _testcapi.set_nomemory(allocation, allocation + 1)
        try:
            found = DUMPS[what]()
        except MemoryError:
            succeeded = 0
        else:
            succeeded += 1
        finally:
            _testcapi.remove_mem_hooks()
        assert (found if succeeded else DUMPS[what]()) == wanted, allocation
        allocation += 1 if allocation < 100 else 11


@pytest.mark.parametrize("what", CHANGES)
def test_a_groups_change_that_finds_no_memory_changes_nothing(what: str) -> None:
    """If any allocation fails, a change of a group raises MemoryError and changes no record, and the next try works.

    Beyond the first hundred only each eleventh allocation fails, since those are alike.
    """
    allocation, succeeded = 0, 0
    while succeeded < 5:
        group, wanted = held(), held()
        before = group_seen(group, 0)[2:4]
        CHANGES[what](wanted)
        succeeded = succeeded + 1 if has_memory(allocation, CHANGES[what], group) else 0
        if not succeeded:
            assert group_seen(group, 0)[2:4] == before, allocation
            CHANGES[what](group)
        assert group_seen(group, 0) == group_seen(wanted, 0), allocation
        allocation += 1 if allocation < 100 else 11
