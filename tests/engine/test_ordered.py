"""A sorted mapping from numbers, compared with a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.streams.ordered import Ordered


class Short(Ordered[str]):
    """Mapping in pieces so short that they split and vanish."""

    __slots__ = ()
    PIECE = 2


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "change", "remove", "several", "first"]), st.integers(0, 40)), max_size=200
    ),
    st.integers(-1, 41),
    st.integers(0, 40),
)
def test_it_is_a_sorted_dictionary(steps: list[tuple[str, int]], bound: int, more: int) -> None:
    """Walks, ends and neighbours of the mapping are right after any changes that split and remove its pieces."""
    plain = {number: f"{number}" for number in range(0, more, 3)}
    numbers = Short()
    numbers.fill(list(plain), list(plain.values()))
    for what, number in steps:
        assert numbers.get(number) == plain.get(number)
        if what == "remove":
            assert numbers.pop(number) == plain.pop(number, None)
        elif what == "several":
            last = max(plain, default=0)
            added = list(range(last + 1, last + 2 + number % 5))
            numbers.extend(added, [f"{each}" for each in added])
            plain.update({each: f"{each}" for each in added})
        elif what == "first":
            front = sorted(plain)[: number % 3 + 1]
            if front and numbers.begins_with(front):
                assert numbers.pop_first(len(front)) == [plain.pop(each) for each in front]
            assert not numbers.begins_with([*front, 10**9])
        elif what == "change" or number not in plain:
            before = max((each for each in plain if each <= number), default=None)
            assert numbers.put(number, f"{number} {what}") == (None if before is None else plain[before])
            plain[number] = f"{number} {what}"
        assert list(numbers.walk(0)) == [plain[each] for each in sorted(plain)]
    assert len(numbers) == len(plain)
    assert list(numbers.walk(bound)) == [plain[number] for number in sorted(plain) if number >= bound]
    if plain:
        assert (numbers.first(), numbers.last()) == (min(plain), max(plain))
    assert all(0 < len(piece) < 4 for piece in numbers._pieces)  # noqa: SLF001 - an empty or long piece shows only in the time taken
