"""Trimming: the entries that each strategy removes, and the effect on their pending records."""

import pytest

from support.inprocess import Client, World, to_words
from support.resp import fields
from support.state import snapshot


@pytest.fixture
def client() -> Client:
    """Return a client of a node whose stream nodes hold five entries."""
    return World({"stream-node-max-entries": "5"}).client(3)


def fill(client: Client, count: int, key: str = "s") -> None:
    for number in range(1, count + 1):
        client.call("XADD", key, f"{number}-0", "f", "v")


def left(client: Client, key: str = "s") -> list[int]:
    """Return the milliseconds of the entries that are left."""
    found = client.call("XRANGE", key, "-", "+")
    assert isinstance(found, list)
    return [int(entry[0].partition(b"-")[0]) for entry in found]


def pending(client: Client, group: str = "g") -> list[int]:
    rows = client.call("XPENDING", "s", group, "-", "+", "100")
    assert isinstance(rows, list)
    return [int(row[0].partition(b"-")[0]) for row in rows]


def read(client: Client, count: int, group: str = "g") -> None:
    client.call("XGROUP", "CREATE", "s", group, "0")
    client.call("XREADGROUP", "GROUP", group, "c", "COUNT", count, "STREAMS", "s", ">")


@pytest.mark.parametrize(
    ("options", "removed", "first"),
    [
        ("MAXLEN 4", 8, 9),
        ("MAXLEN = 4", 8, 9),
        ("MAXLEN 12", 0, 1),
        ("MAXLEN 13", 0, 1),
        ("MAXLEN ~ 4", 5, 6),
        ("MAXLEN ~ 2", 10, 11),
        ("MAXLEN ~ 8", 0, 1),
        ("MAXLEN ~ 7", 5, 6),
        ("MAXLEN ~ 0 LIMIT 4", 0, 1),
        ("MAXLEN ~ 0 LIMIT 5", 5, 6),
        ("MAXLEN ~ 0 LIMIT 9", 5, 6),
        ("MAXLEN ~ 0 LIMIT 0", 12, None),
        ("MAXLEN 0", 12, None),
        ("MINID 5", 4, 5),
        ("MINID 5-1", 5, 6),
        ("MINID = 6", 5, 6),
        ("MINID ~ 5", 0, 1),
        ("MINID ~ 6", 5, 6),
        ("MINID ~ 11-0", 10, 11),
        ("MINID ~ 99 LIMIT 11", 10, 11),
        ("MINID 99", 12, None),
        ("MINID 0", 0, 1),
        ("LIMIT 5 MAXLEN ~ 0", 5, 6),
        ("MAXLEN 4 KEEPREF", 8, 9),
        ("KEEPREF MAXLEN 4", 8, 9),
    ],
)
def test_what_goes(client: Client, options: str, removed: int, first: int | None) -> None:
    """In nodes of 5, 5 and 2 entries, exact trimming stops inside a node. ``~`` and LIMIT stop between nodes."""
    fill(client, 12)
    assert client.call("XTRIM", "s", *options.split()) == removed
    assert left(client) == list(range(first or 13, 13))


def test_a_limit_applies_by_default_with_the_tilde_only() -> None:
    """Without LIMIT, ``~`` removes at most a hundred nodes' worth of entries in one call; ``=`` has no limit."""
    client = World({"stream-node-max-entries": "1"}).client(3)
    fill(client, 150)
    assert client.call("XTRIM", "s", "MAXLEN", "~", "0") == 100
    assert client.call("XTRIM", "s", "MAXLEN", "~", "0") == 50
    fill(client, 150, "t")
    assert client.call("XTRIM", "t", "MAXLEN", "0") == 150


def test_adding_trims_after_it_has_added(client: Client) -> None:
    """XADD with trimming counts the new entry, and may trim it away. The id is used up even so."""
    fill(client, 3)
    client.call("XADD", "s", "MAXLEN", "2", "4-0", "f", "v")
    assert left(client) == [3, 4]
    assert client.call("XADD", "s", "MAXLEN", "0", "5-0", "f", "v") == b"5-0"
    assert left(client) == []
    found = fields(client.call("XINFO", "STREAM", "s"))
    assert (found[b"length"], found[b"last-generated-id"], found[b"entries-added"]) == (0, b"5-0", 5)
    assert client.call("XADD", "s", "MINID", "7-0", "6-0", "f", "v") == b"6-0"
    assert left(client) == []


def test_trimming_is_no_deletion(client: Client) -> None:
    """Trimming leaves the largest deleted id, which XDEL sets, unchanged, and moves the first entry's id."""
    fill(client, 6)
    client.call("XDEL", "s", "2")
    client.call("XTRIM", "s", "MAXLEN", "2")
    found = fields(client.call("XINFO", "STREAM", "s"))
    assert (found[b"max-deleted-entry-id"], found[b"recorded-first-entry-id"]) == (b"2-0", b"5-0")


def test_tombstones_fill_a_node_but_are_not_counted_as_entries(client: Client) -> None:
    """A node is dropped by its count of live entries, and is full by the count of all entries that it ever held."""
    fill(client, 12)
    client.call("XDEL", "s", "2", "3", "5")
    assert client.call("XTRIM", "s", "MAXLEN", "~", "8") == 0  # nine live; without the first node's two: seven
    assert client.call("XTRIM", "s", "MAXLEN", "~", "7") == 2
    assert left(client) == [6, 7, 8, 9, 10, 11, 12]


def test_a_node_goes_by_the_last_id_it_ever_held(client: Client) -> None:
    """MINID with ``~`` compares the last id that a node ever held, also if it is a tombstone, as Redis does."""
    fill(client, 6)
    client.call("XDEL", "s", "5")
    assert client.call("XTRIM", "s", "MINID", "~", "5") == 0
    assert client.call("XTRIM", "s", "MINID", "~", "5-1") == 4


@pytest.mark.parametrize("policy", ["", "KEEPREF"])
def test_records_stay_by_default(client: Client, policy: str) -> None:
    """Trimmed entries stay pending, until claimed or acknowledged."""
    fill(client, 6)
    read(client, 6)
    assert client.call("XTRIM", "s", "MAXLEN", "2", *policy.split()) == 4
    assert pending(client) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("tilde", ["=", "~"])
def test_delref_removes_records_of_every_group(client: Client, tilde: str) -> None:
    """With DELREF no pending record of a trimmed entry is left in any group. ``~`` then trims as exactly as ``=``."""
    fill(client, 7)
    read(client, 7)
    read(client, 3, "h")
    assert client.call("XTRIM", "s", "MAXLEN", tilde, "3", "DELREF") == 4
    assert left(client) == [5, 6, 7]
    assert (pending(client), pending(client, "h")) == ([5, 6, 7], [])


@pytest.mark.parametrize("tilde", ["=", "~"])
def test_acked_passes_over_what_is_still_needed(client: Client, tilde: str) -> None:
    """With ACKED only entries that every group has received and acknowledged are removed; others are skipped."""
    fill(client, 7)
    read(client, 5)
    client.call("XACK", "s", "g", "1", "3", "4")
    assert client.call("XTRIM", "s", "MAXLEN", tilde, "0", "ACKED") == 3
    assert left(client) == [2, 5, 6, 7]
    assert pending(client) == [2, 5]
    client.call("XACK", "s", "g", "2", "5")
    client.call("XGROUP", "CREATE", "s", "h", "0")
    assert client.call("XTRIM", "s", "MAXLEN", tilde, "3", "ACKED") == 0
    client.call("XGROUP", "DESTROY", "s", "h")
    assert client.call("XTRIM", "s", "MAXLEN", tilde, "3", "ACKED") == 1
    assert left(client) == [5, 6, 7]


def test_acked_stops_at_its_target(client: Client) -> None:
    """ACKED stops at its target: MAXLEN at the length that is left, MINID at its id."""
    fill(client, 7)
    read(client, 7)
    client.call("XACK", "s", "g", *range(1, 8))
    assert client.call("XTRIM", "s", "MAXLEN", "5", "ACKED") == 2
    assert client.call("XTRIM", "s", "MINID", "5", "ACKED") == 2
    assert left(client) == [5, 6, 7]


def test_without_groups_nothing_is_needed(client: Client) -> None:
    """ACKED on a stream without groups trims as if the option were not there."""
    fill(client, 7)
    assert client.call("XTRIM", "s", "MAXLEN", "3", "ACKED") == 4


def test_the_limit_holds_for_acked_and_delref_too(client: Client) -> None:
    """With ACKED and DELREF too, a node is trimmed only if all its entries fit the remaining LIMIT."""
    fill(client, 12)
    assert client.call("XTRIM", "s", "MAXLEN", "~", "0", "LIMIT", "4", "DELREF") == 0
    assert client.call("XTRIM", "s", "MAXLEN", "~", "0", "LIMIT", "5", "ACKED") == 5
    assert left(client) == [6, 7, 8, 9, 10, 11, 12]


def test_trimming_is_logged_by_what_it_did() -> None:
    """The log stores the trimmed entries, not the options: a node with other node sizes recovers the same."""
    world = World({"stream-node-max-entries": "5"})
    client = world.client(3)
    fill(client, 12)
    client.call("XTRIM", "s", "MAXLEN", "~", "3")
    world.config = {"stream-node-max-entries": "2"}
    twin = world.recovered()
    session = twin.sessions.open(world.clock.now())
    outcome = twin.execute(session, to_words(["XLEN", "s"]), world.clock.now())
    assert outcome is not None
    assert b"".join(outcome.buffers) == b":7\r\n"
    assert twin.keyspace.databases[0].keys[b"s"].entries.node_count == 2  # type: ignore[attr-defined] # a stream


def nodes(client: Client) -> object:
    return fields(client.call("XINFO", "STREAM", "s"))[b"radix-tree-keys"]


@pytest.mark.parametrize("policy", ["KEEPREF", "DELREF", "ACKED"])
def test_a_node_emptied_by_an_id_among_its_tombstones_stays(client: Client, policy: str) -> None:
    """MINID with ``~`` keeps an emptied node until the last id that it held is below the threshold, as in Redis."""
    fill(client, 7)
    client.call("XDEL", "s", "4", "5")
    assert client.call("XTRIM", "s", "MINID", "5", policy) == 3
    assert (left(client), nodes(client)) == ([6, 7], 2)
    assert client.call("XTRIM", "s", "MINID", "~", "5", policy) == 0
    assert nodes(client) == 2
    assert client.call("XTRIM", "s", "MINID", "~", "5-1", policy) == 0
    assert (left(client), nodes(client)) == ([6, 7], 1)


@pytest.mark.parametrize("policy", ["KEEPREF", "DELREF", "ACKED"])
def test_an_emptied_node_goes_with_the_next_that_is_counted_away(client: Client, policy: str) -> None:
    """MAXLEN drops an emptied node together with the next entry that it removes, and not before."""
    fill(client, 7)
    client.call("XDEL", "s", "5")
    client.call("XTRIM", "s", "MINID", "5")
    assert client.call("XTRIM", "s", "MAXLEN", "2", policy) == 0
    assert nodes(client) == 2
    assert client.call("XTRIM", "s", "MAXLEN", "1", policy) == 1
    assert (left(client), nodes(client)) == ([7], 1)


def test_an_emptied_node_that_is_the_last_takes_entries(client: Client) -> None:
    """An empty stream's last node keeps its tombstones, which count toward its size, and takes new entries."""
    fill(client, 3)
    client.call("XDEL", "s", "3")
    assert client.call("XTRIM", "s", "MINID", "3") == 2
    found = fields(client.call("XINFO", "STREAM", "s"))
    shown = [found[name] for name in (b"length", b"radix-tree-keys", b"recorded-first-entry-id", b"first-entry")]
    assert shown == [0, 1, b"0-0", None]
    assert (found[b"last-entry"], client.call("XREVRANGE", "s", "+", "-"), left(client)) == (None, [], [])
    client.call("XADD", "s", "4-0", "f", "v")
    client.call("XADD", "s", "5-0", "f", "v")
    assert (left(client), nodes(client)) == ([4, 5], 1)
    client.call("XADD", "s", "6-0", "f", "v")
    assert (left(client), nodes(client)) == ([4, 5, 6], 2)
    client.call("XDEL", "s", "4", "5")
    assert (left(client), nodes(client)) == ([6], 1)


def test_dropping_an_emptied_node_breaks_no_watch_and_is_in_the_log() -> None:
    """Dropping an emptied node breaks no WATCH, as in Redis. It is logged, so recovery has the same nodes."""
    world = World({"stream-node-max-entries": "5"})
    client, other = world.client(3), world.client(3)
    fill(client, 7)
    client.call("XDEL", "s", "5")
    client.call("XTRIM", "s", "MINID", "5")
    client.call("WATCH", "s")
    assert other.call("XTRIM", "s", "MINID", "6") == 0
    assert nodes(other) == 1
    client.call("MULTI")
    client.call("XLEN", "s")
    assert client.call("EXEC") == [2]
    assert snapshot(world.recovered()) == snapshot(world.node)


def test_acked_looks_no_further_than_the_first_node_that_must_stay(client: Client) -> None:
    """XTRIM MAXLEN ACKED examines no node behind the first one with more entries than are to be removed."""
    fill(client, 12)
    read(client, 12)
    client.call("XACK", "s", "g", *range(6, 13))
    assert client.call("XTRIM", "s", "MAXLEN", "8", "ACKED") == 0
    assert client.call("XTRIM", "s", "MAXLEN", "7", "ACKED") == 5
    assert left(client) == [1, 2, 3, 4, 5, 11, 12]


def test_acked_drops_nodes_in_the_middle_and_at_the_end(client: Client) -> None:
    """XTRIM ACKED drops nodes in the middle and at the end. The node before them takes new entries."""
    fill(client, 12)
    read(client, 12)
    client.call("XACK", "s", "g", *range(2, 13))
    assert client.call("XTRIM", "s", "MINID", "99", "ACKED") == 11
    assert (left(client), nodes(client)) == ([1], 1)
    client.call("XDEL", "s", "1")
    assert nodes(client) == 0
