"""Numbers in order, beside a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.streams.ordered import Ordered


class Short(Ordered):
    """In pieces so short that they split and vanish."""

    __slots__ = ()
    PIECE = 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=200), st.integers(-1, 41), st.integers(0, 40))
def test_it_is_a_sorted_list_of_different_numbers(steps: list[tuple[bool, int]], bound: int, more: int) -> None:
    """Walks, ends and neighbours after any additions and removals, with pieces so short that they split and vanish."""
    plain = set(range(0, more, 3))
    numbers = Short(sorted(plain))
    for add, number in steps:
        if add and number not in plain:
            assert numbers.add(number) == max((each for each in plain if each < number), default=None)
            plain.add(number)
        elif not add and number in plain:
            plain.remove(number)
            numbers.remove(number)
        assert list(numbers.walk(0)) == sorted(plain)
    assert len(numbers) == len(plain)
    assert list(numbers.walk(bound)) == [number for number in sorted(plain) if number >= bound]
    if plain:
        assert (numbers.first(), numbers.last()) == (min(plain), max(plain))
    assert all(0 < len(piece) < 4 for piece in numbers._pieces)
