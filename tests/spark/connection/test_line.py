"""The connection of the sink: many replies passed over in one go, and none mistaken for another."""

import contextlib
from collections.abc import Iterator

import hiredis
import pytest

from millstream.spark.connection.command_line import Line, pack, pack_long
from support.servers import ServerProcess

pytestmark = [pytest.mark.realserver]


@pytest.fixture
def line(real_redis: ServerProcess) -> Iterator[Line]:
    """A connection to an emptied server."""
    with real_redis.client() as client:
        client.flushall()
    with contextlib.closing(Line(real_redis.url, real_redis.url)) as made:
        yield made


@pytest.mark.parametrize("count", [1, 100_000])
def test_expected_replies_are_passed_over_and_the_next_one_is_received(line: Line, count: int) -> None:
    """However many of them a packet holds."""
    line.send(pack(("PING",)) * count + pack(("ECHO", "next")))
    assert line.passes(b"+PONG\r\n" * count)
    assert line.receive(1) == [b"next"]


@pytest.mark.parametrize("wrong", [0, 50_000, 99_999])
def test_a_reply_that_was_not_expected_is_received_with_all_others(line: Line, wrong: int) -> None:
    """Nothing of them is lost, wherever it stands."""
    line.send(pack(("PING",)) * wrong + pack(("GET",)) + pack(("PING",)) * (99_999 - wrong))
    assert not line.passes(b"+PONG\r\n" * 100_000)
    replies = line.receive(100_000)
    assert isinstance(replies.pop(wrong), hiredis.ReplyError)
    assert replies == [b"PONG"] * 99_999


def test_replies_that_came_too_early_are_not_passed_over(line: Line) -> None:
    """What was read with an earlier reply stands before what the socket has."""
    line._reader.feed(b"+EARLY\r\n")  # came in one packet with the reply before it
    line.send(pack(("PING",)))
    assert not line.passes(b"+PONG\r\n")
    assert line.receive(2) == [b"EARLY", b"PONG"]


def test_a_connection_reads_no_package_metadata(
    line: Line, real_redis: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch makes several, and redis-py would look up its own version for each."""

    def read(_: str) -> str:
        raise AssertionError("looked up")

    monkeypatch.setattr("redis.utils.metadata.version", read)
    with contextlib.closing(Line(real_redis.url, real_redis.url)) as made:
        assert made.ask(("PING",)) == [b"PONG"]


def test_a_large_word_may_come_in_parts() -> None:
    """They travel as one, as if they had been joined before."""
    parts = [b"12\n", memoryview(b"xabcx")[1:4], b""]
    assert b"".join(pack_long(("HSET", "k", 7), parts)) == pack(("HSET", "k", 7, b"12\nabc"))
