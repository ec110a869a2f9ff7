"""The groups in C do the same as those in Python: step by step, in everything visible.

A longer campaign (`make test-long`): a million steps, see ``support.campaign``.
"""

import gc
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.group_twins import COUNTS, NAMES, NEAR, TIMES, GroupTwins, native, rows, step
from millstream.engine.ids import MAX_ID, pack_all
from support import campaign

numbers = st.one_of(st.integers(0, NEAR), st.sampled_from([MAX_ID, MAX_ID - 1, 1 << 64]))
names, times, counts = st.sampled_from(NAMES), st.sampled_from(TIMES), st.sampled_from(COUNTS)


class GroupTwinMachine(RuleBasedStateMachine):
    """Both groups, given the same steps, which hypothesis shrinks on a difference."""

    def __init__(self) -> None:
        super().__init__()
        self.twins = GroupTwins()

    @rule(entry=numbers, name=names, time=times, count=counts)
    def assign(self, entry: int, name: bytes, time: int, count: int) -> None:
        self.twins.assign(entry, name, time, count)

    @rule(entries=st.lists(numbers, max_size=8), name=names, time=times, count=counts)
    def assign_all(self, entries: list[int], name: bytes, time: int, count: int) -> None:
        self.twins.assign_all(entries, name, time, count)

    @rule(entry=numbers, count=counts)
    def release(self, entry: int, count: int) -> None:
        self.twins.both("release", entry, count)

    @rule(entry=st.one_of(numbers, st.sampled_from([-1, MAX_ID + 1])))
    def forget(self, entry: int) -> None:
        self.twins.both("forget", entry)

    @rule(entries=st.lists(numbers, max_size=8))
    def forget_all(self, entries: list[int]) -> None:
        self.twins.both("forget_all", pack_all(entries))

    @rule(name=names)
    def drop_consumer(self, name: bytes) -> None:
        self.twins.both("drop_consumer", name)

    @rule()
    def restore(self) -> None:
        self.twins.restore()

    @rule()
    def copy(self) -> None:
        self.twins.copy()

    @rule(start=st.one_of(numbers, st.just(MAX_ID + 1)), end=st.one_of(numbers, st.just(-1)), count=st.integers(0, 4))
    def compare(self, start: int, end: int, count: int) -> None:
        self.twins.compare(start, end, count)

    @invariant()
    def equal(self) -> None:
        self.twins.compare()


GroupTwinMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestGroupTwins = GroupTwinMachine.TestCase


def _go(seed: int, steps: int, near: int) -> int:
    random = Random(seed)
    twins = GroupTwins()
    for number in range(steps):
        step(twins, random, near)
        if number % max(near // 8, 1) == 0:
            twins.compare(random.randrange(near), random.randrange(near), random.randrange(5))
    twins.compare()
    return steps


@pytest.mark.parametrize("near", [10, 3_000])
def test_groups_are_equal_after_random_steps(near: int) -> None:
    """Groups of both cores are equal after random steps on few ids, and on so many that index pieces split."""
    _go(1, 3_000, near)


def ten_thousand_steps(seed: int) -> int:
    """Run a piece of the campaign."""
    return sum(_go(seed * 100 + at, 1000, (10, 40, 300, 3_000)[at % 4]) for at in range(10))


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_million_random_steps_leave_equal_groups() -> None:
    """The groups of both cores are equal after a million random steps."""
    campaign.run("group-twins", ten_thousand_steps, range(1, 101), unit="steps")


def test_pieces_of_the_index_come_and_go_in_any_order() -> None:
    """A group's index is right after thousands of records are added in any order and removed anywhere."""
    random = Random(2)
    twins = GroupTwins()
    for order in ("up", "down", "mixed"):
        entries = list(range(2_000))
        if order != "up":
            entries = entries[::-1] if order == "down" else random.sample(entries, len(entries))
        twins.assign_all(entries, b"a", 7, 1)
        twins.compare(1_000)
        for entry in random.sample(entries, 1_990):
            twins.both("forget", entry)
        twins.compare(1_000)


def test_records_and_views_outlive_their_group() -> None:
    """Objects that Python still holds after a group is freed are unchanged or empty, and nothing is freed twice."""
    group = native.Group(0, 0)
    consumer = group.consumer(b"c", 1)
    group.assign_all(pack_all([1, 2, 3]), consumer, 5, [1, 1, 1])
    record, own, walk = group.pending.get(2), consumer.pending, consumer.pending.walk()
    everything, order = group.pending, iter(group.order)
    del group
    gc.collect()
    assert rows(everything.walk()) == rows(order) == [(1, b"c", 5, 1), (2, b"c", 5, 1), (3, b"c", 5, 1)]
    del everything, order
    gc.collect()
    assert (record.id, record.consumer, record.time, record.count) == (2, consumer, 5, 1)
    assert (len(own), list(own.walk())) == (0, [])
    with pytest.raises(RuntimeError, match="changed while"):
        next(walk)


def test_a_walk_notices_a_change() -> None:
    """A walk over a group that changes meanwhile raises an error, and reads no freed record."""
    group = native.Group(0, 0)
    group.assign_all(pack_all([1, 2, 3]), group.consumer(b"c", 1), 5, [1, 1, 1])
    for begin in (group.pending.walk, group.order.__iter__, group.consumers[b"c"].pending.walk):
        walk = begin()
        next(walk)
        group.forget(2)
        with pytest.raises(RuntimeError, match="changed while"):
            next(walk)
        group.assign(2, group.consumers[b"c"], 5, 1)


def test_what_is_no_argument_is_refused() -> None:
    """An argument of the wrong type or size is an error, changes nothing and reads nothing out of bounds."""
    group, other = native.Group(0, 0), native.Group(0, 0)
    consumer = group.consumer(b"c", 1)
    group.assign(1, consumer, 5, 1)
    for call in (
        lambda: group.assign(2, b"c", 5, 1),
        lambda: group.assign(2, consumer, 5),
        lambda: group.assign("2", consumer, 5, 1),
        lambda: group.assign(2, consumer, 2**63, 1),
        lambda: group.assign(MAX_ID + 1, consumer, 5, 1),
        lambda: group.assign_all(b"123", consumer, 5, []),
        lambda: group.assign_all(pack_all([2]), consumer, 5, []),
        lambda: group.assign_all(pack_all([2]), consumer, 5, ["1"]),
        lambda: group.forget_all(b"1"),
        lambda: group.release(2, None),
        lambda: group.claimable(None, 0, 0, 0, most=1, looks=1),
        lambda: other.assign(1, consumer, 5, 1),
        lambda: native.Consumer("c", 1),
        lambda: native.Group(-1, 0),
    ):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            call()
    assert rows(group.order) == [(1, b"c", 5, 1)]
    assert rows(other.order) == []
