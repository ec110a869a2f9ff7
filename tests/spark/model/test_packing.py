"""Which parts of a batch one task reads: all of them in their order, in no more tasks than they are worth."""

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.spark.model.offsets import ZERO, Id, Range
from millstream.spark.model.packing import packed


def parts(*rows: int) -> list[Range]:
    """A part of a stream of its own for each number of entries."""
    return [Range(f"s{at:04}", ZERO, Id(1, 0), 0, each) for at, each in enumerate(rows)]


def sizes(found: list[tuple[Range, ...]]) -> list[int]:
    """The number of parts of each task."""
    return [len(each) for each in found]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 300_000), max_size=60), st.none() | st.integers(1, 80), st.none() | st.integers(1, 400_000)
)
def test_tasks_hold_each_part_once_and_keep_to_the_options(
    rows: list[int], least: int | None, most: int | None
) -> None:
    """Tasks one after the other are the parts as they came, as many as are wanted, and none with too many entries."""
    given_parts = parts(*rows)
    found = packed(given_parts, least, most)
    assert [part for each in found for part in each] == given_parts
    assert all(found)
    assert len(found) >= min(least or 0, len(rows))
    assert all(len(each) == 1 or sum(part.rows for part in each) <= min(most or 100_000, 100_000) for each in found)


def test_many_small_streams_are_a_few_tasks() -> None:
    """A task is made for what is worth one, and with many keys there are eight, or as many as are wanted."""
    assert sizes(packed(parts(*[1] * 64))) == [64]
    assert sizes(packed(parts(*[3000] * 64))) == [8] * 8
    assert sizes(packed(parts(*[3000] * 64), 16)) == [4] * 16
    assert sizes(packed(parts(*[3000] * 20), 2)) == [10] * 2
    assert sizes(packed(parts(*[3000] * 64), 2)) == [31, 31, 2]  # no task has more than a hundred thousand
    assert sizes(packed(parts(*[1] * 1000))) == [125] * 8
    assert sizes(packed(parts(*[1] * 3), 64)) == [1, 1, 1]


def test_large_parts_stay_alone() -> None:
    """The parts of a large stream are a task each; small ones are not read by the same task."""
    assert sizes(packed(parts(100_000, 100_000, 50_000))) == [1, 1, 1]
    assert sizes(packed(parts(10, 90_000, 10, 10))) == [1, 1, 2]


def test_an_entry_limit_holds_for_what_is_put_together() -> None:
    """With at most thirty entries a task, three streams of ten are one and the fourth is another."""
    assert sizes(packed(parts(10, 10, 10, 10), most=30)) == [3, 1]
    assert sizes(packed(parts(30, 30), most=30)) == [1, 1]
