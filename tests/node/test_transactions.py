"""MULTI, EXEC, DISCARD, WATCH: one log record for all commands, errors inside, and the changes that break a watch."""

import pytest

from millstream.node.log import codec
from millstream.replies import OK, QUEUED, Error
from support.inprocess import Client, World
from support.state import snapshot

ABORTED = Error("EXECABORT Transaction discarded because of previous errors.")


@pytest.fixture
def world() -> World:
    """Return an empty node."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """Return a client of the node."""
    return world.client()


def test_a_transaction_is_one_record(world: World, client: Client) -> None:
    """The commands of a transaction are one log record, so recovery has all of them or none."""
    assert client.call("MULTI") == OK
    assert client.call("XADD", "s", "1-0", "f", "v") == QUEUED
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    client.call("SET", "k", "x")
    assert world.log.payloads == []
    replies = client.call("EXEC")
    assert replies == [b"1-0", OK, [[b"s", [[b"1-0", [b"f", b"v"]]]]], OK]
    assert len(world.log.payloads) == 1
    assert client.barrier == 1
    assert snapshot(world.recovered()) == snapshot(world.node)


def test_one_time_for_all_commands_inside(world: World, client: Client) -> None:
    """All commands of a transaction see the same time, in ids and in delivery times."""
    client.call("MULTI")
    client.call("XADD", "s", "*", "f", "v")
    world.clock.advance(1000)
    client.call("XADD", "s", "*", "f", "v")
    now = world.clock.wall
    assert client.call("EXEC") == [b"%d-0" % now, b"%d-1" % now]


def test_an_error_inside_stops_nothing(world: World, client: Client) -> None:
    """A command that fails at EXEC replies with its error, and the other commands run."""
    client.call("MULTI")
    client.call("SET", "k", "x")
    client.call("XADD", "k", "*", "f", "v")
    client.call("XADD", "s", "1-0", "f", "v")
    replies = client.call("EXEC")
    assert replies == [OK, Error("WRONGTYPE Operation against a key holding the wrong kind of value"), b"1-0"]
    assert client.call("XLEN", "s") == 1


@pytest.mark.parametrize("line", ["NOSUCH a", "XADD s", "XGROUP BAD s g", "WATCH k"])
def test_a_command_refused_while_queueing_aborts_all(client: Client, line: str) -> None:
    """An unknown command or wrong arity aborts the whole transaction. WATCH inside is an error without effect."""
    client.call("MULTI")
    client.call("SET", "k", "x")
    refused = client.call(*line.split())
    assert isinstance(refused, Error)
    if line.startswith("WATCH"):
        assert client.call("EXEC") == [OK]
    else:
        assert client.call("EXEC") == ABORTED
        assert client.call("EXISTS", "k") == 0
    assert client.call("EXEC") == Error("ERR EXEC without MULTI")


def test_discard_forgets_what_was_queued(world: World, client: Client) -> None:
    """DISCARD drops the queued commands and the watches."""
    client.call("WATCH", "k")
    client.call("MULTI")
    client.call("SET", "k", "x")
    assert client.call("DISCARD") == OK
    assert client.call("EXISTS", "k") == 0
    assert world.log.payloads == []
    assert client.call("DISCARD") == Error("ERR DISCARD without MULTI")
    world.client().call("SET", "k", "y")
    client.call("MULTI")
    assert client.call("EXEC") == []


def test_transactions_do_not_nest(client: Client) -> None:
    """A second MULTI is refused, and the first transaction continues."""
    client.call("MULTI")
    assert client.call("MULTI") == Error("ERR MULTI calls can not be nested")
    client.call("SET", "k", "x")
    assert client.call("EXEC") == [OK]


@pytest.mark.parametrize(
    "line",
    [
        "XADD s 2-0 f v",
        "XDEL s 1-0",
        "XTRIM s MAXLEN 0",
        "XACKDEL s g IDS 1 1-0",
        "XDELEX s IDS 1 1-0",
        "DEL s",
        "SET s x",
        "PEXPIRE s 1000",
        "RENAME s other",
        "FLUSHALL",
    ],
)
def test_a_watched_key_that_changes_stops_the_transaction(world: World, client: Client, line: str) -> None:
    """Every command that changes the entries of a stream, or the key itself, breaks a watch on it."""
    other = world.client()
    for words in ("XADD s 1-0 f v", "XGROUP CREATE s g 0", "XREADGROUP GROUP g c STREAMS s >"):
        other.call(*words.split())
    client.call("WATCH", "s")
    assert not isinstance(other.call(*line.split()), Error)
    client.call("MULTI")
    client.call("SET", "k", "x")
    assert client.call("EXEC") is None
    assert client.call("EXISTS", "k") == 0


@pytest.mark.parametrize(
    "line",
    [
        "XSETID s 9-0",
        "XGROUP CREATE s h 0",
        "XGROUP SETID s g 0",
        "XGROUP CREATECONSUMER s g new",
        "XGROUP DELCONSUMER s g c",
        "XGROUP DESTROY s g",
        "XREADGROUP GROUP g new STREAMS s >",
        "XREADGROUP GROUP g c CLAIM 0 STREAMS s >",
        "XACK s g 1-0",
        "XACKDEL s g ACKED IDS 1 1-0",
        "XNACK s g FAIL IDS 1 1-0",
        "XCLAIM s g other 0 1-0",
        "XAUTOCLAIM s g other 0 0",
        "XDELEX s DELREF IDS 1 2-0",
        "XCFGSET s IDMP-MAXSIZE 5",
        "XIDMPRECORD s p m 1-0",
        "XADD s IDMP p known * f v",
    ],
)
def test_a_stream_whose_entries_stay_lets_it_run(world: World, client: Client, line: str) -> None:
    """Deliveries, group changes, XSETID and changes of tracked messages break no watch, as in Redis."""
    other = world.client()
    for words in ("XADD s 1-0 f v", "XADD s 2-0 f v", "XADD s 3-0 f v", "XGROUP CREATE s g 0", "XGROUP CREATE s g2 0"):
        other.call(*words.split())
    other.call(*["XREADGROUP", "GROUP", "g", "c", "COUNT", "2", "STREAMS", "s", ">"])
    other.call("XDEL", "s", "2-0")
    other.call("XIDMPRECORD", "s", "p", "known", "3-0")
    client.call("WATCH", "s")
    written = len(world.log.payloads)
    assert not isinstance(other.call(*line.split()), Error)
    assert len(world.log.payloads) > written  # it did change something
    client.call("MULTI")
    client.call("SET", "k", "x")
    assert client.call("EXEC") == [OK]


def test_each_reply_of_a_transaction_is_in_the_protocol_of_its_time(client: Client) -> None:
    """HELLO inside a transaction changes the protocol of later replies, not of earlier ones."""
    client.call("MULTI")
    for line in ("GET none", "XLEN none", "HELLO 3", "GET none", "HELLO 2", "GET none", "HELLO 3", "GET none"):
        client.call(*line.split())
    answer = client.raw("EXEC")
    assert answer.startswith(b"*8\r\n$-1\r\n:0\r\n%7\r\n")
    assert answer.endswith(b"*0\r\n_\r\n")
    assert answer.count(b"*14\r\n$6\r\nserver") == 1
    assert answer.count(b"*0\r\n_\r\n*14") == answer.count(b"*0\r\n$-1\r\n%7") == 1


@pytest.mark.parametrize("line", ["XNACK s g FAIL IDS 1 1-0", "XGROUP DESTROY s g"])
def test_what_breaks_no_watch_still_wakes(world: World, client: Client, line: str) -> None:
    """A waiting reader is woken by released entries and by its group's end, though these break no watch."""
    other, reader = world.client(), world.client()
    for words in ("XADD s 1-0 f v", "XGROUP CREATE s g 0", "XREADGROUP GROUP g c STREAMS s >"):
        other.call(*words.split())
    client.call("WATCH", "s")
    reader.send(*["XREADGROUP", "GROUP", "g", "d", "BLOCK", "0", "CLAIM", "1000", "STREAMS", "s", ">"])
    assert reader.waits
    assert other.call(*line.split()) == 1
    assert not reader.waits
    client.call("MULTI")
    assert client.call("EXEC") == []


@pytest.mark.parametrize(
    "line",
    ["XLEN s", "XRANGE s - +", "XREAD STREAMS s 0", "XADD t 1-0 f v", "XADD s 1-0 f v", "XACK s g 5-0", "XDEL s 7-0"],
)
def test_a_watched_key_that_stays_lets_it_run(world: World, client: Client, line: str) -> None:
    """Reads, changes of other keys, refused commands and commands without effect break no watch."""
    other = world.client()
    for words in ("XADD s 1-0 f v", "XGROUP CREATE s g 0"):
        other.call(*words.split())
    client.call("WATCH", "s")
    other.call(*line.split())
    client.call("MULTI")
    client.call("SET", "k", "x")
    assert client.call("EXEC") == [OK]


def test_a_watched_key_whose_time_comes_stops_the_transaction(world: World, client: Client) -> None:
    """The expiry of a key breaks a watch on it, also if no command has read the key since."""
    client.call("SET", "k", "x", "PX", 50)
    client.call("WATCH", "k")
    world.clock.advance(60)
    client.call("MULTI")
    client.call("PING")
    assert client.call("EXEC") is None


def test_unwatch_and_exec_end_a_watch(world: World, client: Client) -> None:
    """After UNWATCH, and after any EXEC, earlier watches do not count."""
    client.call("WATCH", "k")
    client.call("UNWATCH")
    world.client().call("SET", "k", "x")
    client.call("MULTI")
    assert client.call("EXEC") == []
    client.call("WATCH", "k")
    world.client().call("SET", "k", "y")
    client.call("MULTI")
    assert client.call("EXEC") is None
    client.call("MULTI")
    assert client.call("EXEC") == []
    assert not world.node.sessions.watches


def test_what_is_queued_is_arguments_not_references(world: World, client: Client) -> None:
    """Queued commands run with their arguments as sent, on the state at EXEC."""
    client.call("MULTI")
    client.call("XADD", "s", "5-*", "f", "v")
    world.client().call("XADD", "s", "5-3", "f", "v")
    assert client.call("EXEC") == [b"5-4"]


def test_a_record_is_a_list_of_plain_values(world: World, client: Client) -> None:
    """A record has a version, a time, and transitions that begin with their names."""
    client.call("XADD", "s", "1-0", "f", "v")
    wall, steps = codec.unpack(world.log.payloads[0])
    assert wall == world.clock.wall
    assert [step[0] for step in steps] == ["xnew", "xadd"]


def test_a_malformed_exec_ends_the_transaction(world: World, client: Client) -> None:
    """EXEC with a surplus argument discards the transaction and its watches with an error, as in Redis."""
    refused = Error("EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command")
    assert client.call("EXEC", "now") == refused
    client.call("WATCH", "k")
    client.call("MULTI")
    assert client.call("SET", "k", "1") == QUEUED
    assert client.call("EXEC", "now") == refused
    assert client.call("GET", "k") is None
    assert client.call("EXEC") == Error("ERR EXEC without MULTI")
    assert not world.node.sessions.watches
