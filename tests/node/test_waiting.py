"""WAIT and WAITAOF without replicas return a count of 0 after their timeout. WAITAOF counts the local disk."""

import pytest

from conformance.pipe import Pipe
from millstream.replies import Error
from support.inprocess import WAITING, World, to_words
from support.servers import ServerProcess


def test_wait_answers_when_its_time_is_up() -> None:
    """WAIT returns at its timeout and not before. With 0 it waits until CLIENT UNBLOCK, with a count or an error."""
    world = World()
    one, two, three = world.client(), world.client(), world.client()
    assert one.send("WAIT", 1, 100) is WAITING
    assert two.send("WAIT", 2, 0) is WAITING
    assert three.send("WAIT", 1, 0) is WAITING
    world.advance(99)
    assert not one.inbox
    world.advance(1)
    assert one.inbox == [0]
    world.advance(10_000_000)
    assert two.waits
    assert one.call("CLIENT", "UNBLOCK", two.session.id) == 1
    assert one.call("CLIENT", "UNBLOCK", three.session.id, "ERROR") == 1
    assert two.inbox == [0]
    assert three.inbox == [Error("UNBLOCKED client unblocked via CLIENT UNBLOCK")]


def test_wait_does_not_wait_inside_a_transaction() -> None:
    """WAIT returns at once inside a transaction, and if it requests no replica."""
    client = World({"appendonly": "yes"}).client()
    assert client.call("WAIT", 0, 0) == 0
    client.call("MULTI")
    client.call("WAIT", 1, 0)
    client.call("WAITAOF", 1, 1, 0)
    assert client.call("EXEC") == [0, [1, 0]]


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_waitaof_tells_of_the_local_disk(policy: str) -> None:
    """WAITAOF's reply waits for the local disk: under ``always`` as any reply does, else the log is synced first."""
    world = World({"appendonly": "yes", "appendfsync": policy})
    client = world.client()
    client.call("SET", "k", "v")
    assert client.call("WAITAOF", 1, 0, 0) == [1, 0]
    assert client.barrier == len(world.log.payloads)
    assert client.send("WAITAOF", 1, 1, 50) is WAITING
    world.advance(50)
    assert client.inbox == [[1, 0]]


def test_waitaof_without_a_log() -> None:
    """WAITAOF without a log is an error if it requests the local disk, and returns zeros if it requests nothing."""
    client = World(logged=False).client()
    assert client.call("WAITAOF", 0, 0, 0) == [0, 0]
    refused = client.call("WAITAOF", 1, 0, 0)
    assert refused == Error("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.")


@pytest.mark.realserver
def test_waits_answer_as_redis_does(each_redis: ServerProcess) -> None:
    """WAIT and WAITAOF have Redis's replies to valid and invalid arguments; 7.0 has no WAITAOF."""
    client = World(logged=False).client()
    pipe = Pipe(each_redis.port)
    try:
        has_waitaof = pipe.ask([[b"COMMAND", b"INFO", b"waitaof"]])[0] != [None]
        for line in (
            "WAIT 0 0",
            "WAIT -1 0",
            "WAIT x 0",
            "WAIT 0 -1",
            "WAIT 0 x",
            "WAITAOF 0 0 0",
            "WAITAOF 1 0 0",
            "WAITAOF 2 0 0",
            "WAITAOF x 0 0",
            "WAITAOF 0 -1 0",
            "WAITAOF 0 x 0",
            "WAITAOF 0 0 x",
            "SET a 1",
            "OBJECT FREQ a",
            "OBJECT FREQ none",
        ):
            if has_waitaof or not line.startswith("WAITAOF"):
                assert client.call(*line.split()) == pipe.ask([to_words(line.split())])[0], line
    finally:
        pipe.close()
