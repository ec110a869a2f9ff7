"""The node's log, the replies that wait for it, and the equality of a node rebuilt from it."""

import logging
from pathlib import Path

import msgpack
import pytest

from millstream.clock import Now
from millstream.commands.context.config import Config
from millstream.commands.table.spec import Command
from millstream.commands.table.table import TABLE
from millstream.errors import StorageError
from millstream.node.log import codec
from millstream.node.node import Node
from millstream.persistence import log as log_module
from millstream.persistence.log import Log
from millstream.replies import Error
from support.inprocess import Client, World
from support.resp import fields
from support.state import snapshot


@pytest.fixture
def world() -> World:
    """Return a node with a stream s of two entries and its group g."""
    world = World()
    client = world.client()
    for line in ("XADD s 1-0 f v", "XADD s 2-0 f v", "XGROUP CREATE s g 0"):
        client.call(*line.split())
    return world


@pytest.fixture
def client(world: World) -> Client:
    """Return a client of the node."""
    return world.client(3)


def ops(world: World, since: int = 0) -> list[list[str]]:
    """Return the transitions of each record from position ``since`` on, by name."""
    return [[step[0] for step in codec.unpack(payload)[1]] for payload in world.log.payloads[since:]]


def test_a_write_waits_for_its_own_record(world: World, client: Client) -> None:
    """The reply to a write waits for the position of the record that the command logged."""
    for number in range(3, 6):
        client.call("XADD", "s", f"{number}-0", "f", "v")
        assert client.barrier == world.log.appended


def test_a_read_waits_for_every_write_before_it(world: World, client: Client) -> None:
    """A read waits for the last write, so no client sees a change that is not durable yet."""
    for words in (["XLEN", "s"], ["XRANGE", "s", "-", "+"], ["XINFO", "STREAM", "s"], ["GET", "nothing"]):
        client.call(*words)
        assert client.barrier == world.log.appended == 3


def test_nothing_logged_is_nothing_to_wait_for() -> None:
    """A node without writes, and one without a log, replies at once."""
    fresh = World().client()
    fresh.call("PING")
    assert fresh.barrier == 0
    memory = World(logged=False).client()
    memory.call("SET", "k", "x")
    assert memory.barrier == 0


def test_a_refused_command_logs_nothing(world: World, client: Client) -> None:
    """A refused command logs nothing. Its error waits for earlier writes, which may have caused it."""
    assert isinstance(client.call("XADD", "s", "1-0", "f", "v"), Error)
    assert world.log.appended == 3
    assert client.barrier == 3


def test_a_consumer_seen_again_delays_only_those_who_look(world: World, client: Client) -> None:
    """A read that delivers nothing logs its consumer's seen time, and only XINFO, which shows it, waits for that."""
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    hard = client.barrier
    assert hard == world.log.appended
    world.clock.advance(10)
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    assert world.log.appended == hard + 1
    assert client.barrier == hard
    client.call("XLEN", "s")
    assert client.barrier == hard
    client.call("XINFO", "CONSUMERS", "s", "g")
    assert client.barrier == hard + 1


def test_a_new_consumer_is_a_write(world: World, client: Client) -> None:
    """The reply to a read that creates a consumer waits for its record."""
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    client.call("XREADGROUP", "GROUP", "g", "new", "STREAMS", "s", ">")
    assert client.barrier == world.log.appended


def test_a_consumer_is_seen_once_a_moment(world: World, client: Client) -> None:
    """Reads of a consumer within one millisecond log its seen time once, so an idle poller cannot fill a log."""
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    before = world.log.appended
    for _ in range(5):
        client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    assert world.log.appended == before


def test_seen_and_active_times_survive(world: World, client: Client) -> None:
    """After recovery XINFO has the same idle and inactive times."""
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    world.clock.advance(70)
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    world.clock.advance(5)
    expected = client.call("XINFO", "CONSUMERS", "s", "g")
    assert expected == [[[b"name", b"c"], [b"pending", 2], [b"idle", 5], [b"inactive", 75]]]
    world.node = world.recovered()
    assert world.client(3).call("XINFO", "CONSUMERS", "s", "g") == expected


def test_a_woken_reader_waits_for_the_record_of_its_delivery(world: World) -> None:
    """A delivery to a waiting reader is logged before it is sent, in a record after the one that woke the reader."""
    waiter, other = world.client(), world.client()
    other.call("XREADGROUP", "GROUP", "g", "x", "STREAMS", "s", ">")
    waiter.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
    other.call("XADD", "s", "9-0", "f", "v")
    assert ops(world)[-2:] == [["xadd"], ["gread"]]
    assert waiter.barrier == world.log.appended
    assert other.barrier == world.log.appended - 1


def test_the_death_of_a_key_is_logged(world: World, client: Client) -> None:
    """The expiry of a key is logged, by a command that finds it or by the periodic job. Recovery reads no clock."""
    client.call("SET", "looked", "x", "PX", 50)
    client.call("SET", "unseen", "x", "PX", 50)
    position = world.log.appended
    world.clock.advance(60)
    assert client.call("GET", "looked") is None
    assert ops(world, position) == [["unset"]]
    world.advance(200)
    assert ops(world, position) == [["unset"], ["unset"]]
    assert set(world.recovered().keyspace.databases[0].keys) == {b"s"}


def test_times_to_die_are_logged_as_moments(world: World, client: Client) -> None:
    """EXPIRE logs an absolute time, so a later recovery does not extend the time to live."""
    client.call("PEXPIRE", "s", 5000)
    world.clock.advance(3000)
    world.node = world.recovered()
    assert world.client().call("PTTL", "s") == 2000


def test_an_idempotent_duplicate_is_counted_durably(world: World, client: Client) -> None:
    """The counter of duplicate messages in XINFO survives a restart."""
    client.call("XADD", "t", "IDMP", "p", "m", "*", "f", "v")
    client.call("XADD", "t", "IDMP", "p", "m", "*", "f", "v")
    world.node = world.recovered()
    assert fields(world.client().call("XINFO", "STREAM", "t"))[b"iids-duplicates"] == 1


def test_a_recovered_node_goes_on_where_the_first_stopped(world: World, client: Client) -> None:
    """A recovered node has the same state, and gives the same replies to later commands."""
    client.call("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
    client.call("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0")
    first, twin = world.node, world.recovered()
    assert snapshot(twin) == snapshot(first)
    replies = []
    for node in (first, twin):
        world.node = node
        session = world.client(3)
        world.clock.wall += 0
        replies.append(
            [
                session.call("XREADGROUP", "GROUP", "g", "d", "CLAIM", 0, "STREAMS", "s", ">"),
                session.call("XADD", "s", "2-*", "f", "v"),
                session.call("XINFO", "STREAM", "s", "FULL"),
            ]
        )
    assert replies[0] == replies[1]


def test_a_recovered_node_answers_behind_its_log(world: World) -> None:
    """Replies of a recovered node wait at least for the position of the recovered log."""
    node = Node(Config(), world.log)
    assert node.recover(world.log.payloads) == 3
    outcome = node.execute(node.sessions.open(world.clock.now()), [b"XLEN", b"s"], world.clock.now())
    assert outcome is not None
    assert outcome.barrier == 3


def test_a_record_of_a_later_version_is_refused_with_advice() -> None:
    """A record of a later version is refused with advice, and is not guessed at."""
    with pytest.raises(StorageError, match="start a newer Millstream"):
        codec.unpack(msgpack.packb([codec.VERSION + 1, 0, []]))


def test_a_defect_in_a_command_does_not_end_the_node(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception in a command is an error to its client and a traceback in the log; the node continues."""

    def broken(ctx: object, argv: list[bytes]) -> None:
        raise ZeroDivisionError("a defect, planted")

    TABLE[b"broken"] = Command("broken", 1, frozenset(), (0, 0, 0), "generic", broken)  # type: ignore[arg-type] # it never returns
    try:
        client = world.client()
        with caplog.at_level(logging.ERROR):
            answer = client.call("BROKEN")
        assert answer == Error("ERR internal error in 'broken'; the server's log has the details")
        assert "a defect, planted" in caplog.text
        assert client.call("XLEN", "s") == 2
        client.call("MULTI")
        client.call("BROKEN")
        client.call("XADD", "s", "3-0", "f", "v")
        assert client.call("EXEC") == [answer, b"3-0"]
    finally:
        del TABLE[b"broken"]


def test_what_a_defect_left_behind_is_logged_all_the_same(world: World) -> None:
    """If a command fails after its first change, that change is logged, so memory and log agree."""

    def broken(ctx: object, argv: list[bytes]) -> None:
        ctx.commit(("set", 0, b"half", b"x", None))  # type: ignore[attr-defined] # a context
        raise ZeroDivisionError("a defect, planted")

    TABLE[b"broken"] = Command("broken", 1, frozenset(), (0, 0, 0), "generic", broken)  # type: ignore[arg-type] # it never returns
    try:
        logging.disable(logging.CRITICAL)
        world.client().call("BROKEN")
    finally:
        logging.disable(logging.NOTSET)
        del TABLE[b"broken"]
    assert snapshot(world.recovered()) == snapshot(world.node)
    assert b"half" in world.node.keyspace.databases[0].keys


def test_every_key_dies_within_a_round_or_two_of_its_time(world: World) -> None:
    """The periodic job deletes every expired key within a round or two, also of many, in pieces."""
    client = world.client()
    for number in range(2500):
        client.call("SET", f"k{number}", "x", "PX", 50)
    world.advance(60)
    for _ in range(8):
        world.advance(100)
    assert set(world.node.keyspace.databases[0].keys) == {b"s"}
    assert world.node.stats.lookups.expired == 2500
    client.call("SET", "one", "x", "PX", 50)
    world.advance(100)
    assert set(world.node.keyspace.databases[0].keys) == {b"s"}


def test_looking_inside_a_transaction_waits_too(world: World, client: Client) -> None:
    """EXEC's reply waits for the records that XINFO in the transaction shows, as for XINFO alone."""
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    world.clock.advance(10)
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    soft = world.log.appended
    assert client.barrier == soft - 1
    client.call("MULTI")
    client.call("XINFO", "CONSUMERS", "s", "g")
    client.call("EXEC")
    assert client.barrier == soft


def test_a_transaction_that_attempts_and_looks_waits_for_its_own_record(world: World, client: Client) -> None:
    """A transaction with a fruitless read and XINFO waits for its own record of the seen time."""
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    world.clock.advance(10)
    client.call("MULTI")
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    client.call("XINFO", "CONSUMERS", "s", "g")
    client.call("EXEC")
    assert client.barrier == world.log.appended
    client.call("EXISTS", "s")
    assert client.barrier == world.log.appended


def test_what_cannot_be_logged_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that cannot be logged ends the node, since readers could see it and a restart would not have it."""
    monkeypatch.setattr(log_module, "MAX_PAYLOAD", 1000)
    log, _ = Log.open(tmp_path)
    node = Node(Config(), log)
    session = node.sessions.open(Now(1, 1))
    assert node.execute(session, [b"SET", b"k", b"v" * 900], Now(1, 1)) is not None
    with pytest.raises(StorageError, match=r"cannot be logged.*at most 1000 bytes.*smaller parts"):
        node.execute(session, [b"SET", b"k", b"v" * 1100], Now(2, 2))
    log.close()
    after, recovery = Log.open(tmp_path)
    again = Node(Config(), after)
    again.recover(recovery.payloads())
    outcome = again.execute(again.sessions.open(Now(3, 3)), [b"STRLEN", b"k"], Now(3, 3))
    assert outcome is not None
    assert outcome.buffers == [b":900\r\n"]
    after.close()
