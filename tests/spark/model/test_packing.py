"""Packing of a batch's partitions into tasks: all in order, in no more tasks than the entries justify."""

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.spark.model.offsets import ZERO, Id, Range
from millstream.spark.model.packing import packed


def parts(*rows: int) -> list[Range]:
    """Return one partition of its own stream for each number of entries."""
    return [Range(f"s{at:04}", ZERO, Id(1, 0), 0, each) for at, each in enumerate(rows)]


def sizes(found: list[tuple[Range, ...]]) -> list[int]:
    """Return the number of partitions per task."""
    return [len(each) for each in found]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 300_000), max_size=60), st.none() | st.integers(1, 80), st.none() | st.integers(1, 400_000)
)
def test_tasks_hold_each_part_once_and_keep_to_the_options(
    rows: list[int], least: int | None, most: int | None
) -> None:
    """Tasks contain the partitions in order, as many tasks as requested, and none above the entry limit."""
    given_parts = parts(*rows)
    found = packed(given_parts, least, most)
    assert [part for each in found for part in each] == given_parts
    assert all(found)
    assert len(found) >= min(least or 0, len(rows))
    assert all(len(each) == 1 or sum(part.rows for part in each) <= min(most or 100_000, 100_000) for each in found)


def test_many_small_streams_are_a_few_tasks() -> None:
    """Many small partitions are packed into few tasks: at most eight, unless more are requested."""
    assert sizes(packed(parts(*[1] * 64))) == [64]
    assert sizes(packed(parts(*[3000] * 64))) == [8] * 8
    assert sizes(packed(parts(*[3000] * 64), 16)) == [4] * 16
    assert sizes(packed(parts(*[3000] * 20), 2)) == [10] * 2
    assert sizes(packed(parts(*[3000] * 64), 2)) == [31, 31, 2]  # no task has more than a hundred thousand
    assert sizes(packed(parts(*[1] * 1000))) == [125] * 8
    assert sizes(packed(parts(*[1] * 3), 64)) == [1, 1, 1]


def test_large_parts_stay_alone() -> None:
    """Each partition of a large stream is a task, and small ones are packed into other tasks."""
    assert sizes(packed(parts(100_000, 100_000, 50_000))) == [1, 1, 1]
    assert sizes(packed(parts(10, 90_000, 10, 10))) == [1, 1, 2]


def test_an_entry_limit_holds_for_what_is_put_together() -> None:
    """The entry limit also holds for packed tasks: with a limit of 30, three streams of ten fit in one."""
    assert sizes(packed(parts(10, 10, 10, 10), most=30)) == [3, 1]
    assert sizes(packed(parts(30, 30), most=30)) == [1, 1]
