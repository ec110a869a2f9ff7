"""The range that the fence's script looks through for entries in hand."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.client.ranges import order_of
from millstream.worker.settlement.fence import span


@given(st.lists(st.tuples(st.integers(1_700_000_000_000, 1_700_000_000_003), st.integers(0, 1100)), min_size=1))
def test_it_begins_and_ends_with_the_entries(numbers: list[tuple[int, int]]) -> None:
    """No rows of others before and behind are asked for, however many entries came in one millisecond."""
    ids = [f"{time}-{number}".encode() for time, number in numbers]
    assert span(ids) == (min(ids, key=order_of), max(ids, key=order_of))


def test_without_entries_it_is_everything() -> None:
    """A script that is only tried out has a range as well."""
    assert span([]) == (b"-", b"+")
