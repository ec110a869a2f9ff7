"""Sizes of Redis's packed lists, by which a node is full."""

import pytest

from millstream.engine import ids
from millstream.engine.streams import listpack
from millstream.engine.streams.entries import EntryStore


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 2),
        (127, 2),
        (128, 3),
        (-1, 3),
        (-4096, 3),
        (4095, 3),
        (4096, 4),
        (-4097, 4),
        (-32768, 4),
        (32767, 4),
        (32768, 5),
        (-(2**23), 5),
        (2**23 - 1, 5),
        (2**23, 6),
        (2**31 - 1, 6),
        (-(2**31), 6),
        (2**31, 10),
        (-(2**63), 10),
    ],
)
def test_integers_take_the_smallest_of_six_forms(value: int, size: int) -> None:
    """An integer takes 1, 2, 3, 4, 5 or 9 bytes, and one of back length."""
    assert listpack.integer(value) == size
    assert listpack.string(b"%d" % value) == size


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"", 2),
        (b"a", 3),
        (b"007", 5),
        (b"-0", 4),
        (b"+1", 4),
        (b"9223372036854775808", 21),
        (b"x" * 63, 65),
        (b"x" * 64, 67),
        (b"x" * 125, 128),
        (b"x" * 126, 130),
        (b"x" * 4095, 4099),
        (b"x" * 4096, 4103),
        (b"x" * 16377, 16384),
        (b"x" * 16378, 16386),
        (b"1" * 64, 67),
    ],
)
def test_strings_have_a_head_and_a_back_length(data: bytes, size: int) -> None:
    """A string has a head of 1, 2 or 5 bytes and a back length of 1 to 5. Canonical numbers are numbers."""
    assert listpack.string(data) == size


def filled(values: list[bytes], max_bytes: int = 4096, max_entries: int = 100) -> EntryStore:
    store = EntryStore()
    for seq, value in enumerate(values, 1):
        fields = [b"f", value]
        store.append(seq, fields, fresh=store.needs_block(sum(map(len, fields)), max_bytes, max_entries))
    return store


def test_nodes_end_where_redis_ends_them() -> None:
    """Eighty entries of one field with 70 bytes are two nodes, the first of 50, as in redis-server 7.0.15."""
    store = filled([b"x" * 70] * 80)
    assert [node.live for node in store.nodes()] == [50, 30]


def test_a_node_ends_at_its_number_of_entries() -> None:
    """stream-node-max-entries counts tombstones too, and 0 means no limit."""
    assert [node.stored for node in filled([b"v"] * 7, max_entries=3).nodes()] == [3, 3, 1]
    assert filled([b"v"] * 500, max_entries=0, max_bytes=0).node_count == 1
    store = filled([b"v"] * 3, max_entries=3)
    store.remove(2)
    assert store.needs_block(2, 4096, 3)


def test_shared_field_names_take_room_once() -> None:
    """An entry with the field names of the node's first entry is smaller than one with other names."""
    sizes = []
    for name in (b"name", b"nome"):
        store = EntryStore()
        store.append(ids.make(1, 0), [b"name", b"v"], fresh=True)
        store.append(ids.make(1, 1), [name, b"v"], fresh=False)
        sizes += [node.size for node in store.nodes()]
    # the name itself (4 letters, head, back length) and the count of fields
    assert sizes[1] - sizes[0] == 6 + 2


def test_the_counters_at_the_head_grow_with_the_node() -> None:
    """A deletion counts one live entry less and one tombstone more. The counts' digits are part of the size."""
    store = filled([b"v"] * 130, max_entries=0)
    (before,) = [node.size for node in store.nodes()]
    store.remove(1)
    store.remove(2)
    store.remove(3)
    (node,) = store.nodes()
    assert (node.live, node.stored) == (127, 130)
    assert node.size == before - 1  # 130 takes a byte more than 127; 3 as many as 0
