"""The store of entries against a dictionary: ranges both ways, deletions, trimming, copies, shared bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.engine.ids import make, pack, pack_all
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.entries import EntryStore, PyEntryStore
from millstream.engine.streams.nodes import encode_entry
from millstream.engine.streams.stream import Stream
from support.state import check_entries

FIELDS = [b"f", b"v"]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["remove", "remove and keep"]), st.integers(0, 60)),
        st.tuples(st.sampled_from(["below", "below and keep", "emptied", "back"]), st.integers(0, 60)),
    ),
    max_size=50,
)


@settings(deadline=None)
@given(steps, st.integers(1, 5), st.integers(0, 60), st.integers(0, 60), st.integers(-1, 4))
def test_the_store_is_a_sorted_dictionary(
    changes: list[tuple[str, int]], node: int, start: int, end: int, count: int
) -> None:
    """A range has the live entries in order, both ways, with their bytes, after any additions, deletions and trims."""
    store = EntryStore()
    alive: list[int] = []
    last = 0
    for what, number in changes:
        if what == "add":
            last += number
            store.append(last, FIELDS, fresh=store.needs_block(2, 0, node))
            alive.append(last)
        elif what.startswith("remove"):
            assert store.remove(number, keep="keep" in what) == (number in alive)
            alive = [one for one in alive if one != number]
        elif what.startswith("below"):
            assert store.remove_below(number, keep="keep" in what) == sum(one < number for one in alive)
            alive = [one for one in alive if one >= number]
        elif what == "emptied":
            store.drop_emptied(number)
            assert all(node.live for node in store.nodes() if node.last < number)
        else:
            last = min(last, max([number, *alive]))
            store.reach_back(last)
        check_entries(store)
        assert store.ids() == alive
    limit = None if count < 0 else count
    inside = [one for one in alive if start <= one <= end]
    assert list(store.ids(start, end, count)) == inside[:limit]
    for backwards, shown in ((False, inside[:limit]), (True, inside[::-1][:limit])):
        number, buffers, at_the_end = store.reply(start, end, count, backwards=backwards)
        assert (number, at_the_end) == (len(shown), shown[-1] if shown else 0)
        assert b"".join(buffers) == b"".join(encode_entry(one, FIELDS) for one in shown)
    rows = [(one, bytes(row)) for one, row in store.rows(start, end, count)]
    assert rows == [(one, encode_entry(one, FIELDS)) for one in inside[:limit]]
    for number in range(62):
        assert (number in store) == (number in alive)
        assert (store.wire(number) is None) == (number not in alive)


def test_an_entry_is_stored_as_it_is_replied() -> None:
    """An entry is stored in the bytes of its reply: two elements, the id and the flat list of fields and values."""
    assert encode_entry(make(15, 3), [b"a", b"", b"b", b"\r\n"]) == (
        b"*2\r\n$4\r\n15-3\r\n*4\r\n$1\r\na\r\n$0\r\n\r\n$1\r\nb\r\n$2\r\n\r\n\r\n"
    )


def test_a_slice_of_the_open_block_does_not_change_with_it() -> None:
    """A reply that is still being sent neither sees entries added later nor delays them."""
    store = EntryStore()
    store.append(1, FIELDS, fresh=True)
    number, (shown,), last = store.reply(0, 9)
    store.append(2, FIELDS, fresh=False)
    assert (number, bytes(shown), last) == (1, encode_entry(1, FIELDS), 1)


def test_a_sealed_block_is_shared_not_copied() -> None:
    """In the Python core a reply shares the bytes of a full node without a copy."""
    store = PyEntryStore()
    store.append(1, [b"f", b"x" * 2000], fresh=True)
    store.append(2, FIELDS, fresh=True)
    assert store.reply(0, 1)[1][0] is store.reply(0, 1)[1][0]


def test_a_copy_is_independent() -> None:
    """A change to a copy does not change the original."""
    store = EntryStore()
    for number in range(1, 8):
        store.append(number, FIELDS, fresh=store.needs_block(2, 0, 3))
    twin = store.copy()
    twin.remove_below(5, keep=True)
    twin.append(9, FIELDS, fresh=False)
    store.append(8, FIELDS, fresh=False)
    assert store.ids() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(twin.ids()) == [5, 6, 7, 9]
    check_entries(store)
    check_entries(twin)


def test_a_block_that_is_last_again_takes_entries_again() -> None:
    """If the newest node loses its only entry, the node before it takes the next entry, as in Redis."""
    store = EntryStore()
    store.append(1, FIELDS, fresh=store.needs_block(2, 100, 100))
    store.append(2, [b"f", b"x" * 90], fresh=store.needs_block(91, 100, 100))
    shared = store.wire(1)
    assert store.node_count == 2
    store.remove(2)
    assert not store.needs_block(2, 100, 100)
    store.append(3, FIELDS, fresh=False)
    check_entries(store)
    assert store.ids() == [1, 3]
    assert shared == encode_entry(1, FIELDS)


def test_ids_given_again_are_found_behind_the_tombstones_of_their_first_holders() -> None:
    """An entry added after XSETID moved the last id back behind removed entries can be read and deleted."""
    store = EntryStore()
    for number in range(1, 5):
        store.append(number, FIELDS, fresh=number == 1)
    store.remove(3)
    store.remove(4)
    size, held = next((node.size, node.stored) for node in store.nodes())
    store.reach_back(2)
    assert [(node.size, node.stored) for node in store.nodes()] == [(size, held)], "the node is as full as before"
    store.append(3, FIELDS, fresh=False)
    check_entries(store)
    assert list(store.ids(2, 3)) == [2, 3]
    assert store.remove(3)
    assert 2 in store


def test_a_block_that_lies_above_the_last_id_goes() -> None:
    """A node that has only tombstones above the last id is removed, since later entries would have lower ids."""
    store = EntryStore()
    for number in range(1, 5):
        store.append(number, FIELDS, fresh=number % 2 == 1)
    store.remove(3)
    store.remove(4, keep=True)
    assert (store.node_count, store.last_live_id) == (2, 2)
    store.reach_back(2)
    store.append(3, FIELDS, fresh=False)
    check_entries(store)
    assert store.node_count == 1


@pytest.mark.parametrize(
    ("step", "nodes"),
    [
        (("xtrim", 0, b"s", pack(3), False), 0),
        (("xtrim", 0, b"s", pack(3), False, True), 1),
        (("xdrop", 0, b"s", pack_all([1, 2])), 0),
        (("xdrop", 0, b"s", pack_all([1, 2]), pack(3)), 1),
        (("xdrop", 0, b"s", pack_all([1, 2]), pack(4)), 0),
    ],
)
def test_records_of_trimming_say_whether_an_emptied_node_stays(step: tuple[object, ...], nodes: int) -> None:
    """Log records of trimming without a flag for emptied nodes, from older versions, remove the emptied node."""
    space = Keyspace()
    space.apply(("xnew", 0, b"s", 100, 100))
    for number in range(1, 4):
        space.apply(("xadd", 0, b"s", pack(number), FIELDS, number == 1, None))
    space.apply(("xdel", 0, b"s", pack_all([3])))
    assert space.apply(step) == 2
    stream = space.databases[0].keys[b"s"]
    assert isinstance(stream, Stream)
    assert stream.entries.node_count == nodes
    check_entries(stream.entries)
