"""A blocking connection: expected replies are skipped in one step, and no reply is taken for another."""

import contextlib
from collections.abc import Iterator

import hiredis
import pytest

from millstream.spark.connection.connection import BlockingConnection, pack, pack_long
from support.servers import ServerProcess

pytestmark = [pytest.mark.realserver]


@pytest.fixture
def connection(real_redis: ServerProcess) -> Iterator[BlockingConnection]:
    """Yield a connection to an emptied server."""
    with real_redis.client() as client:
        client.flushall()
    with contextlib.closing(BlockingConnection(real_redis.url)) as made:
        yield made


@pytest.mark.parametrize("count", [1, 100_000])
def test_expected_replies_are_passed_over_and_the_next_one_is_received(
    connection: BlockingConnection, count: int
) -> None:
    """Any number of expected replies are skipped, and the next reply is received."""
    connection.send(pack(("PING",)) * count + pack(("ECHO", "next")))
    assert connection.passes(b"+PONG\r\n" * count)
    assert connection.receive(1) == [b"next"]


@pytest.mark.parametrize("wrong", [0, 50_000, 99_999])
def test_a_reply_that_was_not_expected_is_received_with_all_others(connection: BlockingConnection, wrong: int) -> None:
    """If one reply differs from the expected ones, all replies are received in order."""
    connection.send(pack(("PING",)) * wrong + pack(("GET",)) + pack(("PING",)) * (99_999 - wrong))
    assert not connection.passes(b"+PONG\r\n" * 100_000)
    replies = connection.receive(100_000)
    assert isinstance(replies.pop(wrong), hiredis.ReplyError)
    assert replies == [b"PONG"] * 99_999


def test_replies_that_came_too_early_are_not_passed_over(connection: BlockingConnection) -> None:
    """Replies that were read with an earlier one come first and are not skipped."""
    connection.send(pack(("ECHO", "first"), ("ECHO", "EARLY")))  # one packet, and so are their replies
    assert connection.receive(1) == [b"first"]
    connection.send(pack(("PING",)))
    assert not connection.passes(b"+PONG\r\n")
    assert connection.receive(2) == [b"EARLY", b"PONG"]


def test_a_connection_reads_no_package_metadata(
    connection: BlockingConnection, real_redis: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a connection does not look up redis-py's version in its package metadata."""

    def read(_: str) -> str:
        raise AssertionError("looked up")

    monkeypatch.setattr("redis.utils.metadata.version", read)
    with contextlib.closing(BlockingConnection(real_redis.url)) as made:
        assert made.ask([("PING",)]) == [b"PONG"]


def test_a_large_word_may_come_in_parts() -> None:
    """A large argument can be packed in parts, with the same bytes as if they were joined."""
    parts = [b"12\n", memoryview(b"xabcx")[1:4], b""]
    assert b"".join(pack_long(("HSET", "k", 7), parts)) == pack(("HSET", "k", 7, b"12\nabc"))
