"""Ranges in a report: several replies together give exactly the server's entries."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.client.recorded.ranges import FIRST, LAST, KnownRange, high_of, low_of

IDS = st.tuples(st.integers(0, 6), st.integers(0, 2))
BOUNDS = st.tuples(IDS | st.just(FIRST), IDS | st.just(LAST))
ASKED = st.tuples(BOUNDS, st.none() | st.integers(0, 4), st.booleans())


def served(held: set[tuple[int, int]], asked: Any) -> list[list[object]]:
    """Return the reply of a server with these ids."""
    (low, high), count, falling = asked
    found = sorted((one for one in held if low <= one <= high), reverse=falling)
    return [[b"%d-%d" % one, []] for one in (found if count is None else found[:count])]


@settings(max_examples=300, deadline=None)
@given(st.sets(IDS), st.lists(ASKED, max_size=6), ASKED)
def test_what_is_known_is_what_the_server_says(held: set[tuple[int, int]], learned: list[Any], asked: Any) -> None:
    """A known range gives the server's reply, and every recorded range is known, in either order."""
    known = KnownRange()
    for (low, high), count, falling in learned:
        known.learn(low, high, served(held, ((low, high), count, falling)), count=count, falling=falling)
    known.settle()
    for each in (*learned, asked):
        (low, high), count, falling = each
        found = known.find(low, high, count=count, falling=falling)
        if each in learned and count != 0:
            assert found is not None
        assert found is None or found == served(held, each)


def test_bounds_are_read_as_the_server_reads_them() -> None:
    """Range bounds are read like the server does: without a number, exclusive, and at a millisecond's edge."""
    assert (low_of(b"-"), high_of(b"+")) == (FIRST, LAST)
    assert (low_of(b"5"), high_of(b"5")) == ((5, 0), (5, LAST[1]))
    assert (low_of(b"(5-1"), high_of(b"(5-1")) == ((5, 2), (5, 0))
    assert (low_of(b"(5-%d" % LAST[1]), high_of(b"(5-0")) == ((6, 0), (4, LAST[1]))
