"""The id range in which the fencing script looks for the worker's entries."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.client.ranges import order_of
from millstream.worker.settlement.fence import span


@given(st.lists(st.tuples(st.integers(1_700_000_000_000, 1_700_000_000_003), st.integers(0, 1100)), min_size=1))
def test_it_begins_and_ends_with_the_entries(numbers: list[tuple[int, int]]) -> None:
    """The range begins and ends with the worker's own entries, for any ids within one millisecond."""
    ids = [f"{time}-{number}".encode() for time, number in numbers]
    assert span(ids) == (min(ids, key=order_of), max(ids, key=order_of))


def test_without_entries_it_is_everything() -> None:
    """Without entries the range is everything, so that the script can be tried out."""
    assert span([]) == (b"-", b"+")
