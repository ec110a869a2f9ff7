"""Each behaviour that Redis's XCLAIM page describes."""

import pytest

from support.inprocess import Client, World

HOUR = 3_600_000
ENTRY = "1526569498055-0"


@pytest.fixture
def world() -> World:
    """Return a node whose stream has one entry, pending with the failed consumer A for an hour."""
    world = World()
    client = world.client()
    client.call("XADD", "mystream", ENTRY, "message", "orange")
    client.call("XGROUP", "CREATE", "mystream", "mygroup", "0")
    client.call("XREADGROUP", "GROUP", "mygroup", "A", "STREAMS", "mystream", ">")
    world.advance(HOUR)
    return world


@pytest.fixture
def client(world: World) -> Client:
    """Return a client of the node."""
    return world.client()


def row(client: Client) -> list[object]:
    """Return owner, idle time and deliveries of the entry."""
    found = client.call("XPENDING", "mystream", "mygroup", ENTRY, ENTRY, 1)
    assert isinstance(found, list)
    return list(found[0][1:]) if found else []


def claim(client: Client, consumer: str = "Alice", idle: int = HOUR, *options: str | int) -> object:
    return client.call("XCLAIM", "mystream", "mygroup", consumer, idle, ENTRY, *options)


def test_the_example_claims_an_hour_old_entry(client: Client) -> None:
    """XCLAIM returns the claimed entries as XRANGE shows them, and makes Alice their owner."""
    assert claim(client) == [[ENTRY.encode(), [b"message", b"orange"]]]
    assert row(client) == [b"Alice", 0, 2]


def test_the_way_from_a_failed_consumer_to_another(world: World, client: Client) -> None:
    """An entry of a failed consumer is found by XPENDING, claimed, and acknowledged by its new owner."""
    stale = client.call("XPENDING", "mystream", "mygroup", "IDLE", HOUR, "-", "+", 10)
    assert stale == [[ENTRY.encode(), b"A", HOUR, 1]]
    claim(client, "B")
    assert client.call("XREADGROUP", "GROUP", "mygroup", "A", "STREAMS", "mystream", "0") == [[b"mystream", []]]
    assert client.call("XREADGROUP", "GROUP", "mygroup", "B", "STREAMS", "mystream", "0") == [
        [b"mystream", [[ENTRY.encode(), [b"message", b"orange"]]]]
    ]
    assert client.call("XACK", "mystream", "mygroup", ENTRY) == 1


def test_what_is_not_idle_enough_is_not_claimed(client: Client) -> None:
    """XCLAIM does not claim an entry below the minimum idle time."""
    assert claim(client, "Alice", HOUR + 1) == []
    assert row(client) == [b"A", HOUR, 1]


def test_of_two_claims_at_once_one_succeeds(client: Client) -> None:
    """XCLAIM resets the idle time, so the second of two claims gets nothing."""
    assert claim(client, "Alice") != []
    assert claim(client, "Carol") == []
    assert row(client)[0] == b"Alice"


def test_progress_of_the_owner_prevents_a_claim(client: Client) -> None:
    """If the owner reads its pending entries again, their idle time restarts and prevents a claim."""
    client.call("XREADGROUP", "GROUP", "mygroup", "A", "STREAMS", "mystream", "0")
    assert claim(client) == []


def test_each_claim_counts_a_delivery_unless_only_ids_are_asked(client: Client) -> None:
    """Each XCLAIM increments the delivery count, except with JUSTID."""
    claim(client, "Alice", 0)
    assert row(client)[2] == 2
    assert claim(client, "Alice", 0, "JUSTID") == [ENTRY.encode()]
    assert row(client)[2] == 2


def test_idle_sets_the_idle_time(client: Client) -> None:
    """XCLAIM sets the idle time to IDLE, or to 0 without it."""
    claim(client, "Alice", 0, "IDLE", 5000)
    assert row(client)[1] == 5000
    claim(client, "Alice", 0)
    assert row(client)[1] == 0


def test_time_sets_the_moment_of_delivery(world: World, client: Client) -> None:
    """XCLAIM sets the delivery time to TIME. A time in the future or below zero counts as now."""
    claim(client, "Alice", 0, "TIME", world.clock.wall - 7000)
    assert row(client)[1] == 7000
    claim(client, "Alice", 0, "TIME", world.clock.wall + 7000)
    assert row(client)[1] == 0


def test_retrycount_sets_the_count(client: Client) -> None:
    """RETRYCOUNT sets the delivery count, also with JUSTID."""
    claim(client, "Alice", 0, "RETRYCOUNT", 9)
    assert row(client)[2] == 9
    claim(client, "Alice", 0, "RETRYCOUNT", 3, "JUSTID")
    assert row(client)[2] == 3


def test_force_makes_a_record_where_there_is_none(client: Client) -> None:
    """FORCE creates a pending record for an entry that exists, and ignores missing entries."""
    client.call("XACK", "mystream", "mygroup", ENTRY)
    assert claim(client, "Alice", 0) == []
    assert claim(client, "Alice", 0, "FORCE") != []
    assert row(client)[0] == b"Alice"
    assert client.call("XCLAIM", "mystream", "mygroup", "Alice", 0, "999-0", "FORCE") == []
    assert client.call("XPENDING", "mystream", "mygroup")[0] == 1  # type: ignore[index] # a list


def test_entries_that_are_gone_leave_the_pending_list(client: Client) -> None:
    """XCLAIM removes deleted entries from the pending list."""
    client.call("XDEL", "mystream", ENTRY)
    assert claim(client, "Alice", HOUR + 1) == []
    assert row(client) == []


def test_lastid_moves_the_group_forward_only(client: Client) -> None:
    """LASTID moves the group's last id only forward."""
    for last, expected in (("1526569498056-5", b"1526569498056-5"), ("5-0", b"1526569498056-5")):
        claim(client, "Alice", 0, "LASTID", last)
        groups = client.call("XINFO", "GROUPS", "mystream")
        assert isinstance(groups, list)
        assert groups[0][groups[0].index(b"last-delivered-id") + 1] == expected


def test_several_ids_in_one_claim(client: Client) -> None:
    """XCLAIM checks several ids one by one and returns them in the given order."""
    client.call("XADD", "mystream", "1526569498056-0", "message", "apple")
    client.call("XREADGROUP", "GROUP", "mygroup", "A", "STREAMS", "mystream", ">")
    ids = ["1526569498056-0", "7-7", ENTRY]
    assert client.call("XCLAIM", "mystream", "mygroup", "Alice", 0, *ids, "JUSTID") == [ids[0].encode(), ENTRY.encode()]
    assert client.call("XCLAIM", "mystream", "mygroup", "Carol", 1, *ids, "JUSTID") == []
