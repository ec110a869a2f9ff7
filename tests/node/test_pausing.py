"""CLIENT PAUSE: the commands that it delays, their order afterwards, and the passing of time meanwhile."""

import pytest

from millstream.replies import OK, QUEUED, Error
from support.inprocess import WAITING, Client, World


@pytest.fixture
def world() -> World:
    """Return a node with a stream, a group with one pending entry, and a string."""
    world = World()
    client = world.client()
    for line in ("XADD s 1-0 f v", "XGROUP CREATE s g 0", "XREADGROUP GROUP g c STREAMS s >", "SET k v"):
        client.call(*line.split())
    return world


@pytest.fixture
def client(world: World) -> Client:
    """Return the client that pauses."""
    return world.client()


def held(world: World, line: str) -> Client:
    """Return a client whose command is delayed."""
    other = world.client()
    assert other.send(*line.split()) is WAITING
    assert other.waits
    return other


def test_all_holds_back_everything_until_its_time_is_over(world: World, client: Client) -> None:
    """CLIENT PAUSE ALL delays every command, even UNPAUSE. After its time they run in the order of arrival."""
    assert client.call("CLIENT", "PAUSE", 1000) == OK
    first = held(world, "APPEND k 1")
    second = held(world, "APPEND k 2")
    third = held(world, "GET k")
    fourth = held(world, "CLIENT UNPAUSE")
    world.advance(999)
    assert not any(each.inbox for each in (first, second, third, fourth))
    world.advance(1)
    assert [each.inbox for each in (first, second, third, fourth)] == [[2], [3], [b"v12"], [OK]]
    assert not first.waits
    assert client.call("GET", "k") == b"v12"


@pytest.mark.parametrize(
    "line", ["SET k x", "XADD s * f v", "XREADGROUP GROUP g c STREAMS s >", "PUBLISH c m", "EVAL return 0", "DEL none"]
)
def test_write_holds_back_what_may_write(world: World, client: Client, line: str) -> None:
    """CLIENT PAUSE WRITE delays each command that may write, even if it would change nothing."""
    client.call("CLIENT", "PAUSE", 1000, "WRITE")
    words = ["EVAL", "return 0", "0"] if line.startswith("EVAL") else line.split()
    other = world.client()
    assert other.send(*words) is WAITING
    client.call("CLIENT", "UNPAUSE")
    world.deliver()
    assert len(other.inbox) == 1


@pytest.mark.parametrize("line", ["GET k", "XREAD STREAMS s 0", "PING", "CLIENT ID", "MULTI", "INFO", "EVAL_RO x"])
def test_write_lets_readers_go_on(world: World, client: Client, line: str) -> None:
    """CLIENT PAUSE WRITE lets commands that only read run at once."""
    client.call("CLIENT", "PAUSE", 1000, "write")
    words = ["EVAL_RO", "return 0", "0"] if line.startswith("EVAL_RO") else line.split()
    world.client().call(*words)


def test_a_transaction_is_held_back_where_it_would_write(world: World, client: Client) -> None:
    """A write in MULTI is delayed before it is queued. EXEC is delayed if a write was queued before the pause."""
    reading, writing, late = world.client(), world.client(), world.client()
    for each in (reading, writing, late):
        each.call("MULTI")
    reading.call("GET", "k")
    writing.call("APPEND", "k", "1")
    client.call("CLIENT", "PAUSE", 1000, "WRITE")
    assert reading.call("EXEC") == [b"v"]
    assert writing.send("EXEC") is WAITING
    assert late.send("APPEND", "k", "2") is WAITING
    world.advance(1000)
    assert writing.inbox == [[2]]
    assert late.inbox == [QUEUED]
    assert late.call("EXEC") == [3]


def test_a_pause_is_never_shortened_but_may_be_loosened(world: World, client: Client) -> None:
    """The later end of two pauses counts. The mode of the last one counts, and releases commands it does not cover."""
    client.call("CLIENT", "PAUSE", 1000, "WRITE")
    client.call("CLIENT", "PAUSE", 10, "WRITE")
    writer = held(world, "APPEND k 1")
    world.advance(500)
    assert writer.waits
    client.call("CLIENT", "PAUSE", 0)
    reader, opener = held(world, "GET k"), held(world, "CLIENT PAUSE 0 WRITE")
    world.advance(500)
    assert (writer.inbox, reader.inbox, opener.inbox) == ([2], [b"v1"], [OK])
    assert world.client().call("APPEND", "k", "2") == 3  # PAUSE 0 alone pauses nothing


def test_waits_time_out_in_a_pause(world: World, client: Client) -> None:
    """A blocked read times out on time during a pause."""
    reader = world.client()
    assert reader.send("XREAD", "BLOCK", 100, "STREAMS", "s", "$") is WAITING
    client.call("CLIENT", "PAUSE", 1000)
    world.advance(100)
    assert reader.inbox == [None]
    assert reader.send("PING") is WAITING


def test_nothing_dies_in_a_pause(world: World, client: Client) -> None:
    """During a pause an expired key is hidden from readers. It is deleted afterwards."""
    client.call("PEXPIRE", "k", 10)
    client.call("CLIENT", "PAUSE", 1000, "WRITE")
    written = len(world.log.payloads)
    world.advance(500)
    assert client.call("GET", "k") is None
    assert len(world.log.payloads) == written
    world.advance(1000)
    assert len(world.log.payloads) == written + 1


def test_what_is_due_waits_for_the_end(world: World, client: Client) -> None:
    """During a pause of writes a blocked CLAIM takes no entry that became due: it is served at the end."""
    reader = world.client()
    assert reader.send("XREADGROUP", "GROUP", "g", "d", "BLOCK", 0, "CLAIM", 100, "STREAMS", "s", ">") is WAITING
    client.call("CLIENT", "PAUSE", 1000, "WRITE")
    world.advance(500)
    assert reader.waits
    deadline = world.node.next_deadline(world.clock.now())
    assert deadline == world.clock.now().mono + 500
    world.advance(500)
    world.advance(1)
    assert len(reader.inbox) == 1


def test_who_is_held_back_can_be_killed(world: World, client: Client) -> None:
    """A delayed client counts as blocked in INFO. CLIENT UNBLOCK ignores it, and CLIENT KILL drops its command."""
    client.call("CLIENT", "PAUSE", 1000, "WRITE")
    writer = held(world, "SET k lost")
    assert client.call("CLIENT", "UNBLOCK", writer.session.id) == 0
    info = client.call("INFO", "clients")
    assert isinstance(info, bytes)
    assert b"blocked_clients:1" in info
    assert client.call("CLIENT", "KILL", "ID", writer.session.id) == 1
    writer.close()
    client.call("CLIENT", "UNPAUSE")
    world.deliver()
    assert client.call("GET", "k") == b"v"


def test_refusals_are_not_held_back(world: World, client: Client) -> None:
    """An unknown or malformed command gets its error at once during a pause, as in Redis."""
    client.call("CLIENT", "PAUSE", 1000)
    assert isinstance(world.client().call("NOSUCH"), Error)
    assert isinstance(world.client().call("GET"), Error)


def test_what_runs_inside_exec_is_not_held_back(world: World, client: Client) -> None:
    """A transaction that contains CLIENT PAUSE runs to its end."""
    client.call("MULTI")
    client.call("CLIENT", "PAUSE", 1000)
    client.call("APPEND", "k", "1")
    assert client.call("EXEC") == [OK, 2]
    assert client.send("PING") is WAITING


def test_a_pause_of_writers_lets_scripts_without_writes_run(world: World, client: Client) -> None:
    """A script with the no-writes flag runs during a pause of writes, by text, SHA-1 and in MULTI; others wait."""
    reading, open_ended = "#!lua flags=no-writes\nreturn 1", "#!lua\nreturn 1"
    sha = client.call("SCRIPT", "LOAD", reading)
    other = client.call("SCRIPT", "LOAD", open_ended)
    client.call("CLIENT", "PAUSE", 1000, "WRITE")
    assert client.call("EVAL", reading, 0) == 1
    assert client.call("EVALSHA", sha, 0) == 1
    assert client.call("EVAL_RO", "return 1", 0) == client.call("EVALSHA_RO", sha, 0) == 1
    client.call("MULTI")
    client.call("EVAL", reading, 0)
    assert client.call("EXEC") == [1]
    waiting = (
        ("EVAL", open_ended),
        ("EVALSHA", other),
        ("EVAL", "return 1"),
        ("EVAL", "#!lua flags=no\n"),
        ("EVALSHA", "x"),
    )
    for words in waiting:
        assert world.client().send(*words, 0) is WAITING


@pytest.mark.parametrize("wait", ["BLPOP l 0", "BLMOVE l m LEFT LEFT 0", "XREADGROUP GROUP g d BLOCK 0 STREAMS s >"])
def test_who_waits_is_not_served_by_the_step_that_pauses(world: World, client: Client, wait: str) -> None:
    """If a transaction pauses writes and then adds an entry, blocked group readers are served after the pause."""
    waiting = world.client()
    assert waiting.send(*wait.split()) is WAITING
    for line in ("MULTI", "CLIENT PAUSE 1000 WRITE", "RPUSH l x", "XADD s 2-0 f v", "EXEC"):
        client.call(*line.split())
    assert not waiting.inbox
    assert waiting.waits
    assert client.call("LRANGE", "l", 0, -1) == [b"x"]
    client.call("CLIENT", "UNPAUSE")
    world.deliver()
    assert len(waiting.inbox) == 1
    assert not waiting.waits


def test_a_reader_of_new_entries_gets_the_one_of_the_step_that_pauses(world: World, client: Client) -> None:
    """For XREAD, ``$`` is the end of the stream at its beginning, also if a pause of all delays its reply."""
    reader = world.client()
    assert reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$") is WAITING
    client.call("MULTI")
    client.call("XADD", "s", "9-9", "f", "new")
    client.call("CLIENT", "PAUSE", 1000)
    client.call("EXEC")
    assert reader.waits
    world.advance(1000)
    assert reader.inbox == [[[b"s", [[b"9-9", [b"f", b"new"]]]]]]


def test_a_reader_is_served_by_the_step_that_pauses_writers(world: World, client: Client) -> None:
    """If a transaction pauses writes and then adds an entry, XREAD is served at once, since it only reads."""
    waiting = world.client()
    assert waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$") is WAITING
    for line in ("MULTI", "CLIENT PAUSE 1000 WRITE", "XADD s 2-0 f v", "EXEC"):
        client.call(*line.split())
    assert waiting.inbox == [[[b"s", [[b"2-0", [b"f", b"v"]]]]]]


@pytest.mark.parametrize("line", ["GET none x", "SET k other"])
def test_a_transaction_that_will_fail_keeps_nothing_more(world: World, client: Client, line: str) -> None:
    """A write queued after a transaction is bound to fail is dropped: EXEC is not delayed, and CLIENT LIST omits it."""
    other = world.client()
    client.call("WATCH", "k")
    client.call("MULTI")
    client.call("GET", "k")
    (client if line.startswith("GET") else other).call(*line.split())
    client.call("SET", "k", "mine")
    assert b" multi=1 " in client.world.client().call("CLIENT", "LIST")
    other.call("CLIENT", "PAUSE", 1000, "WRITE")
    assert client.call("EXEC") is None or line.startswith("GET")
