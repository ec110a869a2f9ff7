"""Commands that wait: whose turn it is, what wakes them, what does not, and when they give up."""

import pytest

from millstream.replies import OK, Error
from support.inprocess import WAITING, Client, World

NOGROUP = "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"
WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


@pytest.fixture
def world() -> World:
    """A node with an empty stream s and its group g."""
    world = World()
    world.client().call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    return world


def reader(world: World, after: str = "$", *, block: int = 0, key: str = "s") -> Client:
    """A client that waits in XREAD."""
    client = world.client()
    assert client.send("XREAD", "BLOCK", block, "STREAMS", key, after) is WAITING
    return client


def worker(world: World, name: str = "c", *, block: int = 0, options: tuple[str, ...] = ()) -> Client:
    """A client that waits in XREADGROUP for new entries of s."""
    client = world.client()
    assert client.send("XREADGROUP", "GROUP", "g", name, "BLOCK", block, *options, "STREAMS", "s", ">") is WAITING
    return client


def entries(*ids: str, key: bytes = b"s") -> list[object]:
    """The reply with these entries of one stream."""
    return [[key, [[entry.encode(), [b"f", b"v"]] for entry in ids]]]


def add(world: World, entry: str, key: str = "s") -> None:
    assert world.client().call("XADD", key, entry, "f", "v") == entry.encode()


# ---------------------------------------------------------------- turns


def test_every_reader_without_a_group_gets_a_new_entry(world: World) -> None:
    """XREAD fans out: nobody takes anything from anybody."""
    readers = [reader(world) for _ in range(3)]
    add(world, "1-0")
    assert [client.inbox for client in readers] == [[entries("1-0")]] * 3
    assert not any(client.waits for client in readers)


def test_a_group_serves_in_the_order_of_arrival(world: World) -> None:
    """Each new entry goes to the one that has waited longest; one that was served goes to the end."""
    one, two, three = (worker(world, name) for name in ("a", "b", "c"))
    add(world, "1-0")
    assert (one.inbox, two.inbox, three.inbox) == ([entries("1-0")], [], [])
    assert one.send("XREADGROUP", "GROUP", "g", "a", "BLOCK", 0, "STREAMS", "s", ">") is WAITING
    add(world, "2-0")
    add(world, "3-0")
    add(world, "4-0")
    assert (two.inbox, three.inbox, one.inbox[1:]) == ([entries("2-0")], [entries("3-0")], [entries("4-0")])


def test_a_transaction_that_adds_many_serves_them_at_once(world: World) -> None:
    """Waiters see the state after EXEC: the first takes all, unless it asked for fewer."""
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
    """The first of its keys to have something ends the whole wait."""
    client = world.client()
    assert client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "t", "$", "$") is WAITING
    add(world, "1-0", "t")
    assert client.inbox == [entries("1-0", key=b"t")]
    add(world, "1-0", "s")
    assert len(client.inbox) == 1


def test_a_key_named_twice_is_served_once(world: World) -> None:
    """Standing twice in one line is standing once."""
    client = world.client()
    assert client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "s", "$", "$") is WAITING
    add(world, "1-0")
    assert client.inbox == [entries("1-0") * 2]
    assert not list(world.node.waits.lines.places())


def test_the_reply_is_of_the_readers_own_protocol(world: World) -> None:
    """A RESP3 client gets a map, whoever woke it."""
    client = world.client(resp=3)
    assert client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$") is WAITING
    add(world, "1-0")
    assert repr(client.inbox[0]) == f"Pairs({entries('1-0')!r})"


def test_another_database_is_another_stream(world: World) -> None:
    """A waiter waits for the key of the database it selected."""
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
    """A stream deleted and begun again with smaller ids has nothing above the frozen ``$``."""
    add(world, "5-0")
    client = reader(world)
    world.client().call("DEL", "s")
    add(world, "1-0")
    assert client.waits
    add(world, "6-0")
    assert client.inbox == [entries("6-0")]


def test_plus_is_looked_up_anew(world: World) -> None:
    """``+`` waits for whatever is last when something is there."""
    client = reader(world, "+")
    add(world, "3-0")
    assert client.inbox == [entries("3-0")]


def test_what_is_there_is_replied_at_once(world: World) -> None:
    """BLOCK waits only where there is nothing."""
    add(world, "1-0")
    client = world.client()
    assert client.call("XREAD", "BLOCK", 0, "STREAMS", "s", "0") == entries("1-0")
    assert client.call("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">") == entries("1-0")
    assert client.call("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", "1-0") == [[b"s", []]]


def test_a_reader_waits_for_a_key_that_does_not_exist(world: World) -> None:
    """A missing stream is one without entries."""
    client = reader(world, key="later")
    add(world, "1-0", "later")
    assert client.inbox == [entries("1-0", key=b"later")]


def test_nobody_waits_inside_a_transaction(world: World) -> None:
    """EXEC answers at once: what would wait is null."""
    client = world.client()
    client.call("MULTI")
    client.call("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    client.call("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
    assert client.call("EXEC") == [None, None]
    assert not client.waits


# ---------------------------------------------------------------- what wakes them


def test_added_and_deleted_in_one_transaction_wakes_nobody(world: World) -> None:
    """Both kinds of waiter look at the state after EXEC, and there is nothing in it."""
    one, two = reader(world), worker(world)
    client = world.client()
    client.call("MULTI")
    client.call("XADD", "s", "1-0", "f", "v")
    client.call("XDEL", "s", "1-0")
    client.call("EXEC")
    assert one.waits
    assert two.waits


def test_added_and_its_key_deleted_ends_only_the_groups_wait(world: World) -> None:
    """A key that is gone is an error to XREADGROUP and no news to XREAD."""
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
    """XREADGROUP cannot go on without its stream and its group; XREAD goes on waiting."""
    one, two = reader(world), worker(world)
    for line in lines:
        world.client().call(*line.split())
    assert two.inbox == [Error(error)]
    assert not two.waits
    assert one.waits or one.inbox == [entries("1-0")]  # another stream came with something above $


def test_a_key_that_expires_ends_a_groups_wait(world: World) -> None:
    """Nobody needs to look at the key: its time alone does it."""
    client = worker(world)
    world.client().call("PEXPIRE", "s", 50)
    world.advance(40)
    assert client.waits
    world.advance(200)
    assert client.inbox == [Error(NOGROUP)]


def test_renaming_a_stream_onto_the_key_serves_what_it_brings(world: World) -> None:
    """The new stream's group has new entries: they are delivered."""
    client = worker(world)
    add(world, "7-0", "other")
    world.client().call("XGROUP", "CREATE", "other", "g", "0")
    world.client().call("RENAME", "other", "s")
    assert client.inbox == [entries("7-0")]


def test_copying_a_stream_onto_the_key_serves_readers(world: World) -> None:
    """A key that appears is a key that changed."""
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
    """XNACK makes an entry claimable at once: a waiter with CLAIM gets it, one without goes on waiting."""
    add(world, "1-0")
    holder = world.client()
    holder.call("XREADGROUP", "GROUP", "g", "holder", "STREAMS", "s", ">")
    plain, claimer = worker(world, "a"), worker(world, "b", options=("CLAIM", "60000"))
    world.advance(5)
    holder.call("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0")
    assert plain.waits
    assert claimer.inbox == [[[b"s", [[b"1-0", [b"f", b"v"], world.clock.wall, 1]]]]]


def test_a_claim_wakes_when_it_is_due(world: World) -> None:
    """CLAIM with BLOCK is served when the oldest pending entry has been idle long enough, with nobody's help."""
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
    """Another consumer took the entry meanwhile: the wait goes on until that delivery is stale."""
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
    """Nothing was pending when the wait began; what another consumer is given meanwhile is claimed when it is stale."""
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
    """The group had no pending entry at all: the wait learns of the first one, and when it will be stale."""
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
    """Null for both, in each protocol; and the deadline is what the shell is told."""
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
    """A correction of the wall clock neither ends a wait nor prolongs it."""
    client = reader(world, block=100)
    world.clock.jump(jump)
    world.tick()
    world.advance(99)
    assert client.waits
    world.advance(1)
    assert client.inbox == [None]


def test_looking_again_does_not_prolong_a_wait(world: World) -> None:
    """A waiter that is woken for nothing keeps its first deadline."""
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
    """Waiters that were woken for nothing keep their order among themselves, behind nobody new."""
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
    """CLIENT UNBLOCK ends it as a timeout or as an error, once; INFO counts the error as a command that failed."""
    client, other = worker(world), world.client()
    assert other.call("CLIENT", "UNBLOCK", client.session.id, *words) == 1
    assert client.inbox == [reply]
    counted = other.call("INFO", "commandstats").partition(b"xreadgroup:")[2].partition(b"\r\n")[0]
    assert counted.endswith(b"failed_calls=%d" % (reply is not None))
    assert other.call("CLIENT", "UNBLOCK", client.session.id) == 0
    add(world, "1-0")
    assert len(client.inbox) == 1


def test_a_client_that_goes_away_leaves_nothing(world: World) -> None:
    """Its place goes to the next, and no timer keeps ticking for it."""
    one, two = worker(world, "a", block=50), worker(world, "b")
    one.close()
    add(world, "1-0")
    assert (one.inbox, two.inbox) == ([], [entries("1-0")])
    assert world.node.next_deadline(world.clock.now()) is None
    assert not list(world.node.waits.lines.places())
    assert not world.node.waits.by_session


def test_a_waiting_consumer_has_been_seen(world: World) -> None:
    """The consumer exists from the attempt on; waking it for nothing is another attempt."""
    worker(world, "idle")
    world.advance(70)
    found = world.client(3).call("XINFO", "CONSUMERS", "s", "g")
    assert found == [[[b"name", b"idle"], [b"pending", 0], [b"idle", 70], [b"inactive", -1]]]


def test_a_thousand_waiters_and_one_entry(world: World) -> None:
    """One entry goes to exactly one of them, the first; the others wait on, in order."""
    workers = [worker(world, f"c{number}") for number in range(1000)]
    add(world, "1-0")
    assert [client.waits for client in workers] == [False, *[True] * 999]
    add(world, "2-0")
    assert workers[1].inbox == [entries("2-0")]


def test_waking_for_an_error_counts_as_a_failed_call(world: World) -> None:
    """INFO tells a wait that ended in NOGROUP as one call, failed, with one error of that code."""
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
    """blocked_clients, and the keys waited for, those with group waiters apart."""
    reader(world)
    worker(world)
    told = world.client().call("INFO", "clients")
    assert isinstance(told, bytes)
    for line in (b"blocked_clients:2", b"total_blocking_keys:1", b"total_blocking_keys_on_nokey:1"):
        assert line in told


def test_quiet_clients_are_served_quietly(world: World) -> None:
    """CLIENT REPLY OFF: the entries are delivered, and no reply is made for them."""
    client = world.client()
    client.send("CLIENT", "REPLY", "OFF")
    assert client.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">") is WAITING
    add(world, "1-0")
    assert client.inbox == []
    assert world.client().call("XPENDING", "s", "g", "-", "+", 9) == [[b"1-0", b"c", 0, 1]]
    assert client.send("CLIENT", "REPLY", "ON") == OK


def test_who_was_killed_takes_nothing(world: World) -> None:
    """CLIENT KILL in a transaction holds at once: what is pushed behind it stays, and a second KILL finds nobody."""
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
