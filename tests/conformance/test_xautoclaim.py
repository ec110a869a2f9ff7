"""Each behaviour that Dragonfly's XAUTOCLAIM page describes."""

import pytest

from support.inprocess import Client, World

HOUR = 3_600_000


@pytest.fixture
def world() -> World:
    """Return a node whose stream has one entry, pending with Bob for an hour."""
    world = World()
    client = world.client()
    client.call("XADD", "mystream", "1609338752495-0", "field", "value")
    client.call("XGROUP", "CREATE", "mystream", "mygroup", "0")
    client.call("XREADGROUP", "GROUP", "mygroup", "Bob", "STREAMS", "mystream", ">")
    world.advance(HOUR)
    return world


@pytest.fixture
def client(world: World) -> Client:
    """Return a client of the node."""
    return world.client()


def many(world: World, count: int) -> Client:
    """Fill the stream with that many entries, all pending with Bob for an hour."""
    client = world.client()
    client.call("DEL", "mystream")
    for number in range(1, count + 1):
        client.call("XADD", "mystream", f"{number}-0", "f", "v")
    client.call("XGROUP", "CREATE", "mystream", "mygroup", "0")
    client.call("XREADGROUP", "GROUP", "mygroup", "Bob", "STREAMS", "mystream", ">")
    world.advance(HOUR)
    return client


def rows(client: Client) -> list[list[object]]:
    found = client.call("XPENDING", "mystream", "mygroup", "-", "+", "100")
    assert isinstance(found, list)
    return found


def test_the_example_claims_an_hour_old_entry(client: Client) -> None:
    """XAUTOCLAIM returns cursor 0-0 after a full scan, the entry as XRANGE shows it, and no deleted ids."""
    reply = client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0-0", "COUNT", 25)
    assert reply == [b"0-0", [[b"1609338752495-0", [b"field", b"value"]]], []]
    assert rows(client) == [[b"1609338752495-0", b"Alice", 0, 2]]


def test_it_is_xpending_and_xclaim_in_one(world: World) -> None:
    """XAUTOCLAIM leaves the same state as XPENDING followed by XCLAIM."""
    one, two = many(world, 5), world.client()
    one.call("COPY", "mystream", "twin")
    world.clock.advance(1)
    stale = two.call("XPENDING", "twin", "mygroup", "IDLE", HOUR, "-", "+", 100)
    assert isinstance(stale, list)
    two.call("XCLAIM", "twin", "mygroup", "Alice", HOUR, *[row[0] for row in stale])
    one.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0")
    assert two.call("XPENDING", "twin", "mygroup", "-", "+", 100) == rows(one)


def test_only_what_was_pending_long_enough_is_claimed(world: World, client: Client) -> None:
    """XAUTOCLAIM claims entries whose idle time is at least the given one."""
    assert client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR + 1, "0") == [b"0-0", [], []]
    assert rows(client)[0][1] == b"Bob"
    reply = client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0", "JUSTID")
    assert reply == [b"0-0", [b"1609338752495-0"], []]


def test_claiming_resets_the_idle_time_so_one_of_two_wins(client: Client) -> None:
    """XAUTOCLAIM resets the idle time, so a second claim at the same moment claims nothing."""
    client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0")
    assert client.call("XAUTOCLAIM", "mystream", "mygroup", "Carol", HOUR, "0") == [b"0-0", [], []]
    assert rows(client) == [[b"1609338752495-0", b"Alice", 0, 2]]


def test_only_ids_from_the_start_on_are_claimed(world: World) -> None:
    """XAUTOCLAIM claims entries from the start id on, which ``(`` excludes."""
    client = many(world, 4)
    assert client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", 0, "3-0", "JUSTID")[1] == [b"3-0", b"4-0"]  # type: ignore[index] # a list
    assert client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", 0, "(3-0", "JUSTID")[1] == [b"4-0"]  # type: ignore[index] # a list


def test_count_bounds_what_is_claimed_and_the_cursor_goes_on(world: World) -> None:
    """COUNT bounds the claimed entries. The reply's cursor is the next start, until it is 0-0."""
    client = many(world, 7)
    seen: list[object] = []
    cursor: object = b"0-0"
    for _ in range(4):
        reply = client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, cursor, "COUNT", 3, "JUSTID")
        assert isinstance(reply, list)
        cursor = reply[0]
        seen += reply[1]
        if cursor == b"0-0":
            break
    assert cursor == b"0-0"
    assert seen == [b"%d-0" % number for number in range(1, 8)]


def test_count_is_a_hundred_by_default(world: World) -> None:
    """XAUTOCLAIM without COUNT claims a hundred entries and returns the next id."""
    client = many(world, 101)
    reply = client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0", "JUSTID")
    assert isinstance(reply, list)
    assert (len(reply[1]), reply[0]) == (100, b"101-0")


def test_ten_records_are_looked_at_for_each_that_may_be_claimed(world: World) -> None:
    """XAUTOCLAIM scans ten records per requested entry, so it may return fewer entries with a cursor to continue."""
    client = many(world, 40)
    young = [f"{number}-0" for number in range(1, 31)]
    client.call("XCLAIM", "mystream", "mygroup", "Bob", 0, *young)
    first = client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0", "COUNT", 2, "JUSTID")
    assert first == [b"21-0", [], []]
    second = client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "21-0", "COUNT", 2, "JUSTID")
    assert second == [b"33-0", [b"31-0", b"32-0"], []]


def test_a_scan_that_is_complete_may_be_begun_again(world: World) -> None:
    """After cursor 0-0, a new scan finds entries that have become idle since."""
    client = many(world, 2)
    client.call("XCLAIM", "mystream", "mygroup", "Bob", 0, "2-0")
    assert client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0", "JUSTID") == [b"0-0", [b"1-0"], []]
    world.advance(HOUR)
    again = client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0", "JUSTID")
    assert again == [b"0-0", [b"1-0", b"2-0"], []]


def test_justid_gives_ids_and_counts_no_delivery(client: Client) -> None:
    """JUSTID returns ids alone and keeps the delivery count, but changes owner and idle time."""
    client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0", "JUSTID")
    assert rows(client) == [[b"1609338752495-0", b"Alice", 0, 1]]


def test_deleted_entries_leave_the_pending_list_and_are_named(world: World) -> None:
    """XAUTOCLAIM removes deleted entries from the pending list at any idle time and returns their ids once."""
    client = many(world, 4)
    client.call("XDEL", "mystream", "3-0")
    client.call("XTRIM", "mystream", "MINID", "2-0")
    client.call("XCLAIM", "mystream", "mygroup", "Bob", 0, "2-0")
    reply = client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0", "JUSTID")
    assert reply == [b"0-0", [b"4-0"], [b"1-0", b"3-0"]]
    assert [row[0] for row in rows(client)] == [b"2-0", b"4-0"]
    assert client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", 0, "0", "JUSTID")[2] == []  # type: ignore[index] # a list


def test_failing_entries_show_by_their_count(world: World, client: Client) -> None:
    """Each claim increments the delivery count, so that failing entries can be found."""
    for _ in range(5):
        world.advance(HOUR)
        client.call("XAUTOCLAIM", "mystream", "mygroup", "Alice", HOUR, "0")
    assert rows(client) == [[b"1609338752495-0", b"Alice", 0, 6]]
