"""Commands that block: the order of clients, the events that wake them or do not, and timeouts."""

import pytest

from millstream.replies import OK, Error
from support.inprocess import WAITING, Client, World

NOGROUP = "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"
WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


@pytest.fixture
def world() -> World:
    """Return a node with an empty stream s and its group g."""
    world = World()
    world.client().call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    return world


def reader(world: World, after: str = "$", *, block: int = 0, key: str = "s") -> Client:
    """Return a client blocked in XREAD."""
    client = world.client()
    assert client.send("XREAD", "BLOCK", block, "STREAMS", key, after) is WAITING
    return client


def worker(world: World, name: str = "c", *, block: int = 0, options: tuple[str, ...] = ()) -> Client:
    """Return a client blocked in XREADGROUP for new entries of s."""
    client = world.client()
    assert client.send("XREADGROUP", "GROUP", "g", name, "BLOCK", block, *options, "STREAMS", "s", ">") is WAITING
    return client


def entries(*ids: str, key: bytes = b"s") -> list[object]:
    """Return the reply with these entries of one stream."""
    return [[key, [[entry.encode(), [b"f", b"v"]] for entry in ids]]]


def add(world: World, entry: str, key: str = "s") -> None:
    assert world.client().call("XADD", key, entry, "f", "v") == entry.encode()


# ---------------------------------------------------------------- turns


def test_every_reader_without_a_group_gets_a_new_entry(world: World) -> None:
    """Every client blocked in XREAD gets each new entry."""
    readers = [reader(world) for _ in range(3)]
    add(world, "1-0")
    assert [client.inbox for client in readers] == [[entries("1-0")]] * 3
    assert not any(client.waits for client in readers)


def test_a_group_serves_in_the_order_of_arrival(world: World) -> None:
    """In a group each new entry goes to the client that waits longest; a served client goes to the end."""
    one, two, three = (worker(world, name) for name in ("a", "b", "c"))
    add(world, "1-0")
    assert (one.inbox, two.inbox, three.inbox) == ([entries("1-0")], [], [])
    assert one.send("XREADGROUP", "GROUP", "g", "a", "BLOCK", 0, "STREAMS", "s", ">") is WAITING
    add(world, "2-0")
    add(world, "3-0")
    add(world, "4-0")
    assert (two.inbox, three.inbox, one.inbox[1:]) == ([entries("2-0")], [entries("3-0")], [entries("4-0")])


def test_a_transaction_that_adds_many_serves_them_at_once(world: World) -> None:
    """Entries added in a transaction are delivered after EXEC: the first waiting client gets all, up to its COUNT."""
    few = worker(world, "few", options=("COUNT", "2"))
    rest = worker(world, "rest")
    client = world.client()
    client.call("MULTI")
    for entry in ("1-0", "2-0", "3-0", "4-0"):
        client.call("XADD", "s", entry, "f", "v")
    client.call("EXEC")
    assert few.inbox == [entries("1-0", "2-0")]
    assert rest.inbox == [entries("3-0", "4-0")]


def test_a_waiter_for_two_keys_is_served_once(world: World) -> None:
    """A client that waits for two keys is served once, from the first key that gets an entry."""
    client = world.client()
    assert client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "t", "$", "$") is WAITING
    add(world, "1-0", "t")
    assert client.inbox == [entries("1-0", key=b"t")]
    add(world, "1-0", "s")
    assert len(client.inbox) == 1


def test_a_key_named_twice_is_served_once(world: World) -> None:
    """A client that names a key twice is served once."""
    client = world.client()
    assert client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "s", "$", "$") is WAITING
    add(world, "1-0")
    assert client.inbox == [entries("1-0") * 2]
    assert not list(world.node.waits.lines.places())


def test_the_reply_is_of_the_readers_own_protocol(world: World) -> None:
    """A woken RESP3 client gets a map, whatever the protocol of the client that added the entry."""
    client = world.client(resp=3)
    assert client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$") is WAITING
    add(world, "1-0")
    assert repr(client.inbox[0]) == f"Pairs({entries('1-0')!r})"


def test_another_database_is_another_stream(world: World) -> None:
    """A client waits for the key in its selected database only."""
    client = world.client()
    client.call("SELECT", 1)
    assert client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$") is WAITING
    add(world, "1-0")
    assert client.waits
    other = world.client()
    other.call("SELECT", 1)
    other.call("XADD", "s", "9-0", "f", "v")
    assert client.inbox == [entries("9-0")]


# ---------------------------------------------------------------- what they wait for


def test_dollar_is_what_it_was_when_the_wait_began(world: World) -> None:
    """``$`` is fixed when the wait begins, so a stream recreated with smaller ids wakes no such reader."""
    add(world, "5-0")
    client = reader(world)
    world.client().call("DEL", "s")
    add(world, "1-0")
    assert client.waits
    add(world, "6-0")
    assert client.inbox == [entries("6-0")]


def test_plus_is_looked_up_anew(world: World) -> None:
    """``+`` is resolved when an entry is there: the waiting client gets the last one."""
    client = reader(world, "+")
    add(world, "3-0")
    assert client.inbox == [entries("3-0")]


def test_what_is_there_is_replied_at_once(world: World) -> None:
    """BLOCK waits only if there is no entry yet."""
    add(world, "1-0")
    client = world.client()
    assert client.call("XREAD", "BLOCK", 0, "STREAMS", "s", "0") == entries("1-0")
    assert client.call("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">") == entries("1-0")
    assert client.call("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", "1-0") == [[b"s", []]]


def test_a_reader_waits_for_a_key_that_does_not_exist(world: World) -> None:
    """A client may wait for a key that does not exist, as for an empty stream."""
    client = reader(world, key="later")
    add(world, "1-0", "later")
    assert client.inbox == [entries("1-0", key=b"later")]


def test_nobody_waits_inside_a_transaction(world: World) -> None:
    """A blocking read inside a transaction returns null at once."""
    client = world.client()
    client.call("MULTI")
    client.call("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    client.call("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
    assert client.call("EXEC") == [None, None]
    assert not client.waits


# ---------------------------------------------------------------- what wakes them


def test_added_and_deleted_in_one_transaction_wakes_nobody(world: World) -> None:
    """An entry added and deleted in one transaction wakes neither XREAD nor XREADGROUP."""
    one, two = reader(world), worker(world)
    client = world.client()
    client.call("MULTI")
    client.call("XADD", "s", "1-0", "f", "v")
    client.call("XDEL", "s", "1-0")
    client.call("EXEC")
    assert one.waits
    assert two.waits


def test_added_and_its_key_deleted_ends_only_the_groups_wait(world: World) -> None:
    """If a transaction adds an entry and deletes the key, XREADGROUP gets an error and XREAD waits on."""
    one, two = reader(world), worker(world)
    client = world.client()
    client.call("MULTI")
    client.call("XADD", "s", "1-0", "f", "v")
    client.call("DEL", "s")
    client.call("EXEC")
    assert one.waits
    assert two.inbox == [Error(NOGROUP)]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["DEL s"], NOGROUP),
        (["UNLINK s"], NOGROUP),
        (["FLUSHALL"], NOGROUP),
        (["FLUSHDB"], NOGROUP),
        (["RENAME s elsewhere"], NOGROUP),
        (["SET s x"], WRONGTYPE),
        (["XGROUP DESTROY s g"], NOGROUP),
        (["XADD other 1-0 f v", "RENAME other s"], NOGROUP),
        (["SET other x", "RENAME other s"], WRONGTYPE),
        (["SET other x", "COPY other s REPLACE"], WRONGTYPE),
    ],
)
def test_what_ends_a_groups_wait_with_an_error(world: World, lines: list[str], error: str) -> None:
    """A blocked XREADGROUP ends with an error if its stream or group disappears. XREAD waits on."""
    one, two = reader(world), worker(world)
    for line in lines:
        world.client().call(*line.split())
    assert two.inbox == [Error(error)]
    assert not two.waits
    assert one.waits or one.inbox == [entries("1-0")]  # another stream came with something above $


def test_a_key_that_expires_ends_a_groups_wait(world: World) -> None:
    """The expiry of a key ends a blocked XREADGROUP, without any command on the key."""
    client = worker(world)
    world.client().call("PEXPIRE", "s", 50)
    world.advance(40)
    assert client.waits
    world.advance(200)
    assert client.inbox == [Error(NOGROUP)]


def test_renaming_a_stream_onto_the_key_serves_what_it_brings(world: World) -> None:
    """A RENAME onto the key delivers the new stream's entries to the blocked group reader."""
    client = worker(world)
    add(world, "7-0", "other")
    world.client().call("XGROUP", "CREATE", "other", "g", "0")
    world.client().call("RENAME", "other", "s")
    assert client.inbox == [entries("7-0")]


def test_copying_a_stream_onto_the_key_serves_readers(world: World) -> None:
    """A COPY onto the key serves clients blocked in XREAD."""
    client = reader(world, "0", key="copy")
    add(world, "7-0")
    world.client().call("COPY", "s", "copy")
    assert client.inbox == [entries("7-0", key=b"copy")]


@pytest.mark.parametrize(
    "line", ["XGROUP SETID s g 0", "XSETID s 9-0", "XACK s g 1-0", "XTRIM s MAXLEN 5", "XGROUP CREATE s h 0"]
)
def test_what_wakes_nobody(world: World, line: str) -> None:
    """Moving a group back, setting ids and acknowledging wake no reader, as in Redis."""
    add(world, "1-0")
    world.client().call("XREADGROUP", "GROUP", "g", "x", "STREAMS", "s", ">")
    one, two = reader(world), worker(world)
    world.client().call(*line.split())
    assert one.waits
    assert two.waits


def test_a_release_wakes_those_who_claim(world: World) -> None:
    """XNACK makes an entry claimable at once: a blocked reader with CLAIM gets it, one without waits on."""
    add(world, "1-0")
    holder = world.client()
    holder.call("XREADGROUP", "GROUP", "g", "holder", "STREAMS", "s", ">")
    plain, claimer = worker(world, "a"), worker(world, "b", options=("CLAIM", "60000"))
    world.advance(5)
    holder.call("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0")
    assert plain.waits
    assert claimer.inbox == [[[b"s", [[b"1-0", [b"f", b"v"], world.clock.wall, 1]]]]]


def test_a_claim_wakes_when_it_is_due(world: World) -> None:
    """CLAIM with BLOCK gets the oldest pending entry as soon as it is idle long enough, without another command."""
    add(world, "1-0")
    world.client().call("XREADGROUP", "GROUP", "g", "holder", "STREAMS", "s", ">")
    world.advance(100)
    claimer = worker(world, "b", options=("CLAIM", "250"))
    assert world.node.next_deadline(world.clock.now()) == world.clock.mono + 100  # to look at the wall clock
    world.advance(100)
    assert world.node.next_deadline(world.clock.now()) == world.clock.mono + 50
    world.advance(49)
    assert claimer.waits
    world.advance(1)
    assert claimer.inbox == [[[b"s", [[b"1-0", [b"f", b"v"], 250, 1]]]]]


def test_a_claim_that_came_too_late_waits_for_the_next(world: World) -> None:
    """If another consumer takes the entry first, a blocked CLAIM waits until that delivery is idle long enough."""
    add(world, "1-0")
    world.client().call("XREADGROUP", "GROUP", "g", "holder", "STREAMS", "s", ">")
    claimer = worker(world, "b", options=("CLAIM", "100"))
    world.advance(60)
    world.client().call("XCLAIM", "s", "g", "other", 0, "1-0")
    world.advance(40)
    assert claimer.waits
    world.advance(60)
    assert claimer.inbox == [[[b"s", [[b"1-0", [b"f", b"v"], 100, 2]]]]]


def test_a_claim_hears_of_entries_that_become_pending_later(world: World) -> None:
    """A blocked CLAIM also gets entries that become pending after its wait began."""
    claimer = worker(world, "b", options=("CLAIM", "100"))
    world.client().call("XGROUP", "SETID", "s", "g", "0")
    add(world, "1-0")
    assert claimer.inbox == [[[b"s", [[b"1-0", [b"f", b"v"], 0, 0]]]]]
    add(world, "2-0")
    world.client().call("XREADGROUP", "GROUP", "g", "holder", "STREAMS", "s", ">")
    world.client().call("XACK", "s", "g", "1-0")
    late = worker(world, "late", options=("CLAIM", "3600000"))
    assert late.waits
    world.client().call("XCLAIM", "s", "g", "holder", 0, "2-0", "IDLE", 3_599_900, "JUSTID")
    assert late.waits
    world.advance(100)
    assert late.inbox == [[[b"s", [[b"2-0", [b"f", b"v"], 3_600_000, 1]]]]]


def test_a_claim_hears_of_the_first_entry_that_becomes_pending(world: World) -> None:
    """A blocked CLAIM in a group without pending entries gets the first one once it is idle long enough."""
    claimer = worker(world, "b", options=("CLAIM", "100"))
    other = world.client()
    other.call("MULTI")
    other.call("XADD", "s", "1-0", "f", "v")
    other.call("XREADGROUP", "GROUP", "g", "holder", "STREAMS", "s", ">")
    other.call("EXEC")
    assert claimer.waits
    world.advance(100)
    assert claimer.inbox == [[[b"s", [[b"1-0", [b"f", b"v"], 100, 1]]]]]


# ---------------------------------------------------------------- giving up


def test_a_wait_ends_at_its_time(world: World) -> None:
    """A wait ends at its deadline with null in either protocol, and the node reports the deadline to the event loop."""
    one, two = reader(world, block=100), worker(world, block=200)
    assert world.node.next_deadline(world.clock.now()) == world.clock.mono + 100
    world.advance(99)
    assert one.waits
    world.advance(1)
    assert one.inbox == [None]
    assert two.waits
    world.advance(100)
    assert two.inbox == [None]
    assert world.node.next_deadline(world.clock.now()) is None


@pytest.mark.parametrize("jump", [-31_536_000_000, -1000, 1000, 31_536_000_000])
def test_waiting_is_measured_by_a_clock_that_does_not_jump(world: World, jump: int) -> None:
    """A change of the wall clock neither ends a wait nor prolongs it."""
    client = reader(world, block=100)
    world.clock.jump(jump)
    world.tick()
    world.advance(99)
    assert client.waits
    world.advance(1)
    assert client.inbox == [None]


def test_looking_again_does_not_prolong_a_wait(world: World) -> None:
    """A client that is woken and finds nothing keeps its first deadline."""
    one, two = worker(world, "a", block=1000), worker(world, "b", block=100)
    world.advance(60)
    client = world.client()
    client.call("MULTI")
    client.call("XADD", "s", "1-0", "f", "v")
    client.call("XDEL", "s", "1-0")
    client.call("EXEC")
    world.advance(39)
    assert two.waits
    world.advance(1)
    assert two.inbox == [None]
    assert one.waits


def test_one_that_looked_in_vain_goes_to_the_end_of_the_line(world: World) -> None:
    """Clients that are woken and find nothing keep their order among themselves."""
    one, two = worker(world, "a"), worker(world, "b")
    client = world.client()
    client.call("MULTI")
    client.call("XADD", "s", "1-0", "f", "v")
    client.call("XDEL", "s", "1-0")
    client.call("EXEC")
    add(world, "2-0")
    assert one.inbox == [entries("2-0")]
    assert two.waits


@pytest.mark.parametrize(
    ("words", "reply"),
    [((), None), (("TIMEOUT",), None), (("ERROR",), Error("UNBLOCKED client unblocked via CLIENT UNBLOCK"))],
)
def test_another_client_may_end_a_wait(world: World, words: tuple[str, ...], reply: object) -> None:
    """CLIENT UNBLOCK ends a wait once, as a timeout or with an error, which INFO counts as a failed call."""
    client, other = worker(world), world.client()
    assert other.call("CLIENT", "UNBLOCK", client.session.id, *words) == 1
    assert client.inbox == [reply]
    counted = other.call("INFO", "commandstats").partition(b"xreadgroup:")[2].partition(b"\r\n")[0]
    assert counted.endswith(b"failed_calls=%d" % (reply is not None))
    assert other.call("CLIENT", "UNBLOCK", client.session.id) == 0
    add(world, "1-0")
    assert len(client.inbox) == 1


def test_a_client_that_goes_away_leaves_nothing(world: World) -> None:
    """A client that disconnects leaves the queue to the next one, and its timer is removed."""
    one, two = worker(world, "a", block=50), worker(world, "b")
    one.close()
    add(world, "1-0")
    assert (one.inbox, two.inbox) == ([], [entries("1-0")])
    assert world.node.next_deadline(world.clock.now()) is None
    assert not list(world.node.waits.lines.places())
    assert not world.node.waits.by_session


def test_a_waiting_consumer_has_been_seen(world: World) -> None:
    """A blocked consumer exists from its first attempt on; each wake-up without an entry counts as another attempt."""
    worker(world, "idle")
    world.advance(70)
    found = world.client(3).call("XINFO", "CONSUMERS", "s", "g")
    assert found == [[[b"name", b"idle"], [b"pending", 0], [b"idle", 70], [b"inactive", -1]]]


def test_a_thousand_waiters_and_one_entry(world: World) -> None:
    """One entry goes to exactly the first of a thousand waiting clients; the others stay in order."""
    workers = [worker(world, f"c{number}") for number in range(1000)]
    add(world, "1-0")
    assert [client.waits for client in workers] == [False, *[True] * 999]
    add(world, "2-0")
    assert workers[1].inbox == [entries("2-0")]


def test_waking_for_an_error_counts_as_a_failed_call(world: World) -> None:
    """INFO counts a wait that ended with NOGROUP as one failed call, with one error of that code."""
    worker(world)
    client = world.client()
    client.call("CONFIG", "RESETSTAT")
    assert client.call("XGROUP", "DESTROY", "s", "g") == 1
    told = client.call("INFO", "all")
    assert isinstance(told, bytes)
    assert b"errorstat_NOGROUP:count=1" in told
    assert b"total_error_replies:1" in told
    line = next(line for line in told.splitlines() if line.startswith(b"cmdstat_xreadgroup:"))
    assert b"failed_calls=1" in line


def test_info_counts_the_waiting(world: World) -> None:
    """INFO has the number of blocked clients and of keys with waiting clients, with group readers counted apart."""
    reader(world)
    worker(world)
    told = world.client().call("INFO", "clients")
    assert isinstance(told, bytes)
    for line in (b"blocked_clients:2", b"total_blocking_keys:1", b"total_blocking_keys_on_nokey:1"):
        assert line in told


def test_quiet_clients_are_served_quietly(world: World) -> None:
    """A blocked client with CLIENT REPLY OFF gets its entries delivered without a reply."""
    client = world.client()
    client.send("CLIENT", "REPLY", "OFF")
    assert client.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">") is WAITING
    add(world, "1-0")
    assert client.inbox == []
    assert world.client().call("XPENDING", "s", "g", "-", "+", 9) == [[b"1-0", b"c", 0, 1]]
    assert client.send("CLIENT", "REPLY", "ON") == OK


def test_who_was_killed_takes_nothing(world: World) -> None:
    """A waiting client that CLIENT KILL ends inside a transaction gets nothing of what is pushed after that."""
    client, waiting, listening = world.client(), world.client(), world.client()
    assert waiting.send("BLPOP", "l", 0) is WAITING
    listening.call("SUBSCRIBE", "c")
    kills = [("CLIENT", "KILL", "ID", each.session.id) for each in (waiting, waiting, listening)]
    for words in (("MULTI",), *kills, ("PUBLISH", "c", "m"), ("RPUSH", "l", "x")):
        client.call(*words)
    assert client.call("EXEC") == [1, 0, 1, 0, 1]
    assert client.call("LRANGE", "l", 0, -1) == [b"x"]
    assert waiting.inbox == []
    assert b"id=%d " % waiting.session.id not in client.call("CLIENT", "LIST")
