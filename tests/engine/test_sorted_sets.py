"""Sorted sets: many changes together have the result of the same changes one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.engine.collections import ZSetValue

members = st.binary(min_size=1, max_size=2)
scores = st.sampled_from([0.0, -0.0, 1.0, 2.5, float("inf"), float("-inf")])
changes = st.lists(st.one_of(st.dictionaries(members, scores), st.sets(members)), max_size=8)


def apply(changes: list[dict[bytes, float] | set[bytes]], together: int) -> ZSetValue:
    """Return a sorted set after these changes; ``together`` changes or more are made in one step."""
    value = type("Set", (ZSetValue,), {"__slots__": (), "TOGETHER": together})()
    for change in changes:
        if isinstance(change, dict):
            value.put_all(change)
        else:
            value.drop_all([member for member in sorted(change) if member in value.scores])
    assert isinstance(value, ZSetValue)
    return value


@given(changes)
@settings(max_examples=500, deadline=None)
def test_together_is_as_one_by_one(changes: list[dict[bytes, float] | set[bytes]]) -> None:
    """Changes together and one by one give the same members, scores, order and encoding."""
    value = apply(changes, 1)
    assert value.content() == apply(changes, 10**9).content()
    assert [value.rank(member) for _, member in value.between(0, len(value))] == list(range(len(value)))
