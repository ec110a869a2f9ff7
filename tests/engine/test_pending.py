"""Pending records by id and by time, compared with a dictionary and a list."""

import gc
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.engine.ids import pack_all
from millstream.engine.streams.group import Group, PyGroup, next_count
from millstream.engine.streams.pending import MAX_DELIVERIES, IdIndex, Pending, PyConsumer, TimeOrder
from support.state import check_group

# (add or remove, id): few ids, so that they come back at the front; or so many that stale ones are swept out
changes = st.one_of(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30),
    st.lists(st.tuples(st.booleans(), st.integers(0, 150)), max_size=300),
)


@given(changes, st.integers(0, 160))
def test_the_index_by_id_is_a_sorted_dictionary(steps: list[tuple[bool, int]], start: int) -> None:
    """After any additions and removals, walks and ends of the index are those of the sorted ids."""
    index = IdIndex()
    plain: dict[int, Pending] = {}
    for add, number in steps:
        if add and number not in plain:
            plain[number] = Pending(number, None, 0, 0)
            index.add(plain[number])
        elif not add and number in plain:
            assert index.pop(number) is plain.pop(number)
        elif not add:
            assert index.pop(number) is None
    ordered = sorted(plain)
    assert len(index) == len(plain)
    assert [record.id for record in index.walk()] == ordered
    assert [record.id for record in index.walk(start)] == [number for number in ordered if number >= start]
    assert (start in index) == (start in plain)
    assert index.get(start) is plain.get(start)
    if ordered:
        assert (index.first(), index.last()) == (ordered[0], ordered[-1])


def test_the_order_forgets_ids_that_left() -> None:
    """The memory of the time order stays bounded however many records were added and removed."""
    index = IdIndex()
    for number in range(10_000):
        index.add(Pending(number, None, 0, 0))
        if number >= 10:
            index.pop(number - 10)
    assert len(index) == 10
    assert len(index._records) == 10  # noqa: SLF001 - forgotten ids show only in the memory taken


moves = st.lists(
    st.tuples(st.sampled_from(["own", "release", "remove"]), st.integers(0, 9), st.integers(0, 20)), max_size=60
)


@given(moves)
def test_time_order_is_the_released_first_then_by_time(steps: list[tuple[str, int, int]]) -> None:
    """Released records come first in order of release, then owned ones by time, and ties by arrival."""
    order = TimeOrder()
    records: dict[int, Pending] = {}
    zone: list[int] = []
    owned: list[tuple[int, int]] = []
    holder = PyConsumer(b"c", 0)
    for what, number, time in steps:
        record = records.pop(number, None)
        if record is not None:
            order.remove(record)
            zone = [one for one in zone if one != number]
            owned = [one for one in owned if one[1] != number]
        if what == "own":
            records[number] = Pending(number, holder, time, 1)
            order.insert(records[number])
            owned.append((time, number))
            owned.sort(key=lambda one: one[0])  # stable, as the list must be
        elif what == "release":
            records[number] = Pending(number, None, 0, 1)
            order.release(records[number])
            zone.append(number)
        assert [one.id for one in order] == zone + [one[1] for one in owned]
        assert order.released == len(zone)


several = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(1, 12), st.integers(0, 3), st.booleans()),
    max_size=20,
)


@settings(deadline=None)
@given(several)
def test_several_records_change_as_they_would_one_by_one(steps: list[tuple[str, int, int, int, bool]]) -> None:
    """Delivering and acknowledging several records at once has the result of doing so one by one, in any order."""
    together, singly = PyGroup(0, 0), PyGroup(0, 0)
    for name, first, count, time, assign in steps:
        found = list(range(first, first + count))
        if time == 3:
            found.reverse()
        if assign:
            together.assign_all(pack_all(found), together.consumer(name.encode(), 0), time, [1] * count)
            for one in found:
                singly.assign(one, singly.consumer(name.encode(), 0), time, 1)
        else:
            assert together.forget_all(pack_all(found)) == sum(singly.forget(one) for one in found)
            if count == 1:
                for group in (together, singly):
                    group.release(first, 1)
        check_group(together)
        assert rows(together) == rows(singly)


def rows(group: PyGroup) -> list[list[object]]:
    """Return a group's records in the order of time, and each consumer's."""
    held = [[one.id for one in group.consumer(name, 0).pending.walk()] for name in (b"a", b"b")]
    return [[(one.id, one.time) for one in group.order], *held]


def test_a_count_stops_at_the_largest_number() -> None:
    """A delivery count stops at the largest number and never overflows."""
    assert next_count(1) == 2
    assert next_count(MAX_DELIVERIES - 1) == MAX_DELIVERIES
    assert next_count(MAX_DELIVERIES) == MAX_DELIVERIES


def test_a_copied_group_is_independent_and_in_the_same_order() -> None:
    """COPY of a group preserves released records, order, owners, counts and times, and shares nothing."""
    group = Group(last_id=5, entries_read=3)
    first = group.consumer(b"a", 10)
    second = group.consumer(b"b", 11)
    group.assign(1, first, 30, 1)
    group.assign(2, second, 20, 2)
    group.assign(3, second, 20, 4)
    group.release(3, 4)
    group.release(1, 1)
    twin = group.copy()
    rows = [(one.id, None if one.consumer is None else one.consumer.name, one.time, one.count) for one in twin.order]
    assert rows == [(3, None, 0, 4), (1, None, 0, 1), (2, b"b", 20, 2)]
    twin.drop_consumer(b"b")
    twin.forget(3)
    assert [one.id for one in group.order] == [3, 1, 2]
    assert [one.id for one in second.pending.walk()] == [2]


def grown(consumers: int, records: int, at_once: int) -> Group:
    """Return a group of ``consumers`` consumers and ``records`` records, ``at_once`` of them with the same time."""
    group = Group(0, 0)
    for number in range(consumers):
        group.consumer(b"consumer-%d" % number, 1)
    names = list(group.consumers)
    for first in range(0, records, at_once):
        now = 1_700_000_000_000 + first
        some = pack_all([now << 64 | number for number in range(at_once)])
        group.assign_all(some, group.consumers[names[first // at_once % consumers]], now, [1] * at_once)
    return group


@pytest.mark.parametrize("shape", [(1, 20_000, 10), (3, 20_000, 1), (3, 20_000, 100), (1000, 0, 1), (500, 500, 1)])
def test_a_group_says_how_much_memory_it_takes(shape: tuple[int, int, int]) -> None:
    """The reported memory of a group is between 75 % and 120 % of the real one, in either core."""
    gc.collect()
    tracemalloc.start()
    try:
        group = grown(*shape)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.75 < group.footprint / taken < 1.2, (group.footprint, taken)
