"""The division of partitions among members: each partition has an owner, and no member takes another's."""

import pytest

from millstream.worker.partitions.division import FREE_LOOKS, Division, share


@pytest.mark.parametrize("number", [1, 3, 16, 64])
@pytest.mark.parametrize("members", [1, 2, 5, 80])
def test_shares_are_even_and_cover_all(number: int, members: int) -> None:
    """The shares of all members cover all partitions and differ by at most one."""
    names = [f"m{one}" for one in range(members)]
    shares = [share(number, names, one) for one in names]
    assert sum(shares) == number
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("members", [1, 2, 3, 7])
def test_members_that_join_one_by_one_end_with_their_shares(members: int) -> None:
    """Members that join one by one reach equal shares after some rounds, and then no partition moves."""
    owned: dict[str, set[int]] = {}
    divisions: dict[str, Division] = {}
    for round_ in range(members + 6):
        if round_ < members:
            owned[f"m{round_}"], divisions[f"m{round_}"] = set(), Division(range(16), f"m{round_}")
        for me, division in divisions.items():
            mine = owned[me]
            for _ in range(division.surplus(owned, mine)):
                mine.pop()
            for one in division.wanted(owned, mine):
                assert not any(one in other for other in owned.values())
                mine.add(one)
    assert sorted(one for each in owned.values() for one in each) == list(range(16))
    assert all(len(each) == share(16, owned, me) for me, each in owned.items())


def test_what_nobody_takes_is_taken_beyond_the_share() -> None:
    """The share of a member that takes nothing stays free for three looks at most; then other members take it."""
    division = Division(range(8), "me")
    mine: set[int] = set(division.wanted({"me": (), "frozen": ()}, ()))
    assert len(mine) == 4
    for _ in range(FREE_LOOKS - 2):
        assert division.wanted({"me": mine, "frozen": ()}, mine) == []
    assert {*mine, *division.wanted({"me": mine, "frozen": ()}, mine)} == set(range(8))
    # One that was taken and is free again begins to count anew
    assert division.wanted({"me": range(4), "other": range(4, 8)}, range(4)) == []
    assert division.wanted({"me": range(4), "other": range(4, 7)}, range(4)) == []
