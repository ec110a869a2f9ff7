"""A lag is a number, or unknown with reason, bounds and repair, on a real Redis and on Millstream."""

from typing import Any

import pytest
import redis

from millstream.ops.streams import reading as streams
from millstream.ops.streams.reading import read_group
from millstream.ops.streams.status import GroupPosition, GroupStatus, StreamStatus, lag_of
from ops.conftest import Look

KEY, NAME = "orders", "billing"


def fill(client: redis.Redis, entries: int, delivered: int) -> None:
    """Add entries 1-0 to n-0, some of them delivered to a group."""
    for number in range(1, entries + 1):
        client.xadd(KEY, {"n": number}, id=f"{number}-0")
    client.xgroup_create(KEY, NAME, id="0")
    client.xreadgroup(NAME, "c1", {KEY: ">"}, count=delivered)


def group(look: Look[Any], count: int = 0) -> GroupStatus:
    """Return the group with its lag counted."""
    found: GroupStatus = look(lambda line: read_group(line, KEY, NAME, count=count)).group
    return found


@pytest.mark.realserver
@pytest.mark.parametrize(("deleted", "known"), [("2-0", True), ("3-0", False), ("7-0", False)])
def test_a_deleted_entry_may_make_a_lag_unknown(
    client: redis.Redis, look: Look[Any], deleted: str, known: bool
) -> None:
    """A deletion at or after the group's position makes the lag unknown.

    The bounds are right, and no repair is offered.
    """
    fill(client, 10, 3)
    client.xdel(KEY, deleted)
    lag = group(look).lag
    truth = len(client.xrange(KEY, "(3-0", "+"))
    assert (lag.known, lag.reason) == (known, None if known else "deleted")
    assert lag.at_least <= truth <= (lag.at_most or 0)
    if not known:
        found = group(look, 1000).lag
        assert (found.entries, found.reason, found.repair) == (truth, "deleted", None)
        assert "known again" in found.repair_note


@pytest.mark.realserver
@pytest.mark.parametrize("cause", ["set", "deleted before"])
def test_the_repairing_command_repairs(client: redis.Redis, look: Look[Any], cause: str) -> None:
    """The proposed repair makes the server report the counted lag, and leaves the group's position."""
    fill(client, 10, 3)
    if cause == "set":
        client.xgroup_setid(KEY, NAME, "4-0")
    else:
        client.xdel(KEY, "5-0")
        client.xreadgroup(NAME, "c1", {KEY: ">"}, count=3)
    lost = group(look).lag
    assert (lost.entries, lost.reason) == (None, "position-set")
    assert ("behind a deleted entry" in lost.why) == (cause == "deleted before")
    assert lost.at_least <= len(client.xrange(KEY, f"({group(look).last_delivered_id}", "+")) <= (lost.at_most or 0)
    before = group(look, 1000)
    assert before.lag.repair is not None
    client.execute_command(*before.lag.repair)
    after = group(look)
    assert (after.lag.server, after.lag.entries, after.lag.reason) == (before.lag.entries, before.lag.entries, None)
    assert after.last_delivered_id == before.last_delivered_id


@pytest.mark.realserver
def test_counting_ends_where_it_is_told_to(client: redis.Redis, look: Look[Any]) -> None:
    """A count over its limit gives a lower bound, and the lag stays unknown."""
    fill(client, 450, 3)
    client.xgroup_setid(KEY, NAME, "4-0")
    lag = group(look, 200).lag
    assert (lag.entries, lag.at_least, lag.at_most, lag.repair) == (None, 200, 449, None)
    assert "--count" in lag.repair_note
    assert group(look, 1000).lag.entries == 446


@pytest.mark.realserver
def test_ids_decide_where_the_server_cannot(client: redis.Redis, look: Look[Any]) -> None:
    """If the server reports no lag, ids decide: none left at the last entry, all left before the first."""
    fill(client, 5, 1)
    client.xgroup_setid(KEY, NAME, "5-0")
    assert group(look).lag.entries == 0
    client.xtrim(KEY, minid="3-0", approximate=False)
    client.xgroup_setid(KEY, NAME, "2-0")
    assert group(look).lag.entries == 3
    client.xtrim(KEY, maxlen=0, approximate=False)
    assert group(look).lag.entries == 0


def at(**facts: Any) -> GroupPosition:
    """Build a group at entry 5-0 of ten."""
    names = {"length": 10, "last_id": "10-0", "first_entry_id": "1-0", "last_entry_id": "10-0"}
    names |= {"entries_added": 10, "max_deleted_id": "0-0"}
    stream = StreamStatus("s", **{name: facts.pop(name, usual) for name, usual in names.items()})
    return GroupPosition(stream, **{"delivered": "5-0", "read": 5, "lag": 5, **facts})


def test_a_server_without_counters_leaves_bounds() -> None:
    """Without the server's counters, as on Redis 6.2, the lag is bounded by the ids and the length."""
    lag = lag_of(at(entries_added=None, max_deleted_id=None, read=None, lag=None, counts=False))
    assert (lag.entries, lag.reason, lag.at_least, lag.at_most) == (None, "no-counters", 1, 9)
    assert "7.0" in lag.why


@pytest.mark.parametrize("wrong", [{"lag": 400, "entries_added": 405}, {"lag": -3, "read": 13}, {"lag": 10, "read": 0}])
def test_a_figure_that_cannot_be_is_not_believed(wrong: dict[str, Any]) -> None:
    """An impossible lag reported by the server is shown beside the bounds and not used."""
    lag = lag_of(at(**wrong))
    assert (lag.entries, lag.reason, lag.server) == (None, "counters-wrong", wrong["lag"])
    assert 1 <= lag.at_least <= (lag.at_most or 0) <= 9


@pytest.mark.realserver
def test_the_worst_of_a_stream_is_its_furthest_group(client: redis.Redis, look: Look[Any]) -> None:
    """A stream's worst group is the one with the largest lag. An unknown lag counts as its upper bound."""
    fill(client, 10, 3)
    client.xgroup_create(KEY, "other", id="0")
    client.xreadgroup("other", "c1", {KEY: ">"}, count=9)
    client.xdel(KEY, "4-0")
    worst = look(lambda line: streams.one(line, KEY)).worst_lag
    assert (worst.entries, worst.at_most) == (None, 7)
