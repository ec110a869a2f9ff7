"""Each behaviour that Redis's XNACK page describes."""

import pytest

from support.inprocess import Client, World
from support.resp import fields

FIRST, SECOND = "1526569498055-0", "1526569498056-0"
MOST = 2**63 - 1


@pytest.fixture
def world() -> World:
    """Return a node whose stream has two entries, both pending with consumer1."""
    world = World()
    client = world.client()
    client.call("XADD", "mystream", FIRST, "field", "value1")
    client.call("XADD", "mystream", SECOND, "field", "value2")
    client.call("XGROUP", "CREATE", "mystream", "mygroup", "0")
    client.call("XREADGROUP", "GROUP", "mygroup", "consumer1", "STREAMS", "mystream", ">")
    return world


@pytest.fixture
def client(world: World) -> Client:
    """Return a client of the node."""
    return world.client()


def rows(client: Client) -> object:
    return client.call("XPENDING", "mystream", "mygroup", "-", "+", "10")


def nack(client: Client, mode: str, *ids: str, options: tuple[str | int, ...] = ()) -> object:
    return client.call("XNACK", "mystream", "mygroup", mode, "IDS", len(ids), *ids, *options)


def test_the_example_releases_both(client: Client) -> None:
    """XNACK releases two entries; they are listed without consumer, with idle time -1 and their count."""
    assert nack(client, "FAIL", FIRST, SECOND) == 2
    assert rows(client) == [[FIRST.encode(), b"", -1, 1], [SECOND.encode(), b"", -1, 1]]


@pytest.mark.parametrize(("mode", "count"), [("SILENT", 2), ("FAIL", 3), ("FATAL", MOST), ("fail", 3)])
def test_the_mode_says_what_the_delivery_counted(client: Client, mode: str, count: int) -> None:
    """The delivery count of a released entry is reduced by SILENT, kept by FAIL, and set to the maximum by FATAL."""
    client.call("XCLAIM", "mystream", "mygroup", "consumer1", 0, FIRST, "RETRYCOUNT", 3)
    assert nack(client, mode, FIRST) == 1
    assert rows(client)[0] == [FIRST.encode(), b"", -1, count]  # type: ignore[index] # a list


def test_silent_does_not_go_below_zero(client: Client) -> None:
    """SILENT does not reduce the delivery count below zero."""
    for _ in range(3):
        nack(client, "SILENT", FIRST)
    assert rows(client)[0][3] == 0  # type: ignore[index] # a list


def test_retrycount_overrides_the_mode(client: Client) -> None:
    """RETRYCOUNT sets the delivery count in any mode."""
    for mode in ("SILENT", "FAIL", "FATAL"):
        nack(client, mode, FIRST, options=("RETRYCOUNT", 7))
        assert rows(client)[0][3] == 7  # type: ignore[index] # a list


@pytest.mark.parametrize(
    ("mode", "options", "count"),
    [("SILENT", (), 0), ("FAIL", (), 0), ("FATAL", (), MOST), ("FAIL", ("RETRYCOUNT", 4), 4)],
)
def test_force_makes_a_record_for_an_entry_that_exists(
    client: Client, mode: str, options: tuple[str | int, ...], count: int
) -> None:
    """FORCE creates a record for an existing entry, with count 0 or by mode and RETRYCOUNT.

    Missing entries are ignored.
    """
    client.call("XACK", "mystream", "mygroup", FIRST)
    assert nack(client, mode, FIRST, options=options) == 0
    assert nack(client, mode, FIRST, "99-0", options=(*options, "FORCE")) == 1
    assert rows(client)[0] == [FIRST.encode(), b"", -1, count]  # type: ignore[index] # a list


def test_ids_that_are_not_pending_are_passed_over(client: Client) -> None:
    """XNACK ignores ids that are not pending and does not count them."""
    client.call("XACK", "mystream", "mygroup", SECOND)
    assert nack(client, "FAIL", FIRST, SECOND, "99-0") == 1
    assert len(rows(client)) == 1  # type: ignore[arg-type] # a list


def test_a_released_entry_can_be_taken_at_once_in_three_ways(world: World, client: Client) -> None:
    """A released entry can be taken by XCLAIM, XAUTOCLAIM and XREADGROUP CLAIM at any minimum idle time."""
    hour = 3_600_000
    nack(client, "FAIL", FIRST, SECOND)
    assert client.call("XCLAIM", "mystream", "mygroup", "b", hour, FIRST, "JUSTID") == [FIRST.encode()]
    nack(client, "FAIL", FIRST)
    ids = client.call("XAUTOCLAIM", "mystream", "mygroup", "b", hour, 0, "JUSTID")
    assert ids == [b"0-0", [FIRST.encode(), SECOND.encode()], []]
    nack(client, "FAIL", SECOND)
    reply = client.call("XREADGROUP", "GROUP", "mygroup", "c", "CLAIM", hour, "STREAMS", "mystream", ">")
    now = world.clock.wall
    assert reply == [[b"mystream", [[SECOND.encode(), [b"field", b"value2"], now, 1]]]]
    assert rows(client)[1] == [SECOND.encode(), b"c", 0, 2]  # type: ignore[index] # a list


def test_released_entries_come_first_in_the_order_of_release(world: World, client: Client) -> None:
    """Released entries are claimed before idle ones, in the order of their last release."""
    for number in (7, 8, 9):
        client.call("XADD", "mystream", f"{FIRST[:-3]}9{number}-0", "field", "v")
    client.call("XREADGROUP", "GROUP", "mygroup", "consumer2", "STREAMS", "mystream", ">")
    third, fourth = f"{FIRST[:-3]}97-0", f"{FIRST[:-3]}98-0"
    for released in (fourth, SECOND, third, SECOND):
        nack(client, "FAIL", released)
    world.advance(1000)
    reply = client.call("XREADGROUP", "GROUP", "mygroup", "c", "CLAIM", 1000, "STREAMS", "mystream", ">")
    order = [row[0] for row in reply[0][1]]  # type: ignore[index] # a list
    assert order == [fourth.encode(), third.encode(), SECOND.encode(), FIRST.encode(), f"{FIRST[:-3]}99-0".encode()]


def test_a_released_entry_has_no_owner_and_no_delivery_time(client: Client) -> None:
    """A released entry has no consumer and no delivery time, and XINFO counts it as released."""
    nack(client, "FAIL", FIRST)
    found = fields(client.call("XINFO", "STREAM", "mystream", "FULL"))
    group = fields(found[b"groups"][0])  # type: ignore[index] # a list
    assert group[b"nacked-count"] == 1
    assert group[b"pel-count"] == 2
    assert group[b"pending"][0] == [FIRST.encode(), b"", 0, 1]  # type: ignore[index] # a list
    assert fields(group[b"consumers"][0])[b"pel-count"] == 1  # type: ignore[index] # a list
    history = client.call("XREADGROUP", "GROUP", "mygroup", "consumer1", "STREAMS", "mystream", "0")
    assert [row[0] for row in history[0][1]] == [SECOND.encode()]  # type: ignore[index] # a list


def test_a_released_entry_is_still_pending(client: Client) -> None:
    """A released entry still counts as pending, survives its consumer, and can be acknowledged by id."""
    nack(client, "FAIL", FIRST)
    assert client.call("XPENDING", "mystream", "mygroup")[0] == 2  # type: ignore[index] # a list
    assert client.call("XGROUP", "DELCONSUMER", "mystream", "mygroup", "consumer1") == 1
    assert rows(client) == [[FIRST.encode(), b"", -1, 1]]
    assert client.call("XACK", "mystream", "mygroup", FIRST) == 1
    assert rows(client) == []


def test_a_waiting_claimer_gets_a_released_entry_without_delay(world: World, client: Client) -> None:
    """A release ends the wait of XREADGROUP with CLAIM and BLOCK."""
    waiter = world.client()
    waiter.send("XREADGROUP", "GROUP", "mygroup", "b", "BLOCK", 0, "CLAIM", 3_600_000, "STREAMS", "mystream", ">")
    assert waiter.waits
    nack(client, "SILENT", SECOND)
    assert [row[0] for row in waiter.inbox[0][0][1]] == [SECOND.encode()]  # type: ignore[index] # a list
    assert rows(client)[1] == [SECOND.encode(), b"b", 0, 1]  # type: ignore[index] # a list
