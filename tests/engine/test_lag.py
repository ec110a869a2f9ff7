"""A group's lag, the number of undelivered entries: exact or unknown, never wrong."""

import pytest

from support.inprocess import Client, World
from support.resp import fields

Figures = tuple[object, object]


@pytest.fixture
def client() -> Client:
    """Return a client of an empty node."""
    return World().client(3)


def fill(client: Client, *ids: str) -> None:
    for entry in ids:
        client.call("XADD", "s", entry, "f", "v")


def figures(client: Client, group: str = "g") -> Figures:
    """Return entries-read and lag."""
    groups = client.call("XINFO", "GROUPS", "s")
    assert isinstance(groups, list)
    found = next(row for row in map(fields, groups) if row[b"name"] == group.encode())
    return found[b"entries-read"], found[b"lag"]


def take(client: Client, count: int, group: str = "g", *options: str) -> None:
    client.call("XREADGROUP", "GROUP", group, "c", "COUNT", count, *options, "STREAMS", "s", ">")


def test_an_empty_stream_has_no_lag(client: Client) -> None:
    """An empty stream has lag 0, though the number of entries read is unknown."""
    client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    assert figures(client) == (None, 0)


def test_reading_counts_up_and_the_lag_down(client: Client) -> None:
    """A group that reads from the beginning has an exact lag, and NOACK deliveries count too."""
    fill(client, "1", "2", "3", "4", "5")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    assert figures(client) == (None, 5)
    take(client, 1)
    assert figures(client) == (1, 4)
    take(client, 2, "g", "NOACK")
    assert figures(client) == (3, 2)
    take(client, 9)
    assert figures(client) == (5, 0)
    fill(client, "6")
    assert figures(client) == (5, 1)


def test_a_group_at_the_end_knows_its_lag(client: Client) -> None:
    """A group created at ``$`` has lag 0 and gets no older entry."""
    fill(client, "1", "2", "3")
    client.call("XGROUP", "CREATE", "s", "g", "$")
    assert figures(client) == (None, 0)
    fill(client, "4")
    take(client, 1)
    assert figures(client) == (4, 0)


def test_a_group_in_the_middle_does_not_know_until_it_reaches_the_end(client: Client) -> None:
    """A group at an arbitrary id has an unknown lag until it reaches the last entry."""
    fill(client, "1", "2", "3", "4", "5")
    client.call("XGROUP", "CREATE", "s", "g", "3")
    assert figures(client) == (None, None)
    take(client, 1)
    assert figures(client) == (None, None)
    take(client, 1)
    assert figures(client) == (5, 0)


def test_a_group_at_the_first_entry_can_be_counted(client: Client) -> None:
    """A group at the first live entry has a known lag, computed from the stream's totals."""
    fill(client, "1", "2", "3")
    client.call("XGROUP", "CREATE", "s", "g", "1")
    assert figures(client) == (None, 2)


def test_a_client_may_say_how_many_were_read(client: Client) -> None:
    """ENTRIESREAD makes the lag known. A number above the total of added entries counts as that total."""
    fill(client, "1", "2", "3", "4", "5")
    client.call("XGROUP", "CREATE", "s", "g", "3", "ENTRIESREAD", "3")
    assert figures(client) == (3, 2)
    client.call("XGROUP", "SETID", "s", "g", "3", "ENTRIESREAD", "99")
    assert figures(client) == (5, 0)
    client.call("XGROUP", "SETID", "s", "g", "3")
    assert figures(client) == (None, None)


def test_a_deletion_ahead_makes_the_lag_unknown_until_it_is_passed(client: Client) -> None:
    """A deletion between a group and the stream's end makes its lag unknown until the group has passed it."""
    fill(client, "1", "2", "3", "4", "5")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    take(client, 2)
    client.call("XDEL", "s", "4")
    assert figures(client) == (2, None)
    take(client, 1)
    assert figures(client) == (None, None)
    take(client, 1)
    assert figures(client) == (5, 0)


def test_a_deletion_behind_does_not_matter(client: Client) -> None:
    """A deletion of entries that the group has passed leaves its lag exact."""
    fill(client, "1", "2", "3", "4")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    take(client, 3)
    client.call("XDEL", "s", "1", "2")
    assert figures(client) == (3, 1)


def test_trimming_past_the_group_leaves_what_is_left(client: Client) -> None:
    """Entries that were trimmed unread no longer count in the lag."""
    fill(client, "1", "2", "3", "4", "5")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    take(client, 1)
    client.call("XTRIM", "s", "MAXLEN", "2")
    assert figures(client) == (1, 2)
    take(client, 1)
    assert figures(client) == (4, 1)


def test_an_emptied_stream_has_no_lag(client: Client) -> None:
    """An emptied stream has lag 0, whatever was read."""
    fill(client, "1", "2", "3")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    take(client, 1)
    client.call("XDEL", "s", "1", "2", "3")
    assert figures(client) == (1, 0)
    fill(client, "4", "5")
    assert figures(client) == (1, 2)


def test_the_lag_after_entries_were_deleted_and_the_group_was_not_started(client: Client) -> None:
    """A deletion before the first live entry leaves the lag exact; a later one makes it unknown."""
    fill(client, "1", "2", "3")
    client.call("XDEL", "s", "1")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    assert figures(client) == (None, 2)
    client.call("XDEL", "s", "3")
    assert figures(client) == (None, None)


def test_claiming_with_lastid_moves_the_position_alone(client: Client) -> None:
    """XCLAIM LASTID leaves entries-read unchanged, and the lag is computed from it, as in Redis."""
    fill(client, "1", "2", "3")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    take(client, 1)
    client.call("XCLAIM", "s", "g", "c", "0", "1", "LASTID", "3")
    assert figures(client) == (1, 2)
