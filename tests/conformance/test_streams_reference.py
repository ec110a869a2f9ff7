"""Each command behaves as the Streams reference describes."""

import pytest

from millstream.replies import OK, Error, Simple
from support.inprocess import WAITING, Client, World
from support.resp import fields
from support.state import snapshot

TOP = 2**64 - 1


@pytest.fixture
def world() -> World:
    """Return an empty node."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """Return a client of the node."""
    return world.client()


def fill(client: Client, *ids: str, key: str = "s") -> None:
    for entry in ids:
        client.call("XADD", key, entry, "f", "v")


def ids_of(reply: object) -> list[str]:
    assert isinstance(reply, list)
    return [entry[0].decode() for entry in reply]


def read(client: Client, consumer: str, after: str = ">", *options: str | int, group: str = "g") -> list[str]:
    """Return the ids that XREADGROUP delivers."""
    reply = client.call("XREADGROUP", "GROUP", group, consumer, *options, "STREAMS", "s", after)
    return [] if reply is None else ids_of(reply[0][1])  # type: ignore[index] # a list


def info(client: Client) -> dict[object, object]:
    return fields(client.call("XINFO", "STREAM", "s"))


def group_info(client: Client, name: bytes = b"g") -> dict[object, object]:
    found = client.call("XINFO", "GROUPS", "s")
    assert isinstance(found, list)
    return next(row for row in map(fields, found) if row[b"name"] == name)


# ---------------------------------------------------------------- what a stream is


def test_messages_outlive_the_server(world: World, client: Client) -> None:
    """Entries, groups and pending entries survive a restart from the log, unlike pub/sub messages."""
    fill(client, "1-0", "2-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "c", ">", "COUNT", 1)
    assert snapshot(world.recovered()) == snapshot(world.node)


def test_every_consumer_group_has_a_cursor_of_its_own(client: Client) -> None:
    """Each group has its own cursor, which any of its consumers advances."""
    fill(client, "1-0", "2-0", "3-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XGROUP", "CREATE", "s", "h", "0")
    assert read(client, "a", ">", "COUNT", 1) == ["1-0"]
    assert read(client, "b", ">", "COUNT", 1) == ["2-0"]
    assert read(client, "a", ">", "COUNT", 5, group="h") == ["1-0", "2-0", "3-0"]
    assert group_info(client)[b"last-delivered-id"] == b"2-0"


# ---------------------------------------------------------------- XADD


def test_xadd_creates_the_stream_unless_told_not_to(client: Client) -> None:
    """XADD creates a missing stream. With NOMKSTREAM it replies null instead, and adds to a stream that exists."""
    assert client.call("XADD", "s", "NOMKSTREAM", "*", "f", "v") is None
    assert client.call("EXISTS", "s") == 0
    assert client.call("XADD", "s", "1-0", "f", "v") == b"1-0"
    assert client.call("XADD", "s", "NOMKSTREAM", "2-0", "f", "v") == b"2-0"


def test_fields_come_back_in_the_order_given(client: Client) -> None:
    """An entry keeps the order of its fields, including repeated names."""
    client.call("XADD", "s", "1-0", "b", "1", "a", "2", "b", "3")
    entry = [b"1-0", [b"b", b"1", b"a", b"2", b"b", b"3"]]
    assert client.call("XRANGE", "s", "-", "+") == [entry]
    assert client.call("XREAD", "STREAMS", "s", "0") == [[b"s", [entry]]]


def test_a_made_id_is_the_time_and_a_sequence(world: World, client: Client) -> None:
    """A generated id is the clock's milliseconds and a sequence number within the millisecond."""
    now = world.clock.wall
    assert [client.call("XADD", "s", "*", "f", "v") for _ in range(3)] == [b"%d-%d" % (now, seq) for seq in range(3)]
    world.clock.advance(1)
    assert client.call("XADD", "s", "*", "f", "v") == b"%d-0" % (now + 1)


def test_ids_rise_when_the_clock_falls(world: World, client: Client) -> None:
    """If the clock goes backwards, generated ids keep the last id's time and increase the sequence."""
    now = world.clock.wall
    client.call("XADD", "s", "*", "f", "v")
    world.clock.jump(-3_600_000)
    assert client.call("XADD", "s", "*", "f", "v") == b"%d-1" % now


def test_a_given_id_must_be_above_all_others(client: Client) -> None:
    """A given id of two 64-bit numbers must be greater than all others, and at least 0-1."""
    assert isinstance(client.call("XADD", "s", "0-0", "f", "v"), Error)
    assert client.call("XADD", "s", "0-1", "f", "v") == b"0-1"
    assert client.call("XADD", "s", "1526919030474-55", "f", "v") == b"1526919030474-55"
    assert isinstance(client.call("XADD", "s", "1526919030474-55", "f", "v"), Error)
    assert isinstance(client.call("XADD", "s", "1526919030473-99", "f", "v"), Error)
    assert client.call("XADD", "s", f"{TOP}-{TOP}", "f", "v") == b"%d-%d" % (TOP, TOP)


def test_adding_can_hold_a_length(client: Client) -> None:
    """XADD accepts XTRIM's options, and trims exactly by default."""
    for number in range(1, 8):
        client.call("XADD", "s", "MAXLEN", 3, f"{number}-0", "f", "v")
    assert ids_of(client.call("XRANGE", "s", "-", "+")) == ["5-0", "6-0", "7-0"]


# ---------------------------------------------------------------- XLEN


def test_an_empty_stream_is_not_a_missing_one(client: Client) -> None:
    """An empty stream has length 0 as a missing one, but TYPE and EXISTS show it, and its groups stay."""
    assert client.call("XLEN", "s") == 0
    assert (client.call("TYPE", "s"), client.call("EXISTS", "s")) == (Simple(b"none"), 0)
    fill(client, "1-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XDEL", "s", "1-0")
    assert client.call("XLEN", "s") == 0
    assert (client.call("TYPE", "s"), client.call("EXISTS", "s")) == (Simple(b"stream"), 1)
    assert group_info(client)[b"pending"] == 0


# ---------------------------------------------------------------- XRANGE and XREVRANGE


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ("-", "+", ["5-0", "5-1", "5-7", "6-0", "8-0"]),
        ("0-0", f"{TOP}-{TOP}", ["5-0", "5-1", "5-7", "6-0", "8-0"]),
        ("5-1", "6-0", ["5-1", "5-7", "6-0"]),
        ("5", "5", ["5-0", "5-1", "5-7"]),
        ("5", "6", ["5-0", "5-1", "5-7", "6-0"]),
        ("6-0", "6-0", ["6-0"]),
        ("(5-1", "(8-0", ["5-7", "6-0"]),
        ("6-1", "7", []),
        ("8", "5", []),
    ],
)
def test_a_range_is_closed_unless_a_parenthesis_opens_it(
    client: Client, start: str, end: str, found: list[str]
) -> None:
    """XRANGE includes both ends unless ``(`` excludes one.

    A missing sequence is the first or the last. XREVRANGE reverses.
    """
    fill(client, "5-0", "5-1", "5-7", "6-0", "8-0")
    assert ids_of(client.call("XRANGE", "s", start, end)) == found
    assert ids_of(client.call("XREVRANGE", "s", end, start)) == found[::-1]


def test_walking_a_stream_in_steps(client: Client) -> None:
    """XRANGE with COUNT and the last id seen, excluded, visits every entry once."""
    fill(client, *[f"{number}-0" for number in range(1, 11)])
    seen: list[str] = []
    start = "-"
    while step := ids_of(client.call("XRANGE", "s", start, "+", "COUNT", 3)):
        seen += step
        start = f"({step[-1]}"
    assert seen == [f"{number}-0" for number in range(1, 11)]


# ---------------------------------------------------------------- XDEL and XTRIM


def test_xdel_counts_what_it_found(client: Client) -> None:
    """XDEL returns the number of deleted entries and does not count missing ids."""
    fill(client, "1-0", "2-0", "3-0")
    assert client.call("XDEL", "s", "1-0", "9-9", "3-0") == 2
    assert ids_of(client.call("XRANGE", "s", "-", "+")) == ["2-0"]


def test_a_node_goes_when_all_in_it_is_deleted() -> None:
    """A node's memory is freed when the last of its entries is deleted."""
    client = World({"stream-node-max-entries": "10"}).client()
    fill(client, *[f"{number}-0" for number in range(1, 31)])
    assert info(client)[b"radix-tree-keys"] == 3
    client.call("XDEL", "s", *[f"{number}-0" for number in range(11, 20)])
    assert info(client)[b"radix-tree-keys"] == 3
    client.call("XDEL", "s", "20-0")
    assert info(client)[b"radix-tree-keys"] == 2
    assert info(client)[b"length"] == 20


def test_xtrim_by_length_and_by_id(client: Client) -> None:
    """XTRIM removes the oldest entries down to a length, or below an id with an optional sequence."""
    fill(client, "1-0", "2-0", "3-0", "3-1", "4-0")
    assert client.call("XTRIM", "s", "MAXLEN", 4) == 1
    assert client.call("XTRIM", "s", "MINID", 3) == 1
    assert ids_of(client.call("XRANGE", "s", "-", "+")) == ["3-0", "3-1", "4-0"]


def test_trimming_by_the_tilde_keeps_at_least_what_was_asked() -> None:
    """XTRIM with ``~`` removes whole nodes only, and never leaves fewer entries than requested."""
    client = World({"stream-node-max-entries": "10"}).client()
    fill(client, *[f"{number}-0" for number in range(1, 36)])
    assert client.call("XTRIM", "s", "MAXLEN", "~", 12) == 20
    assert client.call("XLEN", "s") == 15


def test_limit_bounds_one_trimming(client: Client) -> None:
    """LIMIT bounds the entries of one trim: a hundred nodes' entries by default, and 0 for no bound."""
    tight = World({"stream-node-max-entries": "2"}).client()
    fill(tight, *[f"{number}-0" for number in range(1, 301)])
    assert tight.call("XTRIM", "s", "MAXLEN", "~", 0, "LIMIT", 5) == 4
    assert tight.call("XTRIM", "s", "MAXLEN", "~", 0) == 200
    assert tight.call("XTRIM", "s", "MAXLEN", "~", 0, "LIMIT", 0) == 96


# ---------------------------------------------------------------- XINFO


def test_xinfo_stream_tells_the_counters(client: Client) -> None:
    """XINFO STREAM returns length, nodes, groups, last and largest deleted id, additions, first and last entry."""
    fill(client, "1-0", "2-0", "3-0")
    client.call("XDEL", "s", "2-0")
    client.call("XGROUP", "CREATE", "s", "g", "$")
    found = info(client)
    assert [found[name] for name in (b"length", b"radix-tree-keys", b"groups", b"entries-added")] == [2, 1, 1, 3]
    assert (found[b"last-generated-id"], found[b"max-deleted-entry-id"]) == (b"3-0", b"2-0")
    assert (found[b"first-entry"], found[b"last-entry"]) == ([b"1-0", [b"f", b"v"]], [b"3-0", [b"f", b"v"]])


def test_xinfo_full_shows_ten_of_everything_by_default(client: Client) -> None:
    """XINFO STREAM FULL shows ten entries and pending records by default. COUNT changes the number, and 0 shows all."""
    fill(client, *[f"{number}-0" for number in range(1, 13)])
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "c")
    for options, shown in (((), 10), (("COUNT", 3), 3), (("COUNT", 0), 12)):
        found = fields(client.call("XINFO", "STREAM", "s", "FULL", *options))
        group = fields(found[b"groups"][0])  # type: ignore[index] # a list
        consumer = fields(group[b"consumers"][0])  # type: ignore[index] # a list
        lists = (found[b"entries"], group[b"pending"], consumer[b"pending"])
        assert [len(rows) for rows in lists] == [shown] * 3  # type: ignore[arg-type] # lists
        assert (group[b"pel-count"], consumer[b"pel-count"]) == (12, 12)


def test_xinfo_groups_tells_position_and_lag(client: Client) -> None:
    """XINFO GROUPS returns consumers, pending entries, the cursor, and the numbers of read and remaining entries."""
    fill(client, "1-0", "2-0", "3-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "a", ">", "COUNT", 1)
    read(client, "b", ">", "COUNT", 1)
    assert group_info(client) == {
        b"name": b"g",
        b"consumers": 2,
        b"pending": 2,
        b"last-delivered-id": b"2-0",
        b"entries-read": 2,
        b"lag": 1,
    }


@pytest.mark.parametrize(
    ("position", "lag", "later"),
    [("0-0", 4, 5), ("1-0", 3, 4), ("4-0", 0, None), ("2-0", None, None), ("2-5", None, None)],
)
def test_a_lag_is_known_from_the_first_the_last_and_the_zero_id(
    client: Client, position: str, lag: int | None, later: int | None
) -> None:
    """A group's lag is known from the first, the last and the zero id. From others it is known after a full read."""
    fill(client, "1-0", "2-0", "3-0", "4-0")
    client.call("XGROUP", "CREATE", "s", "g", position)
    assert group_info(client)[b"lag"] == lag
    fill(client, "5-0")
    assert group_info(client)[b"lag"] == later
    read(client, "c")
    assert (group_info(client)[b"entries-read"], group_info(client)[b"lag"]) == (5, 0)
    fill(client, "6-0")
    assert group_info(client)[b"lag"] == 1


def test_a_deletion_ahead_makes_the_lag_unknown_for_a_while(client: Client) -> None:
    """A deletion ahead of a group makes its lag unknown until the group has read the last entry."""
    fill(client, "1-0", "2-0", "3-0", "4-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "c", ">", "COUNT", 1)
    client.call("XDEL", "s", "3-0")
    assert group_info(client)[b"lag"] is None
    read(client, "c")
    assert group_info(client)[b"lag"] == 0


def test_entriesread_makes_the_lag_known_from_anywhere(client: Client) -> None:
    """ENTRIESREAD makes a group's lag known from any position."""
    fill(client, "1-0", "2-0", "3-0", "4-0")
    client.call("XGROUP", "CREATE", "s", "g", "2-0", "ENTRIESREAD", 4 - 2)
    assert group_info(client)[b"lag"] == 2
    read(client, "c", ">", "COUNT", 1)
    assert group_info(client)[b"lag"] == 1


def test_xinfo_consumers_tells_who_holds_what_and_for_how_long_silent(world: World, client: Client) -> None:
    """XINFO CONSUMERS returns name, pending entries, and milliseconds since the last attempt."""
    fill(client, "1-0", "2-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "busy")
    world.advance(500)
    read(client, "idle")
    world.advance(100)
    found = client.call("XINFO", "CONSUMERS", "s", "g")
    assert isinstance(found, list)
    rows = [[row[name] for name in (b"name", b"pending", b"idle")] for row in map(fields, found)]
    assert rows == [[b"busy", 2, 600], [b"idle", 0, 100]]


# ---------------------------------------------------------------- XGROUP


def test_a_group_needs_a_stream_and_a_name_of_its_own(client: Client) -> None:
    """XGROUP CREATE needs a stream, which MKSTREAM creates, and refuses a name that is taken."""
    assert isinstance(client.call("XGROUP", "CREATE", "s", "g", "$"), Error)
    assert client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM") == OK
    assert client.call("XLEN", "s") == 0
    assert client.call("XGROUP", "CREATE", "s", "g", "0") == Error("BUSYGROUP Consumer Group name already exists")


def test_a_group_at_the_end_sees_only_what_comes(client: Client) -> None:
    """A group created at ``$`` receives only later entries."""
    fill(client, "1-0")
    client.call("XGROUP", "CREATE", "s", "g", "$")
    fill(client, "2-0")
    assert read(client, "c") == ["2-0"]


def test_a_group_can_be_destroyed_with_all_it_holds(client: Client) -> None:
    """XGROUP DESTROY removes a group with its consumers and pending entries. A second call returns 0."""
    fill(client, "1-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "c")
    assert client.call("XGROUP", "DESTROY", "s", "g") == 1
    assert client.call("XGROUP", "DESTROY", "s", "g") == 0


def test_consumers_are_made_by_name_or_by_their_first_command(client: Client) -> None:
    """CREATECONSUMER creates a consumer, and XREADGROUP creates it implicitly."""
    client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    assert client.call("XGROUP", "CREATECONSUMER", "s", "g", "a") == 1
    assert client.call("XGROUP", "CREATECONSUMER", "s", "g", "a") == 0
    read(client, "b")
    assert group_info(client)[b"consumers"] == 2


def test_what_a_deleted_consumer_held_cannot_be_claimed(client: Client) -> None:
    """XGROUP DELCONSUMER removes the consumer's pending entries, so they cannot be claimed later."""
    fill(client, "1-0", "2-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "c")
    assert client.call("XGROUP", "DELCONSUMER", "s", "g", "c") == 2
    assert client.call("XAUTOCLAIM", "s", "g", "d", 0, 0) == [b"0-0", [], []]
    assert client.call("XGROUP", "DELCONSUMER", "s", "g", "c") == 0


def test_moving_a_group_back_delivers_again_and_forward_skips(client: Client) -> None:
    """XGROUP SETID to 0 delivers everything again, and to ``$`` skips all existing entries."""
    fill(client, "1-0", "2-0")
    client.call("XGROUP", "CREATE", "s", "g", "$")
    client.call("XGROUP", "SETID", "s", "g", "0")
    assert read(client, "c") == ["1-0", "2-0"]
    client.call("XGROUP", "SETID", "s", "g", "0")
    client.call("XGROUP", "SETID", "s", "g", "$")
    assert read(client, "c") == []


# ---------------------------------------------------------------- XREAD


def test_xread_reads_several_streams_above_the_ids_given(client: Client) -> None:
    """XREAD takes keys, then as many ids. Streams without new entries are left out, and no stream at all is null."""
    fill(client, "1-0", "2-0", "3-0")
    fill(client, "7-0", key="t")
    reply = client.call("XREAD", "COUNT", 1, "STREAMS", "s", "t", "nokey", "1-0", "0", "0")
    assert reply == [[b"s", [[b"2-0", [b"f", b"v"]]]], [b"t", [[b"7-0", [b"f", b"v"]]]]]
    assert client.call("XREAD", "STREAMS", "s", "t", "3-0", "7-0") is None


def test_iterating_with_the_last_id_seen_ends_with_nothing(client: Client) -> None:
    """XREAD with the last id of each reply visits every entry and ends with null."""
    fill(client, "1-0", "2-0", "3-0")
    after, seen = b"0", []
    while (reply := client.call("XREAD", "COUNT", 2, "STREAMS", "s", after)) is not None:
        entries = reply[0][1]  # type: ignore[index] # a list
        seen += [entry[0] for entry in entries]
        after = seen[-1]
    assert seen == [b"1-0", b"2-0", b"3-0"]


def test_block_waits_only_where_there_is_nothing(world: World, client: Client) -> None:
    """XREAD BLOCK waits only if nothing is there, then replies null after its milliseconds."""
    fill(client, "1-0")
    assert client.call("XREAD", "BLOCK", 100, "STREAMS", "s", "0") == [[b"s", [[b"1-0", [b"f", b"v"]]]]]
    assert client.send("XREAD", "BLOCK", 100, "STREAMS", "s", "1-0") is WAITING
    world.advance(100)
    assert client.inbox == [None]


def test_dollar_waits_for_what_is_added_from_now_on(world: World, client: Client) -> None:
    """XREAD BLOCK with ``$`` replies only with entries added during its wait."""
    fill(client, "1-0")
    assert client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$") is WAITING
    fill(world.client(), "2-0")
    assert client.inbox == [[[b"s", [[b"2-0", [b"f", b"v"]]]]]]


def test_dollar_again_misses_what_came_between(world: World, client: Client) -> None:
    """A second XREAD with ``$`` misses entries added in between; one with the last id does not."""
    client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    fill(world.client(), "1-0", "2-0")
    assert client.send("XREAD", "BLOCK", 10, "STREAMS", "s", "$") is WAITING
    world.advance(10)
    assert client.inbox[-1] is None
    assert client.call("XREAD", "BLOCK", 10, "STREAMS", "s", "1-0") == [[b"s", [[b"2-0", [b"f", b"v"]]]]]


def test_all_waiting_readers_are_given_a_copy(world: World) -> None:
    """Each waiting XREAD gets a copy of the added entry."""
    readers = [world.client() for _ in range(3)]
    for reader in readers:
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    fill(world.client(), "1-0")
    assert all(reader.inbox == [[[b"s", [[b"1-0", [b"f", b"v"]]]]]] for reader in readers)


# ---------------------------------------------------------------- XREADGROUP


def test_a_group_shares_out_a_stream(client: Client) -> None:
    """XREADGROUP gives each entry to one consumer of the group."""
    fill(client, "1-0", "2-0", "3-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    taken = [read(client, name, ">", "COUNT", 1) for name in ("a", "b", "a")]
    assert taken == [["1-0"], ["2-0"], ["3-0"]]
    assert read(client, "a", "0") == ["1-0", "3-0"]
    assert read(client, "b", "0") == ["2-0"]


def test_a_consumers_history_is_what_it_has_not_acknowledged(client: Client) -> None:
    """XREADGROUP with an id returns the consumer's pending entries above it, without BLOCK and NOACK."""
    fill(client, "1-0", "2-0", "3-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "c")
    client.call("XACK", "s", "g", "2-0")
    assert read(client, "c", "0") == ["1-0", "3-0"]
    assert read(client, "c", "1-0") == ["3-0"]
    assert read(client, "c", "1") == ["3-0"]
    assert read(client, "c", "3-0", "BLOCK", 1000, "NOACK") == []


def test_noack_keeps_no_record(client: Client) -> None:
    """XREADGROUP NOACK keeps no pending record."""
    fill(client, "1-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    assert read(client, "c", ">", "NOACK") == ["1-0"]
    assert client.call("XPENDING", "s", "g") == [0, None, None, None]
    assert read(client, "c", "0") == []


def test_reading_again_counts_a_delivery_and_notes_the_time(world: World, client: Client) -> None:
    """Reading a pending entry again increments its delivery count and resets its idle time."""
    fill(client, "1-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "c")
    world.advance(50)
    assert client.call("XPENDING", "s", "g", "-", "+", 1) == [[b"1-0", b"c", 50, 1]]
    read(client, "c", "0")
    assert client.call("XPENDING", "s", "g", "-", "+", 1) == [[b"1-0", b"c", 0, 2]]


# ---------------------------------------------------------------- XPENDING and XACK


def test_xpending_sums_up_and_lists(world: World, client: Client) -> None:
    """XPENDING returns a summary, or rows by range, idle time and consumer."""
    fill(client, "1-0", "2-0", "3-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "a", ">", "COUNT", 2)
    world.advance(100)
    read(client, "b")
    assert client.call("XPENDING", "s", "g") == [3, b"1-0", b"3-0", [[b"a", b"2"], [b"b", b"1"]]]
    rows = [[b"1-0", b"a", 100, 1], [b"2-0", b"a", 100, 1], [b"3-0", b"b", 0, 1]]
    assert client.call("XPENDING", "s", "g", "-", "+", 10) == rows
    assert client.call("XPENDING", "s", "g", "(1-0", "3", 10) == rows[1:]
    assert client.call("XPENDING", "s", "g", "-", "+", 1) == rows[:1]
    assert client.call("XPENDING", "s", "g", "-", "+", 10, "b") == rows[2:]
    assert client.call("XPENDING", "s", "g", "IDLE", 100, "-", "+", 10) == rows[:2]


def test_xack_counts_what_was_pending(client: Client) -> None:
    """XACK returns the number of entries that were pending, and keeps the entries in the stream."""
    fill(client, "1-0", "2-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "c")
    assert client.call("XACK", "s", "g", "1-0", "9-9", "1-0") == 1
    assert client.call("XACK", "s", "g", "1-0") == 0
    assert client.call("XPENDING", "s", "g")[0] == 1  # type: ignore[index] # a list
    assert client.call("XLEN", "s") == 2


def test_a_claimed_entry_is_acknowledged_by_id_whoever_claimed_it(client: Client) -> None:
    """XACK by id acknowledges an entry of any consumer of the group."""
    fill(client, "1-0")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    read(client, "a")
    client.call("XCLAIM", "s", "g", "b", 0, "1-0")
    assert client.call("XACK", "s", "g", "1-0") == 1
    assert read(client, "b", "0") == []
