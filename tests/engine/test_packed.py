"""Packed ids against a list of the same ids."""

from bisect import bisect_left, bisect_right

from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.ids import MAX64, MAX_ID, make, pack_all
from millstream.engine.streams.packed import PackedIds, smallest

halves = st.one_of(st.integers(0, 3), st.integers(254, 258), st.sampled_from([2**16, 2**32, 2**63, MAX64 - 1, MAX64]))
ids = st.builds(make, halves, halves)


@given(st.lists(ids, min_size=1, max_size=20).map(sorted), ids, st.integers(0, 20), st.integers(0, 20))
def test_packed_ids_are_those_of_the_list(numbers: list[int], wanted: int, start: int, stop: int) -> None:
    """Packed ids have the items, slices and index positions of the list, also after a snapshot."""
    for packed in (PackedIds.of(numbers), PackedIds.unpack(pack_all(numbers))):
        assert len(packed) == len(numbers)
        assert packed.pack() == pack_all(numbers)
        assert list(packed) == packed.copy() == [packed[at] for at in range(len(packed))] == numbers
        assert (packed[-1], packed[start:stop]) == (numbers[-1], numbers[start:stop])
        for each in (wanted, *numbers, 0, MAX_ID, MAX_ID + 1):
            assert packed.left(each) == bisect_left(numbers, each)
            assert packed.right(each) == bisect_right(numbers, each)


def test_items_are_as_small_as_will_do() -> None:
    """Packed ids use the smallest item size that fits, one to eight bytes."""
    sizes = [smallest([0, number]).itemsize for number in (0, 255, 256, 65535, 65536, 2**32 - 1, 2**32, MAX64)]
    assert sizes == [1, 1, 2, 2, 4, 4, 8, 8]
